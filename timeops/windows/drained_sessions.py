"""Events that would give a session which a flush has closed, in a pipeline that was reopened.

Here: folds over the events of the groups that have such sessions, one event after the other. Not here: sessions that
the watermark closes, and all others (sessions.py, session_folds.py).

The session is what the event would give after merging with the sessions open at that moment, so each event depends on
those before it. An event that is refused changes nothing for the next. With a longest duration an event may cut off
the end of a session; it is refused as well when what it cuts off is a session that the flush has closed.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, T_FINAL, TIMELINE, W_BEFORE, computed_once
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.drained_windows import with_flushed
from tidemark.timeops.windows.membership import END, FLUSHED, MISSED_FROM, OPEN_IN, group_names

_SPANS = "array<struct<first: bigint, last: bigint>>"
_REFUSED = "array<struct<seq: bigint, start: bigint, end: bigint>>"


def refused_by_flush(events: DataFrame, flushed: DataFrame, window: WindowSpec) -> DataFrame:
    """The events that the flush keeps out.

    Args:
        events: Events that take part, with the group columns of `contents.with_groups`: those that earlier segments
            kept, which no flush refuses any more, and the accepted ones of this.
        flushed: The sessions that earlier flushes closed, see flushed_windows.py.
        window: The window.

    Returns:
        `_arrival_seq`, `__missed_from` and `__end`: the session that each would have given.
    """
    groups = group_names(window)
    is_fresh = F.col(OPEN_IN).isNull() if OPEN_IN in events.columns else F.lit(True)
    told = with_flushed(events.withColumn("__fresh", is_fresh), flushed, window).where(F.size(FLUSHED) > 0)
    # Where a later event than this takes part, the session ends behind all that were flushed.
    last = F.array_max(F.transform(FLUSHED, lambda one: one["end"])) + F.lit(window.gap_us)
    near = told.where(F.col(T_FINAL) <= last)
    event = F.struct(SEQ, F.col(T_FINAL).alias("t"), F.col(W_BEFORE).alias("w"), F.col("__fresh").alias("fresh"))
    in_order = near.groupBy(TIMELINE, *groups).agg(
        F.sort_array(F.collect_list(event)).alias("events"), F.any_value(FLUSHED).alias(FLUSHED)
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
    return F.exists(FLUSHED, lambda one: (one["start"] == start) & (one["end"] == end))


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
