"""JSON lines that Arrow reads as Spark does, in a seventh of Spark's time.

Here: which lines are plain, and their values. Not here: the copies of rows and of lines (lines.py), the rule of
values, which this never widens (text_files.py, timeops/expressions/text_values.py).

A plain line is one JSON object with nothing around it, in UTF-8, with no key twice, in which each column has a value
of its type as nearly everyone writes it. Spark reads a block with any other line, and says what is wrong with it.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import types as T

from tidemark.resources.sources.lines import AsRows
from tidemark.resources.sources.parquet_files import FIRST_US
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.spec.fields import all_names
from tidemark.timeops.values.utc import LAST_US

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
_SAMPLE_BYTES = 1 << 20
_MOST_UNKNOWN = 500  # columns that the source does not name: more may be keys that never end
_LONGEST_NAME = 1_000
_LONG_LINE, _LONG_NUMBER = 1_000, re.compile(rb"\d{300}")
"""Spark's parser refuses a number of more than 1,000 signs: at least 300 of them are digits in a row."""


class _NotPlainError(Exception):
    """A line may be read in another way by Spark."""


def parser_of(source: FilesSource, schema: T.StructType, time_zone: str) -> Callable[[], AsRows]:
    """Return what makes a parser of the lines of a file, which returns rows for blocks of plain lines.

    Args:
        source: The source.
        schema: The columns by their names in the files.
        time_zone: IANA name of the zone of times without an offset.
    """
    is_plain = _is_plain(source, schema)
    return lambda: _Parser(schema, time_zone) if is_plain else lambda _: None


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


class _Parser:
    """Parses the blocks of one file: the keys of its objects are found in the first block, and in any with others."""

    def __init__(self, schema: T.StructType, time_zone: str) -> None:
        self._schema, self._time_zone = schema, time_zone
        self._wanted = pa.schema([(field.name, _TYPES[type(field.dataType)]) for field in schema])
        self._options: pj.ParseOptions | None = None

    def __call__(self, text: bytes) -> pa.Table | None:
        """Return the rows of lines; None if one of them is not plain."""
        beginning = text[: text.rfind(b"\n", 0, _SAMPLE_BYTES) + 1] or text
        for sample in (None, beginning, text if len(text) > len(beginning) else None):
            try:
                options = self._options if sample is None else _options(sample, self._wanted)
                rows = None if options is None else self._rows(text, options)
            except pa.ArrowInvalid:  # perhaps a key that no line of the sample has
                continue
            except (_NotPlainError, pa.ArrowException, UnicodeDecodeError):
                return None
            if rows is not None:
                self._options = options
                return rows
        return None

    def _rows(self, text: bytes, options: pj.ParseOptions) -> pa.Table:
        """Return the objects of lines, with instants in place of their texts; each line must be one object."""
        rows = _read(text, options)
        # No object has an opening brace right after a closing one, so that each begins in a line where another ended.
        are_lines = text.startswith(b"{") and text.endswith(b"}\n") and text.count(b"\n") == text.count(b"}\n{") + 1
        if not are_lines or len(rows) != text.count(b"\n") or _may_have_long_number(text):
            raise _NotPlainError
        columns = []
        for field in self._schema:
            values = rows[field.name]
            if isinstance(field.dataType, T.TimestampType):
                values = _instants(values, self._time_zone)
            elif isinstance(field.dataType, T.DoubleType) and not _is_plain_number(values):
                raise _NotPlainError
            columns.append(values)
        table = pa.table(columns, names=self._wanted.names)
        table.validate(full=True)
        return table


def _options(sample: bytes, wanted: pa.Schema) -> pj.ParseOptions:
    """Return options that read the wanted keys, and refuse a line with a key that no line of a sample has.

    Keys that the source does not name are read too, as only so a key that a line has twice is found.
    """
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


def _read(block: bytes, options: pj.ParseOptions) -> pa.Table:
    return pj.read_json(pa.BufferReader(block), parse_options=options)


def _may_have_long_number(block: bytes) -> bool:
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    return bool(np.diff(ends, prepend=-1).max() > _LONG_LINE) and _LONG_NUMBER.search(block) is not None


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
