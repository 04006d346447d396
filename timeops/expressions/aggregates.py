"""The aggregates of a spec: what one evaluates on each row, what it adds up, and what it makes of the sums.

Here: cutting the text of an aggregate at its calls, and sums, of decimals too, that are the same in any order of
rows. Not here: the calls in a text (timeops/expressions/aggregate_calls.py), evaluating the parts
(timeops/windows/segment.py, timeops/windows/aggregates.py), aggregates that depend on the order of rows
(timeops/expressions/determinism.py).

An error of `max(timestamp_millis(n))` is one of a row, that of `timestamp_millis(sum(n))` one of a result.

A sum that does not fit is null, whatever the order in which it is added up. With ANSI mode off Spark's `sum` of
BIGINT wraps around. Its `try_sum`, and its sum of decimals, is null as soon as it passes the end on the way, which
depends on the order of the rows. A sum of BIGINT that has wrapped is off by 2^64 or more from the one in floating
point, whose own error is far smaller. Spark's average of short decimals adds up in floating point, and the one of
intervals fails.

Spark adds up decimals in 38 digits. So the digits above and below 10^20 units of the last place are added up apart,
and put together at the end. A number of up to 20 digits needs no second half. All is in whole numbers, whose type
loses no digits, and a text with an exponent makes a decimal of them again.

`max` keeps the first of -0.0 and 0.0, which are the same to it: aggregates that keep values take -0.0 for 0.0, as
groups do.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pyspark.sql.types import DataType, DayTimeIntervalType, DecimalType, LongType, YearMonthIntervalType

from tidemark.timeops.expressions.aggregate_calls import AggregateCall, aggregate_calls, calls_of, without_name
from tidemark.timeops.expressions.tokens import calls, let, mentions, part_of, tokenize
from tidemark.timeops.expressions.try_expression import Columns, holds_floats, without_minus_zero

_HALF = 20  # digits of the lower half
_BASE = f"1{'0' * _HALF}BD"
_MOST = 38  # digits of Spark's decimals
_ROOM = 10  # more digits that Spark's sum has than what it adds up

AddUp = Callable[[Callable[[str], str] | None], str]
"""SQL of the sum over all rows: of the argument itself, or of a whole number that SQL makes of it."""


def _exact_mean(add_up: AddUp, count: str, kind: DecimalType) -> str:
    """Return SQL of the average of decimals, rounded half up to the type that Spark's average has."""
    precision, scale = min(_MOST, kind.precision + 4), min(_MOST, kind.scale + 4)
    return _scaled(_mean(_total(add_up, kind), count, 10 ** (scale - kind.scale)), precision, scale)


def _total(add_up: AddUp, kind: DecimalType) -> str:
    """Return SQL of a DECIMAL(38, 0): the sum in units of the last place, null where it does not fit."""
    places = kind.scale
    unit = "" if places == 0 else f" / 0.{'1'.rjust(places, '0')}BD"
    if kind.precision <= _HALF:
        return f"CAST({add_up(None)}{unit} AS DECIMAL(38, 0))"
    base = f"1{'0' * (_HALF - places)}BD" if places <= _HALF else f"0.{'1'.rjust(places - _HALF, '0')}BD"
    high = add_up(lambda value: f"CAST({value} div {base} AS DECIMAL(20, 0))")
    low = add_up(lambda value: f"CAST({value} % {base}{unit} AS DECIMAL(20, 0))")
    halves = f"named_struct('h', CAST({high} AS DECIMAL(38, 0)), 'l', CAST({low} AS DECIMAL(38, 0)))"
    carried = f"named_struct('h', __tm_d.h + (__tm_d.l div {_BASE}), 'l', __tm_d.l % {_BASE})"
    # Both halves get one sign, so that the first alone shows whether the whole fits.
    borrowed = "CASE WHEN __tm_d.h > 0 AND __tm_d.l < 0 THEN 1 WHEN __tm_d.h < 0 AND __tm_d.l > 0 THEN -1 ELSE 0 END"
    even = let("__tm_s", borrowed, f"named_struct('h', __tm_d.h - __tm_s, 'l', __tm_d.l + __tm_s * {_BASE})")
    value = f"CAST(__tm_d.h AS DECIMAL(18, 0)) * {_BASE} + __tm_d.l"
    return let("__tm_d", halves, let("__tm_d", carried, let("__tm_d", even, value)))


