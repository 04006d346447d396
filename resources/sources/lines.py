"""Lines of text and their exact numbers, also if Spark cuts a file into several tasks: for csv and json lines.

Here: counting the lines of each block once and numbering them by that count, and the step from a parsed line to a
record or a malformed one. Not here: parsing (csv_files.py, json_files.py).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import path_of_url, spark_path
from tidemark.resources.sources.long_lines import beginning_of, is_too_long
from tidemark.resources.spark.frames import Value, frame_of
from tidemark.timeops.spec import Source

FILE, POSITION, MODIFIED = "_file", "_position", "_modified"
GROUP = "__tm_group"
_URL, _BLOCK, _ID = "__tm_url", "__tm_block", "__tm_id"
_BLOCKS = StructType(
    [
        StructField(_URL, StringType()),
        StructField(_BLOCK, LongType()),
        StructField("__tm_lowest", LongType()),
        StructField("__tm_before", LongType()),
        StructField("__tm_lines", LongType()),
        StructField("__tm_is_last", BooleanType()),
        StructField("__tm_skip", LongType()),
        StructField("__tm_modified_us", LongType()),
        StructField(FILE, StringType()),
        StructField(GROUP, IntegerType()),
    ]
)
MALFORMED, RESCUED = "_malformed", "_rescued"
LINE = "__tm_line"
RAW = "__tm_raw"  # the column in which Spark's parsers report a record that they could not parse


@dataclass(frozen=True)
class Part:
    """The part of one file that is read.

    Attributes:
        file: The file.
        skip: Number of records at its start that are left out: read before, or the header.
        group: Number of the layout that its records have.
    """

    file: FileRange
    skip: int = 0
    group: int = 0


@dataclass(frozen=True)
class Numbered:
    """Records with their place.

    Attributes:
        records: The columns of the scan, `_file`, `_position` (1-based), `_modified`, and `__tm_group`.
        counts: Number of records of each path, including the ones left out.
    """

    records: DataFrame
    counts: Mapping[str, int]


def number(spark: SparkSession, scan: DataFrame, parts: Sequence[Part]) -> Numbered:
    """Number the records of a scan of text or CSV files as they lie in their files.

    Spark's ids rise within a task, and a task reads a block of a file in its order. So one job counts the records of
    each block and finds its lowest id; the plan that reads them adds the records of the blocks before. Both see the
    same splits, as a scan lists its files once. Records beyond the counted ones, of a file that has grown since, are
    left out: they belong to the next ingestion.

    Args:
        spark: The session.
        scan: A reader's DataFrame, untouched.
        parts: The part to read of each of its files.
    """
    tagged = scan.select(
        "*",
        F.col("_metadata.file_path").alias(_URL),
        F.col("_metadata.file_block_start").alias(_BLOCK),
        F.monotonically_increasing_id().alias(_ID),
    )
    counted = (
        tagged.groupBy(_URL, _BLOCK)
        .agg(F.count(F.lit(1)).alias("lines"), F.min(_ID).alias("lowest"))
        .orderBy(_URL, _BLOCK)
        .collect()
    )
    table, counts = _block_table(counted, {part.file.readable: part for part in parts})
    blocks = F.broadcast(frame_of(spark, table, _BLOCKS))
    records = (
        tagged.join(blocks, [_URL, _BLOCK], "left")
        .withColumn(POSITION, _position())
        # Rows of blocks that were not counted stay, otherwise the optimizer would drop them before they raise.
        .where(F.col("__tm_lines").isNull() | _belongs())
        .withColumn(MODIFIED, F.timestamp_micros("__tm_modified_us"))
        .select(*scan.columns, FILE, POSITION, MODIFIED, GROUP)
    )
    return Numbered(records, counts)


def _block_table(counted: Sequence[Row], parts: Mapping[str, Part]) -> tuple[list[tuple[Value, ...]], dict[str, int]]:
    before: dict[str, int] = defaultdict(int)
    table: list[tuple[Value, ...]] = []
    last = {row[_URL]: row[_BLOCK] for row in counted}
    for row in counted:
        path = path_of_url(row[_URL])
        part = parts[path]
        is_last = row[_BLOCK] == last[row[_URL]]
        lines = row["lines"] - (1 if is_last and part.file.left_bytes else 0)
        place = (row[_URL], row[_BLOCK], row["lowest"], before[path], lines, is_last)
        table.append((*place, part.skip, part.file.modified_us, part.file.name, part.group))
        before[path] += lines
    return table, {part.file.path: before.get(path, 0) for path, part in parts.items()}


def _position() -> Column:
    """Return lines of earlier blocks plus the place in the block; fail if the splits are not the counted ones."""
    offset = F.col(_ID) - F.col("__tm_lowest")
    overfull = ~F.col("__tm_is_last") & (offset >= F.col("__tm_lines"))
    unknown = F.col("__tm_lowest").isNull() | (offset < 0) | overfull
    error = F.concat(F.lit("The splits changed between counting and reading "), F.col(_URL))
    return F.when(unknown, F.raise_error(error).cast("bigint")).otherwise(F.col("__tm_before") + offset + 1)


def _belongs() -> Column:
    """Return whether a line belongs to this ingestion: neither read before nor added since the count."""
    return (F.col(POSITION) > F.col("__tm_skip")) & (F.col(POSITION) <= F.col("__tm_before") + F.col("__tm_lines"))


def read_lines(spark: SparkSession, parts: Sequence[Part]) -> Numbered:
    """Return the lines of text files with their numbers, in `__tm_line`; bytes that are not UTF-8 are replaced."""
    numbered = number(spark, spark.read.text([spark_path(part.file.readable) for part in parts]), parts)
    lines = numbered.records.withColumn(LINE, F.make_valid_utf8("value")).drop("value")
    return Numbered(lines, numbered.counts)


def parser_options(source: Source) -> dict[str, str]:
    """Return the options of a source for Spark's parsers; no record is dropped and none fails a job."""
    options = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in source.reader_options.items()
        if name not in {"header", "multiLine"}
    }
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW}


def to_records(
    lines: DataFrame, source: Source, columns: Mapping[str, Column], rescued: Column, malformed: Column
) -> DataFrame:
    """Turn parsed lines into records with renamed columns; of a malformed one only its text and place remain.

    Args:
        lines: Parsed lines with `_file`, `_position`, `_modified`.
        source: Says whether unknown columns are kept.
        columns: Payload columns by their name in the file.
        rescued: Unknown columns as JSON text; null or `{}` without any.
        malformed: The text of a line that could not be parsed, else null.
    """
    if LINE in lines.columns:
        malformed = F.when(is_too_long(F.col(LINE)), beginning_of(F.col(LINE))).otherwise(malformed)
    marked = lines.withColumn(MALFORMED, malformed)
    sound = F.col(MALFORMED).isNull()
    payload = [F.when(sound, column).alias(source.rename.get(name, name)) for name, column in columns.items()]
    place = (MALFORMED, FILE, POSITION, MODIFIED)
    if not source.keep_unknown:
        return marked.select(*payload, *place)
    # Use two steps, so that Spark writes the JSON text once rather than once for each use.
    kept = marked.withColumn(RESCUED, F.when(sound, rescued))
    return kept.select(*payload, F.nullif(RESCUED, F.lit("{}")).alias(RESCUED), *place)
