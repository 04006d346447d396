"""Results that were computed twice, side by side: the same, or apart by no more than the order of sums makes.

Here: values of every type, floating point inside arrays, structs and maps too. Not here: which results, and how far
their sums may move (bounds.py).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add, and_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

_RELATIVE = 1e-12  # what else of a sum may be rounded, such as a quotient of two

Rule = Callable[[Sequence[Column], DataType], Column]
"""A BOOLEAN, never null, of values side by side that are no array, struct or map."""


def is_same(old: Column, again: Column, moved: Sequence[Column], kind: DataType) -> Column:
    """BOOLEAN, never null: two results are one.

    Args:
        old: The result that was written.
        again: The same, computed once more.
        moved: What it would be with one of its sums of floating point moved; none where all orders give the same.
        kind: The type of all of them.
    """
    return _side_by_side([old, again, *moved], kind, _is_same_value, skip=2)


def is_sure(again: Column, moved: Sequence[Column], kind: DataType) -> Column:
    """BOOLEAN, never null: a result is known well enough to compare another with it.

    A text or truth value that is made of sums is where none of the moved sums gives another one.
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
    """DOUBLE: how far the sums move a value; null or not finite where that cannot be told."""
    ways = [F.when(one.eqNullSafe(again), F.lit(0.0)).otherwise(F.abs(one.cast("double") - again)) for one in moved]
    return reduce(add, ways)


def _side_by_side(values: Sequence[Column], kind: DataType, rule: Rule, *, skip: int) -> Column:
    """The rule for every pair of leaves of nested values; false where the first `skip` have another shape."""
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
