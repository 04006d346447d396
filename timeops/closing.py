"""The exact watermark at which a window closed.

Here: for each window that closes in a stretch, the watermark just after the item that closed it. Not here: what
the window holds.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from timeops.adjustment import Adjusted
from timeops.columns import ASKED, LOG, SEQ, TIMELINE, WATERMARK
from timeops.grids import last_closed
from timeops.spec import WindowSpec

_START = "__start"
_FIRST = "__first"


def closing_watermarks(wanted: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """When windows closed.

    What closed a window is the first item of the log at which the watermark reaches its close time: a step of its
    timeline, or of the clock for all timelines. Of one item the higher counts.

    Args:
        wanted: `_timeline`, `__start` of windows that close in the stretch, each once.
        adjusted: The stretch.
        window: The window.

    Returns:
        `wanted` with `_watermark` BIGINT: null for a window that no item closed (a flush does).
    """
    by_events = _first_steps(wanted.select(TIMELINE, _START), adjusted.steps, window, TIMELINE)
    if adjusted.clock_steps is None:
        return by_events.select(TIMELINE, _START, F.col(_FIRST)["w"].alias(WATERMARK))
    starts = wanted.select(adjusted.clock.log.alias(LOG), _START).distinct()
    by_clock = _first_steps(starts, adjusted.clock_steps, window, LOG).withColumnRenamed(_FIRST, "__by_clock")
    both = by_events.withColumn(LOG, adjusted.clock.log).join(by_clock, [LOG, _START], "left")
    return both.select(TIMELINE, _START, F.greatest(_FIRST, "__by_clock")["w"].alias(WATERMARK))


def _first_steps(wanted: DataFrame, steps: DataFrame, window: WindowSpec, of: str) -> DataFrame:
    """Adds `__first` to windows, each of one `of`: the first step that closes them, so that the first is the largest.

    Steps are first grouped by the last window that they close, so that few rows are left to be ordered.
    """
    marks = (
        steps.groupBy(of, last_closed(F.col(ASKED), window).alias(_START))
        .agg(F.min(SEQ).alias(SEQ), F.max_by(ASKED, F.struct(-F.col(SEQ), ASKED)).alias(ASKED))
        .withColumn(_FIRST, F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(ASKED).alias("w")))
    )
    asked = wanted.select(of, _START, F.lit(True).alias("__wanted"))
    both = asked.unionByName(marks.select(of, _START, _FIRST), allowMissingColumns=True)
    from_above = Window.partitionBy(of).orderBy(F.desc(_START))  # with peers: the window itself counts
    found = both.withColumn(_FIRST, F.max(_FIRST).over(from_above))
    return found.where("__wanted").select(of, _START, _FIRST)
