"""Time adjustment: which events are accepted, with which timestamp, which are refused and why, which are released.

Here: rules 0 to 3 in their order over a segment of the log and the state before it, rules 1 to 3 themselves (A2, H),
the rule of release (H). Not here: duplicates (duplicates.py), windows, and anything about batches: a segment may be
one event or the whole log.
"""

from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    ADJUSTED_BY,
    ARRIVAL,
    CLOCK,
    EVENT_TIME,
    LATENESS,
    MIN_US,
    PERIOD,
    PROPOSED,
    REASON,
    SEQ,
    SET_BY,
    SOURCE,
    SPLIT,
    T_FINAL,
    TIMELINE,
    TIMESTAMP,
    W_BEFORE,
    W_SET_BY,
    T,
    floor_to,
    to_instant,
    to_us,
)
from tidemark.timeops.events.duplicates import with_duplicates
from tidemark.timeops.events.event_time import REFUSED_AT_INGESTION, extract
from tidemark.timeops.materialize import Materialize, as_it_is
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.watermark.activity import proposing_by_activity
from tidemark.timeops.watermark.clock_rules import clock_rule
from tidemark.timeops.watermark.log_clock import LogClock, with_ticks
from tidemark.timeops.watermark.periodic_emission import ended_clocks, publications, seen_by
from tidemark.timeops.watermark.scans import Scanned, ScanStrategy, scan, with_set_by
from tidemark.timeops.watermark.timelines import proposing, state_after, steps_of

KEPT = "kept_out_of_order"

RELEASE_ORDER = (TIMELINE, TIMESTAMP, SEQ)
"""Released events of a timeline form one sequence in this order; ties keep arrival order."""

_ACCEPTED = "__tm_accepted"


@dataclass(frozen=True, kw_only=True)
class JudgedRows:
    """The judged rows of a segment of the log.

    Attributes:
        accepted: The events that go on: `_timestamp`, `_event_time`, `_timeline`, `_adjusted_by`, `__tm_timestamp`
            and `__tm_w_before` (microseconds; the latter null where the event is on time for certain), and under
            `keep` `__tm_w_set_by`; with `deduplicate_by` also `__tm_key`.
        refused: Records that do not: `__tm_reason`, `__tm_lateness_us`, `__tm_w_before` and `__tm_w_set_by`; with
            `deduplicate_by` also `__tm_key` and `__tm_first_seq`.
        advances: Events that may move the watermark: `_timeline`, `_arrival_seq`, `__tm_t`, and what
            `timelines.proposing` adds. Where the rules follow activity, all events of the timelines, with `_source`,
            `_split`, `_clock`.
        behind: Of `refused` those that were behind the watermark; None where they are not told apart.
        with_time: One row with `rows` BIGINT: how many records have a time and were no duplicate, early or late; None
            where that is not known. If it is all of them, `behind` is all of `refused`.
        together: `accepted` and `refused` in the frame that keeps both; None where none does.
    """

    accepted: DataFrame
    refused: DataFrame
    advances: DataFrame
    behind: DataFrame | None = None
    with_time: DataFrame | None = None
    together: DataFrame | None = None


@dataclass(frozen=True, kw_only=True)
class Adjusted(JudgedRows):
    """What a segment of the log becomes.

    Attributes:
        rules: What it was judged by.
        before: timelines.STATE_SCHEMA before the segment.
        state: The same after it.
        steps: The steps in which the watermark is seen to rise, timelines.steps_of; where periods publish what the
            clock gave, periodic_emission.publications.
        clock_steps: The same for what the clock alone gives all timelines of a log, ClockRule.steps; None where
            it gives nothing, or periods publish it.
        ended: The clock before each period, periodic_emission.ended_clocks; None where they publish nothing of
            silences.
        items: The records of the segment.
        clock: The clock of the log.
    """

    rules: TimeRules
    before: DataFrame
    state: DataFrame
    steps: DataFrame
    clock_steps: DataFrame | None
    ended: DataFrame | None
    items: DataFrame
    clock: LogClock


