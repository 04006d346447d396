"""Windows that depend on nothing but an instant: which of them hold it, where they end, when they close.

Here: tumbling and hopping windows (M, F), cumulative ones (F), snapshots (A2), local days, months and years; as SQL
for rows, in BIGINT microseconds, and as numbers of Python for plans. Of sliding windows and sessions the close time,
and the end of the last one that an event alone makes. Not here: what windows hold (timeops/windows/), wall clocks.

A window is named by its end, which no other window of its definition shares. Where the end belongs to the window
(`closed: right`, snapshots) an instant is in the window in which one microsecond earlier would be, were the end
outside. What is said for plans may say that too little closes, goes or stays, never too much.

Hopping and cumulative windows with a time zone are windows of the wall clock: an instant counts by `on_clock`, and
the name of a window is its end on the wall clock, as several may end at the instant at which an hour is skipped. Of
tumbling windows no two do, so their ends are instants.
"""

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.timeops.calendar.wall_clock import (
    WallClock,
    after_sql,
    begin_sql,
    begins_between,
    first_sql,
    floor_sql,
    shown_sql,
    spans_around,
)
from tidemark.timeops.columns import floor_to, shifted
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window_shape import LocalGrid
from tidemark.timeops.values.instants import NONE

Numbers = NDArray[Any]


def on_clock(instant_us: str, window: WindowSpec) -> str:
    """Return an instant as the grid of a window counts it: on the wall clock, where that names its windows."""
    return shown_sql(instant_us, _edges(window)) if window.is_on_wall_clock else instant_us


def instant_of_end(end_us: str, window: WindowSpec) -> str:
    """Return the instant at which the window with this end ends."""
    return first_sql(end_us, _edges(window)) if window.is_on_wall_clock else end_us


def instants_of_ends(ends: Numbers, window: WindowSpec) -> Numbers:
    """Return the numbers of `instant_of_end`."""
    if not window.is_on_wall_clock:
        return ends
    return WallClock.around(_edges(window).zone, ends).first(ends)


def ends_of(timestamp_us: str, window: WindowSpec) -> str:
    """Return ARRAY<BIGINT>: ends of the windows of a grid that hold an instant, earliest first; empty in a gap."""
    return ends_around(on_clock(shifted(timestamp_us, -window.ends_inside_us), window), window)


