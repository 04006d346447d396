"""Rule 0: a record is a duplicate of the first one with its key, when their event times are near enough.

Here: keys, who is whose duplicate, the first times that a segment adds. Not here: chains of several times, which only
one record after the other can tell (duplicate_folds.py), where first times are kept between batches.

Records of a key whose event times follow each other at most `within` apart are a chain, and no chain knows of the
others. Nearly every chain has one time: then its first record is the first one, and the rest are duplicates.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tidemark.timeops.columns import EVENT_TIME, REASON, SEQ, to_us
from tidemark.timeops.events.duplicate_folds import CHAIN, EVENT_US, FIRST, IS_NEW_TIME, KEY, first_of_several
from tidemark.timeops.events.extraction import extract
from tidemark.timeops.expressions.refusals import REFUSALS, Asked, problem_of
from tidemark.timeops.expressions.try_expression import text_of, type_of
from tidemark.timeops.problems import Problem, told
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import TimeSpec

FIRST_TIMES_SCHEMA = StructType(
    [StructField("key", StringType()), StructField("event_us", LongType()), StructField(SEQ, LongType())]
)
"""Records that are no duplicates: key, event time in microseconds, place in the log. Those of a key are more than
`within` apart."""

_IS_KNOWN = "__is_known"
_ALONE = "__alone"  # the _arrival_seq of a record without a key: it is in a chain of its own
_LAST = "__last_us"


def with_duplicates(events: DataFrame, known: DataFrame | None, time: TimeSpec) -> DataFrame:
    """Marks the records that are duplicates.

    Args:
        events: Rows of `extract`.
        known: FIRST_TIMES_SCHEMA of earlier segments, at least all within reach of an event; None for none.
        time: The spec's `time` section; it has `deduplicate_by`.

    Returns:
        `events` with `__reason` set to `duplicate` where a record is one, `__key`, and `__first_seq`: of a record
        with a key the lowest `_arrival_seq` of those whose duplicate it is, or its own.

    Raises:
        SpecError: An expression of `deduplicate_by` does not fit the columns.
    """
    key = F.when(F.col(REASON).isNull(), key_of(events, time.deduplicate_by))
    rows = events.withColumn(KEY, key).withColumns(
        {
            EVENT_US: F.when(F.col(KEY).isNotNull(), to_us(EVENT_TIME)),
            _ALONE: F.when(F.col(KEY).isNull(), F.col(SEQ)),
            _IS_KNOWN: F.lit(False),
        }
    )
    if known is not None:
        earlier = known.select(F.col("key").alias(KEY), F.col("event_us").alias(EVENT_US), SEQ)
        rows = rows.unionByName(earlier.withColumn(_IS_KNOWN, F.lit(True)), allowMissingColumns=True)
    chained = _chained(rows, time.within_us)
    has_several = F.coalesce(F.col(_LAST) > F.col(CHAIN), F.lit(False))
    several = first_of_several(chained.where(has_several), time.within_us)
    found = chained.where(~has_several).unionByName(several).where(~F.col(_IS_KNOWN))
    is_duplicate = F.col(KEY).isNotNull() & (F.col(FIRST) != F.col(SEQ))
    judged = found.withColumn(REASON, F.coalesce(REASON, F.when(is_duplicate, "duplicate")))
    return judged.drop(EVENT_US, CHAIN, IS_NEW_TIME, _ALONE, _IS_KNOWN, _LAST)


def key_of(events: DataFrame, expressions: Sequence[str]) -> Column:
    """The values of `deduplicate_by` as a JSON array of strings; null where one of them is null or fails.

    Raises:
        SpecError: An expression does not fit the columns, or gives no plain value.
    """
    for position, expression in enumerate(expressions):
        _check(events, expression, f"time.deduplicate_by[{position}]")
    values = [text_of(events, expression) for expression in expressions]
    lacks_one = F.exists(F.array(*values), lambda value: value.isNull())
    return F.when(~lacks_one, F.to_json(F.array(*values)))


def first_times(accepted: DataFrame, refused: DataFrame) -> DataFrame:
    """The first times that a segment adds, FIRST_TIMES_SCHEMA; arguments as of `adjustment.JudgedRows`."""
    columns = (F.col(KEY).alias("key"), to_us(EVENT_TIME).alias("event_us"), F.col(SEQ))
    both = accepted.select(*columns).unionByName(refused.where(F.col(REASON) != "duplicate").select(*columns))
    return both.where(F.col("key").isNotNull())


def event_times(items: DataFrame, rules: TimeRules, width_us: int) -> DataFrame:
    """The event times of a segment: the first and the last, `first_us` and `last_us`, of each piece of time."""
    us = to_us(EVENT_TIME)
    timed = extract(items, rules).where(F.col(REASON).isNull())
    pieces = timed.groupBy(F.floor(us / F.lit(width_us)).alias("piece"))
    return pieces.agg(F.min(us).alias("first_us"), F.max(us).alias("last_us")).drop("piece")


def _chained(rows: DataFrame, within_us: int) -> DataFrame:
    """Adds the chain of each row, whether it is the first of its time, the chain's last time and first record."""
    in_time = Window.partitionBy(KEY, _ALONE).orderBy(EVENT_US, SEQ)
    step = F.col(EVENT_US) - F.lag(EVENT_US).over(in_time)
    stepped = rows.withColumn("__step", step)
    begins = F.coalesce(F.col("__step") > F.lit(within_us), F.lit(True))
    chain = F.max(F.when(begins, F.col(EVENT_US))).over(in_time)
    named = stepped.withColumns({CHAIN: chain, IS_NEW_TIME: F.coalesce(F.col("__step") > 0, F.lit(True))})
    whole = Window.partitionBy(KEY, _ALONE, CHAIN)
    return named.withColumns({_LAST: F.max(EVENT_US).over(whole), FIRST: F.min(SEQ).over(whole)}).drop("__step")


def key_problem(kind: DataType, expression: str) -> Problem | None:
    """What is wrong with an expression of this type where a part of a key is asked for."""
    if isinstance(kind, AtomicType) and not isinstance(kind, BinaryType | VariantType):
        return None
    return Problem(
        f"`{expression}` gives {kind.simpleString().upper()}, which has no plain text",
        expected="text, a number, an instant, a day or a truth value",
        remedy=f"name the parts that are the key, or write `hex({expression})` or `to_json({expression})`",
    )


def _check(events: DataFrame, expression: str, where: str) -> None:
    try:
        problem = key_problem(type_of(events, expression), expression)
    except REFUSALS as error:
        problem = problem_of(error, Asked(expression, events.columns))
    if problem is not None:
        raise told(problem, where)
