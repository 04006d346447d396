"""The scans that find each event's watermark: in order, by blocks of the log, by periods of the clock.

Here: running maxima. Not here: which scan serves which spec (watermarks.py).

In order: one window by timeline, with all rows in it.

By blocks, for few timelines: the log is cut into blocks of consecutive `_arrival_seq`. A small aggregation gives the
highest watermark that each block's events ask for; the highest of all earlier blocks and of the carried state is the
block's *carry*. A row at or above the carry and everything its own block asks for is on time whatever the order
inside the block. That is nearly every row: it needs no shuffle and no exact watermark. Only the other, *doubtful*
rows, and those that may have set their watermark, go through a window by block.

By periods there is nothing to order: a period's events all see what the periods before it asked for.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from timeops.columns import ASKED, BY_CLOCK, PERIOD, SEQ, SETTER, TIMELINE, W_BEFORE, W_RANK, T, floor_to
from timeops.timelines import STEP, carried

BLOCK_ROWS = 512

_BLOCK = "__block"
_CARRY = "__carry"
_TOP = "__top"
_LOWEST = "__lowest_t"


@dataclass(frozen=True)
class Found:
    """What a scan finds.

    Attributes:
        events: The events with `__w_before` where they may be behind it, else null; and `__w_rank`, the `__setter` of
            that watermark, where the scan knows it.
        setters: `_timeline`, `__asked_w`, `__setter` of the stretch's events, where it must be looked up.
    """

    events: DataFrame
    setters: DataFrame | None


def in_order(events: DataFrame, state: DataFrame) -> Found:
    """One window by timeline: a shuffle and a sort of all rows.

    Args:
        events: Rows with what `timelines.asking` adds.
        state: timelines.STATE_SCHEMA before them.
    """
    rows = events.select(TIMELINE, SEQ, ASKED, SETTER, T, BY_CLOCK, F.struct("*").alias("__row"))
    return Found(_exact(rows, state), None)


def _exact(rows: DataFrame, state: DataFrame) -> DataFrame:
    """Rows with a payload, each with the watermark just before it and who set that.

    Args:
        rows: `_timeline`, `_arrival_seq`, `__asked_w`, `__setter`, `__t`, `__clock_w` and `__row`, the payload.
        state: timelines.STATE_SCHEMA before them.
    """
    earlier = Window.partitionBy(TIMELINE).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    both = rows.unionByName(carried(state).select(*STEP), allowMissingColumns=True)
    asks = F.when(F.col(ASKED).isNotNull(), F.struct(ASKED, SETTER))
    seen = both.withColumn("__seen", F.max(asks).over(earlier)).where("__row IS NOT NULL")
    asked = F.col("__seen")[ASKED]
    by_event = F.when(F.coalesce(asked >= F.col(BY_CLOCK), F.lit(True)), F.col("__seen")[SETTER])
    ranked = seen.select("__row.*", F.greatest(asked, BY_CLOCK).alias(W_BEFORE), by_event.alias(W_RANK))
    return _only_behind(ranked)


def by_blocks(events: DataFrame, state: DataFrame) -> Found:
    """The pruned scan: only doubtful rows and their possible setters are shuffled. Arguments as for `in_order`."""
    in_blocks = events.withColumn(_BLOCK, floor_to(F.col(SEQ), BLOCK_ROWS))
    blocks = _blocks(in_blocks, state)
    rows = in_blocks.join(F.broadcast(blocks), [TIMELINE, _BLOCK])
    doubtful = F.coalesce(F.col(T) < F.col(_TOP), F.lit(False))
    rises = F.col(_CARRY).isNull() | (F.col(ASKED) > F.col(_CARRY))
    kept = events.columns
    on_time = rows.where(~doubtful).select(*kept, F.lit(None).cast("bigint").alias(W_BEFORE))
    # The payload travels only with the rows that are asked about, not with those that set their watermark.
    slim = rows.where(doubtful | (rises & (F.col(_LOWEST) < F.col(_TOP)))).select(
        TIMELINE,
        _BLOCK,
        SEQ,
        _CARRY,
        F.when(rises, F.col(ASKED)).alias("__rising"),
        BY_CLOCK,
        F.when(doubtful, F.struct(*kept)).alias("__row"),
    )
    earlier = Window.partitionBy(TIMELINE, _BLOCK).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    exact = slim.withColumn(W_BEFORE, F.greatest(F.max("__rising").over(earlier), _CARRY, BY_CLOCK))
    resolved = exact.where(F.col("__row").isNotNull()).select("__row.*", W_BEFORE)
    # A watermark that a later row finds standing was set inside a doubtful block, or is some block's highest.
    rising = rows.where(rises & ((F.col(_LOWEST) < F.col(_TOP)) | (F.col(ASKED) == F.col(_TOP))))
    setters = rising.groupBy(TIMELINE, ASKED).agg(F.max(SETTER).alias(SETTER))
    return Found(on_time.unionByName(_only_behind(resolved)), setters)


def by_periods(events: DataFrame, state: DataFrame, every_us: int) -> Found:
    """Periodic emission (F): the watermark as it stood after the last item of an earlier period of the clock."""
    asked = events.groupBy(TIMELINE, PERIOD).agg(F.max(F.struct(ASKED, SETTER)).alias("asked"))
    setters = asked.select(TIMELINE, "asked.*")
    own = asked.select(TIMELINE, PERIOD, F.col("asked")[ASKED].alias(ASKED))
    waiting = state.select(TIMELINE, floor_to(F.col("clock"), every_us).alias(PERIOD), F.col("computed").alias(ASKED))
    periods = own.unionByName(waiting).groupBy(TIMELINE, PERIOD).agg(F.max(ASKED).alias("__highest"))
    earlier = Window.partitionBy(TIMELINE).orderBy(PERIOD).rowsBetween(Window.unboundedPreceding, -1)
    seen = periods.join(state.select(TIMELINE, "watermark"), TIMELINE, "left").select(
        TIMELINE, PERIOD, F.greatest("watermark", F.max("__highest").over(earlier)).alias(W_BEFORE)
    )
    return Found(_only_behind(events.join(seen, [TIMELINE, PERIOD])), setters)


def _blocks(in_blocks: DataFrame, state: DataFrame) -> DataFrame:
    """Per timeline and block: carry, the highest watermark up to its end (top), and its lowest t."""
    earlier = Window.partitionBy(TIMELINE).orderBy(_BLOCK).rowsBetween(Window.unboundedPreceding, -1)
    highest = in_blocks.groupBy(TIMELINE, _BLOCK).agg(F.max(ASKED).alias("__highest"), F.min(T).alias(_LOWEST))
    before = state.select(TIMELINE, F.col("computed").alias("__state_w"))
    blocks = highest.join(before, TIMELINE, "left").withColumn(
        _CARRY, F.greatest("__state_w", F.max("__highest").over(earlier))
    )
    return blocks.select(TIMELINE, _BLOCK, _CARRY, F.greatest(_CARRY, "__highest").alias(_TOP), _LOWEST)


def _only_behind(events: DataFrame) -> DataFrame:
    """`__w_before` only where the event is behind it."""
    return events.withColumn(W_BEFORE, F.when(F.col(T) < F.col(W_BEFORE), F.col(W_BEFORE)))
