"""What periods of emission publish of silences: the watermark that the clock gave a timeline before they began.

Here: for each period in which a timeline has events, what they find published and what they propose themselves. Not
here: what the clock gives in a silence (clock_rules.py), windows that close in one (windows/rises.py). Rules: F
(on-periodic) together with F, A2, M (idle rules).

With the first record of a period every timeline shows the watermark as it was computed behind the record before, of
whatever timeline. That record's clock, `__tm_ended`, is therefore all that a period needs to know of the others: in a
silence the watermark is a function of the clock alone. A period in which a timeline has no event needs no row: what
it publishes is at most what the timeline's next event proposes, as that includes what the clock gave by then.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    CLOCK,
    LOG,
    PERIOD,
    PROPOSED,
    PUBLISHED,
    SEQ,
    SET_BY,
    TIMELINE,
    W_BEFORE,
    floor_to,
    to_us,
)
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.clock_rules import GATHERED, clock_rule
from tidemark.timeops.watermark.log_clock import LogClock
from tidemark.timeops.watermark.timelines import STEP, waiting

ENDED = "__tm_ended"  # BIGINT: the clock of the last record of the log before a period, microseconds
PREVIOUS = "__tm_previous_period"  # BIGINT: the period of the row before
PROPOSED_BEFORE = "__tm_proposed_before"  # BIGINT: the highest watermark that the rows before propose


def ended_clocks(items: DataFrame, rules: TimeRules, clock: LogClock) -> DataFrame | None:
    """The periods of a segment of the log, each with the clock before it.

    Args:
        items: The records of the segment, and its tick.
        rules: The rules of time.
        clock: The clock of the log.

    Returns:
        `__tm_log`, `__tm_period`, `__tm_ended` (null in the first period of a log); None where periods publish
        nothing of silences.
    """
    every_us = rules.time.emit_every_us
    if every_us is None or not rules.publishes_silences:
        return None
    timed = items.where(F.col(CLOCK).isNotNull()).select(
        clock.log.alias(LOG),
        floor_to(to_us(CLOCK), every_us).alias(PERIOD),
        to_us(CLOCK).alias("__tm_last"),
        clock.start.alias("__tm_start"),
        clock.start_ended.alias("__tm_start_ended"),
    )
    latest = [F.max(name).alias(name) for name in ("__tm_last", "__tm_start", "__tm_start_ended")]
    periods = timed.groupBy(LOG, PERIOD).agg(*latest)
    # Where the segment begins within a period, that was published before the segment.
    at_start = F.when(F.col("__tm_start") < F.col(PERIOD), F.col("__tm_start")).otherwise(F.col("__tm_start_ended"))
    before = F.lag("__tm_last").over(Window.partitionBy(LOG).orderBy(PERIOD))  # one row a period
    return periods.select(LOG, PERIOD, F.coalesce(before, at_start).alias(ENDED))


def publications(
    advances: DataFrame, state: DataFrame, rules: TimeRules, clock: LogClock, ended: DataFrame
) -> DataFrame:
    """What the periods of timelines find published of silences, and what their events propose.

    Args:
        advances: As for `timelines.steps_of`.
        state: timelines.STATE_SCHEMA before the segment.
        rules: The rules of time.
        clock: The clock of the log.
        ended: What `ended_clocks` gives.

    Returns:
        One row per timeline and period of its events: `_timeline`, `__tm_period`, `_arrival_seq` (of the first event,
        orders the rows), `__tm_proposed_w` and `__tm_set_by` (the highest, seen from the next period of the log on),
        `__tm_published`, null where the silence before gave nothing; where the clock raises single timelines also
        `__tm_gathered`, as the first event found it. What was computed before the segment and not seen yet is a row
        too.
    """
    rule = clock_rule(rules)
    unseen = waiting(state, rules.time)
    both = advances.select(*STEP, PERIOD, *rule.gathered).unionByName(unseen, allowMissingColumns=True)
    found = both.groupBy(TIMELINE, PERIOD).agg(
        F.min(SEQ).alias(SEQ),
        F.max(F.struct(PROPOSED, SET_BY)).alias("proposed"),
        *[F.min_by(name, SEQ).alias(name) for name in rule.gathered],
    )
    periods = found.withColumn(LOG, clock.log).join(ended, [LOG, PERIOD], "left")
    # Else the timeline, or its state, was in this period before the segment: what it published is in the state.
    given = F.when(F.col(SEQ) >= 0, rule.published(F.col(GATHERED), F.col(ENDED), F.col(PERIOD)))
    return periods.select(TIMELINE, PERIOD, SEQ, "proposed.*", given.alias(PUBLISHED), *rule.gathered)


def with_proposed_before(rows: DataFrame) -> DataFrame:
    """Adds `__tm_previous_period` and `__tm_proposed_before` to rows of `publications`."""
    in_order = Window.partitionBy(TIMELINE).orderBy(SEQ)
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    return rows.withColumns({PREVIOUS: F.lag(PERIOD).over(in_order), PROPOSED_BEFORE: F.max(PROPOSED).over(earlier)})


def seen_in_periods(rows: DataFrame, state: DataFrame) -> DataFrame:
    """The watermark that the events of each period see: `_timeline`, `__tm_period`, `__tm_w_before`.

    Args:
        rows: What `publications` gives.
        state: timelines.STATE_SCHEMA before the segment.
    """
    known = with_proposed_before(rows).join(state.select(TIMELINE, "watermark"), TIMELINE, "left")
    return known.select(TIMELINE, PERIOD, F.greatest("watermark", PROPOSED_BEFORE, PUBLISHED).alias(W_BEFORE))


def proposals_of(rows: DataFrame) -> DataFrame:
    """`_timeline`, `__tm_period`, `__tm_proposed_w`, `__tm_set_by` of `publications`: of events, and of the clock.

    What the clock gave before a period was seen already in it, so `__tm_period` is null there.
    """
    by_events = F.struct(PERIOD, PROPOSED, SET_BY)
    by_clock = F.struct(
        F.lit(None).cast("bigint").alias(PERIOD),
        F.col(PUBLISHED).alias(PROPOSED),
        (F.lit(-2) * F.col(SEQ)).alias(SET_BY),
    )
    return rows.select(TIMELINE, F.explode(F.array(by_events, by_clock)).alias("one")).select(TIMELINE, "one.*")


def seen_by(rows: DataFrame, rules: TimeRules, clock: LogClock) -> DataFrame:
    """What is seen by the end of a segment, as `timelines.state_after` takes it, of rows of `publications`."""
    present = floor_to(clock.after, rules.time.emit_every_us or 1)
    return proposals_of(rows).where(F.coalesce(F.col(PERIOD) < present, F.lit(True)))
