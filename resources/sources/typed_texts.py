"""Columns of text formats whose values are read from their texts by the product's own rule, at any depth.

Here: the parts of a type that need it, the type as which Spark's parser reads them, and the way back to the declared
type. Not here: the rule (timeops/expressions/text_times.py), parsing (csv_files.py, json_files.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.timeops.expressions.text_times import EXACT, inside_sql, value_sql
from tidemark.timeops.expressions.tokens import quoted

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
        given = {option: self.options[option], "timeZone": self.time_zone}
        given |= {"locale": self.options["locale"]} if "locale" in self.options else {}
        pairs = ", ".join(literal(part) for pair in given.items() for part in pair)
        read = f"from_json(to_json(named_struct('v', {text})), 'v {kind.simpleString()}', map({pairs})).v"
        return inside_sql(read, kind)


def holds(kind: DataType, leaves: tuple[type[DataType], ...]) -> bool:
    """Return whether a type is one of some types, or holds one; keys of maps do not count."""
    if isinstance(kind, ArrayType):
        return holds(kind.elementType, leaves)
    if isinstance(kind, MapType):
        return holds(kind.valueType, leaves)
    if isinstance(kind, StructType):
        return any(holds(part.dataType, leaves) for part in kind)
    return isinstance(kind, leaves)


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
        written: SQL of a value of `with_texts` of the column's type, by name.
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
    found = frame.withColumn(_WRITTEN, F.expr(f"named_struct({', '.join(texts)})"))
    found = found.withColumn(_VALUES, F.expr(f"named_struct({', '.join(values)})"))
    columns = {field.name: F.col(_VALUES)[field.name].cast(field.dataType) for field in fields}
    return found, columns, F.expr(" OR ".join(misfits))


def _typed(text: str, kind: DataType, reading: Reading, depth: int = 0) -> str:
    """Return SQL of a value of `kind` from one of `with_texts(kind)`; a text that does not fit becomes null."""
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


def literal(text: str) -> str:
    """Return SQL of a text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
