"""Parquet files: their columns and values, and files that need no sorting or no SQL.

Here: which columns of a file fit, the values that Spark reads differently, files whose records are in the order of
the log already, and rows that Arrow copies into the log, several files at a time. Not here: the footer in another
process (footers.py), numbering other records (spark/numbering.py), the commit (delta/lake.py).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from tidemark.resources.places.place import place_of
from tidemark.resources.sources.columns import Columns, columns_in_file, unknown_of, wanted_columns
from tidemark.resources.sources.conversion import ensure_can_be_kept, fit_error, types_in, values_to_keep
from tidemark.resources.sources.footers import parquet_looks, types_of
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import LONGEST_LINE, path_of_url, spark_path
from tidemark.resources.sources.records import FILE, MODIFIED, POSITION, Numbered, to_records, unfit
from tidemark.resources.spark.frames import frame_of
from tidemark.timeops import columns as c
from tidemark.timeops.errors import InputError, UnfitFilesError, first_line
from tidemark.timeops.expressions.column_types import (
    VOID,
    ColumnType,
    converted,
    only_fields_of,
    unknown_fields,
)
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.spec.fields import names_in_files
from tidemark.timeops.utc import LAST_US, is_instant

MOST_FILES = 64
"""Of one ingestion: Spark reads small files in any order, so that many would be mixed in the files of the log."""

_CODECS_OF_NO_SPARK = ("BROTLI", "LZO")
FIRST_US = -2_208_988_800_000_000
"""The year 1900: older instants may be of another calendar, which Spark translates."""
_US = {"us": 1, "ms": 1_000}


@dataclass(frozen=True)
class Stretch:
    """A file whose rows are in the order of their arrival, which each row has.

    Attributes:
        source: Name of its source.
        name: The file, as `_file` of its records has it.
        path: Path or URL of it, or of the copy that is read.
        rows: Number of rows, at least one.
        first_us: The first arrival, microseconds.
        last_us: The last one.
        before: Lines of the file that were read before, and are not among the rows.
    """

    source: str
    name: str
    path: str
    rows: int
    first_us: int
    last_us: int
    before: int = 0


def stretches_in_order(
    read: Sequence[tuple[FilesSource, Sequence[FileRange]]], *, by_arrival: bool, time_zone: str = "UTC"
) -> list[Stretch] | None:
    """Return the files of an ingestion, one after the other as their records are in the log.

    Only parquet files, and copies as such, are looked at: to read one column takes a hundredth of the time for
    sorting their rows.

    Args:
        read: Each source with its files, as they are read.
        by_arrival: The log has the records by arrival, then by file; else by file and place alone.
        time_zone: Zone for times without one, unless a source has its own.

    Returns:
        None if some records have to be sorted, or if that is unknown. Then the arrivals may also not rise from one
        record to the next, by whichever order.
    """
    if sum(len(files) for _, files in read) > MOST_FILES:
        return None
    stretches: list[Stretch] = []
    for source, files in read:
        for file in files:
            stretch = _stretch(source, file, source.time_zone or time_zone)
            if stretch is None:
                return None
            stretches += [stretch] if stretch.rows else []
    stretches.sort(key=lambda stretch: (stretch.first_us if by_arrival else 0, stretch.name, stretch.source))
    return stretches if all(_follows(after, before) for before, after in pairwise(stretches)) else None


def _follows(after: Stretch, before: Stretch) -> bool:
    """Return whether every record of a file comes after all of another's, also if some came at the same moment."""
    same = (after.name, after.source) > (before.name, before.source)
    return after.first_us > before.last_us or (after.first_us == before.last_us and same)


def _stretch(source: FilesSource, file: FileRange, time_zone: str) -> Stretch | None:
    if (file.read_as or source.format) != "parquet":
        return None
    if source.arrival_time is None:
        at_us = file.modified_us
        return _stretch_of(source, file, _rows_of(file.readable), at_us, at_us) if is_instant(at_us) else None
    column = source.arrival_time.strip("`")
    try:
        in_file = names_in_files([column], source.rename)[column]
        arrivals = _range_of(_opened(file.readable), in_file, time_zone)
    except (pa.ArrowException, OSError):  # the reader of the records reports the fault of the file
        return None
    return None if arrivals is None else _stretch_of(source, file, *arrivals)


