"""The watermark at the ends of a segment, at the item that closed a window, and after any item of it.

Here: the ends by joins; what is asked in between is looked up on the driver, where the rises of watermarks are
(watermark/rises.py): distinct timelines and instants go there, and few as they are beside the events, they come back
as a frame. Not here: the watermark before every event (events/adjustment.py).
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.timeops.columns import SEQ, TIMELINE, W_BEFORE, W_SET_BY, WATERMARK
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time
from tidemark.timeops.materialize import from_driver
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.fold import NONE, Array
from tidemark.timeops.windows.membership import END

REACHED = "__tm_reached"  # the watermark that first came to a value, at an item that may raise it further
AFTER_SEQ = "__tm_after_seq"  # an item, by its place in the log

_CLOSES_AT = "__tm_closes_at"


def closing_watermarks(wanted: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Look up when windows closed.

    Args:
        wanted: `_timeline`, `__tm_end` of windows, and what else names them; each once.
        adjusted: The segment.
        window: The window.

    Returns:
        `wanted` with `_watermark` BIGINT, just after the item that closed the window: null where no item did (a flush
        does); and `__tm_reached`, the watermark that closed it.
    """

    def answer(rows: pa.Table) -> Mapping[str, Array]:
        found = adjusted.watermarks.reaching(rows[TIMELINE], _numbers(rows[_CLOSES_AT]))
        return {WATERMARK: found.watermark, REACHED: found.reached}

    closed = wanted.withColumn(_CLOSES_AT, close_time(F.col(END), window))
    return _answered(closed, adjusted, answer, (WATERMARK, REACHED)).drop(_CLOSES_AT)


def with_first_watermarks(results: DataFrame, adjusted: Adjusted, window: WindowSpec, *, are_few: bool) -> DataFrame:
    """Add `_watermark` to results of closed windows: just after the item that closed each; null where none did.

    Few results go through the driver whole: to join the answer would take longer than to compute them.
    """
    if are_few:
        return closing_watermarks(results, adjusted, window).drop(REACHED)
    closed = closing_watermarks(results.select(TIMELINE, END).distinct(), adjusted, window).drop(REACHED)
    return results.join(closed, [TIMELINE, END], "left")


def watermarks_after(wanted: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Look up the watermark just after items.

    Args:
        wanted: `_timeline` and `__tm_after_seq`, each once: an item of the segment, or the one before its first.
        adjusted: The segment.

    Returns:
        `wanted` with `_watermark` BIGINT, null where there is none yet, and `__tm_w_set_by`, null where no event
        brought it to this value.
    """

    def answer(rows: pa.Table) -> Mapping[str, Array]:
        found = adjusted.watermarks.after(rows[TIMELINE], _numbers(rows[AFTER_SEQ]))
        return {WATERMARK: found.value, W_SET_BY: found.set_by}

    return _answered(wanted, adjusted, answer, (WATERMARK, W_SET_BY))


def met_by(events: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Add the watermark before each of few events, and what set it: `__tm_w_before`, `__tm_w_set_by`."""

    def answer(rows: pa.Table) -> Mapping[str, Array]:
        found = adjusted.watermarks.before(rows[TIMELINE], _numbers(rows[SEQ]))
        return {W_BEFORE: found.value, W_SET_BY: found.set_by}

    asked = events.drop(W_BEFORE, W_SET_BY)
    found = _answered(asked.select(TIMELINE, SEQ), adjusted, answer, (W_BEFORE, W_SET_BY))
    return asked.join(found, [TIMELINE, SEQ])


def _numbers(column: pa.ChunkedArray) -> Array:
    return np.array(column.to_numpy(), np.int64)


def _answered(
    wanted: DataFrame, adjusted: Adjusted, answer: Callable[[pa.Table], Mapping[str, Array]], names: tuple[str, ...]
) -> DataFrame:
    """Return the rows with columns that are looked up on the driver; without items nothing rises."""
    if not adjusted.watermarks.has_items:
        return wanted.withColumns({name: F.lit(None).cast("bigint") for name in names})
    rows = wanted.toArrow()
    for name, values in answer(rows).items():
        rows = rows.append_column(name, pa.array(values, pa.int64(), mask=values == NONE))
    told = [StructField(name, LongType()) for name in names]
    return from_driver(wanted.sparkSession, rows, StructType([*wanted.schema.fields, *told]))
