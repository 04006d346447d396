"""Running maxima over the events of each timeline, several at once, carried from segment to segment.

Here: one window function, over a timeline or over blocks of it. Not here: what the numbers mean.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, TIMELINE, floor_to

BLOCK_ROWS = 65_536
_BLOCK = "__block_of_maxima"


def with_maxima_before(
    rows: DataFrame, carried: DataFrame, own: Mapping[str, Column], *, in_blocks: bool
) -> DataFrame:
    """Adds the largest value of each of some numbers over the earlier events of the row's timeline.

    Args:
        rows: `_timeline`, `_arrival_seq`, and what `own` asks for.
        carried: `_timeline` and one column of each name: the maxima before the segment.
        own: The row's own number, by the name of the new column; null where it has none.
        in_blocks: There are few timelines, so each is cut into blocks for all cores to share.
    """
    numbered = rows.withColumns({f"{name}__own": value for name, value in own.items()})
    if in_blocks:
        numbered = numbered.withColumn(_BLOCK, floor_to(F.col(SEQ), BLOCK_ROWS))
        blocks = _carried_into_blocks(numbered, carried, tuple(own))
        known, keys = numbered.join(F.broadcast(blocks), [TIMELINE, _BLOCK]), [TIMELINE, _BLOCK]
    else:
        known, keys = numbered.join(_renamed(carried, tuple(own)), TIMELINE, "left"), [TIMELINE]
    earlier = Window.partitionBy(*keys).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    maxima = {name: F.greatest(F.max(f"{name}__own").over(earlier), F.col(f"{name}__carried")) for name in own}
    return known.withColumns(maxima).drop(_BLOCK, *[f"{name}__carried" for name in own])


def _carried_into_blocks(numbered: DataFrame, carried: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """Per timeline and block the maxima before it."""
    earlier = Window.partitionBy(TIMELINE).orderBy(_BLOCK).rowsBetween(Window.unboundedPreceding, -1)
    highest = numbered.groupBy(TIMELINE, _BLOCK).agg(*[F.max(f"{name}__own").alias(name) for name in names])
    both = highest.join(_renamed(carried, names), TIMELINE, "left")
    reached = {f"{name}__carried": F.greatest(F.max(name).over(earlier), F.col(f"{name}__carried")) for name in names}
    return both.withColumns(reached).drop(*names)


def _renamed(carried: DataFrame, names: tuple[str, ...]) -> DataFrame:
    return carried.select(TIMELINE, *[F.col(name).alias(f"{name}__carried") for name in names])
