"""Sliding windows over a segment of the log: a result at every instant at which the events of a window change.

Here: the instants at which an event comes (its time) and goes (its time and the size), and the events in
`(instant - size, instant]` of each (A2). Not here: when exactly an instant closed (timeops/windows/segment.py).

An event belongs to instants from its own time to just before it goes, and others of its group make instants on the
way. The windows of two instants overlap, so that an event is in as many results as its group has instants in a size.
"""

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import open_to
from tidemark.timeops.events.adjustment import with_both_ends
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.segment import (
    BY_END,
    END,
    ENDS,
    FILTERED,
    FLUSHED_WINDOWS,
    FRESH,
    MISSED,
    NO_ENDS,
    RANK,
    Rank,
    WindowSegment,
    closed_to,
    closing_watermarks,
    flushed_at,
    flushed_between,
    group_names,
    late_of,
    left_out,
    may_be_late,
    place,
    takes_part,
    with_end_once,
    with_flushed_windows,
    with_groups,
)

_MADE = "__tm_made"
"""STRUCT<moment, fresh> of an instant: of the first of the events that make it."""
_CELL = "__tm_cell"  # instants and events meet in segments of one size


@dataclass(frozen=True)
class SlidingWindows:
    """Sliding windows; see kinds.WindowKind for what each method is."""

    window: WindowSpec
    merges: ClassVar[bool] = False
    result_keys: ClassVar[tuple[str, ...]] = (*BY_END, c.WATERMARK)
    needs_after_flush: ClassVar[bool] = True
    """True, as the events of what a flush closed still count at later instants."""

    @property
    def needs_others(self) -> bool:
        """True unless results are revised: an event is kept with the names of the windows that need it."""
        return not self.window.revises

    def start_of(self, end_us: str) -> str:
        """Return the start of the window of an instant."""
        return c.shifted(end_us, -self.window.size_us)

    def place(self, events: DataFrame) -> DataFrame:
        """Add of the windows that may hold each event the first and the last, as far as it is in or missed them.

        Others of the group make the instants in between, so the last possible one decides about the event.
        """
        first, last = c.T_FINAL, c.shifted(c.T_FINAL, self.window.size_us - 1)
        if FLUSHED_WINDOWS not in events.columns:
            return place(events, f"array({first}, {last})", self.window)
        placed = events.withColumn(FILTERED, F.expr(left_out(Columns.of(events), self.window)))
        is_closed = closed_to(placed, last, self.window)
        some = f"({closed_to(placed, first, self.window)} OR {flushed_between(first, last)})"
        missed = (
            f"CASE WHEN {FILTERED} THEN {NO_ENDS} WHEN {is_closed} THEN array({first}, {last}) "
            f"WHEN {some} THEN array({first}) ELSE {NO_ENDS} END"
        )
        ends = f"IF({FILTERED} OR {is_closed}, {NO_ENDS}, array({last}))"
        return c.with_sql(placed, {MISSED: missed, ENDS: ends})

    def placed(self, _segment: WindowSegment, /) -> None:
        """Return None: an event is in as many windows as its group has instants, too many to keep."""

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Return the events of the instants that close in the segment with `_watermark`, a row per instant."""
        passing = self._passing(with_flushed_windows(segment.events, segment.flushed_windows, self.window), segment)
        made = _made_by(passing, self.window).select(c.TIMELINE, *group_names(self.window), END).distinct()
        closing = closing_watermarks(segment.closing(made, self.window), segment.adjusted, self.window)
        return _held_at(_with_cell(closing, self.window), passing, self.window, c.WATERMARK)

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:  # noqa: ARG002
        """Return the results, which have their `_watermark`."""
        return results

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Return the events of the instants that had not closed before the segment, a row per instant.

        An instant that a late event makes holds events that came before there was any.
        """
        passing = self._passing(
            with_flushed_windows(segment.fresh_and_known, segment.flushed_windows, self.window), segment
        )
        moment = rank(f"unix_micros({c.CLOCK})", c.W_BEFORE, c.SEQ)
        made = _made_by(passing, self.window, c.SEQ, c.CLOCK, FRESH).withColumn("moment", F.expr(moment))
        first = F.expr(f"min(struct(moment, {FRESH} AS fresh))").alias(_MADE)
        by_instant = made.groupBy(c.TIMELINE, *group_names(self.window), END).agg(first)
        instants = with_both_ends(by_instant, segment.adjusted)
        is_open = open_to(END, c.W_START, self.window)
        open_instants = _with_cell(instants.where(is_open), self.window)
        held = _held_at(open_instants, passing, self.window, _MADE, c.W_START, c.W_END)
        held = held.withColumn(RANK, F.expr(f"greatest({moment}, {_MADE}.moment)"))
        is_fresh = f"{FRESH} OR ({_MADE}.fresh AND {RANK} = {_MADE}.moment)"
        return held.withColumn(FRESH, F.expr(is_fresh)).drop(_MADE)

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Return the events that came after their last instant: alone they would have made the first."""
        events = may_be_late(segment.adjusted.accepted, segment.flushed_windows, self.window)
        return late_of(self.place(events), self.window).withColumn(MISSED, F.expr(f"slice({MISSED}, 1, 1)"))

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Add BOOLEAN `into`: an instant is still open at which the event counts, or at which it is gone."""
        is_open = open_to(c.shifted(c.T_FINAL, self.window.size_us), c.W_END, self.window)
        if self.needs_others:
            events = with_flushed_windows(events, segment.flushed_windows, self.window)
            is_open = f"{_is_in_one(events, self.window)} AND {is_open}"
        return with_end_once(events, segment.adjusted).withColumn(into, F.expr(is_open)).drop(FLUSHED_WINDOWS)

    def needed_from(self, watermark_us: int) -> int:
        """Return an instant: no event before it is in a window that is open at the watermark."""
        return watermark_us - self.window.size_us - self.window.closes_after_us

    def _passing(self, events: DataFrame, segment: WindowSegment) -> DataFrame:
        """Return the events in a window, by group, computed once: they make the instants and are held at them."""
        return segment.execution.materialize(with_groups(events.where(_is_in_one(events, self.window)), self.window))


