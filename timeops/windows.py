"""Windowed aggregation over a stretch of the log: results of the windows that close in it, and late events.

Here: who is in a window, what a closed window gives, which events are needed on. Not here: the grid (grids.py),
when exactly a window closed (closing.py), storage of open events.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.adjustment import Adjusted
from timeops.closing import closing_watermarks
from timeops.columns import LATENESS, T_FINAL, TIMELINE, W_BEFORE, W_SET_BY, WATERMARK, to_instant
from timeops.grids import close_time, last_close_time, starts_of
from timeops.safely import null_if_it_fails
from timeops.spec import WindowSpec

STARTS = "__starts"  # windows the event is in
MISSED = "__missed"  # windows it would be in, had they not closed
FILTERED = "__filtered"
START = "__start"


def place(accepted: DataFrame, window: WindowSpec) -> DataFrame:
    """Adds the windows that each accepted event is in, and those that it missed.

    Args:
        accepted: Events with `__timestamp` and `__w_before` (microseconds; null: on time for certain).
        window: The window.

    Returns:
        `accepted` with `__filtered` BOOLEAN (the window's `where` is not true), `__starts` and `__missed`
        ARRAY<BIGINT> (both empty when filtered, or in a gap).
    """
    passes = F.lit(True) if window.where is None else null_if_it_fails(accepted, window.where)
    nothing = F.array().cast("array<bigint>")
    placed = accepted.withColumn(FILTERED, ~F.coalesce(passes, F.lit(False)))
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


def missed_all() -> Column:
    """BOOLEAN: no window is left for the event, of one or more that it belongs to (`window_closed`)."""
    return (F.size(MISSED) > 0) & (F.size(STARTS) == 0)


def window_results(
    adjusted: Adjusted, open_events: DataFrame, window: WindowSpec, *, flushed: bool = False
) -> DataFrame:
    """Final results of the windows that close in a stretch of the log.

    Args:
        adjusted: The stretch.
        open_events: Events of earlier stretches that `still_needed` kept.
        window: The window.
        flushed: The stretch ends with a flushing end of input: every window closes.

    Returns:
        One row per window and group that holds an event and passes `having`: `window_start`, `window_end`, group
        columns, aggregates, `_revision` INT 0, `_is_final` true, `_watermark` (just after the item that closed it;
        null where the flush did).
    """
    known = open_events.withColumn(W_BEFORE, F.lit(None).cast("bigint"))
    both = known.unionByName(adjusted.accepted, allowMissingColumns=True)
    closed = _closed_contents(place(both, window), adjusted, window, flushed=flushed)
    groups = {f"__group{i}": expression for i, (_, expression) in enumerate(window.group_expressions)}
    contents = closed.withColumns({name: null_if_it_fails(closed, e) for name, e in groups.items()})
    aggregates = [F.expr(text).alias(name) for name, text in window.aggregates.items()]
    results = contents.groupBy(TIMELINE, START, *groups).agg(*aggregates)
    wanted = closed.select(TIMELINE, START).distinct()
    dated = results.join(closing_watermarks(wanted, adjusted, window), [TIMELINE, START], "left")
    shaped = dated.select(
        to_instant(START).alias("window_start"),
        to_instant(F.col(START) + F.lit(window.size_us)).alias("window_end"),
        *[F.col(f"__group{i}").alias(name) for i, name in enumerate(window.group_columns)],
        *window.aggregates,
        F.lit(0).alias("_revision"),
        F.lit(True).alias("_is_final"),
        to_instant(WATERMARK).alias(WATERMARK),
    )
    return shaped if window.having is None else shaped.where(window.having)


def _closed_contents(placed: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    """Events of the windows that close in the stretch, one row per window that holds them, with `__start`."""
    before = adjusted.before.select(TIMELINE, F.col("watermark").alias("__w_start"))
    after = adjusted.state.select(TIMELINE, F.col("watermark").alias("__w_end"))
    marked = placed.join(before, TIMELINE, "left").join(after, TIMELINE, "left")
    each = marked.withColumn(START, F.explode(STARTS))
    closes_at = close_time(F.col(START), window)
    not_before = F.coalesce(closes_at > F.col("__w_start"), F.lit(True))
    by_now = F.lit(True) if flushed else closes_at <= F.col("__w_end")
    return each.where(not_before & by_now).drop("__w_start", "__w_end", STARTS, MISSED, FILTERED)


def late_for_windows(adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Accepted events of a stretch for which every window had closed when they came.

    Returns:
        The events with `__missed` (starts), `__w_before`, `__w_set_by`, and `__lateness_us`: the least extra
        allowed lateness that would have let the event into its last window; null where the clock closed it.
    """
    behind = adjusted.accepted.where(F.col(W_BEFORE).isNotNull())
    placed = place(behind, window)
    late = placed.where(missed_all())
    last = close_time(F.element_at(MISSED, -1), window)
    lateness = F.col(W_BEFORE) - last + F.lit(1)
    if adjusted.rules.clock_moves:  # no lateness lets in what the clock has passed
        lateness = F.when(F.col(W_SET_BY).isNotNull(), lateness)
    return late.withColumn(LATENESS, lateness)


def still_needed(events: DataFrame, state: DataFrame, windows: tuple[WindowSpec, ...]) -> DataFrame:
    """Events of which some window has not closed at the end of a stretch.

    Args:
        events: Accepted events with `_timeline` and `__timestamp`.
        state: The timelines' state after the stretch.
        windows: The spec's windows.
    """
    known = events.join(state.select(TIMELINE, F.col("watermark").alias("__w_end")), TIMELINE, "left")
    open_somewhere = F.lit(False)
    for window in windows:
        closes_at = last_close_time(F.col(T_FINAL), window)
        open_here = closes_at.isNotNull() & F.coalesce(closes_at > F.col("__w_end"), F.lit(True))
        open_somewhere = open_somewhere | open_here
    return known.where(open_somewhere).drop("__w_end")
