"""Rows in an order of their own: read as they lie, and written in that order, in bounded memory.

Here: the only way in which the log and released events are put in order, once their keys were sorted; rows that Spark
computes once, for Arrow to read as often as it has to: few of them in the memory of this process, many in files that
are deleted afterwards. Not here: the keys and what an order means (assets/), the files (resources/delta/files.py).

Rows mostly lie close to their place in the order: an event comes a little before or after its neighbours. So they are
read once, and few of them wait for others. Where many wait, they wait on disk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.resources.delta.columns import with_columns_of
from tidemark.resources.delta.files import COMMITTER, Piece, piece_of
from tidemark.resources.delta.versions import files_of
from tidemark.resources.places.place import Place, files_below, relative, spark_url, temporary_place
from tidemark.resources.scratch import scratch_folder
from tidemark.resources.spark.amount import Amount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Places = NDArray[np.int64]
Ranks = NDArray[np.integer[Any]]
"""The place in the order of each row as it lies; -1 of one that is not wanted."""
ByRank = Mapping[str, Callable[[slice], pa.Array]]
"""Columns that depend on the place in the order: each returns its values of some ranks."""

FILE_ROWS = 2_000_000
"""Most rows of a file, unless rows lie far from their place in the order."""
_GROUP_ROWS = 1 << 17  # of a row group
_GROUP_BYTES = 128_000_000  # of a row group in memory
_LEAST_ROWS = 100_000  # of a file: to write fewer takes less time than another thread
_MOST_READ = 3  # times all rows: files that need more of them share their reads
_BATCH_ROWS = 1 << 16  # that are read at once
_WAITING_BYTES = 256_000_000  # that wait in memory, of all files together


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that can be read again and again.

    Attributes:
        count: How many there are; the first is at place 0.
        read: Yields the rows of a span of places, piece by piece, each with its place; it may yield others too. They
            have columns of the table, in any order and of types that can be cast; what lacks is null.
        row_bytes: Bytes of a row in memory, an estimate.
    """

    count: int
    read: Callable[[range], Iterator[tuple[Places, pa.Table]]]
    row_bytes: int = 0


def rows_in_memory(rows: pa.Table) -> Rows:
    """Return rows that this process has."""

    def read(span: range) -> Iterator[tuple[Places, pa.Table]]:
        yield np.arange(span.start, span.stop), rows.slice(span.start, len(span))

    return Rows(len(rows), read)


