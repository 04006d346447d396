"""The joins of one batch: the answers that are given in it, and what each join needs afterwards.

Here: writing `joins/<name>`, and the checks of what was written. Not here: the rules (timeops/joins/), what a join
needs of earlier batches (state/joins.py).
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.batch import Batch
from tidemark.assets.state.joins import write_joining
from tidemark.assets.state.right_tables import write_right_rows
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.quality.checks import Counted, Expectation, Measured
from tidemark.timeops import columns as c
from tidemark.timeops.joins.rows import row_keys, shown
from tidemark.timeops.materialize import computed
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.results import newest_revisions

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
OF_JOINS = (ONE_LAST_ANSWER, JOIN_CONSERVATION)


def answer_join(batch: Batch, join: JoinSpec) -> int:
    """Write the answers of a join in a batch, then what it needs after it; return how many rows were written."""
    write = _write_revisions if join.revises else _write_answers
    rows = write(batch, join) if batch.after.clock_us is not None else 0
    write_joining(batch, join)
    if join.has_table:
        write_right_rows(batch, join)
    return rows


def _write_answers(batch: Batch, join: JoinSpec) -> int:
    return batch.append(tables.join_table(join.name), shown(batch.outcome.answers(join)), grows=True).rows


def _write_revisions(batch: Batch, join: JoinSpec) -> int:
    """Write a batch's last answers in the place of the ones that they revise."""
    last = computed(newest_revisions(batch.outcome.answers(join), row_keys(join)))
    if last.isEmpty():
        return 0
    keys = join.key_columns
    revised = last.selectExpr(*[f"{key} AS {name}" for key, name in zip(row_keys(join), keys, strict=True)])
    batch.revise(tables.join_table(join.name), shown(last), revised, keys, [("_is_final", "=", False)])
    return last.count()


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
        near = _rows(pieces(lake, table, lake.version(table), seqs, since))
        doubled = _doubled(written if near is None else near, join)
    once = Measured("events with two rows", 0, doubled, f"{doubled:,} of {rows:,} rows of the batch are second ones")
    return [Counted(ONE_LAST_ANSWER, [once]), Counted(JOIN_CONSERVATION, _accounts(batch, join, written))]


def _doubled(rows: pa.Table, join: JoinSpec) -> int:
    """Count the rows of a join whose event, or whose pair, another row has too."""
    if not join.is_interval:
        return len(rows) - len(pc.unique(rows[LEFT_SEQ]))
    pairs = rows.filter(pc.and_(pc.is_valid(rows[LEFT_SEQ]), pc.is_valid(rows[RIGHT_SEQ])))
    doubled = len(pairs) - len(pairs.group_by([LEFT_SEQ, RIGHT_SEQ]).aggregate([]))
    for side, other in ((LEFT_SEQ, RIGHT_SEQ), (RIGHT_SEQ, LEFT_SEQ)):
        alone = rows.filter(pc.is_null(rows[other]))[side]
        doubled += len(alone) - len(pc.unique(alone))
        doubled += pc.sum(pc.is_in(pc.unique(alone), value_set=pairs[side].combine_chunks())).as_py() or 0
    return int(doubled)


def _accounts(batch: Batch, join: JoinSpec, written: pa.Table | None) -> list[Measured]:
    counts, name = batch.workspace.progress.counts_of(batch.plan.batch_id), join.name
    of_left = tuple(counts.get(f"{name}.{what}", 0) for what in ("left", "answered", "left_closed"))
    accounts = [_account(batch, join, "left", of_left)]
    if join.is_interval:
        of_right = tuple(counts.get(f"{name}.{what}", 0) for what in ("right", "right_answered", "right_closed"))
        return [*accounts, _account(batch, join, "right", of_right)]
    final = 0 if written is None else pc.sum(pc.fill_null(written["_is_final"], False)).as_py() or 0
    answered = of_left[1]
    rows = f"{final:,} last answers of `{name}` were written; expected "
    rows += f"{answered:,}, one for each event" if join.how == "left" else f"{answered:,} or fewer"
    wanted = answered if join.how == "left" else min(final, answered)
    return [*accounts, Measured(f"last answers of {name}", wanted, final, rows)]


def _account(batch: Batch, join: JoinSpec, side: str, counts: tuple[int, ...]) -> Measured:
    """Compare what came of a side, or waited, with what was answered, waits or was refused."""
    lake, table = batch.workspace.lake, tables.joining_table(join.name)
    source = join.left.source if side == "left" else join.right.name
    before, now = (
        _waiting(batch, join, source, version) for version in (batch.workspace.base_of(table), lake.version(table))
    )
    came, answered, closed = counts
    expected, accounted = before + came, answered + now + closed
    sentence = f"{accounted:,} events of the {side} side of `{join.name}` are answered, wait or are dead letters"
    sentence += f"; expected {expected:,}, all that waited or were accepted"
    return Measured(f"{side} events of {join.name}", expected, accounted, sentence)


def _waiting(batch: Batch, join: JoinSpec, source: str, version: int) -> int:
    """Count the events of a source in the state of a join, by the names that it has in it."""
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