def _is_in_one(events: DataFrame, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN: the event takes part, and did not come after the last instant that could hold it."""
    last = c.shifted(c.T_FINAL, window.size_us - 1)
    is_in = f"{takes_part(Columns.of(events), window)} AND {open_to(last, c.W_BEFORE, window)}"
    if FLUSHED_WINDOWS in events.columns:  # events that came before the flush stay in what it left open
        is_in += f" AND NOT exists({FLUSHED_WINDOWS}, __tm_f -> __tm_f.`end` = {last} AND {c.SEQ} > __tm_f.seq)"
    return f"({is_in})"


def _made_by(passing: DataFrame, window: WindowSpec, *columns: str) -> DataFrame:
    """Return the two instants at which each event changes its window, as far as they were open when it came.

    What a flush closed before stays closed; its events still count at the instants of others after it.
    """
    changes = f"explode(array({c.T_FINAL}, {c.shifted(c.T_FINAL, window.size_us)})) AS {END}"
    flushed = [FLUSHED_WINDOWS] if FLUSHED_WINDOWS in passing.columns else []
    made = passing.selectExpr(c.TIMELINE, *group_names(window), c.W_BEFORE, *columns, *flushed, changes)
    is_open = f"{open_to(END, c.W_BEFORE, window)} AND NOT {flushed_at(made, END)}"
    return made.where(is_open).drop(*flushed)


def _with_cell(instants: DataFrame, window: WindowSpec) -> DataFrame:
    return instants.withColumn(_CELL, F.expr(c.floor_to(END, window.size_us)))


def _held_at(instants: DataFrame, passing: DataFrame, window: WindowSpec, *columns: str) -> DataFrame:
    """Return the events in `(instant - size, instant]` that came when it was open, with `__tm_end` and more."""
    cell = c.floor_to(c.T_FINAL, window.size_us)
    near = passing.withColumn(_CELL, F.expr(f"explode(array({cell}, {c.shifted(cell, window.size_us)}))"))
    end, t = f"at.{END}", f"event.{c.T_FINAL}"
    same = c.same_in("at", "event", [c.TIMELINE, *group_names(window), _CELL])
    inside = f"{t} <= {end} AND {t} > {c.shifted(end, -window.size_us)}"
    is_open = open_to(end, f"event.{c.W_BEFORE}", window)
    joined = instants.alias("at").join(near.alias("event"), same & F.expr(f"{inside} AND {is_open}"))
    return joined.selectExpr("event.*", end, *[f"at.{name}" for name in columns]).drop(_CELL)
