"""The log as control items have changed it: records that are not part of it, and records in the places of others.

Here: which these are, the log as it is with them, and the clock that it has then. Not here: deciding on it
(assets/rebuild/decisions/rejudging.py, assets/log/corrections.py).

A record that takes the place of another one is judged there, with the number, the arrival and the clock of that
place; where it was read it is not part of the log.

The clock of a record is stored as it was read. A record with a wrong arrival may have moved it, so without that
record the clock of later ones is computed again: the largest arrival so far, of records that count and of ticks.
Records that are forgotten were right, and their arrivals stay: they leave the log, and its clock is as it was.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log.control import (
    ADMIT,
    CORRECTION,
    EXCLUDE,
    FORGET,
    FUTURE_ARRIVAL,
    INCLUDE,
    REFUSE,
    TICK,
    recorded,
)
from tidemark.assets.log.retention import ensure_in_log, removed_log
from tidemark.assets.schemas import as_declared, payload_of
from tidemark.resources import tables
from tidemark.resources.batches.plans import FIRST_CLOCK, LAST_ARRIVAL, LOG_CLOCK
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import utf8_sql
from tidemark.timeops.narrow import to_join
from tidemark.timeops.values.instants import NONE, no_numbers
from tidemark.timeops.values.utc import us_of

Numbers = NDArray[np.int64]
FEW_BYTES = 256_000_000
"""Records of no more bytes are read by this process for Spark."""

CHANGES_LOG = (EXCLUDE, INCLUDE, CORRECTION, FORGET, FUTURE_ARRIVAL)
"""Kinds of the control items that change which records are part of the log, or how they arrived."""

_FEW = 1_000  # numbers that a condition may name
PRESENT_CLOCK = "__tm_clock"
_RECORD = "__tm_record"
_OF_PLACE = (c.SEQ, c.ARRIVAL, c.CLOCK)
"""The columns that a record has from the place where it is judged."""
_SHOWN_OTHERWISE = (c.SEQ, c.CLOCK, c.SOURCE, c.SPLIT)
"""The number of a record, and the columns in which it is not always as it is stored."""


@dataclass(frozen=True, eq=False)
class Excluded:
    """The changes that control items make to the log.

    Attributes:
        by_hand: The records that an operator has taken out, in order.
        corrected: The records that corrections bring, and the records that took a place: they are not part of the log
            at the place where they were read. In order.
        places: The places that hold another record now, in order.
        records: The records in the log, by place.
        forgotten: The places whose records are forgotten: they cannot be taken back. In order.
        ahead: The places whose records arrived ahead of the machine's clock, and so at their ingestion. In order.
        clock_until: Records before this one may have a stored clock that is not the clock of the present records.
    """

    by_hand: Numbers = field(default_factory=no_numbers)
    corrected: Numbers = field(default_factory=no_numbers)
    places: Numbers = field(default_factory=no_numbers)
    records: Numbers = field(default_factory=no_numbers)
    forgotten: Numbers = field(default_factory=no_numbers)
    ahead: Numbers = field(default_factory=no_numbers)
    clock_until: int = 0

    @cached_property
    def seqs(self) -> Numbers:
        """The places that have no record, in order."""
        return np.union1d(self.without_arrival, self.forgotten)

    @cached_property
    def without_arrival(self) -> Numbers:
        """The places that have no record whose arrival counts, in order."""
        return np.union1d(self.by_hand, self.corrected)

    def after(self, item: Mapping[str, Any]) -> "Excluded":
        """Return what is changed after one more item."""
        argument = json.loads(item["argument"])
        seqs, kind = numbers_in(argument["records"]), item["kind"]
        if kind == FUTURE_ARRIVAL:
            return replace(self, ahead=np.union1d(self.ahead, seqs))
        if kind == FORGET:
            return replace(self, forgotten=np.union1d(self.forgotten, seqs))
        until = max(self.clock_until, int(item["_after_seq"]) + 1 if argument["moved_clock"] else 0)
        if kind != CORRECTION:
            by_hand = (np.union1d if kind == EXCLUDE else np.setdiff1d)(self.by_hand, seqs)
            return replace(self, by_hand=by_hand, clock_until=until)
        places, records = pairs_in(argument["replaced"])
        corrected = np.union1d(self.corrected, np.concatenate([seqs, records]))
        stays = ~np.isin(self.places, np.concatenate([seqs, places]))
        all_places = np.concatenate([self.places[stays], places])
        order = np.argsort(all_places, kind="stable")
        all_records = np.concatenate([self.records[stays], records])
        by_place = {"places": all_places[order], "records": all_records[order]}
        return replace(self, corrected=corrected, clock_until=until, **by_place)

    def is_taken(self, first_seq: int, end_seq: int) -> bool:
        """Return whether a place from one number on and before another has another record than the one read there."""
        first, end = np.searchsorted(self.places, [first_seq, end_seq])
        return bool(first < end)

    def places_of(self, records: Numbers) -> Numbers:
        """Return the places at which records are judged, in order; some records have left the log."""
        moved = self.places[np.isin(self.records, records)]
        left = np.setdiff1d(records, np.concatenate([self.corrected, self.places]))
        return np.union1d(left, moved)

    def between(self, first_seq: int, end_seq: int) -> Numbers:
        """Return the numbers from one on and before another."""
        first, end = np.searchsorted(self.seqs, [first_seq, end_seq])
        return self.seqs[first:end]

    def ahead_between(self, first_seq: int, end_seq: int) -> Numbers:
        """Return the places of `ahead` from one number on and before another."""
        first, end = np.searchsorted(self.ahead, [first_seq, end_seq])
        return self.ahead[first:end]

    def concerns(self, first_seq: int, end_seq: int) -> bool:
        """Return whether they change a part of the log."""
        return first_seq < self.clock_until or len(self.between(first_seq, end_seq)) > 0


def items_of(workspace: Workspace, *kinds: str) -> list[Mapping[str, Any]]:
    """Return the decisions on records in force, of some kinds, in order; by default of all kinds."""
    kinds = kinds or (*CHANGES_LOG, ADMIT, REFUSE)
    decided = [item for item in workspace.decided if item["kind"] in kinds]
    return [*recorded(workspace.log_of or workspace, *kinds), *decided]


def excluded(workspace: Workspace) -> Excluded:
    """Return what control items have changed of the log."""
    return excluded_by(items_of(workspace, *CHANGES_LOG)) if workspace.exists or workspace.log_of else Excluded()


def excluded_by(items: Iterable[Mapping[str, Any]]) -> Excluded:
    """Return what some items change of the log."""
    return reduce(Excluded.after, items, Excluded())


def numbers_in(ranges: Sequence[Sequence[int]]) -> Numbers:
    """Return the numbers that ranges hold, each with its first and its last."""
    return np.concatenate([no_numbers(), *(np.arange(first, last + 1, dtype=np.int64) for first, last in ranges)])


def records_of(item: Mapping[str, Any]) -> Numbers:
    """Return the records that a control item decides on."""
    return numbers_in(json.loads(item["argument"])["records"])


def ranges_of(numbers: Numbers) -> list[list[int]]:
    """Return numbers in order as ranges, each with its first and its last."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    return [[int(first), int(last)] for first, last in zip(firsts, lasts, strict=True)]


