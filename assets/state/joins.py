"""The state of joins between batches: the events that each of them still needs; and the payload of all that it has.

Here: the table of each join, read and written; where the events of a join lie. Not here: which events a join needs
(timeops/joins/events.py), the tables of answers (assets/joins.py).

A batch rewrites the table: what it holds is bounded by `within`, or `before` and `after`, by `allowed_lateness` and
the watermark. Which rows it has is found in narrow columns, and Arrow carries the others from the log, from the table
as it was, and from what Spark has computed where the log is not as it is stored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tidemark.assets.batch import Batch
from tidemark.assets.log.exclusions import stored_columns
from tidemark.assets.schemas import has_partner_column, joining_events, open_columns, payload_of
from tidemark.assets.state.windows import ByName, needed_rows, write_by_time
from tidemark.resources import tables
from tidemark.resources.batches.position import plan_end
from tidemark.resources.delta.ordering import ByRank, Places, Rows, in_order, set_aside
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import ALL_ROWS
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import Stored
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.joins.events import OF_EARLIER, OF_SEGMENT, OF_TABLE, Events
from tidemark.timeops.joins.gathering import HAS_PARTNER
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import Array, nulled


def needed_by_joins(workspace: Workspace) -> Mapping[str, DataFrame]:
    """Return the events of earlier batches that each join needs, by its name."""
    return ByName(workspace.spec.joins, partial(_needed, workspace))


def _needed(workspace: Workspace, join: JoinSpec) -> DataFrame:
    events = needed_rows(workspace, tables.joining_table(join.name))
    if not join.is_interval:
        return events
    return events.withColumnRenamed(has_partner_column(payload_of(workspace)), HAS_PARTNER)


def stored_by_joins(workspace: Workspace) -> Mapping[str, Stored]:
    """Return readers of the same events without Spark; of none where a source has another name than in them."""
    joins = () if workspace.source_names else workspace.spec.joins
    return {join.name: partial(_stored, workspace, tables.joining_table(join.name)) for join in joins}


def _stored(workspace: Workspace, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch] | None:
    """Return columns of needed events, working ones among them; None where one is not there."""
    version = workspace.base_of(table)
    stored_as = {c.T_FINAL: c.TIMESTAMP, c.W_BEFORE: c.WATERMARK}
    if HAS_PARTNER in columns:
        stored_as[HAS_PARTNER] = has_partner_column(payload_of(workspace))
    stored_names = [stored_as.get(name, name) for name in columns]
    if not {*stored_names} <= {*workspace.lake.dataset(table, version).schema.names}:
        return None
    rows = pieces(workspace.lake, table, version, [*dict.fromkeys(stored_names)])
    return (_loaded(piece, dict(zip(columns, stored_names, strict=True))) for piece in rows)


def _loaded(rows: pa.RecordBatch, stored_as: Mapping[str, str]) -> pa.RecordBatch:
    instants = (c.T_FINAL, c.W_BEFORE)
    values = {name: rows[stored_name] for name, stored_name in stored_as.items()}
    return pa.RecordBatch.from_pydict(
        {name: value.cast(pa.int64()) if name in instants else value for name, value in values.items()}
    )


@dataclass(eq=False)
class RowsInPlace:
    """The events of a join as they lie: in the state, in the log, in a table.

    Attributes:
        parts: Their rows.
    """

    parts: list[Rows] = field(default_factory=list)
    _places: dict[int, Callable[[Array], Places]] = field(default_factory=dict)

    def add(self, origin: int, rows: Sequence[Rows], place_of: Callable[[Array], Places]) -> None:
        """Add the rows of the events that came in some segment, or of a table; `place_of` is asked for numbers."""
        start = sum(part.count for part in self.parts)
        self.parts += rows
        self._places[origin] = lambda seqs: start + place_of(seqs)

    def places(self, events: Events, some: Places) -> Places:
        """Return the places of some events among the rows of all parts."""
        places, origin = np.zeros(len(some), np.int64), events.origin[some]
        for number, place_of in self._places.items():
            is_of_it = origin == number
            places[is_of_it] = place_of(events.seq[some[is_of_it]])
        return places


@contextmanager
def rows_in_place(batch: Batch, join: JoinSpec, columns: Sequence[str]) -> Iterator[RowsInPlace]:
    """Yield the events of a join in a batch as they lie, with some of their columns."""
    joined, rows = batch.outcome.joined(join), RowsInPlace()
    events, workspace = joined.events, batch.workspace
    names = [name for name in columns if not name.startswith(joined.columns.right_prefix or "\0")]
    with ExitStack() as opened:

        def add_aside(origin: int, frame: DataFrame, names: Sequence[str]) -> None:
            narrow = frame.selectExpr(*map(quoted, [*names, c.SEQ]))
            aside = opened.enter_context(set_aside(narrow, workspace.folder, batch.amount))
            rows.add(origin, aside.parts, _finder(aside.narrow([c.SEQ])[c.SEQ].to_numpy()))

        if (events.origin == OF_EARLIER).any():
            earlier = None if joined.stored is not None else joined.earlier()
            if earlier is not None:
                add_aside(OF_EARLIER, earlier, names)
            else:
                _add_state(rows, batch, join, events, names)
        if (events.origin == OF_SEGMENT).any():
            first_seq, end_seq = batch.plan.first_seq, plan_end(batch.plan)
            if stored_columns(workspace, first_seq, end_seq, [*names, c.SEQ]) is None:
                add_aside(OF_SEGMENT, batch.items, names)
            else:
                read = partial(_read_log, batch, [*names, c.SEQ])
                rows.add(OF_SEGMENT, [Rows(end_seq - first_seq, read)], lambda seqs: seqs - first_seq)
        if joined.table is not None:
            add_aside(OF_TABLE, joined.table, [name for name in columns if name not in names])
        yield rows


def _finder(seqs: Array) -> Callable[[Array], Places]:
    order = np.argsort(seqs, kind="stable")
    ordered = seqs[order]
    return lambda numbers: order[np.searchsorted(ordered, numbers)]


def _add_state(rows: RowsInPlace, batch: Batch, join: JoinSpec, events: Events, columns: Sequence[str]) -> None:
    """Add the events of earlier batches as the table of the state has them, by number."""
    seqs = np.sort(events.seq[events.origin == OF_EARLIER])
    table = tables.joining_table(join.name)
    version = batch.workspace.base_of(table)

    def read(_span: range) -> Iterator[tuple[Places, pa.Table]]:
        for piece in pieces(batch.workspace.lake, table, version, [*dict.fromkeys([*columns, c.SEQ])]):
            yield np.searchsorted(seqs, piece[c.SEQ].to_numpy()), pa.Table.from_batches([piece])

    rows.add(OF_EARLIER, [Rows(len(seqs), read)], lambda numbers: np.searchsorted(seqs, numbers).astype(np.int64))


def _read_log(batch: Batch, columns: Sequence[str], span: range) -> Iterator[tuple[Places, pa.Table]]:
    first_seq = batch.plan.first_seq
    seqs = (first_seq + span.start, first_seq + span.stop)
    for piece in stored_columns(batch.workspace, *seqs, columns) or ():
        yield piece[c.SEQ].to_numpy() - first_seq, pa.Table.from_batches([piece])


def write_joining(batch: Batch, join: JoinSpec) -> None:
    """Write the events that a join needs after a batch."""
    table, outcome = tables.joining_table(join.name), batch.outcome
    is_plain = outcome.judged.stored is not None and batch.let_in is None and not batch.workspace.source_names
    joined = outcome.joined(join)
    if not is_plain:  # Spark computes the times and marks of the events
        needed = joining_events(joined.needed(), payload_of(batch.workspace), join)
        write_by_time(batch, table, needed, where=ALL_ROWS)
        return
    events, some, payload = joined.events, joined.still_needed, payload_of(batch.workspace)
    some = some[np.lexsort((events.seq[some], events.us[some]))]
    rows, batch_id = RowsInPlace(), pa.scalar(batch.plan.batch_id, pa.int64())
    _add_state(rows, batch, join, events, [*open_columns(payload), c.WATERMARK])
    first_seq, end_seq = batch.plan.first_seq, plan_end(batch.plan)
    read = partial(_read_judged, batch, events, some[events.is_fresh[some]])
    rows.add(OF_SEGMENT, [Rows(end_seq - first_seq, read)], lambda seqs: seqs - first_seq)
    by_rank: ByRank = {c.BATCH: lambda ranks: pa.repeat(batch_id, ranks.stop - ranks.start)}
    if join.is_interval:
        partner_column = has_partner_column(payload)
        by_rank = {**by_rank, partner_column: lambda ranks: pa.array(joined.has_partner[some[ranks]])}
    batch.replace_pieces(table, in_order(rows.parts, rows.places(events, some), by_rank), where=ALL_ROWS)


def _read_judged(batch: Batch, events: Events, some: Places, span: range) -> Iterator[tuple[Places, pa.Table]]:
    """Yield some events of the batch, as the log has them, with what was judged of them.

    All are plain: only rule 3 may have moved one, or kept it.
    """
    rules, some = batch.outcome.judged.rules, some[np.argsort(events.seq[some])]
    by = rules.event_times[0].timestamp_by
    time = c.ARRIVAL if by is None else by.strip("`")
    names = [*payload_of(batch.workspace).names, c.ARRIVAL, c.SEQ, c.SOURCE, c.SPLIT]
    moved = ["out_of_order" if rules.time.out_of_order == "adjust" else KEPT]
    marks = pa.array([[], moved], pa.list_(pa.string()))
    for _, rows in _read_log(batch, names, span):
        needed = rows.filter(pc.is_in(rows[c.SEQ], value_set=pa.array(events.seq[some])))
        seqs = needed[c.SEQ].to_numpy()
        event = some[np.searchsorted(events.seq[some], seqs)]
        met_us = nulled(events.met_us[event])
        columns = {
            c.TIMESTAMP: pa.array(events.us[event]),
            c.EVENT_TIME: needed[time],
            c.TIMELINE: events.names_of(event).cast(pa.string()),
            c.ADJUSTED_BY: marks.take(met_us.is_valid().cast(pa.int8())),
            c.WATERMARK: met_us,
        }
        for name, values in columns.items():
            needed = needed.append_column(name, values)
        yield seqs - batch.plan.first_seq, needed
