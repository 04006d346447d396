"""The watermark of a timeline as it stands just after an item of the log, whoever this item is of.

Here: looking it up for few places in the log. Not here: the watermark before every event (watermarks.py), the item at
which it reached a value (closing.py, closing_any_time.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import CELL_ROWS, CELL_US, with_largest_at_or_above, with_largest_at_or_below
from tidemark.timeops.columns import (
    ASKED,
    CLOCK,
    LOG,
    PERIOD,
    SEQ,
    SETTER,
    TIMELINE,
    W_BEFORE,
    W_SET_BY,
    WATERMARK,
    floor_to,
    to_us,
)
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.watermark.idleness import GATHERED
from tidemark.timeops.watermark.periodic_emission import ENDED
from tidemark.timeops.watermark.timelines import clock_alone_gives, known_setters
from tidemark.timeops.watermark.watermarks import with_setter
from tidemark.timeops.windows.closing import steps_with_last_silence
from tidemark.timeops.windows.closing_by_periods import periods_to_the_end
from tidemark.timeops.windows.log_items import AT
from tidemark.timeops.windows.segment_ends import W_START, with_start

AFTER_SEQ = "__after_seq"  # the item, by its place in the log; AT is the clock there

_PLACE = "__place"  # orders steps and wanted places: by the log, or by periods of the clock
_PERIOD_AT = "__period_at"
_HIGHEST, _NEXT = "__highest", "__next"


def watermarks_after(wanted: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Adds to places in the log the watermark that the next item finds.

    Args:
        wanted: `_timeline`, `__after_seq` and `__at` (the clock there, microseconds), each once; places of the
            segment, or the one before its first record.
        adjusted: The segment.

    Returns:
        `wanted` with `_watermark` BIGINT; null where there is none yet.
    """
    rules, every_us = adjusted.rules, adjusted.rules.time.emit_every_us
    silent = rules.clock_raises_single_timelines
    if adjusted.ended is not None:
        steps = periods_to_the_end(adjusted)
    else:
        steps = steps_with_last_silence(adjusted) if silent else adjusted.steps
    step_place, wanted_place = F.col(SEQ), F.col(AFTER_SEQ)
    if every_us is not None:  # what a period asked for is seen from the next one on
        step_place, wanted_place = F.col(PERIOD), floor_to(F.col(AT), every_us) - F.lit(1)
    placed = steps.withColumn(_PLACE, step_place)
    asked = wanted.select(TIMELINE, AFTER_SEQ, AT).withColumn(_PLACE, wanted_place)
    found = _between_steps(asked, placed, CELL_ROWS if every_us is None else CELL_US, silent=silent)
    known = with_start(found, adjusted.before)
    if adjusted.ended is None:
        by_clock = clock_alone_gives(F.col(_NEXT), F.col(AT), rules)
    else:
        known, by_clock = _with_published(known, adjusted, adjusted.ended)
    stands = F.greatest(_HIGHEST, W_START, by_clock)
    return known.select(TIMELINE, AFTER_SEQ, AT, stands.alias(WATERMARK))


def met_by(events: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Puts in `__w_before` and `__w_set_by` of events the watermark just before each, on time or not, and its setter.

    Args:
        events: Few events of the segment; each of them is looked up.
        adjusted: The segment.
    """
    asked = events.drop(W_BEFORE, W_SET_BY).withColumns({AFTER_SEQ: F.col(SEQ) - F.lit(1), AT: to_us(CLOCK)})
    found = watermarks_after(asked.select(TIMELINE, AFTER_SEQ, AT), adjusted).drop(AT)
    known = asked.join(found.withColumnRenamed(WATERMARK, W_BEFORE), [TIMELINE, AFTER_SEQ]).drop(AFTER_SEQ, AT)
    setters = adjusted.moves.select(TIMELINE, ASKED, SETTER).unionByName(known_setters(adjusted.before))
    return with_setter(known, setters)


def _with_published(rows: DataFrame, adjusted: Adjusted, ended: DataFrame) -> tuple[DataFrame, Column]:
    """The rows with the clock before the period of `__at`, and what this published of silences."""
    rules = adjusted.rules
    period = floor_to(F.col(AT), rules.time.emit_every_us or 1)
    rows = rows.withColumns({LOG: adjusted.clock.log, _PERIOD_AT: period})
    rows = rows.join(ended.withColumnRenamed(PERIOD, _PERIOD_AT), [LOG, _PERIOD_AT], "left")
    given = clock_alone_gives(F.col(_NEXT), F.col(ENDED), rules)
    if not rules.clock_raises_single_timelines:
        return rows, given
    return rows, F.when(F.col(_NEXT)["last"] < F.col(_PERIOD_AT), given)


def _between_steps(asked: DataFrame, placed: DataFrame, width: int, *, silent: bool) -> DataFrame:
    """Adds the highest watermark that steps up to a place ask for; in silences also what the next one finds gathered.

    In a struct, as a step has null where the silence before it raised nothing: then it did so nowhere in it.
    """
    marks = placed.withColumn(_HIGHEST, F.col(ASKED))
    found = with_largest_at_or_below(asked, marks, _HIGHEST, key=TIMELINE, place=_PLACE, width=width)
    if not silent:
        return found
    first = F.struct((-F.col(SEQ)).alias("negative_seq"), GATHERED)
    behind = found.withColumn(_PLACE, F.col(_PLACE) + F.lit(1))
    marks = placed.withColumn(_NEXT, first)
    found = with_largest_at_or_above(behind, marks, _NEXT, key=TIMELINE, place=_PLACE, width=width)
    return found.withColumn(_NEXT, F.col(_NEXT)[GATHERED])
