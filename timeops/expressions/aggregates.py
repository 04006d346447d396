"""The aggregates of a spec: what one evaluates on each row, what it adds up, and what it makes of the sums.

Here: cutting the text of an aggregate at its calls, and sums of BIGINT that do not wrap. Not here: evaluating the
parts (windows/membership.py, windows/aggregates.py), aggregates that depend on the order of rows (determinism.py).

An error of `max(timestamp_millis(n))` is one of a row, that of `timestamp_millis(sum(n))` one of a result.

A sum that does not fit is null, whatever the order in which it is added up. With ANSI mode off Spark's `sum` wraps
around. Its `try_sum` gives null as soon as it passes the end on the way, which depends on the order of the rows. A
sum that has wrapped is off by 2^64 or more from the one in floating point, whose own error is far smaller. Other
aggregates cannot overflow: a count is too small, and an average adds up in floating point.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DayTimeIntervalType, LongType, YearMonthIntervalType

from tidemark.timeops.expressions.tokens import Call, Token, calls, plain_column, tokenize
from tidemark.timeops.expressions.try_expression import type_of

AGGREGATES = frozenset(
    """any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg
    bool_and bool_or collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every
    first first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint
    kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
    kurtosis last last_value listagg max max_by mean median min min_by mode percentile percentile_approx
    percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum
    theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum var_pop var_samp variance""".split()  # noqa: SIM905
)
"""Spark's aggregate functions."""

# What some functions themselves refuse of a row, as SQL over their arguments that fails on it.
_REFUSED = {
    "percentile": "if(({2}\n) < 0, CAST(raise_error('a frequency below zero') AS INT), 0)",
    "bitmap_construct_agg": "if(({0}\n) NOT BETWEEN 0 AND 32767, CAST(raise_error('no position') AS INT), 0)",
    "hll_union_agg": "hll_sketch_estimate({0}\n)",
    "theta_union_agg": "theta_sketch_estimate({0}\n)",
    "theta_intersection_agg": "theta_sketch_estimate({0}\n)",
    "kll_merge_agg_bigint": "kll_sketch_get_n_bigint({0}\n)",
    "kll_merge_agg_double": "kll_sketch_get_n_double({0}\n)",
    "kll_merge_agg_float": "kll_sketch_get_n_float({0}\n)",
}

_ORDERING = frozenset({"asc", "desc", "nulls", "first", "last"})
SUMS = ("sum", "try_sum")
_APART = "9.2E18D"  # half of 2^64, and less than it


@dataclass(frozen=True)
class Cut:
    """An aggregate, cut at its calls of aggregate functions.

    Attributes:
        on_rows: What is evaluated on each row: arguments, where there is a FILTER only if it is true.
        sums: The calls, by a working name.
        result: SQL over these names; None where the aggregate is one call and no more.
    """

    on_rows: tuple[str, ...]
    sums: Mapping[str, str]
    result: str | None


def cut(aggregate: str, name: str = "__sum") -> Cut:
    """Cut an aggregate.

    Args:
        aggregate: Spark SQL.
        name: How the working names begin.
    """
    tokens = tokenize(aggregate)
    every = calls(tokens)
    sums: dict[str, str] = {}
    on_rows: list[str] = []
    pieces, at = [], 0
    for call in every:
        if call.name not in AGGREGATES or tokens[call.position].start < at:  # one below another is part of a FILTER
            continue
        end, order, condition = _with_clauses(tokens, call, every)
        start = tokens[call.position].start
        pieces += [aggregate[at:start], f"{name}{len(sums)}"]
        at = tokens[end - 1].end
        sums[f"{name}{len(sums)}"] = aggregate[start:at]
        values = [text for text in map(_Text(aggregate).without_words, [*call.arguments, *order]) if text]
        values += _refused_by(call.name, values)
        passes = _Text(aggregate).without_words(condition)
        on_rows += [f"CASE WHEN {passes}\nTHEN {text}\nEND" for text in values] if passes else values
        on_rows += [passes] if passes and not values else []
    pieces.append(aggregate[at:])
    is_one = len(sums) == 1 and not "".join((pieces[0], pieces[-1])).strip()
    return Cut(tuple(dict.fromkeys(on_rows)), sums, None if is_one else "".join(pieces))


def _refused_by(function: str, values: Sequence[str]) -> list[str]:
    """SQL that fails on a row whose values an aggregate function itself refuses; none where it takes all."""
    refused = _REFUSED.get(function)
    takes = 3 if function == "percentile" else 1
    return [refused.format(*values)] if refused is not None and len(values) >= takes else []


def on_rows(aggregates: Iterable[str]) -> tuple[str, ...]:
    """What some aggregates evaluate on each row, each expression once."""
    return tuple(dict.fromkeys(text for aggregate in aggregates for text in cut(aggregate).on_rows))


@dataclass(frozen=True)
class _Text:
    expression: str

    def without_words(self, tokens: Sequence[Token]) -> str:
        """The expression in an argument: without DISTINCT and the words of an order; empty for `*` or none."""
        first, last = 0, len(tokens)
        if last and tokens[0].lower in ("distinct", "all"):
            first = 1
        while last > first + 1 and tokens[last - 1].kind == "word" and tokens[last - 1].lower in _ORDERING:
            last -= 1
        if last > first + 2 and [token.lower for token in tokens[first + 1 : first + 3]] == ["=", ">"]:
            first += 3  # an argument by name
        kept = tokens[first:last]
        if not kept or (len(kept) == 1 and kept[0].lower == "*"):
            return ""
        return self.expression[kept[0].start : kept[-1].end]


