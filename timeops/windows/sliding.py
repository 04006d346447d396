"""Sliding windows over a segment of the log: a result at every instant at which the events of a window change.

Here: the instants at which an event comes (its time) and goes (its time and the size), and the events in
`(instant - size, instant]` of each (A2). Not here: when exactly an instant closed (closing_any_time.py).

An event belongs to instants from its own time to just before it goes, and others of its group make instants on the
way. The windows of two instants overlap, so that an event is in as many results as its group has instants in a size.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, SEQ, T_FINAL, TIMELINE, W_BEFORE, floor_to, same_in
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.membership import END, FLUSHED, START, flushed_at, group_names, takes_part, with_groups
from tidemark.timeops.windows.segment_ends import W_END, W_START, with_both_ends, with_end

MADE = "__made"
_CELL = "__cell"  # instants and events meet in segments of one size


def closed_contents(
    events: DataFrame,
    adjusted: Adjusted,
    window: WindowSpec,
    *,
    flushed: bool,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Events of the instants that close in the segment, one row per instant that holds them.

    Args:
        events: Events that earlier segments kept, with `contents.OPEN_IN` and null `__w_before`, and the accepted
            ones of this.
        adjusted: The segment.
        window: The window.
        flushed: As for `windows.window_results`.
        keep: The same.

    Returns:
        The rows with `__start`, `__end` (the instant), and the group columns of `contents.with_groups`.
    """
    passing = keep(with_groups(events.where(_is_in_one(events, window)), window))
    held = _held_at(_closing(passing, adjusted, window, flushed=flushed), passing, window)
    return held.withColumn(START, F.col(END) - F.lit(window.size_us))


def contents_so_far(
    events: DataFrame,
    adjusted: Adjusted,
    window: WindowSpec,
    moment: Column,
    fresh: str,
    *,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Events of the instants that had not closed before the segment, one row per instant that holds them.

    Args:
        events: Events that earlier segments kept, with `__w_before` as they met it, and the accepted ones of this.
        adjusted: The segment.
        window: The window.
        moment: Orders when an event came to an instant, over the events and `__end`.
        fresh: A column of the events to be told of the one that makes an instant.
        keep: As for `windows.window_results`.

    Returns:
        The rows with `__end`, the group columns of `contents.with_groups`, `__w_start`, `__w_end`, and `__made`: the
        first of the events that make the instant, STRUCT<moment, fresh>. An instant that a late event makes holds
        events that came before there was any.
    """
    passing = keep(with_groups(events.where(_is_in_one(events, window)), window))
    made = _made_by(passing, window, SEQ, CLOCK, fresh).withColumn("moment", moment)
    first = F.min(F.struct("moment", F.col(fresh).alias("fresh"))).alias(MADE)
    instants = with_both_ends(made.groupBy(TIMELINE, *group_names(window), END).agg(first), adjusted)
    is_open = _open_to(F.col(END), F.col(W_START), window)
    return _held_at(_with_cell(instants.where(is_open), window), passing, window, MADE, W_START, W_END)


def marked_open(events: DataFrame, state: DataFrame, window: WindowSpec, into: str) -> DataFrame:
    """Adds the window's name to the ARRAY<STRING> column `into` of the events that it still needs.

    Args:
        events: As for `closed_contents`; all of them come back.
        state: The timelines' state after the segment.
        window: The window.
        into: The column.
    """
    gone = F.col(T_FINAL) + F.lit(window.size_us)  # an instant of the events that stay
    needed = _is_in_one(events, window) & _open_to(gone, F.col(W_END), window)
    named = F.when(needed, F.array_append(into, F.lit(window.name))).otherwise(F.col(into))
    return with_end(events, state).withColumn(into, named).drop(W_END)


def _is_in_one(events: DataFrame, window: WindowSpec) -> Column:
    """BOOLEAN: the event takes part, and did not come behind the last instant at which it could be in a window."""
    last = F.col(T_FINAL) + F.lit(window.size_us - 1)
    is_open = _open_to(last, F.col(W_BEFORE), window)
    if FLUSHED in events.columns:  # events that came before the flush stay in what it left open
        is_open = is_open & ~F.exists(FLUSHED, lambda one: (one["end"] == last) & (F.col(SEQ) > one["seq"]))
    return takes_part(events, window) & is_open


def _closing(passing: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    """The instants of the events that close in the segment, by timeline and group, each once."""
    keys = [TIMELINE, *group_names(window)]
    known = with_both_ends(_made_by(passing, window).select(*keys, END).distinct(), adjusted)
    by_now = F.lit(True) if flushed else ~_open_to(F.col(END), F.col(W_END), window)
    closing = known.where(_open_to(F.col(END), F.col(W_START), window) & by_now)
    return _with_cell(closing.select(*keys, END), window)


def _made_by(passing: DataFrame, window: WindowSpec, *more: str) -> DataFrame:
    """The two instants at which each event changes what is in the window, as far as they were open when it came.

    What a flush closed before stays closed; its events still count at the instants of others behind it.
    """
    changes = F.explode(F.array(F.col(T_FINAL), F.col(T_FINAL) + F.lit(window.size_us)))
    flushed = [FLUSHED] if FLUSHED in passing.columns else []
    made = passing.select(TIMELINE, *group_names(window), W_BEFORE, *more, *flushed, changes.alias(END))
    is_open = _open_to(F.col(END), F.col(W_BEFORE), window) & ~flushed_at(made, F.col(END))
    return made.where(is_open).drop(*flushed)


def _with_cell(instants: DataFrame, window: WindowSpec) -> DataFrame:
    return instants.withColumn(_CELL, floor_to(F.col(END), window.size_us))


def _held_at(instants: DataFrame, passing: DataFrame, window: WindowSpec, *more: str) -> DataFrame:
    """The events in `(instant - size, instant]` that came when it was open; with `__end` and more of the instant."""
    cell = floor_to(F.col(T_FINAL), window.size_us)
    near = passing.withColumn(_CELL, F.explode(F.array(cell, cell + F.lit(window.size_us))))
    at, event = instants.alias("at"), near.alias("event")
    end, t = F.col(f"at.{END}"), F.col(f"event.{T_FINAL}")
    same = same_in("at", "event", [TIMELINE, *group_names(window)])
    inside = (F.col(f"at.{_CELL}") == F.col(f"event.{_CELL}")) & (t <= end) & (t > end - F.lit(window.size_us))
    came = _open_to(end, F.col(f"event.{W_BEFORE}"), window)
    joined = at.join(event, same & inside & came)
    return joined.select("event.*", end, *[F.col(f"at.{name}") for name in more]).drop(_CELL)


def _open_to(end_us: Column, watermark_us: Column, window: WindowSpec) -> Column:
    """BOOLEAN: the window of an instant is not closed at a watermark; before the first none is."""
    is_open = end_us + F.lit(window.allowed_lateness_us) >= watermark_us
    return F.coalesce(is_open, F.lit(True))
