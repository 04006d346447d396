"""Text lines and the shape of a record: what the readers of csv and json lines share.

Here: scanning lines, and the step from a parsed line to a record or a malformed one. Not here: parsing.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.resources.sources.local_files import spark_path
from tidemark.resources.sources.positions import FILE, MODIFIED, POSITION, Numbered, Part, number
from tidemark.timeops.spec import FilesSource

MALFORMED, RESCUED = "_malformed", "_rescued"
LINE = "__line"
RAW = "__raw"  # the column in which Spark's parsers report a record that they could not parse


def quoted(name: str) -> str:
    """A column name as an identifier, dots and backticks in it meaning nothing."""
    return "`" + name.replace("`", "``") + "`"


def read_lines(spark: SparkSession, parts: Sequence[Part]) -> Numbered:
    """The lines of text files with their numbers, in column `__line`; what is no UTF-8 is replaced in it."""
    numbered = number(spark, spark.read.text([spark_path(part.file.path) for part in parts]), parts)
    lines = numbered.records.withColumn(LINE, F.make_valid_utf8("value")).drop("value")
    return Numbered(lines, numbered.counts)


def parser_options(source: FilesSource) -> dict[str, str]:
    """The options of a source as Spark's parsers take them; no record is dropped and none fails a job."""
    options = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in source.options.items()
        if name not in {"header", "multiLine"}
    }
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW}


def to_records(
    lines: DataFrame, source: FilesSource, columns: Mapping[str, Column], rescued: Column, malformed: Column
) -> DataFrame:
    """Turn parsed lines into records, columns renamed; of a malformed one only its text and place remain.

    Args:
        lines: Parsed lines with `_file`, `_position`, `_modified`.
        source: Says whether unknown columns are kept.
        columns: Payload columns by their name in the file.
        rescued: Unknown columns as JSON text; null or `{}` without any.
        malformed: The text of a line that could not be parsed, else null.
    """
    marked = lines.withColumn(MALFORMED, malformed)
    sound = F.col(MALFORMED).isNull()
    payload = [F.when(sound, column).alias(source.rename.get(name, name)) for name, column in columns.items()]
    place = (MALFORMED, FILE, POSITION, MODIFIED)
    if not source.keep_unknown:
        return marked.select(*payload, *place)
    # Two steps, so that Spark writes the JSON text once and not once per mention.
    kept = marked.withColumn(RESCUED, F.when(sound, rescued))
    return kept.select(*payload, F.nullif(RESCUED, F.lit("{}")).alias(RESCUED), *place)
