"""The order of the records of one ingestion: their numbers, their arrivals and the clock of the log.

Here: sorting the keys of all records, narrow columns, and the rows of `raw_events` in this order. Not here: reading
the records (resources/sources/), when they arrived and what an ingestion commits (raw_events.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.log.corrections import PLACE
from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.ordering import ByRank, Places, Rows, in_order
from tidemark.resources.sources.file_records import PlainFile
from tidemark.timeops import columns as c
from tidemark.timeops.values.instants import NONE, Array, integers, no_numbers

ARRIVAL_US = "__tm_arrival_us"
CAME_US = "__tm_came_us"
"""Where tables are read: when a version was committed; null for other records, which come when they arrive."""
KEYS = (ARRIVAL_US, c.SOURCE, c.FILE, c.POSITION)
"""The columns that put records in order; where tables are read, CAME_US and PLACE are two more."""
_TEXTS = (c.SOURCE, c.FILE)

_LAST = np.iinfo(np.int64).max  # of a key without a value, which comes after all others


def no_keys(names: Sequence[str]) -> pa.Table:
    """Return the keys of no record."""
    return pa.schema([(name, pa.string() if name in _TEXTS else pa.int64()) for name in names]).empty_table()


@dataclass(frozen=True, eq=False)
class Records:
    """The records of an ingestion as they lie, and their keys.

    Attributes:
        parts: The records: payload columns, and the columns of the log that say where a record was read.
        by_file: Where they lie, in the order of file, source and position there.
        arrival: Microseconds; NONE for none.
        source: The place of its source in `sources`.
        sources: Names of the sources.
        place: The place that a record takes; NONE for a new one. Empty where no tables are read.
        version_time_us: CAME_US; empty where no tables are read.
        ahead: The records, by where they lie, that arrived too far ahead of the machine's clock, and so arrive now.
        ahead_us: How far ahead each of them was.
    """

    parts: Sequence[Rows]
    by_file: Places
    arrival: Array
    source: NDArray[np.int16]
    sources: Sequence[str]
    place: Array = field(default_factory=no_numbers)
    version_time_us: Array = field(default_factory=no_numbers)
    ahead: Places = field(default_factory=no_numbers)
    ahead_us: Array = field(default_factory=no_numbers)

    @staticmethod
    def of(files: Sequence[PlainFile], parts: Sequence[Rows], keys: pa.Table) -> "Records":
        """Return the records of files, which lie in order there, and after them others with KEYS and more."""
        files = sorted(files, key=lambda file: (file.name.encode(), file.source.encode(), file.before))
        counts = [len(file.arrival) for file in files]
        # Only the first record of a file is sorted among the others: they are all before it or after its last one.
        runs = np.concatenate([counts, np.ones(len(keys), np.int64)]).astype(np.int64)
        sources, source = _ranked_texts(pa.array([file.source for file in files], pa.string()), keys[c.SOURCE])
        _, name = _ranked_texts(pa.array([file.name for file in files], pa.string()), keys[c.FILE])
        position = np.concatenate(
            [np.array([file.before + 1 for file in files], np.int64), integers(keys[c.POSITION])]
        )
        of_tables = {
            key: np.concatenate([np.full(sum(counts), NONE), integers(keys[key])])
            for key in (PLACE, CAME_US)
            if key in keys.column_names
        }
        return Records(
            [*(file.rows for file in files), *parts],
            _lined_up(np.lexsort([position, source, name]), runs),
            np.concatenate([*(file.arrival for file in files), integers(keys[ARRIVAL_US])]),
            np.repeat(source.astype(np.int16), runs),
            sources,
            of_tables.get(PLACE, no_numbers()),
            of_tables.get(CAME_US, no_numbers()),
        )

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.arrival)

    @cached_property
    def are_new(self) -> NDArray[np.bool_]:
        """True of a record that is new, and takes no other one's place."""
        return self.place == NONE if len(self.place) else np.ones(len(self), bool)

    def arrived_by(self, now_us: int, most_us: Mapping[str, int | None]) -> "Records":
        """Return the records as they arrive: one that is too far ahead of the machine's clock arrives now.

        A record that takes a place has its arrival too, whenever that is.

        Args:
            now_us: The machine's clock.
            most_us: By source, how far ahead of it a record may arrive; None for any distance.
        """
        if self.arrival.max(initial=NONE) <= now_us:
            return self
        bounds = np.array([_LAST if (us := most_us[name]) is None else now_us + us for name in self.sources])
        ahead = np.flatnonzero((self.arrival > bounds[self.source]) & self.are_new)
        arrival = self.arrival.copy()
        arrival[ahead] = now_us
        return replace(self, arrival=arrival, ahead=ahead, ahead_us=self.arrival[ahead] - now_us)

    def order_in_log(self, *, by_arrival: bool, from_us: int | None) -> Places:
        """Return the places of the records in the order of the log, without the ones before an instant.

        Where tables are read, the time of the version comes first, then the place that a record takes. Then they are
        in the order of arrival, untimed ones last, if the spec says so, and then by file and place there. Two sources
        may have files of one name.
        """
        keys = [_none_last(self.arrival)] if by_arrival else []
        if len(self.place):
            keys += [
                _none_last(self.place),
                np.where(self.version_time_us == NONE, _none_last(self.arrival), self.version_time_us),
            ]
        order = _sorted(self.by_file, keys)
        if from_us is None:
            return order
        arrival = self.arrival[order]
        return np.asarray(order[(arrival == NONE) | (arrival >= from_us)])