def pairs_of(places: Numbers, records: Numbers) -> list[list[int]]:
    """Return places and their records as runs of both, each with its first place, first record and length."""
    if not len(places):
        return []
    firsts = np.r_[0, np.flatnonzero((np.diff(places) != 1) | (np.diff(records) != 1)) + 1]
    lengths = np.diff(np.r_[firsts, len(places)])
    runs = zip(places[firsts], records[firsts], lengths, strict=True)
    return [[int(place), int(record), int(length)] for place, record, length in runs]


def pairs_in(runs: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Return the places and the records of runs."""
    places = [np.arange(place, place + length, dtype=np.int64) for place, _, length in runs]
    records = [np.arange(record, record + length, dtype=np.int64) for _, record, length in runs]
    return np.concatenate([no_numbers(), *places]), np.concatenate([no_numbers(), *records])


def records_under(workspace: Workspace, changes: Excluded, first_seq: int, end_seq: int) -> DataFrame:
    """Return the records of a part of the log as it is under some changes."""
    records = _stored(workspace, first_seq, end_seq)
    excluded_seqs = changes.between(first_seq, end_seq)
    begin, end = np.searchsorted(changes.places, [first_seq, end_seq])
    places, replacement_seqs = changes.places[begin:end], changes.records[begin:end]
    if len(places):
        moved = pa.table({c.SEQ: places, _RECORD: replacement_seqs})
        of_places = records.select(*_OF_PLACE).join(to_join(workspace.spark, moved), c.SEQ)
        stored = _stored(workspace, int(replacement_seqs.min()), int(replacement_seqs.max()) + 1)
        replacements = stored.withColumnRenamed(c.SEQ, _RECORD).drop(c.ARRIVAL, c.CLOCK).join(of_places, _RECORD)
        records = without(workspace, records, places).unionByName(replacements.select(*map(quoted, records.columns)))
    return without(workspace, records, excluded_seqs)


def _stored(workspace: Workspace, first_seq: int, end_seq: int) -> DataFrame:
    """Return records as they were read, from one number on and before another; files without any are not opened."""
    ensure_in_log(workspace, first_seq, end_seq)
    return _as_of_now(workspace, workspace.read_base(tables.RAW_EVENTS, filters=_part(first_seq, end_seq)))


def _as_of_now(workspace: Workspace, records: DataFrame) -> DataFrame:
    """Return records that another spec may have read: sources with their present names, columns and types of now."""
    if names := workspace.source_names:
        records = records.withColumn(c.SOURCE, c.named(c.SOURCE, names))
    if any(source.split is not None for source in workspace.spec.sources):
        # Earlier versions took bytes for a split, and stored them as they are.
        records = records.withColumn(c.SPLIT, F.expr(utf8_sql(c.SPLIT)))
    if workspace.log_of is None:
        return records
    return as_declared(records, payload_of(workspace), workspace.rules.sources[0].time_zone)


def without(workspace: Workspace, records: DataFrame, numbers: Numbers) -> DataFrame:
    """Return records of the log without the ones with some numbers."""
    if 0 < len(numbers) <= _FEW:
        return records.where(~F.col(c.SEQ).isin([int(seq) for seq in numbers]))
    if len(numbers):
        return records.join(to_join(workspace.spark, pa.table({c.SEQ: numbers})), c.SEQ, "left_anti")
    return records


def records_between(workspace: Workspace, first_seq: int, end_seq: int) -> DataFrame:
    """Return the records of the log from one number on and before another, as it is with all that was decided."""
    out = excluded(workspace)
    records = _with_clock(workspace, records_under(workspace, out, first_seq, end_seq), out, first_seq, end_seq)
    return _with_marks(workspace, records, out.ahead_between(first_seq, end_seq))


def some_records(
    workspace: Workspace, first_seq: int, end_seq: int, seqs: Numbers, columns: Collection[str] | None = None
) -> DataFrame | None:
    """Return some of these records, which Arrow finds in a fraction of the time that Spark takes.

    None where they are too large for the memory of this process, or others have taken the places of some. `columns`
    are the ones that the caller asks for, by default all: Arrow reads them of every record, 100,000 and more at once.
    """
    out = excluded(workspace)
    if out.is_taken(first_seq, end_seq):
        return None
    ensure_in_log(workspace, first_seq, end_seq)
    lake, table, sought = workspace.lake, tables.RAW_EVENTS, np.sort(seqs)
    version = workspace.base_of(table)
    schema: pa.Schema = lake.dataset(table, version).schema
    if columns is not None:
        schema = pa.schema([column for column in schema if column.name in {*columns, *_SHOWN_OTHERWISE}])
    rows, size = list[pa.RecordBatch](), 0
    for piece in pieces(lake, table, version, schema.names, _part(first_seq, end_seq)) if len(sought) else ():
        piece_seqs = piece[c.SEQ].to_numpy()
        begin, end = np.searchsorted(sought, [piece_seqs.min(), piece_seqs.max() + 1]) if len(piece_seqs) else (0, 0)
        rows.append(piece.filter(pa.array(np.isin(piece_seqs, sought[begin:end]))))
        size += rows[-1].nbytes
        if size > FEW_BYTES:
            return None
    records = _as_of_now(workspace, lake.frame(table, pa.Table.from_batches(rows, schema)))
    records = without(workspace, records, out.between(first_seq, end_seq))
    records = _with_clock(workspace, records, out, first_seq, end_seq)
    return _with_marks(workspace, records, out.ahead_between(first_seq, end_seq))


def stored_columns(
    workspace: Workspace, first_seq: int, end_seq: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch] | None:
    """Return columns of these records, piece by piece; None where the log is not as it is stored."""
    out, version = excluded(workspace), workspace.base_of(tables.RAW_EVENTS)
    is_changed = out.concerns(first_seq, end_seq) or out.is_taken(first_seq, end_seq)
    is_changed = is_changed or len(out.ahead_between(first_seq, end_seq)) > 0
    if is_changed or workspace.log_of is not None or workspace.source_names:
        return None
    if not {*columns} <= {*workspace.lake.dataset(tables.RAW_EVENTS, version).schema.names}:
        return None
    return pieces(workspace.lake, tables.RAW_EVENTS, version, columns, _part(first_seq, end_seq))


def _with_marks(workspace: Workspace, records: DataFrame, ahead: Numbers) -> DataFrame:
    """Return records with ARRIVED_AHEAD, if that is so of some."""
    if not len(ahead):
        return records
    marks = to_join(workspace.spark, pa.table({c.SEQ: ahead, c.ARRIVED_AHEAD: np.ones(len(ahead), bool)}))
    marked = records.join(marks, c.SEQ, "left").select(*map(quoted, records.columns), c.ARRIVED_AHEAD)
    return marked.withColumn(c.ARRIVED_AHEAD, F.coalesce(c.ARRIVED_AHEAD, F.lit(False)))


def _with_clock(workspace: Workspace, records: DataFrame, out: Excluded, first_seq: int, end_seq: int) -> DataFrame:
    if first_seq >= out.clock_until:
        return records
    clocks = from_driver(workspace.spark, clocks_of(workspace, first_seq, min(end_seq, out.clock_until), out))
    clock = F.when(F.col(c.SEQ) < out.clock_until, F.col(PRESENT_CLOCK)).otherwise(F.col(c.CLOCK))
    return records.join(clocks, c.SEQ, "left").withColumn(c.CLOCK, clock).select(*records.columns)


def clocks_of(workspace: Workspace, first_seq: int, end_seq: int, out: Excluded) -> pa.Table:
    """Return `_arrival_seq` and PRESENT_CLOCK of the records in a part of the log whose arrivals count."""
    before_us = clock_before(workspace, first_seq, out)
    seqs, arrivals = _that_count(arrivals_of(workspace, first_seq, end_seq), out)
    start = np.array([NONE if before_us is None else before_us])
    clocks = np.maximum.accumulate(np.concatenate([start, arrivals]))[1:]
    present = pa.array(clocks, mask=clocks == NONE).cast(pa.timestamp("us", "UTC"))
    return pa.table({c.SEQ: seqs, PRESENT_CLOCK: present})


def clock_before(workspace: Workspace, seq: int, out: Excluded) -> int | None:
    """Return the clock of the log before a record, microseconds; None before the first record with an arrival."""
    ticks = recorded(workspace.log_of or workspace, TICK)
    clocks_us = [us_of(item["clock"]) for item in ticks if item["_after_seq"] < seq]
    removed = removed_log(workspace)
    clocks_us += [] if removed is None else [removed.clock_us]
    for piece in _pieces(workspace, 0 if removed is None else removed.before_seq, seq):
        arrivals = _that_count(piece, out)[1]
        clocks_us += [int(arrivals.max())] if len(arrivals) else []
    return max((us for us in clocks_us if us != NONE), default=None)


def log_clocks(workspace: Workspace) -> dict[str, Any]:
    """Return the clocks of the whole log as it is without what is excluded, by the names that `Workspace` knows."""
    out, end, names = excluded(workspace), workspace.progress.log_end(), workspace.source_names
    first: tuple[int, int] | None = None
    last: dict[str, tuple[int, int]] = {}
    for piece in _pieces(workspace, 0, end, c.SOURCE):
        timed = piece.filter(pc.is_valid(piece[c.ARRIVAL]))
        for stored in pc.unique(timed[c.SOURCE]).to_pylist():
            records, name = timed.filter(pc.equal(timed[c.SOURCE], stored)), names.get(stored, stored)
            seqs, arrivals = _that_count(records, out)
            if len(seqs):
                begin, end_of = int(seqs.argmin()), int(seqs.argmax())
                first = min(filter(None, (first, (int(seqs[begin]), int(arrivals[begin])))))
                last[name] = max(last.get(name, (-1, 0)), (int(seqs[end_of]), int(arrivals[end_of])))
    return {
        LOG_CLOCK: clock_before(workspace, end, out),
        FIRST_CLOCK: first[1] if first else None,
        LAST_ARRIVAL: {name: us for name, (_, us) in last.items()},
    }


def _that_count(records: pa.Table | pa.RecordBatch, out: Excluded) -> tuple[Numbers, Numbers]:
    """Return numbers and arrivals of the records whose arrivals count."""
    seqs = np.asarray(records[c.SEQ])
    stays = ~np.isin(seqs, out.without_arrival)
    arrivals = np.asarray(records[c.ARRIVAL].cast(pa.int64()).fill_null(NONE))
    return seqs[stays], arrivals[stays]


def moved_clock(workspace: Workspace, numbers: Numbers) -> bool:
    """Return whether one of some records has moved the clock of the log, as it is stored."""
    records = arrivals_of(workspace, int(numbers[0]), int(numbers[-1]) + 1, c.CLOCK)
    chosen = records.filter(pa.array(np.isin(records[c.SEQ].to_numpy(), numbers)))
    return bool((chosen[c.ARRIVAL].cast(pa.int64()).to_numpy() == chosen[c.CLOCK].cast(pa.int64()).to_numpy()).any())


def arrivals_of(workspace: Workspace, first_seq: int, end_seq: int, *columns: str) -> pa.Table:
    """Return number and arrival of each record in a part of the log, and more columns, in order."""
    schema = workspace.lake.dataset(tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS)).schema
    schema = pa.schema([schema.field(name) for name in (c.SEQ, c.ARRIVAL, *columns)])
    return pa.Table.from_batches([*_pieces(workspace, first_seq, end_seq, *columns)], schema).sort_by(c.SEQ)


def _pieces(workspace: Workspace, first_seq: int, end_seq: int, *columns: str) -> Iterator[pa.RecordBatch]:
    ensure_in_log(workspace, first_seq, end_seq)
    version = workspace.base_of(tables.RAW_EVENTS)
    return pieces(workspace.lake, tables.RAW_EVENTS, version, [c.SEQ, c.ARRIVAL, *columns], _part(first_seq, end_seq))


def _part(first_seq: int, end_seq: int) -> Filters:
    return [(c.SEQ, ">=", first_seq), (c.SEQ, "<", end_seq)]
