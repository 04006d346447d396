"""The events of a window, by group: which accepted events it takes, and the sessions and instants that they make.

Here: reading them from the tables of events, or from the log where SQL has to be computed. Not here: which windows an
instant is in (timeops/calendar/grid.py), the loop over sessions (timeops/windows/sessions.py).

A group is compared by the texts of its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log.admissions import admitted, events_let_in
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.log.retention import before_seq_of, log_begins_at
from tidemark.assets.questions.times import PipelineLog
from tidemark.assets.schemas import as_declared, payload_of
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import FUTURE_ARRIVAL, KEPT
from tidemark.timeops.expressions.tokens import plain_column, quoted
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.figures.log_times import JudgedTimes
from tidemark.timeops.narrow import to_join
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import NEVER, NONE, Array, integers
from tidemark.timeops.values.utc import Instant
from tidemark.timeops.windows.segment import left_out
from tidemark.timeops.windows.sessions import CLOSED, came_alone, rules_of_sessions, sessions

Group = tuple[str | None, ...]
_T, _EVENT = "__tm_timestamp", "__tm_event"


@dataclass(frozen=True, eq=False)
class WindowEvents:
    """Accepted events that a window takes, by `_arrival_seq`.

    Attributes:
        seq: Their numbers.
        t: Their `_timestamp`, microseconds.
        groups: The texts of the columns of their groups.
    """

    seq: Array
    t: Array
    groups: Sequence[Sequence[str | None]]

    def of_group(self, group: Group) -> "WindowEvents":
        """Return the events of a group."""
        belongs = np.ones(len(self.seq), bool)
        for values, value in zip(self.groups, group, strict=True):
            belongs &= np.array([other == value for other in values], bool)
        places = np.flatnonzero(belongs).tolist()
        return WindowEvents(
            self.seq[belongs], self.t[belongs], [[values[at] for at in places] for values in self.groups]
        )


@dataclass(frozen=True, eq=False)
class Contents:
    """The accepted events of a pipeline, as windows see them.

    Attributes:
        log: Its log.
    """

    log: PipelineLog
    _whole: dict[str, WindowEvents] = field(default_factory=dict, repr=False)
    _dropped_by_window: dict[str, WindowEvents] = field(default_factory=dict, repr=False)
    _left_out: dict[int, frozenset[str]] = field(default_factory=dict, repr=False)

    @property
    def workspace(self) -> Workspace:
        """The pipeline."""
        return self.log.workspace

    @property
    def judged(self) -> JudgedTimes:
        """Its log, judged."""
        return self.log.judged

    @cached_property
    def let_in(self) -> Array:
        """The records that an operator has let in again: windows have them before all others."""
        return admitted(self.workspace).seqs

    def met(self, seqs: Array, window: WindowSpec) -> Array:
        """Return the watermarks that records met, as a window sees it; NONE for none."""
        met = self.judged.before_each(seqs, across=window.across)
        met[np.isin(seqs, self.let_in)] = NONE
        return met

    def events(self, window: WindowSpec, first_us: int | None = None, last_us: int | None = None) -> WindowEvents:
        """Return the events that a window takes of a span of time, both ends included, with their groups."""
        columns = self._plain(window)
        rows = (
            self._by_spark(window, first_us, last_us) if columns is None else self._rows(columns, first_us, last_us)
        )
        refused = self._unfit(window)
        if len(refused):
            rows = rows.filter(pa.array(~np.isin(rows[c.SEQ].to_numpy(), refused)))
        return _as_events(rows, window)

    def results(self, window: WindowSpec, table: str, time: str, first: Instant, last: Instant) -> WindowEvents:
        """Return the final rows of another window or of a join that a window takes, with their groups.

        Args:
            window: It goes over these rows, which have no number.
            table: Where they are.
            time: The column with their time.
            first: The least time.
            last: The largest time.
        """
        of: Filters = [(time, ">=", first), (time, "<=", last), ("_is_final", "=", True)]
        names = [plain_column(expression) for _, expression in window.group_expressions]
        if window.where is None and None not in names:
            rows = self.workspace.lake.rows(table, self._version(table), filters=of)
            ends = integers(rows[time].cast("int64"))
            groups = [[group_text(value) for value in rows[name].to_pylist()] for name in names if name is not None]
        else:
            frame = self.workspace.lake.read(table, self._version(table), filters=of)
            events = {c.TIMESTAMP: F.col(time), c.SEQ: F.lit(NONE).cast("bigint"), _T: c.to_us(time)}
            grouped = _in_groups(frame.withColumns(events), window)
            ends = integers(grouped[_T])
            groups = [grouped[f"g{number}"].to_pylist() for number in range(len(names))]
        return WindowEvents(np.full(len(ends), NONE), ends, groups)

    def all_events(self, window: WindowSpec) -> WindowEvents:
        """Return all events that a window takes; they are read once."""
        if window.name not in self._whole:
            self._whole[window.name] = self.events(window)
        return self._whole[window.name]

    def of_group(self, window: WindowSpec, group: Group) -> Array:
        """Return the numbers of the events of a group that a window takes."""
        return self.all_events(window).of_group(group).seq

    def dropped_of_group(self, window: WindowSpec, group: Group) -> Array:
        """Return the numbers of the events of a group that a window would take if rule 3 had not dropped them."""
        if not len(self._dropped):
            return np.zeros(0, np.int64)
        if window.name not in self._dropped_by_window:
            self._dropped_by_window[window.name] = _as_events(self._taken_events(self._dropped, window), window)
        return self._dropped_by_window[window.name].of_group(group).seq

    def look_at(self, seqs: Sequence[int]) -> None:
        """Ask at once which windows leave some records out by their `where`, if there is one."""
        windows = [
            window for window in self.workspace.spec.windows if window.where is not None and window.input is None
        ]
        asked_for = [seq for seq in seqs if seq not in self._left_out]
        if not windows or not asked_for:
            return
        # One query for all: to plan it takes longer than to compute a few records.
        accepted, first, end = self._accepted_t, min(asked_for), max(asked_for) + 1
        events = _events(self.judged, np.isin(self.judged.times.seq, asked_for), *accepted)
        let_in = np.intersect1d(np.array(asked_for, np.int64), self.let_in)
        frames = [_accepted_events(self.workspace, first, end, events), events_let_in(self.workspace, let_in)]
        for frame in (frame for frame in frames if frame is not None):  # what was let in has the values of then
            columns = Columns.of(frame)
            conditions = [f"{left_out(columns, window)} AS {quoted(window.name)}" for window in windows]
            for row in frame.selectExpr(c.SEQ, *conditions).collect():
                self._left_out[row[c.SEQ]] = frozenset(window.name for window in windows if row[window.name])

    def filtered_by(self, seq: int) -> frozenset[str]:
        """Return the windows of events whose `where` leaves a record out; Spark is asked only where there is one."""
        self.look_at([seq])
        return self._left_out.get(seq, frozenset())

    def _plain(self, window: WindowSpec) -> list[str] | None:
        """Return the columns of the groups of a window, if they are columns; None if SQL has to be computed."""
        if window.where is not None or not self.workspace.spec.outputs.ordered_events:
            return None
        if before_seq_of(self.workspace, tables.ORDERED_EVENTS):  # not all events are in the table
            return None
        schema = self.workspace.lake.dataset(tables.ORDERED_EVENTS, self._version(tables.ORDERED_EVENTS)).schema
        names = [plain_column(expression) for _, expression in window.group_expressions]
        columns = [name for name in names if name is not None and name in schema.names]
        return (
            columns
            if len(columns) == len(names) and not any(map(_is_special, (schema.field(n).type for n in columns)))
            else None
        )

    def _version(self, table: str) -> int:
        return self.workspace.base_of(table)

    def _rows(self, columns: Sequence[str], first_us: int | None, last_us: int | None) -> pa.Table:
        tables_read: list[pa.Table] = []
        within: Filters = [
            # Events may outlive their records, by another period of `retention`.
            (c.SEQ, ">=", log_begins_at(self.workspace)),
            *([] if first_us is None else [(c.TIMESTAMP, ">=", Instant(first_us))]),
            *([] if last_us is None else [(c.TIMESTAMP, "<=", Instant(last_us))]),
        ]
        names = [c.SEQ, _T, *[f"g{number}" for number in range(len(columns))]]
        kinds = [pa.int64(), pa.int64(), *[pa.string()] * len(columns)]
        for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
            stored_columns = list(dict.fromkeys([c.SEQ, c.TIMESTAMP, *columns]))
            for piece in pieces(self.workspace.lake, table, self._version(table), stored_columns, within):
                texts = [piece[name].cast(pa.string()) for name in columns]
                values = [piece[c.SEQ], piece[c.TIMESTAMP].cast(pa.int64()), *texts]
                tables_read.append(pa.table(values, names=names))
        return pa.concat_tables([pa.schema(list(zip(names, kinds, strict=True))).empty_table(), *tables_read])

    def _by_spark(self, window: WindowSpec, first_us: int | None, last_us: int | None) -> pa.Table:
        t = integers(self._accepted[_T])
        inside = (t >= (NONE if first_us is None else first_us)) & (t <= (NEVER if last_us is None else last_us))
        taken = self._taken_events(self._accepted.filter(pa.array(inside)), window)
        let_in = events_let_in(self.workspace)
        if let_in is None:
            return taken
        let_in_rows = _in_groups(let_in.withColumn(_T, c.to_us(c.TIMESTAMP)), window)
        t = integers(let_in_rows[_T])
        is_inside = (t >= (NONE if first_us is None else first_us)) & (t <= (NEVER if last_us is None else last_us))
        return pa.concat_tables([taken, let_in_rows.filter(pa.array(is_inside))])

    def _taken_events(self, events: pa.Table, window: WindowSpec) -> pa.Table:
        """Return the events that a window takes, with the texts of the columns of their groups."""
        seqs = events[c.SEQ]
        first_seq, end_seq = (int(seqs[0].as_py()), int(seqs[-1].as_py()) + 1) if len(events) else (0, 0)
        return _in_groups(_accepted_events(self.workspace, first_seq, end_seq, events), window)

    @cached_property
    def _accepted_t(self) -> tuple[Array, Array]:
        """The timestamp of each record, if it is accepted, and whether it is behind the watermark that it met."""
        judged = self.judged
        met = judged.before_each(judged.times.seq)
        is_late = (met != NONE) & (judged.t < met) & (judged.why == 0)
        is_moved = is_late & (judged.rules.time.out_of_order == "adjust")
        return np.where(is_moved, met, judged.t), is_late

    @cached_property
    def _accepted(self) -> pa.Table:
        """All events that rules accept: `_arrival_seq`, their timestamp, their timeline."""
        t, is_late = self._accepted_t
        is_dropped = is_late & (self.judged.rules.time.out_of_order == "drop")
        is_let_in = np.isin(self.judged.times.seq, self.let_in)
        return _events(self.judged, (self.judged.why == 0) & ~is_dropped & ~is_let_in, t, is_late)

    @cached_property
    def _dropped(self) -> pa.Table:
        """The records that rule 3 drops, as the events that they would be."""
        t, is_late = self._accepted_t
        is_dropped = is_late & (self.judged.rules.time.out_of_order == "drop")
        is_let_in = np.isin(self.judged.times.seq, self.let_in)
        return _events(self.judged, is_dropped & ~is_let_in, t, np.zeros(len(t), bool))

    def _unfit(self, window: WindowSpec) -> Array:
        """Return the events on which an aggregate of a window fails."""
        of_window = [("window_name", "=", window.name), ("reason", "=", str(Reason.BAD_EXPRESSION))]
        rows = self.workspace.lake.rows(
            tables.DEAD_LETTERS, self._version(tables.DEAD_LETTERS), columns=[c.SEQ], filters=of_window
        )
        return np.asarray(rows[c.SEQ].drop_null().to_numpy(), np.int64)


def _as_events(rows: pa.Table, window: WindowSpec) -> WindowEvents:
    rows = rows.sort_by(c.SEQ)
    groups = [rows[f"g{number}"].to_pylist() for number in range(len(window.group_expressions))]
    return WindowEvents(rows[c.SEQ].to_numpy(), integers(rows[_T]), groups)


def _in_groups(events: DataFrame, window: WindowSpec) -> pa.Table:
    """Return the events that a window takes, with the texts of the columns of their groups."""
    columns = Columns.of(events)
    passing = events.where(f"NOT {left_out(columns, window)}")
    groups = [
        f"{columns.read(expression).value_text} AS g{number}"
        for number, (_, expression) in enumerate(window.group_expressions)
    ]
    return passing.selectExpr(c.SEQ, _T, *groups).toArrow()


def _events(judged: JudgedTimes, which: Array, t: Array, is_late: Array) -> pa.Table:
    """Return some records as events: their number, their time, their timeline, and the rules that moved them."""
    policy = judged.rules.time.out_of_order
    behind = [KEPT if policy == "keep" else "out_of_order"]
    moves = [[], ["early"], ["late"], behind, ["early", *behind], ["late", *behind]]
    moved_by = pa.array(moves, pa.list_(pa.string())).take(pa.array((judged.moved_by + 3 * is_late)[which]))
    timelines = pa.array(judged.times.timelines, pa.string()).take(pa.array(judged.times.timeline[which]))
    columns = {c.SEQ: judged.times.seq[which], _T: t[which], _EVENT: judged.times.event_us[which]}
    return pa.table(columns | {c.TIMELINE: timelines, c.ADJUSTED_BY: moved_by})


def _is_special(kind: pa.DataType) -> bool:
    """Return whether texts of values of a type may differ between Arrow and Spark."""
    return not (
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_large_string(kind)
    )


def group_text(value: Any) -> str | None:
    """Return the text of a value of a group, as SQL has it; None for null."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _accepted_events(workspace: Workspace, first_seq: int, end_seq: int, accepted: pa.Table) -> DataFrame:
    """Return accepted events of a part of the log as windows see them; `accepted` says which, and their times."""
    zone = workspace.rules.sources[0].time_zone
    records = as_declared(records_between(workspace, first_seq, end_seq), payload_of(workspace), zone)
    both = records.join(to_join(workspace.spark, accepted), c.SEQ)
    times = {c.TIMESTAMP: c.to_instant(_T), c.EVENT_TIME: c.to_instant(_EVENT)}
    if c.ARRIVED_AHEAD in both.columns:
        moved = f"IF({c.ARRIVED_AHEAD}, array_prepend({c.ADJUSTED_BY}, '{FUTURE_ARRIVAL}'), {c.ADJUSTED_BY})"
        times[c.ADJUSTED_BY] = F.expr(moved)
    return both.withColumns(times)


