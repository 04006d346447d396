"""The timelines between two segments of the log: watermark, largest t, and who set them.

Here: the state, what events and the clock propose, the steps in which events and windows see the watermark rise, how
timelines come out of a segment: by their own events, by the clock, by a change of the spec. Not here: the watermark
of each event (scans.py). Rules: H (base time and range), A2, F (bounded out-of-orderness, emission on-periodic).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from tidemark.timeops.columns import (
    BY_CLOCK,
    CLOCK,
    PERIOD,
    PROPOSED,
    SEQ,
    SET_BY,
    TIMELINE,
    T,
    floor_to,
    to_us,
)
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.watermark.clock_rules import clock_rule, close_asked
from tidemark.timeops.watermark.log_clock import LogClock
from tidemark.timeops.watermark.splits import SPLITS_TYPE, allows, of_state, splits_after, splits_watermark

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

The others are null unless a rule asks for them: `last_clock`, the idle clock (clock_rules.py) at the timeline's
last event, dropped or not; `max_close`, per window of the spec the latest close time that its events ask for;
`splits`, the largest t and the idle clock of each split.

Every stage joins its events with such a frame. Whoever knows that the timelines are few says so by
`F.broadcast(state)`: the hint stays with what is derived from it."""

CLOCK_SETS = -(2**62)
"""`__tm_set_by` where the clock raises a watermark behind the last event of a segment. Of an event it is
-(2 * _arrival_seq + 1), of the clock just before this event one more, and 1 stands for what was no event before the
segment. So the largest is who did it first."""

STEP = (TIMELINE, SEQ, PROPOSED, SET_BY)


_BEFORE_ALL = -1  # stands before every _arrival_seq of a segment


def proposing(events: DataFrame, rules: TimeRules) -> DataFrame:
    """Adds what each event proposes by its own t and the clock of the log.

    Returns:
        The events with `__tm_clock_w`, the watermark that the clock gives just before the event; `__tm_proposed_w`,
        the watermark from the event on if no other proposes more; `__tm_set_by`; and `__tm_period`, the start of the
        event's period of the clock, when emission is periodic.
    """
    proposed = allows(F.col(T), rules.tolerance_us())
    by_clock = clock_rule(rules).gives(F.lit(None), to_us(CLOCK))
    return with_proposed(events, proposed, by_clock, rules.time)


def with_proposed(events: DataFrame, proposed: Column, by_clock: Column, time: TimeSpec) -> DataFrame:
    """Adds what `proposing` says: of the watermark that an event proposes and the one that the clock gives before."""
    first = F.when(F.coalesce(proposed > F.col(BY_CLOCK), proposed.isNotNull()), set_by_rank(SEQ))
    found = events.withColumn(BY_CLOCK, by_clock).withColumns(
        {
            PROPOSED: F.greatest(proposed, BY_CLOCK),
            SET_BY: F.coalesce(first, F.lit(-2) * F.col(SEQ)),
        }
    )
    if time.emit_every_us is None:
        return found
    return found.withColumn(PERIOD, floor_to(to_us(CLOCK), time.emit_every_us))


def set_by_rank(seq: Column | str) -> Column:
    """SET_BY of an `_arrival_seq`; null is no event."""
    column = F.col(seq) if isinstance(seq, str) else seq
    return F.coalesce(F.lit(-2) * column - F.lit(1), F.lit(1).cast("bigint"))


def event_of(rank: Column) -> Column:
    """The `_arrival_seq` of a SET_BY, null where it was no event."""
    is_event = (rank < 0) & (rank > CLOCK_SETS) & (F.pmod(rank, F.lit(2)) == 1)
    return F.when(is_event, F.shiftright(-rank, 1))


def carried(state: DataFrame) -> DataFrame:
    """The computed watermarks before a segment as what a record before all others proposed: STEP, and `clock`."""
    return state.select(
        TIMELINE,
        F.lit(_BEFORE_ALL).cast("bigint").alias(SEQ),
        F.col("computed").alias(PROPOSED),
        set_by_rank("computed_set_by").alias(SET_BY),
        "clock",
    )


