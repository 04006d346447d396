"""Which Spark SQL expressions give results that are a function of the arrival log, and how to write the others so.

Here: checks on the words of an expression: clocks, randomness, subqueries, windows over rows, and aggregates that
depend on the order in which Spark meets the rows. Not here: types and columns: Spark may still refuse an expression
that passes.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from tidemark.timeops.expressions.clock_texts import is_clock, why, written_texts
from tidemark.timeops.expressions.tokens import (
    Call,
    Token,
    balance_fault,
    calls,
    lambda_names,
    mentions,
    plain_column,
    tokenize,
)
from tidemark.timeops.problems import Problem

_USE_ARRIVAL = "use `_arrival_time`, the instant at which the record arrived"
_USE_LOG = "use `_arrival_seq`, the record's place in the log, or a hash of its columns such as `xxhash64(id)`"
_USE_VALUE = "write the value itself as text"
_USE_NULL = "filter such rows with `where`, or give null for them"
_USE_ARRAY = "keep the array, or take one value of it, such as `array_max(x)` or `element_at(x, 1)`"
_USE_WINDOWS = "write `kind`, `size` and `hop` of the window, or `date_trunc('HOUR', x)` for a part of a time"
_REASONS = {
    **dict.fromkeys(
        ("now", "current_timestamp", "current_date", "current_time", "curdate", "localtimestamp"),
        ("reads the clock", _USE_ARRIVAL),
    ),
    **dict.fromkeys(
        ("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "aes_encrypt"),
        ("is random", _USE_LOG),
    ),
    **dict.fromkeys(
        (
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        ("depends on how the input is cut into files and partitions", _USE_LOG),
    ),
    **dict.fromkeys(
        (
            "current_user",
            "user",
            "session_user",
            "current_catalog",
            "current_database",
            "current_schema",
            "current_path",
            "version",
        ),
        ("depends on who runs the pipeline, and where", _USE_VALUE),
    ),
    **dict.fromkeys(
        ("reflect", "java_method", "try_reflect"),
        ("calls code that Tidemark cannot check", "use Spark SQL functions"),
    ),
    **dict.fromkeys(("raise_error", "assert_true"), ("fails the whole batch because of one row", _USE_NULL)),
    **dict.fromkeys(
        (
            "explode",
            "explode_outer",
            "posexplode",
            "posexplode_outer",
            "inline",
            "inline_outer",
            "stack",
            "json_tuple",
        ),
        ("makes several rows of one, but an expression gives one value", _USE_ARRAY),
    ),
    **dict.fromkeys(
        ("window", "session_window", "window_time"),
        ("makes windows of its own, beside those of `windows`", _USE_WINDOWS),
    ),
    "identifier": ("hides the name that it stands for", "write the name itself"),
}
_BARE = frozenset(
    (
        "current_timestamp",
        "current_date",
        "current_time",
        "localtimestamp",
        "current_user",
        "session_user",
        "user",
    )
)
_PRINCIPLE = "a result that is a function of the arrival log: the same log gives the same tables"

_LIKE = frozenset({"like", "ilike", "rlike", "regexp"})
_AFTER_NAME = frozenset({"is", "in", "like", "between", "and", "or", "not", "as", "ilike", "rlike", "div"})
_EVENT_ORDER = "struct(_timestamp, _arrival_seq)"
_SORTS = frozenset({"array_sort", "sort_array"})
_ORDER_FREE = _SORTS | {"size", "cardinality", "array_size", "array_min", "array_max"}


def determinism_problems(expression: str, columns: Collection[str] = ()) -> list[Problem]:
    """Find clocks, randomness, subqueries and window functions: what is no function of the record.

    Args:
        expression: Spark SQL.
        columns: Columns in sight. One that is called `user` or `current_date` hides the function of this name, as in
            Spark.

    Returns:
        What is wrong, with why, and what to use instead.
    """
    tokens = tokenize(expression)
    fault = balance_fault(tokens)
    if fault:
        return [Problem(f"the expression {expression!r} is not whole: {fault}", expected="a Spark SQL expression")]
    hidden = {name.lower() for name in columns} | lambda_names(tokens)
    checks = (
        _refused_calls(tokens),
        _refused_names(tokens, hidden),
        _clock_words(expression, tokens),
        _queries(tokens),
    )
    return list(dict.fromkeys(problem for found in checks for problem in found))


def _refused(shown: str, why: str, remedy: str) -> Problem:
    return Problem(f"`{shown}` {why}", expected=_PRINCIPLE, remedy=remedy)


def _refused_calls(tokens: Sequence[Token]) -> Iterable[Problem]:
    for call in calls(tokens):
        if call.name in _REASONS:
            yield _refused(f"{call.name}()", *_REASONS[call.name])
        elif call.name == "unix_timestamp" and not call.arguments:
            yield _refused("unix_timestamp()", "reads the clock", f"name a column, or {_USE_ARRIVAL}")


def _refused_names(tokens: Sequence[Token], hidden: Collection[str]) -> Iterable[Problem]:
    """Find functions that Spark calls without brackets when no column has their name."""
    for position, token in enumerate(tokens):
        if not token.is_name or token.lower not in _BARE or token.lower in hidden:
            continue
        before = tokens[position - 1].lower if position else ""
        after = "".join(other.lower for other in tokens[position + 1 : position + 3])
        is_field_or_alias = before in (".", "as") or after.startswith((".", "(", "->"))
        if not is_field_or_alias:
            yield _refused(token.lower, *_REASONS[token.lower])


def _clock_words(expression: str, tokens: Sequence[Token]) -> Iterable[Problem]:
    for before, text in written_texts(expression, tokens):
        if before.lower not in _LIKE and is_clock(text):
            remedy = f"{_USE_ARRIVAL}; to compare with the text itself write `LIKE '{text.strip()}'`"
            yield _refused(f"'{text}'", why(text), remedy)


def _queries(tokens: Sequence[Token]) -> Iterable[Problem]:
    """Find subqueries and window functions."""
    for position, token in enumerate(tokens):
        before = tokens[position - 1].lower if position else ""
        after = tokens[position + 1] if position + 1 < len(tokens) else Token("symbol", "", 0, 0)
        if token.kind == "word" and before == "(" and _opens_query(token.lower, after):
            yield _refused(
                "subquery", "reads other tables, which are not in the log", "use columns of the record only"
            )
        elif token.lower == "over" and after.lower == "(":
            why = "is a window function over rows, whose neighbours depend on how the log is cut"
            yield _refused("OVER (...)", why, "use an entry of `windows` with `aggregates`")


def _opens_query(word: str, after: Token) -> bool:
    """Whether these two words, behind a bracket, begin a query; `from` and `table` may be columns too."""
    if word == "select":
        return after.text not in (")", ".", ",")
    if word in ("from", "table", "with"):
        return after.is_name and after.lower not in _AFTER_NAME
    return word == "values" and (after.lower == "(" or after.kind in ("word", "string", "quoted"))


def order_problems(expression: str) -> list[Problem]:
    """Find aggregates whose value depends on the order in which Spark meets the rows.

    Returns:
        What is wrong, with the rewriting that goes by (`_timestamp`, `_arrival_seq`) or needs no order.
    """
    tokens = tokenize(expression)
    every = calls(tokens)
    problems = []
    for call in every:
        use = _Use(expression, tokens, call, every)
        instead = _REWRITES[call.name](use) if call.name in _REWRITES else ""
        if instead:
            problems.append(
                Problem(
                    f"`{use.text}` depends on the order in which Spark reads rows, which differs from run to run",
                    expected="an aggregate ordered by (_timestamp, _arrival_seq), or one that needs no order",
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
