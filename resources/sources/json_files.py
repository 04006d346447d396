"""JSON lines: one object a line, parsed so that no line is lost or guessed.

Here: which lines are objects of the declared shape. Not here: line numbers (lines.py), names after `rename`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tidemark.resources.sources.json_texts import (
    HAS_FRACTION,
    ROUNDED,
    has_half_a_character,
    marked,
    unmarked_json,
    unmarked_sql,
    with_whole_characters,
)
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.lines import LINE, RAW, Numbered, Part, parser_options, read_lines, to_records
from tidemark.resources.sources.typed_texts import Reading, holds, literal, with_texts, with_values
from tidemark.timeops.expressions.text_times import EXACT
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import holds_floats
from tidemark.timeops.spec import FilesSource, Source
from tidemark.timeops.spec.fields import all_names

_PARSED, _EXACT = "__tm_parsed", "__tm_exact"
_OWN_TYPES = (StringType, *EXACT)
_INFINITIES = ("Infinity", "+Infinity", "-Infinity", "+INF", "-INF")
_BARE_INFINITIES = ('"Infinity"', '"-Infinity"')  # as Spark shows an infinite number, whatever was written
_BARE = r"[:\[,]\s*[+-]?Infinity\b"


def read_json(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange], time_zone: str
) -> Numbered:
    """Read JSON lines: the columns of `schema`, and the columns that every reader adds (see files.py).

    A missing key is null. A line is malformed if it is not one JSON object, or has a key twice or two names of one
    column. So it is if a value does not fit its column exactly, such as a number that is too large.
    """
    numbered = read_lines(spark, [Part(file, skip=file.skip_lines) for file in ranges])
    lines = numbered.records.where(F.btrim(LINE, F.lit(" \t")) != "")
    reading, shape = Reading(time_zone, parser_options(source)), with_all_names(schema, source)
    found = objects_of(lines, shape, reading, keep_unknown=source.keep_unknown)
    read = by_one_name(found, schema, source)
    return Numbered(to_records(read.frame, source, read.columns, read.rescued, read.malformed), numbered.counts)


def with_all_names(schema: StructType, source: Source) -> StructType:
    """Return the columns with one for each name that they have had by `rename`."""
    named = [(name, field.dataType) for field in schema for name in all_names(field.name, source.rename)]
    return StructType([StructField(name, kind) for name, kind in named])


def by_one_name(read: "Objects", schema: StructType, source: Source) -> "Objects":
    """Return objects of `with_all_names` with the columns of the schema: each from the name in the record."""
    columns, malformed = dict[str, Column](), read.malformed
    for field in schema:
        values = [read.columns[name] for name in all_names(field.name, source.rename)]
        columns[field.name] = F.coalesce(*values)
        if len(values) > 1:
            given = reduce(Column.__add__, [value.isNotNull().cast("int") for value in values])
            malformed = F.coalesce(malformed, F.when(given > 1, F.col(LINE)))
    return Objects(read.frame, columns, read.rescued, malformed)


@dataclass(frozen=True)
class Objects:
    """Texts that were read as JSON objects.

    Attributes:
        frame: The rows, each with its object.
        columns: The values of the objects by name.
        rescued: The keys without a column, as JSON text with the digits of the line.
        malformed: The text if it is not an object of that shape, else null.
    """

    frame: DataFrame
    columns: Mapping[str, Column]
    rescued: Column
    malformed: Column


def objects_of(lines: DataFrame, schema: StructType, reading: Reading, *, keep_unknown: bool = False) -> Objects:
    """Read texts in `__tm_line` as objects of a shape.

    Args:
        lines: The texts.
        schema: Names and types of the wanted values.
        reading: The rules by which texts become values; its options are for Spark's parser.
        keep_unknown: Whether `rescued` is wanted.
    """
    given = dict(reading.options)
    shape = StructType([StructField(field.name, with_texts(field.dataType)) for field in schema]).add(
        RAW, StringType()
    )
    parsed, object_ = lines.withColumn(_PARSED, F.from_json(LINE, shape, given)), F.col(_PARSED)
    malformed = object_.isNull() | object_[RAW].isNotNull() | ~_stands_alone(schema, given)
    malformed = malformed | _is_too_large(object_, schema, given)
    has_half = has_half_a_character()
    if not keep_unknown:  # an unwanted key may have one
        other = F.to_json(F.from_json(with_whole_characters(), shape, given))
        has_half = F.when(has_half, F.coalesce(F.to_json(object_) != other, F.lit(True))).otherwise(F.lit(False))
    frame, columns, misfit = _typed(parsed, schema, reading)
    rescued = _unknown_keys(schema.names, given) if keep_unknown else F.lit(None).cast("string")
    return Objects(frame, columns, rescued, F.when(malformed | has_half | misfit, F.col(LINE)))


def _typed(parsed: DataFrame, schema: StructType, reading: Reading) -> tuple[DataFrame, Mapping[str, Column], Column]:
    """Add the values of columns with texts, dates, times or decimals; also return whether one does not fit.

    If Spark's parser may have changed the digits of such a number, the line is parsed again.
    """
    columns = {name: F.col(_PARSED)[name] for name in schema.names}
    own = [field for field in schema if holds(field.dataType, _OWN_TYPES)]
    if not own:
        return parsed, columns, F.lit(False)
    shape = StructType([StructField(field.name, with_texts(field.dataType, (AtomicType,))) for field in own])
    again = F.from_json(marked(), shape, {**reading.options, "columnNameOfCorruptRecord": ""})
    loses = " OR ".join(_may_lose_digits(field) for field in own)
    exact = parsed.withColumn(_EXACT, F.when(F.expr(loses), again))
    frame, values, misfit = with_values(exact, {field.name: _text_of(field) for field in own}, own, reading)
    return frame, {**columns, **values}, misfit


def _may_lose_digits(field: StructField) -> str:
    """Return SQL: may the text of a value have other digits than the line?"""
    text = f"{_PARSED}.{quoted(field.name)}"
    if isinstance(field.dataType, StringType | DecimalType):
        return f"coalesce({text} RLIKE r'{ROUNDED}', false)"
    if not holds(field.dataType, (StringType, DecimalType)):
        return "false"
    return f"({text} IS NOT NULL AND {LINE} RLIKE r'{HAS_FRACTION}')"


def _text_of(field: StructField) -> str:
    """Return SQL of a value with texts in place of dates, times and decimals, with the digits of the line."""
    first, again = (f"{of}.{quoted(field.name)}" for of in (_PARSED, _EXACT))
    return f"IF({_EXACT} IS NULL, {first}, {_merged(first, again, field.dataType)})"


def _merged(first: str, again: str, kind: DataType, depth: int = 0) -> str:
    """Return SQL of a value whose texts are from the second parse."""
    if not holds(kind, _OWN_TYPES):
        return first
    one, other = f"a{depth}", f"b{depth}"
    if isinstance(kind, ArrayType):
        item = _merged(one, other, kind.elementType, depth + 1)
        return f"zip_with({first}, {again}, ({one}, {other}) -> {item})"
    if isinstance(kind, MapType):
        item = _merged(one, other, kind.valueType, depth + 1)
        return f"map_zip_with({first}, {again}, (k{depth}, {one}, {other}) -> {item})"
    if isinstance(kind, StructType):
        parts = []
        for part in kind:
            inner, of_again = (f"{of}.{quoted(part.name)}" for of in (first, again))
            parts.append(f"{literal(part.name)}, {_merged(inner, of_again, part.dataType, depth)}")
        return f"IF({first} IS NULL, NULL, named_struct({', '.join(parts)}))"
    return unmarked_sql(again)


def _stands_alone(schema: StructType, options: dict[str, str]) -> Column:
    """Return whether nothing follows the first JSON value of the line, and no key occurs in it twice.

    Spark's parser stops after that value. If the only closing brace ends the line, nothing can follow. Any other line
    is parsed again as the first of two elements of an array; the line end closes a comment. The schema has one field
    with an unlikely name, so no value is copied. Of two equal keys Spark takes the last one. A variant refuses them
    at any depth, but takes longer than reading only the keys of the object.
    """
    pair = F.concat(F.lit("["), F.col(LINE), F.lit("\n,{}]"))
    has_depth = any(isinstance(field.dataType, ArrayType | MapType | StructType | VariantType) for field in schema)
    element = "variant" if has_depth else f"struct<`{RAW}`: int>"
    elements = F.from_json(pair, f"array<{element}>", {**options, "columnNameOfCorruptRecord": ""})
    alone = F.coalesce(F.size(elements) == 2, F.lit(False))
    keys = F.json_object_keys(LINE)
    each_once = F.coalesce(F.size(keys) == F.size(F.array_distinct(keys)), F.lit(True))
    ends = F.instr(LINE, "}") == F.length(LINE)
    return F.when(ends, each_once).otherwise(alone if has_depth else alone & each_once)


def _is_too_large(parsed: Column, schema: StructType, options: dict[str, str]) -> Column:
    """Return whether a number became infinite because it does not fit its column, such as `1e400`.

    The written text decides: it is read only if a value is infinite.
    """
    kinds = {field.name: field.dataType for field in schema if holds_floats(field.dataType)}
    if not kinds:
        return F.lit(False)
    as_texts = StructType([StructField(name, _as_text(kind)) for name, kind in kinds.items()])
    written = F.from_json(LINE, as_texts, {**options, "columnNameOfCorruptRecord": ""})
    is_infinite = reduce(or_, [_is_infinite(parsed[name], kind) for name, kind in kinds.items()])
    is_wrong = reduce(or_, [_is_infinite(parsed[name], kind, written[name]) for name, kind in kinds.items()])
    return F.when(is_infinite, is_wrong).otherwise(F.lit(False))


def _is_infinite(value: Column, kind: DataType, written: Column | None = None) -> Column:
    """Return BOOLEAN, never null: a number in a value is infinite, and was not written so."""
    if isinstance(kind, DoubleType | FloatType):
        infinite = F.coalesce(F.abs(value.cast("double")) == F.lit(float("inf")), F.lit(False))
        return infinite if written is None else infinite & ~F.coalesce(_is_infinity(written), F.lit(False))
    if isinstance(kind, MapType):
        texts = None if written is None else F.map_values(written)
        return _is_infinite(F.map_values(value), ArrayType(kind.valueType), texts)
    if isinstance(kind, ArrayType):
        items = kind.elementType
        each = F.transform(
            value, lambda item, i: _is_infinite(item, items, None if written is None else F.get(written, i))
        )
        return F.coalesce(F.exists(each, lambda one: one), F.lit(False))
    assert isinstance(kind, StructType)
    fields = [field for field in kind if holds_floats(field.dataType)]
    return reduce(
        or_,
        [
            _is_infinite(value[field.name], field.dataType, None if written is None else written[field.name])
            for field in fields
        ],
    )


def _is_infinity(written: Column) -> Column:
    """Return whether the text of a number is a word for infinity, in quotes or, if the line has it so, without."""
    return written.isin(*_INFINITIES) | (written.isin(*_BARE_INFINITIES) & F.col(LINE).rlike(_BARE))


def _as_text(kind: DataType) -> DataType:
    """Return the part of a type that holds floating point, with texts in its place."""
    if isinstance(kind, ArrayType):
        return ArrayType(_as_text(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), _as_text(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _as_text(f.dataType)) for f in kind if holds_floats(f.dataType)])
    return StringType()


def _unknown_keys(known: Sequence[str], options: dict[str, str]) -> Column:
    """Return the keys of the object that `schema` does not name, as JSON text with the values of the line."""
    all_keys = F.from_json(marked(), "map<string, variant>", options)
    kept = F.to_json(F.map_filter(all_keys, lambda key, _: ~key.isin(*known)))
    return unmarked_json(kept)
