"""Parquet files: their columns and values, and files that need no SQL.

Here: which columns of a file fit, the values that Spark reads differently, and files that Arrow reads as Spark does.
Not here: the footer in another process (footers.py), the order of the records (assets/ingestion/order.py).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from tidemark.resources.delta.aside import rows_of
from tidemark.resources.delta.columns import with_columns_of
from tidemark.resources.delta.ordering import Places, Rows
from tidemark.resources.places.place import place_of
from tidemark.resources.sources.columns import columns_in_file
from tidemark.resources.sources.conversion import ensure_can_be_kept, fit_error, types_in, values_to_keep
from tidemark.resources.sources.footers import parquet_looks, types_of
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import LONGEST_LINE, path_of_url, spark_path
from tidemark.resources.sources.records import POSITION, SKIP, URL, Numbered, Part, to_records, unfit, with_files
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
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.values.utc import LAST_US, is_instant

FIRST_US = -2_208_988_800_000_000
"""The year 1900: older instants may be of another calendar, which Spark translates."""
_US = {"us": 1, "ms": 1_000}


def _opened(path: str) -> pq.ParquetFile:
    """Open a file; of a store by its options, which Arrow does not know if it gets the URL."""
    place = place_of(path)
    return pq.ParquetFile(place if isinstance(place, Path) else place.open("rb"))


_ROW = "__tm_row"


@dataclass(frozen=True)
class Layout:
    """The columns of a group of files, as they are read.

    Attributes:
        columns: Wanted columns, each with its name in the file and its type there.
        unknown: Names and types of the other columns to keep.
    """

    columns: tuple[tuple[str, str, ColumnType], ...]
    unknown: tuple[tuple[str, ColumnType], ...]


def layout_of(path: str, file: pq.ParquetFile, schema: T.StructType, source: FilesSource) -> Layout:
    """Check that a file has the wanted columns, with types that can be read without loss.

    A column is left out if the file may lack it, or if it has no type, as all its values are null.

    Raises:
        InputError: A column is missing or ambiguous, has a type that cannot be read as the one of the spec, or should
            be kept and cannot be read.
    """
    fields = types_of(file.schema)
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
    groups: dict[Layout, list[Part]] = defaultdict(list)
    errors: dict[str, InputError] = {}
    counts: dict[str, int] = {}
    for file in ranges:
        opened = _opened(file.readable)
        counts[file.path] = file.skip_lines + opened.metadata.num_rows
        try:
            groups[layout_of(file.readable, opened, schema, source)].append(Part(file, skip=file.skip_lines))
        except InputError as error:
            errors[file.path] = error
    if errors:
        raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors)
    rows = [
        _read_group(spark, source, schema, layout, parts, time_zone=time_zone) for layout, parts in groups.items()
    ]
    return Numbered(reduce(DataFrame.union, rows), counts)


def _read_group(
    spark: SparkSession,
    source: FilesSource,
    schema: StructType,
    layout: Layout,
    parts: Sequence[Part],
    *,
    time_zone: str,
) -> DataFrame:
    columns = {name: (in_file, kind) for name, in_file, kind in layout.columns}
    shape = [*columns.values(), *layout.unknown]
    ddl = ", ".join(f"{quoted(name)} {kind.read_as.sql}" for name, kind in shape)
    scan = spark.read.schema(ddl).parquet(*(spark_path(part.file.readable) for part in parts))
    place = scan.metadataColumn("_metadata")  # also if a column of the file has this name
    values = {name: f"__tm_value_{number}" for number, name in enumerate(scan.columns)}  # no name is that of a place
    rows = scan.select(
        *(F.col(quoted(name)).alias(value) for name, value in values.items()),
        place["file_path"].alias(URL),
        (place["row_index"] + 1).alias(_ROW),
    )
    wanted = types_in(schema)
    by_path = {part.file.readable: part for part in parts}
    by_url = {
        url: by_path[path_of_url(listed)]
        for listed in scan.inputFiles()
        for url in (listed, listed.replace("file:///", "file:/", 1))  # the spelling of `_metadata.file_path`
    }
    placed = with_files(spark, rows, by_url).withColumn(POSITION, F.col(SKIP) + F.col(_ROW))
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


_MOST_BYTES = 1 << 30  # of a row group: Spark reads larger ones, as it may use its disk
_OTHER_TEXTS = ("large_string", "large_binary", "string_view", "binary_view")  # their sizes are measured otherwise
FLAT = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""Types of payload columns that Arrow and Spark store alike."""


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
    """Refuse records that are too large or no text, see `unfit` in records.py."""
    rows.validate(full=True)
    texts = [column for column in rows.columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    sizes = [pc.binary_length(column).cast(pa.int64()).fill_null(0).to_numpy() for column in texts]
    if sizes and int(np.sum(sizes, axis=0).max(initial=0)) > LONGEST_LINE:
        raise pa.ArrowInvalid("a record is too large")


def plain_file(source: FilesSource, schema: StructType, time_zone: str, file: FileRange) -> PlainFile | None:
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
    opened = _opened(file.readable)
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
    stored = rows_of(partial(_opened, file.readable), list(dict.fromkeys(columns.values())))
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
    if ends["min"] is not None and not FIRST_US <= ends["min"] * scale <= ends["max"] * scale <= LAST_US:
        return None
    return np.where(np.asarray(values.is_null()), NONE, np.asarray(values.fill_null(0)) * scale)


def _columns(
    file: pq.ParquetFile, layout: Layout, source: FilesSource, schema: StructType, zone: str
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
    return isinstance(wanted, FLAT) and not (is_local or is_other or kind.stored)
