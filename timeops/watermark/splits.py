"""The splits of a timeline's input: the lowest of the active ones gives the watermark (F).

Here: which splits a timeline has, what each allows, when it is idle, the lowest. Not here: the running maxima over
events (activity.py), steps of the clock inside a silence (clock_rules.py).

Waiting is not idleness: the *idle clock* of a split is the clock of the log less the time for which alignment kept
it, or its source, from being read. The state holds idle clocks, so a wait changes no stored row.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, MAX_US, MIN_US, SOURCE, SPLIT, TIMELINE, T, to_us
from tidemark.timeops.rules import TimeRules

POSITION = "__tm_split_position"  # of a split among those of its timeline: 0, 1, 2, …
SPLITS_TYPE = "array<struct<source:string,split:string,max_t:bigint,last_clock:bigint>>"
"""The splits of a timeline between two segments of the log: largest t, and the idle clock at their last event."""


def splits_watermark(splits: Column, clock_us: Column, rules: TimeRules) -> Column:
    """The watermark that splits allow at a clock, microseconds.

    The lowest of the active ones; while a listed one has no event, none. Where all are idle, the highest.

    Args:
        splits: ARRAY<STRUCT<allows, idle_at, listed>>: what each allows (null before its first event), from which
            clock on it is idle, whether it counts without an event.
        clock_us: The clock.
        rules: The rules.
    """

    def counts(split: Column) -> Column:
        known = split["allows"].isNotNull() | split["listed"]
        return known & (clock_us < split["idle_at"]) if rules.excludes_idle_splits else known

    active = F.filter(splits, counts)
    allowed = F.transform(active, lambda split: split["allows"])
    highest = F.array_max(F.transform(splits, lambda split: split["allows"]))
    awaited = F.exists(active, lambda split: split["allows"].isNull())
    return F.when(F.size(active) == 0, highest).when(~awaited, F.array_min(allowed))


def of_state(splits: Column, rules: TimeRules, first_clock_us: Column) -> Column:
    """Splits between two segments (SPLITS_TYPE) as `splits_watermark` takes them."""
    return F.transform(
        splits,
        lambda split: F.struct(
            allows(split["max_t"], rules.tolerance_us(split["source"])).alias("allows"),
            idle_at(F.coalesce(split["last_clock"], first_clock_us), rules, split).alias("idle_at"),
            rules.is_listed(split["source"], split["split"]).alias("listed"),
        ),
    )


def allows(t_us: Column, tolerance_us: Column) -> Column:
    """The watermark that a largest t allows, from the year 0001 on; null before the first."""
    return F.when(t_us.isNotNull(), F.greatest(t_us - tolerance_us, F.lit(MIN_US)))


def split_read_at(clock_us: Column, rules: TimeRules) -> Column:
    """The idle clock of the row's split, which has a record at this clock and so does not wait."""
    return clock_us if rules.waits.never else clock_us - rules.waited_us()


def idle_at(read_us: Column, rules: TimeRules, split: Column | None = None) -> Column:
    """The clock of the log from which on a split is idle (F), microseconds.

    Args:
        read_us: The idle clock at its last event.
        rules: The rules.
        split: STRUCT with its `source` and `split`; by default the row's.
    """
    source, value = (None, None) if split is None else (split["source"], split["split"])
    left = read_us + rules.timeout_us(source)
    if rules.waits.never:
        return left
    at = left + rules.waited_us(source, value)
    if not rules.waits.sources:
        return at
    # A split that was idle before it, or its source, had to wait stays so.
    never = rules.waits_now(source, value) & (at > F.lit(rules.waits.since_us))
    return F.when(never, F.lit(MAX_US)).otherwise(at)


def splits_of(activity: DataFrame, state: DataFrame, rules: TimeRules) -> DataFrame:
    """The splits of every timeline in a segment of the log, as they were before it.

    Args:
        activity: Events with `_timeline`, `_source`, `_split`.
        state: timelines.STATE_SCHEMA before them.
        rules: The rules.

    Returns:
        `_timeline`, `_source`, `_split`, `__tm_split_position`, `max_t`, `last_clock`. Listed splits come first, and
        are there before they have an event.
    """
    nothing = F.lit(None).cast("bigint")
    rows = activity.select(TIMELINE, SOURCE, SPLIT).distinct().withColumns({"max_t": nothing, "last_clock": nothing})
    rows = rows.unionByName(_exploded(state))
    listed = [F.struct(F.lit(name).alias(SOURCE), F.lit(value).alias(SPLIT)) for name, value in rules.listed_splits]
    if listed:
        named = rows.select(TIMELINE).distinct().select(TIMELINE, F.explode(F.array(*listed)).alias("one"))
        rows = rows.unionByName(named.select(TIMELINE, "one.*"), allowMissingColumns=True)
    known = rows.groupBy(TIMELINE, SOURCE, SPLIT).agg(
        F.max("max_t").alias("max_t"), F.max("last_clock").alias("last_clock")
    )
    order = (F.desc("__tm_listed"), SOURCE, F.col(SPLIT).asc_nulls_first())
    place = F.row_number().over(Window.partitionBy(TIMELINE).orderBy(*order))
    known = known.withColumn("__tm_listed", rules.is_listed())
    return known.withColumn(POSITION, place - 1).drop("__tm_listed")


def most_splits(items: DataFrame, state: DataFrame, rules: TimeRules) -> DataFrame:
    """How many splits a timeline has at most, in a segment and before it: one row, `splits`; null for no timeline.

    Arguments as for `splits_of`.
    """
    return splits_of(items, state, rules).agg((F.max(POSITION) + 1).alias("splits"))


def splits_after(activity: DataFrame, state: DataFrame, rules: TimeRules) -> DataFrame:
    """`_timeline` and `splits` (SPLITS_TYPE) of every timeline after a segment of the log.

    Args:
        activity: Events with `_timeline`, `_source`, `_split`, `_clock`, and `__tm_t` where they move the watermark.
        state: timelines.STATE_SCHEMA before them.
        rules: The rules.
    """
    before = splits_of(activity, state, rules).drop(POSITION)
    fresh = activity.select(
        TIMELINE, SOURCE, SPLIT, F.col(T).alias("max_t"), split_read_at(to_us(CLOCK), rules).alias("last_clock")
    )
    latest = before.unionByName(fresh).groupBy(TIMELINE, SOURCE, SPLIT)
    each = latest.agg(F.max("max_t").alias("max_t"), F.max("last_clock").alias("last_clock"))
    one = F.struct(F.col(SOURCE).alias("source"), F.col(SPLIT).alias("split"), "max_t", "last_clock")
    return each.groupBy(TIMELINE).agg(F.sort_array(F.collect_list(one)).cast(SPLITS_TYPE).alias("splits"))


def _exploded(state: DataFrame) -> DataFrame:
    each = state.select(TIMELINE, F.explode("splits").alias("one"))
    return each.select(
        TIMELINE,
        F.col("one.source").alias(SOURCE),
        F.col("one.split").alias(SPLIT),
        F.col("one.max_t").alias("max_t"),
        F.col("one.last_clock").alias("last_clock"),
    )
