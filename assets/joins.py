"""The joins of one batch: the answers that are given in it, and what each join needs afterwards.

Here: writing `joins/<name>`, and the checks of what was written. Not here: the rules (timeops/joins/), what a join
needs of earlier batches (assets/state/joins.py).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.batch import Batch
from tidemark.assets.state.joins import rows_in_place, write_joining
from tidemark.assets.state.right_tables import write_right_rows
from tidemark.resources import tables
from tidemark.resources.delta.files import Piece, piece_of
from tidemark.resources.delta.ordering import Places, files_for
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.taking import Taken, taken
from tidemark.resources.delta.versions import NO_ROWS, Filters
from tidemark.resources.quality.checks import Counted, Expectation, Measured
from tidemark.timeops import columns as c
from tidemark.timeops.joins.events import NOBODY, Answers
from tidemark.timeops.joins.rows import Joined
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.values.instants import NONE, distinct, integers, nulled
from tidemark.timeops.values.utc import Instant

ONE_LAST_ANSWER = Expectation(
    name="one_last_answer",
    holds="no event of the left side has two rows; in an interval join no pair has, and no event without a partner",
    remedy="do not use the join of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
JOIN_CONSERVATION = Expectation(
    name="join_conservation",
    holds="events of the left side = answered + waiting + dead letters of the join; in an interval join of both "
    "sides",
    remedy="events were lost or doubled: do not use this batch; report the numbers, then `tidemark run` retries it",
    blocking=True,
)
_GROUP_ROWS = 1 << 17  # rows that are made at once
OF_JOINS = (ONE_LAST_ANSWER, JOIN_CONSERVATION)


def answer_join(batch: Batch, join: JoinSpec) -> int:
    """Write the answers of a join in a batch, then what it needs after it; return how many rows were written."""
    rows = _write_rows(batch, join) if batch.after.clock_us is not None else 0
    write_joining(batch, join)
    if join.has_table:
        write_right_rows(batch, join)
    return rows


def _write_rows(batch: Batch, join: JoinSpec) -> int:
    """Write the rows of a join in a batch; the last revisions, in the place of the rows that they revise."""
    joined, table = batch.outcome.joined(join), tables.join_table(join.name)
    newest = joined.answered.newest if join.revises else joined.answered
    timed = newest.timed
    newest = newest.of(np.lexsort((joined.events.seq[timed], joined.events.us[timed])))
    used = np.zeros(len(joined.events), bool)
    for side in (newest.left, newest.right):
        used[side[side != NOBODY]] = True
    order = np.flatnonzero(used)
    order = order[np.argsort(joined.events.us[order], kind="stable")]
    number = np.full(len(used) + 1, NOBODY)  # the last number of a partner that is not there
    number[order] = np.arange(len(order))
    prefix, columns = joined.columns.right_prefix, joined.columns
    of_table = batch.workspace.lake.dataset(table, batch.workspace.lake.version(table)).schema
    shown_as = {name: name for name in columns.left} | {prefix + name: name_here for name, name_here in columns.right}
    schema = pa.schema([of_table.field(name_here).with_name(name) for name, name_here in shown_as.items()])
    with (
        rows_in_place(batch, join, schema.names) as rows,
        taken(rows.parts, rows.places(joined.events, order), schema) as events,
    ):
        written = _Written(batch, joined, newest, number, events)
        if join.revises:
            return _revise(batch, table, written)
        return batch.replace_pieces(table, written.pieces, where=NO_ROWS).rows


_NOT_FINAL: Filters = [("_is_final", "=", False)]


def _revise(batch: Batch, table: str, written: "_Written") -> int:
    """Write rows in the place of the ones that they revise, see `BatchWriter.revise`."""
    count = len(written.rows.left)
    if not count:
        return 0
    lake, seqs = batch.workspace.lake, written.joined.events.seq
    version = batch.workspace.base_of(table)
    old = pieces(lake, table, version, lake.dataset(table, version).schema.names, _NOT_FINAL)
    revised = [pa.array(seqs[events]) for events in written.rows.revised]
    unchanged = [_unless_revised(rows, *revised) for rows in old]
    old_pieces = [piece_of(pa.Table.from_batches([rows])) for rows in unchanged if rows.num_rows]
    batch.replace_pieces(table, [*written.pieces, *old_pieces], where=_NOT_FINAL)
    return count


def _unless_revised(rows: pa.RecordBatch, lefts: pa.Array, rights: pa.Array) -> pa.RecordBatch:
    """Return the rows that are not of some events."""
    of_left, of_right = pc.is_in(rows[LEFT_SEQ], value_set=lefts), pc.is_in(rows[RIGHT_SEQ], value_set=rights)
    return rows.filter(pc.invert(pc.or_(of_left, of_right)))


@dataclass(frozen=True, eq=False)
class _Written:
    """The rows of a join, made piece by piece: what was found, with the payload of both events.

    Attributes:
        batch: The batch.
        joined: The join in it.
        rows: The rows, in the order in which they are written.
        number: The number of each event in `taken`; the last one of a partner that is not there.
        taken: The payload.
    """

    batch: Batch
    joined: Joined
    rows: Answers
    number: Places
    taken: Taken

    @property
    def pieces(self) -> list[Piece]:
        """The rows, as files of about one size; none without rows."""
        count = len(self.rows.left)
        files = files_for(count)
        ends = pairwise(count * number // files for number in range(files + 1))
        return [partial(self._piece, range(first, end)) for first, end in ends if first < end]

    def _piece(self, span: range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for first in range(span.start, span.stop, _GROUP_ROWS):
            yield from piece_of(self._group(slice(first, min(first + _GROUP_ROWS, span.stop))))(schema)

    def _group(self, some: slice) -> pa.Table:
        events, columns = self.joined.events, self.joined.columns
        left, right = self.rows.left[some], self.rows.right[some]
        of_right = [columns.right_prefix + name for name, _ in columns.right]
        rows = self.taken.take(self.number[left], columns.left)
        partners = self.taken.take(self.number[right], of_right).rename_columns([name for _, name in columns.right])
        no_right = np.full(len(right), self.joined.join.has_table) | (right == NOBODY)
        values = {
            **dict(zip(partners.column_names, partners.columns, strict=True)),
            c.TIMESTAMP: pa.array(events.us[np.where(left == NOBODY, right, left)]),
            LEFT_SEQ: pa.array(events.seq[left], mask=left == NOBODY),
            RIGHT_SEQ: pa.array(events.seq[right], mask=no_right),
            c.WATERMARK: nulled(self.rows.watermark[some]),
            "_revision": pa.array(self.rows.revision[some]),
            "_is_final": pa.array(self.rows.is_final[some]),
            c.BATCH: pa.repeat(pa.scalar(self.batch.plan.batch_id, pa.int64()), len(left)),
        }
        for name, column in values.items():
            rows = rows.append_column(name, column)
        return rows


def count_join(batch: Batch, join: JoinSpec) -> list[Counted]:
    """Measure the expectations of OF_JOINS on what a batch wrote, without Spark."""
    lake, table = batch.workspace.lake, tables.join_table(join.name)
    of_batch: Filters = [(c.BATCH, "=", batch.plan.batch_id)]
    seqs = [LEFT_SEQ, RIGHT_SEQ]
    written = _rows(pieces(lake, table, lake.version(table), [*seqs, "_is_final", c.TIMESTAMP], of_batch))
    doubled = rows = 0
    if written is not None:
        rows = written.num_rows
        first_us = pc.min(written[c.TIMESTAMP].cast(pa.int64())).as_py()
        if join.is_interval:  # a row has the time of its left event, which may be before its right one
            first_us = max(first_us - join.reach_us, c.MIN_US)
        since: Filters = [(c.TIMESTAMP, ">=", Instant(first_us))]
        are_all = lake.row_count(table, lake.version(table)) == rows
        near = None if are_all else _rows(pieces(lake, table, lake.version(table), seqs, since))
        doubled = _doubled(written if near is None else near, join)
    once = Measured("events with two rows", 0, doubled, f"{doubled:,} of {rows:,} rows of the batch are second ones")
    return [Counted(ONE_LAST_ANSWER, [once]), Counted(JOIN_CONSERVATION, _accounts(batch, join, written))]


def _doubled(rows: pa.Table, join: JoinSpec) -> int:
    """Count the rows of a join whose event, or whose pair, another row has too."""
    left, right = integers(rows[LEFT_SEQ]), integers(rows[RIGHT_SEQ])
    if not join.is_interval:
        return len(left) - len(distinct(left))
    is_pair = (left != NONE) & (right != NONE)
    order = np.lexsort((right[is_pair], left[is_pair]))
    of_left, of_right = left[is_pair][order], right[is_pair][order]
    doubled = np.count_nonzero((of_left[1:] == of_left[:-1]) & (of_right[1:] == of_right[:-1]))
    for side, other in ((left, right), (right, left)):
        alone = distinct(side[other == NONE])
        doubled += np.count_nonzero(other == NONE) - len(alone) + np.count_nonzero(np.isin(alone, side[is_pair]))
    return int(doubled)


def _accounts(batch: Batch, join: JoinSpec, written: pa.Table | None) -> list[Measured]:
    counts, name = batch.workspace.progress.counts_of(batch.plan.batch_id), join.name
    of_left = tuple(counts.get(f"{name}.{side}", 0) for side in ("left", "answered", "left_closed"))
    accounts = [_account(batch, join, "left", of_left)]
    if join.is_interval:
        of_right = tuple(counts.get(f"{name}.{side}", 0) for side in ("right", "right_answered", "right_closed"))
        return [*accounts, _account(batch, join, "right", of_right)]
    final = 0 if written is None else pc.sum(pc.fill_null(written["_is_final"], False)).as_py() or 0
    answered = of_left[1]
    rows = f"{final:,} last answers of `{name}` were written; expected "
    rows += f"{answered:,}, one for each event" if join.how == "left" else f"{answered:,} or fewer"
    expected = answered if join.how == "left" else min(final, answered)
    return [*accounts, Measured(f"last answers of {name}", expected, final, rows)]


def _account(batch: Batch, join: JoinSpec, side: str, counts: tuple[int, ...]) -> Measured:
    """Compare what came of a side, or waited, with what was answered, waits or was refused."""
    lake, table = batch.workspace.lake, tables.joining_table(join.name)
    source = join.left.source if side == "left" else join.right.name
    waited, waiting = (
        _waiting(batch, join, source, version) for version in (batch.workspace.base_of(table), lake.version(table))
    )
    accepted, answered, closed = counts
    expected, accounted = waited + accepted, answered + waiting + closed
    sentence = f"{accounted:,} events of the {side} side of `{join.name}` are answered, wait or are dead letters"
    sentence += f"; expected {expected:,}, all that waited or were accepted"
    return Measured(f"{side} events of {join.name}", expected, accounted, sentence)


def _waiting(batch: Batch, join: JoinSpec, source: str, version: int) -> int:
    """Count the events of a source in the state of a join, under its present and former names."""
    names = batch.workspace.source_names
    called = [source, *(old for old, new in names.items() if new == source)]
    table = tables.joining_table(join.name)
    return sum(
        piece.num_rows
        for piece in pieces(batch.workspace.lake, table, version, [c.SOURCE], [(c.SOURCE, "in", called)])
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    some = [piece for piece in batches if piece.num_rows]
    return pa.Table.from_batches(some) if some else None
