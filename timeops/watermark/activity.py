"""What events propose where the watermark depends on all that a timeline had: its splits, its silences.

Here: the running facts of a timeline just before and just after each of its events. Not here: the rules that make a
watermark of them (splits.py, clock_rules.py), which scan finds the watermark of each event (scans.py).

These rules take a window by timeline with all its events in it, two numbers a split; one timeline is cut into blocks.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import with_maxima_before
from tidemark.timeops.columns import CLOCK, SEQ, SOURCE, SPLIT, TIMELINE, T, to_us
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.clock_rules import GATHERED, ClockRule, clock_rule, close_asked, gathered
from tidemark.timeops.watermark.log_clock import LogClock
from tidemark.timeops.watermark.splits import POSITION, allows, idle_at, splits_of, splits_watermark
from tidemark.timeops.watermark.timelines import with_proposed

_LAST, _AFTER, _PROPOSED = "__tm_last_clock", "__tm_splits_after", "__tm_proposed_by_event"


def proposing_by_activity(
    activity: DataFrame, state: DataFrame, rules: TimeRules, clock: LogClock, *, splits: int, in_blocks: bool
) -> DataFrame:
    """Adds what each event proposes, as `timelines.proposing`, and `__tm_gathered` where the clock raises timelines.

    Args:
        activity: All events of the timelines; those that move no watermark have no `__tm_t`.
        state: timelines.STATE_SCHEMA before them.
        rules: The rules of time.
        clock: The clock of the log.
        splits: How many splits a timeline has at most, before the segment or in it.
        in_blocks: There are few timelines.
    """
    rule = clock_rule(rules)
    rows, carried, own = activity, _carried(state, rule), _own(rules, rule, splits)
    if rules.uses_splits:
        of_timelines = splits_of(activity, state, rules)
        rows = _with_position(activity, of_timelines, splits)
        carried = of_timelines.groupBy(TIMELINE).agg(*_pivoted(rules, clock, splits)).join(carried, TIMELINE, "left")
    rows = with_maxima_before(rows, carried, own, key=TIMELINE, place=SEQ, in_cells=in_blocks)
    clock_us, proposed = to_us(CLOCK), allows(F.col(T), rules.tolerance_us())
    # Each step is a projection of its own, so that Spark computes it once.
    if rules.uses_splits:
        after = {name: F.greatest(name, f"{name}__own") for name in own}
        rows = rows.withColumn(_AFTER, _splits(after, rules, splits))
        proposed = F.when(F.col(T).isNotNull(), splits_watermark(F.col(_AFTER), clock_us, rules))
    rows = rows.withColumn(_PROPOSED, proposed)
    if rule.is_by_timeline:
        before = {name: F.col(name) for name in own}
        closes = [before[_close(number)] for number in range(len(rule.windows))]
        known = gathered(_splits(before, rules, splits), before[_LAST], F.array(*closes).cast("array<bigint>"))
        rows = rows.withColumn(GATHERED, known)
    found = with_proposed(rows, F.col(_PROPOSED), rule.gives(F.col(GATHERED), clock_us), rules.time)
    if rule.is_by_timeline:
        silent = rule.may_have_raised(F.col(GATHERED), clock_us)
        found = found.withColumn(GATHERED, F.when(silent, F.col(GATHERED)))
    return found.drop(POSITION, _AFTER, _PROPOSED, *own, *[f"{name}__own" for name in own])


def _own(rules: TimeRules, rule: ClockRule, splits: int) -> dict[str, Column]:
    """What an event adds to the running maxima of its timeline."""
    clock_us = to_us(CLOCK)
    own = {_LAST: rule.silence_clock(clock_us)}
    for number, window in enumerate(rule.windows):
        own[_close(number)] = close_asked(F.col(T), window, rules)
    for number in range(splits if rules.uses_splits else 0):
        is_it = F.col(POSITION) == number
        own[_allows(number)] = F.when(is_it, allows(F.col(T), rules.tolerance_us()))
        if rules.excludes_idle_splits:
            own[_idle_at(number)] = F.when(is_it, clock_us + rules.timeout_us())
    return own


def _carried(state: DataFrame, rule: ClockRule) -> DataFrame:
    closes = [F.get("max_close", F.lit(i)).alias(_close(i)) for i in range(len(rule.windows))]
    return state.select(TIMELINE, rule.last_event_at(F.col("last_clock")).alias(_LAST), *closes)


def _pivoted(rules: TimeRules, clock: LogClock, splits: int) -> list[Column]:
    """Aggregates of one timeline's rows of `splits_of`: what each split has gathered before the segment."""
    found = []
    # The silence of a listed split begins with the log.
    last = F.coalesce("last_clock", F.when(rules.is_listed(), clock.first))
    for number in range(splits):
        is_it = F.col(POSITION) == number
        found.append(F.max(F.when(is_it, allows(F.col("max_t"), rules.tolerance_us()))).alias(_allows(number)))
        if rules.excludes_idle_splits:
            found.append(F.max(F.when(is_it, idle_at(last, rules))).alias(_idle_at(number)))
    return found


def _with_position(activity: DataFrame, of_timelines: DataFrame, splits: int) -> DataFrame:
    beyond = F.raise_error(F.lit(f"more than {splits} splits in a timeline: they were counted on other records"))
    place = F.when(F.col(POSITION) < splits, F.col(POSITION)).otherwise(beyond)
    known = of_timelines.select(
        F.col(TIMELINE).alias("__tm_of"),
        F.col(SOURCE).alias("__tm_source"),
        F.col(SPLIT).alias("__tm_split"),
        POSITION,
    )
    same = (
        (F.col(TIMELINE) == F.col("__tm_of"))
        & (F.col(SOURCE) == F.col("__tm_source"))
        & F.col(SPLIT).eqNullSafe(F.col("__tm_split"))
    )
    return activity.join(known, same).withColumn(POSITION, place).drop("__tm_of", "__tm_source", "__tm_split")


def _splits(values: Mapping[str, Column], rules: TimeRules, splits: int) -> Column:
    """The splits as `splits_watermark` takes them."""
    listed, nothing = len(rules.listed_splits), F.lit(None).cast("bigint")
    each = [
        F.struct(
            values[_allows(number)].alias("allows"),
            values.get(_idle_at(number), nothing).alias("idle_at"),
            F.lit(number < listed).alias("listed"),
        )
        for number in range(splits if rules.uses_splits else 0)
    ]
    return F.array(*each).cast("array<struct<allows:bigint,idle_at:bigint,listed:boolean>>")


def _allows(number: int) -> str:
    return f"__tm_allows{number}"


def _idle_at(number: int) -> str:
    return f"__tm_idle_at{number}"


def _close(number: int) -> str:
    return f"__tm_close{number}"
