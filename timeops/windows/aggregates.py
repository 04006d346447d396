"""Aggregates of windows, which cannot fail a batch, at once or in parts; and the first rows of groups (`top`).

Here: aggregates over the rows of groups, the first events of each window and group, and which results `having` shows.
In parts: count, sum, min, max and avg of numbers; any other aggregate, and these with DISTINCT, FILTER or something
around them, needs all rows at once. Not here: rows on which an argument fails, which have no part in a result
(timeops/windows/segment.py); the parts themselves (timeops/windows/aligned.py); the keys of `top`
(timeops/spec/top.py).

Spark keeps no more than the first rows of each group while it sorts, so that no group is in memory as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, IntegralType, LongType, MapType, VariantType

from tidemark.timeops import columns as c
from tidemark.timeops.expressions.aggregates import cut, without_minus_zeros, wrapped_away
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.tokens import calls, quoted, tokenize
from tidemark.timeops.expressions.try_expression import Columns, parts, without_minus_zero
from tidemark.timeops.spec import WindowSpec, is_reserved
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.windows.segment import group_names

_NUMBERS = (IntegralType, FloatType, DoubleType)  # sums of decimals have a precision that grows with each step
_WITHOUT_ORDER = (MapType, VariantType)


def with_aggregates(groups: GroupedData, aggregates: Mapping[str, str], *extra: Column) -> DataFrame:
    """Return the aggregates of groups by name, after the columns of the groups.

    What an aggregate makes of its sums, such as `timestamp_millis` of a sum, is null where that fails.

    Args:
        groups: Rows that none of the aggregates fails on, by their group.
        aggregates: Spark SQL by the name of the result.
        extra: Other aggregates, last in the frame.
    """
    cuts = {name: cut(text, f"__tm_sum_{number}_") for number, (name, text) in enumerate(aggregates.items())}
    sums: list[Column] = []
    for name, pieces in cuts.items():
        if pieces.result is None:
            sums.append(F.expr(bounded(aggregates[name])).alias(name))
        else:
            sums += [F.expr(bounded(text)).alias(of) for of, text in pieces.sums.items()]
    summed = groups.agg(*sums, *extra)
    if all(pieces.result is None for pieces in cuts.values()):
        return summed
    columns = Columns.of(summed)
    results = {name: columns.read(pieces.result).sql for name, pieces in cuts.items() if pieces.result is not None}
    names = summed.columns
    first, last = names[: len(names) - len(sums) - len(extra)], names[len(names) - len(extra) :]
    named = [f"{results.get(name, quoted(name))} AS {quoted(name)}" for name in aggregates]
    return summed.selectExpr(*map(quoted, first), *named, *map(quoted, last))


def passes_having(columns: Columns, having: str | None) -> Column:
    """Return BOOLEAN, never null: `having` is true of a result, or fails on it; an undecided one is shown."""
    if having is None:
        return F.lit(True)
    passes, fails = f"coalesce({columns.read(having).sql}, false)", columns.any_fails([having])
    return F.expr(passes if fails is None else f"{fails} OR {passes}")


# The first events of a window.


def has_order(kind: DataType) -> bool:
    """Return whether of two values of a type one is the lower one, or they are equal."""
    return not any(isinstance(part, _WITHOUT_ORDER) for part in parts(kind))


def first_rows(contents: DataFrame, keys: Sequence[str], window: WindowSpec) -> DataFrame:
    """Return the first events of each window and group of a window with `top`.

    `contents` are events with the columns of `segment.with_groups`; `keys` distinguish the windows of a group.

    Returns:
        `keys`, the columns of groups, `_rank` from 1, and `WindowSpec.event_columns`.
    """
    assert window.top is not None
    columns = Columns.of(contents)
    # Rows of one group have one value of it, as they have in aggregates.
    groups = [f"{without_minus_zero(name, columns.types[name])} AS {name}" for name in group_names(window)]
    same, order = ", ".join([*keys, *group_names(window)]), ", ".join(_order(columns, window))
    place = f"row_number() OVER (PARTITION BY {same} ORDER BY {order}) AS {TOP_RANK}"
    shown = map(quoted, window.event_columns(contents.columns))
    return contents.selectExpr(*keys, *groups, place, *shown).where(f"{TOP_RANK} <= {window.top.n}")


def _order(columns: Columns, window: WindowSpec) -> list[str]:
    """Return the parts of ORDER BY that say which events are first; no two events are the same in all of them.

    Results have no number. They differ in their own columns, which begin with start, end and groups. Rows of a join
    have the numbers of their events.
    """
    assert window.top is not None
    values = [(order, columns.read(order.expression)) for order in window.top.orders]
    by = [order.sql(without_minus_zero(value.sql, value.type)) for order, value in values]
    if window.input is None:
        return [*by, c.TIMESTAMP, c.SEQ]
    of_result = [quoted(name) for name, kind in columns.types.items() if not is_reserved(name) and has_order(kind)]
    return [*by, c.TIMESTAMP, *(name for name in (LEFT_SEQ, RIGHT_SEQ) if name in columns.types), *of_result]


# Aggregates in parts.


@dataclass(frozen=True)
class Partial:
    """One aggregate in parts.

    Attributes:
        parts: What a part keeps, by name.
        joined: The same of several parts, by the same names.
        whole: The aggregate of these.
    """

    parts: Mapping[str, Column]
    joined: Mapping[str, Column]
    whole: Column


def partials_of(aggregates: Mapping[str, str], events: Columns) -> dict[str, Partial] | None:
    """Return every aggregate of events in parts, by the name of its result; None unless all of them can be."""
    partials: dict[str, Partial] = {}
    for number, (name, text) in enumerate(aggregates.items()):
        partial = _partial(f"__tm_part{number}", without_minus_zeros(text, events), events)
        if partial is None:
            return None
        partials[name] = partial
    return partials


def _partial(name: str, text: str, events: Columns) -> Partial | None:
    called = _bare_call(text)
    if called is None or called[0] not in _KINDS or bounded(text) != text:
        return None
    function, argument = called
    if function in ("sum", "avg", "mean"):
        kind = events.read(argument).type
        if not isinstance(kind, _NUMBERS):
            return None
        if function == "sum" and isinstance(kind, LongType):
            return _long_sum(name, argument)
    return _KINDS[function](name, argument)


def _bare_call(text: str) -> tuple[str, str] | None:
    """Return the function and argument of an expression that is one call of one argument."""
    tokens = tokenize(text)
    every = calls(tokens)
    if not every or every[0].position != 0 or every[0].end != len(tokens) or len(every[0].arguments) != 1:
        return None
    argument = every[0].arguments[0]
    if not argument or argument[0].lower in ("distinct", "all"):
        return None
    return every[0].name, text[argument[0].start : argument[-1].end]


def _count(name: str, argument: str) -> Partial:
    return Partial({name: F.expr(f"count({argument})")}, {name: F.sum(name)}, F.sum(name))


def _same(function: str) -> Callable[[str, str], Partial]:
    def partial(name: str, argument: str) -> Partial:
        joined = F.expr(f"{function}({name})")
        return Partial({name: F.expr(f"{function}({argument})")}, {name: joined}, joined)

    return partial


def _long_sum(name: str, argument: str) -> Partial:
    """Return a sum whose parts may wrap around: next to it is the one that shows whether it did."""
    near = f"{name}_near"
    parts = {name: F.expr(f"sum({argument})"), near: F.expr(f"sum(CAST({argument} AS DOUBLE))")}
    joined = {name: F.sum(name), near: F.sum(near)}
    return Partial(parts, joined, F.expr(wrapped_away(f"sum({name})", f"sum({near})")))


def _avg(name: str, argument: str) -> Partial:
    total, count = f"{name}_sum", f"{name}_count"
    parts = {total: F.expr(f"sum(CAST({argument} AS DOUBLE))"), count: F.expr(f"count({argument})")}
    joined = {total: F.sum(total), count: F.sum(count)}
    return Partial(parts, joined, joined[total] / joined[count])


_KINDS: Mapping[str, Callable[[str, str], Partial]] = {
    "count": _count,
    "sum": _same("sum"),
    "min": _same("min"),
    "max": _same("max"),
    "avg": _avg,
    "mean": _avg,
}
