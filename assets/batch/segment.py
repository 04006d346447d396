"""One batch's segment of the log, judged once for every stage that needs it.

Here: reading the range, the state before and after it, keeping what was judged while the batch is at work. Not here:
writing, the rules.
"""

from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import flushes, has_few_records, segment_of
from tidemark.assets.batch.clocks import clock_around, clocks_behind
from tidemark.assets.batch.pauses import waits_of
from tidemark.assets.state.dedup import Span, known_first_times, spans_of
from tidemark.assets.state.timelines import joined_fast, one_timeline, timelines_before
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.spark.frames import count_splits
from tidemark.resources.workspace import Position, Workspace, plan_end, records_in
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import Adjusted, kept_together, time_adjustment
from tidemark.timeops.materialize import as_it_is, computed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.timelines import clock_watermark

KEPT_RECORDS = 1_000_000
"""Batches of at most so many records are judged once and kept for all stages. A larger one is judged anew by each,
from the carries of its blocks, which are kept: that is a scan of the log, which costs less than writing all its rows
aside. Where the rules follow the activity of timelines, or look for duplicates, it is more than a scan, and every
batch is kept."""


@dataclass(frozen=True)
class Judged:
    """A batch's segment of the log with the positions before and after it.

    Attributes:
        plan: The batch.
        adjusted: Its records, judged.
        before: The pipeline's position before it.
        after: The same after it.
        timelines: State of every timeline before it, timelines.TIMELINE_SCHEMA.
        spans: The spans of event time in which its events may have duplicates; none where nobody looks for them.
        sessions: By session window the session of each event, as far as a stage has asked and it is kept.
    """

    plan: Plan
    adjusted: Adjusted
    before: Position
    after: Position
    timelines: DataFrame
    spans: tuple[Span, ...]
    sessions: dict[str, DataFrame] = field(default_factory=dict, repr=False, compare=False)


_at_work: WeakKeyDictionary[Workspace, Judged] = WeakKeyDictionary()


def items_of(workspace: Workspace, plan: Plan) -> DataFrame:
    """The batch's records of the arrival log."""
    return records_between(workspace, plan.first_seq, plan_end(plan))


def records_between(workspace: Workspace, first_seq: int, end_seq: int) -> DataFrame:
    """The records of the log from one number on and before another; files without any are not opened."""
    segment = [(c.SEQ, ">=", first_seq), (c.SEQ, "<", end_seq)]
    return workspace.read_base(tables.RAW_EVENTS, filters=segment)


def judged_batch(workspace: Workspace, plan: Plan) -> Judged:
    """The batch's segment, judged: by this process before if it still keeps that, else now."""
    known = _at_work.get(workspace)
    if known is not None and known.plan.attempt == plan.attempt:
        return known
    forget(workspace)
    _at_work[workspace] = _judge(workspace, plan)
    return _at_work[workspace]


def forget(workspace: Workspace) -> None:
    """Lets go of what was judged: the batch is committed, or another one begins. Spark frees it with the frame."""
    _at_work.pop(workspace, None)


def _judge(workspace: Workspace, plan: Plan) -> Judged:
    before = workspace.position()
    start, timelines = timelines_before(workspace, before), 1
    if workspace.keeps_timelines:
        start = start.localCheckpoint()
        timelines = start.count()
    rules = replace(TimeRules.of(workspace.spec), waits=waits_of(workspace, plan))
    items = items_of(workspace, plan)
    segment = segment_of(plan)
    reached = clocks_behind(workspace, segment, items, before, rules)
    clock = clock_around(workspace, segment, before, reached)
    keeps = records_in(plan) <= KEPT_RECORDS or rules.follows_activity or bool(rules.time.deduplicate_by)
    spans = spans_of(workspace, items) if rules.time.deduplicate_by else ()
    state = joined_fast(start, timelines)
    adjusted = time_adjustment(
        items,
        state,
        rules,
        clock,
        splits=count_splits(items, state, rules),
        first_times=known_first_times(workspace, spans) if spans else None,
        way="in_order" if has_few_records(plan) else None,
        keep=computed if keeps else as_it_is,
        keep_few=as_it_is if keeps else computed,
    )
    if keeps:
        # A checkpoint rather than a cache: what follows is planned from its rows, not from the expressions behind.
        adjusted = kept_together(adjusted, computed)
    end = adjusted.state.localCheckpoint() if workspace.keeps_timelines else adjusted.state
    after = _position_after(plan, before, reached, end, rules)
    if workspace.keeps_timelines:
        state = joined_fast(end, timelines + records_in(plan))
    else:
        state = one_timeline(workspace, after)
    return Judged(plan, replace(adjusted, state=state), before, after, start, spans)


def _position_after(plan: Plan, before: Position, reached: Position, state: DataFrame, rules: TimeRules) -> Position:
    """The position after the segment, found by one small job."""
    seen_us = reached.clock_before_period_us if rules.publishes_silences else reached.clock_us
    by_clock = clock_watermark(F.lit(seen_us).cast("bigint"), rules.time)
    row = state.agg(
        F.max("max_t").alias("max_t"),
        F.greatest(F.max("watermark"), by_clock).alias("watermark"),
        F.when(F.count("*") == 1, F.any_value("watermark_set_by")).alias("set_by"),
    ).collect()[0]
    return replace(
        reached,
        watermark_us=row["watermark"],
        max_t_us=row["max_t"],
        set_by=row["set_by"],
        released=before.released,
        final=flushes(plan),
    )
