"""JSON lines that Arrow reads as Spark does: their values are copied to parquet, in a seventh of Spark's time.

Here: which lines are plain, and the copies. Not here: the rule of values, which this never widens (text_files.py,
timeops/expressions/text_values.py), reading the copies (parquet_files.py).

A plain line is one JSON object with nothing around it, in UTF-8, with no key twice, in which each column has a value
of its type as nearly everyone writes it. A file with any other line is not copied: Spark reads it, and says what is
wrong with the line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import types as T

from tidemark.resources.places.place import Place
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import is_compressed, text_in
from tidemark.resources.sources.parquet_files import FIRST_US
from tidemark.resources.sources.records import new_file
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.spec.fields import all_names
from tidemark.timeops.utc import LAST_US

_TYPES: Mapping[type[T.DataType], pa.DataType] = {
    T.StringType: pa.string(),
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.DoubleType: pa.float64(),
    T.TimestampType: pa.string(),
}
_INSTANT = pa.timestamp("us", "UTC")
_WRITTEN = (
    r"^\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
    r"(Z|[+-](0\d|1[0-7])(:?[0-5]\d)?)?$"
)
"""A time that Arrow and Spark both read, and in the same way."""
_BLOCK_CHUNKS = 16
_SAMPLE_BYTES = 1 << 20
_MOST_UNKNOWN = 500  # columns that the source does not name: more may be keys that never end
_LONGEST_NAME = 1_000
_LONG_LINE, _LONG_NUMBER = 1_000, re.compile(rb"\d{300}")
"""Spark's parser refuses a number of more than 1,000 signs: at least 300 of them are digits in a row."""


class _NotPlainError(Exception):
    """A line may be read in another way by Spark."""


def with_plain_copies(
    files: Sequence[FileRange], source: FilesSource, schema: T.StructType, time_zone: str, place: Place
) -> tuple[FileRange, ...]:
    """Return the files of a source, with a copy in `place` instead of each that has only plain lines.

    Args:
        files: The files, none of them empty.
        source: The source.
        schema: The columns by their names in the files.
        time_zone: IANA name of the zone of times without an offset.
        place: A folder that every Spark that reads the copies can read.

    Raises:
        OSError: A copy cannot be written.
        InputError: A file is shorter than at discovery, or a damaged archive.
    """
    if not _is_plain(source, schema):
        return tuple(files)
    return tuple(
        replace(file, read_at=str(copy), read_as="parquet")
        if _copy(file, schema, time_zone, copy := place / source.name / f"{number}.parquet")
        else file
        for number, file in enumerate(files)
    )


def _is_plain(source: FilesSource, schema: T.StructType) -> bool:
    """Return whether plain lines may be read without Spark: no option changes them, and unknown keys are dropped."""
    names = [field.name for field in schema]
    return (
        source.format == "json"
        and not source.reader_options
        and not source.keep_unknown
        and all(type(field.dataType) in _TYPES for field in schema)
        and len({name.lower() for name in names}) == len(names)
        and all(len(all_names(name, source.rename)) == 1 for name in names)
    )


def _copy(file: FileRange, schema: T.StructType, time_zone: str, copy: Place) -> bool:
    """Write the values of the lines, in their order, unless one is not plain; return whether all are."""
    if file.read_at or (file.left_bytes and is_compressed(file.path)):
        return False
    wanted = pa.schema([(field.name, _TYPES[type(field.dataType)]) for field in schema])
    options: pj.ParseOptions | None = None
    writer: pq.ParquetWriter | None = None
    with new_file(copy) as target:
        try:
            for block in _blocks(file):
                options = options or _options(block, wanted)
                rows = _typed(_objects(block, options).select(wanted.names), schema, time_zone)
                writer = writer or pq.ParquetWriter(target, rows.schema, compression="none", use_dictionary=False)
                writer.write_table(rows)
        except (_NotPlainError, pa.ArrowException, UnicodeDecodeError):
            return False
        finally:
            if writer is not None:
                writer.close()
    return writer is not None


