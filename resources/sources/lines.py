r"""Lines of text files, which this process reads: their numbers, plain ones parsed, and copies for Arrow and Spark.

Here: where a line ends, lines that are too long for a record, blocks of lines; which lines of JSON are plain, and
their values; the copies. Not here: the parsing of other lines by Spark, and the rule of values, which this never
widens (resources/sources/text_files.py, timeops/expressions/text_values.py), fields of csv with line ends in them
(`multiLine`), whose ends only Spark's parser finds.

A line ends as for Hadoop's reader of text, which Spark uses: at \n, \r or \r\n. A mark of the byte order at the
start of a file is not part of its text.

A plain line is one JSON object with nothing around it, in UTF-8, with no key twice, in which each column has a value
of its type as nearly everyone writes it. Arrow reads it as Spark does, in a seventh of Spark's time. Spark reads a
block with any other line, and says what is wrong with it.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.resources.places.credentials import arrow_files
from tidemark.resources.places.place import Place, path_in_store
from tidemark.resources.sources.conversion import FIRST_READ_ALIKE_US
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import spark_path, text_in
from tidemark.resources.sources.records import CUT_MARK, FILE, LINE, MODIFIED, POSITION
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.spec.fields import all_names
from tidemark.timeops.values.utc import LAST_US

_MODIFIED_US = "__tm_modified_us"
_COPIED = pa.schema([(LINE, pa.string()), (POSITION, pa.int64()), (FILE, pa.string()), (_MODIFIED_US, pa.int64())])
LINES, ROWS = "lines", "parquet"
"""Formats of copies, as `FileRange.read_as`: lines for Spark's parser, and rows that Arrow has parsed."""

_BLOCK_CHUNKS = 16
_GROUP_BYTES = 16 << 20
_KEPT_BYTES = 1_000

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


@dataclass(frozen=True)
class Block:
    """Lines of a file, one after the other.

    Attributes:
        first: The number of the first one in the file, from 1.
        text: The lines; each ends with a line feed.
    """

    first: int
    text: bytes

    @cached_property
    def end(self) -> int:
        """The number of the line after them."""
        return self.first + self.text.count(b"\n")


AsRows = Callable[[bytes], pa.Table | None]
"""Parses the text of a block; None if some of its lines may be read in another way by Spark."""


@dataclass(frozen=True)
class Copies:
    """The copies of the lines of some files.

    Attributes:
        files: The files, each by the parts of its copy; `skip_lines` are the lines before a part of rows.
        counts: The lines of each file by its path, with the ones that were read before.
    """

    files: tuple[FileRange, ...]
    counts: Mapping[str, int]


def copied_lines(files: Sequence[FileRange], place: Place, parser_of: Callable[[], AsRows]) -> Copies:
    """Copy the lines of files that were not read before: rows where Arrow can parse them, else lines.

    Args:
        files: The files, none of them empty.
        place: A folder that every Spark that reads the copies can read.
        parser_of: Returns the parser of the lines of one file.

    Raises:
        OSError: A copy cannot be written.
        InputError: A file is shorter than at discovery, or a damaged archive.
    """
    parts: list[FileRange] = []
    counts: dict[str, int] = {}
    with _Copy(place / "lines.parquet") as lines:
        for number, file in enumerate(files):
            of_file, counts[file.path] = _copied(file, parser_of(), lines, place / f"{number}")
            parts += of_file
    return Copies(tuple(parts), counts)


def _copied(file: FileRange, as_rows: AsRows, lines: "_Copy", folder: Place) -> tuple[list[FileRange], int]:
    """Return the parts of the copy of a file, and how many lines it has.

    Rows are numbered by their place in a part, so each gap begins another one.
    """
    parts: list[FileRange] = []
    end, has_lines = file.skip_lines + 1, False
    with ExitStack() as written:
        rows: _Copy | None = None
        for block in blocks_of(file):
            end = block.end
            parsed = as_rows(block.text) if block.text else None
            if parsed is not None:
                if rows is None:
                    rows = written.enter_context(_Copy(folder / f"{block.first}.parquet"))
                    parts.append(replace(file, read_at=str(rows.path), read_as=ROWS, skip_lines=block.first - 1))
                rows.add(parsed)
            elif block.text:
                lines.add(_lines_of(file, block))
                rows, has_lines = None, True
    parts += [replace(file, read_at=str(lines.path), read_as=LINES)] if has_lines else []
    return parts, end - 1


def _lines_of(file: FileRange, block: Block) -> pa.Table:
    """Return lines as they are copied; bytes that are not UTF-8 are replaced."""
    # A sequence of bytes that is not UTF-8 does not reach beyond its line.
    text = pa.array([block.text[:-1].decode(errors="replace")])
    numbers = pa.array(np.arange(block.first, block.end))
    constants = [pa.repeat(value, len(numbers)) for value in (file.name, file.modified_us)]
    return pa.table([pc.split_pattern(text, "\n").flatten(), numbers, *constants], schema=_COPIED)


