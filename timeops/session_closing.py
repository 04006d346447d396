"""The exact watermark at which a session closed: sessions close at any time, not on a grid.

Here: the first step of the timeline, or of the clock, that reaches a given watermark. Not here: windows on a grid
(closing.py), what a session holds.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from timeops.adjustment import Adjusted
from timeops.columns import ASKED, LOG, SEQ, TIMELINE, WATERMARK, floor_to
from timeops.contents import END

CLOSES_AT = "__closes_at"

_FIRST = "__first"
_CELL = "__cell"
_CELL_US = 60_000_000  # watermarks are compared in stretches of so long, so that no core sorts all of them


def first_watermarks(wanted: DataFrame, adjusted: Adjusted) -> DataFrame:
    """The watermark just after the first item of the log at which it reached a given value.

    Args:
        wanted: `_timeline`, `__end`, and `__closes_at`, the lowest watermark at which it is closed; each once.
        adjusted: The stretch.

    Returns:
        `_timeline`, `__end`, `_watermark` BIGINT: null where no item reached it (a flush closes such a session).
    """
    by_events = _first_steps(wanted, adjusted.steps, TIMELINE)
    if adjusted.clock_steps is None:
        return by_events.select(TIMELINE, END, F.col(_FIRST)["w"].alias(WATERMARK))
    times = wanted.select(adjusted.clock.log.alias(LOG), CLOSES_AT).distinct()
    by_clock = _first_steps(times, adjusted.clock_steps, LOG).withColumnRenamed(_FIRST, "__by_clock")
    both = by_events.withColumn(LOG, adjusted.clock.log).join(by_clock, [LOG, CLOSES_AT], "left")
    return both.select(TIMELINE, END, F.greatest(_FIRST, "__by_clock")["w"].alias(WATERMARK))


def _first_steps(wanted: DataFrame, steps: DataFrame, of: str) -> DataFrame:
    """Adds `__first`: the first step of the same `of` that reaches `__closes_at`; the first one is the largest."""
    given = (
        steps.groupBy(of, F.col(ASKED).alias(CLOSES_AT))
        .agg(F.min(SEQ).alias(SEQ))
        .withColumn(_FIRST, F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(CLOSES_AT).alias("w")))
    )
    asked = wanted.withColumn("__wanted", F.lit(True))
    both = asked.unionByName(given.drop(SEQ), allowMissingColumns=True)
    rows = both.withColumn(_CELL, floor_to(F.col(CLOSES_AT), _CELL_US))
    higher = Window.partitionBy(of).orderBy(F.desc(_CELL)).rowsBetween(Window.unboundedPreceding, -1)
    cells = rows.groupBy(of, _CELL).agg(F.max(_FIRST).alias("__highest"))
    above = cells.select(of, _CELL, F.max("__highest").over(higher).alias("__above"))
    within = Window.partitionBy(of, _CELL).orderBy(F.desc(CLOSES_AT))  # with peers: one that just reaches it counts
    found = rows.withColumn("__within", F.max(_FIRST).over(within)).where("__wanted").join(above, [of, _CELL])
    return found.select(*wanted.columns, F.greatest("__within", "__above").alias(_FIRST))
