"""Windowed aggregation over a stretch of the log: results of the windows that close in it, and late events.

Here: what a closed window gives, which events are needed on. Not here: who is in a window and when it closed, which
differs by kind (gridded.py, sessions.py); storage of open events.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timeops import gridded, sessions
from timeops.adjustment import Adjusted
from timeops.columns import LATENESS, TIMELINE, W_BEFORE, W_SET_BY, WATERMARK, to_instant
from timeops.contents import END, START, group_names
from timeops.spec import TimeSpec, WindowSpec

_OPEN_IN = "__open_in"


def window_results(
    adjusted: Adjusted, open_events: DataFrame, window: WindowSpec, *, flushed: bool = False
) -> DataFrame:
    """Final results of the windows that close in a stretch of the log.

    Args:
        adjusted: The stretch.
        open_events: Events of earlier stretches that `still_needed` kept, or for sessions `in_open_sessions`.
        window: The window.
        flushed: The stretch ends with a flushing end of input: every window closes.

    Returns:
        One row per window and group that holds an event and passes `having`: `window_start`, `window_end`, group
        columns, aggregates, `_revision` INT 0, `_is_final` true, `_watermark` (just after the item that closed it;
        null where the flush did).
    """
    events = all_events(adjusted, open_events)
    if window.kind == "session":
        closed = sessions.closed_contents(events, adjusted, window, flushed=flushed)
        results = sessions.with_watermarks(_aggregated(closed, sessions.KEYS, window), adjusted, window)
    else:
        closed = gridded.closed_contents(events, adjusted, window, flushed=flushed)
        results = gridded.with_ends(_aggregated(closed, gridded.KEYS, window), closed, adjusted, window)
    shaped = results.select(
        to_instant(START).alias("window_start"),
        to_instant(END).alias("window_end"),
        *[F.col(value).alias(name) for value, name in zip(group_names(window), window.group_columns, strict=True)],
        *window.aggregates,
        F.lit(0).alias("_revision"),
        F.lit(True).alias("_is_final"),
        to_instant(WATERMARK).alias(WATERMARK),
    )
    return shaped if window.having is None else shaped.where(window.having)


def _aggregated(closed: DataFrame, keys: tuple[str, ...], window: WindowSpec) -> DataFrame:
    aggregates = [F.expr(text).alias(name) for name, text in window.aggregates.items()]
    return closed.groupBy(*keys, *group_names(window)).agg(*aggregates)


def all_events(adjusted: Adjusted, open_events: DataFrame) -> DataFrame:
    """The accepted events of a stretch and those of earlier ones that windows still need, which were on time."""
    known = open_events.withColumn(W_BEFORE, F.lit(None).cast("bigint"))
    return known.unionByName(adjusted.accepted, allowMissingColumns=True)


def late_for_windows(adjusted: Adjusted, open_events: DataFrame | None, window: WindowSpec) -> DataFrame:
    """Accepted events of a stretch for which every window had closed when they came.

    Args:
        adjusted: The stretch.
        open_events: As for `window_results`; None for windows on a grid, which do not ask for them.
        window: The window.

    Returns:
        The events with `__missed` (starts), `__w_before`, `__w_set_by`, and `__lateness_us`: the least extra
        allowed lateness that would have let the event into its last window; null where the clock closed it.
    """
    if window.kind == "session":
        events = adjusted.accepted if open_events is None else all_events(adjusted, open_events)
        late = sessions.late_events(events, window, adjusted.rules.time)
    else:
        late = gridded.late_events(adjusted.accepted, window)
    if not adjusted.rules.clock_moves:
        return late
    by_events = F.when(F.col(W_SET_BY).isNotNull(), F.col(LATENESS))  # no lateness lets in what the clock has passed
    return late.withColumn(LATENESS, by_events)


def still_needed(events: DataFrame, state: DataFrame, windows: tuple[WindowSpec, ...]) -> DataFrame:
    """Events of which some window on a grid has not closed at the end of a stretch.

    Args:
        events: Accepted events with `_timeline` and `__timestamp`.
        state: The timelines' state after the stretch.
        windows: The spec's windows on a grid.
    """
    known = events.join(state.select(TIMELINE, F.col("watermark").alias("__w_end")), TIMELINE, "left")
    open_somewhere = F.lit(False)
    for window in windows:
        open_somewhere = open_somewhere | gridded.is_open(window, F.col("__w_end"))
    return known.where(open_somewhere).drop("__w_end")


def in_open_sessions(
    events: DataFrame, state: DataFrame, windows: tuple[WindowSpec, ...], time: TimeSpec
) -> DataFrame:
    """Events whose session has not closed at the end of a stretch.

    Args:
        events: What this function gave after the stretch before, and the accepted events: `all_events`.
        state: The timelines' state after the stretch.
        windows: The spec's session windows.
        time: The spec's `time` section.

    Returns:
        The events, with the names of the windows in `sessions.SESSIONS`.
    """
    marked = events.withColumn(_OPEN_IN, F.array().cast("array<string>"))
    for window in windows:
        marked = sessions.with_open_sessions(marked, state, window, time, _OPEN_IN)
    renamed = marked.drop(sessions.SESSIONS).withColumnRenamed(_OPEN_IN, sessions.SESSIONS)
    return renamed.where(F.size(sessions.SESSIONS) > 0)
