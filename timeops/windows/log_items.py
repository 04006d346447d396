"""The items of the log by their clock.

Here: the first item at or after an instant. Not here: what happens at it.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, LOG, SEQ, floor_to, to_us

AT = "__at"  # BIGINT: microseconds of a clock
ITEM = "__item"  # STRUCT<clock, seq>
CLOCK_BEFORE = "__clock_before"  # BIGINT: the clock just before that item

_BUCKET_US = 60_000_000  # shares the log among the cores; any width gives the same result
_BUCKET, _NEXT, _PREVIOUS, _CAME = "__bucket", "__next_item", "__previous_clock", "__came"


def clocks_of(items: DataFrame, log: Column) -> DataFrame:
    """`__log`, `__at`, `__item`: for each clock of a segment the first item that has it.

    Args:
        items: Records with `_arrival_seq` and `_clock`.
        log: Which log a row is of.
    """
    timed = items.where(F.col(CLOCK).isNotNull()).select(log.alias(LOG), to_us(CLOCK).alias(AT), SEQ)
    firsts = timed.groupBy(LOG, AT).agg(F.min(SEQ).alias("seq"))
    return firsts.withColumn(ITEM, F.struct(F.col(AT).alias("clock"), "seq")).drop("seq")


def first_item_at(wanted: DataFrame, clocks: DataFrame) -> DataFrame:
    """The first item of the log whose clock has come to an instant.

    Args:
        wanted: `__log`, `__at`; each pair once.
        clocks: Rows of `clocks_of`.

    Returns:
        `wanted` with `__item`, null where no item of the segment comes so far; and `__clock_before`, the latest clock
        of the segment before the instant, null for none.
    """
    asked = wanted.select(LOG, AT, F.lit(True).alias("__asked"))
    both = clocks.unionByName(asked, allowMissingColumns=True).withColumn(_BUCKET, floor_to(F.col(AT), _BUCKET_US))
    from_here = Window.partitionBy(LOG, _BUCKET).orderBy(F.desc(AT))  # with peers: an item at the instant counts
    up_to_here = Window.partitionBy(LOG, _BUCKET).orderBy(AT).rangeBetween(-_BUCKET_US, -1)
    in_bucket = {"__own_bucket": F.min(ITEM).over(from_here), "__own_before": F.max(_CAME).over(up_to_here)}
    found = both.withColumn(_CAME, F.col(ITEM)["clock"]).withColumns(in_bucket).where("__asked")
    later = Window.partitionBy(LOG).orderBy(F.desc(_BUCKET)).rowsBetween(Window.unboundedPreceding, -1)
    earlier = Window.partitionBy(LOG).orderBy(_BUCKET).rowsBetween(Window.unboundedPreceding, -1)
    buckets = both.groupBy(LOG, _BUCKET).agg(F.min(ITEM).alias(_NEXT), F.max(ITEM)["clock"].alias(_PREVIOUS))
    near = {_NEXT: F.min(_NEXT).over(later), _PREVIOUS: F.max(_PREVIOUS).over(earlier)}
    joined = found.join(buckets.withColumns(near), [LOG, _BUCKET], "left")
    previous = F.coalesce("__own_before", _PREVIOUS).alias(CLOCK_BEFORE)
    return joined.select(LOG, AT, F.coalesce("__own_bucket", _NEXT).alias(ITEM), previous)
