"""Windows on a fixed grid over a segment of the log: which events they hold when they close, and late events.

Here: windows in which an event is by its own time alone; which events sliding windows need. Not here: the grid
(grid.py), what a closed window gives (results.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import LATENESS, T_FINAL, TIMELINE, W_BEFORE
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time, ends_of, last_end_of, start_of
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.closing import REACHED, closing_watermarks
from tidemark.timeops.windows.membership import (
    BY_FLUSH,
    END,
    FILTERED,
    FLUSHED,
    MISSED,
    START,
    flushed_at,
    left_out,
    with_groups,
)
from tidemark.timeops.windows.segment_ends import W_END, W_START, with_both_ends

KEYS: tuple[str, ...] = (TIMELINE, END)
"""Which window of its group a row is of."""

ENDS = "__ends"  # windows the event is in


def place(accepted: DataFrame, window: WindowSpec) -> DataFrame:
    """Adds the windows that each accepted event is in, and those that it missed.

    Args:
        accepted: Events with `__timestamp` and `__w_before` (microseconds; null: on time for certain), and where the
            pipeline was reopened with `__flushed`.
        window: The window.

    Returns:
        `accepted` with `__filtered` BOOLEAN (the window leaves the event out, see contents.py), `__ends` and
        `__missed` ARRAY<BIGINT>, ends of windows (both empty when filtered, or in a gap).
    """
    nothing = F.array().cast("array<bigint>")
    placed = accepted.withColumn(FILTERED, left_out(accepted, window))
    placed = placed.withColumn("__all", F.when(F.col(FILTERED), nothing).otherwise(ends_of(F.col(T_FINAL), window)))
    if FLUSHED in accepted.columns:
        return _placed_beside_flushed(placed, window).drop("__all")
    closed = F.col(W_BEFORE).isNotNull()
    missed = F.filter("__all", lambda end: close_time(end, window) <= F.col(W_BEFORE))
    is_open = F.filter("__all", lambda end: close_time(end, window) > F.col(W_BEFORE))
    return placed.withColumns(
        {
            MISSED: F.when(closed, missed).otherwise(nothing),
            ENDS: F.when(closed, is_open).otherwise(F.col("__all")),
        }
    ).drop("__all")


def _placed_beside_flushed(placed: DataFrame, window: WindowSpec) -> DataFrame:
    """Adds `__ends` and `__missed` where a flush may have closed windows before."""

    def is_closed(end: Column) -> Column:
        by_watermark = F.coalesce(close_time(end, window) <= F.col(W_BEFORE), F.lit(False))
        return by_watermark | flushed_at(placed, end)

    if window.kind != "sliding":
        is_open = F.filter("__all", lambda end: ~is_closed(end))
        return placed.withColumns({MISSED: F.filter("__all", is_closed), ENDS: is_open})
    nothing = F.array().cast("array<bigint>")
    first, last = F.get("__all", F.lit(0)), F.get("__all", F.lit(1))
    # Others of the group made instants that were flushed; the last possible one decides whether the event goes on.
    some = is_closed(first) | F.exists(FLUSHED, lambda one: (one["end"] >= first) & (one["end"] <= last))
    goes_on = ~F.col(FILTERED) & ~is_closed(last)
    missed = F.when(~F.col(FILTERED) & is_closed(last), F.col("__all")).when(goes_on & some, F.array(first))
    ends = F.when(goes_on, F.array(last)).otherwise(nothing)
    return placed.withColumns({MISSED: missed.otherwise(nothing), ENDS: ends})


def closed_contents(events: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    """Events of the windows that close in the segment, one row per window that holds them.

    Args:
        events: Events that earlier segments kept, with null `__w_before`, and the accepted ones of this.
        adjusted: The segment.
        window: The window.
        flushed: As for `windows.window_results`.

    Returns:
        The rows with `__end`, and the group columns of `contents.with_groups`.
    """
    if window.overlaps or FLUSHED in events.columns:
        each = place(events, window).withColumn(END, F.explode(ENDS)).drop(ENDS, MISSED, FILTERED)
    else:
        each = _in_its_window(events, window)
    return with_groups(closes_in(each, adjusted, window, flushed=flushed), window)


def _in_its_window(events: DataFrame, window: WindowSpec) -> DataFrame:
    """The events that are in a window, with its `__end`, where an event is in one at most: `place` in short."""
    passing = events.where(~left_out(events, window)).withColumn(END, last_end_of(F.col(T_FINAL), window))
    is_open = F.coalesce(close_time(F.col(END), window) > F.col(W_BEFORE), F.lit(True))
    return passing.where(F.col(END).isNotNull() & is_open)


def closes_in(rows: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    """The rows by KEYS whose window closes in the segment."""
    known = with_both_ends(rows, adjusted)
    closes_at = close_time(F.col(END), window)
    not_before = F.coalesce(closes_at > F.col(W_START), F.lit(True))
    by_now = F.lit(True) if flushed else closes_at <= F.col(W_END)
    return known.where(not_before & by_now).drop(W_START, W_END)


def with_starts(results: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Adds to results by KEYS `__start`, and `_watermark` BIGINT, just after the item that closed the window.

    Args:
        results: The rows.
        adjusted: The segment.
        window: The window.
    """
    wanted = results.select(TIMELINE, END).distinct()
    dated = results.join(closing_watermarks(wanted, adjusted, window).drop(REACHED), [TIMELINE, END], "left")
    return dated.withColumn(START, start_of(F.col(END), window))


def late_events(events: DataFrame, window: WindowSpec) -> DataFrame:
    """Events for which every window had closed when they came, with `__missed` (ends) and `__lateness_us`.

    Where they have `__flushed`, also `__by_flush`: the watermark had not closed the last of them, so `__lateness_us`
    is null.
    """
    reopened = FLUSHED in events.columns
    late = place(events if reopened else events.where(F.col(W_BEFORE).isNotNull()), window).where(missed_all())
    last = close_time(F.element_at(MISSED, -1), window)
    late = late.withColumn(LATENESS, F.col(W_BEFORE) - last + F.lit(1))
    if reopened:
        by_flush = F.coalesce(last > F.col(W_BEFORE), F.lit(True))
        late = late.withColumns({BY_FLUSH: by_flush, LATENESS: F.when(~by_flush, F.col(LATENESS))})
    # Of sliding windows the event would have made one by itself, the first.
    return late.withColumn(MISSED, F.slice(MISSED, 1, 1)) if window.kind == "sliding" else late


def missed_all() -> Column:
    """BOOLEAN: no window is left for the event, of one or more that it belongs to (`window_closed`)."""
    return (F.size(MISSED) > 0) & (F.size(ENDS) == 0)


def is_open(window: WindowSpec, watermark_us: Column) -> Column:
    """BOOLEAN: some window that holds the event's time is not closed at a watermark; null is before the first."""
    closes_at = close_time(last_end_of(F.col(T_FINAL), window), window)
    return closes_at.isNotNull() & F.coalesce(closes_at > watermark_us, F.lit(True))