def _mean(total: str, count: str, parts: int) -> str:
    """Return SQL of a STRING: a quotient in so many parts of one, rounded half up, by long division in two steps."""
    # Spark's `abs` and its minus round to 34 digits.
    signed = f"named_struct('t', if(__tm_t < 0, 0 - __tm_t, __tm_t), 'n', {count}, 's', if(__tm_t < 0, '-', ''))"
    high, low = f"(__tm_m.t div {_BASE})", f"__tm_m.t % {_BASE}"
    of_high = f"'q', CAST({high} div __tm_m.n AS DECIMAL(20, 0)) * {_BASE}"
    fields = f"'r', CAST({high} % __tm_m.n AS DECIMAL(20, 0)) * {_BASE} + {low}"
    first = f"named_struct({of_high}, {fields}, 'n', __tm_m.n, 's', __tm_m.s)"
    of_low = "'q', __tm_m.q + CAST((__tm_m.r - __tm_m.r % __tm_m.n) / __tm_m.n AS DECIMAL(38, 0))"
    second = f"named_struct({of_low}, 'r', __tm_m.r % __tm_m.n, 'n', __tm_m.n, 's', __tm_m.s)"
    rounded = f"__tm_m.q * {parts}BD + ((__tm_m.r * {2 * parts}BD + __tm_m.n) div (2 * __tm_m.n))"
    digits = f"concat(__tm_m.s, CAST({rounded} AS STRING))"
    return let("__tm_t", total, let("__tm_m", signed, let("__tm_m", first, let("__tm_m", second, digits))))


def _scaled(digits: str, precision: int, scale: int) -> str:
    """Return SQL that makes a decimal of a text of digits, in units of its last place."""
    return f"CAST(concat({digits}, 'E-{scale}') AS DECIMAL({precision}, {scale}))"


# What some functions themselves refuse of a row, as SQL over their arguments that fails on it.
_REFUSED: Mapping[str, str] = {
    "percentile": "if(({2}\n) < 0, CAST(raise_error('a frequency below zero') AS INT), 0)",
    "bitmap_construct_agg": "if(({0}\n) NOT BETWEEN 0 AND 32767, CAST(raise_error('no position') AS INT), 0)",
    "hll_union_agg": "hll_sketch_estimate({0}\n)",
    "theta_union_agg": "theta_sketch_estimate({0}\n)",
    "theta_intersection_agg": "theta_sketch_estimate({0}\n)",
}

_KEEPING = frozenset(
    """approx_percentile array_agg collect_list collect_set max max_by median min min_by mode percentile
    percentile_approx percentile_cont percentile_disc""".split()  # noqa: SIM905
)
SUMS = ("sum", "try_sum")
MEANS = ("avg", "mean", "try_avg")
_END = "\n"  # of an argument, which may end in a comment
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


@lru_cache(maxsize=5_000)
def cut(aggregate: str, name: str = "__tm_sum") -> Cut:
    """Cut an aggregate; the working names begin with `name`."""
    aggregates = aggregate_calls(aggregate)
    sums = {f"{name}{number}": aggregate[call.start : call.stop] for number, call in enumerate(aggregates)}
    ends = [0, *(call.stop for call in aggregates)]
    between = [
        aggregate[a:b] for a, b in zip(ends, [*(call.start for call in aggregates), len(aggregate)], strict=True)
    ]
    is_one = len(aggregates) == 1 and not "".join(between).strip()
    result = between[0] + "".join(of + text for of, text in zip(sums, between[1:], strict=True))
    rows = dict.fromkeys(text for call in aggregates for text in _on_rows(call))
    return Cut(tuple(rows), sums, None if is_one else result)


def _on_rows(call: AggregateCall) -> list[str]:
    """Return what a call evaluates on each row."""
    values = [text for text in (*call.arguments, *call.order) if text]
    if call.function in _REFUSED and len(values) >= (3 if call.function == "percentile" else 1):
        values.append(_REFUSED[call.function].format(*values))
    if not call.condition:
        return values
    return [f"CASE WHEN {call.condition}\nTHEN {text}\nEND" for text in values] or [call.condition]


def on_rows(aggregates: Iterable[str]) -> tuple[str, ...]:
    """Return what some aggregates evaluate on each row, each expression once."""
    return tuple(dict.fromkeys(text for aggregate in aggregates for text in cut(aggregate).on_rows))


def without_overflow(aggregate: str, columns: Columns, *, in_decimals: bool = False) -> str:
    """Return an aggregate whose sums and averages are the same in any order of rows, and null where they do not fit.

    `in_decimals` adds up BIGINT as decimals, which is another way to the same sums, and slower.
    """
    aggregate = without_minus_zeros(aggregate, columns)
    text, copied = "", 0
    for call, kind in _sums(aggregate, columns):
        exact = _exact_sql(call, kind, in_decimals=in_decimals)
        if exact is not None:
            text += f"{aggregate[copied : call.start]}{exact}"
            copied = call.stop
    return text + aggregate[copied:]


