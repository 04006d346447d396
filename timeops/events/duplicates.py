"""Rule 0: a record is a duplicate of the first one with its key, when their event times are near enough.

Here: keys, who is whose duplicate, the first times that a segment adds. Not here: where first times are kept between
batches (assets/state/dedup.py).

Records of a key whose event times follow each other at most `within` apart are a chain; chains are independent.
Nearly every chain has one time: then its first record is the first one, and the rest are duplicates. In a
chain of several times a fold over these, in the order of the log, finds which records are first ones. First ones are
more than `within` apart, so a span of time of that length holds one at most. So a chain is an array of such spans, in
rows of as many places as there are rows. A record asks its own span and the two next to it. Spark copies the state of
a fold at every step: a chain costs its records times its spans, so it should be short.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.timeops.columns import EVENT_TIME, REASON, SEQ, to_us
from tidemark.timeops.events.event_time import extract, text_at
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec

FIRST_TIMES_SCHEMA = T.StructType(
    [T.StructField("key", T.StringType()), T.StructField("event_us", T.LongType()), T.StructField(SEQ, T.LongType())]
)
"""Records that are not duplicates: key, event time in microseconds, place in the log. Two of a key are more than
`within` apart."""

KEY = "__tm_key"  # STRING: the values of `deduplicate_by`; null where a record has none
FIRST = "__tm_first_seq"  # the lowest _arrival_seq of the records whose duplicate it is, or its own

_EVENT_US = "__tm_event_us"
_CHAIN = "__tm_chain_us"  # the first time of the record's chain, which names it among the chains of its key
_IS_NEW_TIME = "__tm_is_new_time"  # no earlier record of the key has this very time
_IS_KNOWN = "__tm_is_known"
_ALONE = "__tm_alone"  # the _arrival_seq of a record without a key: it is in a chain of its own
_LAST = "__tm_last_us"
_SPAN = "__tm_span"
_FIRSTS = "__tm_firsts"
_RECORD = f"struct<{SEQ}:bigint,{_EVENT_US}:bigint>"


def with_duplicates(events: DataFrame, earlier_first_times: DataFrame | None, time: TimeSpec) -> DataFrame:
    """Mark the records that are duplicates.

    Args:
        events: Rows of `extract`.
        earlier_first_times: FIRST_TIMES_SCHEMA of earlier segments, at least all within reach of an event; by
            default none.
        time: The spec's `time` section; it has `deduplicate_by`.

    Returns:
        `events` with `__tm_reason` set to `duplicate` where a record is one, `__tm_key`, and `__tm_first_seq`: of a
        record with a key the lowest `_arrival_seq` of the records whose duplicate it is, or its own.

    Raises:
        SpecError: An expression of `deduplicate_by` does not fit the columns.
    """
    key = F.expr(f"IF({REASON} IS NULL, {key_of(Columns.of(events), time.deduplicate_by)}, NULL)")
    rows = events.withColumn(KEY, key).withColumns(
        {
            _EVENT_US: F.expr(f"IF({KEY} IS NULL, NULL, unix_micros({EVENT_TIME}))"),
            _ALONE: F.expr(f"IF({KEY} IS NULL, {SEQ}, NULL)"),
            _IS_KNOWN: F.lit(False),
        }
    )
    if earlier_first_times is not None:
        earlier = earlier_first_times.select(F.col("key").alias(KEY), F.col("event_us").alias(_EVENT_US), SEQ)
        rows = rows.unionByName(earlier.withColumn(_IS_KNOWN, F.lit(True)), allowMissingColumns=True)
    chained = _chained(rows, time.within_us)
    has_several = F.coalesce(F.col(_LAST) > F.col(_CHAIN), F.lit(False))
    several = _first_of_several(chained.where(has_several), time.within_us)
    marked = chained.where(~has_several).unionByName(several).where(~F.col(_IS_KNOWN))
    is_duplicate = F.col(KEY).isNotNull() & (F.col(FIRST) != F.col(SEQ))
    judged = marked.withColumn(REASON, F.coalesce(REASON, F.when(is_duplicate, Reason.DUPLICATE)))
    return judged.drop(_EVENT_US, _CHAIN, _IS_NEW_TIME, _ALONE, _IS_KNOWN, _LAST)


def key_of(columns: Columns, expressions: Sequence[str]) -> str:
    """Return SQL of the values of `deduplicate_by`, a JSON array of strings; null where one is null or fails.

    Raises:
        SpecError: An expression does not fit the columns, or is not a plain value.
    """
    texts = [text_at(columns, text, f"time.deduplicate_by[{position}]") for position, text in enumerate(expressions)]
    values = f"array({', '.join(texts)})"
    return f"IF(exists({values}, __tm_v -> __tm_v IS NULL), NULL, to_json({values}))"


def first_times(accepted: DataFrame, refused: DataFrame) -> DataFrame:
    """Return the first times that a segment adds, FIRST_TIMES_SCHEMA; arguments as of `adjustment.Adjusted`."""
    columns = (F.col(KEY).alias("key"), to_us(EVENT_TIME).alias("event_us"), F.col(SEQ))
    both = accepted.select(*columns).unionByName(refused.where(F.col(REASON) != Reason.DUPLICATE).select(*columns))
    return both.where(F.col("key").isNotNull())


def event_times(items: DataFrame, rules: TimeRules, width_us: int) -> DataFrame:
    """Return the event times of a segment: the first and last, `first_us` and `last_us`, of each piece of time."""
    us = to_us(EVENT_TIME)
    timed = extract(items, rules).where(F.col(REASON).isNull())
    pieces = timed.groupBy(F.floor(us / F.lit(width_us)).alias("piece"))
    return pieces.agg(F.min(us).alias("first_us"), F.max(us).alias("last_us")).drop("piece")


def _chained(rows: DataFrame, within_us: int) -> DataFrame:
    """Add the chain of each row, whether it is the first of its time, the chain's last time and first record."""
    in_time = Window.partitionBy(KEY, _ALONE).orderBy(_EVENT_US, SEQ)
    step = F.col(_EVENT_US) - F.lag(_EVENT_US).over(in_time)
    stepped = rows.withColumn("__tm_step", step)
    begins = F.coalesce(F.col("__tm_step") > F.lit(within_us), F.lit(True))
    chain = F.max(F.when(begins, F.col(_EVENT_US))).over(in_time)
    named = stepped.withColumns({_CHAIN: chain, _IS_NEW_TIME: F.coalesce(F.col("__tm_step") > 0, F.lit(True))})
    of_chain = Window.partitionBy(KEY, _ALONE, _CHAIN)
    return named.withColumns({_LAST: F.max(_EVENT_US).over(of_chain), FIRST: F.min(SEQ).over(of_chain)}).drop(
        "__tm_step"
    )


