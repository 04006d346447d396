"""The log, judged segment after segment, and where its control items cut it.

Here: the pieces of the log, and judging them in order: days and previews of a whole log do so. Not here: one segment,
and a batch, which is one (assets/judging/segment.py), the rules (timeops/engine.py), what is made of an outcome
(assets/questions/what_if/preview.py, assets/rebuild/).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from tidemark.assets.judging.segment import clocks_after, segment_at, waits_in_segment
from tidemark.assets.log.admissions import admitted, events_let_in
from tidemark.assets.log.control import (
    END_OF_INPUT,
    REOPEN,
    TABLE,
    TICK,
    WAIT,
    recorded,
    table_of,
    waiters_of,
)
from tidemark.assets.log.exclusions import Numbers, records_between, some_records
from tidemark.assets.log.retention import ensure_whole_log
from tidemark.assets.planning import LogSegment
from tidemark.assets.schemas import as_declared, payload_of
from tidemark.resources.batches.position import Position
from tidemark.resources.workspace import Workspace, silent
from tidemark.timeops import engine
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.engine import Outcome, State, read_by
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.rules.time_rules import TimeRules, Waiter, Waits
from tidemark.timeops.spec import JoinSpec, WindowSpec
from tidemark.timeops.values.utc import us_of

REPLAYED_KINDS = (TICK, WAIT, END_OF_INPUT, REOPEN, TABLE)
"""The control items that a segment of the log begins or ends with."""

MOST_IN_A_PIECE = 10_000_000
"""The most records of one piece: a rebuild that is stopped loses at most the work on one piece."""


@dataclass(frozen=True)
class Piece:
    """A segment of the log, and how many items of REPLAYED_KINDS it and the pieces before it have dealt with."""

    segment: LogSegment
    replayed: int


def pieces_left(
    items: Sequence[Mapping[str, Any]],
    begin_seq: int,
    replayed: int,
    end_seq: int,
    most: int | None = None,
    *,
    waits: frozenset[Waiter] = frozenset(),
) -> Iterator[Piece]:
    """Return the pieces of the log that are not done yet, in order.

    Args:
        items: The control items of REPLAYED_KINDS, in order.
        begin_seq: The first `_arrival_seq` that is not done.
        replayed: How many of the items are done.
        end_seq: End of the log, as far as it has to be judged.
        most: Records of a piece; by default MOST_IN_A_PIECE.
        waits: The sources and splits that wait before the first item.
    """
    first, reopens, most = begin_seq, None, most or MOST_IN_A_PIECE
    versions: Mapping[str, str] = {}
    for number, item in enumerate(items):
        versions_after = {**versions, **dict([table_of(item)])} if item["kind"] == TABLE else versions
        if number < replayed:
            waits = waiters_of(item) if item["kind"] == WAIT else waits
            versions = versions_after
            continue
        kind, end = item["kind"], int(item["_after_seq"]) + 1
        tick_us = us_of(item["clock"]) if kind == TICK else None
        replayed_then = number + 1 if kind in (TICK, END_OF_INPUT) else number
        ends = {"flushes": kind == END_OF_INPUT, "tick_us": tick_us}
        last = LogSegment(first, end, **ends, reopens=reopens, waits=waits, tables=versions)
        for segment in _cut(last, most):
            yield Piece(segment, replayed_then if segment.end_seq == end else number)
            first, reopens = segment.end_seq, None
        waits, versions = waiters_of(item) if kind == WAIT else waits, versions_after
        reopens = str(item["reason"]) if kind == REOPEN else reopens
    last_segment = LogSegment(
        first, max(first, end_seq), flushes=False, reopens=reopens, waits=waits, tables=versions
    )
    for segment in _cut(last_segment, most):
        yield Piece(segment, len(items))


def _cut(segment: LogSegment, most: int) -> Iterator[LogSegment]:
    """Cut a segment into smaller ones; its tick or flush ends the last one. Empty segments are left out."""
    first, reopens = segment.first_seq, segment.reopens
    while segment.end_seq - first > most:
        yield replace(segment, first_seq=first, end_seq=first + most, flushes=False, tick_us=None, reopens=reopens)
        first, reopens = first + most, None
    last = replace(segment, first_seq=first, reopens=reopens)
    if not last.is_empty:
        yield last


def judge_segments(
    workspace: Workspace,
    segments: Sequence[LogSegment],
    read: Callable[[LogSegment], DataFrame],
    *,
    state: State | None = None,
    position: Position | None = None,
    waits: Waits | None = None,
    some: Callable[[LogSegment, Numbers], DataFrame | None] | None = None,
    windows: Sequence[WindowSpec] | None = None,
    joins: bool = False,
    tell: Callable[[str], None] = silent,
) -> Iterator[Outcome]:
    """Judge consecutive segments of the log by the spec; nothing is written.

    Args:
        workspace: The pipeline; `workspace.under(spec)` to judge its log by another spec.
        segments: The segments, in order.
        read: Returns the records of a segment.
        state: What the records before the segments have left, or the ones that are let in; by default there are none
            but the latter.
        position: The clocks of the log before them.
        waits: The sources and splits that wait before them.
        some: Returns the records of a segment with some numbers, see `adjustment.Segment`.
        windows: The windows whose state is carried from segment to segment; by default all of the spec.
        joins: Whether the state of all joins is carried; if not, of the ones whose rows these windows take.
        tell: Is told which segment is judged.
    """
    carried = workspace.spec.windows if windows is None else windows
    of_start = workspace.spec.joins if windows is None else read_by(windows, workspace.spec.joins)

    def carry(outcome: Outcome) -> State:
        needed = outcome.windows if windows is None else windows
        return outcome.state(needed, all_joins=joins).materialized(computed)

    steps = _steps(
        workspace, segments, read, position=position or Position(), waits=waits or Waits(), some=some, tell=tell
    )
    return engine.advance_all(
        steps, with_let_in(workspace, State(), carried, of_start) if state is None else state, carry
    )


def _steps(
    workspace: Workspace,
    segments: Sequence[LogSegment],
    read: Callable[[LogSegment], DataFrame],
    *,
    position: Position,
    waits: Waits,
    some: Callable[[LogSegment, Numbers], DataFrame | None] | None,
    tell: Callable[[str], None],
) -> Iterator[tuple[Segment, TimeRules]]:
    """Return each segment with its rules; arguments as of `judge_segments`."""
    let_in = admitted(workspace)
    for number, segment in enumerate(segments, start=1):
        tell(f"judging {segment.count:,} records in memory, piece {number} of {len(segments)}")
        records, find = read(segment), None if some is None else partial(some, segment)
        waits = waits_in_segment(workspace, segment, position, waits)
        yield (
            segment_at(workspace, segment, records, position, let_in, some=find),
            replace(workspace.rules, waits=waits),
        )
        if number < len(segments):  # after the last one it may need a query of all its records
            position = clocks_after(workspace, segment, records, position, workspace.rules)


def with_let_in(
    workspace: Workspace, state: State, windows: Iterable[WindowSpec], joins: Sequence[JoinSpec] = ()
) -> State:
    """Return the state before the log, or a part of it, with the records that are let in, for some windows."""
    of_events = [window for window in windows if window.input is None]
    events = events_let_in(workspace) if of_events or joins else None
    if events is None:
        return state
    return state.with_events(events, of_events, joins).with_timelines_of(events, workspace.rules.time)


def replay_all(workspace: Workspace, *, joins: bool = False) -> Iterator[Outcome]:
    """Judge in memory all that was processed of the log, with the columns and types of the spec.

    Rows of joins that no window takes are whole only if they are asked for: else events do not wait from one piece
    of the log to the next.
    """
    ensure_whole_log(workspace, "to judge it again")
    pieces = pieces_left(recorded(workspace, *REPLAYED_KINDS), 0, 0, workspace.progress.processed_end())

    def read(segment: LogSegment) -> DataFrame:
        return _records_as_declared(workspace, records_between(workspace, segment.first_seq, segment.end_seq))

    def some(segment: LogSegment, seqs: Numbers) -> DataFrame | None:
        records = some_records(workspace, segment.first_seq, segment.end_seq, seqs)
        return None if records is None else _records_as_declared(workspace, records)

    segments = [piece.segment for piece in pieces]
    return judge_segments(workspace, segments, read, some=some, joins=joins, tell=workspace.tell)


def _records_as_declared(workspace: Workspace, records: DataFrame) -> DataFrame:
    return as_declared(records, payload_of(workspace), workspace.rules.sources[0].time_zone)
