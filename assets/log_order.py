"""The order of the records of one ingestion: their numbers, their arrivals and the clock of the log.

Here: sorting the keys of all records, narrow columns, and the rows of `raw_events` in this order. Not here: reading
the records (resources/sources/), when they arrived and what an ingestion commits (ingestion.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.corrections import PLACE
from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.ordering import ByRank, Places, Rows, in_order
from tidemark.timeops import columns as c
from tidemark.timeops.narrow import integers
from tidemark.timeops.watermark.fold import NONE, Array

ARRIVAL_US = "__tm_arrival_us"
CAME_US = "__tm_came_us"
"""Where tables are read: when a version was committed, of files the arrival of the record."""
KEYS = (ARRIVAL_US, c.SOURCE, c.FILE, c.POSITION)
"""The columns that put records in order; where tables are read, CAME_US and PLACE are two more."""

_LAST = np.iinfo(np.int64).max  # of a key without a value, which comes after all others


@dataclass(frozen=True, eq=False)
class Records:
    """The records of an ingestion as they lie, and their keys.

    Attributes:
        parts: The records: payload columns, and the columns of the log that say where a record was read.
        arrival: Microseconds; NONE for none.
        source: The place of its source in `sources`.
        sources: Names of the sources.
        file: The place of its file among all names in the order of their bytes; -1 without a file.
        position: The place in the file.
        place: The place that a record takes; NONE for a new one. Empty where no tables are read.
        came: CAME_US; empty where no tables are read.
    """

    parts: Sequence[Rows]
    arrival: Array
    source: NDArray[np.int32]
    sources: Sequence[str]
    file: NDArray[np.int32]
    position: Array
    place: Array
    came: Array

    @staticmethod
    def of(parts: Sequence[Rows], keys: pa.Table) -> "Records":
        """Return the records with these keys, KEYS and more."""
        sources, source = _ranked(keys[c.SOURCE])
        of_tables = {name: integers(keys[name]) for name in (PLACE, CAME_US) if name in keys.column_names}
        none = np.zeros(0, np.int64)
        return Records(
            parts,
            integers(keys[ARRIVAL_US]),
            source,
            sources,
            _ranked(keys[c.FILE])[1],
            integers(keys[c.POSITION]),
            of_tables.get(PLACE, none),
            of_tables.get(CAME_US, none),
        )

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.arrival)

    @cached_property
    def are_new(self) -> NDArray[np.bool_]:
        """A flag for each record: it is new, and takes no other one's place."""
        return self.place == NONE if len(self.place) else np.ones(len(self), bool)

    def in_order(self, *, by_arrival: bool, from_us: int | None) -> Places:
        """Return the places of the records in the order of the log, without the ones that arrived before an instant.

        Where tables are read, the time of the version comes first, then the place that a record takes. Then they are
        in the order of arrival, untimed ones last, if the spec says so, and then by file and place there. Two sources
        may have files of one name.
        """
        keys = [self.position, self.source, self.file]
        keys += [_none_last(self.arrival)] if by_arrival else []
        keys += [_none_last(key) for key in (self.place, self.came) if len(key)]
        order: Places = np.lexsort(keys)
        if from_us is None:
            return order
        arrival = self.arrival[order]
        return np.asarray(order[(arrival == NONE) | (arrival >= from_us)])


def _none_last(key: Array) -> Array:
    return np.where(key == NONE, _LAST, key) if len(key) and key.min() == NONE else key


def _ranked(texts: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """Return different texts in the order of their bytes, and the place of each text among them; -1 for null."""
    chunks = texts.dictionary_encode().unify_dictionaries().chunks
    names = chunks[0].dictionary.to_pylist() if chunks else []
    ranks = np.empty(len(names) + 1, np.int32)
    order = sorted(range(len(names)), key=lambda number: names[number].encode())
    ranks[order], ranks[-1] = np.arange(len(names)), -1
    indices = [np.asarray(pc.fill_null(chunk.indices, len(names))) for chunk in chunks]
    return [names[number] for number in order], ranks[np.concatenate([np.zeros(0, np.int32), *indices])]


@dataclass(frozen=True, eq=False)
class NumberedLog:
    """Records in the order of the log; instants are microseconds, NONE for none.

    Attributes:
        records: All that were read.
        order: The places of the ones that enter the log, in its order.
        first_seq: The `_arrival_seq` of the first.
        before_us: The clock of the log before them; None for none.
    """

    records: Records
    order: Places
    first_seq: int
    before_us: int | None

    def __len__(self) -> int:
        """Return how many records enter the log."""
        return len(self.order)

    @cached_property
    def arrival(self) -> Array:
        """The arrival of each."""
        return self.records.arrival[self.order]

    @cached_property
    def clock(self) -> Array:
        """The clock of the log at each: the latest arrival so far."""
        start = NONE if self.before_us is None else self.before_us
        return np.maximum(np.maximum.accumulate(self.arrival), start)

    @property
    def last_clock_us(self) -> int | None:
        """The clock of the log after them."""
        return int(self.clock[-1]) if len(self) and self.clock[-1] != NONE else self.before_us

    @property
    def first_clock_us(self) -> int | None:
        """The first clock of the log at one of them."""
        timed = self.clock[self.clock != NONE]
        return int(timed[0]) if len(timed) else None

    def last_arrivals(self) -> Mapping[str, int]:
        """Return the latest arrival of new records by source, where there is one."""
        of_source = self.records.source[self.order]
        counts = (self.arrival != NONE) & self.records.are_new[self.order]
        last = {name: self.arrival[counts & (of_source == s)] for s, name in enumerate(self.records.sources)}
        return {name: int(arrivals.max()) for name, arrivals in last.items() if len(arrivals)}

    def taken(self) -> pa.Table:
        """Return the records in the places of others: `_source`, `_arrival_seq`, PLACE."""
        own = np.flatnonzero(~self.records.are_new[self.order])
        at = self.order[own]
        names = pa.array(self.records.sources, pa.string()).take(pa.array(self.records.source[at]))
        places = self.records.place[at] if len(self.records.place) else np.zeros(0, np.int64)
        return pa.table({c.SOURCE: names, c.SEQ: self.first_seq + own, PLACE: places})

    def pieces(self, batch_id: int) -> list[Piece]:
        """Return the rows of `raw_events`."""
        columns: ByRank = {
            c.SEQ: lambda own: pa.array(self.first_seq + np.arange(own.start, own.stop)),
            c.ARRIVAL: lambda own: _instants(self.arrival[own]),
            c.CLOCK: lambda own: _instants(self.clock[own]),
            c.BATCH: lambda own: pa.repeat(pa.scalar(batch_id, pa.int64()), own.stop - own.start),
        }
        return in_order(self.records.parts, self.order, columns)


def _instants(us: Array) -> pa.Array:
    return pa.array(us, mask=us == NONE)
