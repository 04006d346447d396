"""What only one event after the other can tell of sessions: with a longest duration, with late events, their bounds.

Here: folds over the few columns that they need of a chain of events, one pass over one sorted array for each chain.
Not here: the chains, and sessions that need no fold (sessions.py); sessions that a flush closed (drained.py).

Of sessions that revise their results the bounds matter that they had one after the other. A session grows and merges
and never shrinks. So bounds are there from the event that made them until the one that changed them, or until the
session closes, and never again. Nearly all of them are gone before they can give a result; these are left out.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, T_FINAL, W_BEFORE, computed_once, floor_to
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.membership import END, EVENT, START

CHAIN = "__tm_chain"
"""Names a chain of events at most a gap apart: their lowest `_arrival_seq`, with `over` and the timeline; of results
timeline, group and start."""
LAST = "__tm_last"  # its latest time
RISKY = "__tm_risky"  # an event of it came so late that it may find closed sessions within its gap

_BUCKET = "__tm_bucket"
_SPANS = "__tm_spans"
_OWN = "__tm_own"
_HOPELESS = "__tm_hopeless"
_SPAN = "struct<first: bigint, last: bigint>"
_BUNDLE = 1_000  # an array is copied whenever it grows, so a long one is made of short ones
_SPAN_UNTIL = "struct<first: bigint, last: bigint, until: bigint>"

BOUNDS = f"array<struct<first: bigint, last: bigint, made_by: {EVENT}, changed_by: {EVENT}>>"
"""Bounds of a session: `made_by` is the event that made them, null where it was on time and that is enough;
`changed_by` the one that changed them, which is one of the segment, null where they last."""


def cut_long(chains: DataFrame, window: WindowSpec) -> DataFrame:
    """Cuts chains into sessions of at most `max_duration`; the first event behind that begins the next one.

    Args:
        chains: Events with `__tm_start`, `__tm_last` and `__tm_chain`.
        window: The window; it has a longest duration.

    Returns:
        The events with `__tm_start` and `__tm_end` of their sessions.
    """
    longest_us = window.max_duration_us
    assert longest_us is not None  # who calls has seen that
    longest = F.lit(longest_us)
    is_long = F.col(LAST) - F.col(START) > longest
    long = chains.where(is_long)
    times = long.groupBy(CHAIN).agg(F.sort_array(F.collect_set(T_FINAL)).alias("times"))
    cuts = times.select(CHAIN, F.explode(_cuts(F.col("times"), longest)).alias(_OWN))
    # Sessions begin more than the longest duration apart. So a span of time of that length holds one start at
    # most, and the session of an event begins in the event's own segment or in the one before.
    begins_in = floor_to(F.col(_OWN)["first"], longest_us)
    near = cuts.select(CHAIN, _OWN, F.explode(F.array(begins_in, begins_in + longest)).alias(_BUCKET))
    by_bucket = near.groupBy(CHAIN, _BUCKET).agg(F.collect_list(_OWN).alias(_SPANS))
    placed = long.withColumn(_BUCKET, floor_to(F.col(T_FINAL), longest_us)).join(by_bucket, [CHAIN, _BUCKET])
    begun = F.filter(_SPANS, lambda span: span["first"] <= F.col(T_FINAL))
    cut = placed.withColumn(_OWN, F.array_max(begun)).withColumns(_own_times())
    both = chains.where(~is_long).unionByName(cut.drop(_BUCKET, _SPANS, _OWN))
    return both.withColumn(END, F.least(F.col(LAST) + F.lit(window.gap_us), F.col(START) + longest))


def _own_times() -> dict[str, Column]:
    return {START: F.col(_OWN)["first"], LAST: F.col(_OWN)["last"]}


def _cuts(times: Column, longest: Column) -> Column:
    """ARRAY<STRUCT<first, last>> of the sessions of a chain, from its times in order."""

    def take(session: Column, t: Column) -> Column:
        begins = t - session["first"] > longest
        return F.struct(
            F.when(begins, t).otherwise(session["first"]).alias("first"),
            t.alias("last"),
            F.when(begins, _and_this(session)).otherwise(session["done"]).alias("done"),
        )

    first = F.get(times, F.lit(0))
    nothing = F.array().cast(f"array<{_SPAN}>")
    begin = F.struct(first.alias("first"), first.alias("last"), nothing.alias("done"))
    return F.aggregate(times, begin, take, _and_this)


def _and_this(session: Column) -> Column:
    return F.array_append(session["done"], F.struct(session["first"].alias("first"), session["last"].alias("last")))


def merge_late(chains: DataFrame, window: WindowSpec) -> DataFrame:
    """Finds the sessions of chains that may hold late events for which a session had closed.

    Args:
        chains: Events with `__tm_start`, `__tm_last`, `__tm_chain`, `__tm_risky`, and `__tm_w_before`.
        window: The window.

    Returns:
        The events with `__tm_start` and `__tm_end` of their sessions, null where the session had closed.
    """
    to_close = F.lit(window.gap_us + window.allowed_lateness_us)
    earlier = Window.partitionBy(CHAIN).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    reach = F.max(T_FINAL).over(earlier)  # no session of the chain can end later than a gap behind it
    closed = F.coalesce(F.greatest(reach, T_FINAL) + to_close < F.col(W_BEFORE), F.lit(False))
    reached = chains.where(RISKY).withColumn(_HOPELESS, closed)
    nothing = F.lit(None).cast("bigint")
    hopeless = reached.where(_HOPELESS).withColumns({START: nothing, LAST: nothing}).drop(_HOPELESS)
    risky = reached.where(~F.col(_HOPELESS)).drop(_HOPELESS)
    in_order = F.sort_array(F.collect_list(F.struct(SEQ, T_FINAL, W_BEFORE)))
    folded = risky.groupBy(CHAIN).agg(_fold(in_order, window).alias("found")).select(CHAIN, "found.*")
    # Of the sessions that span its time an event is in the one that closed first after it came: any other came to
    # span that time later. Those that are open behind the last event come last.
    t, seq = F.col(T_FINAL), F.col(SEQ)
    spanning = F.filter(
        F.concat("closed", "open"),
        lambda span: (span["first"] <= t) & (t <= span["last"]) & F.coalesce(seq < span["until"], F.lit(True)),
    )
    is_refused = F.exists(
        "refused",
        lambda bundle: (
            (F.get(bundle, F.lit(0)) <= seq) & (seq <= F.element_at(bundle, -1)) & F.array_contains(bundle, seq)
        ),
    )
    own = F.when(~is_refused, F.get(spanning, F.lit(0)))
    merged = risky.join(folded, CHAIN).withColumn(_OWN, own).withColumns(_own_times())
    both = chains.where(~F.col(RISKY)).unionByName(hopeless)
    both = both.unionByName(merged.drop("closed", "open", "refused", _OWN))
    return both.withColumn(END, F.col(LAST) + F.lit(window.gap_us))


def _fold(events: Column, window: WindowSpec) -> Column:
    """What becomes of a chain: STRUCT<closed, open ARRAY<STRUCT<first, last, until>>, refused ARRAY<ARRAY<BIGINT>>>.

    Args:
        events: ARRAY<STRUCT<_arrival_seq, __tm_timestamp, __tm_w_before>> of the chain in order.
        window: The window.

    Returns:
        The sessions in the order in which they closed; `until` is the `_arrival_seq` of the first event that found
        the session closed, null while it is open. `refused` has those of the events that were too late to begin a
        session and found no open one within their gap: ascending, in bundles, none of them empty.
    """
    gap, to_close = F.lit(window.gap_us), F.lit(window.gap_us + window.allowed_lateness_us)

    def take(known: Column, event: Column) -> Column:
        """The lists are copied only when they grow, so nearly every event costs what the few open sessions cost."""
        t, watermark = event[T_FINAL], event[W_BEFORE]

        def is_open(span: Column) -> Column:
            """Where the event has no watermark it is on time: no closed session is near it."""
            return F.coalesce(span["last"] + to_close >= watermark, F.lit(True))

        def is_joined(span: Column) -> Column:
            return is_open(span) & (span["first"] - gap <= t) & (t <= span["last"] + gap)

        spans, bundle = known["open"], known["bundle"]
        joined = F.filter(spans, is_joined)
        others = F.filter(spans, lambda span: is_open(span) & ~is_joined(span))
        own = F.struct(
            F.least(t, F.array_min(F.transform(joined, lambda span: span["first"]))).alias("first"),
            F.greatest(t, F.array_max(F.transform(joined, lambda span: span["last"]))).alias("last"),
            F.lit(None).cast("bigint").alias("until"),
        )
        ended = F.transform(
            F.filter(spans, lambda span: ~is_open(span)), lambda span: span.withField("until", event[SEQ])
        )
        some_ended = F.exists(spans, lambda span: ~is_open(span))
        late = F.coalesce(t + to_close < watermark, F.lit(False)) & ~F.exists(spans, is_joined)
        is_full = late & (F.size(bundle) >= F.lit(_BUNDLE))
        own_bundle = F.when(is_full, F.array(event[SEQ])).when(late, F.array_append(bundle, event[SEQ]))
        refused = F.when(is_full, F.array_append(known["refused"], bundle)).otherwise(known["refused"])
        return F.struct(
            F.when(some_ended, F.concat(known["closed"], ended)).otherwise(known["closed"]).alias("closed"),
            F.when(late, others).otherwise(F.array_append(others, own)).alias("open"),
            refused.alias("refused"),
            own_bundle.otherwise(bundle).alias("bundle"),
        )

    nothing = F.struct(
        F.array().cast(f"array<{_SPAN_UNTIL}>").alias("closed"),
        F.array().cast(f"array<{_SPAN_UNTIL}>").alias("open"),
        F.array().cast("array<array<bigint>>").alias("refused"),
        F.array().cast("array<bigint>").alias("bundle"),
    )

    def finish(known: Column) -> Column:
        last = F.filter(F.array(known["bundle"]), lambda bundle: F.size(bundle) > 0)
        return known.withField("refused", F.concat(known["refused"], last)).dropFields("bundle")

    return F.aggregate(events, nothing, take, finish)


def bounds_of(came: Column, window: WindowSpec) -> Column:
    """BOUNDS of a session, from its events in order: those that changed and may give a result, and the last.

    Args:
        came: Array of EVENT, in the order in which they came.
        window: The window, which revises its results.
    """
    gap = F.lit(window.gap_us)

    def take(known: Column, event: Column) -> Column:
        t = event["t"]

        def is_joined(span: Column) -> Column:
            return (span["first"] - gap <= t) & (t <= span["last"] + gap)

        def merged(joined: Column) -> Column:
            one = F.get(joined, F.lit(0))
            is_inside = (F.size(joined) == 1) & (one["first"] <= t) & (t <= one["last"])
            own = F.struct(
                F.least(t, F.array_min(F.transform(joined, lambda span: span["first"]))).alias("first"),
                F.greatest(t, F.array_max(F.transform(joined, lambda span: span["last"]))).alias("last"),
                event.alias("made_by"),
                F.lit(None).cast(EVENT).alias("changed_by"),
            )
            others = F.filter(known["open"], lambda span: ~is_joined(span))
            matters = F.filter(joined, lambda span: _may_have_given(span, event, window))
            changed = F.transform(matters, lambda span: span.withField("changed_by", event))
            some = F.when(F.size(matters) > 0, F.concat(known["changed"], changed)).otherwise(known["changed"])
            return F.when(is_inside, known).otherwise(
                F.struct(F.array_append(others, own).alias("open"), some.alias("changed"))
            )

        return computed_once(F.filter(known["open"], is_joined), merged)

    nothing = F.array().cast(BOUNDS)
    none_yet = F.struct(nothing.alias("open"), nothing.alias("changed"))
    return F.aggregate(came, none_yet, take, lambda known: F.concat(known["changed"], known["open"]))


def _may_have_given(span: Column, event: Column, window: WindowSpec) -> Column:
    """BOOLEAN: bounds may have given a result when an event of the segment came and changed them."""
    every_us = window.early_every_us
    if every_us is None:
        passed = event["w"] > span["last"] + F.lit(window.gap_us)
    else:
        passed = floor_to(span["made_by"]["clock"], every_us) + F.lit(every_us) <= event["clock"]
    return event["fresh"] & F.coalesce(passed, F.lit(False))
