"""Windows that a flush closed and the watermark has not passed: in a reopened pipeline they stay closed.

Here: which they are, how events are told of those of their group, and which events would give a session that is among
them. Not here: what becomes of an event that misses a window (the kinds: aligned.py, sessions.py, sliding.py).

A window that the watermark has passed needs no remembering, so there are never more than were open at a flush.

A session is what an event would give after merging with the sessions open at that moment, so each event depends on
those before it: a fold over the events of the groups that have such sessions. An event that is refused changes
nothing for the next. With a longest duration an event may cut off the end of a session; it is refused as well when
what it cuts off is a session that the flush has closed.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, T_FINAL, TIMELINE, W_BEFORE, computed_once, same_in
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.dating import W_END, with_end
from tidemark.timeops.windows.membership import (
    DRAINED,
    END,
    FRESH,
    MISSED_FROM,
    OPEN_IN,
    START,
    group_names,
    with_groups,
)

LAST_SEQ = "__tm_last_seq"
"""BIGINT: the largest `_arrival_seq` in the window; null in one without events."""

_SPANS = "array<struct<first: bigint, last: bigint>>"
_REFUSED = "array<struct<seq: bigint, start: bigint, end: bigint>>"


def columns_of(window: WindowSpec) -> list[str]:
    """The columns of a frame of drained windows: BIGINT microseconds, the group, and LAST_SEQ."""
    return [TIMELINE, *group_names(window), START, END, LAST_SEQ]


def of_contents(contents: DataFrame, state: DataFrame, window: WindowSpec) -> DataFrame:
    """The windows that a flush at the end of a segment closes, each once.

    Args:
        contents: Events of the windows that close in the segment, one row per window that holds them, with
            `__tm_start`, `__tm_end` and the group columns.
        state: The timelines' state after the segment.
        window: The window.
    """
    keys = [TIMELINE, *group_names(window), START, END]
    once = contents.groupBy(*keys).agg(F.max(SEQ).alias(LAST_SEQ) if SEQ in contents.columns else no_seq())
    return ahead(once, state, window).select(*columns_of(window))


def ahead(windows: DataFrame, state: DataFrame, window: WindowSpec) -> DataFrame:
    """Those of some windows that the watermark has not passed; one on which it stands is kept as well."""
    passed = close_time(F.col(END), window) < F.col(W_END)
    return with_end(windows, state).where(~F.coalesce(passed, F.lit(False))).drop(W_END)


def told_of(events: DataFrame, drained: DataFrame | None, window: WindowSpec) -> DataFrame:
    """Events with `membership.DRAINED`, empty where the event's group has none; as they are without drained windows.

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
    """The accepted events that may find windows closed: behind the watermark, or where a flush closed some."""
    if drained is None:
        return accepted.where(F.col(W_BEFORE).isNotNull())
    return told_of(accepted, drained, window)


def no_seq() -> Column:
    """LAST_SEQ of a window without events."""
    return F.lit(None).cast("bigint").alias(LAST_SEQ)


def refused_by_flush(events: DataFrame, drained: DataFrame, window: WindowSpec) -> DataFrame:
    """The events that the flush keeps out.

    Args:
        events: Events that take part, with the group columns of `membership.with_groups`: those that earlier segments
            kept, which no flush refuses any more, and the accepted ones of this.
        drained: The sessions that earlier flushes closed.
        window: The window.

    Returns:
        `_arrival_seq`, `__tm_missed_from` and `__tm_end`: the session that each would have given.
    """
    groups = group_names(window)
    is_fresh = F.col(OPEN_IN).isNull() if OPEN_IN in events.columns else F.lit(True)
    told = told_of(events.withColumn(FRESH, is_fresh), drained, window).where(F.size(DRAINED) > 0)
    # Where a later event than this takes part, the session ends behind all that were flushed.
    last = F.array_max(F.transform(DRAINED, lambda one: one["end"])) + F.lit(window.gap_us)
    near = told.where(F.col(T_FINAL) <= last)
    event = F.struct(SEQ, F.col(T_FINAL).alias("t"), F.col(W_BEFORE).alias("w"), F.col(FRESH).alias("fresh"))
    in_order = near.groupBy(TIMELINE, *groups).agg(
        F.sort_array(F.collect_list(event)).alias("events"), F.any_value(DRAINED).alias(DRAINED)
    )
    found = in_order.select(F.explode(_refused(F.col("events"), window)).alias("one"))
    return found.select(
        F.col("one.seq").alias(SEQ), F.col("one.start").alias(MISSED_FROM), F.col("one.end").alias(END)
    )


