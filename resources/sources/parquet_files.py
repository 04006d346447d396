"""Parquet: rows of columns found by name, with their place in the file.

Here: reading rows, and the lossless conversions of types: Spark's reader changes some numbers silently. Not here:
names after `rename`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from tidemark.resources.sources.fitness import columns_in_file
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.large_values import too_large
from tidemark.resources.sources.lines import FILE, MODIFIED, POSITION, Numbered, to_records
from tidemark.resources.sources.local_files import open_raw, path_of_url, spark_path
from tidemark.resources.spark.frames import frame_of
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import EVERY_MICROSECOND
from tidemark.timeops.spec import FilesSource

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_LOSSLESS = {
    ("tinyint", "double"),
    ("smallint", "double"),
    ("int", "double"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
    ("timestamp_ntz", "timestamp"),  # read in the zone of the source
}
_UNSIGNED: Mapping[pa.DataType, T.DataType] = {
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
}
_URL = "__tm_url"
_PLACES = StructType().add(_URL, T.StringType()).add(FILE, T.StringType()).add("__tm_modified_us", T.LongType())


@dataclass(frozen=True)
class Layout:
    """The columns of a group of files, as they are read.

    Attributes:
        names: Wanted columns, with their names in the file.
        local: Wanted columns of instants that are local times in the file.
        unknown: Names and types of the other columns to keep.
    """

    names: tuple[tuple[str, str], ...]
    local: frozenset[str]
    unknown: tuple[tuple[str, T.DataType], ...]


def layout_of(path: str, schema: T.StructType, source: FilesSource) -> Layout:
    """Check that a file has the wanted columns, with types that can be read without loss.

    A column is left out if the file may lack it, or if it has no type, as all its values are null.

    Raises:
        InputError: A column is missing or ambiguous, or has a type that cannot be read as the one of the spec.
    """
    with open_raw(path) as opened:
        file = pq.ParquetFile(opened)
    physical = {column.path: column.physical_type for column in map(file.schema.column, range(len(file.schema)))}
    types = {field.name: _type(field, physical.get(field.name)) for field in file.schema_arrow}
    columns = columns_in_file(path, source, schema.names, file.schema_arrow.names)
    there = {name: own for name, own in columns.items() if own is not None}
    arrow = {field.name: str(field.type) for field in file.schema_arrow}
    for name, own in there.items():
        found, wanted = types[own], schema[name].dataType
        if found is None or not is_lossless(found, wanted):
            raise wrong_type(path, own, arrow[own], wanted.simpleString())
    names = tuple((name, own) for name, own in there.items() if not isinstance(types[own], T.NullType))
    unknown: list[tuple[str, T.DataType]] = []
    for name, kind in types.items() if source.keep_unknown else ():
        if name in there.values() or isinstance(kind, T.NullType):
            continue
        if kind is None:
            raise wrong_type(path, name, arrow[name], "a type that Spark reads, as `keep_unknown` is set")
        unknown.append((name, kind))
    instants = {field.name for field in schema if isinstance(field.dataType, T.TimestampType)}
    local = frozenset(name for name, own in names if name in instants and _is_local(types[own]))
    return Layout(names, local, tuple(unknown))


def _is_local(found: T.DataType | None) -> bool:
    return isinstance(found, T.TimestampNTZType)


def converted(value: Column, found: T.DataType, wanted: T.DataType, time_zone: str) -> Column:
    """Return a value as another type, which `is_lossless` allows; local times become instants in a zone."""
    if isinstance(wanted, T.TimestampType) and _is_local(found):
        return F.to_utc_timestamp(value, time_zone)
    return value.cast(wanted)


def _type(field: pa.Field, physical: str | None) -> T.DataType | None:
    """Return the type as which Spark reads a column, None if it does not read it."""
    kind = field.type
    if physical == "INT96":
        return T.TimestampType()
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if "[ns" in str(kind) or pa.types.is_time(kind):
        return None
    try:
        return from_arrow_type(kind, prefer_timestamp_ntz=True)
    except PySparkException:
        return None


def is_lossless(found: T.DataType, wanted: T.DataType) -> bool:
    """Return whether every value of a type stays the same when it is read as another type."""
    have, want = found.simpleString(), wanted.simpleString()
    if have == want or isinstance(found, T.NullType) or (have, want) in _LOSSLESS:
        return True
    if have in _INTEGERS and want in _INTEGERS:
        return _INTEGERS.index(have) <= _INTEGERS.index(want)
    if isinstance(found, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole_digits = wanted.precision - wanted.scale >= found.precision - found.scale
        return whole_digits and wanted.scale >= found.scale
    return False


def wrong_type(path: str, column: str, found: str, wanted: str, *, of: str = "file") -> InputError:
    """Return the error for a column that cannot be read as the spec says."""
    nanoseconds = "; write timestamps in microseconds" if "[ns" in found else ""
    return InputError(
        f"{path}: column `{column}` has the type {found}",
        expected=f"{wanted}, or a type that converts to it without loss",
        remedy=f"correct the type in `schema` or in the {of}{nanoseconds}",
    )


def read_parquet(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange], time_zone: str
) -> Numbered:
    """Read parquet files: the columns of `schema`, and the columns that every reader adds (see files.py).

    Raises:
        UnfitFilesError: In some files a column is missing, or has a type that cannot be read as the one of the spec
            without loss.
    """
    groups: dict[Layout, list[FileRange]] = defaultdict(list)
    errors: dict[str, InputError] = {}
    for file in ranges:
        try:
            groups[layout_of(file.path, schema, source)].append(file)
        except InputError as error:
            errors[file.path] = error
    if errors:
        raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors)
    rows = [
        _read_group(spark, source, schema, layout, files, time_zone=time_zone) for layout, files in groups.items()
    ]
    counts = {file.path: _rows_of(file.path) for file in ranges}
    return Numbered(reduce(DataFrame.union, rows), counts)


def _rows_of(path: str) -> int:
    with open_raw(path) as file:
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
    own = dict(layout.names)
    read_as = {field.name: T.TimestampNTZType() if field.name in layout.local else field.dataType for field in schema}
    shape = StructType([StructField(own[name], kind) for name, kind in read_as.items() if name in own])
    unknown = StructType([StructField(name, kind) for name, kind in layout.unknown])
    scan = spark.read.schema(StructType([*shape, *unknown])).parquet(*(spark_path(file.path) for file in files))
    place = scan.metadataColumn("_metadata")  # also if a column of the file has this name
    values = {name: f"__tm_value_{number}" for number, name in enumerate(scan.columns)}  # no name is that of a place
    rows = scan.select(
        *(F.col(quoted(name)).alias(value) for name, value in values.items()),
        place["file_path"].alias(_URL),
        (place["row_index"] + 1).alias(POSITION),
    )
    by_path = {file.path: file for file in files}
    places = [
        (url, file.name, file.modified_us)
        for listed in scan.inputFiles()
        for file in [by_path[path_of_url(listed)]]
        for url in {listed, listed.replace("file:///", "file:/", 1)}  # the spelling of `_metadata.file_path`
    ]
    table = frame_of(spark, places, _PLACES)
    placed = rows.join(F.broadcast(table), _URL).withColumn(MODIFIED, F.timestamp_micros("__tm_modified_us"))
    others = [F.col(values[name]).alias(name) for name in unknown.names]
    kept = F.to_json(F.struct(*others), EVERY_MICROSECOND) if others else F.lit(None)
    return to_records(
        placed,
        source,
        columns={
            field.name: converted(F.col(values[own[field.name]]), read_as[field.name], field.dataType, time_zone)
            if field.name in own
            else F.lit(None).cast(field.dataType)
            for field in schema
        },
        rescued=kept.cast("string"),
        malformed=too_large({name: (F.col(values[name]), scan.schema[name].dataType) for name in values}),
    )
