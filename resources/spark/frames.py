"""Frames of rows that the driver knows.

Here: frames that several stages need and no rule of time knows.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.expressions.tokens import literal

PlainValue = str | int | bool | None


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame without rows, of any schema."""
    return spark.range(0).select(F.lit(None).cast(schema).alias("row")).select("row.*")


def small_frame(spark: SparkSession, rows: Sequence[Sequence[PlainValue]], schema: StructType | str) -> DataFrame:
    """Return few rows of plain values as a local relation, which Spark folds into its plans; a schema may be DDL."""
    columns = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(columns, StructType):
        raise TypeError(f"{schema} names no columns")
    fields = columns.fields
    typed = ", ".join(f"CAST(c{j} AS {f.dataType.simpleString()}) AS `{f.name}`" for j, f in enumerate(fields))
    names = ", ".join(f"c{j}" for j in range(len(fields)))
    lines = ", ".join(f"({', '.join(_literal(value) for value in row)})" for row in rows)
    nothing = f"({', '.join('NULL' for _ in fields)})"
    query = f"SELECT {typed} FROM VALUES {lines or nothing} AS t({names})"
    return spark.sql(query if rows else f"{query} WHERE false")


def frame_of(spark: SparkSession, rows: Sequence[Sequence[PlainValue]], schema: StructType) -> DataFrame:
    """Return any number of rows as a frame, by Arrow: rows of Python would go through Python workers at each read."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    kinds = to_arrow_schema(schema)
    arrays = [pa.array(values, kinds.field(name).type) for name, values in zip(schema.names, columns, strict=True)]
    return from_driver(spark, pa.Table.from_arrays(arrays, schema=kinds))


def readable(frame: DataFrame) -> DataFrame:
    """Return rows for people to read: instants as text, UTC, in all years, which Python's datetime lacks."""
    instants = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    texts = {name: F.col(f"`{name}`").cast("string") for name in instants}
    return frame.withColumns(texts) if texts else frame  # Spark Connect refuses none


def _literal(value: PlainValue) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return literal(value)
    return str(value).lower() if isinstance(value, bool) else f"{value}L"
