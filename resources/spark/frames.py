"""Small jobs around frames: a few rows known to the driver as one, dense numbers in a total order, counts of splits.

Here: what several stages need of Spark and what no rule of time speaks of. `createDataFrame` would do for a few rows,
but it sends them through Python workers each time they are read. Numbers are 0, 1, 2, … over all partitions, never
one sorted stream on one core. Not here: what an order means, which splits there are (timeops/watermark/splits.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from tidemark.timeops.columns import TIMELINE
from tidemark.timeops.errors import InputError
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.splits import most_splits

Value = str | int | bool | None
PART = "__tm_part"
_ROW = "__tm_row"
_ROW_MASK = (1 << 33) - 1  # the low bits of monotonically_increasing_id: the row's place in its partition
MOST_SPLITS = 1_000


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows of a schema, whatever its types."""
    return spark.range(0).select(F.lit(None).cast(schema).alias("row")).select("row.*")


def small_frame(spark: SparkSession, rows: Sequence[Sequence[Value]], schema: StructType | str) -> DataFrame:
    """Rows as a local relation, which Spark folds into its plans.

    Args:
        spark: The session.
        rows: Few rows of plain values, in the order of the columns.
        schema: The columns, as a StructType or as DDL.
    """
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


def readable(frame: DataFrame) -> DataFrame:
    """The rows for people to read: instants as text, UTC, of all years, which Python's datetime does not have."""
    is_instant = {field.name: isinstance(field.dataType, TimestampType) for field in frame.schema}
    columns = [
        F.col(f"`{name}`").cast("string").alias(name) if to_text else F.col(f"`{name}`")
        for name, to_text in is_instant.items()
    ]
    return frame.select(*columns)


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value).lower() if isinstance(value, bool) else f"{value}L"


@dataclass(frozen=True)
class Numbered:
    """Rows in order, numbered.

    Attributes:
        frame: The rows with the number column and `__tm_part`, the partition they were sorted in.
        rows: How many there are.
        highest: Largest value of the measured expression (None where there is none) by partition, in order.
    """

    frame: DataFrame
    rows: int
    highest: Mapping[int, int | None]


@contextmanager
def numbered(
    frame: DataFrame, order: Sequence[Column], *, start: int, name: str, measure: Column | None = None
) -> Iterator[Numbered]:
    """Numbers the rows of a frame in a total order.

    The sorted rows are kept on disk while the caller writes them: they are read twice (count, then write), and a
    second sort, or a second parse of the input below it, costs more than the disk.

    Args:
        frame: The rows.
        order: Sort expressions that order them totally.
        start: The first number.
        name: Name of the number column (BIGINT).
        measure: A BIGINT expression whose largest value per partition is wanted.
    """
    highest = F.lit(None).cast("bigint") if measure is None else F.max(measure)
    sorted_rows = (
        frame.repartitionByRange(*order)
        .sortWithinPartitions(*order)
        .withColumns(
            {
                PART: F.spark_partition_id(),
                _ROW: F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_MASK)),
            }
        )
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        parts = sorted_rows.groupBy(PART).agg(F.count("*").alias("n"), highest.alias("highest")).collect()
        parts.sort(key=lambda part: int(part[PART]))
        firsts: list[tuple[int, int]] = []
        total = 0
        for part in parts:
            firsts.append((part[PART], start + total))
            total += part["n"]
        offset = _lookup(firsts)
        frame = sorted_rows.withColumn(name, offset + F.col(_ROW)).drop(_ROW)
        yield Numbered(frame, total, {part[PART]: part["highest"] for part in parts})
    finally:
        sorted_rows.unpersist()


def _lookup(firsts: Sequence[tuple[int, int]]) -> Column:
    """The first number of the row's partition: a map literal, as large as the number of partitions."""
    if not firsts:
        return F.lit(0).cast("bigint")
    pairs = [F.lit(value) for first in firsts for value in first]
    return F.element_at(F.create_map(*pairs), F.col(PART)).cast("bigint")


def count_splits(items: DataFrame, state: DataFrame, rules: TimeRules) -> int:
    """How many splits a timeline has at most; 0 where splits do not count.

    Args:
        items: Records of the log.
        state: timelines.STATE_SCHEMA before them.
        rules: The rules of time.

    Raises:
        InputError: They are too many.
    """
    if not rules.uses_splits:
        return 0
    named = items.withColumn(TIMELINE, timeline(items, rules.time.over))
    found = int(most_splits(named, state, rules).collect()[0]["splits"] or 0)
    if found > MOST_SPLITS:
        raise InputError(
            f"A timeline has {found:,} splits.",
            expected=f"at most {MOST_SPLITS:,}: every one is a number to compare at every record",
            remedy="use a coarser `split`, or `over` if each value should have a watermark of its own",
        )
    return found