def group_of(contents: Contents, window: WindowSpec, seq: int) -> Group:
    """Return the group of an event that a window takes."""
    return _with_group(contents, window, seq)[1]


def _with_group(contents: Contents, window: WindowSpec, seq: int) -> tuple[WindowEvents, Group]:
    events = contents.all_events(window)
    at = int(np.searchsorted(events.seq, seq))
    return events, tuple(values[at] for values in events.groups)


def sessions_of(contents: Contents, window: WindowSpec, seq: int) -> tuple[int, int]:
    """Return the bounds of the session that holds an event."""
    events, group = _with_group(contents, window, seq)
    of_group = events.of_group(group)
    place = int(np.searchsorted(of_group.seq, seq))
    _, start, end = found_sessions(contents, window, of_group)
    return int(start[place]), int(end[place])


def found_sessions(contents: Contents, window: WindowSpec, events: WindowEvents) -> tuple[Array, Array, Array]:
    """Return the session of each event of one group, below zero for none, and its bounds."""
    keeps = contents.judged.rules.time.out_of_order == "keep" or window.across
    # What was let in came before all others.
    order = np.argsort(~np.isin(events.seq, contents.let_in), kind="stable")
    t, met = events.t[order], contents.met(events.seq, window)[order] if keeps else np.zeros(0, np.int64)
    late = np.where(t < met, met, NONE) if keeps else met
    came_times = came_alone(t, contents.judged.times.gaps_of(window, events.seq[order]), late)
    # When results are published does not change which events a session has.
    once = window.model_copy(update={"emit": "on_close"})
    of_events = sessions(came_times, np.zeros(0, CLOSED), rules_of_sessions(once, keeps=keeps))
    back = np.argsort(order)
    return of_events.session[back], of_events.start[back], of_events.end[back]


def instants_of(contents: Contents, window: WindowSpec, seq: int, us: int) -> list[tuple[int, int]]:
    """Return the windows of a sliding one that hold an event: up to each instant at which events come or go."""
    events, group = _with_group(contents, window, seq)
    of_group = events.of_group(group)
    met, ends = contents.met(of_group.seq, window), [of_group.t, of_group.t + window.size_us]
    # What had closed when an event came has no result by it.
    made = np.unique(np.concatenate([end[end + window.closes_after_us > met] for end in ends]))
    return [(int(end) - window.size_us, int(end)) for end in made if us <= end < us + window.size_us]