def _stretch_of(source: FilesSource, file: FileRange, rows: int, first_us: int, last_us: int) -> Stretch:
    return Stretch(source.name, file.name, file.readable, rows, first_us, last_us, file.skip_lines)


def _opened(path: str) -> pq.ParquetFile:
    """Open a file; of a store by its options, which Arrow does not know if it gets the URL."""
    place = place_of(path)
    return pq.ParquetFile(place if isinstance(place, Path) else place.open("rb"))


def _range_of(file: pq.ParquetFile, column: str, time_zone: str) -> tuple[int, int, int] | None:
    """Return rows, first and last value of a column of instants that never fall; None for any other column."""
    kind = file.schema_arrow.field(column).type if column in file.schema_arrow.names and "." not in column else None
    if kind is None or not pa.types.is_timestamp(kind) or kind.unit not in _US:
        return None
    if kind.tz is None and time_zone != "UTC":  # local times, which Spark turns into instants
        return None
    first = last = None
    rows = 0
    for batch in file.iter_batches(columns=[column], batch_size=1_000_000):
        values = batch.column(0)
        if values.null_count:
            return None
        us = values.cast(pa.int64())
        falls = pc.any(pc.less(us[1:], us[:-1])).as_py() if len(us) > 1 else False
        if falls or (last is not None and len(us) and us[0].as_py() < last):
            return None
        if len(us):
            first = us[0].as_py() if first is None else first
            last, rows = us[-1].as_py(), rows + len(us)
    if first is None or last is None:
        return 0, 0, 0
    scale = _US[kind.unit]
    return (rows, first * scale, last * scale) if FIRST_US <= first * scale <= last * scale <= LAST_US else None


_URL, _ROW = "__tm_url", "__tm_row"
_PLACES = (
    StructType()
    .add(_URL, T.StringType())
    .add(FILE, T.StringType())
    .add("__tm_modified_us", T.LongType())
    .add("__tm_before", T.LongType())
)


@dataclass(frozen=True)
class Layout:
    """The columns of a group of files, as they are read.

    Attributes:
        columns: Wanted columns, each with its name in the file and its type there.
        unknown: Names and types of the other columns to keep.
    """

    columns: tuple[tuple[str, str, ColumnType], ...]
    unknown: tuple[tuple[str, ColumnType], ...]


def layout_of(path: str, schema: T.StructType, source: FilesSource) -> Layout:
    """Check that a file has the wanted columns, with types that can be read without loss.

    A column is left out if the file may lack it, or if it has no type, as all its values are null.

    Raises:
        InputError: A column is missing or ambiguous, has a type that cannot be read as the one of the spec, or should
            be kept and cannot be read.
    """
    with place_of(path).open("rb") as opened:
        fields = types_of(pq.ParquetFile(opened).schema)
    columns, types = columns_in_file(path, source, schema.names, [name for name, _ in fields]), dict(fields)
    there = {name: column for name, column in columns.items() if column is not None}
    wanted = types_in(schema)
    for name, column in there.items():
        if error := fit_error(path, column, types[column], wanted[name], may_lack=source.missing == "null"):
            raise error
    unknown = [(name, kind) for name, kind in types.items() if name not in there.values() and kind.word != VOID]
    if source.keep_unknown:
        inside = [
            (column, *field)
            for name, column in there.items()
            for field in unknown_fields(types[column], wanted[name])
        ]
        for place, kind in [*unknown, *((".".join((column, *steps)), kind) for column, steps, kind in inside)]:
            ensure_can_be_kept(path, place, kind)
        whole = {column for column, _, _ in inside}
    else:
        unknown, whole = [], set()
    read = {
        name: types[column] if column in whole else only_fields_of(types[column], wanted[name])
        for name, column in there.items()
    }
    names = tuple((name, column, read[name]) for name, column in there.items() if read[name].word != VOID)
    return Layout(names, tuple(unknown))


