"""Windowed aggregation over a segment of the log: results of the windows that close in it, and late events.

Here: what a closed window gives, which events are needed on. Not here: who is in a window and when it closed, which
differs by kind (aligned.py, sessions.py); storage of open events.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import LATENESS, W_BEFORE, W_SET_BY, WATERMARK, to_instant
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.expressions.aggregates import without_overflow
from tidemark.timeops.grid import start_of
from tidemark.timeops.materialize import as_it_is
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows import aligned, sessions, slices, sliding
from tidemark.timeops.windows.aggregates import passes_having, with_aggregates
from tidemark.timeops.windows.changes import LATE_EVENTS, PASSES
from tidemark.timeops.windows.closing_any_time import with_first_watermarks
from tidemark.timeops.windows.drained_windows import with_flushed
from tidemark.timeops.windows.gap_filling import REACHED_W, Span, empty_rows, given_watermark
from tidemark.timeops.windows.membership import BY_FLUSH, END, FLUSHED, OPEN_IN, START, group_names
from tidemark.timeops.windows.revisions import CAUSE, IS_FINAL, IS_TAKEN_BACK, REVISION, keys_of, revised_contents
from tidemark.timeops.windows.segment_ends import W_END, with_end
from tidemark.timeops.windows.watermark_at import met_by

_PLACE = "__place"
_STILL_OPEN_IN = "__still_open_in"


def window_results(
    adjusted: Adjusted,
    open_events: DataFrame,
    window: WindowSpec,
    *,
    seen: DataFrame | None = None,
    stay_closed: DataFrame | None = None,
    placed: DataFrame | None = None,
    only: Span | None = None,
    flushed: bool = False,
    keep: Callable[[DataFrame], DataFrame] = as_it_is,
) -> DataFrame:
    """Results that windows give in a segment of the log: of those that close, or revisions of one that does not.

    Args:
        adjusted: The segment.
        open_events: Events of earlier segments that `still_needed` kept; for sessions, and for sliding windows of
            one result, those of `in_open_windows`; for windows that revise their results with `__w_before` and
            `_clock` as they came.
        window: The window.
        seen: With `empty` the groups that earlier segments have seen, see seen_groups.py; by default none.
        stay_closed: Windows that an earlier flush closed, see flushed_windows.py; by default none.
        placed: What `sessions.sessions_of` gives of `all_events`, where it is known.
        only: Of windows with no event, those that are asked for; see `empty_windows.empty_rows`.
        flushed: The segment ends with a flushing end of input: every window closes.
        keep: Gives a frame with the same rows, computed once: what results are made of is read several times.

    Returns:
        One row per window and group that holds an event, or with `empty` is owed a row without, and passes `having`,
        and per revision; with `time.start_at` only of windows that begin there or later (A2): `window_start`,
        `window_end`, group columns, aggregates, `_revision` INT, `_is_final` BOOLEAN, `_watermark` (just after the
        item at which it was given; null where a flush gave it); with `history` also `_late_events`. Revisions that
        do not pass `having` are rows too, and so is what takes back the results of a session that is no more: where
        there may be such rows, `__passes` tells; see `passing`.
    """
    if stay_closed is not None and window.kind != "session":
        told = with_flushed(adjusted.accepted, stay_closed, window)
        adjusted, open_events = replace(adjusted, accepted=told), with_flushed(open_events, stay_closed, window)
    owed = partial(
        empty_rows,
        adjusted=adjusted,
        window=window,
        seen=seen,
        stay_closed=stay_closed,
        flushed=flushed,
        only=only,
    )
    events = all_events(adjusted, open_events)
    if window.revises:
        contents = revised_contents(open_events, adjusted, window, flushed=flushed, keep=keep)
        results = _with_revisions(contents, window)
        if window.empty:
            results = keep(results)
            final = results.where(IS_FINAL).drop(START, REVISION, IS_FINAL, WATERMARK, LATE_EVENTS)
            results = results.unionByName(_given_once(_dated(owed(final), adjusted, window), window))
    elif window.is_linked:
        if window.kind == "session":
            closed = sessions.closed_contents(
                events, adjusted, window, flushed=flushed, stay_closed=stay_closed, placed=placed
            )
        else:
            closed = sliding.closed_contents(events, adjusted, window, flushed=flushed, keep=keep)
        found = _aggregated(closed, sessions.KEYS, window)
        results = _given_once(with_first_watermarks(found, adjusted, window), window)
    else:
        found = keep(_of_grid(events, adjusted, window, flushed=flushed))
        if window.empty:
            found = keep(found.unionByName(owed(found), allowMissingColumns=True))
        results = _given_once(_dated(found, adjusted, window), window)
    return _shaped(results, window, adjusted.rules.time.start_us)


def _with_revisions(contents: DataFrame, window: WindowSpec) -> DataFrame:
    causes = [F.array_sort(F.collect_set(CAUSE)).alias(LATE_EVENTS)] if window.history else []
    keys = (*keys_of(window), REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK)
    found = _aggregated(contents, keys, window, *causes)
    if window.kind == "session":
        return found
    return found.drop(IS_TAKEN_BACK).withColumn(START, start_of(F.col(END), window))


def _dated(found: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Results of closed windows on a grid with their `__start`, and `_watermark` BIGINT as they were given."""
    dated = aligned.with_starts(found, adjusted, window)
    return dated.withColumn(WATERMARK, given_watermark(window)).drop(REACHED_W) if window.empty else dated