def _refused(events: Column, window: WindowSpec) -> Column:
    if window.max_duration_us is None:
        nothing = F.struct(F.array().cast(_SPANS).alias("open"), F.array().cast(_REFUSED).alias("refused"))
        return F.aggregate(events, nothing, _take(window), lambda known: known["refused"])
    nothing = F.struct(F.array().cast("array<bigint>").alias("times"), F.array().cast(_REFUSED).alias("refused"))
    return F.aggregate(events, nothing, _take_and_cut(window, window.max_duration_us), lambda known: known["refused"])


def _is_flushed(start: Column, end: Column) -> Column:
    return F.exists(DRAINED, lambda one: (one["start"] == start) & (one["end"] == end))


def _entry(event: Column, start: Column, end: Column) -> Column:
    return F.struct(event[SEQ].alias("seq"), start.alias("start"), end.alias("end"))


def _take(window: WindowSpec) -> Callable[[Column, Column], Column]:
    """One event beside the open sessions, as `session_folds.merge_late` takes it, and against the flushed ones."""
    gap, to_close = F.lit(window.gap_us), F.lit(window.gap_us + window.allowed_lateness_us)

    def take(known: Column, event: Column) -> Column:
        t, watermark = event["t"], event["w"]

        def is_open(span: Column) -> Column:
            return F.coalesce(span["last"] + to_close >= watermark, F.lit(True))

        def is_joined(span: Column) -> Column:
            return (span["first"] - gap <= t) & (t <= span["last"] + gap)

        def settled(parts: Column) -> Column:
            spans, first, last = parts["open"], parts["first"], parts["last"]
            late = F.coalesce(t + to_close < watermark, F.lit(False)) & ~F.exists(spans, is_joined)
            barred = event["fresh"] & ~late & _is_flushed(first, last + gap)
            others = F.filter(spans, lambda span: ~is_joined(span))
            own = F.struct(first.alias("first"), last.alias("last"))
            refused = F.array_append(known["refused"], _entry(event, first, last + gap))
            return F.struct(
                F.when(late | barred, spans).otherwise(F.array_append(others, own)).alias("open"),
                F.when(barred, refused).otherwise(known["refused"]).alias("refused"),
            )

        def merged(spans: Column) -> Column:
            joined = F.filter(spans, is_joined)
            first = F.least(t, F.array_min(F.transform(joined, lambda span: span["first"])))
            last = F.greatest(t, F.array_max(F.transform(joined, lambda span: span["last"])))
            return F.struct(spans.alias("open"), first.alias("first"), last.alias("last"))

        return computed_once(computed_once(F.filter(known["open"], is_open), merged), settled)

    return take


def _take_and_cut(window: WindowSpec, longest_us: int) -> Callable[[Column, Column], Column]:
    """One event beside those before it, cut into sessions anew. No event is behind the watermark here."""

    def take(known: Column, event: Column) -> Column:
        def settled(parts: Column) -> Column:
            hit = parts["hit"]
            barred = event["fresh"] & hit.isNotNull()
            refused = F.array_append(known["refused"], _entry(event, hit["start"], hit["end"]))
            return F.struct(
                F.when(barred, known["times"]).otherwise(parts["times"]).alias("times"),
                F.when(barred, refused).otherwise(known["refused"]).alias("refused"),
            )

        def cut(times: Column) -> Column:
            flushed = F.filter(
                _cut(times, window.gap_us, longest_us), lambda one: _is_flushed(one["start"], one["end"])
            )
            return F.struct(times.alias("times"), F.get(flushed, F.lit(0)).alias("hit"))

        times = F.array_sort(F.array_union(known["times"], F.array(event["t"])))
        return computed_once(computed_once(times, cut), settled)

    return take


def _cut(times: Column, gap_us: int, longest_us: int) -> Column:
    """ARRAY<STRUCT<start, end>>: the sessions of some times in order."""
    gap, longest = F.lit(gap_us), F.lit(longest_us)

    def ended(session: Column) -> Column:
        end = F.least(session["last"] + gap, session["first"] + longest)
        return F.array_append(session["done"], F.struct(session["first"].alias("start"), end.alias("end")))

    def take(session: Column, t: Column) -> Column:
        begins = (t - session["last"] > gap) | (t - session["first"] > longest)
        return F.struct(
            F.when(begins, t).otherwise(session["first"]).alias("first"),
            t.alias("last"),
            F.when(begins, ended(session)).otherwise(session["done"]).alias("done"),
        )

    first = F.get(times, F.lit(0))
    done = F.array().cast("array<struct<start: bigint, end: bigint>>").alias("done")
    return F.aggregate(times, F.struct(first.alias("first"), first.alias("last"), done), take, ended)
