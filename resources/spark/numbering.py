"""Dense numbers in a total order, at scale: 0, 1, 2, … over all partitions, never one sorted stream on one core.

Here: range partitioning, the sort inside partitions, the count per partition. Not here: what the order means.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

PART = "__part"
_ROW = "__row"
_ROW_MASK = (1 << 33) - 1  # the low bits of monotonically_increasing_id: the row's place in its partition


@dataclass(frozen=True)
class Numbered:
    """Rows in order, numbered.

    Attributes:
        frame: The rows with the number column and `__part`, the partition they were sorted in.
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
