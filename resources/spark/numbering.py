"""Dense numbers in a total order: 0, 1, 2, … over all partitions, never one sorted stream on one core.

Here: cutting rows into parts that follow one another in the order, and numbering each part from the count of the
earlier ones. Not here: the meaning of an order, the first number (assets/).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import floor_to

PART = "__tm_part"
_ROW = "__tm_row"
_ROW_MASK = (1 << 33) - 1  # the low bits of monotonically_increasing_id: the row's place in its partition
_MINUTE_US = 60_000_000
_LEAST_ROWS = 100_000  # of a part: sorting fewer takes less time than another task
_MOST_UNEVEN = 4  # a minute may have this many times the rows that a part should have


class Counted(NamedTuple):
    """Rows that follow one another in the order.

    Attributes:
        place: The start of their last minute, or their last instant, None after all others; or their partition.
        rows: Number of rows.
        highest: Largest value of the measured expression; None if there is none.
        lowest: Smallest value of it.
    """

    place: int | None
    rows: int
    highest: int | None
    lowest: int | None


NO_ROWS = Counted(None, 0, None, None)


@dataclass(frozen=True)
class Numbered:
    """Numbered rows, in order.

    Attributes:
        frame: The rows with the number column and `__tm_part`, the part of the order that they are in.
        rows: Number of rows.
        highest: Largest value of the measured expression (None if there is none) by part, in order.
        lowest: Smallest value of it.
    """

    frame: DataFrame
    rows: int
    highest: Mapping[int, int | None]
    lowest: int | None


@contextmanager
def numbered(
    frame: DataFrame,
    order: Sequence[Column],
    *,
    start: int,
    name: str,
    instant_us: str | None = None,
    measure: Column | None = None,
    is_costly: bool = False,
) -> Iterator[Numbered]:
    """Number the rows of a frame in a total order.

    If several tasks share the work, rows that are ordered by an instant first are counted by the minute, then sent to
    the task that sorts them. The frame is computed twice, and not stored. Other rows, and rows in a few crowded
    minutes, are cut by a sample and sorted, and kept on disk while the caller writes them.

    Args:
        frame: The rows. They must be the same whenever they are computed.
        order: Sort expressions that order them totally.
        start: The first number.
        name: Name of the number column (BIGINT).
        instant_us: If `order` begins with an instant, nulls last: SQL of that instant as BIGINT.
        measure: A BIGINT expression whose largest value by part, and smallest value, are wanted.
        is_costly: Whether computing the rows takes longer than writing them to disk and reading them again.
    """
    tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    if instant_us is not None and tasks > 1:
        minute = F.expr(floor_to(instant_us, _MINUTE_US))
        with _set_aside(frame) if is_costly else nullcontext(frame) as rows:
            parts = parts_of(_counts(rows, minute, measure), tasks)
            if parts is not None:
                yield numbered_by_instant(rows, order, minute, parts, start=start, name=name)
                return
    in_order = _in_order(frame.repartitionByRange(*order), order)
    with _set_aside(in_order.withColumn(PART, F.spark_partition_id())) as on_disk:
        counts = {row["place"]: Counted(**row) for row in _counts(on_disk, F.col(PART), measure).to_pylist()}
        last = max((place for place in counts if place is not None), default=-1)
        yield _numbered(on_disk, [counts.get(place, NO_ROWS) for place in range(last + 1)], start, name)


def parts_at(instants_us: NDArray[np.int64], tasks: int) -> list[Counted]:
    """Cut rows whose instants are known into parts of nearly equal size, each at the place of its last instant.

    There are fewer parts than tasks if there are few rows, or many of one instant. The rows are in any order.
    """
    count = len(instants_us)
    if not count:
        return []
    size = max(ceil(count / tasks), _LEAST_ROWS)
    ends = [*range(size - 1, count - 1, size), count - 1]
    places = np.unique(np.partition(instants_us, ends)[ends])
    up_to = [int(np.count_nonzero(instants_us <= place)) for place in places]
    rows = np.diff(up_to, prepend=0)
    return [Counted(int(place), int(n), None, None) for place, n in zip(places, rows, strict=True)]


def numbered_by_instant(
    frame: DataFrame, order: Sequence[Column], instant_us: Column, parts: Sequence[Counted], *, start: int, name: str
) -> Numbered:
    """Number rows whose parts are known, in one pass over them.

    The parts, in order, have exactly the rows of the frame, and their places are values of `instant_us`. See
    `numbered`.
    """
    placed = frame.withColumn(PART, _part_of(instant_us, parts)).repartitionById(max(len(parts), 1), PART)
    return _numbered(_in_order(placed, order), parts, start, name)


@contextmanager
def _set_aside(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows on disk from the first time that they are computed."""
    on_disk = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield on_disk
    finally:
        on_disk.unpersist()


