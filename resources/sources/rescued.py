"""Columns that `schema` names now, with the values that `_rescued` kept when it did not.

Here: the value of a column in the JSON text of a record, and the rest of the text. Not here: the choice of records
and columns (assets/rebuild/log_columns.py), the filling of `_rescued` (the readers).
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from tidemark.resources.sources.csv_files import text_as_csv
from tidemark.resources.sources.json_files import by_one_name, objects_of, with_all_names
from tidemark.resources.sources.lines import LINE, RAW, RESCUED, parser_options
from tidemark.resources.sources.typed_texts import Reading, holds, with_values
from tidemark.timeops.expressions.text_times import EXACT
from tidemark.timeops.spec import Source
from tidemark.timeops.spec.fields import all_names, name_in_tables

HAS, FITS = "__tm_has", "__tm_fits"
"""BOOLEAN columns of `with_column`: whether `_rescued` had a value for the column, and whether it fits the type."""
_TEXT, _LEFT, _VALUE = "__tm_text", "__tm_left", "__tm_value"


@dataclass(frozen=True)
class _Read:
    """The value of a column in `_rescued`, and the other keys."""

    frame: DataFrame
    value: Column
    left: Column
    is_wrong: Column


def with_column(records: DataFrame, source: Source, field: StructField, which: Column, time_zone: str) -> DataFrame:
    """Move the value of a column from `_rescued` into the column, for records of a source.

    A value that does not fit the type of the column stays in `_rescued`, and the column stays null.

    Args:
        records: Records of the log, with the column.
        source: The source.
        field: The column, by a name that it has in the input.
        which: BOOLEAN, whether a record is of this source.
        time_zone: Zone of the pipeline's times without one.

    Returns:
        The records, with HAS and FITS.
    """
    names, column = all_names(field.name, source.rename), name_in_tables(field.name, source.rename)
    lines = records.withColumn(LINE, F.when(which, F.col(RESCUED)))
    reading = Reading(source.time_zone or time_zone, parser_options(source))
    parse = _of_csv if source.form == "csv" else _of_json
    read = parse(lines, source, field, reading)
    has = F.coalesce(F.arrays_overlap(F.json_object_keys(LINE), F.array(*map(F.lit, names))), F.lit(False))
    found = read.frame.withColumns(
        {HAS: has, FITS: has & ~F.coalesce(read.is_wrong, F.lit(False)), _VALUE: read.value, _LEFT: read.left}
    )
    others = [F.col(f"`{name}`") for name in records.columns if name not in (column, RESCUED, HAS, FITS)]
    return found.select(
        *others,
        F.when(F.col(FITS), F.col(_VALUE)).otherwise(F.col(f"`{column}`")).alias(column),
        F.when(F.col(FITS), F.nullif(_LEFT, F.lit("{}"))).otherwise(F.col(RESCUED)).alias(RESCUED),
        HAS,
        FITS,
    )


def _of_json(lines: DataFrame, source: Source, field: StructField, reading: Reading) -> _Read:
    alone = StructType([field])
    found = objects_of(lines, with_all_names(alone, source), reading, keep_unknown=True)
    read = by_one_name(found, alone, source)
    return _Read(read.frame, read.columns[field.name], read.rescued, read.malformed.isNotNull())


def _of_csv(lines: DataFrame, source: Source, field: StructField, reading: Reading) -> _Read:
    names = all_names(field.name, source.rename)
    texts = F.from_json(LINE, "map<string, string>")
    frame = lines.withColumn(_TEXT, F.coalesce(*[texts[name] for name in names]))
    left = F.to_json(F.map_filter(texts, lambda key, _: ~key.isin(*names)))
    if isinstance(field.dataType, StringType):
        return _Read(frame, F.col(_TEXT), left, F.lit(False))
    if holds(field.dataType, EXACT):
        frame, values, misfit = with_values(frame, {field.name: _TEXT}, [field], reading)
        return _Read(frame, values[field.name], left, misfit)
    parsed = text_as_csv(F.col(_TEXT), field.dataType, source)
    return _Read(frame, parsed["_c0"], left, parsed[RAW].isNotNull())
