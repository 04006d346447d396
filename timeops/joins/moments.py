"""The moments at which events of a join have a row, looked up in how watermarks rose.

Here: when the watermark passes all partners of an event, and when it can have no late one any more. Not here: which
partners it has (timeops/joins/as_of.py, timeops/joins/interval.py).
"""

from dataclasses import dataclass

import numpy as np

from tidemark.timeops.joins.events import Events, Flags, Places
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.watermark.watermarks import Watermarks


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
