"""JSON lines: one object a line, parsed so that no line is lost or guessed.

Here: which lines are objects of the declared shape. Not here: line numbers (positions.py), names after `rename`.
"""

from collections.abc import Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from resources.sources.changes import FileRange
from resources.sources.lines import LINE, RAW, parser_options, read_lines, to_records
from resources.sources.positions import Numbered, Part
from timeops.spec import FilesSource

_PARSED = "__parsed"


def read_json(spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange]) -> Numbered:
    """Read JSON lines: the columns of `schema`, and those that every reader adds (see files.py).

    A missing key is null. A line that is no JSON object, that holds more than one, or with a value that does not
    fit its column is malformed.
    """
    numbered = read_lines(spark, [Part(file, skip=file.skip_lines) for file in ranges])
    options = parser_options(source)
    shape = StructType([*schema.fields]).add(RAW, StringType())
    parsed = numbered.records.where(F.btrim(LINE, F.lit(" \t")) != "").withColumn(
        _PARSED, F.from_json(LINE, shape, options)
    )
    object_ = F.col(_PARSED)
    malformed = object_.isNull() | object_[RAW].isNotNull() | ~_stands_alone(options)
    records = to_records(
        parsed,
        source,
        columns={name: object_[name] for name in schema.names},
        rescued=_unknown_keys(schema.names, options),
        malformed=F.when(malformed, F.col(LINE)),
    )
    return Numbered(records, numbered.counts)


def _stands_alone(options: dict[str, str]) -> Column:
    """Whether nothing follows the first JSON value of the line.

    Spark's parser stops after it. So the line is parsed again as the first of two elements of an array; the line end
    closes a comment. An object with an unlikely name for its only field takes no value over.
    """
    pair = F.concat(F.lit("["), F.col(LINE), F.lit("\n,{}]"))
    elements = F.from_json(pair, f"array<struct<`{RAW}`: int>>", {**options, "columnNameOfCorruptRecord": ""})
    return F.coalesce(F.size(elements) == 2, F.lit(False))


def _unknown_keys(known: Sequence[str], options: dict[str, str]) -> Column:
    """The keys of the object that `schema` does not name, as JSON text with their JSON types."""
    all_keys = F.from_json(LINE, "map<string, variant>", options)
    return F.to_json(F.map_filter(all_keys, lambda key, _: ~key.isin(*known)))