def _with_clauses(
    tokens: Sequence[Token], call: Call, every: Sequence[Call]
) -> tuple[int, list[tuple[Token, ...]], tuple[Token, ...]]:
    """Where a call ends with its WITHIN GROUP and FILTER, the order of the one and the condition of the other."""
    end = call.end
    order: list[tuple[Token, ...]] = []
    condition: tuple[Token, ...] = ()
    by_place = {other.position: other for other in every}
    while end < len(tokens):
        word = tokens[end].lower
        if word == "within" and end + 1 in by_place and by_place[end + 1].arguments:
            group = by_place[end + 1]
            order = [group.arguments[0][2:], *group.arguments[1:]]  # behind ORDER BY
            end = group.end
        elif word == "filter" and end in by_place and by_place[end].arguments:
            condition = by_place[end].arguments[0][1:]  # behind WHERE
            end = by_place[end].end
        elif word in ("ignore", "respect") and end + 1 < len(tokens) and tokens[end + 1].lower == "nulls":
            end += 2
        else:
            break
    return end, order, condition


@dataclass(frozen=True)
class Adding:
    """A call of an aggregate of one argument.

    Attributes:
        function: The aggregate.
        argument: What it takes, without DISTINCT.
        is_distinct: Whether DISTINCT stands before it.
        only: `FILTER (WHERE ...)` and a blank before it, or nothing.
        start: Where the call begins in the text.
        stop: Where it ends, with its FILTER.
    """

    function: str
    argument: str
    is_distinct: bool
    only: str
    start: int
    stop: int


def calls_of(aggregate: str, functions: Collection[str]) -> list[Adding]:
    """The calls of some aggregates in an expression, in the order of the text."""
    tokens = tokenize(aggregate)
    every = calls(tokens)
    found = []
    for call in every:
        if call.name not in functions or len(call.arguments) != 1 or not call.arguments[0]:
            continue
        words = call.arguments[0]
        is_distinct = len(words) > 1 and words[0].lower == "distinct"
        words = words[1:] if len(words) > 1 and words[0].lower in ("distinct", "all") else words
        end, _, _ = _with_clauses(tokens, call, every)
        only = aggregate[tokens[call.end].start : tokens[end - 1].end] if end > call.end else ""
        found.append(
            Adding(
                call.name,
                aggregate[words[0].start : words[-1].end],
                is_distinct,
                f" {only}" if only else "",
                tokens[call.position].start,
                tokens[end - 1].end,
            )
        )
    return found


def argument_type(one: Adding, frame: DataFrame) -> DataType:
    """The type of what a call takes; of a column without asking Spark to look at the whole query once more."""
    name = plain_column(one.argument)
    columns = [field.dataType for field in frame.schema if name is not None and field.name.lower() == name.lower()]
    return columns[0] if len(columns) == 1 else type_of(frame, one.argument)


def without_overflow(aggregate: str, frame: DataFrame, *, in_decimals: bool = False) -> str:
    """An aggregate whose sums of BIGINT are null where they do not fit.

    Args:
        aggregate: Spark SQL.
        frame: What it is computed of.
        in_decimals: Add up decimals, which is another way to the same sums, and slower.
    """
    text, behind = "", 0
    for one, kind in _sums(aggregate, frame):
        if isinstance(kind, LongType):
            whole = _exact_sum(one) if in_decimals else _whole_sum(one)
        elif isinstance(kind, DayTimeIntervalType | YearMonthIntervalType) and one.function == "sum":
            whole = f"try_{aggregate[one.start : one.stop]}"  # an error of Spark in any mode
        else:
            continue
        text += f"{aggregate[behind : one.start]}{whole}"
        behind = one.stop
    return text + aggregate[behind:]


def overflow_in(aggregate: str, frame: DataFrame) -> str | None:
    """SQL of a BOOLEAN aggregate, never null: one of the sums of BIGINT does not fit; None where there are none."""
    sums = [one for one, kind in _sums(aggregate, frame) if isinstance(kind, LongType)]
    each = [f"({_exact(one)} IS NOT NULL AND {_exact_sum(one)} IS NULL)" for one in sums]
    return " OR ".join(each) if each else None


def wrapped_away(total: str, approximate: str) -> str:
    """SQL of a BIGINT: a sum that may have wrapped, null where it has.

    Args:
        total: SQL of the sum.
        approximate: SQL of the same in floating point.
    """
    return f"CASE WHEN abs({total} - {approximate}) < {_APART} THEN {total} END"


def _sums(aggregate: str, frame: DataFrame) -> list[tuple[Adding, DataType]]:
    """The sums in an aggregate, and the types of what they add up."""
    return [(one, argument_type(one, frame)) for one in calls_of(aggregate, SUMS)]


def _whole_sum(one: Adding) -> str:
    if one.is_distinct:  # numbers that differ may be one in floating point
        return _exact_sum(one)
    return f"({wrapped_away(f'sum({one.argument}){one.only}', _approximate(one))})"


def _exact_sum(one: Adding) -> str:
    return f"try_cast({_exact(one)} AS BIGINT)"


def _approximate(one: Adding) -> str:
    return f"sum(CAST({one.argument} AS DOUBLE)){one.only}"


def _exact(one: Adding) -> str:
    distinct = "DISTINCT " if one.is_distinct else ""
    return f"sum({distinct}CAST({one.argument} AS DECIMAL(20, 0))){one.only}"