def check_parquet(path: str, source: FilesSource, known_bytes: int) -> Columns:  # noqa: ARG001
    """Check a parquet file by its footer, see `FileFormat.check`."""
    footer = parquet_looks().footer(path)
    columns_in_file(path, source, wanted_columns(source), footer.names)
    for codec in sorted(footer.codecs.intersection(_CODECS_OF_NO_SPARK)):
        raise InputError(
            f"{path}: columns are compressed with {codec.lower()}, which Spark cannot read",
            expected="snappy, zstd, gzip, lz4 or no compression",
            remedy="rewrite the file with one of these",
        )
    return unknown_of(source, [(name, kind.ddl) for name, kind in footer.types])


def fault_of_parquet(path: str) -> str:
    """Return the first damaged part by the report of another reader; empty if it finds none."""
    first = first_line(parquet_looks().fault(path))
    return "".join(sign for sign in first if sign.isprintable()).rstrip(" :")


def read_parquet(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange], time_zone: str
) -> Numbered:
    """Read parquet files: the columns of `schema`, and what every reader adds (`SourceRead` in reader.py).

    Raises:
        UnfitFilesError: In some files a column is missing, or has a type that cannot be read as the one of the spec
            without loss.
    """
    groups: dict[Layout, list[FileRange]] = defaultdict(list)
    errors: dict[str, InputError] = {}
    for file in ranges:
        try:
            groups[layout_of(file.readable, schema, source)].append(file)
        except InputError as error:
            errors[file.path] = error
    if errors:
        raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors)
    rows = [
        _read_group(spark, source, schema, layout, files, time_zone=time_zone) for layout, files in groups.items()
    ]
    counts = {file.path: file.skip_lines + _rows_of(file.readable) for file in ranges}
    return Numbered(reduce(DataFrame.union, rows), counts)


def _rows_of(path: str) -> int:
    with place_of(path).open("rb") as file:
        return int(pq.read_metadata(file).num_rows)


def _read_group(
    spark: SparkSession,
    source: FilesSource,
    schema: StructType,
    layout: Layout,
    files: Sequence[FileRange],
    *,
    time_zone: str,
) -> DataFrame:
    columns = {name: (in_file, kind) for name, in_file, kind in layout.columns}
    shape = [*columns.values(), *layout.unknown]
    ddl = ", ".join(f"{quoted(name)} {kind.read_as.sql}" for name, kind in shape)
    scan = spark.read.schema(ddl).parquet(*(spark_path(file.readable) for file in files))
    place = scan.metadataColumn("_metadata")  # also if a column of the file has this name
    values = {name: f"__tm_value_{number}" for number, name in enumerate(scan.columns)}  # no name is that of a place
    rows = scan.select(
        *(F.col(quoted(name)).alias(value) for name, value in values.items()),
        place["file_path"].alias(_URL),
        (place["row_index"] + 1).alias(_ROW),
    )
    wanted = types_in(schema)
    by_path = {file.readable: file for file in files}
    places = [
        (url, file.name, file.modified_us, file.skip_lines)
        for listed in scan.inputFiles()
        for file in [by_path[path_of_url(listed)]]
        for url in {listed, listed.replace("file:///", "file:/", 1)}  # the spelling of `_metadata.file_path`
    ]
    table = frame_of(spark, places, _PLACES)
    of_file = {MODIFIED: F.timestamp_micros("__tm_modified_us"), POSITION: F.col("__tm_before") + F.col(_ROW)}
    placed = rows.join(F.broadcast(table), _URL).withColumns(of_file)
    return to_records(
        placed,
        source,
        columns={
            field.name: F.expr(
                converted(values[columns[field.name][0]], columns[field.name][1], wanted[field.name], time_zone)
                if field.name in columns
                else f"CAST(NULL AS {wanted[field.name].sql})"
            )
            for field in schema
        },
        rescued=values_to_keep(
            [(values[in_file], in_file, kind, wanted[name]) for name, (in_file, kind) in columns.items()],
            [(values[name], name, kind) for name, kind in layout.unknown],
        ),
        malformed=unfit({name: (F.col(values[name]), scan.schema[name].dataType) for name in values}),
    )


