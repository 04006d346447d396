"""The events of open sessions and sliding windows between two batches, which is their state.

Here: writing them. Not here: which are open (timeops/sessions.py, timeops/sliding.py), events of windows on a grid
(kept_events.py): those are read only when such a window closes, these in every batch.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.commits import flushes, replace_events
from assets.flushed_windows import all_that_stay_closed, stay_closed
from assets.kept_events import events_of
from assets.schemas import payload_of, session_columns
from assets.stretch import Judged
from resources import tables
from resources.filters import Filters, sql_condition
from resources.workspace import Workspace
from timeops import columns as c
from timeops.epoch import instant_of
from timeops.spec import WindowSpec
from timeops.windows import all_events, in_open_windows, late_for_windows


def late_events_of(workspace: Workspace, judged: Judged, window: WindowSpec) -> DataFrame:
    """Accepted events of a judged stretch for which every window of one definition had closed when they came."""
    known = events_of(workspace, tables.SESSION_EVENTS) if window.kind == "session" else None
    return late_for_windows(judged.adjusted, known, window, stay_closed(workspace, judged.plan, window))


def write_linked_events(workspace: Workspace, judged: Judged) -> None:
    """Writes the events that sessions and sliding windows need after a batch.

    A flush closes all sessions. At later instants of a sliding window the events still count, if it is reopened.
    """
    plan, spec = judged.plan, workspace.spec
    where = _may_be_in_none(workspace, judged)
    known = all_events(judged.adjusted, events_of(workspace, tables.SESSION_EVENTS))
    windows = tuple(w for w in spec.linked_windows if w.kind == "sliding" or not flushes(plan))
    closed = all_that_stay_closed(workspace, plan, windows)
    events = in_open_windows(known, judged.adjusted.state, windows, spec.time, closed)
    of_batch = F.col(c.SEQ) >= plan.first_seq
    anew = events.where(of_batch if where is None else of_batch | F.expr(sql_condition(where)))
    rows = anew.select(*session_columns(payload_of(workspace)))
    replace_events(workspace, plan, tables.SESSION_EVENTS, rows, where=where)


def _may_be_in_none(workspace: Workspace, judged: Judged) -> Filters | None:
    """Which events may be needed no more; None for none. Those that are still needed are written anew.

    An event less than a gap (or size) and a lateness behind the watermark is needed for certain.
    """
    if flushes(judged.plan):
        return ()
    watermark_us = judged.after.watermark_us
    if watermark_us is None:
        return None
    linked = workspace.spec.linked_windows
    bounds = [watermark_us - (w.gap_us if w.kind == "session" else w.size_us) - w.allowed_lateness_us for w in linked]
    return [(c.TIMESTAMP, "<", instant_of(max(*bounds, c.MIN_US)))]
