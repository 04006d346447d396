"""Aggregates that can be computed in parts: what a part keeps, and how parts become the whole.

Here: count, sum, min, max and avg of numbers. Not here: the parts (slices.py). Any other aggregate, and these with
DISTINCT, FILTER or something around them, needs all rows at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, IntegralType, LongType

from tidemark.timeops.expressions.aggregates import wrapped_away
from tidemark.timeops.expressions.tokens import calls, tokenize

_NUMBERS = (IntegralType, FloatType, DoubleType)  # sums of decimals have a precision that grows with each step


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


def partials_of(aggregates: Mapping[str, str], events: DataFrame) -> dict[str, Partial] | None:
    """Every aggregate in parts; None unless all of them can be.

    Args:
        aggregates: Spark SQL by the name of the result.
        events: What they are computed of.
    """
    found: dict[str, Partial] = {}
    for number, (name, text) in enumerate(aggregates.items()):
        partial = _partial(f"__part{number}", text, events)
        if partial is None:
            return None
        found[name] = partial
    return found


def _partial(name: str, text: str, events: DataFrame) -> Partial | None:
    called = _bare_call(text)
    if called is None or called[0] not in _KINDS:
        return None
    function, argument = called
    if function in ("sum", "avg", "mean"):
        kind = _type_of(argument, events)
        if not isinstance(kind, _NUMBERS):
            return None
        if function == "sum" and isinstance(kind, LongType):
            return _long_sum(name, argument)
    return _KINDS[function](name, argument)


def _bare_call(text: str) -> tuple[str, str] | None:
    """Function and argument of an expression that is one call of one argument."""
    tokens = tokenize(text)
    every = calls(tokens)
    if not every or every[0].position != 0 or every[0].end != len(tokens) or len(every[0].arguments) != 1:
        return None
    argument = every[0].arguments[0]
    if not argument or argument[0].lower in ("distinct", "all"):
        return None
    return every[0].name, text[argument[0].start : argument[-1].end]


def _type_of(argument: str, events: DataFrame) -> DataType:
    return events.select(F.expr(argument)).schema[0].dataType


def _count(name: str, argument: str) -> Partial:
    return Partial({name: F.expr(f"count({argument})")}, {name: F.sum(name)}, F.sum(name))


def _same(function: str) -> Callable[[str, str], Partial]:
    def partial(name: str, argument: str) -> Partial:
        joined = F.expr(f"{function}({name})")
        return Partial({name: F.expr(f"{function}({argument})")}, {name: joined}, joined)

    return partial


def _long_sum(name: str, argument: str) -> Partial:
    """Parts wrap around, and so does their sum: beside it stands the one that tells whether it did."""
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
