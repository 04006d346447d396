"""One batch's stretch of the log, judged once for every stage that needs it.

Here: reading the range, the state before and after it, keeping what was judged while the batch is at work. Not here:
writing, the rules.
"""

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.commits import has_few_records
from assets.control import position_under_spec
from resources import tables
from resources.batches import Plan
from resources.rows import small_frame
from resources.workspace import Position, Workspace, plan_end, records_in
from timeops import columns as c
from timeops.adjustment import Adjusted, time_adjustment
from timeops.watermarks import ASKED, STATE_SCHEMA, state_after

KEPT_RECORDS = 1_000_000
"""Batches of at most so many records are judged once and kept for all stages. A larger one is judged anew by each:
that is a scan of the log, which costs less than writing all its rows aside."""

_ACCEPTED = "__accepted"


@dataclass(frozen=True)
class Judged:
    """A batch's stretch of the log with the positions before and after it."""

    plan: Plan
    adjusted: Adjusted
    before: Position
    after: Position


_at_work: WeakKeyDictionary[Workspace, Judged] = WeakKeyDictionary()


def items_of(workspace: Workspace, plan: Plan) -> DataFrame:
    """The batch's records of the arrival log."""
    stretch = [(c.SEQ, ">=", plan.first_seq), (c.SEQ, "<", plan_end(plan))]
    return workspace.read_base(tables.RAW_EVENTS, filters=stretch)


def judged_batch(workspace: Workspace, plan: Plan) -> Judged:
    """The batch's stretch, judged: by this process before if it still keeps that, else now."""
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
    before = position_under_spec(workspace, workspace.position())
    start = state_frame(workspace, before)
    items = items_of(workspace, plan)
    keeps = records_in(plan) <= KEPT_RECORDS
    adjusted = time_adjustment(
        items,
        start,
        workspace.spec.time,
        # Few records are put in order faster than they are cut into blocks; the result is the same.
        few_timelines=not has_few_records(plan),
        keep=lambda frame: frame.localCheckpoint() if keeps else frame,
    )
    if keeps:
        adjusted = _kept(adjusted)
    clock = items.agg(F.max(c.to_us(c.CLOCK)).alias("clock"))
    after = _position_after(plan, before, clock, state_after(adjusted.moves, start))
    return Judged(plan, replace(adjusted, state=state_frame(workspace, after)), before, after)


def _kept(adjusted: Adjusted) -> Adjusted:
    """The same frames, cut out of one that Spark computes now and keeps.

    A checkpoint rather than a cache: what follows is planned from its rows, not from all the expressions behind them.
    """
    accepted = adjusted.accepted.withColumn(_ACCEPTED, F.lit(True))
    refused = adjusted.refused.withColumn(_ACCEPTED, F.lit(False))
    both = accepted.unionByName(refused, allowMissingColumns=True).localCheckpoint()
    return replace(
        adjusted,
        accepted=both.where(_ACCEPTED).select(*adjusted.accepted.columns),
        refused=both.where(~F.col(_ACCEPTED)).select(*adjusted.refused.columns),
        moves=both.where(F.col(ASKED).isNotNull()).select(*adjusted.moves.columns),
    )


def _position_after(plan: Plan, before: Position, clock: DataFrame, state: DataFrame) -> Position:
    """The position after the stretch, found by one small job."""
    row = clock.join(state, F.lit(True), "left").collect()[0]
    after = replace(before, final=bool(plan.input.get("flush")))
    if row["clock"] is not None:
        after = replace(after, clock_us=row["clock"])
    if row["max_t"] is None:
        return after
    return replace(after, watermark_us=row["watermark"], max_t_us=row["max_t"], set_by=row["watermark_set_by"])


def state_frame(workspace: Workspace, position: Position) -> DataFrame:
    """A position as the state of the pipeline's one timeline; no row before its first event."""
    rows = [(c.ONE_TIMELINE, position.max_t_us, position.watermark_us, position.set_by)]
    return small_frame(workspace.spark, rows if position.max_t_us is not None else [], STATE_SCHEMA)
