"""Aligned windows (tumbling, hopping, cumulative, snapshot) over a segment of the log.

Here: windows in which an event is by its own time alone: which hold it, what they hold when they close, late events.
Not here: the arithmetic of their ends (grid.py), windows that overlap much, which are added up by slices (slices.py).
"""

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, SEQ, T_FINAL, W_BEFORE, W_END, W_START, to_us
from tidemark.timeops.events.adjustment import with_both_ends
from tidemark.timeops.grid import close_time, ends_of, last_end_of, needed_from, start_of
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows import slices
from tidemark.timeops.windows.aggregates import results_of
from tidemark.timeops.windows.dating import with_first_watermarks
from tidemark.timeops.windows.drained import may_be_late, told_of
from tidemark.timeops.windows.membership import (
    BY_END,
    DRAINED,
    END,
    ENDS,
    FILTERED,
    MISSED,
    RANK,
    START,
    Rank,
    late_of,
    left_out,
    place,
    with_groups,
)
from tidemark.timeops.windows.segment import WindowSegment, with_end_once


@dataclass(frozen=True)
class AlignedWindows:
    """Windows on a grid, and snapshots; see kinds.WindowKind for what each method is."""

    window: WindowSpec
    keys: ClassVar[tuple[str, ...]] = BY_END
    merges: ClassVar[bool] = False
    needs_others: ClassVar[bool] = False
    needs_after_flush: ClassVar[bool] = False
    reach_us: ClassVar[int] = 0

    def start_of(self, end_us: Column) -> Column:
        """Return the start of the window with this end."""
        return start_of(end_us, self.window)

    def with_start(self, rows: DataFrame) -> DataFrame:
        """Add `__tm_start` to rows with `__tm_end`."""
        return rows.withColumn(START, self.start_of(F.col(END)))

    def place(self, events: DataFrame) -> DataFrame:
        """Add the windows that each event is in, and the windows that it missed: membership.place."""
        return place(events, ends_of(F.col(T_FINAL), self.window), self.window)

    def placed(self, _segment: WindowSegment, /) -> None:
        """Return None: an event is placed as cheaply as it is read."""

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Return the events of the windows that close in the segment, one row per window that holds them."""
        events = told_of(segment.events, segment.drained, self.window)
        return with_groups(segment.closing(self._in_windows(events), self.window), self.window)

    def closed_results(self, segment: WindowSegment) -> DataFrame:
        """Return the results of the windows that close in the segment, computed once: they are read again."""
        events = told_of(segment.events, segment.drained, self.window)
        partials = slices.partials_by_slice(events, self.window)
        if partials is not None:
            found = slices.sliced_results(events, segment, self.window, partials)
        else:
            found = results_of(self.closed_contents(segment), self.keys, self.window)
        return segment.materialize(found)

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:
        """Add `__tm_start` and `_watermark`, just after the item that closed the window."""
        return self.with_start(with_first_watermarks(results, segment.adjusted, self.window, are_few=segment.are_few))

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Return the events of the windows that had not closed before the segment, each from its own moment on."""
        events = told_of(segment.fresh_and_known, segment.drained, self.window)
        placed = self.place(events).withColumn(END, F.explode(ENDS)).drop(ENDS, MISSED, FILTERED)
        known = with_both_ends(placed, segment.adjusted)
        is_open = F.coalesce(close_time(F.col(END), self.window) > F.col(W_START), F.lit(True))
        own = rank(to_us(CLOCK), F.col(W_BEFORE), F.col(SEQ))
        return with_groups(known.where(is_open), self.window).withColumn(RANK, own)

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Return the events for which every window had closed when they came."""
        events = may_be_late(segment.adjusted.accepted, segment.drained, self.window)
        return late_of(self.place(events), self.window)

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Add BOOLEAN `into`: some window that holds the event's time is not closed after the segment."""
        closes_at = close_time(last_end_of(F.col(T_FINAL), self.window), self.window)
        is_open = closes_at.isNotNull() & F.coalesce(closes_at > F.col(W_END), F.lit(True))
        return with_end_once(events, segment.adjusted).withColumn(into, is_open)

    def needed_from(self, watermark_us: int) -> int:
        """Return an instant: no event before it is in a window that is open at the watermark."""
        return needed_from(watermark_us, self.window)

    def _in_windows(self, events: DataFrame) -> DataFrame:
        """Return the events with the `__tm_end` of each of their windows; simpler where it is in one at most."""
        if self.window.overlaps or DRAINED in events.columns:
            return self.place(events).withColumn(END, F.explode(ENDS)).drop(ENDS, MISSED, FILTERED)
        passing = events.where(~left_out(events, self.window))
        passing = passing.withColumn(END, last_end_of(F.col(T_FINAL), self.window))
        is_open = F.coalesce(close_time(F.col(END), self.window) > F.col(W_BEFORE), F.lit(True))
        return passing.where(F.col(END).isNotNull() & is_open)
