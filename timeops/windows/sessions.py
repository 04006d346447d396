"""Session windows over a segment of the log: which events are in which session, which sessions close, late events.

Here: the segment between Spark and the loop: a few numbers of each event that takes part go there, and come back
beside the events: the bounds of their sessions, and the watermark just after the item that closed these. Not here:
which event is in which session (session_loop.py), the moments of revisions (revisions.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    CLOCK,
    LATENESS,
    MIN_US,
    ONE_TIMELINE,
    SEQ,
    T_FINAL,
    TIMELINE,
    W_BEFORE,
    WATERMARK,
    to_us,
)
from tidemark.timeops.events.adjustment import with_both_ends
from tidemark.timeops.narrow import as_flat, beside, fetched, integers, numbers, to_join
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.fold import NONE, Array
from tidemark.timeops.windows.aggregates import results_of
from tidemark.timeops.windows.membership import (
    BY_FLUSH,
    CHANGED_BY,
    END,
    ENDS,
    FILTERED,
    FRESH,
    MISSED,
    MISSED_FROM,
    RANK,
    START,
    Rank,
    group_names,
    left_out,
    no_ends,
    takes_part,
    with_groups,
)
from tidemark.timeops.windows.segment import WindowSegment
from tidemark.timeops.windows.session_loop import (
    CLOSED,
    FLUSHED,
    Came,
    rules_of_sessions,
    sessions,
)
from tidemark.timeops.windows.session_loop import Sessions as Found

_SESSION = "__tm_session"  # names a session
_FLAT = "__tm_flat"  # and the number of a column of the group
_FIRST, _LAST, _MADE_BY = "__tm_first", "__tm_last", "__tm_made_by"


@dataclass(frozen=True)
class PlacedInSessions:
    """The events of a segment that take part, with their sessions: on the driver.

    Attributes:
        rows: What the loop was told of them, in the order in which they came.
        keys: The columns of `rows` by which they are found again.
        found: What the loop says.
        watermark: Just after the item that closed the session of each; NONE where no item of the segment did.
        late: How many accepted events of the segment are in none.
        flushed: The segment ends with a flush, which closes them all.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    found: Found
    watermark: Array
    late: int
    flushed: bool

    @property
    def is_in_one(self) -> Array:
        """Of each event, true if it is in a session."""
        return self.found.session >= 0

    @property
    def is_closed(self) -> Array:
        """Of each event, true if it is in a session that closes in the segment."""
        return np.asarray(self.is_in_one & (self.flushed | (self.watermark != NONE)))

    def some(self, which: Array, **more: Array) -> pa.Table:
        """Return the keys of some of them, and numbers that are known of all; NONE is null."""
        columns = {name: values[which] for name, values in more.items()}
        told = {name: pa.array(values, pa.int64(), mask=values == NONE) for name, values in columns.items()}
        own = self.rows.select(self.keys).filter(pa.array(which))
        return pa.table(dict(zip(self.keys, own.columns, strict=True)) | told)