def without_minus_zeros(aggregate: str, columns: Columns) -> str:
    """Return an aggregate that keeps 0.0 for -0.0 where it keeps values of its rows."""
    text, copied = "", 0
    for call in calls(tokenize(aggregate)):
        if call.name not in _KEEPING or call.start < copied:
            continue
        for argument in call.arguments:
            unnamed = without_name(argument)
            value = part_of(aggregate, unnamed)
            if not any(mentions(value, name) for name in columns.types):
                continue
            kind = columns.read(value).type
            if holds_floats(kind):
                text += aggregate[copied : unnamed[0].start] + without_minus_zero(value, kind)
                copied = unnamed[-1].end
    return text + aggregate[copied:]


def overflow_in(aggregate: str, columns: Columns) -> str | None:
    """Return SQL of a BOOLEAN aggregate, never null: a sum or average in it does not fit; None where all do."""
    wholes = [(call, _exact_sql(call, kind, in_decimals=True)) for call, kind in _sums(aggregate, columns)]
    conditions = [
        f"(count({call.argument}){call.clauses} > 0 AND {exact} IS NULL)" for call, exact in wholes if exact
    ]
    return " OR ".join(conditions) if conditions else None


def _exact_sql(call: AggregateCall, kind: DataType, *, in_decimals: bool) -> str | None:
    """Return SQL of a sum or an average that is the same in any order of rows; None where Spark's own is."""
    if isinstance(kind, DecimalType):
        return _of_decimals(call, kind)
    if isinstance(kind, DayTimeIntervalType):
        total = _of_whole_numbers(call, f"unix_micros(TIMESTAMP'1970-01-01' + ({call.argument}{_END}))", "BIGINT")
        return f"(timestamp_micros({total}) - timestamp_micros(0))"
    if isinstance(kind, YearMonthIntervalType):
        months = f"(12L * extract(YEAR FROM {call.argument}{_END}) + extract(MONTH FROM {call.argument}{_END}))"
        return f"make_ym_interval(0, {_of_whole_numbers(call, months, 'INT')})"
    if not isinstance(kind, LongType) or call.function not in SUMS:
        return None
    if in_decimals or call.is_distinct:  # numbers that differ may be one in floating point
        return f"try_cast({_exact(call)} AS BIGINT)"
    approximate = f"sum(CAST({call.argument} AS DOUBLE)){call.clauses}"
    return f"({wrapped_away(f'sum({call.argument}){call.clauses}', approximate)})"


def _of_decimals(call: AggregateCall, kind: DecimalType) -> str | None:
    def add_up(of_row: Callable[[str], str] | None) -> str:
        if of_row is None:
            return f"sum({_distinct(call)}{call.argument}){call.clauses}"
        if not call.is_distinct:
            return f"sum({of_row(f'({call.argument}{_END})')}){call.clauses}"
        values = f"collect_set({call.argument}){call.clauses}"  # values that differ may have a half in common
        added = f"(__tm_a, __tm_v) -> CAST(__tm_a + {of_row('__tm_v')} AS DECIMAL(38, 0))"
        return f"if(size({values}) > 0, aggregate({values}, CAST(0 AS DECIMAL(38, 0)), {added}), NULL)"

    if call.function in MEANS:
        return _exact_mean(add_up, _count(call), kind)
    if kind.precision + _ROOM <= _MOST:
        return None  # ten billion rows fit
    return _scaled(f"CAST({_total(add_up, kind)} AS STRING)", _MOST, kind.scale)


def _count(call: AggregateCall) -> str:
    return f"count({_distinct(call)}{call.argument}){call.clauses}"


def _distinct(call: AggregateCall) -> str:
    return "DISTINCT " if call.is_distinct else ""


def _of_whole_numbers(call: AggregateCall, number: str, kind: str) -> str:
    """Return SQL of the sum of the whole numbers that an argument becomes, null where it does not fit.

    An average is rounded half up to a whole number.
    """
    of_numbers = replace(call, arguments=(number,))
    total = _exact(of_numbers)
    if call.function in MEANS:
        total = _scaled(_mean(f"CAST({total} AS DECIMAL(38, 0))", _count(of_numbers), 1), _MOST, 0)
    return f"try_cast({total} AS {kind})"


def wrapped_away(total: str, approximate: str) -> str:
    """Return SQL of a BIGINT: a sum that may have wrapped, null where it has, by the same sum in floating point."""
    return f"CASE WHEN abs({total} - {approximate}) < {_APART} THEN {total} END"


def _sums(aggregate: str, columns: Columns) -> list[tuple[AggregateCall, DataType]]:
    """Return the sums and averages in an aggregate, and the types of what they add up."""
    return [(call, columns.read(call.argument).type) for call in calls_of(aggregate, (*SUMS, *MEANS))]


def _exact(call: AggregateCall) -> str:
    return f"sum({_distinct(call)}CAST({call.argument} AS DECIMAL(20, 0))){call.clauses}"
