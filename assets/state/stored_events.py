"""Events of a batch that have the values of the log: Arrow puts them in order and writes them, without Spark.

Here: for which batches that is so, and the rows of `ordered_events` and `held_events`. Not here: all other batches,
and which events are released or held (releases.py).

The loop knows the order of all events. In it an event comes a little before or after its neighbours in the log, so
the log is read in its own order, and few rows wait for others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from math import ceil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.batch import Batch
from tidemark.assets.exclusions import FEW_BYTES, stored_columns
from tidemark.assets.schemas import held_columns, payload_of
from tidemark.resources import tables
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.files import Piece
from tidemark.resources.sources.parquet_files import FLAT, PIECE_ROWS
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.counts import Outcomes
from tidemark.timeops.events.stored_times import column_of_time
from tidemark.timeops.session import computes_here
from tidemark.timeops.watermark.fold import Array

_GROUP_ROWS = 1 << 17  # of a row group
_LEAST_ROWS = 100_000  # of a file: to write fewer takes less time than another thread
_MOST_READ = 3  # times the records of the batch: Spark sorts events that are further out of order
_NEVER_US = np.iinfo(np.int64).max
_RANK = "__tm_rank"
_JUDGED = (c.TIMESTAMP, c.EVENT_TIME, c.TIMELINE, c.ADJUSTED_BY, c.WATERMARK)  # what the log does not have

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class StoredEvents:
    """The events of a batch of one timeline that have the values of the log, and the time that the loop judged.

    Attributes:
        workspace: The pipeline.
        schema: The columns of `held_events` but its batch.
        column: The column of the log that holds the event time.
        first_seq: The number of the first record of the batch.
        t_us: `_timestamp` of each record that is accepted, in the order of the log.
    """

    workspace: Workspace
    schema: pa.Schema
    column: str
    first_seq: int
    t_us: Array

    @staticmethod
    def of(batch: Batch, outcomes: Outcomes) -> "StoredEvents | None":
        """Return the events of a batch; None where Spark has to read them.

        So it is on a cluster, where the log is not as it is stored, if a rule moved an event or one was let in, and
        if an expression says when it happened.
        """
        workspace, first_seq = batch.workspace, batch.plan.first_seq
        is_whole = len(outcomes) == records_in(batch.plan)
        if (
            workspace.spec.time.over
            or outcomes.moved.any()
            or outcomes.admitted.any()
            or not is_whole
            or not computes_here(workspace.spark)
        ):
            return None
        payload, column = payload_of(workspace), column_of_time(batch.items, workspace.rules)
        if column is None or not all(isinstance(field.dataType, FLAT) for field in payload):
            return None
        if stored_columns(workspace, first_seq, plan_end(batch.plan), payload.names) is None:
            return None
        held = workspace.lake.dataset(tables.HELD_EVENTS, workspace.base_of(tables.HELD_EVENTS)).schema
        schema = pa.schema([held.field(name) for name in held_columns(payload)])
        return StoredEvents(workspace, schema, column, first_seq, outcomes.items.t)

    def some(self, are_wanted: Flags) -> pa.Table:
        """Return some events, which are marked among the records of the batch."""
        places = np.flatnonzero(are_wanted)
        span = range(places[0], places[-1] + 1) if len(places) else range(0)
        parts = [rows.filter(pa.array(are_wanted[at])) for at, rows in self.between(span)]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def between(self, span: range) -> Iterator[tuple[Array, pa.Table]]:
        """Yield events by their places among the records of the batch, piece by piece, with the place of each."""
        stored = [name for name in dict.fromkeys((*self.schema.names, self.column)) if name not in _JUDGED]
        first, end = self.first_seq + span.start, self.first_seq + span.stop
        for rows in (stored_columns(self.workspace, first, end, stored) or ()) if span else ():
            at = rows[c.SEQ].to_numpy() - self.first_seq
            judged = {
                c.TIMESTAMP: pa.array(self.t_us[at]),
                c.EVENT_TIME: rows[self.column],
                c.TIMELINE: pa.repeat(c.ONE_TIMELINE, len(rows)),
                c.ADJUSTED_BY: pa.ListArray.from_arrays(np.zeros(len(rows) + 1, np.int32), pa.array([], pa.string())),
                c.WATERMARK: pa.nulls(len(rows)),
            }
            values = [judged[field.name] if field.name in judged else rows[field.name] for field in self.schema]
            cast = [value.cast(field.type) for value, field in zip(values, self.schema, strict=True)]
            yield at, pa.Table.from_arrays(cast, schema=self.schema)

    def in_order(self, held: pa.Table, are_released: Flags, start: int, batch_id: int) -> list[Piece] | None:
        """Return the files of released events in their order.

        Args:
            held: Released events that earlier batches held.
            are_released: The released ones among the records of the batch.
            start: The first `_release_seq`.
            batch_id: The batch.

        Returns:
            No files without events; None where these are so far out of order that the log would be read too often.
        """
        held = held.sort_by(c.SEQ)  # they came before all records of the batch
        us = np.concatenate([held[c.TIMESTAMP].cast(pa.int64()), np.where(are_released, self.t_us, _NEVER_US)])
        count = len(held) + int(np.count_nonzero(are_released))
        if not count:
            return []
        order = np.argsort(us, kind="stable")[:count].astype(np.int32)
        ranks = np.full(len(us), -1, np.int32)
        ranks[order] = np.arange(count, dtype=np.int32)
        sequence = _Sequence(self, held, ranks, start, batch_id)
        files = max(1, min(pa.cpu_count(), count // _LEAST_ROWS), ceil(count / PIECE_ROWS))
        cuts = [range(*ends) for ends in pairwise(count * number // files for number in range(files + 1))]
        spans = [_span(order[cut.start : cut.stop] - len(held)) for cut in cuts]
        if sum(map(len, spans)) > _MOST_READ * len(are_released):
            return None
        return [partial(sequence.rows, cut, span) for cut, span in zip(cuts, spans, strict=True)]


def _span(places: NDArray[np.int32]) -> range:
    """Return the span of places in a batch; below zero they are of held events."""
    in_batch = places[places >= 0]
    return range(int(in_batch.min()), int(in_batch.max()) + 1) if len(in_batch) else range(0)


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Released events of a batch.

    Attributes:
        events: Events of the batch.
        held: Events that earlier batches held.
        ranks: The place of each in the order: the ones held before, then the records; -1 of one that is not released.
        start: The first `_release_seq`.
        batch_id: The batch.
    """

    events: StoredEvents
    held: pa.Table
    ranks: NDArray[np.int32]
    start: int
    batch_id: int

    def rows(self, wanted: range, span: range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the events of some ranks in order.

        Args:
            wanted: The ranks.
            span: Where they are among the records of the batch.
            schema: The columns of `ordered_events`.

        Raises:
            pyarrow.ArrowInvalid: Too many events wait for others before them.
        """
        held_count = len(self.held)
        came = chain(
            [(self.ranks[:held_count], self.held)],
            ((self.ranks[held_count + at], rows) for at, rows in self.events.between(span)),
        )
        missing = np.bincount(np.arange(len(wanted)) // _GROUP_ROWS)
        done, waiting = wanted.start, list[pa.Table]()
        for ranks, rows in came:
            are_own = (ranks >= wanted.start) & (ranks < wanted.stop)
            own_ranks = ranks[are_own]
            waiting.append(rows.filter(pa.array(are_own)).append_column(_RANK, pa.array(own_ranks)))
            missing -= np.bincount((own_ranks - wanted.start) // _GROUP_ROWS, minlength=len(missing))
            groups = np.flatnonzero(missing)  # that are not whole yet
            end = wanted.start + int(groups[0]) * _GROUP_ROWS if len(groups) else wanted.stop
            if end > done:
                whole = pa.concat_tables(waiting).combine_chunks()
                is_due = pc.less(whole[_RANK], end)
                yield from self._numbered(whole.filter(is_due), done, schema)
                done, waiting = end, [whole.filter(pc.invert(is_due))]
            elif sum(table.nbytes for table in waiting) > FEW_BYTES:
                raise pa.ArrowInvalid("too many events wait for others before them")
        assert done == wanted.stop

    def _numbered(self, events: pa.Table, first: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield events in order, with their numbers; they are all from one rank on and before another."""
        places = np.empty(len(events), np.int64)
        places[events[_RANK].to_numpy() - first] = np.arange(len(events))
        numbers = pa.array(np.arange(len(events)) + (self.start + first))
        more = {c.RELEASE_SEQ: numbers, c.BATCH: pa.repeat(pa.scalar(self.batch_id, pa.int64()), len(events))}
        rows = events.take(pa.array(places))
        values = [more[field.name] if field.name in more else rows[field.name].cast(field.type) for field in schema]
        yield from pa.Table.from_arrays(values, schema=schema).to_batches(_GROUP_ROWS)