def _blocks(file: FileRange) -> Iterator[bytes]:
    """Yield the lines that were not read before, each with its end."""
    skip, rest = file.skip_lines, b""
    chunks = text_in(file.path, file.size)
    for text in iter(lambda: b"".join(islice(chunks, _BLOCK_CHUNKS)), b""):
        if b"\r" in text:  # which ends a line for Spark
            raise _NotPlainError
        whole = rest + text
        end = whole.rfind(b"\n") + 1
        lines, rest = whole[:end], whole[end:]
        skipped = min(skip, lines.count(b"\n"))
        skip -= skipped
        if left := lines.split(b"\n", skipped)[-1]:
            yield left
    if rest and not skip:
        yield rest + b"\n"


def _options(block: bytes, wanted: pa.Schema) -> pj.ParseOptions:
    """Return options that read the wanted keys, and refuse a line with a key that no line of the sample has.

    Keys that the source does not name are read too, as only so a key that a line has twice is found.
    """
    sample = block[: block.rfind(b"\n", 0, _SAMPLE_BYTES) + 1] or block
    schema = _read(sample, pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="infer")).schema
    unknown = [pa.field(field.name, _as_unknown(field.type)) for field in schema if field.name not in wanted.names]
    if len(unknown) > _MOST_UNKNOWN or any(len(field.name) > _LONGEST_NAME for field in unknown):
        raise _NotPlainError
    return pj.ParseOptions(explicit_schema=pa.schema([*wanted, *unknown]), unexpected_field_behavior="error")


def _as_unknown(kind: pa.DataType) -> pa.DataType:
    """Return a type that also holds values like the ones of the sample."""
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    return pa.float64() if pa.types.is_integer(kind) else kind


def _objects(block: bytes, options: pj.ParseOptions) -> pa.Table:
    """Return the objects of lines; each line must be one."""
    rows = _read(block, options)
    # No object has an opening brace right after a closing one, so that each begins in a line where another ended.
    are_lines = block.startswith(b"{") and block.endswith(b"}\n") and block.count(b"\n") == block.count(b"}\n{") + 1
    if not are_lines or len(rows) != block.count(b"\n") or _may_have_long_number(block):
        raise _NotPlainError
    return rows


def _read(block: bytes, options: pj.ParseOptions) -> pa.Table:
    return pj.read_json(pa.BufferReader(block), parse_options=options)


def _may_have_long_number(block: bytes) -> bool:
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    return bool(np.diff(ends, prepend=-1).max() > _LONG_LINE) and _LONG_NUMBER.search(block) is not None


def _typed(rows: pa.Table, schema: T.StructType, time_zone: str) -> pa.Table:
    """Return the rows with instants in place of their texts; every number is finite."""
    columns = []
    for field in schema:
        values = rows[field.name]
        if isinstance(field.dataType, T.TimestampType):
            values = _instants(values, time_zone)
        elif isinstance(field.dataType, T.DoubleType) and not _is_plain_number(values):
            raise _NotPlainError
        columns.append(values)
    table = pa.table(columns, names=rows.column_names)
    table.validate(full=True)
    return table


def _is_plain_number(values: pa.ChunkedArray) -> bool:
    """Return whether no number is too large, nor `-0`, which Spark takes for an integer."""
    numbers = values.drop_null().to_numpy()
    return bool(np.all(np.isfinite(numbers) & ((numbers != 0) | ~np.signbit(numbers))))


def _instants(texts: pa.ChunkedArray, time_zone: str) -> pa.ChunkedArray:
    if pc.all(pc.match_substring_regex(texts, _WRITTEN)).as_py() is False:
        raise _NotPlainError
    try:
        instants = texts.cast(_INSTANT)
    except pa.ArrowInvalid:  # some have no offset
        if time_zone != "UTC":
            raise
        instants = texts.cast(pa.timestamp("us")).cast(_INSTANT)
    bounds = pc.min_max(instants.cast(pa.int64())).as_py()
    if bounds["min"] is not None and not FIRST_US <= bounds["min"] <= bounds["max"] <= LAST_US:
        raise _NotPlainError
    return instants
