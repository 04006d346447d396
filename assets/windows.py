"""Windowed aggregation of one batch: results of the windows that close in it, and the events that open ones need.

Here: reading the batch's stretch and the open events, writing `windows/<name>`. Not here: the rules (timeops/).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.commits import batch_column, flushes, has_few_records, replace_events
from assets.open_sessions import session_events_of, write_session_events
from assets.schemas import open_columns, payload_of
from assets.stretch import Judged, judged_batch
from resources import tables
from resources.batches import Plan
from resources.filters import Filters
from resources.rows import small_frame
from resources.workspace import Position, Workspace, instant_of
from timeops import columns as c
from timeops.spec import WindowSpec
from timeops.windows import still_needed, window_results

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
    results = {
        window.name: _write_results(workspace, judged, window) if _may_close(workspace, window, judged) else 0
        for window in workspace.spec.windows
    }
    if workspace.spec.grid_windows:
        _write_open_events(workspace, judged)
    if workspace.spec.session_windows:
        write_session_events(workspace, judged)
    return Windowed(results)


def open_events_of(workspace: Workspace, *, only: Filters | None = None) -> DataFrame:
    """Events of earlier batches that some window on a grid still needs."""
    held = workspace.read_base(tables.OPEN_EVENTS, filters=only).drop(c.BATCH)
    return held.withColumn(c.T_FINAL, c.to_us(c.TIMESTAMP))


def _may_close(workspace: Workspace, window: WindowSpec, judged: Judged) -> bool:
    """Whether windows may close in this batch; of several timelines some may whenever there are records."""
    if workspace.keeps_timelines:
        return judged.after.clock_us is not None
    return closes_any(window, judged)


def closes_any(window: WindowSpec, judged: Judged) -> bool:
    """Whether the watermark crosses the close time of a window on the grid in this batch; for a session, any time."""
    if flushes(judged.plan):
        return True
    before, after = judged.before.watermark_us, judged.after.watermark_us
    if after is None or before == after:
        return False
    if window.kind == "session" or before is None:
        return True
    return _last_closed(before, window) < _last_closed(after, window)


def _last_closed(watermark_us: int, window: WindowSpec) -> int:
    reach = watermark_us - window.size_us - window.allowed_lateness_us - window.offset_us
    return reach // window.hop_us


def _write_results(workspace: Workspace, judged: Judged, window: WindowSpec) -> int:
    plan = judged.plan
    table = tables.window_table(window.name)
    known = session_events_of(workspace) if window.kind == "session" else open_events_of(workspace)
    results = window_results(judged.adjusted, known, window, flushed=flushes(plan))
    rows = results.withColumn(c.BATCH, batch_column(plan))
    expect, few = workspace.ready(table), has_few_records(plan)
    written = workspace.lake.append(table, rows, attempt=plan.attempt, expect=expect, are_few=few)
    return written.rows


def days_of_batch(workspace: Workspace, plan: Plan) -> Mapping[str, Mapping[str, int]]:
    """Rows that a batch wrote, by window and UTC day of `window_start` (such as `2026-01-31`)."""
    day = F.date_format("window_start", DAY).alias("day")
    rows = small_frame(workspace.spark, [], "name STRING, day STRING")
    for window in workspace.spec.windows:
        written = workspace.read_base(tables.window_table(window.name), filters=[(c.BATCH, "=", plan.batch_id)])
        rows = rows.unionByName(written.select(F.lit(window.name).alias("name"), day))
    days: dict[str, dict[str, int]] = {}
    for row in rows.groupBy("name", "day").agg(F.count("*").alias("n")).orderBy("day").collect():
        days.setdefault(row["name"], {})[row["day"]] = row["n"]
    return days


def _write_open_events(workspace: Workspace, judged: Judged) -> None:
    plan, windows = judged.plan, workspace.spec.grid_windows
    where = _no_longer_needed(judged.after, windows, flushed=flushes(plan))
    events = judged.adjusted.accepted
    if workspace.keeps_timelines and where is not None:  # another timeline may still need what is deleted
        events = events.unionByName(open_events_of(workspace, only=where), allowMissingColumns=True)
    needed = still_needed(events, judged.adjusted.state, windows)
    if flushes(plan):
        needed = needed.limit(0)
    rows = needed.select(*open_columns(payload_of(workspace)))
    replace_events(workspace, plan, tables.OPEN_EVENTS, rows, where=where)


def _no_longer_needed(after: Position, windows: tuple[WindowSpec, ...], *, flushed: bool) -> Filters | None:
    """Which open events lie before the first window that is still open, of any window on a grid; None for none.

    An event in a gap behind that place stays until the watermark has passed it, and is in no window.
    """
    if flushed:
        return ()
    if after.watermark_us is None:
        return None
    watermark_us = after.watermark_us
    first = min((_last_closed(watermark_us, w) + 1) * w.hop_us + w.offset_us for w in windows)
    return [(c.TIMESTAMP, "<", instant_of(max(first, c.MIN_US)))]
