"""Files as a source: the records of the ranges that discovery chose, and the states to remember of their files.

Here: the shape of a record, whatever the format, and finding the file at which a common read fails. Not here: the
choice of files (discovery.py), checks of one file before it is read (fitness.py), the parsing of each format
(csv_files.py, json_files.py, parquet_files.py), storing records.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemark.resources.places.place import Place
from tidemark.resources.sources.csv_files import read_csv
from tidemark.resources.sources.discovery import FilesFound, discover, ensure_unchanged, listed
from tidemark.resources.sources.footers import ParquetLooks
from tidemark.resources.sources.json_files import read_json
from tidemark.resources.sources.known_files import FileRange, counted, state_of
from tidemark.resources.sources.lines import FILE, MALFORMED, MODIFIED, POSITION, RESCUED, Numbered
from tidemark.resources.sources.long_lines import with_short_lines
from tidemark.resources.sources.parquet_files import read_parquet
from tidemark.resources.sources.reader import Known, Needs, SourceRead
from tidemark.resources.spark.frames import small_frame
from tidemark.timeops.errors import InputError, SpecError, UnfitFilesError, first_line
from tidemark.timeops.expressions.refusals import Asked, first_sentence, problem_of
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import text_of
from tidemark.timeops.problems import told
from tidemark.timeops.spec import FilesSource, Source
from tidemark.timeops.spec.fields import ILLEGAL_IN_STRUCTS, name_in_tables, names_in_files
from tidemark.timeops.spec_check import is_storable

_READERS: Mapping[str, Callable[[SparkSession, FilesSource, StructType, Sequence[FileRange], str], Numbered]] = {
    "csv": read_csv,
    "json": read_json,
    "parquet": read_parquet,
}
SPARK_FAILURES = (PySparkException, Py4JJavaError)
"""Errors of Spark; the latter if PySpark has no class for it."""
_CONDITION = re.compile(r"\[FAILED_READ_FILE\.(\w+)\]")
_FILE = re.compile(r"while reading file (\S+?)\.(?:\s|$)")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class FilesReader:
    """Reads a source of files; see `SourceReader`.

    Attributes:
        source: The source of the spec.
        base: The folder of the spec file.
    """

    source: FilesSource
    base: Path

    def needs(self) -> Needs:
        """Return nothing."""
        return Needs()

    def seen(self, known: Known) -> list[object]:  # noqa: ARG002
        """Return the listing of the files; none is opened."""
        return [*listed(self.source, self.base)]

    def look(self, known: Known) -> FilesFound:
        """Compare the files with their remembered states."""
        asked: dict[str, Any] = {"reread": known.reread, "is_at_end": known.is_at_end, "held": known.held}
        return discover(self.source, self.base, known.states, known.now, **asked)

    def until_judged(self, found: FilesFound, ahead: Collection[str]) -> FilesFound:  # noqa: ARG002
        """Return the findings: the look of an aligned source stops between two files already."""
        return found

    def remember(self, found: FilesFound) -> Mapping[str, Any]:
        """Return of each file its path, the lines that were read before, and its bytes."""
        return {"files": [[file.path, file.skip_lines, file.size] for file in found.ready]}

    def read(self, spark: SparkSession, found: FilesFound, place: Place, time_zone: str) -> SourceRead:
        """Read the files; a line that is too long is read from a copy."""
        read = read_files(spark, self.source, with_short_lines(found.ready, place), time_zone)
        return replace(read, states=(*read.states, *found.touched, *counted(found.copies, read.states)))

    def to_blame(self, spark: SparkSession, found: FilesFound) -> Mapping[str, InputError]:
        """Find the files that cannot be read to their end."""
        return unreadable(spark, self.source, [file for file in found.ready if not file.long_lines])


def read_files(
    spark: SparkSession, source: FilesSource, ranges: Sequence[FileRange], time_zone: str = "UTC"
) -> SourceRead:
    """Read the records of an ingestion; one small job counts lines, the records themselves are lazy.

    A file may change after this has returned and before its records are stored: call `ensure_unchanged` then.

    Args:
        spark: The session.
        source: The files source of the spec.
        ranges: The `ready` files of its discovery.
        time_zone: Zone for times without one, unless the source has its own.

    Raises:
        SpecError: `schema`, `rename` or an option of the source is wrong.
        InputError: A file lacks a column, has one of another type, or changed since its discovery.
    """
    schema = schema_in_input(spark, source)
    filled = [file for file in ranges if file.size]
    counts: Mapping[str, int] = {}
    if filled:
        numbered = _READERS[source.format](spark, source, schema, filled, source.time_zone or time_zone)
        records, counts = numbered.records, numbered.counts
    else:
        records = no_records(spark, source)
    ensure_unchanged(ranges)
    states = tuple(state_of(file, counts.get(file.path, 0)) for file in ranges)
    return SourceRead(records, states)


def split_of(records: DataFrame, source: Source) -> Column:
    """Return the split of each record as STRING; null if it has none, or if the expression fails on it.

    For a record of Kafka it is the partition, unless the spec says otherwise.

    Raises:
        SpecError: The expression does not fit the columns.
    """
    if source.split is None:
        return F.col(FILE) if source.is_read_by_split else F.lit(None).cast("string")
    try:
        return text_of(records, source.split)
    except AnalysisException as error:
        where = f"sources[{source.name}].split"
        raise told(problem_of(error, Asked(source.split, records.columns)), where) from None


def payload_schema(spark: SparkSession, source: Source) -> StructType:
    """Return the payload columns of a source, after `rename`; all of them may be null. Needs no file.

    Raises:
        SpecError: `schema` or `rename` of the source is wrong.
    """
    fields = schema_in_input(spark, source).fields
    return StructType([StructField(name_in_tables(f.name, source.rename), f.dataType) for f in fields])


def schema_in_input(spark: SparkSession, source: Source) -> StructType:
    """Return the payload columns by their names in the files, or in the table.

    Raises:
        SpecError: `schema` or `rename` of the source is wrong.
    """
    try:
        schema = StructType.fromDDL(source.columns)
    except PySparkException as error:
        raise _wrong_schema(source, first_sentence(error)) from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise _wrong_schema(source, f"found {source.columns!r}")
    if '"nullable":false' in schema.json():
        raise _wrong_schema(source, "NOT NULL has no effect: what a record lacks is null")
    for field in schema:
        for name in _names_inside(field.dataType):
            if signs := "".join(sorted(ILLEGAL_IN_STRUCTS.intersection(name))):
                what = f"column `{field.name}`: the name `{name}` inside of it holds {signs!r}"
                raise _wrong_schema(source, what, f"take `{field.name}` as STRING or MAP: `rename` cannot reach it")
    _check_types(spark, source, schema)
    in_files = names_in_files(schema.names, source.rename)
    fields = [StructField(in_files[field.name], field.dataType) for field in schema]
    added = [StructField(name, DataType.fromDDL(kind)) for name, kind in source.added_columns.items()]
    return StructType([*fields, *added])


def _check_types(spark: SparkSession, source: Source, schema: StructType) -> None:
    """Refuse types that the format does not know; this runs no job."""
    form = source.form
    if form == "raw" and not isinstance(schema[0].dataType, StringType | BinaryType):
        raise _wrong_schema(source, f"column `{schema[0].name}`: a raw value is STRING or BINARY")
    unknown = (ArrayType, MapType, StructType, NullType) if form == "csv" else (NullType,)
    for field in schema:
        kind = field.dataType.simpleString()
        if isinstance(field.dataType, unknown):
            raise _wrong_schema(source, f"column `{field.name}`: {form} has no {kind}")
        if not is_storable(field.dataType):
            raise _wrong_schema(source, f"column `{field.name}` is {kind.upper()}, which no table can hold")
    ddl = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema)
    try:
        _let_parse(spark, ddl, is_json=form == "json")
    except PySparkException as error:
        raise _wrong_schema(source, first_sentence(error)) from error


@lru_cache(maxsize=256)
def _let_parse(spark: SparkSession, ddl: str, *, is_json: bool) -> None:
    """Let Spark's parser confirm that it knows the types: once, as each stage of a batch asks for the columns."""
    parser = F.from_json if is_json else F.from_csv
    _ = spark.range(1).select(parser(F.lit(""), ddl)).schema


