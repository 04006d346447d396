"""Time adjustment of one batch: released and held events, the watermark, and what became of every record.

Here: reading a stretch of the log and writing the tables of the time stage. Not here: the rules (timeops/), windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import functions as F

from assets.commits import flushes
from assets.control import control_rows
from assets.schemas import held_columns, ordered_columns, payload_of
from assets.stretch import Judged, judged_batch
from resources import tables
from resources.batches import Plan
from resources.numbering import numbered
from resources.workspace import Position, Workspace
from timeops import columns as c
from timeops.ordering import RELEASE_ORDER, release
from timeops.tally import accepted_tally, refused_tally

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeAdjusted:
    """What the time stage of a batch did.

    Attributes:
        counts: Records by outcome, see `timeops.tally`, `records`, `released`, and refused ones by reason.
        before: Position before the batch.
        after: Position after it.
    """

    counts: Mapping[str, int]
    before: Position
    after: Position


def adjust_time(workspace: Workspace, plan: Plan) -> TimeAdjusted:
    """Judges a batch's stretch of the log and writes `ordered_events`, `held_events`, `log_control`, `watermarks`."""
    judged = judged_batch(workspace, plan)
    before = judged.before
    counts = _counts(judged, workspace)
    if workspace.spec.outputs.ordered_events:
        released = _write_released(workspace, judged)
        counts |= {"released": released}
        judged = replace(judged, after=replace(judged.after, released=before.released + released))
    _write_control(workspace, plan, judged.after)
    _write_watermarks(workspace, plan, before, judged.after, counts)
    return TimeAdjusted(counts, before, judged.after)


def _counts(judged: Judged, workspace: Workspace) -> dict[str, int]:
    refused = {row["reason"]: row["n"] for row in refused_tally(judged.adjusted.refused).collect()}
    accepted = accepted_tally(judged.adjusted.accepted, workspace.spec.windows).collect()[0].asDict()
    records = accepted["accepted"] + sum(refused.values())
    return {"records": records, **accepted, **{f"refused.{reason}": n for reason, n in refused.items()}}


def _write_released(workspace: Workspace, judged: Judged) -> int:
    """Writes what is released and what is held on; returns how many events got a `_release_seq`."""
    plan = judged.plan
    payload = payload_of(workspace)
    held_before = workspace.read_base(tables.HELD_EVENTS).drop(c.BATCH)
    accepted = judged.adjusted.accepted.withColumn(c.WATERMARK, c.to_instant(c.W_BEFORE))
    fresh = accepted.select(*held_columns(payload))
    flushed = flushes(plan)
    split = release(held_before.unionByName(fresh), judged.adjusted.state, flushed=flushed)
    batch = F.lit(plan.batch_id).cast("bigint").alias(c.BATCH)
    order = [F.col(name) for name in RELEASE_ORDER]
    with numbered(split.sequence, order, start=judged.before.released, name=c.RELEASE_SEQ) as sequence:
        # Events kept out of order pass outside the sequence: their number stays null.
        both = sequence.frame.unionByName(split.passed, allowMissingColumns=True)
        rows = both.select(*ordered_columns(payload), batch)
        released = sequence.rows
        if released or workspace.spec.time.out_of_order == "keep":
            expect = workspace.ready(tables.ORDERED_EVENTS)
            workspace.lake.append(tables.ORDERED_EVENTS, rows, attempt=plan.attempt, expect=expect)
    still_held = release(fresh, judged.adjusted.state, flushed=flushed).held
    expect = workspace.ready(tables.HELD_EVENTS)
    workspace.lake.replace(
        tables.HELD_EVENTS,
        still_held.select(*held_columns(payload), batch).repartitionByRange(c.TIMESTAMP),
        where=_no_longer_held(judged.after, flushed=flushed),
        attempt=plan.attempt,
        expect=expect,
    )
    return released


def _no_longer_held(after: Position, *, flushed: bool) -> str:
    """Condition on rows of `held_events` that the batch released."""
    if flushed:
        return "true"
    if after.watermark_us is None:
        return "false"
    return f"{c.TIMESTAMP} < timestamp_micros({after.watermark_us})"


def _write_control(workspace: Workspace, plan: Plan, after: Position) -> None:
    rows = control_rows(workspace, plan, after)
    expect = workspace.ready(tables.LOG_CONTROL)
    workspace.lake.append_rows(tables.LOG_CONTROL, rows, expect=expect, attempt=plan.attempt)


def _write_watermarks(
    workspace: Workspace, plan: Plan, before: Position, after: Position, counts: Mapping[str, int]
) -> None:
    """One row of the pipeline, and one of its timeline when its own events moved it."""
    row: dict[str, object] = {
        "_batch_id": plan.batch_id,
        "_timeline": None,
        "watermark": None if after.final else _instant(after.watermark_us),
        "clock": _instant(after.clock_us),
        "max_timestamp": _instant(after.max_t_us),
        "watermark_set_by": after.set_by,
        "released": after.released,
        "final": after.final,
        "counts": dict(counts),
    }
    rows = [row]
    if after.max_t_us != before.max_t_us:
        rows.append(row | {"_timeline": c.ONE_TIMELINE})
    table = pa.Table.from_pylist(rows, schema=tables.WATERMARKS_SCHEMA)
    expect = workspace.ready(tables.WATERMARKS)
    workspace.lake.append_rows(tables.WATERMARKS, table, expect=expect, attempt=plan.attempt)


def _instant(us: int | None) -> datetime | None:
    return None if us is None else _EPOCH + timedelta(microseconds=us)
