"""Calls of aggregate functions in the text of an expression, with their clauses.

Here: which functions are aggregates, and what belongs to a call of one: DISTINCT, WITHIN GROUP, FILTER, IGNORE NULLS.
Not here: what aggregates evaluate and add up (timeops/expressions/aggregates.py), which of them depend on the order
of rows (timeops/expressions/determinism.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark.timeops.expressions.tokens import Call, Token, calls, part_of, tokenize

AGGREGATES = frozenset(
    """any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value
    grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kurtosis last last_value listagg max
    max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg
    skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg
    theta_union_agg try_avg try_sum var_pop var_samp variance""".split()  # noqa: SIM905
)
"""Spark's aggregate functions, except for the ones that a spec may not call."""

_ORDERING = frozenset({"asc", "desc", "nulls", "first", "last"})


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate function in an expression.

    Attributes:
        function: Its name.
        arguments: What it takes, without DISTINCT; of `*` an empty text.
        is_distinct: Whether DISTINCT is before them.
        order: What WITHIN GROUP orders by.
        condition: The condition of its FILTER; empty without one.
        skips_nulls: Whether IGNORE NULLS is in or after its brackets.
        clauses: All that follows its brackets, such as ` FILTER (WHERE …)`, with a blank before it.
        start: Where it begins in the text.
        stop: Where it ends, with its clauses.
    """

    function: str
    arguments: tuple[str, ...]
    is_distinct: bool
    order: tuple[str, ...]
    condition: str
    skips_nulls: bool
    clauses: str
    start: int
    stop: int

    @property
    def argument(self) -> str:
        """The only argument."""
        [argument] = self.arguments
        return argument


def aggregate_calls(expression: str) -> list[AggregateCall]:
    """Return the calls of aggregate functions in an expression, in the order of the text; none is part of another."""
    tokens = tokenize(expression)
    every = calls(tokens)
    aggregates: list[AggregateCall] = []
    for call in every:
        if call.name not in AGGREGATES or (aggregates and call.start < aggregates[-1].stop):
            continue
        end, order, condition = _with_clauses(tokens, call, every)
        first = call.arguments[0] if call.arguments else ()
        clauses = part_of(expression, tokens[call.end : end])
        aggregates.append(
            AggregateCall(
                function=call.name,
                arguments=tuple(_argument(expression, argument) for argument in call.arguments),
                is_distinct=len(first) > 1 and first[0].lower == "distinct",
                order=tuple(part_of(expression, _without_direction(key)) for key in order),
                condition=part_of(expression, condition),
                skips_nulls=_ignores_nulls(first[-2:]) or _ignores_nulls(tokens[call.end : end]),
                clauses=f" {clauses}" if clauses else "",
                start=call.start,
                stop=tokens[end - 1].end,
            )
        )
    return aggregates


def calls_of(aggregate: str, functions: Collection[str]) -> list[AggregateCall]:
    """Return the calls of some aggregates of one argument in an expression, in the order of the text."""
    matching = [call for call in aggregate_calls(aggregate) if call.function in functions]
    return [call for call in matching if len(call.arguments) == 1 and call.argument]


def _argument(expression: str, tokens: Sequence[Token]) -> str:
    """Return the text of an argument, without DISTINCT, its name and IGNORE NULLS; empty for `*`."""
    tokens = without_name(tokens)
    if len(tokens) > 2 and tokens[-2].lower in ("ignore", "respect") and tokens[-1].lower == "nulls":
        tokens = tokens[:-2]
    return "" if len(tokens) == 1 and tokens[0].lower == "*" else part_of(expression, tokens)


def _ignores_nulls(tokens: Sequence[Token]) -> bool:
    return ("ignore", "nulls") in pairwise(token.lower for token in tokens)


def without_name(tokens: Sequence[Token]) -> Sequence[Token]:
    """Return the tokens of an argument, without DISTINCT and its name."""
    if len(tokens) > 1 and tokens[0].lower in ("distinct", "all"):
        tokens = tokens[1:]
    if len(tokens) > 3 and [token.lower for token in tokens[1:3]] == ["=", ">"]:
        tokens = tokens[3:]
    return tokens


def _without_direction(tokens: Sequence[Token]) -> Sequence[Token]:
    """Return the tokens of what an order is by, without `DESC NULLS LAST`."""
    last = len(tokens)
    while last > 1 and tokens[last - 1].kind == "word" and tokens[last - 1].lower in _ORDERING:
        last -= 1
    return tokens[:last]


def _with_clauses(
    tokens: Sequence[Token], call: Call, every: Sequence[Call]
) -> tuple[int, list[tuple[Token, ...]], tuple[Token, ...]]:
    """Find where a call ends, the order of its WITHIN GROUP and the condition of its FILTER."""
    end = call.end
    order: list[tuple[Token, ...]] = []
    condition: tuple[Token, ...] = ()
    by_place = {other.position: other for other in every}
    while end < len(tokens):
        word = tokens[end].lower
        if word == "within" and end + 1 in by_place and by_place[end + 1].arguments:
            group = by_place[end + 1]
            order = [group.arguments[0][2:], *group.arguments[1:]]  # after ORDER BY
            end = group.end
        elif word == "filter" and end in by_place and by_place[end].arguments:
            condition = by_place[end].arguments[0][1:]  # after WHERE
            end = by_place[end].end
        elif word in ("ignore", "respect") and end + 1 < len(tokens) and tokens[end + 1].lower == "nulls":
            end += 2
        else:
            break
    return end, order, condition
