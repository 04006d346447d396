"""Running maxima: the largest value among the rows of the same key that come before a row, in some order of places.

Here: how all cores share the work. The places of a key are cut into cells; each cell is solved by itself, and of all
cells before it only the maximum is carried over. Cells share the work and nothing else: any width gives the same
result. Not here: what is compared, and what a maximum means (watermark/, windows/).

Two plans: where every row asks, the maxima of cells are aggregated first, and joined (`with_maxima_before`). Where
few rows ask about many marks, both are laid into one frame, which is read once (`with_largest_at_or_below`).

Who looks for the first of several marks gives them values of which the first is the largest.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import floor_to

CELL_ROWS = 65_536  # of places in the log
CELL_US = 60_000_000  # of places in time

_CELL = "__tm_cell"
_IS_MARK = "__tm_is_mark"
_IS_LAST = "__tm_is_last"
_SEEN = "__tm_seen"
_FIRST, _ALL_BEFORE = Window.unboundedPreceding, -1


def with_carried(
    cells: DataFrame, values: Mapping[str, Column], before: Mapping[str, Column], *, key: str, cell: str
) -> DataFrame:
    """Adds to the cells of each key the largest value of the cells before them, and of what was before all cells.

    Args:
        cells: One row per key and cell.
        values: By the name of the new column the value of a cell.
        before: By the same names the value that the key has before its first cell; null for none.
        key: The column that names the key.
        cell: The column that orders the cells.
    """
    earlier = Window.partitionBy(key).orderBy(cell).rowsBetween(_FIRST, _ALL_BEFORE)
    return cells.withColumns({name: F.greatest(before[name], F.max(of).over(earlier)) for name, of in values.items()})


def with_maxima_before(
    rows: DataFrame, carried: DataFrame, own: Mapping[str, Column], *, key: str, place: str, in_cells: bool
) -> DataFrame:
    """Adds the largest value of each of some numbers over the earlier rows of the row's key.

    Args:
        rows: Rows with a key and a place in the log, and what `own` asks for.
        carried: The key and one column of each name: the maxima before the first row.
        own: The row's own number, by the name of the new column; null where it has none.
        key: The column that names the key.
        place: The column that orders the rows.
        in_cells: There are few keys, so each is cut into cells. Their maxima are broadcast.

    Returns:
        The rows with the new columns, and each row's own number as `<name>__tm_own`.
    """
    numbered = rows.withColumns({f"{name}__own": value for name, value in own.items()})
    before = carried.select(key, *[F.col(name).alias(f"{name}__carried") for name in own])
    if in_cells:
        numbered = numbered.withColumn(_CELL, floor_to(F.col(place), CELL_ROWS))
        cells = _maxima_of_cells(numbered, before, tuple(own), key)
        known, keys = numbered.join(F.broadcast(cells), [key, _CELL]), [key, _CELL]
    else:
        known, keys = numbered.join(before, key, "left"), [key]
    earlier = Window.partitionBy(*keys).orderBy(place).rowsBetween(_FIRST, _ALL_BEFORE)
    maxima = {name: F.greatest(F.max(f"{name}__own").over(earlier), F.col(f"{name}__carried")) for name in own}
    return known.withColumns(maxima).drop(_CELL, *[f"{name}__carried" for name in own])


def _maxima_of_cells(numbered: DataFrame, before: DataFrame, names: tuple[str, ...], key: str) -> DataFrame:
    """Per key and cell the maxima before it, as `<name>__tm_carried`."""
    highest = numbered.groupBy(key, _CELL).agg(*[F.max(f"{name}__own").alias(name) for name in names])
    values = {f"{name}__carried": F.col(name) for name in names}
    start = {name: F.col(name) for name in values}
    return with_carried(highest.join(before, key, "left"), values, start, key=key, cell=_CELL).drop(*names)


def with_largest_at_or_below(
    asked: DataFrame, marks: DataFrame, value: str, *, key: str, place: str, width: int | None
) -> DataFrame:
    """Adds to each row the largest value among the marks of its key whose place is at most its own.

    Args:
        asked: Rows with a key and a place. They should be few or narrow: those of a key end up on one core.
        marks: The key, the place and the value, a number or a struct of numbers; nulls do not count.
        value: The name of the value and of the new column, null where there is no such mark.
        key: The column that names the key.
        place: BIGINT: the column that orders rows and marks.
        width: How many places a cell has; None where the marks are so few that a key is one cell.
    """
    return _with_largest(asked, marks, value, key=key, place=place, width=width, order=F.asc)


def with_largest_at_or_above(
    asked: DataFrame, marks: DataFrame, value: str, *, key: str, place: str, width: int | None
) -> DataFrame:
    """Adds to each row the largest value among the marks whose place is at least its own; else as the one below."""
    return _with_largest(asked, marks, value, key=key, place=place, width=width, order=F.desc)


def _with_largest(
    asked: DataFrame,
    marks: DataFrame,
    value: str,
    *,
    key: str,
    place: str,
    width: int | None,
    order: Callable[[str], Column],
) -> DataFrame:
    of_marks = marks.select(key, place, value).withColumn(_IS_MARK, F.lit(True))
    both = asked.withColumn(_IS_MARK, F.lit(False)).unionByName(of_marks, allowMissingColumns=True)
    in_order = (order(place), F.desc(_IS_MARK))  # a mark at the row's own place counts
    if width is None:
        so_far = Window.partitionBy(key).orderBy(*in_order).rowsBetween(_FIRST, 0)
        found = both.withColumn(value, F.max(value).over(so_far)).where(~F.col(_IS_MARK))
        return found.select(*asked.columns, value)
    in_cell = Window.partitionBy(key, _CELL).orderBy(*in_order)
    seen = both.withColumn(_CELL, floor_to(F.col(place), width)).withColumns(
        {
            _SEEN: F.max(value).over(in_cell.rowsBetween(_FIRST, 0)),
            _IS_LAST: F.lead(_IS_MARK).over(in_cell).isNull(),
        }
    )
    # The last row of a cell has seen all its marks; it comes behind the others, which must not know of it.
    by_cell = Window.partitionBy(key).orderBy(order(_CELL), _IS_LAST).rowsBetween(_FIRST, 0)
    of_cells = F.max(F.when(F.col(_IS_LAST), F.col(_SEEN))).over(by_cell)
    found = seen.where(~F.col(_IS_MARK) | F.col(_IS_LAST)).withColumn(value, F.greatest(_SEEN, of_cells))
    return found.where(~F.col(_IS_MARK)).select(*asked.columns, value)
