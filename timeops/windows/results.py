"""Windowed aggregation over a segment of the log: results, late events, and what windows need after it.

Here: the results of a window, once when it closes or in revisions; which events and flushed windows the next segment
needs. Not here: who is in a window and when it closed, which differs by kind (timeops/windows/kinds.py); the moments
of revisions (timeops/windows/revisions.py); storage.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.calendar.grid import instant_of_end
from tidemark.timeops.columns import LATENESS, TIMELINE, W_END, W_SET_BY, WATERMARK, same_in
from tidemark.timeops.expressions.aggregates import without_overflow
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.windows.aggregates import first_rows, passes_having, with_aggregates
from tidemark.timeops.windows.aligned import sliced_results
from tidemark.timeops.windows.gap_filling import (
    REACHED_W,
    Span,
    empty_rows,
    flushed_of_groups,
    given_watermark,
    once,
    seen_groups,
)
from tidemark.timeops.windows.kinds import WindowKind, keys_of, kind_of
from tidemark.timeops.windows.revisions import (
    CAUSE,
    IS_FINAL,
    IS_TAKEN_BACK,
    LATE_EVENTS,
    PASSES,
    REVISION,
    revised_contents,
)
from tidemark.timeops.windows.segment import (
    BY_FLUSH,
    END,
    OPEN_IN,
    START,
    WindowSegment,
    group_names,
    not_passed,
    of_contents,
    with_watermark_met,
)

_NEXT = "__tm_next"
_NEEDED = "__tm_needed"


def window_results(segment: WindowSegment, window: WindowSpec, *, only: Span | None = None) -> DataFrame:
    """Return the results of windows in a segment of the log: of windows that close, and revisions of others.

    `only` are the windows with no event that are asked for; see `gap_filling.empty_rows`.

    Returns:
        One row per revision of each window and group that holds an event, or with `empty` is owed a row without, and
        that passes `having`; with `top` a row for each of the first events. With `time.start_at` only windows that
        begin there or later have rows (A2). The columns: `window_start`, `window_end`, group columns, with `top`
        `_rank` and the columns of an event, aggregates, `_revision` INT, `_is_final` BOOLEAN, `_watermark` (just
        after the item at which it was made; null where a flush made it); with `history` also `_late_events`.
        Revisions that do not pass `having` are rows too. So are the rows that retract the results of a replaced
        session. Where there may be such rows, `__tm_passes` says so; see `passing`.
    """
    kind = kind_of(window)  # AlignedWindows, as of a tumbling window, Sessions or SlidingWindows
    materialize = segment.execution.materialize
    if window.revises:
        return _in_revisions(segment, kind, only)
    results = sliced_results(segment, window)  # None unless its windows overlap much: an event is in many of them
    if results is None:
        results = results_of(kind.closed_contents(segment), kind.result_keys, window)
    if window.empty:
        results = materialize(results)
        owed = empty_rows(results, segment, window, only)
        results = materialize(results.unionByName(owed, allowMissingColumns=True))
    rows = _shaped(_final(results, segment, kind), segment, window)
    return rows if window.having is None else rows.where(passes_having(Columns.of(rows), window.having))


def results_of(contents: DataFrame, keys: tuple[str, ...], window: WindowSpec, *extra: Column) -> DataFrame:
    """Return the window's results over rows with the columns of `segment.with_groups`, and `extra` after them.

    With `top` these are the first rows, and aggregates are next to each of them. `keys` are the columns that
    distinguish the windows of a group.
    """
    columns, groups = Columns.of(contents), [*keys, *group_names(window)]
    rows = None if window.top is None else first_rows(contents, keys, window)
    if rows is not None and not window.aggregates and not extra:
        return rows
    aggregates = {name: without_overflow(text, columns) for name, text in window.aggregates.items()}
    of_groups = with_aggregates(contents.groupBy(*groups), aggregates, *extra)
    if rows is None:
        return of_groups
    values = [f"of_group.{quoted(name)}" for name in of_groups.columns if name not in groups]
    joined = rows.alias("row").join(of_groups.alias("of_group"), same_in("row", "of_group", groups))
    return joined.selectExpr("row.*", *values)


def _in_revisions(segment: WindowSegment, kind: WindowKind, only: Span | None) -> DataFrame:
    """Return a result at each moment of a window; one that does not pass `having` takes an earlier row away."""
    window = kind.window
    causes = [F.array_sort(F.collect_set(CAUSE)).alias(LATE_EVENTS)] if window.history else []
    keys = (*keys_of(kind), REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK)
    results = _with_start(results_of(revised_contents(segment, kind), keys, window, *causes), kind)
    if window.empty:
        results = segment.execution.materialize(results)
        final = results.where(IS_FINAL).drop(START, REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK, LATE_EVENTS)
        owed = _final(empty_rows(final, segment, window, only), segment, kind)
        no_cause = {LATE_EVENTS: F.array().cast("array<bigint>")} if window.history else {}
        results = results.unionByName(owed.withColumns({IS_TAKEN_BACK: F.lit(False), **no_cause}))
    columns = [LATE_EVENTS] if window.history else []
    rows = _shaped(results, segment, window, *columns, IS_TAKEN_BACK)
    if kind.merges:
        rows = rows.withColumn(PASSES, passes_having(Columns.of(rows), window.having) & ~F.col(IS_TAKEN_BACK))
    elif window.having is not None:
        rows = rows.withColumn(PASSES, passes_having(Columns.of(rows), window.having))
    return rows.drop(IS_TAKEN_BACK)


def _with_start(rows: DataFrame, kind: WindowKind) -> DataFrame:
    return rows if kind.merges else rows.withColumn(START, F.expr(kind.start_of(END)))


def _final(results: DataFrame, segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """Return results of closed windows, dated, as the only ones of their windows."""
    window, dated = kind.window, _with_start(kind.dated(results, segment), kind)
    if window.empty:
        dated = dated.withColumn(WATERMARK, given_watermark(window)).drop(REACHED_W)
    return dated.withColumns({REVISION: F.lit(0), IS_FINAL: F.lit(True)})


def _shaped(results: DataFrame, segment: WindowSegment, window: WindowSpec, *columns: str) -> DataFrame:
    start_us = segment.adjusted.rules.time.start_us
    since_start = results if start_us is None else results.where(f"{START} >= {start_us}L")
    named = zip(group_names(window), window.group_columns, strict=True)
    return since_start.selectExpr(
        f"timestamp_micros({START}) AS window_start",
        f"timestamp_micros({instant_of_end(END, window)}) AS window_end",
        *[f"{value} AS {quoted(name)}" for value, name in named],
        # Spark's server would analyze the whole plan to name the columns of a frame.
        *([TOP_RANK, *map(quoted, window.event_columns(results.columns))] if window.top is not None else []),
        *map(quoted, window.aggregates),
        f"{REVISION} AS _revision",
        f"{IS_FINAL} AS _is_final",
        f"timestamp_micros({WATERMARK}) AS {WATERMARK}",
        *columns,
    )


def passing(results: DataFrame) -> DataFrame:
    """Return the results of `window_results` that pass `having`."""
    return results.where(PASSES).drop(PASSES) if PASSES in results.columns else results


def last_revisions(results: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the last result of `window_results` for each window and group, without `_late_events`.

    It may be one that does not pass `having`.
    """
    if not window.revises:
        return results
    return newest_revisions(results.drop(LATE_EVENTS), window.key_columns)


