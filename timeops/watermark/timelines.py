"""The timelines between two segments of the log: watermark, largest t, and who set them.

Here: the state, what events and the clock ask for, the steps in which events and windows see the watermark rise. Not
here: the state behind a segment (timelines_after.py), the watermark of each event (watermarks.py). Rules: H (base
time and range), A2, F (bounded out-of-orderness, emission on-periodic).
"""

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from tidemark.timeops.columns import (
    ASKED,
    BY_CLOCK,
    CLOCK,
    LOG,
    MIN_US,
    PERIOD,
    SEQ,
    SETTER,
    TIMELINE,
    T,
    floor_to,
    to_us,
)
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.watermark.idleness import GATHERED, clock_gives
from tidemark.timeops.watermark.splits import allows
from tidemark.timeops.watermark.ticks import Ticks

_SPLITS = ArrayType(
    StructType(
        [
            StructField("source", StringType()),
            StructField("split", StringType()),
            StructField("max_t", LongType()),
            StructField("last_clock", LongType()),
        ]
    )
)

STATE_SCHEMA = StructType(
    [
        StructField(TIMELINE, StringType(), nullable=False),
        StructField("max_t", LongType()),
        StructField("watermark", LongType()),
        StructField("watermark_set_by", LongType()),
        StructField("computed", LongType()),
        StructField("computed_set_by", LongType()),
        StructField("clock", LongType()),
        StructField("last_clock", LongType()),
        StructField("max_close", ArrayType(LongType())),
        StructField("splits", _SPLITS),
    ]
)
"""A timeline between two segments of the log; instants in microseconds.

`watermark` is as events and windows saw it last, `watermark_set_by` the `_arrival_seq` after which it had this value
for the first time (null where no event did it). `computed` is the watermark that the rules give now. It is higher
where a change of the spec has just raised it, and with periodic emission, where it is seen from the next period on.
`max_t` is the largest t, `clock` the log's clock.

The others are null unless a rule asks for them: `last_clock`, the reading clock (reading_clock.py) at the timeline's
last event, dropped or not; `max_close`, per window of the spec the latest close time that its events ask for;
`splits`, the largest t and the reading clock of each split.

Every stage joins its events with such a frame. Whoever knows that the timelines are few says so by
`F.broadcast(state)`: the hint stays with what is derived from it."""

CLOCK_SETS = -(2**62)
"""`__setter` where the clock raises a watermark behind the last event of a segment. Of an event it is
-(2 * _arrival_seq + 1), of the clock just before this event one more, and 1 stands for what was no event before the
segment. So the largest is who did it first."""

STEP = (TIMELINE, SEQ, ASKED, SETTER)


def _unknown() -> Column:
    return F.lit(None).cast("bigint")


@dataclass(frozen=True)
class LogClock:
    """The clock of the log around a segment.

    Attributes:
        after: The clock behind the segment and its tick, microseconds: a literal, or an expression over `_timeline`
            where a frame holds several logs, each with timelines of its own.
        first: The first clock of the log, of the same kind; null before the first timed record. Only listed splits
            ask for it.
        log: Which log a timeline is of, an expression over `_timeline`; there is one in a pipeline.
        ended: The clock of the last record before the period of emission in which `after` lies; null for none. This
            and the next two are of the same kind, and only asked for where periods publish what the clock gave.
        start: The clock before the segment.
        start_ended: To it what `ended` is to `after`.
        ticks: The ticks with which the segment ends; None for none.
    """

    after: Column
    first: Column = field(default_factory=_unknown)
    log: Column = field(default_factory=lambda: F.lit(0))
    ended: Column = field(default_factory=_unknown)
    start: Column = field(default_factory=_unknown)
    start_ended: Column = field(default_factory=_unknown)
    ticks: Ticks | None = None


_BEFORE_ALL = -1  # stands before every _arrival_seq of a segment


def asking(events: DataFrame, rules: TimeRules) -> DataFrame:
    """Adds what each event asks for by its own t and the clock of the log.

    Returns:
        The events with `__clock_w`, the watermark that the clock gives just before the event; `__asked_w`, the
        watermark from the event on if no other asks for more; `__setter`; and `__period`, the start of the event's
        period of the clock, when emission is periodic.
    """
    asked = allows(F.col(T), rules.tolerance_us())
    by_clock = clock_watermark(to_us(CLOCK), rules.time)
    return with_asked(events, asked, by_clock, rules.time)


def with_asked(events: DataFrame, asked: Column, by_clock: Column, time: TimeSpec) -> DataFrame:
    """Adds what `asking` says, of the watermark that an event asks for and the one that the clock gives before it."""
    first = F.when(F.coalesce(asked > F.col(BY_CLOCK), asked.isNotNull()), setter_rank(SEQ))
    found = events.withColumn(BY_CLOCK, by_clock).withColumns(
        {
            ASKED: F.greatest(asked, BY_CLOCK),
            SETTER: F.coalesce(first, F.lit(-2) * F.col(SEQ)),
        }
    )
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
    return F.coalesce(F.lit(-2) * column - F.lit(1), F.lit(1).cast("bigint"))


