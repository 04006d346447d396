"""Windows that a flush closed and the watermark has not passed: in a reopened pipeline they stay closed.

Here: which they are, and how events are told of those of their group. Not here: what becomes of an event that misses
them (aligned.py, sliding.py, drained_sessions.py).

A window that the watermark has passed needs no remembering, so there are never more than were open at a flush.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, TIMELINE, same_in
from tidemark.timeops.grid import close_time, ends_between, last_closed, start_of
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.membership import END, FLUSHED, START, group_names, with_groups
from tidemark.timeops.windows.seen_groups import FIRST_END, LAST_END
from tidemark.timeops.windows.segment_ends import W_END, with_end

LAST_SEQ = "__last_seq"
"""BIGINT: the largest `_arrival_seq` in the window; null in one without events."""


def columns_of(window: WindowSpec) -> list[str]:
    """The columns of a frame of flushed windows: BIGINT microseconds, the group, and LAST_SEQ."""
    return [TIMELINE, *group_names(window), START, END, LAST_SEQ]


def of_contents(contents: DataFrame, state: DataFrame, window: WindowSpec) -> DataFrame:
    """The windows that a flush at the end of a segment closes, each once.

    Args:
        contents: Events of the windows that close in the segment, one row per window that holds them, with `__start`,
            `__end` and the group columns.
        state: The timelines' state after the segment.
        window: The window.
    """
    keys = [TIMELINE, *group_names(window), START, END]
    once = contents.groupBy(*keys).agg(F.max(SEQ).alias(LAST_SEQ) if SEQ in contents.columns else _no_seq())
    return ahead(once, state, window).select(*columns_of(window))


def of_groups(seen: DataFrame, state: DataFrame, window: WindowSpec) -> DataFrame:
    """The same of a window with `empty`, which gives every group a row up to the timeline's last window.

    Args:
        seen: `seen_groups.seen_groups` after the segment.
        state: The timelines' state after it.
        window: The window.
    """
    reach = seen.groupBy(TIMELINE).agg(F.max(LAST_END).alias("__reach"))
    known = with_end(seen.join(reach, TIMELINE), state)
    behind = F.greatest(F.col(FIRST_END) - F.lit(1), last_closed(F.col(W_END), window))
    spans = known.withColumn("__behind", behind).where(F.col("__behind") < F.col("__reach"))
    ends = F.explode(ends_between(F.col("__behind"), F.col("__reach"), window)).alias(END)
    each = spans.select(TIMELINE, *group_names(window), ends).withColumn(START, start_of(F.col(END), window))
    return ahead(each.select("*", _no_seq()), state, window).select(*columns_of(window))


def ahead(flushed: DataFrame, state: DataFrame, window: WindowSpec) -> DataFrame:
    """Those of some windows that the watermark has not passed; one on which it stands is kept as well."""
    passed = close_time(F.col(END), window) < F.col(W_END)
    return with_end(flushed, state).where(~F.coalesce(passed, F.lit(False))).drop(W_END)


def with_flushed(events: DataFrame, flushed: DataFrame, window: WindowSpec) -> DataFrame:
    """Adds `contents.FLUSHED` to events, empty where the event's group has none.

    Args:
        events: Events with `_timeline`.
        flushed: The windows that earlier flushes closed.
        window: The window.
    """
    groups = group_names(window)
    one = F.struct(F.col(START).alias("start"), F.col(END).alias("end"), F.col(LAST_SEQ).alias("seq"))
    lists = flushed.groupBy(TIMELINE, *groups).agg(F.collect_list(one).alias(FLUSHED))
    same = same_in("event", "own", [TIMELINE, *groups])
    known = with_groups(events, window).alias("event").join(lists.alias("own"), same, "left")
    kind = lists.schema[FLUSHED].dataType
    found = F.coalesce(f"own.{FLUSHED}", F.array().cast(kind)).alias(FLUSHED)
    return known.select(*[F.col(f"event.`{name}`") for name in events.columns], found)


def _no_seq() -> Column:
    return F.lit(None).cast("bigint").alias(LAST_SEQ)
