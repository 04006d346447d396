"""The watermark of a timeline at places of the log: at both ends of a segment, and just after any item of it.

Here: the joins with the ends, looking it up in between for few places, whoever the items there are of. Not here: the
watermark before every event (watermark/scans.py), the item at which it reached a value (closing.py, rises.py).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import CELL_ROWS, CELL_US, with_largest_at_or_above, with_largest_at_or_below
from tidemark.timeops.columns import (
    CLOCK,
    PERIOD,
    PROPOSED,
    SEQ,
    SET_BY,
    TIMELINE,
    W_BEFORE,
    W_SET_BY,
    WATERMARK,
    floor_to,
    to_us,
)
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.watermark.clock_rules import GATHERED
from tidemark.timeops.watermark.scans import with_set_by
from tidemark.timeops.watermark.timelines import known_set_by
from tidemark.timeops.windows.rises import AT, GIVEN, rise_of

W_START = "__tm_w_start"
"""BIGINT: the watermark of the row's timeline before the segment; null before its first."""
W_END = "__tm_w_end"
"""BIGINT: the same behind it."""
AFTER_SEQ = "__tm_after_seq"  # the item, by its place in the log; AT is the clock there

_PLACE = "__tm_place"  # orders steps and wanted places: by the log, or by periods of the clock
_HIGHEST, _NEXT = "__tm_highest", "__tm_next"


def with_start(rows: DataFrame, before: DataFrame) -> DataFrame:
    """Adds `__tm_w_start` to rows with `_timeline`; `before` is the timelines' state before the segment."""
    return rows.join(before.select(TIMELINE, F.col("watermark").alias(W_START)), TIMELINE, "left")


def with_end(rows: DataFrame, state: DataFrame) -> DataFrame:
    """Adds `__tm_w_end` to rows with `_timeline`; `state` is the timelines' state after the segment."""
    return rows.join(state.select(TIMELINE, F.col("watermark").alias(W_END)), TIMELINE, "left")


def with_both_ends(rows: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Adds `__tm_w_start` and `__tm_w_end` to rows with `_timeline`."""
    return with_end(with_start(rows, adjusted.before), adjusted.state)


def watermarks_after(wanted: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Adds to places in the log the watermark that the next item finds.

    Args:
        wanted: `_timeline`, `__tm_after_seq` and `__tm_at` (the clock there, microseconds), each once; places of the
            segment, or the one before its first record.
        adjusted: The segment.

    Returns:
        `wanted` with `_watermark` BIGINT; null where there is none yet.
    """
    rise, every_us = rise_of(adjusted), adjusted.rules.time.emit_every_us
    step_place, wanted_place, width = F.col(SEQ), F.col(AFTER_SEQ), CELL_ROWS
    if every_us is not None:  # what a period proposed is seen from the next one on
        step_place, wanted_place, width = F.col(PERIOD), floor_to(F.col(AT), every_us) - F.lit(1), CELL_US
    steps = rise.steps.withColumn(_PLACE, step_place)
    asked = wanted.select(TIMELINE, AFTER_SEQ, AT).withColumn(_PLACE, wanted_place)
    marks = steps.withColumn(_HIGHEST, F.col(PROPOSED))
    found = with_largest_at_or_below(asked, marks, _HIGHEST, key=TIMELINE, place=_PLACE, width=width)
    if rise.rule.is_by_timeline:
        found = _with_next(found, steps, width)
    given = rise.with_given(with_start(found, adjusted.before), F.col(_NEXT))
    stands = F.greatest(_HIGHEST, W_START, GIVEN)
    return given.select(TIMELINE, AFTER_SEQ, AT, stands.alias(WATERMARK))


def met_by(events: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Gives `__tm_w_before` and `__tm_w_set_by` to all events, on time or not: the watermark before each, who set it.

    Args:
        events: Few events of the segment; each of them is looked up.
        adjusted: The segment.
    """
    asked = events.drop(W_BEFORE, W_SET_BY).withColumns({AFTER_SEQ: F.col(SEQ) - F.lit(1), AT: to_us(CLOCK)})
    found = watermarks_after(asked.select(TIMELINE, AFTER_SEQ, AT), adjusted).drop(AT)
    known = asked.join(found.withColumnRenamed(WATERMARK, W_BEFORE), [TIMELINE, AFTER_SEQ]).drop(AFTER_SEQ, AT)
    set_by = adjusted.advances.select(TIMELINE, PROPOSED, SET_BY).unionByName(known_set_by(adjusted.before))
    return with_set_by(known, set_by)


def _with_next(asked: DataFrame, steps: DataFrame, width: int) -> DataFrame:
    """Adds what the next step behind a place finds gathered: null where the silence before it raised nothing."""
    marks = steps.withColumn(_NEXT, F.struct((-F.col(SEQ)).alias("negative_seq"), GATHERED))
    behind = asked.withColumn(_PLACE, F.col(_PLACE) + F.lit(1))
    found = with_largest_at_or_above(behind, marks, _NEXT, key=TIMELINE, place=_PLACE, width=width)
    return found.withColumn(_NEXT, F.col(_NEXT)[GATHERED])
