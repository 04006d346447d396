"""The records of files: plain ones by Arrow, the others by Spark.

Here: reading the files of an ingestion; files that are plain, as Arrow reads their rows as Spark does, and when their
records arrived; finding the file at which a common read fails. Not here: which files these are
(resources/sources/files.py), lines and their values (resources/sources/lines.py), the parsing of each format by Spark
(resources/sources/text_files.py, resources/sources/parquet_files.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.resources.delta.columns import with_columns_of
from tidemark.resources.delta.ordering import Places, Rows, rows_of
from tidemark.resources.places.place import Place
from tidemark.resources.sources.conversion import FIRST_READ_ALIKE_US
from tidemark.resources.sources.known_files import FileRange, FileState, ensure_unchanged, has_lines, state_of
from tidemark.resources.sources.lines import LINES, copied_lines, parser_of
from tidemark.resources.sources.local_files import LONGEST_LINE
from tidemark.resources.sources.parquet_files import Layout, fault_of_parquet, layout_of, opened_parquet, read_parquet
from tidemark.resources.sources.records import (
    SPARK_FAILURES,
    Numbered,
    cause_of,
    is_of_a_file,
    no_records,
    schema_in_input,
)
from tidemark.resources.sources.text_files import read_csv, read_json
from tidemark.timeops import columns as c
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.expressions.column_types import ColumnType
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.values.utc import LAST_US, is_instant

_MOST_BYTES = 1 << 30  # of a row group: Spark reads larger ones, as it may use its disk
_OTHER_TEXTS = ("large_string", "large_binary", "string_view", "binary_view")  # their sizes are measured otherwise
_FLAT = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""Types of payload columns that Arrow and Spark store alike."""
_US = {"us": 1, "ms": 1_000}


@dataclass(frozen=True, eq=False)
class PlainFile:
    """A file whose rows Arrow reads as Spark does.

    Attributes:
        source: Name of its source.
        read_from: The file, or a copy of some of its lines.
        stored: Its rows, with the names of the file.
        columns: The columns of the log that the file has, each with its name in the file.
        arrival: The arrival of each row, microseconds; NONE for none.
    """

    source: str
    read_from: FileRange
    stored: Rows
    columns: Mapping[str, str]
    arrival: Array

    @property
    def name(self) -> str:
        """The file, as `_file` of its records has it."""
        return self.read_from.name

    @property
    def before(self) -> int:
        """Lines of the file that come before, and are not among the rows."""
        return self.read_from.skip_lines

    @property
    def rows(self) -> Rows:
        """Its rows as rows of the log, as far as a file says them."""
        return replace(self.stored, read=self._read)

    def can_be_read(self, schema: pa.Schema) -> bool:
        """Return whether all of its rows become rows of a table with these columns."""
        try:
            for _, rows in self._read(range(self.stored.count)):
                with_columns_of(schema, rows)
        except (pa.ArrowException, OSError):
            return False
        return True

    def _read(self, span: range) -> Iterator[tuple[Places, pa.Table]]:
        """Read rows.

        Raises:
            pyarrow.ArrowException: A value does not fit, a record is too large or no text, or the file is damaged.
        """
        for places, rows in self.stored.read(span):
            _ensure_fit(rows)
            values = {name: rows[in_file] for name, in_file in self.columns.items()}
            values[c.SOURCE] = pa.repeat(self.source, len(rows))
            values[c.FILE] = pa.repeat(self.name, len(rows))
            values[c.POSITION] = pa.array(self.before + 1 + places)
            yield places, pa.table(values)