def newest_revisions(results: DataFrame, key_columns: Sequence[str]) -> DataFrame:
    """Return the last of the results that have the same keys."""
    return with_next_revision(results, key_columns, "_revision", _NEXT).where(f"{_NEXT} IS NULL").drop(_NEXT)


def with_next_revision(results: DataFrame, key_columns: Sequence[str], name: str, into: str) -> DataFrame:
    """Add a column of the next revision of each result, which replaces it; null where none does."""
    keys = ", ".join(map(quoted, key_columns))
    return results.withColumn(into, F.expr(f"lead({name}) OVER (PARTITION BY {keys} ORDER BY _revision)"))


def late_for_windows(segment: WindowSegment, window: WindowSpec) -> DataFrame:
    """Return the accepted events of a segment for which every window had closed when they came.

    Only where windows merge the known events of the segment matter.

    Returns:
        The events with `__tm_missed` (ends), `__tm_w_before`, `__tm_w_set_by`, and `__tm_lateness_us`: the least
        extra allowed lateness that would have let the event into its last window; null where the clock closed it, or
        a flush. Of sessions also `__tm_missed_from`, with flushed windows `__tm_by_flush`.
    """
    late = kind_of(window).late_events(segment)
    if segment.flushed_windows is not None:
        by_flush = with_watermark_met(late.where(BY_FLUSH), segment.adjusted)
        late = late.where(f"NOT {BY_FLUSH}").unionByName(by_flush)
    if not segment.adjusted.rules.clock_moves:
        return late
    # No lateness lets in what the clock has passed.
    return late.withColumn(LATENESS, F.expr(f"IF({W_SET_BY} IS NULL, NULL, {LATENESS})"))


