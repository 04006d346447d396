"""Time adjustment of one batch: the outcome of every record, and where the log and the watermark are.

Here: counts, dead letters of all stages, `log_control`, `watermarks`. Not here: released and held events
(assets/state/releases.py), the rules and sentences (timeops/).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tidemark.assets.batch import Batch
from tidemark.assets.log.admissions import letters_let_in, with_instants
from tidemark.assets.log.control import (
    DATA_LOSS,
    END_OF_INPUT,
    REOPEN,
    SPEC,
    TABLE,
    TICK,
    WAIT,
    control_item,
    follows_waits,
    tables_at_end,
    waits_before,
    write_items,
)
from tidemark.assets.log.spec_changes import check_spec
from tidemark.assets.planning import LogSegment, segment_of
from tidemark.assets.schemas import payload_of
from tidemark.assets.state.dedup import write_first_times
from tidemark.assets.state.releases import with_released, write_released
from tidemark.assets.state.timelines import watermark_rows, write_timelines
from tidemark.resources import tables
from tidemark.resources.batches.plans import REFUSED_PREFIX, REPLAYED_PREFIX, Counts, IngestInput, Plan
from tidemark.resources.batches.position import KEPT_UNTIL, Position
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import ADMITTED, FUTURE_ARRIVAL, KEPT, MOVED
from tidemark.timeops.figures.counts import FURTHEST_US, Outcomes, counts_by_join, counts_by_window
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.rules.time_rules import waiters_to_json
from tidemark.timeops.values.durations import micros
from tidemark.timeops.values.utc import instant_of
from tidemark.timeops.watermark.timelines import own_timelines

BySource = Mapping[tuple[str, str], int]
"""Numbers of records by their source and by what moved or refused them."""


@dataclass(frozen=True)
class UntimelyCounts:
    """How many events were early, late and out of order: dropped, adjusted or kept alike (A2's metrics)."""

    early: int
    late: int
    out_of_order: int

    def __add__(self, other: "UntimelyCounts") -> "UntimelyCounts":
        """Return the sum of both."""
        return UntimelyCounts(
            self.early + other.early, self.late + other.late, self.out_of_order + other.out_of_order
        )


@dataclass(frozen=True)
class TimeAdjusted:
    """The result of the time stage of a batch.

    Attributes:
        counts: Records by outcome, see `Counts`, `records`, `released`, and refused ones by reason;
            and, if an event was further ahead of the clock than `alerts.far_ahead` allows, that event.
        met: By source how many of its events were early, late and out of order, refused or not.
        position: Position after it.
        outcomes: What became of each record.
    """

    counts: Counts
    met: Mapping[str, UntimelyCounts]
    position: Position
    outcomes: Outcomes


def adjust_time(batch: Batch) -> TimeAdjusted:
    """Judge a batch's segment of the log; write `ordered_events`, `held_events`, `log_control`, `watermarks`."""
    outcomes = batch.judged.take_outcomes()
    moved, refused = outcomes.moved_by_source(), outcomes.refused_by_source()
    counts, position = _counts(batch, outcomes, moved, refused), batch.after
    if batch.workspace.spec.outputs.ordered_events:
        released = write_released(batch, outcomes)
        counts |= {"released": released}
        position = replace(position, released=batch.before.released + released)
    write_items(batch.workspace, batch.plan, control_items(batch.workspace, batch.plan, position))
    if batch.workspace.spec.time.deduplicate_by:
        write_first_times(batch)
    if batch.workspace.spec.keeps_timelines:
        _write_timelines(batch, position, counts)
    else:
        _write_watermarks(batch, position, counts)
    return TimeAdjusted(Counts(counts), _met_by_source(outcomes.sources, moved, refused), position, outcomes)


def _counts(batch: Batch, outcomes: Outcomes, moved: BySource, refused: BySource) -> dict[str, int]:
    movers = {name: sum(n for (_, mover), n in moved.items() if mover == name) for name in MOVED}
    if not movers[FUTURE_ARRIVAL]:
        del movers[FUTURE_ARRIVAL]  # nearly no batch has any
    counts = {"records": len(outcomes), "accepted": outcomes.accepted, **movers}
    admitted = int(outcomes.admitted.sum())
    counts |= counts_by_window(batch.outcome, outcomes.accepted, admitted)
    counts |= counts_by_join(batch.outcome, batch.let_in)
    replayed, by_reason = outcomes.admitted_by_source(), Counter[str]()
    for (source, reason), n in sorted(refused.items(), key=lambda entry: entry[0][1]):
        let_in = replayed.get((source, reason), 0)
        by_reason[f"{REFUSED_PREFIX}{reason}"] += n - let_in
        by_reason[f"{REPLAYED_PREFIX}{reason}"] += let_in
    carried = letters_let_in(batch.workspace) if batch.let_in is not None else None
    if carried is not None:
        by_reason.update({f"{REPLAYED_PREFIX}{reason}": n for reason, n in _by_reason(carried).items()})
    counts |= {name: n for name, n in by_reason.items() if n} | ({ADMITTED: admitted} if admitted else {})
    ahead = outcomes.furthest_ahead()
    return counts | (ahead if ahead.get(FURTHEST_US, 0) > micros(batch.workspace.spec.alerts.far_ahead) else {})


def _met_by_source(sources: Sequence[str], moved: BySource, refused: BySource) -> dict[str, UntimelyCounts]:
    counts = Counter(moved) + Counter(refused)
    return {
        name: UntimelyCounts(
            early=counts[name, "early"],
            late=counts[name, "late"] + counts[name, Reason.LATE_ARRIVAL],
            out_of_order=counts[name, "out_of_order"] + counts[name, KEPT],
        )
        for name in sources
    }


def write_dead_letters(batch: Batch) -> Mapping[str, int]:
    """Write the dead letters of a batch, if there are any; return how many, by reason.

    A rebuild of windows alone has only the ones of windows.
    """
    counts, alone = batch.workspace.progress.counts_of(batch.plan.batch_id), batch.workspace.windows_alone
    carried = letters_let_in(batch.workspace) if batch.let_in is not None else None
    if alone:
        counts = Counts(
            {name: n for name, n in counts.items() if not name.startswith((REFUSED_PREFIX, REPLAYED_PREFIX))}
        )
    spec = batch.workspace.spec
    reasons = counts.dead_letters(spec.result_names)
    reasons += Counter(counts.replayed)
    if alone and carried is not None:
        reasons += _by_reason(carried)
    for unfit in batch.outcome.unfit_results():
        reasons += Counter({Reason.BAD_EXPRESSION.value: unfit.count()})
    if reasons:
        rows = batch.outcome.dead_letters(payload_of(batch.workspace).names, of_windows_alone=alone)
        rows = with_instants(batch.workspace, rows)
        rows = rows if carried is None else rows.unionByName(carried, allowMissingColumns=True)
        # Files of a full size, in a large batch: few rows of each task.
        batch.append(tables.DEAD_LETTERS, rows.hint("rebalance"), grows=True)
    return reasons


def _by_reason(letters: DataFrame) -> Counter[str]:
    return Counter({row["reason"]: row["count"] for row in letters.groupBy("reason").count().collect()})


def control_items(workspace: Workspace, plan: Plan, position: Position) -> list[dict[str, Any]]:
    """Return the control items before a batch's segment of the log, and after it."""
    segment = segment_of(plan)
    front, behind = segment.first_seq - 1, segment.end_seq - 1
    items = []
    if segment.reopens is not None:
        items.append(control_item(front, REOPEN, segment.reopens))
    if check_spec(workspace):
        why = "the pipeline's first batch" if segment.first_seq == 0 else "the spec file changed"
        why = "the spec of the rebuild" if workspace.log_of else why
        items.append(control_item(front, SPEC, why, argument=workspace.spec.canonical_json()))
    clock_us = workspace.progress.position().clock_us if follows_waits(workspace.spec) else None
    if clock_us is not None and waits_before(workspace).sources != segment.waits:
        argument = json.dumps(waiters_to_json(segment.waits))
        items.append(control_item(front, WAIT, "alignment of sources", clock_us=clock_us, argument=argument))
    versions = tables_at_end(workspace) if segment.tables else {}
    for name, version in segment.tables.items():
        if versions.get(name) != version:
            argument = json.dumps({"join": name, "version": version})
            items.append(control_item(front, TABLE, "the table of the join is another", argument=argument))
    items += _losses(workspace, segment)
    if segment.tick_us is not None:
        items.append(control_item(behind, TICK, "live run", clock_us=segment.tick_us))
    if segment.flushes:
        why, argument = "end_of_input: flush", json.dumps("flush")
        items.append(control_item(behind, END_OF_INPUT, why, clock_us=position.clock_us, argument=argument))
    return items


def _losses(workspace: Workspace, segment: LogSegment) -> list[dict[str, Any]]:
    """Return the offsets of Kafka that were gone when the records of a segment were read."""
    items: list[dict[str, Any]] = []
    if not any(source.notes_losses for source in workspace.spec.sources):
        return items
    for read in workspace.progress.read.history("ingest"):
        first = read.plan.first_seq
        if segment.first_seq <= first < segment.end_seq:
            for name, lost in workspace.by_source(IngestInput.of(read.plan).lost).items():
                arguments = [json.dumps({"source": name, **loss}) for loss in lost]
                why = "offsets were gone before they were read"
                items += [control_item(first - 1, DATA_LOSS, why, argument=argument) for argument in arguments]
    return items


def _write_watermarks(batch: Batch, position: Position, counts: Mapping[str, int]) -> None:
    """Write one row of the pipeline, and one of its timeline if its own events moved it."""
    row = _pipeline_row(batch, position, counts)
    rows = [row] if position.max_t_us == batch.before.max_t_us else [row, row | {"_timeline": c.ONE_TIMELINE}]
    batch.append_rows(tables.WATERMARKS, pa.Table.from_pylist(rows, schema=tables.WATERMARKS_SCHEMA))


def _write_timelines(batch: Batch, position: Position, counts: Mapping[str, int]) -> None:
    """Write the state of the timelines; a row of the pipeline and one of each timeline that its own events moved."""
    state = with_released(batch)
    write_timelines(batch, state)
    pipeline = pa.Table.from_pylist([_pipeline_row(batch, position, counts)], schema=tables.WATERMARKS_SCHEMA)
    time = batch.workspace.spec.time
    timelines_before, timelines_now = own_timelines(batch.timelines, time), own_timelines(state, time)
    moved = watermark_rows(timelines_before, timelines_now, _instant(position.clock_us), final=position.final)
    of_batch = moved.append_column(c.BATCH, pa.repeat(pa.scalar(batch.plan.batch_id, pa.int64()), len(moved)))
    rows = pa.concat_tables([pipeline, of_batch], promote_options="default")
    batch.append_rows(tables.WATERMARKS, rows)


def _pipeline_row(batch: Batch, position: Position, counts: Mapping[str, int]) -> dict[str, object]:
    return {
        "_batch_id": batch.plan.batch_id,
        "_timeline": None,
        "watermark": None if position.final else _instant(position.watermark_us),
        "clock": _instant(position.clock_us),
        "max_timestamp": _instant(position.max_t_us),
        "watermark_set_by": position.set_by,
        "released": position.released,
        "final": position.final,
        "counts": dict(counts) | ({} if position.kept_until_us is None else {KEPT_UNTIL: position.kept_until_us}),
        "clock_before_period": _instant(position.clock_before_period_us),
        "watermark_before_flush": _instant(position.watermark_us) if position.final else None,
    }


def _instant(us: int | None) -> datetime | None:
    return None if us is None else instant_of(us)