def _names_inside(kind: DataType) -> Iterator[str]:
    """Yield the names of the fields of structs at any depth."""
    match kind:
        case StructType():
            for field in kind:
                yield field.name
                yield from _names_inside(field.dataType)
        case ArrayType():
            yield from _names_inside(kind.elementType)
        case MapType():
            yield from _names_inside(kind.keyType)
            yield from _names_inside(kind.valueType)


def _wrong_schema(source: Source, found: str, remedy: str = "correct `schema`") -> SpecError:
    return SpecError(
        f"`sources[{source.name}].schema`: {found}",
        expected="columns as Spark DDL, such as 'id STRING, amount DOUBLE, at TIMESTAMP'",
        remedy=remedy,
    )


def no_records(spark: SparkSession, source: Source) -> DataFrame:
    """Return a frame without records, with the columns of `SourceRead.records`."""
    schema = StructType(payload_schema(spark, source).fields)
    for name in (RESCUED, MALFORMED, FILE) if source.keep_unknown else (MALFORMED, FILE):
        schema = schema.add(name, StringType())
    return small_frame(spark, [], schema.add(POSITION, LongType()).add(MODIFIED, TimestampType()))


def is_of_a_file(error: Exception) -> bool:
    """Return whether Spark failed at the content of a file, and not for want of memory, disk or the file itself.

    A failure in a task comes as an error of the JVM or of the server, without a condition of its own; so the
    condition is found in its text.
    """
    conditions = _CONDITION.findall(str(error))
    return bool(conditions) and "FILE_NOT_EXIST" not in conditions


def cause_of(error: Exception) -> str:
    """Return why Spark could not read a file."""
    said = _CAUSE.search(str(error))
    return said[1] if said else "Spark does not say why"


def file_that_failed(error: Exception) -> str:
    """Return the URL of the file whose content Spark failed at, as Spark names it; empty if it names none."""
    said = _FILE.search(str(error))
    return said[1] if said else ""


def unreadable(spark: SparkSession, source: FilesSource, files: Sequence[FileRange]) -> dict[str, InputError]:
    """Find the files that Spark cannot read to their end, by halves: one in n takes log2(n) reads of each.

    Args:
        spark: The session.
        source: The source.
        files: Files that were to be read together.

    Returns:
        An error for each, by path.

    Raises:
        InputError: A file changes while it is read.
        PySparkException, Py4JJavaError: Spark failed for another reason than a file.
    """
    if not files:
        return {}
    try:
        read_files(spark, source, files).records.write.format("noop").mode("overwrite").save()
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


def _error(path: str, source: FilesSource, error: Exception) -> InputError:
    why = _fault_of_parquet(path) if source.format == "parquet" else ""
    return InputError(
        f"{path}: the file cannot be read to its end: {why or cause_of(error)}",
        expected="a file that is whole and undamaged; nothing of it was ingested",
        remedy="land the whole file again; it is tried again when its size or modification time changes",
    )


def _fault_of_parquet(path: str) -> str:
    """Return the first damaged part by the report of another reader; empty if it finds none."""
    with ParquetLooks() as looks:
        first = first_line(looks.fault(path))
    return "".join(sign for sign in first if sign.isprintable()).rstrip(" :")
