"""Records that are no part of the log: control items exclude them, and others include them again.

Here: which these are, the log without them, and the clock that it has then. Not here: deciding on it
(rebuild/rejudging.py).

The clock of a record is stored as it was read. A record with a wrong arrival may have moved it, so without that
record the clock of later ones is computed again: the largest arrival so far, of records that count and of ticks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log_control import EXCLUDE, INCLUDE, TICK, recorded
from tidemark.resources import tables
from tidemark.resources.lake.queries import pieces
from tidemark.resources.workspace import FIRST_CLOCK, LAST_ARRIVAL, LOG_CLOCK, Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.materialize import from_driver
from tidemark.timeops.narrow import to_join
from tidemark.timeops.utc import us_of

Numbers = NDArray[np.int64]
_NONE = np.iinfo(np.int64).min
_FEW = 1_000  # numbers that a condition may name
_CLOCK = "__tm_clock"


def _no_numbers() -> Numbers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Excluded:
    """The records that are excluded.

    Attributes:
        seqs: Their numbers, in order.
        clock_until: Records before this one may have a stored clock that does not go by them as they are now.
    """

    seqs: Numbers = field(default_factory=_no_numbers)
    clock_until: int = 0

    def between(self, first_seq: int, end_seq: int) -> Numbers:
        """Return those from one number on and before another."""
        first, end = np.searchsorted(self.seqs, [first_seq, end_seq])
        return self.seqs[first:end]

    def concerns(self, first_seq: int, end_seq: int) -> bool:
        """Whether a part of the log is another one with them."""
        return first_seq < self.clock_until or len(self.between(first_seq, end_seq)) > 0


def items_of(workspace: Workspace) -> list[Mapping[str, Any]]:
    """Return the control items in force that exclude or include records, in order."""
    return [*recorded(workspace.log_of or workspace, EXCLUDE, INCLUDE), *workspace.decided]


def excluded(workspace: Workspace) -> Excluded:
    """Return the records that are no part of the log."""
    return excluded_by(items_of(workspace)) if workspace.exists or workspace.log_of else Excluded()


def excluded_by(items: Iterable[Mapping[str, Any]]) -> Excluded:
    """Return the records that are excluded after some items."""
    found = Excluded()
    for item in items:
        said = json.loads(item["argument"])
        these = numbers_in(said["records"])
        seqs = np.union1d(found.seqs, these) if item["kind"] == EXCLUDE else np.setdiff1d(found.seqs, these)
        until = int(item["_after_seq"]) + 1 if said["moved_clock"] else 0
        found = Excluded(seqs, max(found.clock_until, until))
    return found


def numbers_in(ranges: Sequence[Sequence[int]]) -> Numbers:
    """Return the numbers that ranges hold, each with its first and its last."""
    return np.concatenate([_no_numbers(), *(np.arange(first, last + 1, dtype=np.int64) for first, last in ranges)])


def ranges_of(numbers: Numbers) -> list[list[int]]:
    """Return numbers in order as ranges, each with its first and its last."""
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    return [[int(first), int(last)] for first, last in zip(firsts, lasts, strict=True)]


def without_excluded(workspace: Workspace, records: DataFrame, first_seq: int, end_seq: int) -> DataFrame:
    """Return records of a part of the log without those that are excluded, with the clock that it has then."""
    out = excluded(workspace)
    gone = out.between(first_seq, end_seq)
    if 0 < len(gone) <= _FEW:
        records = records.where(~F.col(c.SEQ).isin([int(seq) for seq in gone]))
    elif len(gone):
        records = records.join(to_join(workspace.spark, pa.table({c.SEQ: gone})), c.SEQ, "left_anti")
    if first_seq >= out.clock_until:
        return records
    clocks = from_driver(workspace.spark, _clocks(workspace, first_seq, min(end_seq, out.clock_until), out))
    clock = F.when(F.col(c.SEQ) < out.clock_until, F.col(_CLOCK)).otherwise(F.col(c.CLOCK))
    return records.join(clocks, c.SEQ, "left").withColumn(c.CLOCK, clock).select(*records.columns)


def _clocks(workspace: Workspace, first_seq: int, end_seq: int, out: Excluded) -> pa.Table:
    """Return the clock at each record of a part of the log that is not excluded."""
    before_us = clock_before(workspace, first_seq, out)
    seqs, arrivals = _arrivals(workspace, first_seq, end_seq, out)
    start = np.array([_NONE if before_us is None else before_us])
    clocks = np.maximum.accumulate(np.concatenate([start, arrivals]))[1:]
    known = pa.array(clocks, mask=clocks == _NONE).cast(pa.timestamp("us", "UTC"))
    return pa.table({c.SEQ: seqs, _CLOCK: known})


def clock_before(workspace: Workspace, seq: int, out: Excluded) -> int | None:
    """Return the clock of the log before a record, microseconds; None before the first record with an arrival."""
    ticks = recorded(workspace.log_of or workspace, TICK)
    reached = [us_of(item["clock"]) for item in ticks if item["_after_seq"] < seq]
    for piece in _pieces(workspace, 0, seq):
        arrivals = _that_count(piece, out)[1]
        reached += [int(arrivals.max())] if len(arrivals) else []
    return max((us for us in reached if us != _NONE), default=None)


def log_clocks(workspace: Workspace) -> dict[str, Any]:
    """Return the clocks of the whole log as it is without what is excluded, by the names that `Workspace` knows."""
    out, end = excluded(workspace), workspace.log_end()
    first: tuple[int, int] | None = None
    last: dict[str, tuple[int, int]] = {}
    for piece in _pieces(workspace, 0, end, c.SOURCE):
        timed = piece.filter(pc.is_valid(piece[c.ARRIVAL]))
        for name in pc.unique(timed[c.SOURCE]).to_pylist():
            own = timed.filter(pc.equal(timed[c.SOURCE], name))
            seqs, arrivals = _that_count(own, out)
            if len(seqs):
                begin, end_of = int(seqs.argmin()), int(seqs.argmax())
                first = min(filter(None, (first, (int(seqs[begin]), int(arrivals[begin])))))
                last[name] = max(last.get(name, (-1, 0)), (int(seqs[end_of]), int(arrivals[end_of])))
    return {
        LOG_CLOCK: clock_before(workspace, end, out),
        FIRST_CLOCK: first[1] if first else None,
        LAST_ARRIVAL: {name: us for name, (_, us) in last.items()},
    }


def _arrivals(workspace: Workspace, first_seq: int, end_seq: int, out: Excluded) -> tuple[Numbers, Numbers]:
    """Return numbers and arrivals of the records of a part of the log that are not excluded, in order."""
    return _that_count(arrivals_of(workspace, first_seq, end_seq), out)


def _that_count(records: pa.Table | pa.RecordBatch, out: Excluded) -> tuple[Numbers, Numbers]:
    seqs = np.asarray(records[c.SEQ])
    kept = ~np.isin(seqs, out.seqs)
    arrivals = np.asarray(records[c.ARRIVAL].cast(pa.int64()).fill_null(_NONE))
    return seqs[kept], arrivals[kept]


def arrivals_of(workspace: Workspace, first_seq: int, end_seq: int, *more: str) -> pa.Table:
    """Return number and arrival of each record of a part of the log, and more columns, in order."""
    columns = [c.SEQ, c.ARRIVAL, *more]
    schema = workspace.lake.dataset(tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS)).schema
    found = [*_pieces(workspace, first_seq, end_seq, *more)]
    return pa.Table.from_batches(found, pa.schema([schema.field(name) for name in columns])).sort_by(c.SEQ)


def _pieces(workspace: Workspace, first_seq: int, end_seq: int, *more: str) -> Iterator[pa.RecordBatch]:
    version, part = workspace.base_of(tables.RAW_EVENTS), [(c.SEQ, ">=", first_seq), (c.SEQ, "<", end_seq)]
    return pieces(workspace.lake, tables.RAW_EVENTS, version, [c.SEQ, c.ARRIVAL, *more], part)
