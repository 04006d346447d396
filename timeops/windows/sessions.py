"""Session windows over a segment of the log: which events are in which session, which sessions close, late events.

Here: chains of events at most a gap apart (M, F), as gaps and islands by window functions. Not here: the two cases
in which one event after the other must be looked at (session_folds.py), when exactly a session closed
(closing_any_time.py).

Under drop and adjust no accepted event is behind the watermark, so none can touch a session that has closed, and the
chains are the sessions. Under `keep` they are too, unless an event of the chain came more than the allowed lateness
behind the watermark: only such an event finds closed sessions within its gap.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import LATENESS, SEQ, T_FINAL, TIMELINE, W_BEFORE
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows.drained_sessions import refused_by_flush
from tidemark.timeops.windows.membership import (
    BY_FLUSH,
    END,
    MISSED,
    MISSED_FROM,
    START,
    group_names,
    takes_part,
    with_groups,
)
from tidemark.timeops.windows.segment_ends import W_END, with_end
from tidemark.timeops.windows.session_folds import CHAIN, LAST, RISKY, cut_long, merge_late

KEYS: tuple[str, ...] = (TIMELINE, START, END)
"""Which session of its group a row is of. With late events two of them may have one start, but not one end."""

_BEGINS = "__begins"


def sessions_of(
    events: DataFrame, window: WindowSpec, time: TimeSpec, stay_closed: DataFrame | None = None
) -> DataFrame:
    """The session of every event that takes part, as it is after the segment.

    Args:
        events: Events that earlier segments kept, with `contents.OPEN_IN` and null `__w_before`, and the accepted
            ones of this segment.
        window: The window.
        time: The spec's `time` section, for its policy.
        stay_closed: Sessions that an earlier flush closed, see flushed_windows.py; by default none.

    Returns:
        The events that pass the window's filter and belong to no session that had closed before the segment, with
        the group columns of `contents.with_groups`, `__start` and `__end` (microseconds; both null of an event that
        came too late). Those that only a flush keeps out are not among them.
    """
    passing = with_groups(events.where(takes_part(events, window)), window)
    if stay_closed is not None:
        passing = passing.join(refused_by_flush(passing, stay_closed, window).select(SEQ), SEQ, "left_anti")
    chains = _chains(passing, window, time)
    if time.out_of_order == "keep" and window.input is None:  # no result is ever late
        found = merge_late(chains, window)
    elif window.max_duration is not None:
        found = cut_long(chains, window)
    else:
        found = chains.withColumn(END, F.col(LAST) + F.lit(window.gap_us))
    return found.drop(CHAIN, LAST, RISKY)


def _chains(events: DataFrame, window: WindowSpec, time: TimeSpec) -> DataFrame:
    """Adds the chain of each event: `__start`, `__last`, `__chain`, which names it, and `__risky`.

    One shuffle by timeline and group serves all of it, and what is then aggregated by session.
    """
    keys = [TIMELINE, *group_names(window)]
    in_order = Window.partitionBy(*keys).orderBy(T_FINAL)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    whole = Window.partitionBy(*keys, START)
    apart = F.col(T_FINAL) - F.lag(T_FINAL).over(in_order) > F.lit(window.gap_us)
    begun = events.withColumn(_BEGINS, F.when(F.coalesce(apart, F.lit(True)), F.col(T_FINAL)))
    # A number is the cheaper name. But results have none, and timelines may be of several logs, each with its own.
    first = F.min(SEQ).over(whole)
    if window.input is not None:
        name = F.struct(*keys, START)
    else:
        name = F.struct(TIMELINE, first.alias("first")) if time.over else first
    risky = F.coalesce(F.col(T_FINAL) + F.lit(window.allowed_lateness_us) < F.col(W_BEFORE), F.lit(False))
    return (
        begun.withColumn(START, F.max(_BEGINS).over(so_far))
        .withColumns(
            {
                LAST: F.max(T_FINAL).over(whole),
                CHAIN: name,
                RISKY: F.max(risky).over(whole),
            }
        )
        .drop(_BEGINS)
    )


def closed_contents(
    events: DataFrame,
    adjusted: Adjusted,
    window: WindowSpec,
    *,
    flushed: bool,
    stay_closed: DataFrame | None = None,
    placed: DataFrame | None = None,
) -> DataFrame:
    """Events of the sessions that close in the segment.

    Args:
        events: As for `sessions_of`.
        adjusted: The segment.
        window: The window.
        flushed: As for `windows.window_results`.
        stay_closed: As for `sessions_of`.
        placed: What `sessions_of` gives, where it is known.

    Returns:
        The events with `__start`, `__end`, and the group columns of `contents.with_groups`.
    """
    if placed is None:
        placed = sessions_of(events, window, adjusted.rules.time, stay_closed)
    found = placed.where(F.col(START).isNotNull())
    if flushed:
        return found
    known = with_end(found, adjusted.state)
    return known.where(close_time(F.col(END), window) <= F.col(W_END)).drop(W_END)


def late_events(
    events: DataFrame,
    window: WindowSpec,
    time: TimeSpec,
    stay_closed: DataFrame | None = None,
    *,
    placed: DataFrame | None = None,
) -> DataFrame:
    """Events that came when their session had closed, with `__missed` (its end) and `__lateness_us`.

    No open session was within the gap of such an event, so the session would have held it alone. With `stay_closed`
    also events that a flush keeps out, with `__by_flush`, and `__missed_from`, where the session begins that each
    would have given: others may be in it.

    The arguments are those of `closed_contents`.
    """
    if placed is None:
        placed = sessions_of(events, window, time, stay_closed)
    late = placed.where(F.col(START).isNull()).drop(START, END, *group_names(window))
    end = F.col(T_FINAL) + F.lit(window.gap_us)
    lateness = F.col(W_BEFORE) - end - F.lit(window.allowed_lateness_us)
    late = late.withColumns({MISSED: F.array(end), LATENESS: lateness})
    if stay_closed is None:
        return late
    passing = with_groups(events.where(takes_part(events, window)), window)
    refused = passing.drop(*group_names(window)).join(refused_by_flush(passing, stay_closed, window), SEQ)
    nothing = F.lit(None).cast("bigint")
    by_flush = {MISSED: F.array(END), LATENESS: nothing, BY_FLUSH: F.lit(True)}
    alone = {MISSED_FROM: F.element_at(MISSED, 1) - F.lit(window.gap_us), BY_FLUSH: F.lit(False)}
    return late.withColumns(alone).unionByName(refused.withColumns(by_flush).drop(END))


def marked_open(
    events: DataFrame,
    state: DataFrame,
    window: WindowSpec,
    time: TimeSpec,
    into: str,
    *,
    stay_closed: DataFrame | None = None,
    placed: DataFrame | None = None,
) -> DataFrame:
    """Adds the window's name to the ARRAY<STRING> column `into` of the events in sessions that are still open.

    Args:
        events: As for `sessions_of`; all of them come back, those too that take no part.
        state: The timelines' state after the segment.
        window: The window.
        time: The spec's `time` section.
        into: The column.
        stay_closed: As for `sessions_of`.
        placed: As for `closed_contents`.
    """
    if placed is None:
        placed = sessions_of(events, window, time, stay_closed)
    found = with_end(placed, state)
    is_open = F.col(START).isNotNull() & F.coalesce(close_time(F.col(END), window) > F.col(W_END), F.lit(True))
    marked = found.withColumn(into, F.when(is_open, F.array_append(into, F.lit(window.name))).otherwise(F.col(into)))
    others = events.where(~takes_part(events, window))
    if stay_closed is not None:  # those that the flush keeps out of this window may be in another
        others = events.join(found.select(SEQ), SEQ, "left_anti").select(*events.columns)
    columns = [F.col(f"`{name}`") for name in events.columns]
    return marked.select(*columns).unionByName(others)