def numbered_as_they_lie(
    frame: DataFrame, place: Column, parts: Sequence[Counted], *, start: int, name: str
) -> Numbered:
    """Number rows that are in order already, part after part.

    The number of a row's part is in PART, and its place there is a BIGINT from 0 on. See `numbered`.
    """
    return _numbered(frame.withColumn(_ROW, place), parts, start, name)


def parts_of(minutes: pa.Table, tasks: int) -> list[Counted] | None:
    """Return minutes in parts of nearly equal size, each at the place of its last minute; None if too uneven.

    The table has a row for each minute, in any order, with the columns of Counted. There are fewer parts than tasks
    if there are few rows.
    """
    in_order = minutes.sort_by("place")  # rows without one after all others
    rows = in_order["rows"].to_numpy()
    size = max(ceil(rows.sum() / tasks), _LEAST_ROWS)
    if (rows > _MOST_UNEVEN * size).any():
        return None
    up_to = rows.cumsum()
    parts: list[Counted] = []
    first = before = 0
    while first < len(rows):
        end = max(int(np.searchsorted(up_to, before + size, side="right")), first + 1)
        parts.append(_joined(in_order.slice(first, end - first)))
        first, before = end, int(up_to[end - 1])
    return parts


def _joined(minutes: pa.Table) -> Counted:
    return Counted(
        minutes["place"][-1].as_py(),
        pc.sum(minutes["rows"]).as_py(),
        pc.max(minutes["highest"]).as_py(),
        pc.min(minutes["lowest"]).as_py(),
    )


def _counts(frame: DataFrame, place: Column, measure: Column | None) -> pa.Table:
    """Return the rows at each place, with the columns of Counted."""
    of = F.lit(None).cast("bigint") if measure is None else measure
    counts = F.count("*").alias("rows"), F.max(of).alias("highest"), F.min(of).alias("lowest")
    return frame.groupBy(place.alias("place")).agg(*counts).toArrow()


def _part_of(instant: Column, parts: Sequence[Counted]) -> Column:
    """Return the number of the part of a row: the first whose place is not before the row's instant."""
    part = F.lit(max(len(parts) - 1, 0))
    for number in range(len(parts) - 2, -1, -1):
        part = F.when(instant <= F.lit(parts[number].place), F.lit(number)).otherwise(part)
    return part


def _numbered(rows: DataFrame, parts: Sequence[Counted], start: int, name: str) -> Numbered:
    """Return the rows with numbers; each part is a partition in order."""
    firsts = list(accumulate((part.rows for part in parts), initial=start))
    first = F.element_at(F.array(*[F.lit(number).cast("bigint") for number in firsts]), F.col(PART) + 1)
    highest = {number: part.highest for number, part in enumerate(parts)}
    lowest = min((part.lowest for part in parts if part.lowest is not None), default=None)
    return Numbered(rows.withColumn(name, first + F.col(_ROW)).drop(_ROW), firsts[-1] - start, highest, lowest)


def _in_order(rows: DataFrame, order: Sequence[Column]) -> DataFrame:
    """Return each partition in order, with the place of each row in it."""
    place = F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_MASK))
    return rows.sortWithinPartitions(*order).withColumn(_ROW, place)
