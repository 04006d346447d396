"""One batch's stretch of the log, judged: the same lazily computed frames for every stage that needs them.

Here: the state before and after a batch, as frames; reading the range. Not here: writing, the rules.
"""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from resources import tables
from resources.batches import Plan
from resources.workspace import Position, Workspace, plan_end
from timeops import columns as c
from timeops.adjustment import Adjusted, time_adjustment
from timeops.watermarks import STATE_SCHEMA


@dataclass(frozen=True)
class Judged:
    """A batch's stretch of the log with the positions before and after it."""

    plan: Plan
    adjusted: Adjusted
    before: Position
    after: Position


def items_of(workspace: Workspace, plan: Plan) -> DataFrame:
    """The batch's records of the arrival log."""
    log = workspace.read_base(tables.RAW_EVENTS)
    return log.where(F.col(c.SEQ).between(plan.first_seq, plan_end(plan) - 1))


def judge(workspace: Workspace, plan: Plan, before: Position) -> Judged:
    """Judges a batch's stretch; one small Spark job finds the position after it."""
    adjusted = time_adjustment(items_of(workspace, plan), state_frame(workspace, before), workspace.spec.time)
    ends = items_of(workspace, plan).agg(F.max(c.to_us(c.CLOCK)).alias("clock"))
    row = adjusted.state.crossJoin(ends).collect()
    found = row[0].asDict() if row else {"clock": ends.collect()[0]["clock"]}
    after = replace(
        before,
        watermark_us=found.get("watermark", before.watermark_us),
        max_t_us=found.get("max_t", before.max_t_us),
        set_by=found.get("watermark_set_by", before.set_by),
        clock_us=before.clock_us if found["clock"] is None else found["clock"],
        final=bool(plan.input.get("flush")),
    )
    return with_positions(workspace, plan, adjusted, before, after)


def judge_again(workspace: Workspace, plan: Plan, before: Position, after: Position) -> Judged:
    """The same stretch for a later stage, when the position after it is known."""
    adjusted = time_adjustment(items_of(workspace, plan), state_frame(workspace, before), workspace.spec.time)
    return with_positions(workspace, plan, adjusted, before, after)


def with_positions(workspace: Workspace, plan: Plan, adjusted: Adjusted, before: Position, after: Position) -> Judged:
    """The stretch with the state after it as a value instead of a computation."""
    return Judged(plan, replace(adjusted, state=state_frame(workspace, after)), before, after)


def state_frame(workspace: Workspace, position: Position) -> DataFrame:
    """A position as the state of the pipeline's one timeline; no row before its first event."""
    rows = [(c.ONE_TIMELINE, position.max_t_us, position.watermark_us, position.set_by)]
    return workspace.spark.createDataFrame(rows if position.max_t_us is not None else [], STATE_SCHEMA)
