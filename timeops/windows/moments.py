"""The moments at which windows that revise their results have one.

Here: which moments there are, their order, the number of each, whether a segment of the log has it: from when their
events came, and how watermarks rose. Arrays in, arrays out. Not here: columns of Spark (revisions.py), how watermarks
rose (watermark/).

A window has its result at moments that its events name by themselves. The first is when the watermark passes its end
(`on_time`). Others follow for late events, when the period of the clock in which they came is over (F, Beam), or at
each of them (`revise_every: 0 s`). With `early` a period that is over and in which events came is one too. The last
moment is when the window closes. The bounds of a session are a window of their own. When an event changes them before
it closes, their last moment is this event: it takes back what they have shown.

Instants and lengths are BIGINT microseconds; NONE means that there is no value.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.fold import NONE, Array
from tidemark.timeops.watermark.timelines import Watermarks

# Ranks of moments; that of a period is its end on the clock, that of one event its place in the log.
ON_TIME, TAKEN_BACK, FINAL = -(2**62), 2**61, 2**62

MOMENT = np.dtype(
    [
        ("window", "i8"),  # by its place
        ("rank", "i8"),
        ("revision", "i8"),
        ("previous", "i8"),  # rank of the result before; NONE of the first
        ("watermark", "i8"),  # just after the item at which it was given; NONE where a flush gave it
    ]
)


@dataclass(frozen=True)
class Open:
    """Windows that hold events and had not closed before the segment.

    Attributes:
        timeline: The timeline of each.
        end: Its end.
        before: The watermark before the segment.
        after: The watermark after it.
        clock: The clock before the segment.
        changed_by: The event of the segment that changed these bounds, by its `_arrival_seq`; NONE where they last.
        changed_w: The watermark that this event met, where the event was out of order.
        changed_at: Its clock.
    """

    timeline: pa.ChunkedArray
    end: Array
    before: Array
    after: Array
    clock: Array
    changed_by: Array
    changed_w: Array
    changed_at: Array


@dataclass(frozen=True)
class Marks:
    """The moments from which events are in results, each once for a window.

    Attributes:
        window: The window, by its place.
        rank: The moment.
        fresh: What makes it one came in the segment.
    """

    window: Array
    rank: Array
    fresh: Array

    def where(self, which: Array) -> "Marks":
        """Return some of the moments."""
        return Marks(self.window[which], self.rank[which], self.fresh[which])


@dataclass(frozen=True)
class _Given:
    """Moments at which a result is given, whether in this segment, and the watermark then."""

    window: Array
    rank: Array
    is_now: Array
    watermark: Array


def moments(known: Open, marks: Marks, window: WindowSpec, watermarks: Watermarks, *, flushed: bool) -> Array:
    """Find the moments of a segment at which windows have a result, MOMENT by window and rank."""
    found = [_closing(known, window, watermarks, flushed=flushed), _taken_back(known, watermarks)]
    if window.early_every_us is not None:
        found.append(_at_periods(known, marks, window, watermarks))
    else:
        is_late = marks.rank != ON_TIME
        late = marks.where(is_late)
        found.append(_on_time(known, marks.where(~is_late), window, watermarks))
        found.append(
            _at_periods(known, late, window, watermarks)
            if window.revise_every_us
            else _at_events(known, late, watermarks)
        )
    own, rank, is_now, watermark = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("window", "rank", "is_now", "watermark")
    )
    order = np.lexsort((rank, own))
    own, rank, is_now, watermark = own[order], rank[order], is_now[order], watermark[order]
    first = np.searchsorted(own, own, "left")
    given = np.zeros(len(own), MOMENT)
    given["window"], given["rank"], given["watermark"] = own, rank, watermark
    given["revision"] = np.arange(len(own)) - first
    given["previous"] = np.where(given["revision"] == 0, NONE, np.roll(rank, 1))
    shown: Array = given[is_now & ((rank != TAKEN_BACK) | (given["revision"] > 0))]
    return shown


def _passed(watermark: Array, end: Array, window: WindowSpec) -> Array:
    """Return whether watermarks have passed the ends of windows."""
    return np.asarray(watermark >= end + window.ends_inside_us)


def _closes_at(known: Open, window: WindowSpec) -> Array:
    return np.asarray(known.end + (window.allowed_lateness_us + window.ends_inside_us))


def _at(timeline: pa.ChunkedArray, places: Array) -> pa.ChunkedArray:
    return timeline.take(pa.array(places, pa.int64()))


def _closing(known: Open, window: WindowSpec, watermarks: Watermarks, *, flushed: bool) -> _Given:
    """Return the moments at which windows close."""
    closes_at = _closes_at(known, window)
    own = np.flatnonzero((flushed | (closes_at <= known.after)) & (known.changed_by == NONE))
    found = watermarks.reaching(_at(known.timeline, own), closes_at[own]).watermark
    return _Given(own, np.full(len(own), FINAL), np.ones(len(own), bool), found)


def _taken_back(known: Open, watermarks: Watermarks) -> _Given:
    """Return the moments at which events of the segment changed bounds, also where these had given nothing."""
    own = np.flatnonzero(known.changed_by != NONE)
    found = watermarks.after(_at(known.timeline, own), known.changed_by[own]).value
    return _Given(own, np.full(len(own), TAKEN_BACK), np.ones(len(own), bool), found)


def _on_time(known: Open, marks: Marks, window: WindowSpec, watermarks: Watermarks) -> _Given:
    """Return the moments at which the watermark passes the end; none where it passes the close time at once."""
    end, own = known.end[marks.window], marks.window
    in_time = (known.changed_by[own] == NONE) | _passed(known.changed_w[own], end, window)
    earlier = _passed(known.before[own], end, window)
    crosses = ~earlier & _passed(known.after[own], end, window)
    found = watermarks.reaching(_at(known.timeline, own[crosses]), end[crosses] + window.ends_inside_us)
    now, watermark = np.zeros(len(own), bool), np.full(len(own), NONE)
    now[crosses] = (found.reached != NONE) & (found.reached < _closes_at(known, window)[own[crosses]])
    watermark[crosses] = found.watermark
    given = in_time & (earlier | now)
    return _Given(own[given], marks.rank[given], now[given], watermark[given])


def _at_events(known: Open, late: Marks, watermarks: Watermarks) -> _Given:
    """Return the moments of late events that each make a revision."""
    found = watermarks.after(_at(known.timeline, late.window), late.rank).value
    return _Given(late.window, late.rank, late.fresh, found)


def _at_periods(known: Open, marks: Marks, window: WindowSpec, watermarks: Watermarks) -> _Given:
    """Return the periods in which events came; the first item after one brings the result, if it still may."""
    own, rank = marks.window, marks.rank
    in_time = (known.changed_by[own] == NONE) | (rank <= known.changed_at[own])
    earlier = rank <= known.clock[own]
    comes, before, after = watermarks.around(_at(known.timeline, own), rank)
    now = ~earlier & comes & (before < _closes_at(known, window)[own])
    given = in_time & (earlier | now)
    return _Given(own[given], rank[given], now[given], after[given])
