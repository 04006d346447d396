"""Windows that a flush closed and the watermark has not passed: in a reopened pipeline they stay closed.

Here: which they are, and how events are told of those of their group. Not here: what becomes of an event that misses
a window (the kinds: aligned.py, sessions.py, sliding.py).

A window that the watermark has passed needs no remembering, so there are never more than were open at a flush.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, TIMELINE, W_BEFORE, W_END, same_in
from tidemark.timeops.events.adjustment import Adjusted, with_end
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.membership import (
    DRAINED,
    END,
    START,
    group_names,
    with_groups,
)

LAST_SEQ = "__tm_last_seq"
"""BIGINT: the largest `_arrival_seq` in the window; null in one without events."""


def columns_of(window: WindowSpec) -> list[str]:
    """Return the columns of a frame of drained windows: BIGINT microseconds, the group, and LAST_SEQ."""
    return [TIMELINE, *group_names(window), START, END, LAST_SEQ]


def of_contents(contents: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Return the windows that a flush at the end of a segment closes, each once.

    Args:
        contents: Events of the windows that close in the segment, one row per window that holds them, with
            `__tm_start`, `__tm_end` and the group columns.
        adjusted: The segment.
        window: The window.
    """
    keys = [TIMELINE, *group_names(window), START, END]
    once = contents.groupBy(*keys).agg(F.max(SEQ).alias(LAST_SEQ) if SEQ in contents.columns else no_seq())
    return ahead(once, adjusted, window).select(*columns_of(window))


def ahead(windows: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Return the windows that the watermark has not passed; one whose end it has reached is kept as well."""
    passed = close_time(F.col(END), window) < F.col(W_END)
    return with_end(windows, adjusted).where(~F.coalesce(passed, F.lit(False))).drop(W_END)


def told_of(events: DataFrame, drained: DataFrame | None, window: WindowSpec) -> DataFrame:
    """Return events with `membership.DRAINED`, empty where their group has none; unchanged without drained windows.

    Args:
        events: Events with `_timeline`.
        drained: The windows that earlier flushes closed; None for none.
        window: The window.
    """
    if drained is None:
        return events
    groups = group_names(window)
    one = F.struct(F.col(START).alias("start"), F.col(END).alias("end"), F.col(LAST_SEQ).alias("seq"))
    lists = drained.groupBy(TIMELINE, *groups).agg(F.collect_list(one).alias(DRAINED))
    same = same_in("event", "own", [TIMELINE, *groups])
    known = with_groups(events, window).alias("event").join(lists.alias("own"), same, "left")
    kind = lists.schema[DRAINED].dataType
    found = F.coalesce(f"own.{DRAINED}", F.array().cast(kind)).alias(DRAINED)
    return known.select(*[F.col(f"event.`{name}`") for name in events.columns], found)


def may_be_late(accepted: DataFrame, drained: DataFrame | None, window: WindowSpec) -> DataFrame:
    """Return the accepted events that may find windows closed: behind the watermark, or where a flush closed some."""
    if drained is None:
        return accepted.where(F.col(W_BEFORE).isNotNull())
    return told_of(accepted, drained, window)


def no_seq() -> Column:
    """Return LAST_SEQ of a window without events."""
    return F.lit(None).cast("bigint").alias(LAST_SEQ)
