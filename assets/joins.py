"""The joins of one batch: the answers that are given in it, and what each join needs afterwards.

Here: writing `joins/<name>`, and the checks of what was written. Not here: the rules (timeops/joins/), what a join
needs of earlier batches (state/joins.py).
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.batch import Batch
from tidemark.assets.state.joins import write_joining
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.quality.checks import Counted, Expectation, Measured
from tidemark.timeops import columns as c
from tidemark.timeops.joins.as_of import LEFT_SEQ
from tidemark.timeops.materialize import computed
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.results import newest_revisions

ONE_LAST_ANSWER = Expectation(
    name="one_last_answer",
    holds="no event of the left side has two rows",
    remedy="do not use the join of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
JOIN_CONSERVATION = Expectation(
    name="join_conservation",
    holds="events of the left side = answered + waiting + dead letters of the join",
    remedy="events were lost or doubled: do not use this batch; report the numbers, then `tidemark run` retries it",
    blocking=True,
)
OF_JOINS = (ONE_LAST_ANSWER, JOIN_CONSERVATION)


def answer_join(batch: Batch, join: JoinSpec) -> int:
    """Write the answers of a join in a batch, then what it needs after it; return how many rows were written."""
    write = _write_revisions if join.revises else _write_answers
    rows = write(batch, join) if batch.after.clock_us is not None else 0
    write_joining(batch, join)
    return rows


def _write_answers(batch: Batch, join: JoinSpec) -> int:
    return batch.append(tables.join_table(join.name), batch.outcome.answers(join), grows=True).rows


def _write_revisions(batch: Batch, join: JoinSpec) -> int:
    """Write a batch's last answers in the place of the ones that they revise."""
    last = computed(newest_revisions(batch.outcome.answers(join), [LEFT_SEQ]))
    if last.isEmpty():
        return 0
    batch.revise(tables.join_table(join.name), last, last, [LEFT_SEQ], [("_is_final", "=", False)])
    return last.count()


def count_join(batch: Batch, join: JoinSpec) -> list[Counted]:
    """Measure the expectations of OF_JOINS on what a batch wrote, without Spark."""
    lake, table = batch.workspace.lake, tables.join_table(join.name)
    of_batch: Filters = [(c.BATCH, "=", batch.plan.batch_id)]
    written = _rows(pieces(lake, table, lake.version(table), [LEFT_SEQ, "_is_final", c.TIMESTAMP], of_batch))
    doubled = rows = 0
    if written is not None:
        rows = written.num_rows
        first_us = pc.min(written[c.TIMESTAMP].cast(pa.int64())).as_py()
        since: Filters = [(c.TIMESTAMP, ">=", Instant(first_us))]
        near = _rows(pieces(lake, table, lake.version(table), [LEFT_SEQ], since))
        seqs = written[LEFT_SEQ] if near is None else near[LEFT_SEQ]
        doubled = len(seqs) - len(pc.unique(seqs))
    once = Measured("events with two rows", 0, doubled, f"{doubled:,} of {rows:,} rows of the batch are second ones")
    return [Counted(ONE_LAST_ANSWER, [once]), Counted(JOIN_CONSERVATION, _accounts(batch, join, written))]


def _accounts(batch: Batch, join: JoinSpec, written: pa.Table | None) -> list[Measured]:
    counts, name = batch.workspace.progress.counts_of(batch.plan.batch_id), join.name
    lake, table = batch.workspace.lake, tables.joining_table(join.name)
    before, now = (
        _waiting(batch, join, version) for version in (batch.workspace.base_of(table), lake.version(table))
    )
    came, answered, closed = (counts.get(f"{name}.{what}", 0) for what in ("left", "answered", "left_closed"))
    expected, accounted = before + came, answered + now + closed
    sentence = f"{accounted:,} events of the left side of `{name}` are answered, wait or are dead letters"
    sentence += f"; expected {expected:,}, all that waited or were accepted"
    final = 0 if written is None else pc.sum(pc.fill_null(written["_is_final"], False)).as_py() or 0
    rows = f"{final:,} last answers of `{name}` were written; expected "
    rows += f"{answered:,}, one for each event" if join.how == "left" else f"{answered:,} or fewer"
    wanted = answered if join.how == "left" else min(final, answered)
    return [
        Measured(f"left events of {name}", expected, accounted, sentence),
        Measured(f"last answers of {name}", wanted, final, rows),
    ]


def _waiting(batch: Batch, join: JoinSpec, version: int) -> int:
    """Count the left events in the state of a join, by the names that sources have in it."""
    names, now = batch.workspace.source_names, join.left.source
    called = [now, *(old for old, new in names.items() if new == now)]
    table = tables.joining_table(join.name)
    return sum(
        piece.num_rows
        for piece in pieces(batch.workspace.lake, table, version, [c.SOURCE], [(c.SOURCE, "in", called)])
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    some = [piece for piece in batches if piece.num_rows]
    return pa.Table.from_batches(some) if some else None