def _ensure_fit(rows: pa.Table) -> None:
    """Refuse records that are too large or no text, see `unfit` in resources/sources/records.py."""
    rows.validate(full=True)
    texts = [column for column in rows.columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    sizes = [pc.binary_length(column).cast(pa.int64()).fill_null(0).to_numpy() for column in texts]
    if sizes and int(np.sum(sizes, axis=0).max(initial=0)) > LONGEST_LINE:
        raise pa.ArrowInvalid("a record is too large")


@dataclass(frozen=True)
class FileRecords:
    """The records of files, as `SourceRead` has them.

    Attributes:
        records: The records that Spark reads, not computed yet.
        states: The states of the files to remember once the records are stored.
        count: Number of records that Spark reads, where it is known before.
        plain: The files that Arrow reads.
        by_spark: Returns the records of such files as Spark reads them.
    """

    records: DataFrame
    states: tuple[FileState, ...]
    count: int | None
    plain: tuple[PlainFile, ...]
    by_spark: Callable[[Sequence[FileRange]], DataFrame]


@dataclass(frozen=True)
class FileFormat:
    """The parts that read one format of files.

    Attributes:
        read: Reads the records of files, see `read_files`.
        fault: Names the damage of a file that Spark could not read to its end; empty if it finds none.
    """

    read: Callable[[SparkSession, FilesSource, T.StructType, Sequence[FileRange], str], Numbered]
    fault: Callable[[str], str] = lambda _path: ""


FORMATS: Mapping[str, FileFormat] = {
    "csv": FileFormat(read_csv),
    "json": FileFormat(read_json),
    "parquet": FileFormat(read_parquet, fault_of_parquet),
}
"""By `format` of a source."""


def read_files(
    spark: SparkSession, source: FilesSource, ranges: Sequence[FileRange], place: Place, time_zone: str
) -> FileRecords:
    """Read the records of files, see `FilesReader.read`; the states are the ones of these files."""
    schema, zone = schema_in_input(spark, source), source.time_zone or time_zone
    filled: Sequence[FileRange] = [file for file in ranges if file.size]
    counts: dict[str, int] = {}
    if has_lines(source):
        copies = copied_lines(filled, place / source.name, parser_of(source, schema, zone))
        filled, counts = copies.files, dict(copies.counts)
    plain: list[PlainFile] = []
    others: list[FileRange] = []
    for file in filled:
        arrow_file = plain_file(source, schema, zone, file)
        if arrow_file is None:
            others.append(file)
        else:
            plain.append(arrow_file)
    by_spark = partial(_by_spark, spark, source, schema, zone=zone)
    read = by_spark(others) if others else Numbered(no_records(spark, source), {})
    ensure_unchanged(ranges)
    of_plain = {file.read_from.path: file.before + len(file.arrival) for file in plain}
    counts = {**of_plain, **read.counts, **counts}
    states = [state_of(file, counts.get(file.path, 0)) for file in ranges]
    return FileRecords(
        read.records,
        tuple(states),
        count=None if others else 0,
        plain=tuple(plain),
        by_spark=lambda files: by_spark(files).records,
    )


def _by_spark(
    spark: SparkSession, source: FilesSource, schema: T.StructType, files: Sequence[FileRange], *, zone: str
) -> Numbered:
    by_format: dict[str, list[FileRange]] = defaultdict(list)
    for file in files:
        by_format[source.format if file.read_as in {"", LINES} else file.read_as].append(file)
    read = [FORMATS[kind].read(spark, source, schema, alike, zone) for kind, alike in by_format.items()]
    records = reduce(DataFrame.unionByName, [part.records for part in read])
    return Numbered(records, {path: count for part in read for path, count in part.counts.items()})


# Files that Arrow reads.


def plain_file(source: FilesSource, schema: T.StructType, time_zone: str, file: FileRange) -> PlainFile | None:
    """Return a file if Arrow reads it as Spark does.

    Args:
        source: The source.
        schema: Its columns by their names in the files.
        time_zone: IANA name of the zone of times without an offset.
        file: The file, or a copy.

    Returns:
        None if Spark has to read it: it is text, an expression is evaluated, unknown columns are kept, a type becomes
        another one in a way that only Spark knows, or a column does not fit, which `read_parquet` says.
    """
    if source.split is not None or source.keep_unknown or (file.read_as or source.format) != "parquet":
        return None
    opened = opened_parquet(file.readable)
    try:
        layout = layout_of(file.readable, opened, schema, source)
    except InputError:
        return None
    columns = _columns(opened, layout, source, schema, time_zone)
    groups = [opened.metadata.row_group(number) for number in range(opened.num_row_groups)]
    if columns is None or any(group.total_byte_size > _MOST_BYTES for group in groups):
        return None
    if source.arrival_time is None:
        is_told = is_instant(file.modified_us)
        arrival = np.full(opened.metadata.num_rows, file.modified_us) if is_told else None
    else:
        arrival = _instants_of(opened, columns.get(source.arrival_time.strip("`")), time_zone)
    if arrival is None:
        return None
    stored = rows_of(partial(opened_parquet, file.readable), list(dict.fromkeys(columns.values())))
    return PlainFile(source.name, file, stored, columns, arrival)


def _instants_of(file: pq.ParquetFile, column: str | None, time_zone: str) -> Array | None:
    """Return a column of instants in microseconds, NONE for null; None for any other column."""
    kind = None if column is None else file.schema_arrow.field(column).type
    if kind is None or not pa.types.is_timestamp(kind) or kind.unit not in _US:
        return None
    if kind.tz is None and time_zone != "UTC":  # local times, which Spark turns into instants
        return None
    try:
        values = file.read(columns=[column])[column].cast(pa.int64())
    except (pa.ArrowException, OSError):  # the reader of the records reports the fault of the file
        return None
    scale, ends = _US[kind.unit], pc.min_max(values).as_py()
    if ends["min"] is not None and not FIRST_READ_ALIKE_US <= ends["min"] * scale <= ends["max"] * scale <= LAST_US:
        return None
    return np.where(np.asarray(values.is_null()), NONE, np.asarray(values.fill_null(0)) * scale)


def _columns(
    file: pq.ParquetFile, layout: Layout, source: FilesSource, schema: T.StructType, zone: str
) -> Mapping[str, str] | None:
    """Return the columns of the log in a file, with their names in it; None if Arrow reads them differently."""
    wanted = {field.name: field.dataType for field in schema}
    stored = {field.name: field.type for field in file.schema_arrow}
    are_alike = not _has_old_calendar(file.metadata.metadata or {}) and all(
        "." not in column and _is_read_alike(kind, stored[column], wanted[name], zone)
        for name, column, kind in layout.columns
    )
    return {source.rename.get(name, name): column for name, column, _ in layout.columns} if are_alike else None


def _has_old_calendar(metadata: Mapping[bytes, bytes]) -> bool:
    """Return whether Spark has to translate days before 1582, as an old Spark has written the file."""
    return b"org.apache.spark.legacyDateTime" in metadata or metadata.get(b"org.apache.spark.version", b"3") < b"3"


def _is_read_alike(kind: ColumnType, stored: pa.DataType, wanted: T.DataType, zone: str) -> bool:
    """Return whether Arrow reads and casts a value like Spark: INT96 comes with nanoseconds."""
    is_local = zone != "UTC" and kind.word == "timestamp_ntz" and isinstance(wanted, T.TimestampType)
    is_other = pa.types.is_nested(stored) or pa.types.is_dictionary(stored) or "[ns" in str(stored)
    is_other = is_other or isinstance(stored, pa.BaseExtensionType) or str(stored) in _OTHER_TEXTS
    return isinstance(wanted, _FLAT) and not (is_local or is_other or kind.stored)


# Files that cannot be read.


def unreadable(spark: SparkSession, source: FilesSource, files: Sequence[FileRange]) -> dict[str, InputError]:
    """Find the files that Spark cannot read to their end, by halves: one in n takes log2(n) reads of each.

    Returns:
        An error for each, by path.

    Raises:
        InputError: A file changes while it is read.
        PySparkException, Py4JJavaError: Spark failed for another reason than a file.
    """
    if not files:
        return {}
    try:
        _let_spark_read(spark, source, files)
    except UnfitFilesError as error:
        rest = [file for file in files if file.path not in error.errors]
        return {**error.errors, **unreadable(spark, source, rest)}
    except SPARK_FAILURES as error:
        if not is_of_a_file(error):
            raise
        if len(files) == 1:
            return {files[0].path: _error(files[0].path, source, error)}
        middle = len(files) // 2
        return {**unreadable(spark, source, files[:middle]), **unreadable(spark, source, files[middle:])}
    return {}


def _let_spark_read(spark: SparkSession, source: FilesSource, files: Sequence[FileRange]) -> None:
    """Read files that Spark itself opens, and keep nothing."""
    read = FORMATS[source.format].read(spark, source, schema_in_input(spark, source), files, "UTC")
    read.records.write.format("noop").mode("overwrite").save()
    ensure_unchanged(files)


def _error(path: str, source: FilesSource, error: Exception) -> InputError:
    why = FORMATS[source.format].fault(path)
    return InputError(
        f"{path}: the file cannot be read to its end: {why or cause_of(error)}",
        expected="a file that is whole and undamaged; nothing of it was ingested",
        remedy="land the whole file again; it is tried again when its size or modification time changes",
    )
