"""Values of any type as text: what equal values share, and what must not be lost.

Here: JSON with every microsecond, and the text of values that name a timeline, a key or a split. Not here: values of
test cases as Python has them (values.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

from tidemark.timeops.expressions.try_expression import null_if_it_fails, type_of

EVERY_MICROSECOND = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of Spark's `to_json`, which cuts instants to milliseconds otherwise."""


def as_json(*columns: Column) -> Column:
    """STRING: a JSON object of some columns, nulls and microseconds included."""
    return F.to_json(F.struct(*columns), {**EVERY_MICROSECOND, "ignoreNullFields": "false"})


def text_of(frame: DataFrame, expression: str) -> Column:
    """STRING: an expression's value as text, the same for values that a group takes for one: -0.0 is 0.0.

    Null where the expression is null, or fails.

    Args:
        frame: What the expression is over.
        expression: Spark SQL.
    """
    return _without_minus_zero(null_if_it_fails(frame, expression), type_of(frame, expression)).cast("string")


def _without_minus_zero(value: Column, kind: DataType) -> Column:
    if isinstance(kind, DoubleType | FloatType):
        return value + F.lit(0.0).cast(kind)  # the sum of the two zeros is 0.0
    if not holds_floats(kind):
        return value
    if isinstance(kind, ArrayType):
        items = kind.elementType
        return F.transform(value, lambda item: _without_minus_zero(item, items))
    if isinstance(kind, MapType):
        return F.transform_values(value, lambda _, item: _without_minus_zero(item, kind.valueType))
    assert isinstance(kind, StructType)
    fields = [_without_minus_zero(value[field.name], field.dataType).alias(field.name) for field in kind]
    return F.when(value.isNotNull(), F.struct(*fields))


def holds_floats(kind: DataType) -> bool:
    """Whether a value of a type is a floating-point number, or may hold one; keys of maps aside."""
    if isinstance(kind, ArrayType):
        return holds_floats(kind.elementType)
    if isinstance(kind, MapType):
        return holds_floats(kind.valueType)
    if isinstance(kind, StructType):
        return any(holds_floats(field.dataType) for field in kind)
    return isinstance(kind, DoubleType | FloatType)
