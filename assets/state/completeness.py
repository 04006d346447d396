"""The place that a window has come to: up to which day no live batch changes its results any more.

Here: the stored state as of the last commit, compared with the windows of a day. Not here: when windows close
(timeops/calendar/grid.py), what is reported to Dagster (assets/catalog/days/checks.py).

With `over`, a timeline that is new may begin with old events: a day that all timelines have passed is complete for
all known ones.
"""

from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.log.control import waits_up_to
from tidemark.assets.state.timelines import timelines_at
from tidemark.assets.state.windows import has_marks, live_rows
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.migration import old_columns
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import closed_from, last_end_before
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import begin_of, us_of
from tidemark.timeops.watermark.timelines import ACROSS, own_timelines
from tidemark.timeops.windows.gap_filling import may_wait

_NEVER_US = 2**63 - 1


@dataclass(frozen=True)
class Reached:
    """The place that a window has come to; microseconds since the epoch.

    Attributes:
        window: The window.
        zone: The time zone of its days.
        watermark_us: The lowest watermark of all timelines; None if one has none yet.
        timeline: The timeline with that watermark, where there may be several; else empty.
        final: The end of input was flushed: everything is closed.
        open_us: Of a session window the first event that a session still holds.
        filled_us: With `empty`, the end of the last window for which rows without an event are there, if a window
            may close earlier than its row comes.
    """

    window: WindowSpec
    zone: str
    watermark_us: int | None = None
    timeline: str = ""
    final: bool = False
    open_us: int = _NEVER_US
    filled_us: int = _NEVER_US

    def closed_at(self, day: date) -> int:
        """Return the watermark at which all windows that start on a day are closed, microseconds."""
        return closed_from(self._end_of(day), self.window)

    def has_completed(self, day: date) -> bool:
        """Return whether no live batch changes the results of a day any more."""
        if self.final:
            return True
        if self.watermark_us is None or self.watermark_us < self.closed_at(day):
            return False
        end_us = self._end_of(day)
        return self.open_us >= end_us and self.filled_us >= last_end_before(end_us, self.window)

    def _end_of(self, day: date) -> int:
        return us_of(begin_of(day + timedelta(days=1), self.zone))


def reached_by(workspace: Workspace, window: WindowSpec) -> Reached:
    """Return the place that a window has come to as of the last commit."""
    zone = workspace.spec.partitions.time_zone
    last = workspace.batches.last_commit("process") if workspace.exists else None
    if last is None:
        return Reached(window, zone)
    position = workspace.progress.position()
    if position.final:
        return Reached(window, zone, position.watermark_us, final=True)
    lowest_us, timeline = _lowest(workspace, window, position, last.batch_id)
    open_us = _first_open(workspace, window) if window.kind == "session" else _NEVER_US
    filled_us = _last_filled(workspace, window) if window.empty else _NEVER_US
    return Reached(window, zone, lowest_us, timeline, open_us=open_us, filled_us=filled_us)


def _lowest(workspace: Workspace, window: WindowSpec, position: Position, batch_id: int) -> tuple[int | None, str]:
    if not workspace.spec.keeps_timelines:
        return position.watermark_us, ""
    version, waits = workspace.base_of(tables.TIMELINES), waits_up_to(workspace, batch_id)
    state = timelines_at(workspace, position, version, waits)
    if window.across:
        [across] = state["watermark"].filter(pc.equal(state[c.TIMELINE], ACROSS)).to_pylist() or [None]
        return across, ""
    state = own_timelines(state, workspace.spec.time)
    if not state.num_rows:
        return None, ""
    first = pc.sort_indices(state, [("watermark", "ascending", "at_start")])[0].as_py()
    timeline = state[c.TIMELINE][first].as_py() if workspace.spec.time.over else ""
    return state["watermark"][first].as_py(), timeline


def _first_open(workspace: Workspace, window: WindowSpec) -> int:
    """Return the time of the first event that the table of open sessions holds: windows may share the table."""
    table = tables.needed_table(window)
    columns = [c.SEQ, c.BATCH, c.TIMESTAMP] if has_marks(table) else [c.TIMESTAMP]
    rows = workspace.lake.rows(table, workspace.base_of(table), columns=columns)
    return _least(live_rows(rows)[c.TIMESTAMP] if has_marks(table) else rows[c.TIMESTAMP])


def _last_filled(workspace: Workspace, window: WindowSpec) -> int:
    """Return the end of the last window that held an event, of the timeline where it is the earliest."""
    if not may_wait(window, workspace.rules):
        return _NEVER_US
    table, end = tables.seen_groups_table(window.name), "_last_end"
    # A table of an earlier format is looked at before a run renames its columns.
    earlier_name = {new: old for old, new in old_columns(workspace.lake, table).items()}.get(end, end)
    rows = workspace.lake.rows(table, workspace.base_of(table), columns=[c.TIMELINE, earlier_name])
    return _least(rows.rename_columns([c.TIMELINE, end]).group_by(c.TIMELINE).aggregate([(end, "max")])[f"{end}_max"])


def _least(values: pa.ChunkedArray) -> int:
    least = pc.min(values.cast(pa.int64())).as_py()
    return _NEVER_US if least is None else int(least)
