"""Rows of a window's table next to the rows that it would have: which differ.

Here: the comparison, by window and group. Not here: what is compared (preview.py, rebuild/).
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import WindowSpec

NEARLY = 1e-12
"""Sums of floating point numbers may differ by so much of their size: they are added in any order."""
OF_REVISION = ("_revision", "_is_final", c.WATERMARK, c.BATCH)
"""Columns that say how a result came about; readers of results do not compute with them."""
OLD, NEW = "__tm_old", "__tm_new"


def differing(before: DataFrame, after: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the windows and groups whose results differ: the key columns, and each row in OLD and NEW, or null.

    Both have the key columns of the window. A result that is final on one side alone differs.
    """
    old, new = (rows.withColumn("__tm_here", F.lit(1)) for rows in (before, after))
    both = old.alias("b").join(new.alias("a"), c.same_in("b", "a", window.key_columns), "full_outer")
    there, would = F.col("b.__tm_here").isNotNull(), F.col("a.__tm_here").isNotNull()
    alike = are_alike(before, after, values_of(before, after, window))
    same_state = F.col("b._is_final").eqNullSafe(F.col("a._is_final"))
    keys = [F.coalesce(f"b.{quoted(name)}", f"a.{quoted(name)}").alias(name) for name in window.key_columns]
    rows = [
        F.when(is_there, F.struct(*[f"{side}.{quoted(name)}" for name in frame.columns])).alias(into)
        for side, frame, is_there, into in (("b", before, there, OLD), ("a", after, would, NEW))
    ]
    return both.where(~(there & would & alike & same_state)).select(*keys, *rows)


def values_of(before: DataFrame, after: DataFrame, window: WindowSpec) -> list[str]:
    """Return the columns of results that readers compute with: all but the key and how the row came about."""
    others = (*window.key_columns, *OF_REVISION)
    return [name for name in dict.fromkeys([*before.columns, *after.columns]) if name not in others]


def are_alike(before: DataFrame, after: DataFrame, values: Sequence[str]) -> Column:
    """Return a BOOLEAN, never null: the rows aliased `b` and `a` have the same in some columns."""
    return reduce(and_, [_is_alike(before, after, name) for name in values], F.lit(True))


def _is_alike(before: DataFrame, after: DataFrame, name: str) -> Column:
    """Return a BOOLEAN, never null: a column has the same value in the row aliased `b` and in the one aliased `a`."""
    if name not in before.columns or name not in after.columns:
        return F.col(f"{'b' if name in before.columns else 'a'}.{quoted(name)}").isNull()
    one, other = F.col(f"b.{quoted(name)}"), F.col(f"a.{quoted(name)}")
    kinds = before.schema[name].dataType, after.schema[name].dataType
    if all(isinstance(kind, DoubleType | FloatType) for kind in kinds):
        largest = F.greatest(F.abs(one), F.abs(other))
        return one.eqNullSafe(other) | F.coalesce(F.abs(one - other) <= largest * F.lit(NEARLY), F.lit(False))
    if kinds[0] != kinds[1]:
        return one.cast("string").eqNullSafe(other.cast("string"))
    return F.to_json(F.struct(one.alias("v"))).eqNullSafe(F.to_json(F.struct(other.alias("v"))))
