"""Events that windows on a grid still need between two batches.

Here: reading and writing the tables that keep them, for windows of one result and for those that revise theirs. Not
here: which events a window needs (timeops/windows/results.py), sessions and sliding windows (merging_events.py).
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import base_is_due, flushes, replace_events
from tidemark.assets.batch.control import was_reopened
from tidemark.assets.batch.segment import Judged
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.lake.filters import Filters
from tidemark.resources.lake.lake import FEW_ROWS
from tidemark.resources.workspace import Position, Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.grid_bounds import needed_from
from tidemark.timeops.windows.results import still_needed


def events_of(workspace: Workspace, table: str, *, only: Filters | None = None) -> DataFrame:
    """Events of earlier batches that some window still needs."""
    held = workspace.read_base(table, filters=only).drop(c.BATCH)
    return held.withColumn(c.T_FINAL, c.to_us(c.TIMESTAMP))


def known_to(workspace: Workspace, judged: Judged, window: WindowSpec) -> DataFrame:
    """The events of earlier batches, or results, that have a part in what a window gives or refuses in a batch.

    What closes, or comes too late, is told by events up to the watermark: with a later one a window stays open,
    whatever else it holds. So a batch does not cost what is held behind that place, nor what lies before every window
    that was open.
    """
    only = up_to_watermark(workspace, judged, (window,))
    if only is not None:
        only = [*only, *_from_open_windows(workspace, judged, window)]
    return events_of(workspace, kept_for(window), only=only)


def _from_open_windows(workspace: Workspace, judged: Judged, window: WindowSpec) -> Filters:
    """Leaves out the events that only stay because taking them out costs more, see `_may_stay`."""
    before_us = judged.before.watermark_us
    if kept_for(window) != tables.OPEN_EVENTS or workspace.keeps_timelines or before_us is None:
        return []
    return [(c.TIMESTAMP, ">=", Instant(needed_from(before_us, window)))]


def up_to_watermark(workspace: Workspace, judged: Judged, windows: Sequence[WindowSpec]) -> Filters | None:
    """Which of the kept events have a part in what happens in a batch; None where it may be all of them.

    Early results go before the watermark, sessions that take back results look at all of them, and so does what a
    flush closes or has closed.
    """
    plan, reached_us = judged.plan, judged.after.watermark_us
    looks_at_all = any(window.early_every_us or window.may_take_back or window.input for window in windows)
    if looks_at_all or flushes(plan) or was_reopened(workspace, plan):
        return None
    return [(c.TIMESTAMP, "<=", Instant(c.MIN_US if reached_us is None else reached_us))]


def kept_for(window: WindowSpec) -> str:
    """The table of what earlier batches left for a window."""
    if window.revises:
        return tables.REVISED_SESSION_EVENTS if window.kind == "session" else tables.REVISED_EVENTS
    if window.input is not None:
        return tables.open_results_table(window.name)
    return tables.SESSION_EVENTS if window.is_linked else tables.OPEN_EVENTS


def write_events(
    workspace: Workspace, judged: Judged, table: str, windows: tuple[WindowSpec, ...], columns: Sequence[str]
) -> None:
    """Writes the events that windows need after a batch.

    Args:
        workspace: The pipeline.
        judged: The batch; its accepted events are those that came in it.
        table: The table that keeps them.
        windows: The windows that share it.
        columns: Its columns but `_batch_id`.
    """
    plan = judged.plan
    if flushes(plan):  # all of them close; at later instants of a sliding window the events count if it is reopened
        windows = tuple(window for window in windows if window.kind == "sliding")
    may_stay = _may_stay(workspace, plan, table)
    where = None if may_stay else _no_longer_needed(judged.after, windows, flushed=flushes(plan))
    events = judged.adjusted.accepted
    # Another timeline, or after a flush another instant, may still need what is deleted.
    if where is not None and (workspace.keeps_timelines or flushes(plan)):
        events = events.unionByName(events_of(workspace, table, only=where), allowMissingColumns=True)
    rows = still_needed(events, judged.adjusted.state, windows).select(*[F.col(f"`{name}`") for name in columns])
    replace_events(workspace, plan, table, rows, where=where)


def _may_stay(workspace: Workspace, plan: Plan, table: str) -> bool:
    """Whether events that no window needs any more may stay until a later batch.

    They are in no window that closes, and to take rows out of a large table costs a Spark job that rewrites others.
    """
    if table != tables.OPEN_EVENTS or flushes(plan) or base_is_due(workspace, plan):
        return False
    return workspace.lake.row_count(table, workspace.base_of(table)) > FEW_ROWS


def _no_longer_needed(after: Position, windows: tuple[WindowSpec, ...], *, flushed: bool) -> Filters | None:
    """Which events lie before the first window that is still open; None for none.

    An event in a gap behind that place stays until the watermark has passed it, and is in no window.
    """
    if flushed:
        return ()
    if after.watermark_us is None:
        return None
    watermark_us = after.watermark_us
    first = min(needed_from(watermark_us, window) for window in windows)
    return [(c.TIMESTAMP, "<", Instant(first))]