def rows_of(opened: Callable[[], pq.ParquetFile], columns: Sequence[str] | None = None) -> Rows:
    """Return the rows of a parquet file; row groups without wanted rows are not read.

    Args:
        opened: Opens the file: each of several threads that read it does so by itself.
        columns: The columns; by default all.
    """
    footer = opened().metadata
    counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    size = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    starts = np.cumsum([0, *counts])

    def read(span: range) -> Iterator[tuple[Places, pa.Table]]:
        groups = [n for n, first in enumerate(starts[:-1]) if first < span.stop and starts[n + 1] > span.start]
        at = int(starts[groups[0]]) if groups else 0
        wanted = None if columns is None else list(columns)
        for batch in opened().iter_batches(_BATCH_ROWS, row_groups=groups, columns=wanted, use_threads=False):
            yield np.arange(at, at + len(batch)), pa.Table.from_batches([batch])
            at += len(batch)

    return Rows(footer.num_rows, read, size // max(footer.num_rows, 1))


@dataclass(frozen=True, eq=False)
class Aside:
    """Rows that were computed.

    Attributes:
        parts: The rows as they lie.
        narrow: Returns some columns of all of them, in this order; few bytes a row, as they go into memory.
    """

    parts: Sequence[Rows]
    narrow: Callable[[Sequence[str]], pa.Table]


@contextmanager
def set_aside(frame: "DataFrame", folder: Place, amount: Amount) -> Iterator[Aside]:
    """Let Spark compute rows once; during the block they can be read.

    Args:
        frame: The rows.
        folder: Folder of the pipeline: every Spark that writes its tables can write there.
        amount: How many there probably are. Few come into this process, as an answer of Spark. Others Spark writes
            into files, several at a time.
    """
    rows = amount.answer(frame)
    if rows is not None:
        yield Aside([rows_in_memory(rows)], rows.select)
        return
    with temporary_place(folder / "_state" / "aside") as place:
        frame.write.options(**COMMITTER).parquet(spark_url(place))
        files = files_of(place)
        names = sorted(relative(path, place) for path, _ in files_below(place, "*.parquet"))
        opened = [partial(pq.ParquetFile, name, filesystem=files) for name in names]

        def narrow(wanted: Sequence[str]) -> pa.Table:
            # One after the other: a row is known by its place in this order. A text is there once, not for each row.
            schema = opened[0]().schema_arrow
            texts = [name for name in wanted if pa.types.is_string(schema.field(name).type)]
            return pa.concat_tables(file(read_dictionary=texts).read(columns=[*wanted]) for file in opened)

        yield Aside([*map(rows_of, opened)], narrow)


def in_order(parts: Sequence[Rows], order: Places, by_rank: ByRank) -> list[Piece]:
    """Return files of rows in an order; none without rows.

    Args:
        parts: The rows as they lie.
        order: The places of the wanted rows, each once, in their order; places go through all parts.
        by_rank: Further columns; several threads ask for them.
    """
    count = len(order)
    starts = list(accumulate((part.count for part in parts), initial=0))
    ranks: Ranks = np.full(starts[-1], -1, np.int32 if count < 1 << 31 else np.int64)
    ranks[order] = np.arange(count)
    files = files_for(count)
    cut = _cut(ranks, starts, count, files)
    while files > 1 and sum(len(span) for file in cut for span in file.spans) > _MOST_READ * starts[-1]:
        files //= 2
        cut = _cut(ranks, starts, count, files)
    group = max(1, min(_GROUP_ROWS, _GROUP_BYTES // max([1, *(part.row_bytes for part in parts)])))
    ordered = _Ordered(parts, starts, ranks, by_rank, group, _WAITING_BYTES // min(files, pa.cpu_count()))
    return [partial(ordered.rows, file) for file in cut]


def files_for(rows: int) -> int:
    """Return how many files of about one size some rows are written to, by several threads."""
    cores = int(pa.cpu_count())
    return max(1, min(cores, rows // _LEAST_ROWS), ceil(rows / FILE_ROWS))


class _File(NamedTuple):
    """Rows of one file: their ranks, and where they lie in each part."""

    wanted: range
    spans: Sequence[range]


def _cut(ranks: Ranks, starts: Sequence[int], count: int, files: int) -> list[_File]:
    """Cut the ranks from 0 to a count into files of about one size."""
    ends = pairwise(count * number // files for number in range(files + 1))
    return [_File(range(begin, end), _spans(ranks, starts, begin, end)) for begin, end in ends if begin < end]


def _spans(ranks: Ranks, starts: Sequence[int], begin: int, end: int) -> list[range]:
    """Return where the rows with ranks from `begin` to below `end` lie in each part; an empty span for none."""
    spans = []
    for first, stop in pairwise(starts):
        places = np.flatnonzero((ranks[first:stop] >= begin) & (ranks[first:stop] < end))
        spans.append(range(int(places[0]), int(places[-1]) + 1) if len(places) else range(0))
    return spans


@dataclass(frozen=True, eq=False)
class _Ordered:
    """Rows and their ranks.

    Attributes:
        parts: The rows as they lie.
        starts: The place of the first row of each part.
        ranks: Of all rows.
        by_rank: See `in_order`.
        group: Rows of a row group.
        waiting_bytes: The most bytes that wait in memory for one file.
    """

    parts: Sequence[Rows]
    starts: Sequence[int]
    ranks: Ranks
    by_rank: ByRank
    group: int
    waiting_bytes: int

    def rows(self, file: _File, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in order, with the columns of a table."""
        wanted = file.wanted
        firsts = range(wanted.start, wanted.stop, self.group)
        missing = np.array([min(self.group, wanted.stop - first) for first in firsts])
        done = 0  # groups
        stored = pa.schema([field for field in schema if field.name not in self.by_rank])
        with _Waiting(wanted.start, self.group, self.waiting_bytes) as waiting:
            for ranks, rows in self._read(file, stored):
                missing -= np.bincount((ranks - wanted.start) // self.group, minlength=len(missing))
                waiting.add(ranks, rows)
                unfinished = np.flatnonzero(missing[done:])
                whole = done + int(unfinished[0]) if len(unfinished) else len(missing)
                for number, group in waiting.take(range(done, whole)):
                    yield from self._whole(group, firsts[number], schema)
                done = whole
        assert done == len(missing), f"{len(missing) - done} groups of rows are not whole"

    def _whole(self, group: pa.Table, first: int, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
        """Return rows in order, from a rank on, with the columns that depend on it."""
        for name, values in self.by_rank.items():
            group = group.append_column(name, values(slice(first, first + len(group))))
        return piece_of(group)(schema)

    def _read(self, file: _File, schema: pa.Schema) -> Iterator[tuple[Ranks, pa.Table]]:
        """Yield the rows of a file as they lie, with their ranks, all with the same columns."""
        for part, start, span in zip(self.parts, self.starts, file.spans, strict=False):
            for places, rows in part.read(span) if span else ():
                ranks = self.ranks[start + places]
                are_wanted = (ranks >= file.wanted.start) & (ranks < file.wanted.stop)
                wanted = rows if are_wanted.all() else rows.filter(pa.array(are_wanted))
                yield ranks[are_wanted], with_columns_of(schema, wanted)


class _Sorted(NamedTuple):
    ranks: Ranks
    rows: pa.Table


@dataclass(eq=False)
class _Waiting:
    """Rows that wait until their row group is whole.

    Attributes:
        first: The rank of the first group's first row.
        group: Rows of a group.
        most_bytes: The most bytes in memory; more go to disk.
    """

    first: int
    group: int
    most_bytes: int
    _in_memory: list[_Sorted] = field(default_factory=list)
    _on_disk: dict[int, list[tuple[Path, int]]] = field(default_factory=dict)  # by group: a file, its batch in it
    _opened: ExitStack = field(default_factory=ExitStack)
    _folder: Path | None = None

    def __enter__(self) -> "_Waiting":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, ranks: Ranks, rows: pa.Table) -> None:
        """Let rows wait."""
        if len(rows):
            self._in_memory.append(_Sorted(ranks, rows))
        if sum(waiting.rows.nbytes for waiting in self._in_memory) > self.most_bytes:
            self._write_aside()

    def take(self, groups: range) -> Iterator[tuple[int, pa.Table]]:
        """Yield some groups that are whole, in order: the number of each, and its rows in order."""
        if not groups:
            return
        ranks, rows = _joined(self._in_memory)
        ends = [0, *np.searchsorted(ranks, [self.first + (number + 1) * self.group for number in groups])]
        self._in_memory = [_Sorted(ranks[ends[-1] :], rows.slice(ends[-1]))]
        for number, (begin, end) in zip(groups, pairwise(ends), strict=True):
            in_memory = _Sorted(ranks[begin:end], rows.slice(begin, end - begin))
            aside = [self._from_disk(file, place) for file, place in self._on_disk.pop(number, ())]
            yield number, _joined([*aside, in_memory]).rows

    def _write_aside(self) -> None:
        ranks, rows = _joined(self._in_memory)
        if self._folder is None:
            self._folder = self._opened.enter_context(scratch_folder())
        file = self._folder / f"{len(list(self._folder.iterdir()))}.arrow"
        numbers = (ranks - self.first) // self.group
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        with_ranks = rows.append_column(_RANK, pa.array(ranks))
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, with_ranks.schema) as writer:
            for place, (begin, end) in enumerate(pairwise([*begins, len(numbers)])):
                [batch] = with_ranks.slice(begin, end - begin).combine_chunks().to_batches()
                writer.write_batch(batch)
                self._on_disk.setdefault(int(numbers[begin]), []).append((file, place))
        self._in_memory = []

    def _from_disk(self, file: Path, place: int) -> _Sorted:
        with pa.OSFile(str(file)) as source:
            rows = pa.Table.from_batches([pa.ipc.open_file(source).get_batch(place)])
        return _Sorted(rows[_RANK].to_numpy(), rows.drop_columns(_RANK))


_RANK = "__tm_rank"


def _joined(parts: Sequence[_Sorted]) -> _Sorted:
    """Return rows by rank."""
    parts = [part for part in parts if len(part.rows)] or parts[:1]
    ranks = np.concatenate([part.ranks for part in parts]) if parts else np.zeros(0, np.int64)
    rows = pa.concat_tables([part.rows for part in parts]) if parts else pa.table({})
    if (ranks[1:] > ranks[:-1]).all():
        return _Sorted(ranks, rows)
    places = np.argsort(ranks, kind="stable")
    return _Sorted(ranks[places], rows.combine_chunks().take(pa.array(places)))
