"""The log, judged segment after segment: where control items cut it, and what each segment begins with.

Here: the pieces of the log, the clocks and the waits of sources around each, and judging them in order: days and
previews of a whole log do so. Not here: the rules (timeops/engine.py), a batch that is stored, which is one segment
(of_batch.py), what is made of an outcome (../questions/what_if/preview.py, ../rebuild/).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log.admissions import Admitted, admitted, events_let_in
from tidemark.assets.log.control import (
    END_OF_INPUT,
    REOPEN,
    TABLE,
    TICK,
    WAIT,
    follows_waits,
    recorded,
    table_of,
    waiters_of,
)
from tidemark.assets.log.exclusions import Numbers, excluded, records_between, some_records, stored_columns
from tidemark.assets.log.retention import ensure_whole_log
from tidemark.assets.planning import LogSegment
from tidemark.assets.schemas import as_declared, payload_of
from tidemark.assets.state.right_tables import right_sides
from tidemark.assets.state.timelines import log_place
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.spark.amount import Amount
from tidemark.resources.workspace import Workspace, silent
from tidemark.timeops import columns as c
from tidemark.timeops import engine
from tidemark.timeops.computing.materialize import Some, computed
from tidemark.timeops.engine import Outcome, State, read_by
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.rules.time_rules import TimeRules, Waiter, Waits
from tidemark.timeops.spec import JoinSpec, WindowSpec
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.timelines import LogPlace

REPLAYED_KINDS = (TICK, WAIT, END_OF_INPUT, REOPEN, TABLE)
"""The control items that a segment of the log begins or ends with."""

MOST_RECORDS = 10_000_000
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
        most: Records of a piece; by default MOST_RECORDS.
        waits: The sources and splits that wait before the first item.
    """
    first, reopens, most = begin_seq, None, most or MOST_RECORDS
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


def segment_at(
    workspace: Workspace,
    segment: LogSegment,
    records: DataFrame,
    position: Position,
    let_in: Admitted,
    *,
    some: Some | None = None,
    counts: bool = False,
) -> Segment:
    """Return a segment as the engine takes it.

    Args:
        workspace: The pipeline.
        segment: The segment.
        records: Its records.
        position: The clocks of the log before it.
        let_in: The records of the log that an operator has let in.
        some: Returns some of its records, see `adjustment.Segment`.
        counts: Whether its outcome is counted.
    """
    first_seq, end_seq = segment.first_seq, segment.end_seq
    has_tables = any(join.has_table for join in workspace.spec.joins)
    return Segment(
        records,
        _place_of(workspace, segment, position),
        Amount(segment.count).execution(),
        events_let_in(workspace, let_in.between(first_seq, end_seq)),
        partial(stored_columns, workspace, first_seq, end_seq),
        some,
        counts,
        right_sides(workspace, segment.tables) if has_tables else {},
    )


def waits_in_segment(workspace: Workspace, segment: LogSegment, position: Position, waits: Waits) -> Waits:
    """Return the waits of sources in a segment, from the ones before it."""
    return waits.from_here(position.clock_us, segment.waits) if follows_waits(workspace.spec) else waits


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


def _place_of(workspace: Workspace, segment: LogSegment, position: Position) -> LogPlace:
    """Return the place of a segment in the log, and its end."""
    seqs = range(segment.first_seq, segment.end_seq)
    place = log_place(workspace, position)
    return replace(place, tick_us=segment.tick_us, flushed=segment.flushes, seqs=seqs)


def clocks_after(
    workspace: Workspace, segment: LogSegment, items: DataFrame, position: Position, rules: TimeRules
) -> Position:
    """Return the clocks of the log after a segment and its tick; None before the first timed record."""
    clocks, tick_us = _after_records(workspace, segment, items, position, rules), segment.tick_us
    if tick_us is None or clocks.clock_us is None or tick_us <= clocks.clock_us:
        return clocks
    every_us = rules.time.emit_every_us
    begins_period = every_us is not None and tick_us // every_us > clocks.clock_us // every_us
    if begins_period and rules.publishes_silences:
        return Position(clock_us=tick_us, clock_before_period_us=clocks.clock_us)
    return replace(clocks, clock_us=tick_us)


def _after_records(
    workspace: Workspace, segment: LogSegment, items: DataFrame, position: Position, rules: TimeRules
) -> Position:
    as_before = Position(clock_us=position.clock_us, clock_before_period_us=position.clock_before_period_us)
    if segment.first_seq == segment.end_seq:
        return as_before
    if excluded(workspace).concerns(segment.first_seq, segment.end_seq):
        reached_us = items.agg(F.max(c.to_us(c.CLOCK)).alias("latest")).collect()[0]["latest"]
        return as_before if reached_us is None else _at_clock(reached_us, items, position, rules)
    version = workspace.base_of(tables.RAW_EVENTS)
    last = [(c.SEQ, "=", segment.end_seq - 1)]
    rows = workspace.lake.rows(tables.RAW_EVENTS, version, columns=[c.CLOCK], filters=last)
    clock = rows[c.CLOCK][0].as_py()
    return Position() if clock is None else _at_clock(us_of(clock), items, position, rules)


def _at_clock(clock_us: int, items: DataFrame, position: Position, rules: TimeRules) -> Position:
    """Return the clocks of the log after records that end at one clock."""
    every_us = rules.time.emit_every_us
    if every_us is None or not rules.publishes_silences:
        return Position(clock_us=clock_us)
    period = clock_us - clock_us % every_us
    clocks = items.select(c.to_us(c.CLOCK).alias("clock")).where(F.col("clock") < period)
    ended_us = clocks.agg(F.max("clock").alias("latest")).collect()[0]["latest"]
    if ended_us is None:  # the segment lies in one period
        begins_it = position.clock_us is None or position.clock_us < period
        ended_us = position.clock_us if begins_it else position.clock_before_period_us
    return Position(clock_us=clock_us, clock_before_period_us=ended_us)
