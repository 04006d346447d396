"""Aggregates of windows, which cannot fail a batch: at once or in parts, and which results `having` shows.

Here: aggregates over the rows of groups, also next to their first rows, and what is made of them. In parts: count,
sum, min, max and avg of numbers; any other aggregate, and these with DISTINCT, FILTER or something around them, needs
all rows at once. Not here: rows on which an argument fails, which have no part in a result (membership.py); the parts
themselves (aligned.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, IntegralType, LongType

from tidemark.timeops.columns import same_in
from tidemark.timeops.expressions.aggregates import cut, without_minus_zeros, without_overflow, wrapped_away
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.tokens import calls, quoted, tokenize
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.first_rows import first_rows
from tidemark.timeops.windows.membership import group_names

_NUMBERS = (IntegralType, FloatType, DoubleType)  # sums of decimals have a precision that grows with each step


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


def results_of(contents: DataFrame, keys: tuple[str, ...], window: WindowSpec, *extra: Column) -> DataFrame:
    """Return the window's results over rows with the columns of `membership.with_groups`, and `extra` after them.

    With `top` these are the first rows, and aggregates are next to each of them. `keys` are the columns that
    distinguish the windows of a group.
    """
    columns, groups = Columns.of(contents), [*keys, *group_names(window)]
    rows = None if window.top is None else first_rows(contents, keys, window)
    if rows is not None and not window.aggregates and not extra:
        return rows
    aggregates = {name: without_overflow(text, columns) for name, text in window.aggregates.items()}
    of_groups = with_aggregates(contents.groupBy(*groups), aggregates, *extra)
    if rows is None:
        return of_groups
    values = [f"of_group.{quoted(name)}" for name in of_groups.columns if name not in groups]
    joined = rows.alias("row").join(of_groups.alias("of_group"), same_in("row", "of_group", groups))
    return joined.selectExpr("row.*", *values)


def passes_having(columns: Columns, having: str | None) -> Column:
    """Return BOOLEAN, never null: `having` is true of a result, or fails on it; an undecided one is shown."""
    if having is None:
        return F.lit(True)
    passes, fails = f"coalesce({columns.read(having).sql}, false)", columns.any_fails([having])
    return F.expr(passes if fails is None else f"{fails} OR {passes}")


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