# Lines and their numbers.


def blocks_of(file: FileRange) -> Iterator[Block]:
    """Yield the lines of a file that were not read before; at least one block says how many lines it has.

    Raises:
        InputError: The file is shorter than at discovery, or a damaged archive.
    """
    skip, first, rest = file.skip_lines, 1, b""
    chunks = text_in(file.path, file.size)
    if file.long_lines:
        chunks = _shortened(chunks, file.long_lines)
    for text in iter(lambda: b"".join(islice(chunks, _BLOCK_CHUNKS)), b""):
        whole = rest + (text.removeprefix(codecs.BOM_UTF8) if first == 1 and not rest else text)
        half = whole.endswith(b"\r")  # a line feed may follow
        whole = _with_line_feeds(whole.removesuffix(b"\r"))
        end = whole.rfind(b"\n") + 1
        yield (block := _without(Block(first, whole[:end]), skip))
        first, rest = block.end, whole[end:] + (b"\r" if half else b"")
    if rest:
        yield _without(Block(first, _with_line_feeds(rest.removesuffix(b"\r")) + b"\n"), skip)


def _with_line_feeds(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _without(block: Block, skip: int) -> Block:
    """Return a block without the lines of the file up to a number."""
    before = min(skip + 1, block.end) - block.first
    return block if before <= 0 else Block(block.first + before, block.text.split(b"\n", before)[-1])


def _shortened(text: Iterable[bytes], long_lines: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield a text whose lines that are too long are cut to their beginnings and marked, with their lengths."""
    ahead = iter(long_lines)
    line = next(ahead, None)
    at, beginning = 0, b""
    for chunk in text:
        done = 0
        while done < len(chunk):
            if line is None or at + done < line[0]:
                stop = len(chunk) if line is None else min(len(chunk), line[0] - at)
                yield chunk[done:stop]
            else:
                stop = min(len(chunk), line[1] - at)
                beginning += chunk[done:stop][: _KEPT_BYTES - len(beginning)]
                if at + stop == line[1]:
                    yield _marked(beginning, line[1] - line[0])
                    line, beginning = next(ahead, None), b""
            done = stop
        at += len(chunk)


def _marked(beginning: bytes, size_bytes: int) -> bytes:
    text = beginning.decode("utf-8", errors="ignore")
    return f"{CUT_MARK}{text}… (the line has {size_bytes:,} bytes)".encode()


# Plain lines.


class _NotPlainError(Exception):
    """A line may be read in another way by Spark."""


def parser_of(source: FilesSource, schema: T.StructType, time_zone: str) -> Callable[[], AsRows]:
    """Return what makes a parser of the lines of a file, which returns rows for blocks of plain lines.

    Args:
        source: The source.
        schema: The columns by their names in the files.
        time_zone: IANA name of the zone of times without an offset.
    """
    if _is_plain(source, schema):
        return lambda: _Parser(schema, time_zone)
    return lambda: lambda _block: None


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
    if bounds["min"] is not None and not FIRST_READ_ALIKE_US <= bounds["min"] <= bounds["max"] <= LAST_US:
        raise _NotPlainError
    return instants


# Copies.


def new_file(copy: Place) -> IO[bytes]:
    """Open a new file, in folders that need not exist."""
    if isinstance(copy, Path):
        copy.parent.mkdir(parents=True, exist_ok=True)
        return copy.open("wb")
    opened: IO[bytes] = arrow_files(copy.root).open_output_stream(path_in_store(copy))
    return opened


class _Copy:
    """A copy, in groups of rows that a task of Spark reads; it exists if there are any."""

    def __init__(self, path: Place) -> None:
        self.path, self._stack = path, ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self._write()

    def add(self, rows: pa.Table) -> None:
        """Add rows to the end."""
        self._waiting.append(rows)
        if sum(table.nbytes for table in self._waiting) >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        if self._writer is None:
            target = self._stack.enter_context(new_file(self.path))
            writer = pq.ParquetWriter(target, rows.schema, compression="none", use_dictionary=[FILE])
            self._writer = self._stack.enter_context(writer)
        self._writer.write_table(rows, row_group_size=len(rows))
        self._waiting = []


def read_lines(spark: SparkSession, files: Sequence[FileRange]) -> DataFrame:
    """Return the copied lines of files, in `__tm_line`, with `_file`, `_position` and `_modified`."""
    paths = dict.fromkeys(spark_path(file.read_at) for file in files)
    schema = f"{LINE} STRING, {FILE} STRING, {POSITION} BIGINT, {_MODIFIED_US} BIGINT"
    modified = f"timestamp_micros({_MODIFIED_US}) AS {MODIFIED}"
    return spark.read.schema(schema).parquet(*paths).selectExpr(*map(quoted, (LINE, FILE, POSITION)), modified)
