"""The exact watermark just before every event that it can matter for, without sorting the log.

Here: the scan (running maximum of t per timeline, behind by `out_of_orderness`). Not here: what is done with
an event behind it (adjustment.py), windows. Rules: H (base time and range), A2, F (bounded out-of-orderness).

The log is cut into blocks of consecutive `_arrival_seq`. A small aggregation gives the highest watermark that
each block's events ask for; the highest of all earlier blocks and of the carried state is the block's *carry*.
A row at or above the carry and everything its own block asks for is on time whatever the order inside the
block. That is nearly every row: it needs no shuffle and no exact watermark. Only the other, *doubtful* rows,
and those that may have set their watermark, go through a window by block.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from timeops.columns import MIN_US, SEQ, TIMELINE, W_BEFORE, W_SET_BY, T, floor_to

BLOCK_ROWS = 512

STATE_SCHEMA = StructType(
    [
        StructField(TIMELINE, StringType(), nullable=False),
        StructField("max_t", LongType()),
        StructField("watermark", LongType()),
        StructField("watermark_set_by", LongType()),
    ]
)
"""A timeline between two stretches of the log: largest t and watermark (microseconds), and the `_arrival_seq`
after which the watermark had this value for the first time (null where no event did it)."""

ASKED = "__asked_w"  # the watermark that an event asks for: its t minus the out-of-orderness
_BLOCK = "__block"
_CARRY = "__carry"
_TOP = "__top"
_LOWEST = "__lowest_t"
_SETTER = "__setter"


@dataclass(frozen=True)
class Scanned:
    """Events with their watermarks, who set them, and the timelines' state after them.

    Attributes:
        events: The events with `__asked_w` and `__w_before`: the watermark just before the event where the event
            may be behind it, null where it is on time whatever the order was.
        setters: `_timeline`, `__asked_w`, `__setter`: the lowest `_arrival_seq` that asked for a watermark above
            all before it; one row for each value that a later event may find standing.
        state: STATE_SCHEMA, every timeline of the state before or of the events.
    """

    events: DataFrame
    setters: DataFrame
    state: DataFrame


def scan(events: DataFrame, state: DataFrame, out_of_orderness_us: int, *, few_timelines: bool) -> Scanned:
    """Finds the watermark just before each event that may be behind it.

    Args:
        events: Rows with `_timeline`, `_arrival_seq` and `__t` (not null): all that move the watermark.
        state: STATE_SCHEMA: the timelines before the first of `events`.
        out_of_orderness_us: How far the watermark stays behind the largest t.
        few_timelines: The blocks' carries are few (one per timeline and 512 rows) and are broadcast. Otherwise one
            window by timeline does the work, at the price of a shuffle of all rows. The result is the same.

    Returns:
        The events with their watermarks and the state after them.
    """
    asked = F.greatest(F.col(T) - F.lit(out_of_orderness_us), F.lit(MIN_US))
    asking = events.withColumn(ASKED, asked)
    find = _by_blocks if few_timelines else _by_timeline
    judged, setters = find(asking, state)
    return Scanned(events=judged, setters=setters, state=state_after(asking, state))


def with_setter(behind: DataFrame, setters: DataFrame, state: DataFrame) -> DataFrame:
    """Adds `__w_set_by`: the lowest `_arrival_seq` after which the watermark had the value `__w_before`.

    Args:
        behind: Some of the scanned events; few, since each of them is looked up.
        setters: What `scan` gave.
        state: The state that `scan` was given; its setter stands where no event of the stretch moved W.
    """
    before = state.select(TIMELINE, F.col("watermark").alias(W_BEFORE), F.col("watermark_set_by").alias("__before"))
    within = setters.select(TIMELINE, F.col(ASKED).alias(W_BEFORE), _SETTER)
    keys = [TIMELINE, W_BEFORE]
    found = behind.join(before, keys, "left").join(within, keys, "left")
    return found.withColumn(W_SET_BY, F.coalesce("__before", _SETTER)).drop("__before", _SETTER)


def _by_timeline(events: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    earlier = Window.partitionBy(TIMELINE).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    known = events.join(state.select(TIMELINE, F.col("watermark").alias(_CARRY)), TIMELINE, "left")
    judged = known.withColumn(W_BEFORE, F.greatest(_CARRY, F.max(ASKED).over(earlier)))
    rising = judged.where(F.col(W_BEFORE).isNull() | (F.col(ASKED) > F.col(W_BEFORE)))
    setters = rising.select(TIMELINE, ASKED, F.col(SEQ).alias(_SETTER))
    may_be_behind = F.col(T) < F.col(W_BEFORE)
    return judged.withColumn(W_BEFORE, F.when(may_be_behind, F.col(W_BEFORE))).drop(_CARRY), setters


def _by_blocks(events: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    in_blocks = events.withColumn(_BLOCK, floor_to(F.col(SEQ), BLOCK_ROWS))
    blocks = _blocks(in_blocks, state)
    rows = in_blocks.join(F.broadcast(blocks), [TIMELINE, _BLOCK])
    doubtful = F.col(T) < F.col(_TOP)
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
        F.when(doubtful, F.struct(*kept)).alias("__row"),
    )
    earlier = Window.partitionBy(TIMELINE, _BLOCK).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    exact = slim.withColumn(W_BEFORE, F.coalesce(F.max("__rising").over(earlier), F.col(_CARRY)))
    resolved = exact.where(F.col("__row").isNotNull()).select("__row.*", W_BEFORE)
    behind = F.col(T) < F.col(W_BEFORE)
    resolved = resolved.withColumn(W_BEFORE, F.when(behind, F.col(W_BEFORE)))
    # A watermark that a later row finds standing was set inside a doubtful block, or is some block's highest.
    rising = rows.where(rises & ((F.col(_LOWEST) < F.col(_TOP)) | (F.col(ASKED) == F.col(_TOP))))
    setters = rising.groupBy(TIMELINE, ASKED).agg(F.min(SEQ).alias(_SETTER))
    return on_time.unionByName(resolved), setters


def _blocks(in_blocks: DataFrame, state: DataFrame) -> DataFrame:
    """Per timeline and block: carry, the highest watermark up to its end (top), and its lowest t."""
    earlier = Window.partitionBy(TIMELINE).orderBy(_BLOCK).rowsBetween(Window.unboundedPreceding, -1)
    highest = in_blocks.groupBy(TIMELINE, _BLOCK).agg(F.max(ASKED).alias("__highest"), F.min(T).alias(_LOWEST))
    before = state.select(TIMELINE, F.col("watermark").alias("__state_w"))
    carried = highest.join(F.broadcast(before), TIMELINE, "left").withColumn(
        _CARRY, F.greatest("__state_w", F.max("__highest").over(earlier))
    )
    return carried.select(TIMELINE, _BLOCK, _CARRY, F.greatest(_CARRY, "__highest").alias(_TOP), _LOWEST)


def state_after(events: DataFrame, state: DataFrame) -> DataFrame:
    """The timelines after a stretch of the log.

    Args:
        events: `_timeline`, `_arrival_seq`, `__t`, `__asked_w` of all events that move the watermark.
        state: STATE_SCHEMA before the stretch.
    """
    highest = events.groupBy(TIMELINE).agg(F.max(T).alias("__max_t"), F.max(ASKED).alias("__w"))
    found = events.join(highest, TIMELINE).where(F.col(ASKED) == F.col("__w"))
    moved = found.groupBy(TIMELINE, "__max_t", "__w").agg(F.min(SEQ).alias(_SETTER))
    both = state.join(moved, TIMELINE, "full")
    rose = F.col("watermark").isNull() | (F.col("__w") > F.col("watermark"))
    return both.select(
        TIMELINE,
        F.greatest("max_t", "__max_t").alias("max_t"),
        F.greatest("watermark", "__w").alias("watermark"),
        F.when(F.coalesce(rose, F.lit(False)), F.col(_SETTER))
        .otherwise(F.col("watermark_set_by"))
        .alias("watermark_set_by"),
    )
