"""Windows that a flush closed and the watermark has not passed, between two batches: reopened, they stay closed.

Here: reading and writing the tables that keep them. Not here: which windows these are, and what becomes of an event
that misses one (timeops/windows/drained_windows.py).
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from tidemark.assets.batch.batch import batch_column, flushes, has_few_records
from tidemark.assets.batch.control import was_reopened
from tidemark.assets.batch.segment import Judged
from tidemark.assets.state.seen_groups import seen_before
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.drained import staying_closed


def stay_closed(workspace: Workspace, plan: Plan, window: WindowSpec) -> DataFrame | None:
    """The windows of a definition that flushes before a batch have closed; None where there are none to be asked for.

    Without Spark when that is so, which is nearly always.
    """
    if not was_reopened(workspace, plan):
        return None
    table = tables.flushed_table(window.name)
    if not workspace.lake.row_count(table, workspace.base_of(table)):
        return None
    return workspace.read_base(table).drop(c.BATCH)


def all_that_stay_closed(workspace: Workspace, plan: Plan, windows: Iterable[WindowSpec]) -> Mapping[str, DataFrame]:
    """What `stay_closed` gives of several windows, by name, where it gives any."""
    found = {window.name: stay_closed(workspace, plan, window) for window in windows}
    return {name: frame for name, frame in found.items() if frame is not None}


def windows_with_late_events(workspace: Workspace, plan: Plan) -> list[WindowSpec]:
    """The windows of events for which an accepted event of a batch may come too late.

    Under drop and adjust no accepted event is behind the watermark: only a flush can have closed its window.
    """
    windows = workspace.spec.event_windows
    if workspace.spec.time.out_of_order == "keep":
        return list(windows)
    closed = all_that_stay_closed(workspace, plan, windows)
    return [window for window in windows if window.name in closed]


def write_flushed_windows(workspace: Workspace, judged: Judged, window: WindowSpec, known: DataFrame) -> None:
    """Writes the windows that stay closed after a batch: those before as far as they are needed, and what it flushes.

    Args:
        workspace: The pipeline.
        judged: The batch; for a window over another one with the results that came in it.
        window: The window.
        known: What earlier batches left for it.
    """
    plan, flushed = judged.plan, flushes(judged.plan)
    before = stay_closed(workspace, plan, window)
    seen = seen_before(workspace, window) if window.empty and flushed else None
    rows = staying_closed(judged.adjusted, known, window, before, flushed=flushed, seen=seen)
    if rows is None:
        return
    table = tables.flushed_table(window.name)
    expect, few = workspace.ready(table, plan), has_few_records(plan)
    stamped = rows.withColumn(c.BATCH, batch_column(plan))
    workspace.lake.replace(table, stamped, where=(), attempt=plan.attempt, expect=expect, are_few=few)