def _first_of_several(chains: DataFrame, within_us: int) -> DataFrame:
    """Find the first ones of chains with several times.

    Args:
        chains: Records with `__tm_key`, `__tm_event_us`, `__tm_chain_us`, `__tm_is_new_time`.
        within_us: How far apart the event times of duplicates are at most.

    Returns:
        The records with `__tm_first_seq`.
    """
    span = _div(F.col(_EVENT_US) - F.col(_CHAIN), F.lit(within_us + 1))
    new_times = chains.where(_IS_NEW_TIME).groupBy(KEY, _CHAIN)  # records of one time share their fate
    in_order = new_times.agg(
        F.sort_array(F.collect_list(F.struct(SEQ, _EVENT_US))).alias("records"),
        F.ceil(F.sqrt(F.max(span) + 1)).cast("int").alias("side"),
    )
    # Every chain has a first one. `explode` would compute the fold three times, because Spark first filters out empty
    # arrays.
    firsts = in_order.select(KEY, _CHAIN, F.explode_outer(_fold(within_us)).alias("first"))
    span_of_first = _div(F.col("first")[_EVENT_US] - F.col(_CHAIN), F.lit(within_us + 1))
    beside = firsts.select(
        KEY, _CHAIN, "first", F.explode(F.array(span_of_first - 1, span_of_first, span_of_first + 1)).alias(_SPAN)
    )
    by_span = beside.groupBy(KEY, _CHAIN, _SPAN).agg(F.collect_list("first").alias(_FIRSTS))
    placed = chains.drop(FIRST).withColumn(_SPAN, span).join(by_span, [KEY, _CHAIN, _SPAN])
    near = F.filter(_FIRSTS, lambda first: _is_near(F.col(_EVENT_US), first, within_us))
    with_first = placed.withColumn(FIRST, F.array_min(F.transform(near, lambda first: first[SEQ])))
    return with_first.drop(_SPAN, _FIRSTS)


def _fold(within_us: int) -> Column:
    """Return ARRAY<STRUCT<_arrival_seq, __tm_event_us>>: the first ones of a chain, from its `records` and `side`."""
    side = F.col("side")

    def at(rows: Column, span: Column) -> Column:
        return F.get(F.get(rows, _row(span)), _place(span))

    def take(rows: Column, record: Column) -> Column:
        span = _div(record[_EVENT_US] - F.col(_CHAIN), F.lit(within_us + 1))
        near = [_is_near(record[_EVENT_US], at(rows, span + beside), within_us) for beside in (-1, 0, 1)]
        row = F.get(rows, _row(span))
        changed = _with(row, _place(span), record)
        return F.when(reduce(or_, near), rows).otherwise(_with(rows, _row(span), changed))

    def _row(span: Column) -> Column:
        return _div(span, side).cast("int")

    def _place(span: Column) -> Column:
        return F.pmod(span, side).cast("int")

    def _with(array: Column, index: Column, value: Column) -> Column:
        before, after = F.slice(array, F.lit(1), index), F.slice(array, index + 2, side)
        return F.concat(before, F.array(value), after)

    empty = F.array_repeat(F.array_repeat(F.lit(None).cast(_RECORD), side), side)
    return F.aggregate(
        "records", empty, take, lambda rows: F.filter(F.flatten(rows), lambda first: first.isNotNull())
    )


def _is_near(event_us: Column, first: Column, within_us: int) -> Column:
    return F.coalesce(F.abs(event_us - first[_EVENT_US]) <= F.lit(within_us), F.lit(False))


def _div(value: Column, by: Column) -> Column:
    return F.call_function("div", value, by)
