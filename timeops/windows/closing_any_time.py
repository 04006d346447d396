"""The exact watermark at which windows closed that close at any time, not on a grid: sessions, sliding windows.

Here: the first step of the timeline, or of the clock, that reaches a given watermark. Not here: windows on a grid
(closing.py), what a window holds.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import CELL_US, with_largest_at_or_above
from tidemark.timeops.columns import ASKED, LOG, SEQ, TIMELINE, WATERMARK
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.closing import OF_SILENCE, REACHED, steps_with_last_silence, with_watermark_of
from tidemark.timeops.windows.closing_by_periods import of_periods, published_steps, with_published_watermark
from tidemark.timeops.windows.membership import END

CLOSES_AT = "__closes_at"  # the lowest watermark at which a window is closed


def with_first_watermarks(results: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Adds the watermark just after the item of the log that closed each window.

    Args:
        results: Rows with `_timeline` and `__end`.
        adjusted: The segment.
        window: The window.

    Returns:
        The rows with `_watermark` BIGINT: null where no item closed it (a flush did).
    """
    closed = results.withColumn(CLOSES_AT, close_time(F.col(END), window))
    if adjusted.ended is not None:
        dated = _with_first_step(closed, published_steps(adjusted), TIMELINE, "__first", *of_periods(adjusted))
        dated = with_published_watermark(dated, F.col("__first"), F.col(CLOSES_AT), adjusted, adjusted.ended)
        return dated.drop("__first")
    if adjusted.rules.clock_raises_single_timelines:
        steps = steps_with_last_silence(adjusted)
        dated = _with_first_step(closed, steps, TIMELINE, "__first", *OF_SILENCE)
        return with_watermark_of(dated, F.col("__first"), F.col(CLOSES_AT), adjusted).drop("__first", REACHED)
    found = _with_first_step(closed, adjusted.steps, TIMELINE, "__by_events")
    if adjusted.clock_steps is None:
        return found.withColumn(WATERMARK, F.col("__by_events")["w"]).drop("__by_events")
    by_log = found.withColumn(LOG, adjusted.clock.log)
    both = _with_first_step(by_log, adjusted.clock_steps, LOG, "__by_clock")
    first = F.greatest("__by_events", "__by_clock")
    return both.withColumn(WATERMARK, first["w"]).drop("__by_events", "__by_clock", LOG)


def _with_first_step(closed: DataFrame, steps: DataFrame, of: str, into: str, *more: str) -> DataFrame:
    """Adds the first step of the same `of` that reaches `__closes_at`, as a struct by which the first is the largest.

    The struct has `negative_seq`, `w`, and `more` columns of the step.
    """
    step = F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(ASKED).alias("w"), *more)
    asked = steps.where(F.col(ASKED).isNotNull())
    marks = asked.groupBy(of, F.col(ASKED).alias(CLOSES_AT)).agg(F.max(step).alias(into))
    return with_largest_at_or_above(closed, marks, into, key=of, place=CLOSES_AT, width=CELL_US)
