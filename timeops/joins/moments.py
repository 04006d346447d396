"""The moments at which events of a join have a row: looked up on the driver, in how watermarks rose.

Here: when the watermark passes all partners of an event, and when it can have no late one any more. Not here: which
partners it has (as_of.py, interval.py).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.instants import NONE, Array, integers
from tidemark.timeops.joins.events import Events, Flags, Places
from tidemark.timeops.joins.gathering import IS_LEFT
from tidemark.timeops.narrow import beside, fetched
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.watermark.timelines import JudgedLog
from tidemark.timeops.watermark.watermarks import Watermarks
from tidemark.timeops.windows.membership import FRESH
from tidemark.timeops.windows.segment import WindowSegment

EVENT = (c.TIMELINE, c.SEQ)
"""Which event it is: of several logs each may number its events by itself."""

DUE, DUE_NOW, DUE_W = "__tm_due", "__tm_due_now", "__tm_due_w"
"""BIGINT: 1 if an event had a row to get before the last one, and if that is in the segment; the watermark then."""
CLOSES_NOW, CLOSE_W = "__tm_closes_now", "__tm_close_w"
"""BIGINT: 1 if no late partner can come any more, from an item of the segment on; the watermark just after it."""
CAME_W = "__tm_came_w"
"""BIGINT: the watermark just after an event of the segment; null of an earlier one."""
_LEFT_W, _RIGHT_W = "__tm_left_w", "__tm_right_w"
"""BIGINT: the watermark just after the item that closes an event, if it is of the left side, or of the right one."""


@dataclass(frozen=True, eq=False)
class Moments:
    """When events have a row before the last one, and when they close; each is an array, one number per event.

    Attributes:
        is_due: Whether an event had a row to get before the last one, up to the end of the segment.
        is_due_now: Whether that is in the segment. An event that came when its row was due has it at once.
        due: The watermark just after that; NONE where a flush brings it.
        closes_now: Whether no late partner can come any more, from an item of the segment on.
        close: The watermark just after that item; NONE where there is none.
    """

    is_due: Flags
    is_due_now: Flags
    due: Array
    closes_now: Flags
    close: Array


def moments_of(events: Events, some: Places, join: JoinSpec, watermarks: Watermarks, *, flushed: bool) -> Moments:
    """Return the moments of some events."""
    timelines = events.names_of(some)
    start, end = (us[events.timeline[some]] for us in (events.start_us, events.end_us))
    back_us = join.looks_back_us if join.is_interval else join.looks_ahead_us  # of an as-of join all are left events
    due_us = events.us[some] + np.where(events.is_left[some], join.looks_ahead_us, back_us) + 1
    closes_us = due_us + join.allowed_lateness_us
    is_late = events.met_us[some] >= due_us
    was_due = ~is_late & (start >= due_us)
    due = watermarks.reaching(timelines, due_us)
    first = due.first_watermark
    comes_due = ~is_late & ~was_due & (first != NONE) & (first < closes_us) & (end >= due_us)
    return Moments(
        is_due=is_late | was_due | comes_due,
        is_due_now=comes_due | (is_late & events.is_fresh[some]),
        due=np.where(is_late, watermarks.after(timelines, events.seq[some]).value, due.watermark),
        closes_now=flushed | (end >= closes_us),
        close=watermarks.reaching(timelines, closes_us).watermark,
    )


def with_closing(events: DataFrame, segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Return events that close in the segment, with `_watermark` just after the item that closes them, CLOSES_NOW.

    The loop has the times of the segment's own events: only the ones of earlier segments are fetched.
    """
    sides, has_earlier = _sides_that_close(join), segment.earlier is not None
    of_logs = [_closing_of_log(log, segment, join) for log in segment.adjusted.watermarks.logs]
    of_earlier = [_closing_of_earlier(events, segment, join)] if has_earlier or not of_logs else []
    with_sides = _beside(events, pa.concat_tables([*of_logs, *of_earlier]), segment)
    watermark = f"IF({IS_LEFT}, {', '.join(sides)})" if len(sides) > 1 else _LEFT_W
    return with_sides.withColumns({c.WATERMARK: F.expr(watermark), CLOSES_NOW: F.lit(True)}).drop(*sides)


def _sides_that_close(join: JoinSpec) -> dict[str, int]:
    """Return by column of a side how far the watermark is past an event when it closes; of an as-of join the left."""
    of_left = {_LEFT_W: join.closes_after_us + 1}
    return of_left | {_RIGHT_W: join.useful_for_us + 1} if join.is_interval else of_left


