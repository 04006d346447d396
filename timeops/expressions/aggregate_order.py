"""Aggregates whose value depends on the order in which Spark meets the rows, and how to write them without.

Here: the functions and their rewritings. Not here: clocks and randomness (determinism.py), types.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemark.timeops.expressions.tokens import Call, Token, calls, mentions, plain_column, tokenize
from tidemark.timeops.problems import Problem

_EVENT_ORDER = "struct(_timestamp, _arrival_seq)"
_SORTS = frozenset({"array_sort", "sort_array"})
_ORDER_FREE = _SORTS | {"size", "cardinality", "array_size", "array_min", "array_max"}


def order_problems(expression: str) -> list[Problem]:
    """Return what `check_aggregate` would refuse."""
    tokens = tokenize(expression)
    every = calls(tokens)
    problems = []
    for call in every:
        use = _Use(expression, tokens, call, every)
        instead = _REWRITES[call.name](use) if call.name in _REWRITES else ""
        if instead:
            problems.append(
                Problem(
                    f"`{use.text}` depends on the order in which rows are met, which differs from run to run",
                    expected="an aggregate that goes by (_timestamp, _arrival_seq), or that needs no order",
                    remedy=f"write {instead}",
                )
            )
    return problems


@dataclass(frozen=True)
class _Use:
    """One call, and the expression in which it stands."""

    expression: str
    tokens: Sequence[Token]
    call: Call
    every: Sequence[Call]

    @property
    def text(self) -> str:
        return self._text(self.tokens[self.call.position : self.call.end])

    def _text(self, tokens: Sequence[Token]) -> str:
        return self.expression[tokens[0].start : tokens[-1].end] if tokens else ""

    def argument(self, position: int) -> str:
        """Return the text of an argument without DISTINCT and null treatment; `x` when there is none."""
        if position >= len(self.call.arguments):
            return "x"
        text = self._text(self.call.arguments[position])
        text = re.sub(r"^distinct\s+", "", text, flags=re.IGNORECASE)
        return re.sub(r"\s+(?:ignore|respect)\s+nulls$", "", text, flags=re.IGNORECASE)

    def is_distinct(self) -> bool:
        """Whether `DISTINCT` stands before the first argument."""
        first = self.call.arguments[0] if self.call.arguments else ()
        return len(first) > 1 and first[0].lower == "distinct"

    def skips_nulls(self) -> bool:
        """Whether `IGNORE NULLS` stands in or behind the call, or true as its second argument."""
        end = self.call.end
        words = {token.lower for token in self.tokens[end - 3 : end + 2]}
        return {"ignore", "nulls"} <= words or self.argument(1).lower() == "true"

    def loses_order(self) -> bool:
        """Whether the call, with a FILTER or not, is just what a sort (or a size) takes.

        A comparator as second argument of `array_sort` may leave ties, so it does not count as a sort.
        """
        for outer in self.every:
            first = outer.arguments[0] if outer.arguments else ()
            if outer.name not in _ORDER_FREE or not first or first[0] is not self.tokens[self.call.position]:
                continue
            rest = self.tokens[self.call.end : outer.position + 2 + len(first)]
            is_filtered = bool(rest) and rest[0].lower == "filter" and rest[-1].lower == ")"
            has_comparator = outer.name == "array_sort" and len(outer.arguments) > 1
            return (not rest or is_filtered) and not has_comparator
        return False


def _earliest_or_latest(name: str) -> Callable[[_Use], str]:
    def rewrite(use: _Use) -> str:
        column = use.argument(0)
        only = f" FILTER (WHERE {column} IS NOT NULL)" if use.skips_nulls() else ""
        return f"`{name}({column}, {_EVENT_ORDER}){only}`"

    return rewrite


def _in_event_order(column: str) -> str:
    is_plain = plain_column(column) is not None
    named, field = (column, column) if is_plain else (f"{column} AS value", "value")
    return f"transform(array_sort(collect_list(struct(_timestamp, _arrival_seq, {named}))), s -> s.{field})"


def _list(use: _Use) -> str:
    if use.loses_order():
        return ""
    if use.is_distinct():
        return f"`array_sort(collect_set({use.argument(0)}))`"
    nulls = f"`FILTER (WHERE {use.argument(0)} IS NOT NULL)`"
    return f"`{_in_event_order(use.argument(0))}`; {nulls} behind collect_list(...) leaves nulls out"


def _set(use: _Use) -> str:
    return "" if use.loses_order() else f"`array_sort(collect_set({use.argument(0)}))`"


def _joined(use: _Use) -> str:
    separator = use.argument(1) if len(use.call.arguments) > 1 else "''"
    column = use.argument(0)
    values = f"array_sort(collect_set({column}))" if use.is_distinct() else _in_event_order(column)
    return f"`array_join({values}, {separator})`"


def _mode(use: _Use) -> str:
    # mode() WITHIN GROUP (ORDER BY x) settles ties by the order it names.
    is_settled = not use.call.arguments or use.argument(1).lower() == "true"
    return "" if is_settled else f"`mode({use.argument(0)}, true)`"


def _extreme(use: _Use) -> str:
    if mentions(use.argument(1), "_arrival_seq"):
        return ""
    return f"`{use.call.name}({use.argument(0)}, struct({use.argument(1)}, _arrival_seq))`, which settles ties"


def _histogram(use: _Use) -> str:
    return f"`percentile({use.argument(0)}, array(0.25, 0.5, 0.75))`, or one `count_if` per range"


_REWRITES: dict[str, Callable[[_Use], str]] = {
    **dict.fromkeys(("first", "first_value", "any_value"), _earliest_or_latest("min_by")),
    **dict.fromkeys(("last", "last_value"), _earliest_or_latest("max_by")),
    **dict.fromkeys(("collect_list", "array_agg"), _list),
    "collect_set": _set,
    **dict.fromkeys(("listagg", "string_agg"), _joined),
    "mode": _mode,
    **dict.fromkeys(("max_by", "min_by"), _extreme),
    "histogram_numeric": _histogram,
}
