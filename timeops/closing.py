"""The exact watermark at which a window closed.

Here: for each window that closes in a stretch, the watermark just after the item that closed it. Not here: what
the window holds.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from timeops.columns import ASKED, SEQ, TIMELINE, WATERMARK
from timeops.grids import last_closed
from timeops.spec import WindowSpec

_START = "__start"
_FIRST = "__first"


def closing_watermarks(wanted: DataFrame, steps: DataFrame, window: WindowSpec) -> DataFrame:
    """When windows closed.

    What closed a window is the first step of the watermark that reaches its close time. Steps are first grouped by
    the last window that they close, so that few rows are left to be ordered.

    Args:
        wanted: `_timeline`, `__start` of windows that close in the stretch, each once.
        steps: timelines.steps_of of the stretch.
        window: The window.

    Returns:
        `wanted` with `_watermark` BIGINT: null for a window that no item closed (a flush does).
    """
    marks = (
        steps.groupBy(TIMELINE, last_closed(F.col(ASKED), window).alias(_START))
        .agg(F.min(SEQ).alias(SEQ), F.min_by(ASKED, SEQ).alias(ASKED))
        .withColumn(_FIRST, F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(ASKED).alias("w")))
    )
    asked = wanted.select(TIMELINE, _START, F.lit(True).alias("__wanted"))
    both = asked.unionByName(marks.select(TIMELINE, _START, _FIRST), allowMissingColumns=True)
    from_above = Window.partitionBy(TIMELINE).orderBy(F.desc(_START))  # with peers: the window itself counts
    found = both.withColumn(WATERMARK, F.max(_FIRST).over(from_above)["w"])
    return found.where("__wanted").select(TIMELINE, _START, WATERMARK)
