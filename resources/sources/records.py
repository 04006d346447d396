"""Records of a source, whatever its kind: their columns, and what is too large for one.

Here: the columns that `schema` names, the step from a parsed line to a record or a malformed one, and text values
that are read by the product's own rule. Not here: lines and their numbers (resources/sources/lines.py), parsing a
format (resources/sources/text_files.py, resources/sources/parquet_files.py), the rule of values
(timeops/expressions/text_values.py).

A line that is too long for a record is cut short before Spark gets it, as it could end the Spark of all pipelines. A
value that is too large makes its record a dead letter that shows the beginning of the largest.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.resources.sources.conversion import has_names_twice, types_in
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import LONGEST_LINE
from tidemark.resources.spark.frames import frame_of, small_frame
from tidemark.timeops.errors import SpecError
from tidemark.timeops.events.event_time import text_at
from tidemark.timeops.expressions.refusals import first_sentence
from tidemark.timeops.expressions.text_values import EXACT, inside_sql, value_sql
from tidemark.timeops.expressions.tokens import literal, literal_map, quoted
from tidemark.timeops.expressions.try_expression import EVERY_MICROSECOND, Columns, holds, is_storable
from tidemark.timeops.spec import Source
from tidemark.timeops.spec.fields import ILLEGAL_IN_STRUCTS, name_in_tables, names_in_files

CUT_MARK = "\x01\x02too long\x03"
"""Begins a line that was cut short. No record begins so: JSON cannot, and a csv line is checked for it first."""

FILE, POSITION, MODIFIED = "_file", "_position", "_modified"
GROUP = "__tm_group"
URL, SKIP = "__tm_url", "__tm_skip"
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


_MODIFIED_US = "__tm_modified_us"
_FILES = (
    StructType().add(URL, StringType()).add(SKIP, LongType()).add(_MODIFIED_US, LongType()).add(FILE, StringType())
)


def with_files(spark: SparkSession, rows: DataFrame, by_url: Mapping[str, Part]) -> DataFrame:
    """Add `_file`, `_modified` and `__tm_skip`, the records that were read before, by the URL of a row's file."""
    files = [(url, part.skip, part.file.modified_us, part.file.name) for url, part in by_url.items()]
    placed = rows.join(F.broadcast(frame_of(spark, files, _FILES)), URL)
    return placed.withColumn(MODIFIED, F.expr(f"timestamp_micros({_MODIFIED_US})"))


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
        source: Says whether unknown columns are stored.
        columns: Payload columns by their name in the file.
        rescued: Unknown columns as JSON text; null or `{}` without any.
        malformed: The text of a line that could not be parsed, else null.
    """
    if LINE in lines.columns:
        line = F.col(LINE)
        beginning = F.substring(line, F.lit(len(CUT_MARK) + 1), F.length(line))
        malformed = F.when(F.startswith(line, F.lit(CUT_MARK)), beginning).otherwise(malformed)
    marked = lines.withColumn(MALFORMED, malformed)
    sound = F.col(MALFORMED).isNull()
    payload = [F.when(sound, column).alias(source.rename.get(name, name)) for name, column in columns.items()]
    place = (MALFORMED, FILE, POSITION, MODIFIED)
    if not source.keep_unknown:
        return marked.select(*payload, *place)
    # Use two steps, so that Spark writes the JSON text once rather than once for each use.
    with_rescued = marked.withColumn(RESCUED, F.when(sound, rescued))
    return with_rescued.select(*payload, F.nullif(RESCUED, F.lit("{}")).alias(RESCUED), *place)


def unfit(values: Mapping[str, tuple[Column, DataType]]) -> Column:
    """Return STRING, null unless a record is too large (`too_large`) or not a text (`not_utf8`)."""
    return F.coalesce(too_large(values), not_utf8(values))


def not_utf8(values: Mapping[str, tuple[Column, DataType]]) -> Column:
    """Return STRING, null unless a text in a record is not UTF-8: the record as JSON, and which of its values it is.

    A format with types has such bytes as they are. Readers of the tables take them for no text, or replace them. In
    the JSON they are as `as_text` writes them; inside of lists, structs and maps they are replaced.
    """
    texts = {name: _is_utf8(value, kind) for name, (value, kind) in values.items() if _has_text(kind)}
    if not texts:
        return F.lit(None).cast("string")
    shown = [
        (as_text(value) if isinstance(kind, StringType) else value).alias(name)
        for name, (value, kind) in values.items()
    ]
    record = F.to_json(F.struct(*shown), EVERY_MICROSECOND)
    wrong = F.coalesce(*(F.when(~is_utf8, F.lit(name)) for name, is_utf8 in texts.items()))
    return F.when(wrong.isNotNull(), F.concat(record, F.lit(" (the value of `"), wrong, F.lit("` is not UTF-8)")))


def as_text(value: Column) -> Column:
    """Return a STRING or BINARY as text; bytes that are not UTF-8 are written as in SQL, such as X'00FF'."""
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("X'"), F.hex(value), F.lit("'")))


def _has_text(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_text(field.dataType) for field in kind)
    if isinstance(kind, MapType):
        return _has_text(kind.keyType) or _has_text(kind.valueType)
    return _has_text(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, StringType)


def _is_utf8(value: Column, kind: DataType) -> Column:
    """Return BOOLEAN, never null: all texts in a value of a type that has some are UTF-8."""
    if isinstance(kind, StructType):
        parts = [_is_utf8(value[field.name], field.dataType) for field in kind if _has_text(field.dataType)]
        return reduce(Column.__and__, parts)
    if isinstance(kind, MapType):
        sides = ((F.map_keys(value), kind.keyType), (F.map_values(value), kind.valueType))
        return reduce(Column.__and__, (_is_utf8(side, ArrayType(of)) for side, of in sides if _has_text(of)))
    if isinstance(kind, ArrayType):
        of_item = kind.elementType
        return F.coalesce(F.forall(value, lambda item: _is_utf8(item, of_item)), F.lit(True))
    return F.coalesce(F.is_valid_utf8(value), F.lit(True))


_KEPT_CHARACTERS = 1_000
_ITEM_BYTES = 8  # of a number


def too_large(values: Mapping[str, tuple[Column, DataType]]) -> Column:
    """Return STRING, null unless a record takes more than a line may: how its largest value begins, and its size."""
    sizes = {name: _bytes(value, kind) for name, (value, kind) in values.items() if _varies(kind)}
    if not sizes:
        return F.lit(None).cast("string")
    each = [
        F.struct(size.alias("bytes"), F.lit(name).alias("name"), _beginning(*values[name]).alias("beginning"))
        for name, size in sizes.items()
    ]
    largest = F.array_max(F.array(*each))
    size = F.format_number(largest["bytes"], 0)
    sentence = F.concat(largest["beginning"], F.lit("… (the value of `"), largest["name"], F.lit("` has "), size)
    total = reduce(Column.__add__, sizes.values())
    return F.when(total > LONGEST_LINE, F.concat(sentence, F.lit(" bytes)")))


def _varies(kind: DataType) -> bool:
    """Return whether values of a type may be of any size."""
    if isinstance(kind, StructType):
        return any(_varies(field.dataType) for field in kind)
    return isinstance(kind, StringType | BinaryType | ArrayType | MapType)


def _bytes(value: Column, kind: DataType) -> Column:
    """Return BIGINT, never null: about how many bytes a value takes."""
    if isinstance(kind, StringType | BinaryType):
        return F.coalesce(F.octet_length(value).cast("bigint"), F.lit(0).cast("bigint"))
    if isinstance(kind, StructType):
        parts = [_bytes(value[field.name], field.dataType) for field in kind if _varies(field.dataType)]
        return reduce(Column.__add__, parts, F.lit(0).cast("bigint"))
    if isinstance(kind, MapType):
        keys, items = ArrayType(kind.keyType), ArrayType(kind.valueType)
        return _bytes(F.map_keys(value), keys) + _bytes(F.map_values(value), items)
    assert isinstance(kind, ArrayType)
    items_bytes = F.coalesce(F.array_size(value).cast("bigint"), F.lit(0).cast("bigint")) * _ITEM_BYTES
    of_item = kind.elementType
    if not _varies(of_item):
        return items_bytes
    summed = F.aggregate(value, F.lit(0).cast("bigint"), lambda sum_, item: sum_ + _bytes(item, of_item))
    return items_bytes + F.coalesce(summed, F.lit(0).cast("bigint"))


def _beginning(value: Column, kind: DataType) -> Column:
    """Return STRING, never null: the beginning of a value, if it can be read without a copy of the value."""
    if isinstance(kind, StringType):
        text = F.make_valid_utf8(F.substring(value, 1, _KEPT_CHARACTERS))
    elif isinstance(kind, BinaryType):
        text = F.concat(F.lit("X'"), F.hex(F.substring(value, 1, _KEPT_CHARACTERS // 2)))
    else:
        text = F.lit(None).cast("string")
    return F.coalesce(text, F.lit(""))


SPARK_FAILURES = (PySparkException, Py4JJavaError)
"""Errors of Spark; the latter if PySpark has no class for it."""
_CONDITION = re.compile(r"\[FAILED_READ_FILE\.(\w+)\]")
_FILE = re.compile(r"while reading file (\S+?)\.(?:\s|$)")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)


def split_of(records: DataFrame, source: Source) -> Column:
    """Return the split of each record as STRING; null if it has none, or if the expression fails on it.

    For a record of Kafka it is the partition, unless the spec says otherwise.

    Raises:
        SpecError: The expression does not fit the columns.
    """
    if source.split is None:
        return F.col(FILE) if source.is_read_by_split else F.lit(None).cast("string")
    return F.expr(text_at(Columns.of(records), source.split, f"sources[{source.name}].split"))


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
    for name, kind in types_in(schema).items():
        if has_names_twice(kind):
            raise _wrong_schema(source, f"column `{name}` has a field inside twice, in any case")
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


def _wrong_schema(source: Source, fault: str, remedy: str = "correct `schema`") -> SpecError:
    return SpecError(
        f"`sources[{source.name}].schema`: {fault}",
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
    match = _CAUSE.search(str(error))
    return match[1] if match else "Spark does not say why"


def file_that_failed(error: Exception) -> str:
    """Return the URL of the file whose content Spark failed at, as Spark names it; empty if it names none."""
    match = _FILE.search(str(error))
    return match[1] if match else ""


_WRITTEN, _VALUES = "__tm_written", "__tm_values"
_FORMATS: Mapping[type[DataType], str] = {
    DateType: "dateFormat",
    TimestampType: "timestampFormat",
    TimestampNTZType: "timestampNTZFormat",
}


@dataclass(frozen=True)
class Reading:
    """The rules by which texts of a source become values.

    Attributes:
        time_zone: IANA name of the zone of times without an offset.
        options: The options for Spark's parser; only formats of times and the locale matter here.
    """

    time_zone: str
    options: Mapping[str, str]

    def value_sql(self, text: str, kind: DataType) -> str:
        """Return SQL of the value of a text, null if it has none."""
        option = _FORMATS.get(type(kind))
        if option is None or option not in self.options:
            return value_sql(text, kind, self.time_zone)
        options = {option: self.options[option], "timeZone": self.time_zone}
        options |= {"locale": self.options["locale"]} if "locale" in self.options else {}
        read = f"from_json(to_json(named_struct('v', {text})), 'v {kind.simpleString()}', {literal_map(options)}).v"
        return inside_sql(read, kind)


def with_texts(kind: DataType, leaves: tuple[type[DataType], ...] = EXACT) -> DataType:
    """Return a type with texts in place of some types."""
    if isinstance(kind, ArrayType):
        return ArrayType(with_texts(kind.elementType, leaves))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, with_texts(kind.valueType, leaves))
    if isinstance(kind, StructType):
        return StructType([StructField(part.name, with_texts(part.dataType, leaves)) for part in kind])
    return StringType() if isinstance(kind, leaves) else kind


def with_values(
    frame: DataFrame, written: Mapping[str, str], fields: Sequence[StructField], reading: Reading
) -> tuple[DataFrame, Mapping[str, Column], Column]:
    """Add the values of columns that were read as texts.

    Args:
        frame: The rows.
        written: SQL that returns a value of `with_texts` for the column's type, by name.
        fields: The columns.
        reading: The rules by which texts become values.

    Returns:
        The rows; the columns by name; whether a text of the row does not fit its column.
    """
    if not fields:
        return frame, {}, F.lit(False)
    values, misfits = [], ["false"]
    for field in fields:
        text, value = (f"{of}.{quoted(field.name)}" for of in (_WRITTEN, _VALUES))
        values.append(f"{literal(field.name)}, {_typed(text, field.dataType, reading)}")
        misfits += [_misfit(text, value, field.dataType)] if holds(field.dataType, EXACT) else []
    texts = [f"{literal(field.name)}, {written[field.name]}" for field in fields]
    parsed = frame.withColumn(_WRITTEN, F.expr(f"named_struct({', '.join(texts)})"))
    parsed = parsed.withColumn(_VALUES, F.expr(f"named_struct({', '.join(values)})"))
    columns = {field.name: F.col(_VALUES)[field.name].cast(field.dataType) for field in fields}
    return parsed, columns, F.expr(" OR ".join(misfits))


def _typed(text: str, kind: DataType, reading: Reading, depth: int = 0) -> str:
    """Return SQL that makes a `kind` of a value of `with_texts(kind)`; a text that does not fit becomes null."""
    item = f"x{depth}"
    if not holds(kind, EXACT):
        return text
    if isinstance(kind, ArrayType):
        return f"transform({text}, {item} -> {_typed(item, kind.elementType, reading, depth + 1)})"
    if isinstance(kind, MapType):
        return f"transform_values({text}, (k{depth}, {item}) -> {_typed(item, kind.valueType, reading, depth + 1)})"
    if isinstance(kind, StructType):
        parts = [
            f"{literal(part.name)}, {_typed(f'{text}.{quoted(part.name)}', part.dataType, reading, depth)}"
            for part in kind
        ]
        return f"IF({text} IS NULL, NULL, named_struct({', '.join(parts)}))"
    return reading.value_sql(text, kind)


def _misfit(text: str, value: str, kind: DataType, depth: int = 0) -> str:
    """Return SQL of a BOOLEAN, never null: a text in `text` has no value in `value`, which `_typed` made from it."""
    if isinstance(kind, StructType):
        parts = [
            _misfit(f"{text}.{quoted(part.name)}", f"{value}.{quoted(part.name)}", part.dataType, depth)
            for part in kind
            if holds(part.dataType, EXACT)
        ]
        return f"({' OR '.join(parts)})"
    if isinstance(kind, MapType):
        return _misfit(f"map_values({text})", f"map_values({value})", ArrayType(kind.valueType), depth)
    if isinstance(kind, ArrayType):
        each = _misfit(f"t{depth}", f"v{depth}", kind.elementType, depth + 1)
        return f"coalesce(exists(zip_with({text}, {value}, (t{depth}, v{depth}) -> {each}), wrong -> wrong), false)"
    return f"({text} IS NOT NULL AND {value} IS NULL)"