def known_set_by(state: DataFrame) -> DataFrame:
    """Who set the watermarks before the segment: `_timeline`, `__tm_proposed_w`, `__tm_set_by`."""
    seen = state.select(TIMELINE, F.col("watermark").alias(PROPOSED), set_by_rank("watermark_set_by").alias(SET_BY))
    return seen.unionByName(carried(state).select(TIMELINE, PROPOSED, SET_BY))


def steps_of(advances: DataFrame, state: DataFrame, rules: TimeRules, clock_after: Column) -> DataFrame:
    """The steps in which the watermark is seen to rise in a segment.

    Args:
        advances: `_timeline`, `_arrival_seq`, and what `proposing` adds, of all events that move the watermark.
        state: STATE_SCHEMA before the segment.
        rules: The rules of time.
        clock_after: The log's clock after the segment, microseconds, for a row with `_timeline`.

    Returns:
        `_timeline`, `_arrival_seq` (which orders them), `__tm_proposed_w`, `__tm_set_by`. With periodic emission one
        row for each period that has ended, with `__tm_period` and what its events proposed: it is seen from the next
        period on. Where the clock raises timelines one by one also `__tm_clock_w` and `__tm_gathered`, see
        clock_rules.py.
    """
    every_us = rules.time.emit_every_us
    unseen = waiting(state, rules.time)
    if every_us is None:
        return advances.select(*STEP, *clock_rule(rules).of_steps).unionByName(unseen, allowMissingColumns=True)
    both = advances.select(*STEP, PERIOD).unionByName(unseen)
    highest = F.max(F.struct(PROPOSED, SET_BY)).alias("proposed")
    ended = F.col(PERIOD) < floor_to(clock_after, every_us)
    periods = both.where(ended).groupBy(TIMELINE, PERIOD).agg(F.min(SEQ).alias(SEQ), highest)
    return periods.select(TIMELINE, SEQ, PERIOD, "proposed.*")


def waiting(state: DataFrame, time: TimeSpec) -> DataFrame:
    """What was computed before a segment and is not seen yet: STEP, with periodic emission also `__tm_period`."""
    unseen = carried(state.where("computed > coalesce(watermark, computed - 1)"))
    if time.emit_every_us is None:
        return unseen.select(*STEP)
    return unseen.withColumn(PERIOD, floor_to(F.col("clock"), time.emit_every_us)).select(*STEP, PERIOD)


def state_after(
    advances: DataFrame, seen: DataFrame, state: DataFrame, rules: TimeRules, clock: LogClock
) -> DataFrame:
    """The timelines after a segment of the log.

    Args:
        advances: As for `steps_of`, with `__tm_t`; where the rules follow activity, all events of the timelines, with
            `_source`, `_split` and `_clock`.
        seen: What has been proposed and is seen by the end of the segment, `_timeline`, `__tm_proposed_w` and
            `__tm_set_by`: with periodic emission what `steps_of` or `periodic_emission.seen_by` gives for them.
        state: STATE_SCHEMA before the segment.
        rules: The rules of time.
        clock: The clock of the log.
    """
    moved = _highest(advances, "computed", F.max(T).alias("__tm_max_t"))
    both = state.join(moved, TIMELINE, "full").withColumn("max_t", F.greatest("max_t", "__tm_max_t"))
    if rules.follows_activity:
        both = both.drop("last_clock", "max_close", "splits").join(_gathered_after(advances, state, rules), TIMELINE)
    after = _raised(both, "computed")
    if rules.time.emit_every_us is not None:
        after = _raised(after.join(_highest(seen, "watermark"), TIMELINE, "left"), "watermark")
    after = under_clock(after, rules, clock)
    if rules.time.emit_every_us is None:
        after = after.withColumns({"watermark": F.col("computed"), "watermark_set_by": F.col("computed_set_by")})
    return after.withColumn("clock", clock.after).select(*STATE_SCHEMA.names)


