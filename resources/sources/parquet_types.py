"""The columns of a parquet file against those of the spec, on the driver before any Spark work.

Here: which type may be read as which; Spark's reader turns some numbers into others without a word. Not here: rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from tidemark.resources.sources.fitness import check_names
from tidemark.timeops.errors import InputError

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_LOSSLESS = {
    ("tinyint", "double"),
    ("smallint", "double"),
    ("int", "double"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
    ("timestamp_ntz", "timestamp"),  # read in the session's zone, which is UTC
}
_UNSIGNED: Mapping[pa.DataType, T.DataType] = {
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
}


@dataclass(frozen=True)
class Layout:
    """How the files of a group are read.

    Attributes:
        empty: Wanted columns that have no type in the file, as all their values are null.
        unknown: Names and types of the other columns to keep.
    """

    empty: frozenset[str]
    unknown: tuple[tuple[str, T.DataType], ...]


def layout_of(path: str, schema: T.StructType, *, keep_unknown: bool) -> Layout:
    """Check that a file has the wanted columns, with types that can be read without loss.

    Raises:
        InputError: A column is missing or ambiguous, or has a type that cannot be read as the one of the spec.
    """
    file = pq.ParquetFile(path)
    physical = {column.path: column.physical_type for column in map(file.schema.column, range(len(file.schema)))}
    types = {field.name: _type(field, physical.get(field.name)) for field in file.schema_arrow}
    check_names(path, schema.names, file.schema_arrow.names)
    arrow = {field.name: str(field.type) for field in file.schema_arrow}
    for field in schema:
        found = types[field.name]
        if found is None or not _is_lossless(found, field.dataType):
            raise _wrong_type(path, field.name, arrow[field.name], field.dataType.simpleString())
    empty = frozenset(name for name in schema.names if isinstance(types[name], T.NullType))
    unknown: list[tuple[str, T.DataType]] = []
    for name, kind in types.items() if keep_unknown else ():
        if name in schema.names or isinstance(kind, T.NullType):
            continue
        if kind is None:
            raise _wrong_type(path, name, arrow[name], "a type that Spark reads, as `keep_unknown` is set")
        unknown.append((name, kind))
    return Layout(empty, tuple(unknown))


def _type(field: pa.Field, physical: str | None) -> T.DataType | None:
    """The type as which Spark reads a column, None if it does not."""
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


def _is_lossless(found: T.DataType, wanted: T.DataType) -> bool:
    have, want = found.simpleString(), wanted.simpleString()
    if have == want or isinstance(found, T.NullType) or (have, want) in _LOSSLESS:
        return True
    if have in _INTEGERS and want in _INTEGERS:
        return _INTEGERS.index(have) <= _INTEGERS.index(want)
    if isinstance(found, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole_digits = wanted.precision - wanted.scale >= found.precision - found.scale
        return whole_digits and wanted.scale >= found.scale
    return False


def _wrong_type(path: str, column: str, found: str, wanted: str) -> InputError:
    nanoseconds = "; write timestamps in microseconds" if "[ns" in found else ""
    return InputError(
        f"{path}: column `{column}` has the type {found}",
        expected=f"{wanted}, or a type that can be read as it without loss",
        remedy=f"correct the type in `schema` or in the file{nanoseconds}",
    )
