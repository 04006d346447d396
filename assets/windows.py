"""Windowed aggregation of one batch: results of the windows that close in it, and the events that open ones need.

Here: reading the batch's segment and the open events, writing `windows/<name>`. Not here: the rules (timeops/).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import functions as F

from tidemark.assets.batch.batch import batch_column, flushes, has_few_records, tuned_for
from tidemark.assets.batch.segment import Judged, judged_batch
from tidemark.assets.schemas import (
    open_columns,
    payload_of,
    revised_columns,
    revised_session_columns,
    session_columns,
)
from tidemark.assets.state.aligned_events import events_of, kept_for, known_to, write_events
from tidemark.assets.state.batch_results import results_in_batch
from tidemark.assets.state.drained_windows import write_flushed_windows
from tidemark.assets.state.merging_events import write_linked_events
from tidemark.assets.state.results_as_events import with_fresh_results, write_kept_results
from tidemark.assets.state.revisions import write_revisions
from tidemark.assets.state.seen_groups import write_seen_groups
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.spark.frames import small_frame
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.materialize import as_it_is, computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import day_of
from tidemark.timeops.windows.gap_filling import may_wait, told_in_words
from tidemark.timeops.windows.grid_bounds import may_close_between

DAY = "yyyy-MM-dd"


@dataclass(frozen=True)
class Windowed:
    """What the window stage of a batch did.

    Attributes:
        results: Rows written, by window.
    """

    results: Mapping[str, int]


def aggregate_windows(workspace: Workspace, plan: Plan) -> Windowed:
    """Writes the results of every window that closes in a batch, then the events that open windows still need."""
    judged = judged_batch(workspace, plan)
    spec, payload = workspace.spec, payload_of(workspace)
    results: dict[str, int] = {}
    for window in spec.event_windows:
        results[window.name] = _write_any_results(workspace, judged, window)
        write_flushed_windows(workspace, judged, window, events_of(workspace, kept_for(window)))
    for window in spec.chained_windows:
        over_results = with_fresh_results(workspace, judged, window)
        results[window.name] = _write_any_results(workspace, over_results, window)
        write_flushed_windows(workspace, over_results, window, events_of(workspace, kept_for(window)))
        write_kept_results(workspace, over_results, window)
    if spec.grid_windows:
        write_events(workspace, judged, tables.OPEN_EVENTS, spec.grid_windows, open_columns(payload))
    if spec.revised_by_time:
        write_events(workspace, judged, tables.REVISED_EVENTS, spec.revised_by_time, revised_columns(payload))
    if spec.revised_sessions:
        columns = revised_session_columns(payload)
        write_linked_events(workspace, judged, tables.REVISED_SESSION_EVENTS, spec.revised_sessions, columns)
    if spec.linked_windows:
        write_linked_events(workspace, judged, tables.SESSION_EVENTS, spec.linked_windows, session_columns(payload))
    for window in spec.windows:
        if window.empty:
            write_seen_groups(workspace, judged, window)
    return Windowed(results)


def _write_any_results(workspace: Workspace, judged: Judged, window: WindowSpec) -> int:
    return _write_results(workspace, judged, window) if _may_give(workspace, window, judged) else 0


def _may_give(workspace: Workspace, window: WindowSpec, judged: Judged) -> bool:
    """Whether windows may give results in this batch: when they close, or revise what they gave.

    Of several timelines some may close whenever there are records. A row without an event may have waited for one.
    """
    waits = window.empty and may_wait(window, judged.adjusted.rules)
    if workspace.keeps_timelines or window.revises or waits:
        return judged.after.clock_us is not None
    return closes_any(window, judged)


def closes_any(window: WindowSpec, judged: Judged) -> bool:
    """Whether some window may close in this batch."""
    return flushes(judged.plan) or may_close_between(judged.before.watermark_us, judged.after.watermark_us, window)


def _write_results(workspace: Workspace, judged: Judged, window: WindowSpec) -> int:
    if window.revises:
        return write_revisions(workspace, judged, window)
    plan = judged.plan
    table = tables.window_table(window.name)
    known = known_to(workspace, judged, window)
    few = has_few_records(plan)
    with told_in_words():
        results = results_in_batch(
            workspace,
            judged,
            window,
            known,
            keep=as_it_is if few and not window.empty else computed,
        )
        rows = results.withColumn(c.BATCH, batch_column(plan))
        expect = workspace.ready_for(table, plan, rows)
        written = workspace.lake.append(table, rows, attempt=plan.attempt, expect=expect, are_few=few)
    return written.rows


def days_of_batch(workspace: Workspace, plan: Plan) -> Mapping[str, Mapping[str, int]]:
    """Rows that a batch wrote, by window and the day of `window_start`, its partition, such as `2026-01-31`."""
    day = F.date_format(day_of(F.col("window_start"), workspace.spec.partitions.time_zone), DAY).alias("day")
    rows = small_frame(workspace.spark, [], "name STRING, day STRING")
    for window in workspace.spec.windows:
        written = workspace.read_base(tables.window_table(window.name), filters=[(c.BATCH, "=", plan.batch_id)])
        rows = rows.unionByName(written.select(F.lit(window.name).alias("name"), day))
    days: dict[str, dict[str, int]] = {}
    with tuned_for(workspace, plan):
        counted = rows.groupBy("name", "day").agg(F.count("*").alias("n")).orderBy("day").collect()
    for row in counted:
        days.setdefault(row["name"], {})[row["day"]] = row["n"]
    return days
