"""Events that windows on a grid still need between two batches.

Here: reading and writing the tables that keep them, for windows of one result and for those that revise theirs. Not
here: which events a window needs (timeops/windows.py), sessions and sliding windows (linked_events.py).
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.commits import flushes, replace_events
from assets.stretch import Judged
from resources import tables
from resources.filters import Filters
from resources.workspace import Position, Workspace
from timeops import columns as c
from timeops.epoch import instant_of
from timeops.grid_bounds import needed_from
from timeops.spec import WindowSpec
from timeops.windows import still_needed


def events_of(workspace: Workspace, table: str, *, only: Filters | None = None) -> DataFrame:
    """Events of earlier batches that some window still needs."""
    held = workspace.read_base(table, filters=only).drop(c.BATCH)
    return held.withColumn(c.T_FINAL, c.to_us(c.TIMESTAMP))


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
    where = _no_longer_needed(judged.after, windows, flushed=flushes(plan))
    events = judged.adjusted.accepted
    # Another timeline, or after a flush another instant, may still need what is deleted.
    if where is not None and (workspace.keeps_timelines or flushes(plan)):
        events = events.unionByName(events_of(workspace, table, only=where), allowMissingColumns=True)
    rows = still_needed(events, judged.adjusted.state, windows).select(*[F.col(f"`{name}`") for name in columns])
    replace_events(workspace, plan, table, rows, where=where)


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
    return [(c.TIMESTAMP, "<", instant_of(max(first, c.MIN_US)))]
