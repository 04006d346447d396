"""Parquet files whose rows need no SQL: Arrow copies them into the log, several files at a time.

Here: finding these files, and turning their rows into rows of the log. Not here: all other files (parquet_files.py),
their order (order.py), the commit (delta/lake.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from tidemark.resources.sources.local_files import LONGEST_LINE
from tidemark.resources.sources.order import Stretch
from tidemark.resources.sources.parquet_files import Layout, layout_of
from tidemark.timeops import columns as c
from tidemark.timeops.spec import FilesSource

PIECE_ROWS = 2_000_000
"""Most rows of a file of the log, if the row groups of the input allow it."""
_BATCH_ROWS = 1 << 17
_MOST_BYTES = 1 << 30  # of a row group: Spark reads larger ones, as it may use its disk
_OTHER_TEXTS = ("large_string", "large_binary", "string_view", "binary_view")  # their sizes are measured otherwise
_FLAT = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType),
)


@dataclass(frozen=True)
class FilePiece:
    """Row groups of a file that become one file of the log.

    Attributes:
        stretch: The file.
        groups: Their numbers.
        before: Rows of the file before them.
        first_seq: The `_arrival_seq` of their first row.
        rows: How many rows they have.
        columns: The columns of the log that the file has, each with its name in the file.
        arrival: The column of the file that holds the arrival; None if all rows have the arrival of the file.
    """

    stretch: Stretch
    groups: tuple[int, ...]
    before: int
    first_seq: int
    rows: int
    columns: Mapping[str, str]
    arrival: str | None

    def batches(self, log: pa.Schema, before_us: int | None, batch_id: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as rows of the log.

        Args:
            log: The columns of the log.
            before_us: The clock of the log before the ingestion, microseconds.
            batch_id: The batch that writes.

        Raises:
            pyarrow.ArrowException: A value does not fit, a record is too large, or the file is damaged.
        """
        wanted = [*{*self.columns.values(), *([self.arrival] if self.arrival else [])}]
        first = 0
        read = pq.ParquetFile(self.stretch.path).iter_batches(
            _BATCH_ROWS, row_groups=list(self.groups), columns=wanted, use_threads=False
        )
        for batch in read if wanted else _without_columns(self.rows):
            _ensure_small(batch)
            own = self._place(batch, first, before_us, batch_id)
            values = [
                own[field.name]
                if field.name in own
                else batch.column(self.columns[field.name])
                if field.name in self.columns
                else pa.nulls(batch.num_rows, field.type)
                for field in log
            ]
            cast = [value.cast(field.type) for value, field in zip(values, log, strict=True)]
            yield pa.RecordBatch.from_arrays(cast, schema=log)
            first += batch.num_rows

    def _place(self, batch: pa.RecordBatch, first: int, before_us: int | None, batch_id: int) -> dict[str, pa.Array]:
        n, instant = batch.num_rows, pa.timestamp("us", "UTC")
        if self.arrival is None:
            arrival_us = np.full(n, self.stretch.first_us)
        else:
            column = batch.column(self.arrival)
            arrival_us = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy()
        clock_us = arrival_us if before_us is None else np.maximum(arrival_us, before_us)
        rows = np.arange(first, first + n)
        return {
            c.SEQ: pa.array(self.first_seq + rows),
            c.ARRIVAL: pa.array(arrival_us).cast(instant),
            c.CLOCK: pa.array(clock_us).cast(instant),
            c.SOURCE: pa.repeat(self.stretch.source, n),
            c.FILE: pa.repeat(self.stretch.name, n),
            c.POSITION: pa.array(self.before + rows + 1),
            c.BATCH: pa.repeat(batch_id, n),
        }


def _ensure_small(batch: pa.RecordBatch) -> None:
    """Refuse records whose values exceed the size of a record, see `large_values.too_large`."""
    texts = [column for column in batch.columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    sizes = [pc.binary_length(column).cast(pa.int64()).fill_null(0).to_numpy() for column in texts]
    if sizes and int(np.sum(sizes, axis=0).max(initial=0)) > LONGEST_LINE:
        raise pa.ArrowInvalid("a record is too large")


def _without_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that has none of the columns."""
    for first in range(0, rows, _BATCH_ROWS):
        numbers = pa.array(np.arange(first, min(first + _BATCH_ROWS, rows)))
        yield pa.RecordBatch.from_arrays([numbers], names=[c.SEQ])


def pieces_of(
    stretches: Sequence[Stretch],
    sources: Mapping[str, tuple[FilesSource, StructType, str]],
    payload: StructType,
    first_seq: int,
) -> list[FilePiece] | None:
    """Cut files that are in the order of the log into its future files.

    Args:
        stretches: The files, in order.
        sources: By name each source, its columns by their names in the files, and the zone of its local times.
        payload: The payload columns of the log.
        first_seq: The number of the first record.

    Returns:
        None if Spark has to read a file: an expression is evaluated, unknown columns are kept, or a type becomes
        another one in a way that only Spark knows.
    """
    found: list[FilePiece] = []
    for stretch in stretches:
        source, schema, zone = sources[stretch.source]
        if source.split is not None or source.keep_unknown:
            return None
        file = pq.ParquetFile(stretch.path)
        own = _columns(file, layout_of(stretch.path, schema, source), source, payload, zone)
        if own is None:
            return None
        in_file = own[source.arrival_time.strip("`")] if source.arrival_time else None
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        if any(group.total_byte_size > _MOST_BYTES for group in groups):
            return None
        counts = [group.num_rows for group in groups]
        befores = list(accumulate(counts, initial=0))
        for numbers in _joined(counts):
            before, rows = befores[numbers[0]], befores[numbers[-1] + 1] - befores[numbers[0]]
            found.append(FilePiece(stretch, numbers, before, first_seq + before, rows, own, in_file))
        first_seq += stretch.rows
    return found


def _joined(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of row groups, joined up to the size of a file of the log."""
    joined: list[int] = []
    rows = 0
    for number, count in enumerate(counts):
        if joined and rows + count > PIECE_ROWS:
            yield tuple(joined)
            joined, rows = [], 0
        if count:
            joined.append(number)
            rows += count
    if joined:
        yield tuple(joined)


def _columns(
    file: pq.ParquetFile, layout: Layout, source: FilesSource, payload: StructType, zone: str
) -> Mapping[str, str] | None:
    """Return the columns of the log in a file, with their names in it; None if Arrow reads them differently."""
    if layout.local and zone != "UTC":
        return None
    if _has_old_calendar(file.metadata.metadata or {}):
        return None
    names = {source.rename.get(name, name): own for name, own in layout.names}
    of_log = {field.name: field.dataType for field in payload}
    types = {field.name: field.type for field in file.schema_arrow}
    is_plain = all(
        isinstance(of_log[name], _FLAT) and "." not in own and _is_read_alike(types[own])
        for name, own in names.items()
    )
    return names if is_plain else None


def _has_old_calendar(said: Mapping[bytes, bytes]) -> bool:
    """Return whether Spark has to translate days before 1582, as an old Spark has written the file."""
    return b"org.apache.spark.legacyDateTime" in said or said.get(b"org.apache.spark.version", b"3") < b"3"


def _is_read_alike(found: pa.DataType) -> bool:
    """Return whether Arrow casts a flat value like Spark: INT96 comes with nanoseconds."""
    is_other = pa.types.is_nested(found) or pa.types.is_dictionary(found) or "[ns" in str(found)
    return not is_other and str(found) not in _OTHER_TEXTS
