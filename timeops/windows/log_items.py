"""The items of the log by their clock.

Here: the first item at or after an instant. Not here: what happens at it.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import CELL_US, with_largest_at_or_above, with_largest_at_or_below
from tidemark.timeops.columns import CLOCK, LOG, SEQ, to_us

AT = "__at"  # BIGINT: microseconds of a clock
ITEM = "__item"  # STRUCT<clock, seq>
CLOCK_BEFORE = "__clock_before"  # BIGINT: the clock just before that item

_BEFORE = "__before"


def clocks_of(items: DataFrame, log: Column) -> DataFrame:
    """`__log`, `__at`, `_arrival_seq`: for each clock of a segment the first item that has it.

    Args:
        items: Records with `_arrival_seq` and `_clock`.
        log: Which log a row is of.
    """
    timed = items.where(F.col(CLOCK).isNotNull()).select(log.alias(LOG), to_us(CLOCK).alias(AT), SEQ)
    return timed.groupBy(LOG, AT).agg(F.min(SEQ).alias(SEQ))


def first_item_at(wanted: DataFrame, clocks: DataFrame) -> DataFrame:
    """The first item of the log whose clock has come to an instant.

    Args:
        wanted: `__log`, `__at`; each pair once.
        clocks: Rows of `clocks_of`.

    Returns:
        `wanted` with `__item`, null where no item of the segment comes so far.
    """
    first = F.struct((-F.col(AT)).alias("negative_clock"), (-F.col(SEQ)).alias("negative_seq"))
    marks = clocks.withColumn(ITEM, first)
    found = with_largest_at_or_above(wanted, marks, ITEM, key=LOG, place=AT, width=CELL_US)
    item = F.struct((-F.col(ITEM)["negative_clock"]).alias("clock"), (-F.col(ITEM)["negative_seq"]).alias("seq"))
    return found.withColumn(ITEM, F.when(F.col(ITEM).isNotNull(), item))


def with_clock_before(wanted: DataFrame, clocks: DataFrame) -> DataFrame:
    """Adds `__clock_before`, the latest clock of the segment before an instant, null for none; else as the above."""
    marks = clocks.select(LOG, F.col(AT).alias(_BEFORE), F.col(AT).alias(CLOCK_BEFORE))
    asked = wanted.withColumn(_BEFORE, F.col(AT) - F.lit(1))
    found = with_largest_at_or_below(asked, marks, CLOCK_BEFORE, key=LOG, place=_BEFORE, width=CELL_US)
    return found.drop(_BEFORE)
