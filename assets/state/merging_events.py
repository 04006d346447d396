"""The events, or results, of open sessions and sliding windows between two batches, which is their state.

Here: writing them. Not here: which are open (timeops/windows/sessions.py, timeops/windows/sliding.py), events of
windows on a grid (aligned_events.py): those are read only when such a window closes, these in every batch, as far as
the watermark.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import flushes, replace_events
from tidemark.assets.batch.segment import Judged
from tidemark.assets.state.aligned_events import events_of, known_to, up_to_watermark
from tidemark.assets.state.drained_windows import all_that_stay_closed, stay_closed
from tidemark.assets.state.event_sessions import EARLIER, placed_in_sessions
from tidemark.resources.lake.filters import Filters, sql_condition
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.grid_bounds import needed_for_certain_from
from tidemark.timeops.windows.results import all_events, events_as_they_came, in_open_windows, late_for_windows


def late_events_of(workspace: Workspace, judged: Judged, window: WindowSpec) -> DataFrame:
    """Accepted events of a judged segment for which every window of one definition had closed when they came."""
    known = None
    if window.kind == "session":
        known = known_to(workspace, judged, window).withColumn(EARLIER, F.lit(True))
    placed = placed_in_sessions(workspace, judged, window)
    closed = stay_closed(workspace, judged.plan, window)
    return late_for_windows(judged.adjusted, known, window, closed, placed=placed)


def write_linked_events(
    workspace: Workspace, judged: Judged, table: str, windows: tuple[WindowSpec, ...], columns: Sequence[str]
) -> None:
    """Writes the events that sessions and sliding windows need after a batch.

    A flush closes all sessions. At later instants of a sliding window the events still count, if it is reopened.

    Args:
        workspace: The pipeline.
        judged: The batch; its accepted events are those that came in it.
        table: The table that keeps them.
        windows: The windows that share it; all of them revise their results, or none.
        columns: Its columns but `_batch_id`.
    """
    plan = judged.plan
    where = _may_be_in_none(judged, windows)
    earlier = events_of(workspace, table, only=up_to_watermark(workspace, judged, windows))
    revises = any(window.revises for window in windows)
    known = (events_as_they_came if revises else all_events)(
        judged.adjusted, earlier.withColumn(EARLIER, F.lit(True))
    )
    needing = tuple(w for w in windows if w.kind == "sliding" or not flushes(plan))
    closed = all_that_stay_closed(workspace, plan, needing)
    placed = placed_in_sessions(workspace, judged, needing[0]) if needing else None
    events = in_open_windows(known, judged.adjusted.state, needing, workspace.spec.time, closed, placed=placed)
    of_batch = F.col(EARLIER).isNull()
    anew = events.where(of_batch if where is None else of_batch | F.expr(sql_condition(where)))
    rows = anew.select(*[F.col(f"`{name}`") for name in columns])
    replace_events(workspace, plan, table, rows, where=where)


def _may_be_in_none(judged: Judged, windows: tuple[WindowSpec, ...]) -> Filters | None:
    """Which events may be needed no more; None for none. Those that are still needed are written anew."""
    if flushes(judged.plan):
        return ()
    watermark_us = judged.after.watermark_us
    if watermark_us is None:
        return None
    first = max(needed_for_certain_from(watermark_us, window) for window in windows)
    return [(c.TIMESTAMP, "<", Instant(first))]