def _gathered_after(advances: DataFrame, state: DataFrame, rules: TimeRules) -> DataFrame:
    """`_timeline`, `last_clock`, `max_close` and `splits` after a segment."""
    rule = clock_rule(rules)
    closes = {f"__tm_close{i}": close_asked(F.col(T), window, rules) for i, window in enumerate(rule.windows)}
    latest = [F.max(column).alias(name) for name, column in closes.items()]
    fresh = advances.groupBy(TIMELINE).agg(F.max(rule.read_at(to_us(CLOCK))).alias("__tm_last"), *latest)
    both = state.select(TIMELINE, "last_clock", "max_close").join(fresh, TIMELINE, "full")
    reached = [F.greatest(F.get("max_close", F.lit(i)), F.col(name)) for i, name in enumerate(closes)]
    after = both.select(
        TIMELINE,
        F.greatest("last_clock", "__tm_last").alias("last_clock"),
        F.array(*reached).cast("array<bigint>").alias("max_close"),
    )
    if rules.uses_splits:
        return after.join(splits_after(advances, state, rules), TIMELINE)
    return after.withColumn("splits", F.lit(None).cast(SPLITS_TYPE))


def under_clock(state: DataFrame, rules: TimeRules, clock: LogClock) -> DataFrame:
    """The timelines when the clock has come to a later instant and they had no event: it may raise all of them."""
    if not rules.clock_moves:
        return state
    rule, every_us = clock_rule(rules), rules.time.emit_every_us
    known = rule.of_state(clock.first)
    published = given = rule.gives(known, rule.behind(clock))
    if every_us is not None:
        published = rule.published(known, clock.ended, floor_to(clock.after, every_us))
    for name, given_us in (("computed", given), ("watermark", published)):
        proposed = F.struct(given_us.alias(PROPOSED), F.lit(CLOCK_SETS).cast("bigint").alias(SET_BY))
        state = _raised(state.withColumn(f"__tm_new_{name}", F.when(given_us.isNotNull(), proposed)), name).drop(
            f"__tm_new_{name}"
        )
    return state


def under_out_of_orderness(state: DataFrame, rules: TimeRules, clock: LogClock) -> DataFrame:
    """The timelines from the place in the log on where the out-of-orderness became another.

    A smaller one raises the computed watermarks. A larger one takes effect when the largest t has moved on, as a
    watermark never goes back.

    Args:
        state: Rows with the columns of STATE_SCHEMA, and others.
        rules: The rules with the new one.
        clock: The clock of the log, at the end of what was processed.
    """
    if rules.uses_splits:
        proposed = splits_watermark(of_state(F.col("splits"), rules, clock.first), clock.after, rules)
    else:
        proposed = allows(F.col("max_t"), rules.tolerance_us())
    set_by = F.when(proposed <= F.col("computed"), F.col("computed_set_by"))
    return state.withColumns({"computed": F.greatest("computed", proposed), "computed_set_by": set_by})


def _highest(rows: DataFrame, name: str, *more: Column) -> DataFrame:
    """Per timeline the highest watermark that rows propose, and who did so first, as `__tm_new_<name>`."""
    proposed = F.when(F.col(PROPOSED).isNotNull(), F.struct(PROPOSED, SET_BY))
    return rows.groupBy(TIMELINE).agg(F.max(proposed).alias(f"__tm_new_{name}"), *more)


def _raised(state: DataFrame, name: str) -> DataFrame:
    """The state with a watermark, and who set it, raised to `__tm_new_<name>` where that is higher."""
    new = F.col(f"__tm_new_{name}")
    rose = F.coalesce(new[PROPOSED] > F.col(name), new.isNotNull() & F.col(name).isNull())
    set_by = event_of(new[SET_BY])
    return state.withColumns(
        {
            name: F.when(rose, new[PROPOSED]).otherwise(F.col(name)),
            f"{name}_set_by": F.when(rose, set_by).otherwise(F.col(f"{name}_set_by")),
        }
    )
