"""The timelines between two stretches of the log: watermark, largest t, and who set them.

Here: the state, how a stretch changes it, the steps in which events and windows see the watermark rise. Not here:
the watermark of each event (watermarks.py). Rules: H (base time and range), A2, F (bounded out-of-orderness, emission
on-periodic).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from timeops.columns import ASKED, CLOCK, LOG, MIN_US, PERIOD, SEQ, SETTER, TIMELINE, T, floor_to, to_us
from timeops.spec import TimeSpec

STATE_SCHEMA = StructType(
    [
        StructField(TIMELINE, StringType(), nullable=False),
        StructField("max_t", LongType()),
        StructField("watermark", LongType()),
        StructField("watermark_set_by", LongType()),
        StructField("computed", LongType()),
        StructField("computed_set_by", LongType()),
        StructField("clock", LongType()),
    ]
)
"""A timeline between two stretches of the log; instants in microseconds.

`watermark` is as events and windows saw it last, `watermark_set_by` the `_arrival_seq` after which it had this value
for the first time (null where no event did it). `computed` is the watermark that the rules give now. It is higher
where a change of the spec has just raised it, and with periodic emission, where it is seen from the next period on.
`max_t` is the largest t, `clock` the log's clock.

Every stage joins its events with such a frame. Whoever knows that the timelines are few says so by
`F.broadcast(state)`: the hint stays with what is derived from it."""

CLOCK_SETS = -(2**62)
"""`__setter` where the clock raises a watermark in this stretch. Of an event it is minus its `_arrival_seq`, 1 stands
for what was no event before the stretch. So the largest is who did it first: an event that asks for no more than the
clock of its own record gives is no setter, and any other precedes the clock."""

STEP = (TIMELINE, SEQ, ASKED, SETTER)
_BEFORE_ALL = -1  # stands before every _arrival_seq of a stretch


def asking(events: DataFrame, time: TimeSpec) -> DataFrame:
    """Adds what each event asks for.

    Returns:
        The events with `__asked_w`, the watermark from the event on if no other asks for more, `__setter`, and
        `__period`, the start of the event's period of the clock, when emission is periodic.
    """
    asked = F.greatest(F.col(T) - F.lit(time.out_of_orderness_us), F.lit(MIN_US))
    setter = setter_rank(SEQ)
    if time.clock_tolerance_us is not None:
        clock = clock_watermark(to_us(CLOCK), time)
        setter = F.when(asked > clock, setter).otherwise(F.lit(CLOCK_SETS))
        asked = F.greatest(asked, clock)
    found = events.withColumns({ASKED: asked, SETTER: setter})
    if time.emit_every_us is None:
        return found
    return found.withColumn(PERIOD, floor_to(to_us(CLOCK), time.emit_every_us))


def clock_watermark(clock_us: Column, time: TimeSpec) -> Column:
    """The watermark that the clock alone gives (A2: at most the late tolerance behind it), cut to the unit.

    Null where there is no clock yet, or the clock moves no watermark.
    """
    if time.clock_tolerance_us is None:
        return F.lit(None).cast("bigint")
    behind = clock_us - F.lit(time.clock_tolerance_us)
    return F.when(clock_us.isNotNull(), floor_to(F.greatest(behind, F.lit(MIN_US)), time.unit_us))


def setter_rank(seq: Column | str) -> Column:
    """SETTER of an `_arrival_seq`; null is no event."""
    column = F.col(seq) if isinstance(seq, str) else seq
    return F.coalesce(-column, F.lit(1).cast("bigint"))


def event_of(rank: Column) -> Column:
    """The `_arrival_seq` of a SETTER, null where it was no event."""
    return F.when((rank <= 0) & (rank > CLOCK_SETS), -rank)


def carried(state: DataFrame) -> DataFrame:
    """The computed watermarks before a stretch as what a record before all others asked for: STEP, and `clock`."""
    return state.select(
        TIMELINE,
        F.lit(_BEFORE_ALL).cast("bigint").alias(SEQ),
        F.col("computed").alias(ASKED),
        setter_rank("computed_set_by").alias(SETTER),
        "clock",
    )


def known_setters(state: DataFrame) -> DataFrame:
    """Who set the watermarks before the stretch: `_timeline`, `__asked_w`, `__setter`."""
    seen = state.select(TIMELINE, F.col("watermark").alias(ASKED), setter_rank("watermark_set_by").alias(SETTER))
    return seen.unionByName(carried(state).select(TIMELINE, ASKED, SETTER))


def steps_of(moves: DataFrame, state: DataFrame, time: TimeSpec, clock_after: Column) -> DataFrame:
    """The steps in which the watermark is seen to rise in a stretch.

    Args:
        moves: `_timeline`, `_arrival_seq`, and what `asking` adds, of all events that move the watermark.
        state: STATE_SCHEMA before the stretch.
        time: The spec's `time` section.
        clock_after: The log's clock after the stretch, microseconds, for a row with `_timeline`.

    Returns:
        `_timeline`, `_arrival_seq` (which orders them), `__asked_w`, `__setter`. With periodic emission one row for
        each period that has ended, with what its events asked for: it is seen from the next period on.
    """
    unseen = carried(state.where("computed > coalesce(watermark, computed - 1)"))
    if time.emit_every_us is None:
        return moves.select(*STEP).unionByName(unseen.select(*STEP))
    waiting = unseen.withColumn(PERIOD, floor_to(F.col("clock"), time.emit_every_us))
    both = moves.select(*STEP, PERIOD).unionByName(waiting.select(*STEP, PERIOD))
    highest = F.max(F.struct(ASKED, SETTER)).alias("asked")
    ended = F.col(PERIOD) < floor_to(clock_after, time.emit_every_us)
    periods = both.where(ended).groupBy(TIMELINE, PERIOD).agg(F.min(SEQ).alias(SEQ), highest)
    return periods.select(TIMELINE, SEQ, "asked.*")


def clock_steps(items: DataFrame, time: TimeSpec, log: Column) -> DataFrame | None:
    """The watermark that the clock alone gives all timelines of a log, at every item of a stretch.

    Args:
        items: Records of the stretch.
        time: The spec's `time` section.
        log: Which log a row is of.

    Returns:
        `__log`, `_arrival_seq`, `__asked_w`; None where the clock moves no watermark.
    """
    if time.clock_tolerance_us is None:
        return None
    given = clock_watermark(to_us(CLOCK), time)
    return items.select(log.alias(LOG), SEQ, given.alias(ASKED)).where(F.col(ASKED).isNotNull())


def state_after(
    moves: DataFrame, steps: DataFrame, state: DataFrame, time: TimeSpec, clock_after: Column
) -> DataFrame:
    """The timelines after a stretch of the log.

    Args:
        moves: As for `steps_of`, with `__t`.
        steps: What `steps_of` gives for them.
        state: STATE_SCHEMA before the stretch.
        time: The spec's `time` section.
        clock_after: The log's clock after the stretch, microseconds, for a row with `_timeline`.
    """
    moved = _highest(moves, "computed", F.max(T).alias("__max_t"))
    both = state.join(moved, TIMELINE, "full").withColumn("max_t", F.greatest("max_t", "__max_t"))
    after = under_clock(_raised(both, "computed"), time, clock_after)
    if time.emit_every_us is None:
        seen = {"watermark": F.col("computed"), "watermark_set_by": F.col("computed_set_by")}
        after = after.withColumns(seen)
    else:
        after = _raised(after.join(_highest(steps, "watermark"), TIMELINE, "left"), "watermark")
    return after.withColumn("clock", clock_after).select(*STATE_SCHEMA.names)


def under_clock(state: DataFrame, time: TimeSpec, clock: Column) -> DataFrame:
    """The timelines when the clock has come to a later instant and they had no event: it may raise all of them."""
    if time.clock_tolerance_us is None:
        return state
    given = F.struct(clock_watermark(clock, time).alias(ASKED), F.lit(CLOCK_SETS).cast("bigint").alias(SETTER))
    for name in ("computed", "watermark"):
        state = _raised(state.withColumn(f"__new_{name}", given), name).drop(f"__new_{name}")
    return state


def under_out_of_orderness(state: DataFrame, out_of_orderness_us: int) -> DataFrame:
    """The timelines from the place in the log on where the out-of-orderness became another.

    A smaller one raises the computed watermarks. A larger one takes effect when the largest t has moved on, as a
    watermark never goes back.

    Args:
        state: Rows with the columns of STATE_SCHEMA, and others.
        out_of_orderness_us: The new one.
    """
    asked = F.greatest(F.col("max_t") - F.lit(out_of_orderness_us), F.lit(MIN_US))
    setter = F.when(asked <= F.col("computed"), F.col("computed_set_by"))
    return state.withColumns({"computed": F.greatest("computed", asked), "computed_set_by": setter})


def _highest(rows: DataFrame, name: str, *more: Column) -> DataFrame:
    """Per timeline the highest watermark that rows ask for, and who asked first, as `__new_<name>`."""
    return rows.groupBy(TIMELINE).agg(F.max(F.struct(ASKED, SETTER)).alias(f"__new_{name}"), *more)


def _raised(state: DataFrame, name: str) -> DataFrame:
    """The state with a watermark and its setter raised to `__new_<name>` where that is higher."""
    new = F.col(f"__new_{name}")
    rose = F.coalesce(new[ASKED] > F.col(name), new.isNotNull() & F.col(name).isNull())
    setter = event_of(new[SETTER])
    return state.withColumns(
        {
            name: F.when(rose, new[ASKED]).otherwise(F.col(name)),
            f"{name}_set_by": F.when(rose, setter).otherwise(F.col(f"{name}_set_by")),
        }
    )
