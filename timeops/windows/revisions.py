"""Results that are given before a window closes, and again when more events have come.

Here: the moments at which a window has a result, found on the driver from when its events came and how watermarks
rose, arrays in and arrays out; what it holds at each moment; the changes that revisions make, in the shape of Delta's
change data. Not here: which windows an event is in (timeops/windows/kinds.py), the aggregates
(timeops/windows/aggregates.py), storage.

A window has its result at moments that its events name by themselves. The first is when the watermark passes its end
(`on_time`). Others follow for late events, when the period of the clock in which they came is over (F, Beam), or at
each of them (`revise_every: 0 s`). With `early`, the end of each period in which events came is such a moment,
too. The last one is when the window closes. The bounds of a session are a window of their own. When an event changes
them before it closes, their last moment is this event: it takes back what they have shown. The rank of a moment, and
with it the number of a revision, is the same wherever a log is cut.

Instants and lengths are BIGINT microseconds; NONE means that there is no value.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.calendar.grid import instant_of_end, instants_of_ends
from tidemark.timeops.columns import SEQ, TIMELINE, W_BEFORE, W_END, W_START, WATERMARK, floor_to, same_in, shifted
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.narrow import to_join
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import NONE, Array, integers
from tidemark.timeops.watermark.watermarks import Watermarks
from tidemark.timeops.windows.kinds import WindowKind, keys_of
from tidemark.timeops.windows.segment import CHANGED_BY, END, EVENT, FRESH, RANK, WindowSegment, group_names

# Ranks of moments; that of a period is its end on the clock, that of one event its place in the log.
ON_TIME, TAKEN_BACK, FINAL = -(2**62), 2**61, 2**62

MOMENT = np.dtype(
    [
        ("window", "i8"),  # by its place
        ("rank", "i8"),
        ("revision", "i8"),
        ("previous", "i8"),  # rank of the result before; NONE of the first
        ("watermark", "i8"),  # just after the item at which it was published; NONE where a flush published it
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


def moments(bounds: Open, marks: Marks, window: WindowSpec, watermarks: Watermarks, *, flushed: bool) -> Array:
    """Find the moments of a segment at which windows have a result, MOMENT by window and rank."""
    parts = [_closing(bounds, window, watermarks, flushed=flushed), _taken_back(bounds, watermarks)]
    if window.early_every_us is not None:
        parts.append(_at_periods(bounds, marks, window, watermarks))
    else:
        is_late = marks.rank != ON_TIME
        late = marks.where(is_late)
        parts.append(_on_time(bounds, marks.where(~is_late), window, watermarks))
        parts.append(
            _at_periods(bounds, late, window, watermarks)
            if window.revise_every_us
            else _at_events(bounds, late, watermarks)
        )
    rows, rank, is_now, watermark = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("window", "rank", "is_now", "watermark")
    )
    order = np.lexsort((rank, rows))
    rows, rank, is_now, watermark = rows[order], rank[order], is_now[order], watermark[order]
    first = np.searchsorted(rows, rows, "left")
    numbered = np.zeros(len(rows), MOMENT)
    numbered["window"], numbered["rank"], numbered["watermark"] = rows, rank, watermark
    numbered["revision"] = np.arange(len(rows)) - first
    numbered["previous"] = np.where(numbered["revision"] == 0, NONE, np.roll(rank, 1))
    shown: Array = numbered[is_now & ((rank != TAKEN_BACK) | (numbered["revision"] > 0))]
    return shown


def _passed(watermark: Array, end: Array, window: WindowSpec) -> Array:
    """Return whether watermarks have passed the ends of windows."""
    return np.asarray(watermark >= end + window.ends_inside_us)


def _closes_at(bounds: Open, window: WindowSpec) -> Array:
    return np.asarray(bounds.end + window.closes_after_us)


def _at(timeline: pa.ChunkedArray, places: Array) -> pa.ChunkedArray:
    return timeline.take(pa.array(places, pa.int64()))


def _closing(bounds: Open, window: WindowSpec, watermarks: Watermarks, *, flushed: bool) -> _Given:
    """Return the moments at which windows close."""
    closes_at = _closes_at(bounds, window)
    rows = np.flatnonzero((flushed | (closes_at <= bounds.after)) & (bounds.changed_by == NONE))
    watermark = watermarks.reaching(_at(bounds.timeline, rows), closes_at[rows]).watermark
    return _Given(rows, np.full(len(rows), FINAL), np.ones(len(rows), bool), watermark)


def _taken_back(bounds: Open, watermarks: Watermarks) -> _Given:
    """Return the moments at which events of the segment changed bounds, also where these had given nothing."""
    rows = np.flatnonzero(bounds.changed_by != NONE)
    watermark = watermarks.after(_at(bounds.timeline, rows), bounds.changed_by[rows]).value
    return _Given(rows, np.full(len(rows), TAKEN_BACK), np.ones(len(rows), bool), watermark)


def _on_time(bounds: Open, marks: Marks, window: WindowSpec, watermarks: Watermarks) -> _Given:
    """Return the moments at which the watermark passes the end; none where it passes the close time at once."""
    end, rows = bounds.end[marks.window], marks.window
    in_time = (bounds.changed_by[rows] == NONE) | _passed(bounds.changed_w[rows], end, window)
    earlier = _passed(bounds.before[rows], end, window)
    crosses = ~earlier & _passed(bounds.after[rows], end, window)
    crossing = watermarks.reaching(_at(bounds.timeline, rows[crosses]), end[crosses] + window.ends_inside_us)
    now, watermark = np.zeros(len(rows), bool), np.full(len(rows), NONE)
    now[crosses] = (crossing.first_watermark != NONE) & (
        crossing.first_watermark < _closes_at(bounds, window)[rows[crosses]]
    )
    watermark[crosses] = crossing.watermark
    has_result = in_time & (earlier | now)
    return _Given(rows[has_result], marks.rank[has_result], now[has_result], watermark[has_result])


def _at_events(bounds: Open, late: Marks, watermarks: Watermarks) -> _Given:
    """Return the moments of late events that each make a revision."""
    watermark = watermarks.after(_at(bounds.timeline, late.window), late.rank).value
    return _Given(late.window, late.rank, late.fresh, watermark)


def _at_periods(bounds: Open, marks: Marks, window: WindowSpec, watermarks: Watermarks) -> _Given:
    """Return the periods in which events came; the first item after one brings the result, if it still may."""
    rows, rank = marks.window, marks.rank
    in_time = (bounds.changed_by[rows] == NONE) | (rank <= bounds.changed_at[rows])
    earlier = rank <= bounds.clock[rows]
    comes, before, after = watermarks.around(_at(bounds.timeline, rows), rank)
    now = ~earlier & comes & (before < _closes_at(bounds, window)[rows])
    has_result = in_time & (earlier | now)
    return _Given(rows[has_result], rank[has_result], now[has_result], after[has_result])


REVISION = "__tm_revision"
IS_FINAL = "__tm_is_final"
IS_TAKEN_BACK = "__tm_is_taken_back"
"""BOOLEAN: not a result, but the end of the results of a session at bounds that an event has changed."""
CAUSE = "__tm_cause"
"""BIGINT: of a late event that is new in a revision its place in the log, or that of the event which takes results
back; null of all others."""

CHANGE = "_change_type"  # STRING: insert, update_preimage, update_postimage or delete
PREIMAGE, DELETE = "update_preimage", "delete"
LATE_EVENTS = "_late_events"
"""ARRAY<BIGINT>: the `_arrival_seq` of the late events that a revision has and the one before had not."""
PASSES = "__tm_passes"
"""BOOLEAN, never null: a revision passes `having`. One that does not takes away the row of an earlier one."""

_CLOCK_START = "__tm_clock_start"
_MARKS = "__tm_marks"
_CHANGED_BY = "__tm_changed_by_seq"
_PREVIOUS = "__tm_previous_rank"  # of the result before; null of the first
_IS_KNOWN, _REPLACED = "__tm_is_known", "__tm_replaced"


def revised_contents(segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """Return the events of the results that windows have in a segment, one row per result that holds them.

    Args:
        segment: The segment; its known events have `__tm_w_before` and `_clock` as they came.
        kind: The window's.

    Returns:
        The rows with `keys_of`, the group columns of `segment.with_groups`, `__tm_revision`, `__tm_is_final`,
        `__tm_is_taken_back`, `__tm_cause`, and `_watermark` BIGINT, just after the item at which the result was
        made; null where a flush made it.
    """
    rows = segment.execution.materialize(_ranked(segment, kind))
    event = rows.drop(W_START, W_END, _CLOCK_START, FRESH, CHANGED_BY, WATERMARK).alias("event")
    moment = to_join(rows.sparkSession, _moments(rows, segment, kind)).alias("moment")
    same = same_in("event", "moment", (*keys_of(kind), *group_names(kind.window)))
    so_far = F.expr(f"event.{RANK} <= moment.{RANK}")
    of_moment = [f"moment.{name}" for name in (REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK)]
    is_new = f"event.{RANK} > {_PREVIOUS} AND {_passes_end(W_BEFORE, kind.window, f'event.{END}')}"
    cause = f"CASE WHEN {IS_TAKEN_BACK} THEN {_CHANGED_BY} WHEN {is_new} THEN {SEQ} END AS {CAUSE}"
    return event.join(moment, same & so_far).selectExpr("event.*", *of_moment, cause)


def _ranked(segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """Return a row per event and window not closed before the segment, with RANK, from which the event is in it.

    Also FRESH, that what makes it so came in the segment, and the watermarks and the clock around the segment.
    """
    rows = kind.contents_so_far(segment, partial(_rank, kind.window))
    if not kind.merges:
        rows = rows.withColumn(CHANGED_BY, F.lit(None).cast(EVENT))
    clocks = segment.adjusted.before.select([TIMELINE, "clock"]).rename_columns([TIMELINE, _CLOCK_START])
    return rows.join(to_join(rows.sparkSession, clocks), TIMELINE, "left")


def _rank(window: WindowSpec, clock_us: str, watermark_us: str, seq: str) -> str:
    """Return the first moment after an event, by the clock, the watermark that it met, and its place in the log."""
    if window.early_every_us is not None:
        return shifted(floor_to(clock_us, window.early_every_us), window.early_every_us)
    every_us = window.revise_every_us
    late = shifted(floor_to(clock_us, every_us), every_us) if every_us else seq
    return f"IF({_passes_end(watermark_us, window)}, {late}, {ON_TIME}L)"


def _passes_end(watermark_us: str, window: WindowSpec, end_us: str = END) -> str:
    """Return SQL of a BOOLEAN, never null: a watermark has passed the end of the window."""
    end = instant_of_end(end_us, window)
    return f"coalesce({watermark_us} >= {shifted(end, window.ends_inside_us)}, false)"


def _moments(rows: DataFrame, segment: WindowSegment, kind: WindowKind) -> pa.Table:
    """Return the moments at which windows have a result: keys, `__tm_rank`, and what makes it a row."""
    keys = [*keys_of(kind), *group_names(kind.window)]
    ends = (W_START, W_END, _CLOCK_START)
    marks = F.collect_set(F.struct(RANK, FRESH)).alias(_MARKS)
    grouped = rows.groupBy(*keys, *ends, CHANGED_BY).agg(marks).select(*keys, *ends, f"{CHANGED_BY}.*", _MARKS)
    keyed = grouped.toArrow().combine_chunks()
    before, after, clock, changed_by, changed_w, changed_at = (
        integers(keyed[name]) for name in (*ends, "seq", "w", "clock")
    )
    end = instants_of_ends(integers(keyed[END]), kind.window)
    bounds = Open(keyed[TIMELINE], end, before, after, clock, changed_by, changed_w, changed_at)
    each = pc.list_flatten(keyed[_MARKS]).combine_chunks()
    window, rank = integers(pc.list_parent_indices(keyed[_MARKS])), integers(each.field(RANK))
    # Of one moment the set may have both: an event that came in the segment and one that did not.
    fresh = np.asarray(each.field(FRESH), bool)
    order = np.lexsort((~fresh, rank, window))
    window, rank, fresh = window[order], rank[order], fresh[order]
    is_first = np.ones(len(window), bool)
    is_first[1:] = (np.diff(window) != 0) | (np.diff(rank) != 0)
    shown = moments(
        bounds,
        Marks(window, rank, fresh).where(is_first),
        kind.window,
        segment.adjusted.watermarks,
        flushed=segment.flushed,
    )
    arrays = {RANK: shown["rank"], _PREVIOUS: shown["previous"]}
    arrays |= {WATERMARK: shown["watermark"], _CHANGED_BY: changed_by[shown["window"]]}
    columns = {name: pa.array(values, pa.int64(), mask=values == NONE) for name, values in arrays.items()}
    columns[REVISION] = pa.array(shown["revision"], pa.int32())
    columns |= {IS_FINAL: pa.array(shown["rank"] == FINAL), IS_TAKEN_BACK: pa.array(shown["rank"] == TAKEN_BACK)}
    of_windows = keyed.select(keys).take(pa.array(shown["window"], pa.int64()))
    return pa.table(dict(zip(keys, of_windows.columns, strict=True)) | columns)


def changes(results: DataFrame, earlier: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the changes that the results of a segment make.

    `results` are of `results.window_results`, with `_late_events`. `earlier` are the last revisions of earlier
    segments that may be replaced, without `_late_events`, and without aggregates that are new in the spec.

    Returns:
        For each result a row `insert`, where its window and group had none, or `update_postimage`, with its
        `_late_events`; and for the latter one row more, `update_preimage`, which holds what it replaces. A revision
        that no longer passes `having` is a row `delete`, which holds what it takes away, with its `_late_events`.
    """
    keys = window.key_columns
    values = [name for name in results.columns if name not in (*keys, LATE_EVENTS, PASSES)]
    columns = [quoted(name) for name in results.columns if name != PASSES]
    passes = F.col(PASSES) if PASSES in results.columns else F.lit(True)
    both = results.withColumns({PASSES: passes, _IS_KNOWN: F.lit(False)}).unionByName(
        earlier.withColumns({PASSES: F.lit(True), _IS_KNOWN: F.lit(True)}), allowMissingColumns=True
    )
    of_keys = [quoted(key) for key in keys]
    shown = f"IF({PASSES}, struct({', '.join(map(quoted, values))}), NULL)"
    former = F.expr(f"lag({shown}) OVER (PARTITION BY {', '.join(of_keys)} ORDER BY _revision)")
    compared = both.withColumn(_REPLACED, former).where(f"NOT {_IS_KNOWN}")
    kind = f"IF({_REPLACED} IS NULL, 'insert', 'update_postimage') AS {CHANGE}"
    written = compared.where(PASSES).selectExpr(*columns, kind)
    taken = f"IF({PASSES}, '{PREIMAGE}', '{DELETE}') AS {CHANGE}"
    cause = f"IF({PASSES}, NULL, {LATE_EVENTS}) AS {LATE_EVENTS}"
    old = compared.where(f"{_REPLACED} IS NOT NULL").selectExpr(*of_keys, f"{_REPLACED}.*", cause, taken)
    return written.unionByName(old)
