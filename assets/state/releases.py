"""Released and held events of one batch.

Here: `ordered_events` with its dense `_release_seq` per timeline, and `held_events`. Not here: the rule of release
(timeops/events/adjustment.py), how rows are put in order (resources/delta/ordering.py).

The loop has the time, the timeline and the fate of each event; all else of an event is in the log, or in the table of
held events. So the keys are sorted here, and the rows are read as they lie, and written in this order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.batch import Batch
from tidemark.assets.log.exclusions import stored_columns
from tidemark.assets.schemas import RELEASED, held_columns, payload_of
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.ordering import ByRank, Places, Rows, in_order, rows_in_memory, set_aside
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import ALL_ROWS, NO_ROWS, Filters
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import FUTURE_ARRIVAL, KEPT, MOVED
from tidemark.timeops.events.stored_times import COUNTED_EVENT_US
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.figures.counts import Outcomes
from tidemark.timeops.values.instants import NONE, Array, integers
from tidemark.timeops.values.utc import Instant

Flags = NDArray[np.bool_]


def write_released(batch: Batch, outcomes: Outcomes) -> int:
    """Write the events that are released and the events that stay held; return how many got a `_release_seq`."""
    events = _Events.of(batch, outcomes)
    release_seqs = events.release_seqs()
    with events.lying() as lying:
        released = events.pieces(lying, events.are_out | events.are_kept, release_seqs)
        batch.replace_pieces(tables.ORDERED_EVENTS, released, where=NO_ROWS)
        held = events.pieces(lying, events.are_held)
        batch.replace_pieces(tables.HELD_EVENTS, held, where=_no_longer_held(batch.after))
    return int(np.count_nonzero(release_seqs != NONE))


@dataclass(frozen=True, eq=False)
class _Events:
    """The events that earlier batches held and this one may release, the records of the batch, and events let in.

    Attributes:
        batch: The batch.
        outcomes: What became of its records.
        held: Number, time and timeline of the events that earlier batches held, by number.
        let_in: The events that an operator has let in. Their records, which may be corrected, are not accepted.
        us: `_timestamp` of each, microseconds; any number of a record that is refused.
        timelines: The place of its timeline in the state after the batch; -1 of one that is not there.
        are_accepted: Whether it is accepted.
        are_kept: Whether it was accepted behind the watermark, or let in: it passes outside the sequence.
    """

    batch: Batch
    outcomes: Outcomes
    held: pa.Table
    let_in: pa.Table
    us: Array
    timelines: NDArray[np.int32]
    are_accepted: Flags
    are_kept: Flags

    @staticmethod
    def of(batch: Batch, outcomes: Outcomes) -> "_Events":
        """Return the events of a batch."""
        names = batch.outcome.timelines[c.TIMELINE].combine_chunks()
        held, let_in = _held_keys(batch).sort_by(c.SEQ), _let_in(batch)
        place_of_name = np.append(_places(outcomes.timelines, names), np.int32(-1))  # of none where none is accepted
        held_us, let_in_us = (integers(rows[c.TIMESTAMP].cast(pa.int64())) for rows in (held, let_in))
        of_records = place_of_name[outcomes.items.timeline]
        by_rules, all_let_in = ~outcomes.admitted, np.ones(len(let_in), bool)
        return _Events(
            batch,
            outcomes,
            held,
            let_in,
            us=np.concatenate([held_us, outcomes.final, let_in_us]),
            timelines=np.concatenate(
                [_places(held[c.TIMELINE], names), of_records, np.full(len(let_in), -1, np.int32)]
            ),
            are_accepted=np.concatenate([np.ones(len(held), bool), (outcomes.reason == 0) & by_rules, all_let_in]),
            are_kept=np.concatenate([np.zeros(len(held), bool), outcomes.is_kept & by_rules, all_let_in]),
        )

    @cached_property
    def are_out(self) -> Flags:
        """A flag for each event: it is released in the sequence of its timeline."""
        in_sequence = self.are_accepted & ~self.are_kept
        if self.batch.flushes:
            return np.asarray(in_sequence)
        watermarks = np.append(integers(self.batch.outcome.timelines["watermark"]), NONE)
        return np.asarray(in_sequence & (self.us < watermarks[self.timelines]))

    @cached_property
    def are_held(self) -> Flags:
        """A flag for each event: it stays held."""
        return np.asarray(self.are_accepted & ~self.are_kept & ~self.are_out)

    def release_seqs(self) -> Array:
        """Return `_release_seq` of each event: dense in its timeline by time, ties by `_arrival_seq`; else NONE."""
        state = self.batch.outcome.timelines
        release_seqs, order = np.full(len(self.us), NONE), self._by_time(self.are_out)
        order = order[np.argsort(self.timelines[order], kind="stable")]
        counts = np.bincount(self.timelines[order], minlength=len(state))
        starts = _released_before(self.batch, state[c.TIMELINE]) - (np.cumsum(counts) - counts)
        release_seqs[order] = np.arange(len(order)) + starts[self.timelines[order]]
        return release_seqs

    def _by_time(self, are_wanted: Flags) -> Places:
        """Return the places of some events, by time; ties keep the order of arrival."""
        places = np.flatnonzero(are_wanted)
        return places[np.argsort(self.us[places], kind="stable")]

    def pieces(self, lying: "_Lying", are_wanted: Flags, release_seqs: Array | None = None) -> list[Piece]:
        """Return some events by time, with their numbers if they get some."""
        order = self._by_time(are_wanted)
        batch_id = pa.scalar(self.batch.plan.batch_id, pa.int64())
        columns: ByRank = {c.BATCH: lambda ranks: pa.repeat(batch_id, ranks.stop - ranks.start)}
        if release_seqs is not None:
            columns = {**columns, c.RELEASE_SEQ: lambda ranks: _nulled(release_seqs[order[ranks]])}
        return in_order(lying.parts, order if lying.places is None else lying.places[order], columns)

    @contextmanager
    def lying(self) -> Iterator["_Lying"]:
        """Yield the events as they lie: the ones held before in their table, the records in the log, then the others.

        Where the log is not as it is stored, Spark computes its records.
        """
        batch, seqs = self.batch, self.outcomes.items.seq
        names = [*payload_of(batch.workspace).names, c.ARRIVAL, c.SEQ]
        held, let_in = Rows(len(self.held), self._read_held), rows_in_memory(self.let_in)
        if not len(seqs) or self._stored(names, range(len(seqs))) is not None:
            yield _Lying([held, Rows(len(seqs), partial(self._read_stored, names)), let_in])
            return
        records = batch.items.selectExpr(*map(quoted, names))
        with set_aside(records, batch.workspace.folder, batch.amount) as aside:
            numbers = np.searchsorted(seqs, aside.narrow([c.SEQ])[c.SEQ].to_numpy())
            places = np.arange(len(self.us))
            places[len(self.held) + numbers] = len(self.held) + np.arange(len(numbers))
            ends = np.cumsum([part.count for part in aside.parts])
            of_parts = zip(aside.parts, np.split(numbers, ends), strict=False)
            parts = [replace(part, read=partial(self._read_aside, part, of_part)) for part, of_part in of_parts]
            yield _Lying([held, *parts, let_in], places)

    def _read_held(self, span: range) -> Iterator[tuple[Places, pa.Table]]:
        seqs = self.held[c.SEQ].to_numpy()
        for rows in _held(self.batch, held_columns(payload_of(self.batch.workspace))) if span else ():
            yield np.searchsorted(seqs, rows[c.SEQ].to_numpy()), pa.Table.from_batches([rows])

    def _stored(self, names: Sequence[str], span: range) -> Iterator[pa.RecordBatch] | None:
        first, last = self.outcomes.items.seq[[span.start, span.stop - 1]]
        return stored_columns(self.batch.workspace, int(first), int(last) + 1, names)

    def _read_stored(self, names: Sequence[str], span: range) -> Iterator[tuple[Places, pa.Table]]:
        for rows in self._stored(names, span) or ():
            numbers = np.searchsorted(self.outcomes.items.seq, rows[c.SEQ].to_numpy())
            yield numbers, self._judged_records(pa.Table.from_batches([rows]), numbers)

    def _read_aside(self, part: Rows, numbers: Places, span: range) -> Iterator[tuple[Places, pa.Table]]:
        for places, rows in part.read(span):
            yield places, self._judged_records(rows, numbers[places])

    @cached_property
    def _adjusted_by(self) -> pa.Array:
        """`_adjusted_by` by `Outcomes.moved`; an early event that is kept is as it was."""
        early = self.batch.outcome.time.early
        keeps_early = early is not None and early.policy == "keep"
        names = [name for name in _MOVERS if not (keeps_early and name == "early")]
        bits = {name: 1 << MOVED.index(name) for name in names}
        lists = [[name for name in names if moved & bits[name]] for moved in range(1 << len(MOVED))]
        return pa.array(lists, pa.list_(pa.string()))

    def _judged_records(self, rows: pa.Table, numbers: Places) -> pa.Table:
        """Return records with what was judged of them; `numbers` are their places in the segment."""
        outcomes = self.outcomes
        events_us = outcomes.instants.get(COUNTED_EVENT_US)
        columns = {
            c.TIMESTAMP: pa.array(self.us[len(self.held) + numbers]),
            c.EVENT_TIME: rows[c.ARRIVAL] if events_us is None else _nulled(events_us[numbers]),
            c.TIMELINE: outcomes.timelines.take(pa.array(outcomes.items.timeline[numbers])),
            c.ADJUSTED_BY: self._adjusted_by.take(pa.array(outcomes.moved[numbers])),
            c.WATERMARK: _nulled(outcomes.watermarks_of(numbers)),
        }
        for name, values in columns.items():
            rows = rows.append_column(name, values)
        return rows


def _held_keys(batch: Batch) -> pa.Table:
    """Return number, time and timeline of the events that earlier batches hold and this one may release."""
    names, table = [c.SEQ, c.TIMESTAMP, c.TIMELINE], tables.HELD_EVENTS
    schema = batch.workspace.lake.dataset(table, batch.workspace.base_of(table)).schema
    return pa.Table.from_batches(_held(batch, names), pa.schema([schema.field(name) for name in names]))


def _let_in(batch: Batch) -> pa.Table:
    """Return the events that an operator has let in, with the columns of `held_events`; what these lack is null."""
    columns = [name for name in held_columns(payload_of(batch.workspace)) if name != c.WATERMARK]
    events = batch.outcome.judged.admitted
    if events is None:
        return pa.schema([(c.TIMESTAMP, pa.timestamp("us", "UTC"))]).empty_table()
    return events.selectExpr(*map(quoted, columns)).toArrow()


class _Lying(NamedTuple):
    """Events as they lie.

    Attributes:
        parts: Their rows: the ones that were held before, the records of the batch, the ones let in.
        places: The place of each event among these rows; None where it is its own.
    """

    parts: Sequence[Rows]
    places: Places | None = None


_MOVERS = (FUTURE_ARRIVAL, "early", "late", "out_of_order", KEPT)  # in the order in which they move an event


def _nulled(values: Array) -> pa.Array:
    return pa.array(values, mask=values == NONE)


def _places(names: pa.Array | pa.ChunkedArray, among: pa.Array) -> NDArray[np.int32]:
    """Return the place of each name among others; -1 of one that is not there."""
    return np.asarray(pc.fill_null(pc.index_in(names, value_set=among), -1), np.int32)


def _held(batch: Batch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the events that earlier batches hold and this one may release.

    The watermarks of several timelines differ: an event below the highest of them may stay held.
    """
    where, table = _no_longer_held(batch.after), tables.HELD_EVENTS
    if where is not None:
        yield from pieces(batch.workspace.lake, table, batch.workspace.base_of(table), columns, where)