PIECE_ROWS = 2_000_000
"""Most rows of a file of the log, if the row groups of the input allow it."""
_BATCH_ROWS = 1 << 17
_MOST_BYTES = 1 << 30  # of a row group: Spark reads larger ones, as it may use its disk
_OTHER_TEXTS = ("large_string", "large_binary", "string_view", "binary_view")  # their sizes are measured otherwise
FLAT = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""Types of payload columns that Arrow and Spark store alike."""


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
            pyarrow.ArrowException: A value does not fit, a record is too large or no text, or the file is damaged.
        """
        wanted = [*{*self.columns.values(), *([self.arrival] if self.arrival else [])}]
        first = 0
        read = _opened(self.stretch.path).iter_batches(
            _BATCH_ROWS, row_groups=list(self.groups), columns=wanted, use_threads=False
        )
        for batch in read if wanted else _without_columns(self.rows):
            _ensure_fit(batch)
            placed = self._place(batch, first, before_us, batch_id)
            values = [
                placed[field.name]
                if field.name in placed
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
            c.POSITION: pa.array(self.stretch.before + self.before + rows + 1),
            c.BATCH: pa.repeat(batch_id, n),
        }


def _ensure_fit(batch: pa.RecordBatch) -> None:
    """Refuse records that are too large or no text, see `unfit` in records.py."""
    batch.validate(full=True)
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
    pieces: list[FilePiece] = []
    for stretch in stretches:
        source, schema, zone = sources[stretch.source]
        if source.split is not None or source.keep_unknown:
            return None
        file = _opened(stretch.path)
        columns = _columns(file, layout_of(stretch.path, schema, source), source, payload, zone)
        if columns is None:
            return None
        in_file = columns[source.arrival_time.strip("`")] if source.arrival_time else None
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        if any(group.total_byte_size > _MOST_BYTES for group in groups):
            return None
        counts = [group.num_rows for group in groups]
        befores = list(accumulate(counts, initial=0))
        for numbers in _joined(counts):
            before, rows = befores[numbers[0]], befores[numbers[-1] + 1] - befores[numbers[0]]
            pieces.append(FilePiece(stretch, numbers, before, first_seq + before, rows, columns, in_file))
        first_seq += stretch.rows
    return pieces


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
    kinds = {column: kind for _, column, kind in layout.columns}
    if _has_old_calendar(file.metadata.metadata or {}):
        return None
    names = {source.rename.get(name, name): column for name, column, _ in layout.columns}
    of_log = {field.name: field.dataType for field in payload}
    types = {field.name: field.type for field in file.schema_arrow}
    if zone != "UTC" and any(
        kinds[column].word == "timestamp_ntz" and isinstance(of_log[name], T.TimestampType)
        for name, column in names.items()
    ):
        return None
    is_plain = all(
        isinstance(of_log[name], FLAT)
        and "." not in column
        and _is_read_alike(types[column])
        and not kinds[column].stored
        for name, column in names.items()
    )
    return names if is_plain else None


def _has_old_calendar(metadata: Mapping[bytes, bytes]) -> bool:
    """Return whether Spark has to translate days before 1582, as an old Spark has written the file."""
    return b"org.apache.spark.legacyDateTime" in metadata or metadata.get(b"org.apache.spark.version", b"3") < b"3"


def _is_read_alike(kind: pa.DataType) -> bool:
    """Return whether Arrow casts a flat value like Spark: INT96 comes with nanoseconds."""
    is_other = pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or "[ns" in str(kind)
    is_other = is_other or isinstance(kind, pa.BaseExtensionType)
    return not is_other and str(kind) not in _OTHER_TEXTS
