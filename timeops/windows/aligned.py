"""Aligned windows (tumbling, hopping, cumulative, snapshot) over a segment of the log.

Here: windows in which an event is by its own time alone: which hold it, what they hold when they close, late events.
Not here: the arithmetic of their ends (timeops/calendar/grid.py).

Windows that overlap much are added up by slices, if their aggregates can be computed in parts: an event is added up
once, not once for each window that holds it. A slice is a span of time that every window holds whole or not at all.
An event may come when some of its windows have closed (by the watermark, or by a flush before the pipeline was
reopened). It is then not in all the windows of its slice: such events, which are few, are added up by window. Where a
window is very many slices, they are joined step by step: sixty slices are six spans of ten, and a span is joined once
for all windows that hold it.
"""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import gcd
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.calendar.grid import (
    end_after,
    ends_around,
    ends_of,
    last_end_of,
    needed_from,
    on_clock,
    open_to,
    start_of,
)
from tidemark.timeops.columns import CLOCK, SEQ, T_FINAL, TIMELINE, W_BEFORE, W_END, W_START, floor_to, shifted
from tidemark.timeops.events.adjustment import with_both_ends
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.aggregates import Partial, partials_of
from tidemark.timeops.windows.segment import (
    BY_END,
    END,
    ENDS,
    FILTERED,
    FLUSHED_WINDOWS,
    MISSED,
    RANK,
    Rank,
    WindowSegment,
    closing_watermarks,
    flushed_between,
    group_names,
    late_of,
    left_out,
    may_be_late,
    place,
    with_end_once,
    with_flushed_windows,
    with_groups,
)

MOST_ASSIGNED = 3
"""Up to this many windows per event, aggregate in each directly: slicing first costs more."""

MOST_JOINED = 10
"""As many spans are joined in one step: more of them take longer than another step."""

_SLICE = "__tm_slice"  # an instant in the slice, or in the first one of a span, as the grid counts it


def sliced_results(segment: WindowSegment, window: WindowSpec) -> DataFrame | None:
    """Return the aggregates of the windows that close in the segment, by `segment.BY_END` and `group_names`.

    None where slices are not worth it, or an aggregate has no parts: events go to windows one by one then.
    """
    if window.kind not in ("hopping", "cumulative") or window.size_us <= MOST_ASSIGNED * window.end_step_us:
        return None
    events = with_flushed_windows(segment.events, segment.flushed_windows, window)
    partials = None if window.top is not None else partials_of(window.aggregates, Columns.of(events))
    if partials is None:
        return None
    groups = group_names(window)
    parts = [column.alias(name) for partial in partials.values() for name, column in partial.parts.items()]
    passing = with_groups(events.where(f"NOT {left_out(Columns.of(events), window)}"), window)
    first = end_after(shifted(T_FINAL, -window.ends_inside_us), window)
    in_all = open_to(first, W_BEFORE, window)
    if FLUSHED_WINDOWS in passing.columns:
        last = last_end_of(T_FINAL, window)
        in_all += f" AND NOT {flushed_between(first, last)}"
    by_slice = passing.where(in_all).withColumn(_SLICE, F.expr(_slice_of(window))).groupBy(TIMELINE, _SLICE, *groups)
    of_slices = _given_to_windows(by_slice.agg(*parts), window, partials)
    late = place(passing.where(f"NOT ({in_all})"), ends_of(T_FINAL, window), window)
    late = late.withColumn(END, F.explode(ENDS))
    of_windows = late.groupBy(*BY_END, *groups).agg(*parts)
    both = segment.closing(of_slices.unionByName(of_windows), window)
    wholes = [partial.whole.alias(name) for name, partial in partials.items()]
    return both.groupBy(*BY_END, *groups).agg(*wholes)