def still_needed(
    events: DataFrame, segments: Sequence[tuple[WindowSpec, WindowSegment]], *, named: bool
) -> DataFrame:
    """Return the events that windows still need after a segment.

    Args:
        events: The result for the segment before, and the accepted events: `WindowSegment.events`, of
            windows that revise their results `events_as_they_came`.
        segments: The windows, whose events share a frame, each with the segment as it meets it; only the first may
            know where the events are placed.
        named: The names of the windows that need each are added, in `segment.OPEN_IN`.
    """
    flags = [f"{_NEEDED}{number}" for number in range(len(segments))]
    marked = events
    for flag, (window, segment) in zip(flags, segments, strict=True):
        marked = kind_of(window).with_needed(marked, segment, flag)
    needed = marked.where(" OR ".join(flags) or "false").drop(W_END)
    if named:
        by_flag = zip(flags, segments, strict=True)
        names = ", ".join(f"IF({flag}, {literal(window.name)}, NULL)" for flag, (window, _) in by_flag)
        needed = needed.withColumn(OPEN_IN, F.expr(f"CAST(array_compact(array({names})) AS ARRAY<STRING>)"))
    return needed.drop(*flags)


def seen_after(segment: WindowSegment, window: WindowSpec) -> DataFrame:
    """Return the groups that a window with `empty` has seen up to the end of a segment."""
    fresh = seen_groups(segment.adjusted.accepted, window)
    return fresh if segment.seen is None else once(segment.seen.unionByName(fresh), window)


def flushed_after(segment: WindowSegment, window: WindowSpec) -> DataFrame | None:
    """Return the windows that stay closed after a segment since a flush closed them, segment.columns_of.

    The watermark has not passed them; None where there was no flush.
    """
    adjusted = segment.adjusted
    earlier = None if segment.flushed_windows is None else not_passed(segment.flushed_windows, adjusted, window)
    if not segment.flushed:
        return earlier
    if window.empty:
        flushed = flushed_of_groups(seen_after(segment, window), adjusted, window)
    else:
        kind = kind_of(window)
        flushed = of_contents(_with_start(kind.closed_contents(segment), kind), adjusted, window)
    if segment.flushed_windows is None or earlier is None:
        return flushed
    keys = [TIMELINE, *group_names(window), START, END]
    fresh = flushed.alias("new").join(segment.flushed_windows.alias("old"), same_in("new", "old", keys), "left_anti")
    return earlier.unionByName(fresh)