def _given_once(results: DataFrame, window: WindowSpec) -> DataFrame:
    causes = {LATE_EVENTS: F.array().cast("array<bigint>")} if window.history else {}
    return results.withColumns({REVISION: F.lit(0), IS_FINAL: F.lit(True), **causes})


def _of_grid(events: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    partials = slices.partials_by_slice(events, window)
    if partials is not None:
        return slices.sliced_results(events, adjusted, window, partials, flushed=flushed)
    closed = aligned.closed_contents(events, adjusted, window, flushed=flushed)
    return _aggregated(closed, aligned.KEYS, window)


def _shaped(results: DataFrame, window: WindowSpec, start_us: int | None) -> DataFrame:
    whole = results if start_us is None else results.where(F.col(START) >= F.lit(start_us))
    rows = whole.select(
        to_instant(START).alias("window_start"),
        to_instant(END).alias("window_end"),
        *[F.col(value).alias(name) for value, name in zip(group_names(window), window.group_columns, strict=True)],
        *window.aggregates,
        F.col(REVISION).alias("_revision"),
        F.col(IS_FINAL).alias("_is_final"),
        to_instant(WATERMARK).alias(WATERMARK),
        *([LATE_EVENTS] if window.history else []),
        *([IS_TAKEN_BACK] if window.may_take_back else []),
    )
    if window.may_take_back:
        return rows.withColumn(PASSES, passes_having(rows, window.having) & ~F.col(IS_TAKEN_BACK)).drop(IS_TAKEN_BACK)
    if window.having is None:
        return rows
    if window.revises:
        return rows.withColumn(PASSES, passes_having(rows, window.having))
    return rows.where(passes_having(rows, window.having))


def passing(results: DataFrame) -> DataFrame:
    """Those of the results that `window_results` gave which pass `having`."""
    return results.where(PASSES).drop(PASSES) if PASSES in results.columns else results


def last_revisions(results: DataFrame, window: WindowSpec) -> DataFrame:
    """Of each window and group the last of the results that `window_results` gave, without `_late_events`.

    It may be one that does not pass `having`.
    """
    if not window.revises:
        return results
    results = results.drop(LATE_EVENTS)
    keys = [F.col(f"`{name}`") for name in window.key_columns]
    later = Window.partitionBy(*keys).orderBy(F.desc("_revision"))
    return results.withColumn(_PLACE, F.row_number().over(later)).where(F.col(_PLACE) == 1).drop(_PLACE)


def _aggregated(closed: DataFrame, keys: tuple[str, ...], window: WindowSpec, *more: Column) -> DataFrame:
    aggregates = {name: without_overflow(text, closed) for name, text in window.aggregates.items()}
    return with_aggregates(closed.groupBy(*keys, *group_names(window)), aggregates, *more)


def all_events(adjusted: Adjusted, open_events: DataFrame) -> DataFrame:
    """The accepted events of a segment and those of earlier ones that windows still need, which were on time."""
    known = open_events.withColumn(W_BEFORE, F.lit(None).cast("bigint"))
    return known.unionByName(adjusted.accepted, allowMissingColumns=True)


def events_as_they_came(adjusted: Adjusted, open_events: DataFrame) -> DataFrame:
    """The same with the watermark and the clock that each met, which revised results ask for."""
    return open_events.unionByName(adjusted.accepted, allowMissingColumns=True)


def late_for_windows(
    adjusted: Adjusted,
    open_events: DataFrame | None,
    window: WindowSpec,
    stay_closed: DataFrame | None = None,
    *,
    placed: DataFrame | None = None,
) -> DataFrame:
    """Accepted events of a segment for which every window had closed when they came.

    Args:
        adjusted: The segment.
        open_events: As for `window_results`; only sessions ask for them.
        window: The window.
        stay_closed: Windows that an earlier flush closed, see flushed_windows.py; by default none.
        placed: As for `window_results`.

    Returns:
        The events with `__missed` (ends), `__w_before`, `__w_set_by`, and `__lateness_us`: the least extra
        allowed lateness that would have let the event into its last window; null where the clock closed it, or a
        flush. With `stay_closed` also `__by_flush` and, of sessions, `__missed_from`.
    """
    if window.kind == "session":
        events = adjusted.accepted if open_events is None else all_events(adjusted, open_events)
        late = sessions.late_events(events, window, adjusted.rules.time, stay_closed, placed=placed)
    elif stay_closed is None:
        late = aligned.late_events(adjusted.accepted, window)
    else:
        late = aligned.late_events(with_flushed(adjusted.accepted, stay_closed, window), window)
    if stay_closed is not None:
        by_flush = met_by(late.where(BY_FLUSH), adjusted)
        late = late.where(~F.col(BY_FLUSH)).unionByName(by_flush)
    if not adjusted.rules.clock_moves:
        return late
    by_events = F.when(F.col(W_SET_BY).isNotNull(), F.col(LATENESS))  # no lateness lets in what the clock has passed
    return late.withColumn(LATENESS, by_events)


def still_needed(events: DataFrame, state: DataFrame, windows: tuple[WindowSpec, ...]) -> DataFrame:
    """Events that some window on a grid still needs at the end of a segment.

    Args:
        events: Accepted events with `_timeline` and `__timestamp`.
        state: The timelines' state after the segment.
        windows: The spec's windows on a grid.
    """
    known = with_end(events, state)
    open_somewhere = F.lit(False)
    for window in windows:
        open_somewhere = open_somewhere | aligned.is_open(window, F.col(W_END))
    return known.where(open_somewhere).drop(W_END)


def in_open_windows(
    events: DataFrame,
    state: DataFrame,
    windows: tuple[WindowSpec, ...],
    time: TimeSpec,
    stay_closed: Mapping[str, DataFrame] | None = None,
    *,
    placed: DataFrame | None = None,
) -> DataFrame:
    """Events that sessions or sliding windows still need at the end of a segment.

    Args:
        events: What this function gave after the segment before, and the accepted events: `all_events`, for windows
            that revise their results `events_as_they_came`.
        state: The timelines' state after the segment.
        windows: The spec's sessions and sliding windows.
        time: The spec's `time` section.
        stay_closed: By window those that an earlier flush closed, see flushed_windows.py.
        placed: What `sessions.sessions_of` gives of the events for the first of the windows, where it is known.

    Returns:
        The events, with the names of these windows in `contents.OPEN_IN`.
    """
    not_yet = F.array().cast("array<string>")
    marked = events.withColumn(_STILL_OPEN_IN, not_yet)
    known = None if placed is None else placed.withColumn(_STILL_OPEN_IN, not_yet)
    for window in windows:
        flushed = (stay_closed or {}).get(window.name)
        if window.kind == "session":
            marked = sessions.marked_open(
                marked, state, window, time, _STILL_OPEN_IN, stay_closed=flushed, placed=known
            )
            known = None  # the next window's events have this one's marks
        else:
            told = marked if flushed is None else with_flushed(marked, flushed, window)
            marked = sliding.marked_open(told, state, window, _STILL_OPEN_IN).drop(FLUSHED)
    renamed = marked.drop(OPEN_IN).withColumnRenamed(_STILL_OPEN_IN, OPEN_IN)
    return renamed.where(F.size(OPEN_IN) > 0)
