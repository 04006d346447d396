"""User expressions that cannot fail a batch: a row on which one fails gets null, and can be told from a null.

Here: wrapping of one expression. Not here: what its value means (extraction.py, windows.py).

Spark's `try_` functions swallow an error of the whole expression below them, whatever it is. Those of one
argument serve here as a general "try": through STRING for most types, through an empty interval for instants.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, DateType, NumericType, StringType, TimestampType

# Null and "it failed" are told apart by a marker that no real value can have.
_NULL_TEXT = "\x00null"
_NULL_INSTANT_US = -9_000_000_000_000_000_000
_TRIED = "__tried"


def type_of(frame: DataFrame, expression: str) -> DataType:
    """The type Spark gives `expression` over the columns of `frame`; Spark's AnalysisException if it has none."""
    return frame.select(F.expr(expression).alias("e")).schema["e"].dataType


def is_column(frame: DataFrame, expression: str) -> bool:
    """Whether `expression` is no more than the name of a column of `frame`, which cannot fail."""
    return expression.strip("`") in frame.columns


def with_tried_instant(frame: DataFrame, value: Column, us: str, failed: str) -> DataFrame:
    """Adds a TIMESTAMP expression as microseconds or null (`us`), and whether it failed (`failed` BOOLEAN)."""
    marked = F.coalesce(value, F.timestamp_micros(F.lit(_NULL_INSTANT_US)))
    tried = F.unix_micros(F.try_add(marked, F.expr("INTERVAL '0' SECOND")))
    return _told_apart(frame.withColumn(_TRIED, tried), us, failed, F.lit(_NULL_INSTANT_US))


def with_tried_text(frame: DataFrame, value: Column, text: str, failed: str) -> DataFrame:
    """Adds a STRING expression as text or null (`text`), and whether it failed (`failed` BOOLEAN)."""
    return _told_apart(frame.withColumn(_TRIED, _tried_text(value)), text, failed, F.lit(_NULL_TEXT))


def null_if_it_fails(frame: DataFrame, expression: str) -> Column:
    """`expression` over `frame`, null on rows on which it fails.

    A plain column cannot fail and stays as it is. Types that do not survive the way through STRING
    (arrays, structs) stay unguarded.
    """
    if is_column(frame, expression):
        return F.col(f"`{expression.strip('`')}`")
    kind = type_of(frame, expression)
    if isinstance(kind, TimestampType):
        return F.try_add(F.expr(expression), F.expr("INTERVAL '0' SECOND"))
    if isinstance(kind, StringType | BooleanType | NumericType | DateType):
        return F.nullif(_tried_text(F.expr(expression).cast("string")), F.lit(_NULL_TEXT)).cast(kind)
    return F.expr(expression)


def _tried_text(value: Column) -> Column:
    return F.decode(F.try_to_binary(F.coalesce(value, F.lit(_NULL_TEXT)), F.lit("utf-8")), "utf-8")


def _told_apart(frame: DataFrame, name: str, failed: str, marker: Column) -> DataFrame:
    value = F.when(F.col(_TRIED) != marker, F.col(_TRIED))
    return frame.withColumns({name: value, failed: F.col(_TRIED).isNull()}).drop(_TRIED)