@dataclass(frozen=True)
class Released:
    """Accepted events split by the watermark at the end of a segment.

    Attributes:
        sequence: Released, to be numbered in RELEASE_ORDER after those released before.
        passed: Behind the watermark when they came and kept (`keep`): released at once, outside the sequence.
        held: Not yet released.
    """

    sequence: DataFrame
    passed: DataFrame
    held: DataFrame


def time_adjustment(
    items: DataFrame,
    state: DataFrame,
    rules: TimeRules,
    clock: LogClock,
    *,
    splits: int = 1,
    first_times: DataFrame | None = None,
    strategy: ScanStrategy | None = None,
    materialize: Materialize = as_it_is,
    materialize_few: Materialize = as_it_is,
) -> Adjusted:
    """Judges every record of a segment of the log.

    Args:
        items: Records of the arrival log, any cut of it.
        state: timelines.STATE_SCHEMA as it was before the first of them.
        rules: The rules of time.
        clock: The clock of the log.
        splits: How many splits a timeline has at most, see `splits.most_splits`.
        first_times: duplicates.FIRST_TIMES_SCHEMA before the segment, at least all within reach of its events; by
            default none.
        strategy: See `scans.ScanStrategy`; by default by blocks, with `over` in order.
        materialize: What is done with the extracted records, which are read several times, and so is what they
            propose where the rules follow activity.
        materialize_few: The same for what is small beside the records, which every use of the result would find
            again.

    Returns:
        Accepted and refused records and the state after the segment.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    timed = extract(items, rules)
    if rules.time.deduplicate_by:
        timed = with_duplicates(timed, first_times, rules.time)
    judged = materialize(judge_arrival(timed, rules.time))
    strategy = strategy or ("in_order" if rules.time.over else "by_blocks")
    if rules.follows_activity:  # an event that is refused still ends the silence of its timeline and split
        is_watched = ~F.coalesce(F.col(REASON).isin(*REFUSED_AT_INGESTION), F.lit(False))
        watched = judged.where(is_watched)
        proposed = materialize(
            proposing_by_activity(watched, state, rules, clock, splits=splits, in_blocks=strategy == "by_blocks")
        )
    else:
        is_watched = F.col(REASON).isNull()
        proposed = proposing(judged.where(is_watched), rules)
    ended = ended_clocks(with_ticks(items, clock.ticks), rules, clock)
    published = None if ended is None else publications(proposed, state, rules, clock, ended)
    scanned = scan(proposed, state, rules, strategy, published=published, materialize_few=materialize_few)
    rows = _rows(judged.where(~is_watched), proposed, scanned, rules)
    return adjusted_from(rows, items, state, rules, clock)


def _rows(unwatched: DataFrame, proposed: DataFrame, scanned: Scanned, rules: TimeRules) -> JudgedRows:
    """The judged rows: of those that the scan has not seen, and of those that it has."""
    nothing = F.lit(None).cast("bigint")
    none = unwatched.withColumns({W_BEFORE: nothing, W_SET_BY: nothing})
    refused, behind = none, none.where(F.lit(False))
    if rules.follows_activity:
        early_or_late = scanned.events.where(F.col(REASON).isNotNull()).withColumn(W_SET_BY, nothing)
        refused = refused.unionByName(early_or_late, allowMissingColumns=True)
    if rules.time.out_of_order == "drop":
        dropped = _dropped(scanned, rules)
        refused = refused.unionByName(dropped, allowMissingColumns=True)
        behind = behind.unionByName(dropped, allowMissingColumns=True)
    advances = scanned.advances
    if advances is None or rules.follows_activity:
        advances = proposed.select(TIMELINE, SEQ, T, PROPOSED, SET_BY, *more_of_advances(rules))
    return JudgedRows(
        accepted=_accepted(scanned, rules.time),
        refused=refused,
        advances=advances,
        behind=None if rules.follows_activity else behind,
        with_time=None if rules.follows_activity else scanned.rows,
    )


def adjusted_from(
    rows: JudgedRows, items: DataFrame, before: DataFrame, rules: TimeRules, clock: LogClock
) -> Adjusted:
    """What a segment becomes, from its judged rows, wherever these are kept; other arguments as `time_adjustment`."""
    by_clock = with_ticks(items, clock.ticks)
    ended = ended_clocks(by_clock, rules, clock)
    if ended is None:
        seen = steps = steps_of(rows.advances, before, rules, clock.after)
    else:
        steps = publications(rows.advances, before, rules, clock, ended)
        seen = seen_by(steps, rules, clock)
    return Adjusted(
        accepted=rows.accepted,
        refused=rows.refused,
        advances=rows.advances,
        behind=rows.behind,
        with_time=rows.with_time,
        together=rows.together,
        rules=rules,
        before=before,
        state=state_after(rows.advances, seen, before, rules, clock),
        steps=steps,
        clock_steps=clock_rule(rules).steps(by_clock, clock.log),
        ended=ended,
        items=items,
        clock=clock,
    )


def materialized_together(adjusted: Adjusted, materialize: Materialize) -> Adjusted:
    """The same segment, its rows cut out of one frame, so that they are computed once.

    Args:
        adjusted: The segment.
        materialize: Gives a frame with the same rows, computed now; what follows is planned from them.
    """
    accepted = adjusted.accepted.withColumn(_ACCEPTED, F.lit(True))
    refused = adjusted.refused.withColumn(_ACCEPTED, F.lit(False))
    both = materialize(accepted.unionByName(refused, allowMissingColumns=True))
    rows = JudgedRows(
        accepted=both.where(_ACCEPTED).select(*adjusted.accepted.columns),
        refused=both.where(~F.col(_ACCEPTED)).select(*adjusted.refused.columns),
        advances=both.where(F.col(SET_BY).isNotNull()).select(*adjusted.advances.columns),
        together=both.drop(_ACCEPTED),
    )
    return adjusted_from(rows, adjusted.items, adjusted.before, adjusted.rules, adjusted.clock)


def judge_arrival(events: DataFrame, time: TimeSpec) -> DataFrame:
    """Rules 1 and 2: drops or adjusts events that are early or late against their arrival, in that order (A2).

    They know no timeline and no watermark.

    Args:
        events: Rows of `extract`.
        time: The spec's `time` section.

    Returns:
        `events` with `__tm_reason` set to `early` or `late_arrival` where an event is refused, `__tm_t` moved where
        one is adjusted, `_adjusted_by` ARRAY<STRING>, and `__tm_lateness_us`: by how much the tolerance was too
        small.
    """
    ahead = to_us(EVENT_TIME) - to_us(ARRIVAL)
    is_early = _beyond(ahead, time.early.tolerance_us) if time.early else F.lit(False)
    is_late = _beyond(-ahead, time.late.tolerance_us) if time.late else F.lit(False)
    early_us = ahead - _early_limit(time)
    late_us = -ahead - _late_limit(time)
    drops_early = is_early if time.early and time.early.policy == "drop" else F.lit(False)
    drops_late = is_late if time.late and time.late.policy == "drop" else F.lit(False)
    reason = F.coalesce(REASON, F.when(drops_early, "early").when(drops_late, "late_arrival"))
    moved = (
        F.when(is_early, floor_to(to_us(ARRIVAL) + _early_limit(time), time.unit_us))
        .when(is_late, F.greatest(F.lit(MIN_US), floor_to(to_us(ARRIVAL) - _late_limit(time), time.unit_us)))
        .otherwise(F.col(T))
    )
    no_names = F.array().cast("array<string>")
    adjusted_by = F.when(is_early, F.array(F.lit("early"))).when(is_late, F.array(F.lit("late")))
    return events.withColumns(
        {
            LATENESS: F.when(F.col(REASON).isNull(), F.when(drops_early, early_us).when(drops_late, late_us)),
            REASON: reason,
            T: F.when(reason.isNull(), moved),
            ADJUSTED_BY: F.when(reason.isNull(), F.coalesce(adjusted_by, no_names)).otherwise(no_names),
        }
    )


def _early_limit(time: TimeSpec) -> Column:
    """Tolerance of the early policy in microseconds, 0 without one."""
    return F.lit(time.early.tolerance_us if time.early else 0)


def _late_limit(time: TimeSpec) -> Column:
    """Tolerance of the late policy in microseconds, 0 without one."""
    return F.lit(time.late.tolerance_us if time.late else 0)


def _beyond(difference_us: Column, tolerance_us: int) -> Column:
    return F.coalesce(difference_us > F.lit(tolerance_us), F.lit(False))


def more_of_advances(rules: TimeRules) -> list[str]:
    """Columns that events which may move a watermark have besides, by what the rules ask of them."""
    periods = [PERIOD] if rules.time.emit_every_us is not None else []
    activity = [SOURCE, SPLIT, CLOCK] if rules.follows_activity else []
    return [*periods, *activity, *clock_rule(rules).of_steps]


def _accepted(scanned: Scanned, time: TimeSpec) -> DataFrame:
    behind = F.col(W_BEFORE).isNotNull()
    nothing = F.lit(None).cast("bigint")
    scanned = replace(scanned, events=scanned.events.where(F.col(REASON).isNull()))
    if time.out_of_order == "drop":
        on_time = scanned.events.where(~behind)
        return on_time.withColumns({W_SET_BY: nothing, T_FINAL: F.col(T), TIMESTAMP: to_instant(T)})
    adjusts = time.out_of_order == "adjust"
    rule = F.array(F.lit("out_of_order" if adjusts else KEPT))
    final = F.when(behind, F.col(W_BEFORE)).otherwise(F.col(T)) if adjusts else F.col(T)
    on_time = scanned.events.where(~behind).withColumn(W_SET_BY, nothing)
    late = scanned.events.where(behind)
    late = late.withColumn(W_SET_BY, nothing) if adjusts else with_set_by(late, scanned.set_by)
    return on_time.unionByName(late).withColumns(
        {
            T_FINAL: final,
            TIMESTAMP: to_instant(final),
            ADJUSTED_BY: F.when(behind, F.concat(ADJUSTED_BY, rule)).otherwise(F.col(ADJUSTED_BY)),
        }
    )


def _dropped(scanned: Scanned, rules: TimeRules) -> DataFrame:
    behind = with_set_by(scanned.events.where(F.col(W_BEFORE).isNotNull()), scanned.set_by)
    late = F.col(W_BEFORE) - F.col(T)
    if rules.clock_moves:  # no tolerance lets in what the clock has passed
        late = F.when(F.col(W_SET_BY).isNotNull(), late)
    return behind.withColumns({REASON: F.lit("out_of_order"), LATENESS: late})


def release(accepted: DataFrame, state: DataFrame, time: TimeSpec, *, flushed: bool = False) -> Released:
    """Splits accepted events, those held before included, by the watermark after the segment.

    An event is held while `_timestamp >= W` and released when `_timestamp < W`; with no watermark yet all are
    held, and the end of input releases everything.

    Args:
        accepted: Held events and newly accepted ones, with `_timestamp`, `_timeline`, `_adjusted_by`.
        state: timelines.STATE_SCHEMA after the segment.
        time: The spec's `time`.
        flushed: The end of input was reached and the spec (or the operator) flushes.
    """
    # Under another policy there is none, and nobody need look for it.
    kept_late = F.array_contains(ADJUSTED_BY, KEPT) if time.out_of_order == "keep" else F.lit(False)
    rest = accepted.where(~kept_late)
    known = rest.join(state.select(TIMELINE, "watermark"), TIMELINE, "left")
    out = F.lit(True) if flushed else F.coalesce(to_us(TIMESTAMP) < F.col("watermark"), F.lit(False))
    return Released(
        sequence=known.where(out).drop("watermark"),
        passed=accepted.where(kept_late),
        held=known.where(~out).drop("watermark"),
    )
