"""How timelines come out of a segment of the log: by their own events, by the clock, by a change of the spec.

Here: the state behind the segment. Not here: what it consists of (timelines.py), the watermark of each event
(watermarks.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import ASKED, CLOCK, SETTER, TIMELINE, T, floor_to, to_us
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.idle_clock import timeline_read_at
from tidemark.timeops.watermark.idleness import close_asked, gathered_in_state
from tidemark.timeops.watermark.splits import SPLITS_TYPE, allows, of_state, splits_after, splits_watermark
from tidemark.timeops.watermark.timelines import (
    CLOCK_SETS,
    STATE_SCHEMA,
    LogClock,
    clock_after_silence,
    clock_alone_gives,
    event_of,
)


def state_after(moves: DataFrame, seen: DataFrame, state: DataFrame, rules: TimeRules, clock: LogClock) -> DataFrame:
    """The timelines after a segment of the log.

    Args:
        moves: As for `steps_of`, with `__t`; where the rules follow activity, all events of the timelines, with
            `_source`, `_split` and `_clock`.
        seen: What has been asked for and is seen by the end of the segment, `_timeline`, `__asked_w` and `__setter`:
            with periodic emission what `steps_of` or `publications.seen_by` gives for them.
        state: STATE_SCHEMA before the segment.
        rules: The rules of time.
        clock: The clock of the log.
    """
    moved = _highest(moves, "computed", F.max(T).alias("__max_t"))
    both = state.join(moved, TIMELINE, "full").withColumn("max_t", F.greatest("max_t", "__max_t"))
    if rules.follows_activity:
        both = both.drop("last_clock", "max_close", "splits").join(_gathered_after(moves, state, rules), TIMELINE)
    after = _raised(both, "computed")
    if rules.time.emit_every_us is not None:
        after = _raised(after.join(_highest(seen, "watermark"), TIMELINE, "left"), "watermark")
    after = under_clock(after, rules, clock)
    if rules.time.emit_every_us is None:
        after = after.withColumns({"watermark": F.col("computed"), "watermark_set_by": F.col("computed_set_by")})
    return after.withColumn("clock", clock.after).select(*STATE_SCHEMA.names)


def _gathered_after(moves: DataFrame, state: DataFrame, rules: TimeRules) -> DataFrame:
    """`_timeline`, `last_clock`, `max_close` and `splits` after a segment."""
    closes = {f"__close{i}": close_asked(F.col(T), window, rules) for i, window in enumerate(rules.windows_to_close)}
    latest = [F.max(column).alias(name) for name, column in closes.items()]
    fresh = moves.groupBy(TIMELINE).agg(F.max(timeline_read_at(to_us(CLOCK), rules)).alias("__last"), *latest)
    both = state.select(TIMELINE, "last_clock", "max_close").join(fresh, TIMELINE, "full")
    reached = [F.greatest(F.get("max_close", F.lit(i)), F.col(name)) for i, name in enumerate(closes)]
    after = both.select(
        TIMELINE,
        F.greatest("last_clock", "__last").alias("last_clock"),
        F.array(*reached).cast("array<bigint>").alias("max_close"),
    )
    if rules.uses_splits:
        return after.join(splits_after(moves, state, rules), TIMELINE)
    return after.withColumn("splits", F.lit(None).cast(SPLITS_TYPE))


def under_clock(state: DataFrame, rules: TimeRules, clock: LogClock) -> DataFrame:
    """The timelines when the clock has come to a later instant and they had no event: it may raise all of them."""
    if not rules.clock_moves:
        return state
    known, reached = gathered_in_state(rules, clock.first), clock_after_silence(clock, rules)
    given = clock_alone_gives(known, reached, rules)
    published = given
    if rules.time.emit_every_us is not None:
        published = clock_alone_gives(known, clock.ended, rules)
        if rules.clock_raises_single_timelines:  # what came in the present period is published behind it
            published = F.when(F.col("last_clock") < floor_to(clock.after, rules.time.emit_every_us), published)
    for name, asked_us in (("computed", given), ("watermark", published)):
        asked = F.struct(asked_us.alias(ASKED), F.lit(CLOCK_SETS).cast("bigint").alias(SETTER))
        state = _raised(state.withColumn(f"__new_{name}", F.when(asked_us.isNotNull(), asked)), name).drop(
            f"__new_{name}"
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
        asked = splits_watermark(of_state(F.col("splits"), rules, clock.first), clock.after, rules)
    else:
        asked = allows(F.col("max_t"), rules.tolerance_us())
    setter = F.when(asked <= F.col("computed"), F.col("computed_set_by"))
    return state.withColumns({"computed": F.greatest("computed", asked), "computed_set_by": setter})


def _highest(rows: DataFrame, name: str, *more: Column) -> DataFrame:
    """Per timeline the highest watermark that rows ask for, and who asked first, as `__new_<name>`."""
    asked = F.when(F.col(ASKED).isNotNull(), F.struct(ASKED, SETTER))
    return rows.groupBy(TIMELINE).agg(F.max(asked).alias(f"__new_{name}"), *more)


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