def ends_around(within: str, window: WindowSpec) -> str:
    """Return the same for an instant as `on_clock` returns it, were the ends outside."""
    first = _end_after(within, window)
    if window.kind == "cumulative":
        ends = f"sequence({first}, {_full_end(within, window)}, {window.end_step_us}L)"
        if not window.is_on_wall_clock:
            return ends
        # Of ends that the clocks skip the first counts: the others would be the same window.
        end, end_before = (instant_of_end(us, window) for us in ("__tm_e", f"__tm_e - {window.end_step_us}L"))
        return f"filter({ends}, __tm_e -> {end} > {end_before})"
    if window.kind != "hopping":
        return f"array({first})"
    most = -(-window.size_us // window.end_step_us)
    ends = f"transform(sequence(0L, {most - 1}L), __tm_step -> {first} + __tm_step * {window.end_step_us}L)"
    return f"filter({ends}, __tm_e -> __tm_e - {window.size_us}L <= {within})"


def start_of(end_us: str, window: WindowSpec) -> str:
    """Return the start of the window of a grid with this end."""
    if window.is_on_wall_clock:
        return first_sql(_start_of(end_us, window), _edges(window))
    if window.local_grid is not None:
        return begin_sql(shifted(end_us, -1), window.local_grid)
    return _start_of(end_us, window)


def _start_of(end_us: str, window: WindowSpec) -> str:
    if window.kind == "cumulative":
        return floor_to(shifted(end_us, -1), window.size_us, window.offset_us)
    return end_us if window.kind == "snapshot" else shifted(end_us, -window.size_us)


def last_end_of(timestamp_us: str, window: WindowSpec) -> str:
    """Return the end of the last window that an event needs; null in a gap.

    Of sliding windows this is where it is gone, which makes a result of the events that stay; of sessions where its
    own would end, at the latest where each event has its own gap.
    """
    if window.is_linked:
        return shifted(timestamp_us, window.reach_us)
    within = on_clock(shifted(timestamp_us, -window.ends_inside_us), window)
    if window.kind == "cumulative":
        return _full_end(within, window)
    if window.kind != "hopping":
        return _end_after(within, window)
    end = shifted(floor_to(within, window.end_step_us, window.offset_us), window.size_us)
    return f"IF({within} < {end}, {end}, NULL)"


def close_time(end_us: str, window: WindowSpec) -> str:
    """Return the lowest watermark at which a window is closed: its end and allowed lateness (M), or just after."""
    return shifted(instant_of_end(end_us, window), window.closes_after_us)


def open_to(end_us: str, watermark_us: str, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: a window is not closed at a watermark; before the first none is."""
    return f"coalesce({close_time(end_us, window)} > {watermark_us}, true)"


def close_asked(timestamp_us: str, window: WindowSpec, unit_us: int, gap_us: str | None = None) -> str:
    """Return the watermark with which the clock closes the last window that holds an instant (M); null in a gap.

    `gap_us` is how long the event keeps its session open, where each says so itself; null where it does not.
    """
    end = instant_of_end(last_end_of(timestamp_us, window), window)
    if gap_us is not None:
        end = f"({timestamp_us} + {gap_us})"
    return shifted(end, window.clock_closes_after_us(unit_us))


def last_closed(watermark_us: str, window: WindowSpec) -> str:
    """Return the end of the last window of the grid that is closed at a watermark."""
    return last_end(shifted(watermark_us, -window.closes_after_us), window)


def last_end(limit_us: str, window: WindowSpec) -> str:
    """Return the latest end on the grid that is at most a limit."""
    if window.local_grid is not None and not window.is_on_wall_clock:
        return begin_sql(limit_us, window.local_grid)
    return _last_end(on_clock(limit_us, window), window)


def _last_end(limit_us: str, window: WindowSpec) -> str:
    if window.end_step_us == 1:  # every instant is an end
        return limit_us
    return floor_to(limit_us, window.end_step_us, window.offset_us + window.size_us)


def end_after(limit_us: str, window: WindowSpec) -> str:
    """Return the first end on the grid after a limit."""
    return _end_after(on_clock(limit_us, window), window)


def _end_after(limit_us: str, window: WindowSpec) -> str:
    if window.local_grid is not None and not window.is_on_wall_clock:
        return after_sql(limit_us, window.local_grid)
    return shifted(_last_end(limit_us, window), window.end_step_us)


def ends_between(after_us: str, limit_us: str, window: WindowSpec) -> str:
    """Return ARRAY<BIGINT>: the ends on the grid after one limit and at most another, earliest first; null for none.

    There may be very many: see `count_between`. Of windows that are named on the wall clock it is not known.
    """
    grid = window.local_grid
    if grid is None:
        first, last = end_after(after_us, window), last_end(limit_us, window)
        return f"IF({first} <= {last}, sequence({first}, {last}, {window.end_step_us}L), NULL)"
    first, last = (floor_sql(shown_sql(us, grid), grid) for us in (after_us, limit_us))
    if grid.step_us is None:
        days = f"sequence(timestamp_micros({first}), timestamp_micros({last}), INTERVAL {grid.months} MONTH)"
        starts = f"transform({days}, __tm_day -> unix_micros(__tm_day))"
    else:
        starts = f"sequence({first}, {last}, {grid.step_us}L)"
    begins = f"transform(IF({first} <= {last}, {starts}, NULL), __tm_b -> {first_sql('__tm_b', grid)})"
    instants = f"array_distinct({begins})"
    return f"filter({instants}, __tm_e -> __tm_e > {after_us} AND __tm_e <= {limit_us})"


def count_between(after_us: str, limit_us: str, window: WindowSpec) -> str:
    """Return BIGINT: how many ends on the grid are after one limit and are at most another; below zero for none.

    Days and hours that a zone left out, in a year a few, count as well.
    """
    grid = window.local_grid
    if grid is None:
        first, last = last_end(after_us, window), last_end(limit_us, window)
        return f"CAST(({last} - {first}) / {window.end_step_us}L AS BIGINT)"
    starts = [floor_sql(shown_sql(limit, grid), grid) for limit in (after_us, limit_us)]
    if grid.step_us is not None:
        return f"CAST(({starts[1]} - {starts[0]}) / {grid.step_us}L AS BIGINT)"
    days = [f"to_date(timestamp_micros({start}))" for start in starts]
    months = [f"year({day}) * 12 + month({day})" for day in days]
    return f"CAST(({months[1]} - ({months[0]})) / {grid.months} AS BIGINT)"


def may_close_between(before_us: int | None, after_us: int | None, window: WindowSpec) -> bool:
    """Return whether some window may close when the watermark rises between two values; None is before the first."""
    if after_us is None or before_us == after_us:
        return False
    if before_us is None or not window.closes_on_grid:
        return True
    if window.local_grid is not None:
        watermarks = np.array([before_us, after_us]) - window.closes_after_us
        grid = _edges(window) if window.is_on_wall_clock else window.local_grid
        first, last = spans_around(watermarks, grid)[0].tolist()
        return bool(first != last)
    anchor = window.offset_us + window.size_us + window.closes_after_us
    return (before_us - anchor) // window.end_step_us < (after_us - anchor) // window.end_step_us


def needed_from(watermark_us: int, window: WindowSpec) -> int:
    """Return an instant, microseconds: no event before it is in a window of a grid that is open at the watermark.

    Events in a gap of hopping windows may be before or after it.
    """
    closes_up_to = watermark_us - window.closes_after_us
    if window.local_grid is not None:
        return closes_up_to - window.longest_us
    if window.kind == "snapshot":
        return closes_up_to
    first_open_end = window.offset_us + window.size_us
    first_open_end += ((closes_up_to - first_open_end) // window.end_step_us + 1) * window.end_step_us
    return first_open_end - window.size_us + window.ends_inside_us


def spans_at(us: int, window: WindowSpec) -> list[tuple[int, int]]:
    """Return start and end of the windows of a grid that hold an instant, earliest first; none in a gap.

    The numbers of `ends_of` and `start_of`, as instants.
    """
    within = us - window.ends_inside_us
    if window.kind == "snapshot":
        return [(us, us)]
    grid = window.local_grid
    if grid is None:
        return _spans_at(within, window)
    if not window.is_on_wall_clock:
        begin, end = spans_around(np.array([within]), grid)
        return [(int(begin[0]), int(end[0]))]
    clock = WallClock.around(grid.zone, np.array([within, within - window.longest_us, within + window.longest_us]))
    of_clock = np.array(_spans_at(int(clock.reached(np.array([within]))[0]), window)).reshape(-1, 2)
    return list(dict.fromkeys((int(start), int(end)) for start, end in clock.first(of_clock)))


def _spans_at(within: int, window: WindowSpec) -> list[tuple[int, int]]:
    size, step, offset = window.size_us, window.end_step_us, window.offset_us
    first = (within - offset - size) // step * step + offset + size + step
    if window.kind == "cumulative":
        start = (within - offset) // size * size + offset
        return [(start, end) for end in range(first, start + size + 1, step)]
    return [(end - size, end) for end in range(first, within + size + 1, step)]


def last_ends(us: Numbers, window: WindowSpec, gaps_us: Numbers | None = None) -> Numbers:
    """Return when the last window that each event needs ends, as `last_end_of` says; the lowest BIGINT in a gap.

    Args:
        us: Times of events, microseconds.
        window: The window.
        gaps_us: How long each keeps its session open, where they say so themselves; the lowest BIGINT where one does
            not.
    """
    if gaps_us is not None:
        return np.where(gaps_us == NONE, NONE, us + gaps_us)
    if window.is_linked or window.kind == "snapshot":
        return us + window.reach_us
    within = us - window.ends_inside_us
    if window.local_grid is None:
        return _last_ends(within, window)
    if not window.is_on_wall_clock:
        return spans_around(within, window.local_grid)[1]
    clock = WallClock.around(window.local_grid.zone, np.concatenate([within, within + window.longest_us]))
    ends = _last_ends(clock.reached(within), window)
    return np.where(ends == NONE, NONE, clock.first(ends))


def _last_ends(within: Numbers, window: WindowSpec) -> Numbers:
    period = window.end_step_us if window.kind == "hopping" else window.size_us
    end = (within - window.offset_us) // period * period + window.offset_us + window.size_us
    return np.where(within < end, end, NONE)


def ends_from(first_us: int, last_us: int, window: WindowSpec) -> Numbers:
    """Return the instants from one to another at which windows of a local grid end, in order."""
    grid = window.local_grid
    assert grid is not None  # others end at even distances
    if window.is_on_wall_clock:
        grid = LocalGrid(grid.zone, window.end_step_us, (window.offset_us + window.size_us) % window.end_step_us)
    return begins_between(first_us, last_us, grid)


def closed_from(before_us: int, window: WindowSpec) -> int:
    """Return the lowest watermark, microseconds, at which all windows that start before an instant are closed.

    A session counts as one event alone makes it: other events may join it.
    """
    return last_end_before(before_us, window) + window.closes_after_us


def last_end_before(before_us: int, window: WindowSpec) -> int:
    """Return the end of the last window that starts before an instant, microseconds."""
    if not window.closes_on_grid:
        return before_us - 1 + window.reach_us
    grid = window.local_grid
    if grid is None:
        return _end_of_last(before_us - 1, window)
    last = np.array([before_us - 1])
    if not window.is_on_wall_clock:
        return int(spans_around(last, grid)[1][0])
    clock = WallClock.around(grid.zone, np.concatenate([last, last + window.longest_us]))
    end = _end_of_last(int(clock.reached(last)[0]), window)
    return int(clock.first(np.array([end]))[0])


def _end_of_last(within: int, window: WindowSpec) -> int:
    starts = (within - window.offset_us) // window.start_step_us
    return starts * window.start_step_us + window.offset_us + window.size_us


def _full_end(within: str, window: WindowSpec) -> str:
    """Return the end of the longest cumulative window around an instant."""
    return shifted(floor_to(within, window.size_us, window.offset_us), window.size_us)


def _edges(window: WindowSpec) -> LocalGrid:
    """Return the grid of the wall clock on which all starts and ends of a window lie."""
    assert window.time_zone is not None  # it is on the wall clock
    step_us = gcd(window.size_us, window.end_step_us)
    return LocalGrid(window.time_zone, step_us, window.offset_us % step_us)