def _lined_up(order: Places, counts: Array) -> Places:
    """Return the places of runs of records, one run after the other, in an order of the runs."""
    small = np.int32 if counts.sum() <= np.iinfo(np.int32).max else np.int64
    begins, counts = (np.cumsum(counts) - counts)[order], counts[order]
    places = np.repeat((begins - (np.cumsum(counts) - counts)).astype(small), counts)
    places += np.arange(len(places), dtype=small)
    return places


def _sorted(places: Places, keys: Sequence[Array]) -> Places:
    """Return the places of records in the order of keys, the last key first; ties stay as they are."""
    in_turn = [key[places] for key in keys]
    are_sorted = not keys or (len(keys) == 1 and bool((in_turn[0][1:] >= in_turn[0][:-1]).all()))
    return places if are_sorted else places[np.lexsort(in_turn)]


def _none_last(key: Array) -> Array:
    return np.where(key == NONE, _LAST, key) if len(key) and key.min() == NONE else key


def _ranked_texts(first: pa.Array, other_texts: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """Return different texts in the order of their bytes, and the place of each text among them; -1 for null."""
    texts = pa.chunked_array([first.dictionary_encode(), *other_texts.dictionary_encode().chunks])
    chunks = texts.unify_dictionaries().chunks
    names = chunks[0].dictionary.to_pylist()
    ranks = np.empty(len(names) + 1, np.int32)
    order = sorted(range(len(names)), key=lambda number: names[number].encode())
    ranks[order], ranks[-1] = np.arange(len(names)), -1
    indices = [np.asarray(pc.fill_null(chunk.indices, len(names))) for chunk in chunks]
    return [names[number] for number in order], ranks[np.concatenate(indices)]


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
    def clock(self) -> Array:
        """The clock of the log at each: the latest arrival so far."""
        start = NONE if self.before_us is None else self.before_us
        clock = self.records.arrival[self.order]
        np.maximum.accumulate(clock, out=clock)
        return np.maximum(clock, start, out=clock)

    @property
    def last_clock_us(self) -> int | None:
        """The clock of the log after them."""
        return int(self.clock[-1]) if len(self) and self.clock[-1] != NONE else self.before_us

    @property
    def first_clock_us(self) -> int | None:
        """The first clock of the log at one of them."""
        first = int(np.searchsorted(self.clock, NONE, side="right"))  # NONE is the least number
        return int(self.clock[first]) if first < len(self) else None

    def last_arrivals(self) -> Mapping[str, int]:
        """Return the latest arrival of new records by source, where there is one."""
        is_new = self.records.are_new[self.order]
        source, arrival = self.records.source[self.order][is_new], self.records.arrival[self.order][is_new]
        last = {name: int(arrival[source == s].max(initial=NONE)) for s, name in enumerate(self.records.sources)}
        return {name: us for name, us in last.items() if us != NONE}

    def ahead(self) -> tuple[Places, int]:
        """Return the numbers of the records in `Records.ahead`, in order, and how far ahead the furthest one was."""
        is_ahead = np.isin(self.order, self.records.ahead)
        in_log = np.isin(self.records.ahead, self.order)
        return self.first_seq + np.flatnonzero(is_ahead), int(self.records.ahead_us[in_log].max(initial=0))

    def replacements(self) -> pa.Table:
        """Return the records in the places of others: `_source`, `_arrival_seq`, PLACE."""
        ranks = np.flatnonzero(~self.records.are_new[self.order])
        at = self.order[ranks]
        names = pa.array(self.records.sources, pa.string()).take(pa.array(self.records.source[at]))
        places = self.records.place[at] if len(self.records.place) else np.zeros(0, np.int64)
        return pa.table({c.SOURCE: names, c.SEQ: self.first_seq + ranks, PLACE: places})

    def pieces(self, batch_id: int) -> list[Piece]:
        """Return the rows of `raw_events`."""
        columns: ByRank = {
            c.SEQ: lambda ranks: pa.array(self.first_seq + np.arange(ranks.start, ranks.stop)),
            c.ARRIVAL: lambda ranks: _instants(self.records.arrival[self.order[ranks]]),
            c.CLOCK: lambda ranks: _instants(self.clock[ranks]),
            c.BATCH: lambda ranks: pa.repeat(pa.scalar(batch_id, pa.int64()), ranks.stop - ranks.start),
        }
        return in_order(self.records.parts, self.order, columns)


def _instants(us: Array) -> pa.Array:
    return pa.array(us, mask=us == NONE)