def _given_to_windows(of_slices: DataFrame, window: WindowSpec, partials: dict[str, Partial]) -> DataFrame:
    """Return the slices, or spans of them, one row for each window that holds them: `__tm_end` for `__tm_slice`."""
    width = _width(window)
    if window.kind != "hopping" or width != window.end_step_us:  # else each slice begins a window
        ends = ends_around(shifted(_SLICE, -window.ends_inside_us), window)
        return of_slices.withColumn(END, F.expr(f"explode({ends})")).drop(_SLICE)
    *steps, last = factors(window.size_us // width, MOST_JOINED)
    joined = [column.alias(name) for partial in partials.values() for name, column in partial.joined.items()]
    spans, groups = of_slices, (TIMELINE, _SLICE, *group_names(window))
    for count in steps:
        in_spans = spans.withColumn(_SLICE, F.expr(f"explode({_starts(_SLICE, count, width)})"))
        spans, width = in_spans.groupBy(*groups).agg(*joined), count * width
    last_end = shifted(_SLICE, window.size_us - window.ends_inside_us)
    return spans.withColumn(END, F.expr(f"explode({_starts(last_end, last, width)})")).drop(_SLICE)


def factors(count: int, most: int) -> list[int]:
    """Return the factors of a number: each the largest up to the bound, or the smallest above it if there is none."""
    divisors, left = [], count
    while left > most:
        factor = next(factor for factor in chain(range(most, 1, -1), range(most + 1, left + 1)) if left % factor == 0)
        divisors.append(factor)
        left //= factor
    return divisors if left == 1 else [*divisors, left]


def _starts(instant_us: str, count: int, width_us: int) -> str:
    """Return ARRAY<BIGINT>: where spans of so many widths begin that hold what begins at an instant."""
    return f"array({', '.join(shifted(instant_us, -number * width_us) for number in range(count))})"


def _width(window: WindowSpec) -> int:
    return gcd(window.size_us, window.end_step_us)


def _slice_of(window: WindowSpec) -> str:
    """Return an instant that is in the same windows as the event: the first of its slice."""
    width, inside = _width(window), window.ends_inside_us
    within = on_clock(shifted(T_FINAL, -inside), window)
    return shifted(floor_to(within, width, window.offset_us % width), inside)


@dataclass(frozen=True)
class AlignedWindows:
    """Windows on a grid, and snapshots; see kinds.WindowKind for what each method is."""

    window: WindowSpec
    merges: ClassVar[bool] = False
    needs_others: ClassVar[bool] = False
    needs_after_flush: ClassVar[bool] = False
    result_keys: ClassVar[tuple[str, ...]] = BY_END

    def start_of(self, end_us: str) -> str:
        """Return the start of the window with this end."""
        return start_of(end_us, self.window)

    def place(self, events: DataFrame) -> DataFrame:
        """Add the windows that each event is in, and the windows that it missed: segment.place."""
        return place(events, ends_of(T_FINAL, self.window), self.window)

    def placed(self, _segment: WindowSegment, /) -> None:
        """Return None: an event is placed as cheaply as it is read."""

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Return the events of the windows that close in the segment, one row per window that holds them."""
        events = with_flushed_windows(segment.events, segment.flushed_windows, self.window)
        if self.window.overlaps or FLUSHED_WINDOWS in events.columns:
            placed = self.place(events).withColumn(END, F.explode(ENDS)).drop(ENDS, MISSED, FILTERED)
        else:  # an event is in one window at most
            passing = events.where(f"NOT {left_out(Columns.of(events), self.window)}")
            passing = passing.withColumn(END, F.expr(last_end_of(T_FINAL, self.window)))
            placed = passing.where(f"{END} IS NOT NULL AND {open_to(END, W_BEFORE, self.window)}")
        return with_groups(segment.closing(placed, self.window), self.window)

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:
        """Add `_watermark`, just after the item that closed the window."""
        add = partial(closing_watermarks, adjusted=segment.adjusted, window=self.window)
        return segment.execution.look_up(results, BY_END, add)

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Return the events of the windows that had not closed before the segment, each from its own moment on."""
        events = with_flushed_windows(segment.fresh_and_known, segment.flushed_windows, self.window)
        placed = self.place(events).withColumn(END, F.explode(ENDS)).drop(ENDS, MISSED, FILTERED)
        with_ends = with_both_ends(placed, segment.adjusted)
        moment = rank(f"unix_micros({CLOCK})", W_BEFORE, SEQ)
        still_open = with_ends.where(open_to(END, W_START, self.window))
        return with_groups(still_open, self.window).withColumn(RANK, F.expr(moment))

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Return the events for which every window had closed when they came."""
        events = may_be_late(segment.adjusted.accepted, segment.flushed_windows, self.window)
        return late_of(self.place(events), self.window)

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Add BOOLEAN `into`: some window that holds the event's time is not closed after the segment."""
        last = last_end_of(T_FINAL, self.window)
        is_open = f"{last} IS NOT NULL AND {open_to(last, W_END, self.window)}"
        return with_end_once(events, segment.adjusted).withColumn(into, F.expr(is_open))

    def needed_from(self, watermark_us: int) -> int:
        """Return an instant: no event before it is in a window that is open at the watermark."""
        return needed_from(watermark_us, self.window)
