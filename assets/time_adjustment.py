"""Time adjustment of one batch: what became of every record, and where the watermark stands.

Here: counts, `log_control`, `watermarks`. Not here: released and held events (releases.py), the rules (timeops/).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import batch_column, has_few_records
from tidemark.assets.batch.control import control_rows
from tidemark.assets.batch.segment import Judged, judged_batch
from tidemark.assets.state.dedup import write_first_times
from tidemark.assets.state.drained_windows import all_that_stay_closed, windows_with_late_events
from tidemark.assets.state.merging_events import late_events_of
from tidemark.assets.state.releases import with_released, write_released
from tidemark.assets.state.timelines import watermark_rows, write_timelines
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import Position, Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.counts import (
    FURTHEST_SEQ,
    FURTHEST_T_US,
    FURTHEST_US,
    MOVED,
    accepted_tally,
    furthest_ahead,
    of_source,
    refused_tally,
)
from tidemark.timeops.durations import micros
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.utc import instant_of


@dataclass(frozen=True)
class Met:
    """How many events were early, late and out of order: dropped, adjusted or kept alike (A2's metrics)."""

    early: int
    late: int
    out_of_order: int

    def __add__(self, other: "Met") -> "Met":
        """Those of both."""
        return Met(self.early + other.early, self.late + other.late, self.out_of_order + other.out_of_order)


@dataclass(frozen=True)
class TimeAdjusted:
    """What the time stage of a batch did.

    Attributes:
        counts: Records by outcome, see `tidemark.timeops.counts`, `records`, `released`, and refused ones by reason;
        where an
            event was further ahead of the clock than `alerts.far_ahead` says, that event.
        met: By source how many of its events were early, late and out of order, refused or not.
        before: Position before the batch.
        after: Position after it.
    """

    counts: Mapping[str, int]
    met: Mapping[str, Met]
    before: Position
    after: Position


def adjust_time(workspace: Workspace, plan: Plan) -> TimeAdjusted:
    """Judges a batch's segment of the log and writes `ordered_events`, `held_events`, `log_control`, `watermarks`."""
    judged = judged_batch(workspace, plan)
    before = judged.before
    counts, met = _counts(judged, workspace)
    if workspace.spec.outputs.ordered_events:
        released = write_released(workspace, judged, kept=counts[KEPT])
        counts |= {"released": released}
        judged = replace(judged, after=replace(judged.after, released=before.released + released))
    _write_control(workspace, plan, judged.after)
    if workspace.spec.time.deduplicate_by:
        write_first_times(workspace, plan, judged.adjusted, judged.spans)
    if workspace.keeps_timelines:
        _write_timelines(workspace, judged, counts)
    else:
        _write_watermarks(workspace, judged, counts)
    return TimeAdjusted(counts, met, before, judged.after)


def _counts(judged: Judged, workspace: Workspace) -> tuple[dict[str, int], dict[str, Met]]:
    """Counts of the batch, and what was early, late and out of order by source."""
    sources = [source.name for source in workspace.spec.sources]
    by_source = Counter(
        {(r["source"], r["reason"]): r["n"] for r in refused_tally(judged.adjusted.refused).collect()}
    )
    windows = workspace.spec.event_windows
    late = _late_for_sessions(judged, workspace)
    closed = all_that_stay_closed(workspace, judged.plan, windows)
    tally = accepted_tally(judged.adjusted.accepted, windows, late, sources, closed, also=furthest_ahead())
    found = tally.collect()[0].asDict()
    furthest = {name: found.pop(name) for name in (FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US)}
    is_far = (furthest[FURTHEST_US] or 0) > micros(workspace.spec.alerts.far_ahead)
    moved = {(source, name): found.pop(of_source(name, source)) for source in sources for name in MOVED}
    refused: Counter[str] = Counter()
    for (_, reason), n in by_source.items():
        refused[f"refused.{reason}"] += n
    met = {
        source: Met(
            early=moved[source, "early"] + by_source[source, "early"],
            late=moved[source, "late"] + by_source[source, "late_arrival"],
            out_of_order=moved[source, "out_of_order"] + moved[source, KEPT] + by_source[source, "out_of_order"],
        )
        for source in sources
    }
    counts = {"records": found["accepted"] + refused.total(), **found, **refused}
    return counts | (furthest if is_far else {}), met


def _late_for_sessions(judged: Judged, workspace: Workspace) -> dict[str, DataFrame]:
    late = windows_with_late_events(workspace, judged.plan)
    sessions = [window for window in late if window.kind == "session"]
    return {window.name: late_events_of(workspace, judged, window) for window in sessions}


def _write_control(workspace: Workspace, plan: Plan, after: Position) -> None:
    rows = control_rows(workspace, plan, after)
    expect = workspace.ready(tables.LOG_CONTROL, plan)
    workspace.lake.append_rows(tables.LOG_CONTROL, rows, expect=expect, attempt=plan.attempt)


def _write_watermarks(workspace: Workspace, judged: Judged, counts: Mapping[str, int]) -> None:
    """One row of the pipeline, and one of its timeline when its own events moved it."""
    row = _pipeline_row(judged, counts)
    rows = [row]
    if judged.after.max_t_us != judged.before.max_t_us:
        rows.append(row | {"_timeline": c.ONE_TIMELINE})
    table = pa.Table.from_pylist(rows, schema=tables.WATERMARKS_SCHEMA)
    expect = workspace.ready(tables.WATERMARKS, judged.plan)
    workspace.lake.append_rows(tables.WATERMARKS, table, expect=expect, attempt=judged.plan.attempt)


def _write_timelines(workspace: Workspace, judged: Judged, counts: Mapping[str, int]) -> None:
    """The state of the timelines; a row of the pipeline and one of each timeline that its own events moved."""
    plan, before = judged.plan, judged.timelines
    after = with_released(workspace, judged).localCheckpoint()
    write_timelines(workspace, plan, before, after, judged.after, rules=judged.adjusted.rules)
    pipeline = pa.Table.from_pylist([_pipeline_row(judged, counts)], schema=tables.WATERMARKS_SCHEMA)
    clock = F.lit(_instant(judged.after.clock_us)).cast("timestamp")
    moved = watermark_rows(before, after, clock, final=judged.after.final)
    rows = workspace.spark.createDataFrame(pipeline).unionByName(
        moved.withColumn(c.BATCH, batch_column(plan)), allowMissingColumns=True
    )
    expect = workspace.ready(tables.WATERMARKS, plan)
    few = has_few_records(plan)
    rows = rows if few else rows.hint("rebalance")  # one file, or files of a full size
    workspace.lake.append(tables.WATERMARKS, rows, attempt=plan.attempt, expect=expect, are_few=few)


def _pipeline_row(judged: Judged, counts: Mapping[str, int]) -> dict[str, object]:
    after = judged.after
    return {
        "_batch_id": judged.plan.batch_id,
        "_timeline": None,
        "watermark": None if after.final else _instant(after.watermark_us),
        "clock": _instant(after.clock_us),
        "max_timestamp": _instant(after.max_t_us),
        "watermark_set_by": after.set_by,
        "released": after.released,
        "final": after.final,
        "counts": dict(counts),
        "clock_before_period": _instant(after.clock_before_period_us),
        "watermark_before_flush": _instant(after.watermark_us) if after.final else None,
    }


def _instant(us: int | None) -> datetime | None:
    return None if us is None else instant_of(us)