@dataclass(frozen=True)
class Sessions:
    """Sessions: windows that merge; see kinds.WindowKind for what each method is."""

    window: WindowSpec
    keys: ClassVar[tuple[str, ...]] = (TIMELINE, START, END)
    """With late events two of them may have one start, but not one end; bounds that are revised may share both."""
    merges: ClassVar[bool] = True
    needs_others: ClassVar[bool] = True
    needs_after_flush: ClassVar[bool] = False

    @property
    def reach_us(self) -> int:
        """A session of a longest duration may end sooner than a gap after an event, but not before its last one."""
        return self.window.gap_us if self.window.max_duration is None else 0

    def start_of(self, end_us: Column) -> Column:
        """Return the start of the session of one event with this end."""
        return end_us - F.lit(self.window.gap_us)

    def with_start(self, rows: DataFrame) -> DataFrame:
        """Return the rows of sessions, which have their start."""
        return rows

    def place(self, events: DataFrame) -> DataFrame:
        """Add the session that each event would begin, as if it were on time: which are late shows beside others."""
        own = F.array(F.col(T_FINAL) + F.lit(self.window.gap_us))
        placed = events.withColumn(FILTERED, left_out(events, self.window))
        return placed.withColumns({ENDS: F.when(F.col(FILTERED), no_ends()).otherwise(own), MISSED: no_ends()})

    def placed(self, segment: WindowSegment, /) -> PlacedInSessions:
        """Return the events that take part, on the driver, each with its session."""
        keys: tuple[str, ...] = (SEQ,)
        if self.window.input is not None:  # results have no number; those of one time are in one session
            keys = (TIMELINE, *group_names(self.window), T_FINAL)
        elif len(segment.adjusted.watermarks.logs) > 1:  # which may number their records each by itself
            keys = (TIMELINE, SEQ)
        keeps = segment.adjusted.rules.time.out_of_order == "keep" and self.window.input is None
        rows, group, closed = self._told(segment, keys, keeps=keeps)
        came = Came(
            group=group,
            t=integers(rows[T_FINAL]),
            watermark=integers(rows[W_BEFORE]) if keeps else np.zeros(0, np.int64),
            is_known=~np.asarray(rows[FRESH], bool),
            clock=integers(rows[CLOCK]) if self.window.revises else np.zeros(0, np.int64),
        )
        if not self.window.revises:  # only the keys are asked for again
            rows = rows.select(dict.fromkeys([*keys, *({TIMELINE} & set(rows.column_names))]))
        found = sessions(came, closed, rules_of_sessions(self.window, keeps=keeps))
        closing, late = self._closing(rows, found, segment), int(((found.session < 0) & ~came.is_known).sum())
        return PlacedInSessions(rows, keys, found, closing, late, segment.flushed)

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Return the events of sessions that close in the segment, with `__tm_start`, `__tm_end` and `_watermark`."""
        placed = self._placed(segment)
        own = {START: placed.found.start, END: placed.found.end, WATERMARK: placed.watermark}
        return self._beside(segment.events, placed.some(placed.is_closed, **own), placed.keys)

    def closed_results(self, segment: WindowSegment) -> DataFrame:
        """Return the results of the sessions that close in the segment, dated."""
        return results_of(self.closed_contents(segment), (*self.keys, WATERMARK), self.window)

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:  # noqa: ARG002
        """Return the results, which have been dated."""
        return results

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Return events of sessions that were open before the segment or began in it, once for each of their bounds.

        Bounds that earlier segments changed, and bounds that no result can be of, are not among them.
        """
        placed = self._placed(segment)
        own = placed.some(placed.is_in_one, **{_SESSION: placed.found.session})
        events, bounds = self._beside(segment.fresh_and_known, own, placed.keys), _bounds(placed)
        both = events.join(to_join(events.sparkSession, bounds), _SESSION)
        t, made = F.col(T_FINAL), F.col(_MADE_BY)
        in_time = F.coalesce(F.col(SEQ) < F.col(CHANGED_BY)["seq"], F.lit(True))
        held = both.where((F.col(_FIRST) <= t) & (t <= F.col(_LAST)) & in_time)
        held = held.withColumns({START: F.col(_FIRST), END: F.col(_LAST) + F.lit(self.window.gap_us)})
        by_maker = rank(made["clock"], made["w"], made["seq"])
        came = with_both_ends(held, segment.adjusted)
        came = came.withColumn(RANK, F.greatest(rank(to_us(CLOCK), F.col(W_BEFORE), F.col(SEQ)), by_maker))
        # An event of the segment made the bounds, and the row is in a result since this came.
        is_fresh = F.coalesce(made["fresh"] & (F.col(RANK) == by_maker), F.lit(False))
        return came.withColumn(FRESH, F.col(FRESH) | is_fresh).drop(_MADE_BY, _SESSION, _FIRST, _LAST)

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Return events that came when their session had closed, with `__tm_missed` (its end) and `__tm_lateness_us`.

        No open session was within the gap of such an event, so the session would have held it alone. With drained
        sessions also events that the flush keeps out, with `__tm_by_flush`, and `__tm_missed_from`, where the session
        begins that each would have given: others may be in it.
        """
        window, placed = self.window, self._placed(segment)
        by_flush = placed.found.session == FLUSHED
        own = {MISSED_FROM: placed.found.start, END: placed.found.end, BY_FLUSH: by_flush.astype(np.int64)}
        late = beside(segment.adjusted.accepted, placed.some(~placed.is_in_one, **own), placed.keys)
        lateness = F.col(W_BEFORE) - F.col(END) - F.lit(window.allowed_lateness_us)
        by_watermark = F.col(BY_FLUSH) == 0
        told = {MISSED: F.array(END), LATENESS: F.when(by_watermark, lateness), BY_FLUSH: ~by_watermark}
        late = late.withColumns(told).drop(END)
        return late.drop(MISSED_FROM, BY_FLUSH) if segment.drained is None else late

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Add BOOLEAN `into`: the event is in a session that is still open."""
        placed = self._placed(segment)
        is_open = placed.is_in_one & ~placed.is_closed
        groups = group_names(self.window) if self.window.input is not None else []
        known = with_groups(events, self.window) if groups else events
        found = beside(known, placed.some(is_open, **{into: placed.found.session}), placed.keys, "left")
        return found.withColumn(into, F.col(into).isNotNull()).drop(*groups)

    def needed_from(self, _watermark_us: int, /) -> int:
        """Return the lowest instant: a session may have begun at any time."""
        return MIN_US

    def _placed(self, segment: WindowSegment) -> PlacedInSessions:
        return segment.placed if segment.placed is not None else self.placed(segment)

    def _beside(self, events: DataFrame, found: pa.Table, keys: Sequence[str]) -> DataFrame:
        """Return the events for which something was found, with their groups."""
        if set(group_names(self.window)) <= set(keys):
            return beside(with_groups(events, self.window), found, keys)
        return with_groups(beside(events, found, keys), self.window)

    def _told(self, segment: WindowSegment, keys: Sequence[str], *, keeps: bool) -> tuple[pa.Table, Array, Array]:
        """Return what the loop takes: the events that take part, the numbers of their groups, CLOSED by flushes."""
        window, over = self.window, segment.adjusted.rules.time.over
        timeline = [TIMELINE] if over or window.input is not None else []
        by_group = [*timeline, *group_names(window)]
        events = segment.fresh_and_known
        taking = with_groups(events.where(takes_part(events, window)), window)
        # Known events of a window that has one result are in open sessions, whatever they met.
        met = F.col(W_BEFORE) if window.revises else F.when(F.col(FRESH), F.col(W_BEFORE))
        more = [met.alias(W_BEFORE)] if keeps or window.revises else []
        more += [to_us(CLOCK).alias(CLOCK)] if window.revises else []
        named = dict.fromkeys([*keys, T_FINAL, FRESH, *timeline])
        narrow = taking.select(*named, *more, *_flat(taking, by_group))
        if window.input is not None:
            narrow = narrow.distinct()
        if segment.drained is not None:
            flat = _flat(segment.drained, by_group)
            closed = segment.drained.select(F.col(START).alias(T_FINAL), F.col(END).alias(W_BEFORE), *flat)
            narrow = narrow.unionByName(closed, allowMissingColumns=True)
        rows = fetched(narrow, segment.adjusted.seqs)
        group = numbers(rows, [f"{_FLAT}{number}" for number in range(len(by_group))])
        rows = rows.drop_columns([f"{_FLAT}{number}" for number in range(len(by_group))])
        closed_by_flush = np.zeros(0, CLOSED)
        if segment.drained is not None:
            is_event = np.asarray(rows[FRESH].is_valid())
            ends = (group[~is_event], *(integers(rows[name])[~is_event] for name in (T_FINAL, W_BEFORE)))
            closed_by_flush = np.zeros(len(ends[0]), CLOSED)
            for name, values in zip(CLOSED.names or (), ends, strict=True):
                closed_by_flush[name] = values
            rows, group = rows.filter(pa.array(is_event)), group[is_event]
        if SEQ in keys:
            seq = integers(rows[SEQ])
            if (seq[1:] < seq[:-1]).any():
                order = np.argsort(seq, kind="stable")
                rows, group = rows.take(pa.array(order)), group[order]
        return rows, group, closed_by_flush

    def _closing(self, rows: pa.Table, found: Found, segment: WindowSegment) -> Array:
        """Return by event the watermark just after the item that closed its session."""
        own = np.flatnonzero(found.session == np.arange(len(rows)))
        one = pa.chunked_array([pa.nulls(len(own), pa.string()).fill_null(ONE_TIMELINE)])
        timeline = rows[TIMELINE].take(pa.array(own)) if TIMELINE in rows.column_names else one
        closes_at = found.end[own] + self.window.allowed_lateness_us + self.window.ends_inside_us
        of_sessions = np.full(len(rows) + 2, NONE)  # the last two are for LATE and FLUSHED
        of_sessions[own] = segment.adjusted.watermarks.reaching(timeline, closes_at).watermark
        return of_sessions[found.session]


def _flat(rows: DataFrame, names: Sequence[str]) -> list[Column]:
    return [as_flat(rows, name).alias(f"{_FLAT}{number}") for number, name in enumerate(names)]


def _bounds(placed: PlacedInSessions) -> pa.Table:
    """Return the bounds of the sessions, with the events that made and changed them."""
    found, rows = placed.found.bounds, placed.rows
    events = pa.StructArray.from_arrays(
        [
            pa.array(integers(rows[name]), pa.int64(), mask=np.asarray(rows[name].is_null()))
            for name in (SEQ, T_FINAL, W_BEFORE, CLOCK)
        ]
        + [rows[FRESH].combine_chunks()],
        names=["seq", "t", "w", "clock", "fresh"],
    )
    told = {_SESSION: found["session"], _FIRST: found["first"], _LAST: found["last"]}
    by = {_MADE_BY: found["made_by"], CHANGED_BY: found["changed_by"]}
    known = {name: events.take(pa.array(places, pa.int64(), mask=places < 0)) for name, places in by.items()}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in told.items()} | known)
