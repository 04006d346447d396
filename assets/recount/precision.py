"""Results that were computed twice: the same, or as far apart as another order of adding up can make them.

Here: aggregates with one of their sums moved as far as its largest rounding error. Also comparing values of every
type, with floating point inside arrays, structs and maps. Not here: which results are compared (windows.py).

An error is relative to the sum of the absolute values: for debits and credits that cancel, it may exceed the sum.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
)

from tidemark.timeops.expressions.aggregates import MEANS, SUMS, AggregateCall, argument_type, calls_of
from tidemark.timeops.expressions.tokens import calls, tokenize

# Their value, or the value of their parts, may depend on the order of rows by an unknown amount.
_UNBOUNDED = re.compile(
    r"hll_\w+|approx_percentile|percentile_approx"
    r"|corr|covar_\w+|regr_\w+|skewness|kurtosis"
)

_RELATIVE = 1e-12  # other rounding of sums, such as of a quotient of two


def _of_deviation(one: AggregateCall) -> str:
    """Return the root mean square, moved: how far a standard deviation may be off."""
    return f"1E-15D * count({one.argument}){one.clauses} * sqrt(avg(pow({_number(one)}, 2)){one.clauses})"


def _number(one: AggregateCall) -> str:
    return f"CAST({one.argument} AS DOUBLE)"


def _of_sum(one: AggregateCall) -> str:
    return f"4.5E-16D * count({one.argument}){one.clauses} * sum(abs({_number(one)})){one.clauses}"


def _of_mean(one: AggregateCall) -> str:
    return f"1E-15D * sum(abs({_number(one)})){one.clauses}"


def _of_variance(one: AggregateCall) -> str:
    moved = _of_deviation(one)
    return f"pow({moved}, 2) + 2 * coalesce(stddev_samp({_number(one)}){one.clauses}, 0D) * {moved}"


_ERRORS: Mapping[str, Callable[[AggregateCall], str]] = {
    **dict.fromkeys(SUMS, _of_sum),
    **dict.fromkeys(MEANS, _of_mean),
    **dict.fromkeys(("std", "stddev", "stddev_pop", "stddev_samp"), _of_deviation),
    **dict.fromkeys(("variance", "var_pop", "var_samp"), _of_variance),
}
"""SQL of the largest error of each aggregate, by its function."""


def moved_sums(aggregate: str, events: DataFrame) -> tuple[str, ...] | None:
    """Return an aggregate with each floating-point sum moved up and down as far as another order may move it.

    Returns:
        Such aggregates: empty if every order returns the same value; None if the distance is not known.
    """
    if any(_UNBOUNDED.fullmatch(call.name) for call in calls(tokenize(aggregate))):
        return None
    found: list[str] = []
    for one in calls_of(aggregate, _ERRORS):
        if _is_exact(one, events):
            continue
        before, itself, behind = aggregate[: one.start], aggregate[one.start : one.stop], aggregate[one.stop :]
        found += [f"{before}({itself} {sign} coalesce({_ERRORS[one.function](one)}, 0D)){behind}" for sign in "+-"]
    return tuple(found)


def with_column(expression: str, name: str, other: str) -> str:
    """Return an expression with one column replaced by another."""
    tokens = tokenize(expression)
    found, behind = "", 0
    for position, token in enumerate(tokens):
        around = [tokens[i].lower if 0 <= i < len(tokens) else "" for i in (position - 1, position + 1)]
        if token.is_name and token.lower == name.lower() and around[0] != "." and around[1] != "(":
            found += f"{expression[behind : token.start]}`{other}`"
            behind = token.end
    return found + expression[behind:]


def _is_exact(one: AggregateCall, events: DataFrame) -> bool:
    """Return whether an expression adds up numbers that have no rounding error: integers, decimals, durations."""
    if one.function not in (*SUMS, *MEANS):
        return False
    kind = argument_type(one, events)
    return isinstance(kind, (DecimalType, AnsiIntervalType)) or (
        isinstance(kind, IntegralType) and one.function in SUMS
    )


Rule = Callable[[Sequence[Column], DataType], Column]
"""A BOOLEAN, never null, of compared values that are not arrays, structs or maps."""


def is_same(old: Column, again: Column, moved: Sequence[Column], kind: DataType) -> Column:
    """Return whether two results are one: BOOLEAN, never null.

    Args:
        old: The result that was written.
        again: The same, computed once more.
        moved: The result with one of its floating-point sums moved, for each; empty if all orders return the same.
        kind: The type of all of them.
    """
    return _side_by_side([old, again, *moved], kind, _is_same_value, skip=2)


def is_sure(again: Column, moved: Sequence[Column], kind: DataType) -> Column:
    """Return whether a result is known well enough to compare another with it: BOOLEAN, never null.

    A text or truth value that is made of sums is known if it is the same with each of the moved sums.
    """
    return _side_by_side([again, *moved], kind, _is_sure_value, skip=1 + len(moved)) if moved else F.lit(True)


def _is_same_value(values: Sequence[Column], kind: DataType) -> Column:
    old, again, *moved = values
    if not isinstance(kind, DoubleType | FloatType) or not moved:
        return old.eqNullSafe(again)
    largest = F.greatest(F.abs(old.cast("double")), F.abs(again.cast("double")))
    near = F.abs(old.cast("double") - again) <= _way(again, moved) + F.lit(_RELATIVE) * largest
    return old.eqNullSafe(again) | F.coalesce(near, F.lit(False))


def _is_sure_value(values: Sequence[Column], kind: DataType) -> Column:
    again, *moved = values
    if isinstance(kind, DoubleType | FloatType):
        return F.coalesce(_way(again, moved) < F.lit(float("inf")), F.lit(False))
    return reduce(and_, [one.eqNullSafe(again) for one in moved])


def _way(again: Column, moved: Sequence[Column]) -> Column:
    """Return a DOUBLE: how far the sums move a value; null or not finite if that is not known."""
    ways = [F.when(one.eqNullSafe(again), F.lit(0.0)).otherwise(F.abs(one.cast("double") - again)) for one in moved]
    return reduce(add, ways)


def _side_by_side(values: Sequence[Column], kind: DataType, rule: Rule, *, skip: int) -> Column:
    """Apply the rule to every pair of leaves of nested values; false if the first `skip` differ in shape."""
    first, compared = values[0], values[1:skip]
    if isinstance(kind, MapType):
        entries = StructType().add("key", kind.keyType).add("value", kind.valueType)
        sorted_ = [F.sort_array(F.map_entries(value)) for value in values]
        return _side_by_side(sorted_, ArrayType(entries), rule, skip=skip)
    if not isinstance(kind, ArrayType | StructType):
        return rule(values, kind)
    if isinstance(kind, ArrayType):
        items = kind.elementType
        like = [F.coalesce(F.size(value) == F.size(first), F.lit(False)) for value in compared]
        each = F.transform(
            first,
            lambda item, i: _side_by_side([item, *[F.get(value, i) for value in values[1:]]], items, rule, skip=skip),
        )
        inside = reduce(and_, [*like, F.forall(each, lambda one: one)])
    else:
        fields = [
            _side_by_side([value[field.name] for value in values], field.dataType, rule, skip=skip) for field in kind
        ]
        there = [value.isNotNull() for value in compared]
        inside = reduce(and_, [*there, *fields], F.lit(True))
    missing = reduce(and_, [value.isNull() for value in compared], F.lit(True))
    return F.when(first.isNull(), missing).otherwise(inside)