def with_released(batch: Batch) -> pa.Table:
    """Return the state of every timeline after the batch, schemas.TIMELINE_SCHEMA, once its events are written."""
    state, lake = batch.outcome.timelines, batch.workspace.lake
    released = _released_before(batch, state[c.TIMELINE])
    if not batch.workspace.spec.outputs.ordered_events:
        return state.append_column(RELEASED, pa.array(released))
    fresh = np.zeros(len(state), np.int64)
    names, of_batch = state[c.TIMELINE].combine_chunks(), [(c.BATCH, "=", batch.plan.batch_id)]
    written, columns = lake.version(tables.ORDERED_EVENTS), [c.TIMELINE, c.RELEASE_SEQ]
    for rows in pieces(lake, tables.ORDERED_EVENTS, written, columns, of_batch):
        numbered = rows.filter(pc.is_valid(rows[c.RELEASE_SEQ]))
        fresh += np.bincount(pc.index_in(numbered[c.TIMELINE], names).to_numpy(), minlength=len(state))
    return state.append_column(RELEASED, pa.array(released + fresh))


def _released_before(batch: Batch, timelines: pa.ChunkedArray) -> Array:
    """Return how many events of each timeline got a `_release_seq` before the batch."""
    places = pc.index_in(timelines, batch.timelines[c.TIMELINE].combine_chunks())
    return integers(pc.fill_null(batch.timelines[RELEASED].combine_chunks().take(places.combine_chunks()), 0))


def _no_longer_held(position: Position) -> Filters | None:
    """Return the filters for rows of `held_events` before the watermark, or NO_ROWS."""
    if position.final:
        return ALL_ROWS
    if position.watermark_us is None:
        return NO_ROWS
    return [(c.TIMESTAMP, "<", Instant(position.watermark_us))]