def event_of(rank: Column) -> Column:
    """The `_arrival_seq` of a SETTER, null where it was no event."""
    is_event = (rank < 0) & (rank > CLOCK_SETS) & (F.pmod(rank, F.lit(2)) == 1)
    return F.when(is_event, F.shiftright(-rank, 1))


def carried(state: DataFrame) -> DataFrame:
    """The computed watermarks before a segment as what a record before all others asked for: STEP, and `clock`."""
    return state.select(
        TIMELINE,
        F.lit(_BEFORE_ALL).cast("bigint").alias(SEQ),
        F.col("computed").alias(ASKED),
        setter_rank("computed_set_by").alias(SETTER),
        "clock",
    )


def known_setters(state: DataFrame) -> DataFrame:
    """Who set the watermarks before the segment: `_timeline`, `__asked_w`, `__setter`."""
    seen = state.select(TIMELINE, F.col("watermark").alias(ASKED), setter_rank("watermark_set_by").alias(SETTER))
    return seen.unionByName(carried(state).select(TIMELINE, ASKED, SETTER))


def steps_of(moves: DataFrame, state: DataFrame, rules: TimeRules, clock_after: Column) -> DataFrame:
    """The steps in which the watermark is seen to rise in a segment.

    Args:
        moves: `_timeline`, `_arrival_seq`, and what `asking` adds, of all events that move the watermark.
        state: STATE_SCHEMA before the segment.
        rules: The rules of time.
        clock_after: The log's clock after the segment, microseconds, for a row with `_timeline`.

    Returns:
        `_timeline`, `_arrival_seq` (which orders them), `__asked_w`, `__setter`. With periodic emission one row for
        each period that has ended, with `__period` and what its events asked for: it is seen from the next period
        on. Where the clock raises single timelines also `__clock_w` and `__gathered`, see silences.py.
    """
    every_us = rules.time.emit_every_us
    unseen = waiting(state, rules.time)
    if every_us is None:
        more = (BY_CLOCK, GATHERED) if rules.clock_raises_single_timelines else ()
        return moves.select(*STEP, *more).unionByName(unseen, allowMissingColumns=True)
    both = moves.select(*STEP, PERIOD).unionByName(unseen)
    highest = F.max(F.struct(ASKED, SETTER)).alias("asked")
    ended = F.col(PERIOD) < floor_to(clock_after, every_us)
    periods = both.where(ended).groupBy(TIMELINE, PERIOD).agg(F.min(SEQ).alias(SEQ), highest)
    return periods.select(TIMELINE, SEQ, PERIOD, "asked.*")


def waiting(state: DataFrame, time: TimeSpec) -> DataFrame:
    """What was computed before a segment and is not seen yet: STEP, with periodic emission also `__period`."""
    unseen = carried(state.where("computed > coalesce(watermark, computed - 1)"))
    if time.emit_every_us is None:
        return unseen.select(*STEP)
    return unseen.withColumn(PERIOD, floor_to(F.col("clock"), time.emit_every_us)).select(*STEP, PERIOD)


def clock_steps(items: DataFrame, time: TimeSpec, log: Column) -> DataFrame | None:
    """The watermark that the clock alone gives all timelines of a log, at every item of a segment.

    Args:
        items: Records of the segment, and its tick.
        time: The spec's `time` section.
        log: Which log a row is of.

    Returns:
        `__log`, `_arrival_seq`, `__asked_w`; None where the clock moves no watermark, or periods publish it.
    """
    if time.clock_tolerance_us is None or time.emit_every_us is not None:
        return None
    given = clock_watermark(to_us(CLOCK), time)
    return items.select(log.alias(LOG), SEQ, given.alias(ASKED)).where(F.col(ASKED).isNotNull())


def clock_after_silence(clock: LogClock, rules: TimeRules) -> Column:
    """The clock behind a segment as silences go by it, microseconds.

    To windows that close in a silence a tick is like an event one microsecond later: an event at the very instant of
    the timeout beats it, a tick does not.
    """
    if clock.ticks is None or not rules.closes_windows:
        return clock.after
    return clock.after + F.when(clock.ticks.stand, F.lit(1)).otherwise(F.lit(0))


def clock_alone_gives(known: Column, clock_us: Column, rules: TimeRules) -> Column:
    """The watermark that a timeline has at a clock by the clock alone, microseconds; null where it gives none.

    Args:
        known: GATHERED of the timeline, which the arrival clock does not ask for.
        clock_us: The clock, microseconds; before the first it is null and gives nothing.
        rules: The rules of time.
    """
    if rules.clock_raises_single_timelines:
        return F.when(clock_us.isNotNull(), clock_gives(known, clock_us, rules))
    return clock_watermark(clock_us, rules.time)
