"""Windows on a fixed grid over a stretch of the log: which events they hold when they close, and late events.

Here: tumbling and hopping windows, in which an event is by its own time alone. Not here: the grid (grids.py), what a
closed window gives (windows.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.adjustment import Adjusted
from timeops.closing import closing_watermarks
from timeops.columns import LATENESS, T_FINAL, TIMELINE, W_BEFORE
from timeops.contents import END, FILTERED, MISSED, START, filtered, with_groups
from timeops.grids import close_time, last_close_time, starts_of
from timeops.spec import WindowSpec

KEYS: tuple[str, ...] = (TIMELINE, START)
"""Which window of its group a row is of."""

STARTS = "__starts"  # windows the event is in


def place(accepted: DataFrame, window: WindowSpec) -> DataFrame:
    """Adds the windows that each accepted event is in, and those that it missed.

    Args:
        accepted: Events with `__timestamp` and `__w_before` (microseconds; null: on time for certain).
        window: The window.

    Returns:
        `accepted` with `__filtered` BOOLEAN (the window's `where` is not true), `__starts` and `__missed`
        ARRAY<BIGINT> (both empty when filtered, or in a gap).
    """
    nothing = F.array().cast("array<bigint>")
    placed = accepted.withColumn(FILTERED, filtered(accepted, window))
    placed = placed.withColumn("__all", F.when(F.col(FILTERED), nothing).otherwise(starts_of(F.col(T_FINAL), window)))
    closed = F.col(W_BEFORE).isNotNull()
    missed = F.filter("__all", lambda start: close_time(start, window) <= F.col(W_BEFORE))
    is_open = F.filter("__all", lambda start: close_time(start, window) > F.col(W_BEFORE))
    return placed.withColumns(
        {
            MISSED: F.when(closed, missed).otherwise(nothing),
            STARTS: F.when(closed, is_open).otherwise(F.col("__all")),
        }
    ).drop("__all")


def closed_contents(events: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    """Events of the windows that close in the stretch, one row per window that holds them.

    Args:
        events: Events that earlier stretches kept, with null `__w_before`, and the accepted ones of this.
        adjusted: The stretch.
        window: The window.
        flushed: As for `windows.window_results`.

    Returns:
        The rows with `__start`, and the group columns of `contents.with_groups`.
    """
    before = adjusted.before.select(TIMELINE, F.col("watermark").alias("__w_start"))
    after = adjusted.state.select(TIMELINE, F.col("watermark").alias("__w_end"))
    marked = place(events, window).join(before, TIMELINE, "left").join(after, TIMELINE, "left")
    each = marked.withColumn(START, F.explode(STARTS))
    closes_at = close_time(F.col(START), window)
    not_before = F.coalesce(closes_at > F.col("__w_start"), F.lit(True))
    by_now = F.lit(True) if flushed else closes_at <= F.col("__w_end")
    closed = each.where(not_before & by_now).drop("__w_start", "__w_end", STARTS, MISSED, FILTERED)
    return with_groups(closed, window)


def with_ends(results: DataFrame, closed: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Adds to results by KEYS `__end`, and `_watermark` BIGINT, just after the item that closed the window.

    Args:
        results: The rows.
        closed: What `closed_contents` gave for them.
        adjusted: The stretch.
        window: The window.
    """
    wanted = closed.select(TIMELINE, START).distinct()
    dated = results.join(closing_watermarks(wanted, adjusted, window), [TIMELINE, START], "left")
    return dated.withColumn(END, F.col(START) + F.lit(window.size_us))


def late_events(events: DataFrame, window: WindowSpec) -> DataFrame:
    """Events for which every window had closed when they came, with `__missed` (starts) and `__lateness_us`."""
    late = place(events.where(F.col(W_BEFORE).isNotNull()), window).where(missed_all())
    last = close_time(F.element_at(MISSED, -1), window)
    return late.withColumn(LATENESS, F.col(W_BEFORE) - last + F.lit(1))


def missed_all() -> Column:
    """BOOLEAN: no window is left for the event, of one or more that it belongs to (`window_closed`)."""
    return (F.size(MISSED) > 0) & (F.size(STARTS) == 0)


def is_open(window: WindowSpec, watermark_us: Column) -> Column:
    """BOOLEAN: some window that holds the event's time is not closed at a watermark; null is before the first."""
    closes_at = last_close_time(F.col(T_FINAL), window)
    return closes_at.isNotNull() & F.coalesce(closes_at > watermark_us, F.lit(True))
