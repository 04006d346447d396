"""Chains of records with several event times: who is a first one shows only one record after the other.

Here: a fold over the times of each chain, in the order of the log. Not here: the chains (duplicates.py).

First ones are more than `within` apart. So a span of time of that length holds one at most: a chain is an array of
such buckets, in rows of as many places as there are rows, and a record asks its own bucket and the two beside it.
Spark copies the state of a fold at every step: a chain costs its records times its buckets, so it should be short.
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ

KEY = "__key"  # STRING: the values of `deduplicate_by`; null where a record has none
EVENT_US = "__event_us"
CHAIN = "__chain_us"  # the first time of the record's chain, which names it among those of its key
IS_NEW_TIME = "__is_new_time"  # no earlier record of the key has this very time
FIRST = "__first_seq"  # the lowest _arrival_seq of those whose duplicate a record is, or its own

_BUCKET = "__bucket"
_FIRSTS = "__firsts"
_RECORD = f"struct<{SEQ}:bigint,{EVENT_US}:bigint>"


def first_of_several(chains: DataFrame, within_us: int) -> DataFrame:
    """Finds the first ones of chains with several times.

    Args:
        chains: Records with `__key`, `__event_us`, `__chain_us`, `__is_new_time`.
        within_us: How far apart the event times of duplicates are at most.

    Returns:
        The records with `__first_seq`.
    """
    bucket = _div(F.col(EVENT_US) - F.col(CHAIN), F.lit(within_us + 1))
    new_times = chains.where(IS_NEW_TIME).groupBy(KEY, CHAIN)  # records of one time share their fate
    in_order = new_times.agg(
        F.sort_array(F.collect_list(F.struct(SEQ, EVENT_US))).alias("records"),
        F.ceil(F.sqrt(F.max(bucket) + 1)).cast("int").alias("side"),
    )
    # Every chain has a first one. A plain explode would fold each chain thrice, to leave out empty arrays beforehand.
    firsts = in_order.select(KEY, CHAIN, F.explode_outer(_fold(within_us)).alias("first"))
    own = _div(F.col("first")[EVENT_US] - F.col(CHAIN), F.lit(within_us + 1))
    beside = firsts.select(KEY, CHAIN, "first", F.explode(F.array(own - 1, own, own + 1)).alias(_BUCKET))
    by_bucket = beside.groupBy(KEY, CHAIN, _BUCKET).agg(F.collect_list("first").alias(_FIRSTS))
    placed = chains.drop(FIRST).withColumn(_BUCKET, bucket).join(by_bucket, [KEY, CHAIN, _BUCKET])
    near = F.filter(_FIRSTS, lambda first: _is_near(F.col(EVENT_US), first, within_us))
    found = placed.withColumn(FIRST, F.array_min(F.transform(near, lambda first: first[SEQ])))
    return found.drop(_BUCKET, _FIRSTS)


def _fold(within_us: int) -> Column:
    """ARRAY<STRUCT<_arrival_seq, __event_us>> of the first ones of a chain, from its `records` and `side`."""
    side = F.col("side")

    def at(known: Column, bucket: Column) -> Column:
        return F.get(F.get(known, _row(bucket)), _place(bucket))

    def take(known: Column, record: Column) -> Column:
        bucket = _div(record[EVENT_US] - F.col(CHAIN), F.lit(within_us + 1))
        near = [_is_near(record[EVENT_US], at(known, bucket + beside), within_us) for beside in (-1, 0, 1)]
        row = F.get(known, _row(bucket))
        changed = _with(row, _place(bucket), record)
        return F.when(reduce(or_, near), known).otherwise(_with(known, _row(bucket), changed))

    def _row(bucket: Column) -> Column:
        return _div(bucket, side).cast("int")

    def _place(bucket: Column) -> Column:
        return F.pmod(bucket, side).cast("int")

    def _with(array: Column, index: Column, value: Column) -> Column:
        before, behind = F.slice(array, F.lit(1), index), F.slice(array, index + 2, side)
        return F.concat(before, F.array(value), behind)

    empty = F.array_repeat(F.array_repeat(F.lit(None).cast(_RECORD), side), side)
    return F.aggregate(
        "records", empty, take, lambda known: F.filter(F.flatten(known), lambda first: first.isNotNull())
    )


def _is_near(event_us: Column, first: Column, within_us: int) -> Column:
    return F.coalesce(F.abs(event_us - first[EVENT_US]) <= F.lit(within_us), F.lit(False))


def _div(value: Column, by: Column) -> Column:
    return F.call_function("div", value, by)
