"""The records of files: plain ones by Arrow, the others by Spark.

Here: reading the files of an ingestion, and finding the file at which a common read fails. Not here: which files
these are (files.py), the parsing of each format (text_files.py, parquet_files.py).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemark.resources.places.place import Place
from tidemark.resources.sources.known_files import FileRange, ensure_unchanged, has_lines, state_of
from tidemark.resources.sources.lines import LINES, copied_lines
from tidemark.resources.sources.parquet_files import PlainFile, fault_of_parquet, plain_file, read_parquet
from tidemark.resources.sources.plain_lines import parser_of
from tidemark.resources.sources.reader import SourceRead
from tidemark.resources.sources.records import (
    SPARK_FAILURES,
    Numbered,
    cause_of,
    is_of_a_file,
    no_records,
    schema_in_input,
)
from tidemark.resources.sources.text_files import read_csv, read_json
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.spec import FilesSource


@dataclass(frozen=True)
class FileFormat:
    """The parts that read one format of files.

    Attributes:
        read: Reads the records of files, see `read_files`.
        fault: Names the damage of a file that Spark could not read to its end; empty if it finds none.
    """

    read: Callable[[SparkSession, FilesSource, StructType, Sequence[FileRange], str], Numbered]
    fault: Callable[[str], str] = lambda _path: ""


FORMATS: Mapping[str, FileFormat] = {
    "csv": FileFormat(read_csv),
    "json": FileFormat(read_json),
    "parquet": FileFormat(read_parquet, fault_of_parquet),
}
"""By `format` of a source."""


def read_files(
    spark: SparkSession, source: FilesSource, ranges: Sequence[FileRange], place: Place, time_zone: str
) -> SourceRead:
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
    return SourceRead(
        read.records,
        tuple(states),
        count=None if others else 0,
        plain=tuple(plain),
        by_spark=lambda files: by_spark(files).records,
    )


def _by_spark(
    spark: SparkSession, source: FilesSource, schema: StructType, files: Sequence[FileRange], *, zone: str
) -> Numbered:
    by_format: dict[str, list[FileRange]] = defaultdict(list)
    for file in files:
        by_format[source.format if file.read_as in {"", LINES} else file.read_as].append(file)
    read = [FORMATS[kind].read(spark, source, schema, alike, zone) for kind, alike in by_format.items()]
    records = reduce(DataFrame.unionByName, [part.records for part in read])
    return Numbered(records, {path: count for part in read for path, count in part.counts.items()})


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
