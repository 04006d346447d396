"""The watermarks of timelines at both ends of a segment of the log, beside rows that ask for them.

Here: the joins. Not here: what a watermark closes (windows of each kind), the watermark in between (watermark_at.py).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import TIMELINE
from tidemark.timeops.events.adjustment import Adjusted

W_START = "__w_start"
"""BIGINT: the watermark of the row's timeline before the segment; null before its first."""
W_END = "__w_end"
"""BIGINT: the same behind it."""


def with_start(rows: DataFrame, before: DataFrame) -> DataFrame:
    """Adds `__w_start` to rows with `_timeline`; `before` is the timelines' state before the segment."""
    return rows.join(before.select(TIMELINE, F.col("watermark").alias(W_START)), TIMELINE, "left")


def with_end(rows: DataFrame, state: DataFrame) -> DataFrame:
    """Adds `__w_end` to rows with `_timeline`; `state` is the timelines' state after the segment."""
    return rows.join(state.select(TIMELINE, F.col("watermark").alias(W_END)), TIMELINE, "left")


def with_both_ends(rows: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Adds `__w_start` and `__w_end` to rows with `_timeline`."""
    return with_end(with_start(rows, adjusted.before), adjusted.state)