def _closing_of_log(log: JudgedLog, segment: WindowSegment, join: JoinSpec) -> pa.Table:
    """Return when the events of a log close; one that an operator has let in is an event of an earlier segment."""
    adjusted, items = segment.adjusted, log.rises.items
    sources = join.sources if join.is_interval else join.sources[:1]
    item = log.accepted_of(sources, drops=adjusted.rules.time.out_of_order == "drop")
    item = item[~np.isin(items.seq[item], adjusted.admitted_seqs)]
    timeline, t = items.timeline[item], log.t[item]
    columns = {
        name: log.rises.reaching(timeline, t + past_us).watermark for name, past_us in _sides_that_close(join).items()
    }
    closes = np.any([watermark != NONE for watermark in columns.values()], axis=0)
    names = log.names.take(pa.array(timeline[closes]))
    of_events = pa.table({c.TIMELINE: names, c.SEQ: items.seq[item[closes]]})
    return _found(of_events, {name: watermark[closes] for name, watermark in columns.items()})


def _closing_of_earlier(events: DataFrame, segment: WindowSegment, join: JoinSpec) -> pa.Table:
    narrow = _narrow(events.where(f"NOT {FRESH}"), segment)
    t = integers(narrow[c.T_FINAL])
    columns = {name: _reaching(segment, narrow, t + past_us)[0] for name, past_us in _sides_that_close(join).items()}
    return _found(narrow, columns)


def with_moments(events: DataFrame, segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Add DUE, DUE_NOW, DUE_W, CLOSES_NOW and CLOSE_W to events with W_START and W_END.

    An event that came when its row was due has it at once.
    """
    narrow = _narrow(events, segment, c.W_BEFORE, c.W_START, c.W_END, FRESH)
    came, start, end = (integers(narrow[name]) for name in (c.W_BEFORE, c.W_START, c.W_END))
    due_us, closes_us = _times(narrow, join)
    is_late, is_fresh = came >= due_us, np.asarray(narrow[FRESH], bool)
    was_due = ~is_late & (start >= due_us)
    watermark, first = _reaching(segment, narrow, due_us)
    comes_due = ~is_late & ~was_due & (first != NONE) & (first < closes_us) & (end >= due_us)
    moments = {
        DUE: is_late | was_due | comes_due,
        DUE_NOW: comes_due | (is_late & is_fresh),
        DUE_W: np.where(is_late, _came(narrow, segment), watermark),
        CLOSES_NOW: segment.flushed | (end >= closes_us),
        CLOSE_W: _reaching(segment, narrow, closes_us)[0],
    }
    return _beside(events, _found(narrow, moments), segment)


def with_coming(events: DataFrame, segment: WindowSegment) -> DataFrame:
    """Add CAME_W to events of the segment and earlier ones."""
    narrow = _narrow(events.where(FRESH), segment)
    return _beside(events, _found(narrow, {CAME_W: _came(narrow, segment)}), segment)


def _times(narrow: pa.Table, join: JoinSpec) -> tuple[Array, Array]:
    """Return the watermarks at which the row of each event is due, and at which it closes."""
    back_us = join.looks_back_us if join.is_interval else join.looks_ahead_us  # of an as-of join all are left events
    waits_us: Array = np.where(np.asarray(narrow[IS_LEFT], bool), join.looks_ahead_us, back_us)
    due_us = integers(narrow[c.T_FINAL]) + waits_us + 1
    return due_us, due_us + join.allowed_lateness_us


def _narrow(events: DataFrame, segment: WindowSegment, *more: str) -> pa.Table:
    return fetched(events.select(c.SEQ, c.TIMELINE, c.T_FINAL, IS_LEFT, *more), segment.adjusted.seqs)


def _came(narrow: pa.Table, segment: WindowSegment) -> Array:
    return segment.adjusted.watermarks.after(narrow[c.TIMELINE], integers(narrow[c.SEQ])).value


def _found(narrow: pa.Table, columns: dict[str, Array]) -> pa.Table:
    """Return what was found for events: numbers with NONE for null, and 1 for what is true."""
    numbers = {name: values.astype(np.int64) for name, values in columns.items()}
    arrays = {name: pa.array(values, pa.int64(), mask=values == NONE) for name, values in numbers.items()}
    return pa.table({c.TIMELINE: narrow[c.TIMELINE], c.SEQ: narrow[c.SEQ], **arrays})


def _beside(events: DataFrame, of_events: pa.Table, segment: WindowSegment) -> DataFrame:
    if len(segment.adjusted.watermarks.logs) > 1:
        return beside(events, of_events, EVENT, "left")
    return beside(events, of_events.drop_columns(c.TIMELINE), [c.SEQ], "left")


def _reaching(segment: WindowSegment, narrow: pa.Table, wanted_us: Array) -> tuple[Array, Array]:
    """Return the watermark just after the item that brought it to each wanted one, and what first came so far."""
    reached = segment.adjusted.watermarks.reaching(narrow[c.TIMELINE], wanted_us)
    return reached.watermark, reached.first_watermark
