"""The exact watermark at which a window closed.

Here: for each window that closes in a segment, the watermark just after the item that closed it. Not here: how
watermarks rise (rises.py), what a window holds.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import CELL_US, with_largest_at_or_above
from tidemark.timeops.columns import PROPOSED, SEQ, TIMELINE, WATERMARK
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time, last_closed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.membership import END
from tidemark.timeops.windows.rises import CLOSES_AT, FIRST, REACHED, Find, rise_of


def closing_watermarks(wanted: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """When windows on a grid closed.

    Args:
        wanted: `_timeline`, `__tm_end` of windows that close in the segment, each once.
        adjusted: The segment.
        window: The window.

    Returns:
        `wanted` with `_watermark` BIGINT: null for a window that no item closed (a flush does); and `__tm_reached`,
        the watermark that closed it, see `rises.Rise.reaching`.
    """
    closed = wanted.select(TIMELINE, END).withColumn(CLOSES_AT, close_time(F.col(END), window))
    return rise_of(adjusted).reaching(closed, _on_grid(window)).select(TIMELINE, END, WATERMARK, REACHED)


def with_first_watermarks(results: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Adds the watermark just after the item of the log that closed each window.

    Args:
        results: Rows with `_timeline` and `__tm_end`, of windows that close at any time: sessions, sliding windows.
        adjusted: The segment.
        window: The window.

    Returns:
        The rows with `_watermark` BIGINT: null where no item closed it (a flush did).
    """
    closed = results.withColumn(CLOSES_AT, close_time(F.col(END), window))
    return rise_of(adjusted).reaching(closed, _at_any_time).drop(CLOSES_AT, REACHED)


def _at_any_time(rows: DataFrame, steps: DataFrame, of: str, more: tuple[str, ...]) -> DataFrame:
    """A `Find` by the close time itself."""
    step = F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(PROPOSED).alias("w"), *more)
    asked = steps.where(F.col(PROPOSED).isNotNull())
    marks = asked.groupBy(of, F.col(PROPOSED).alias(CLOSES_AT)).agg(F.max(step).alias(FIRST))
    return with_largest_at_or_above(rows, marks, FIRST, key=of, place=CLOSES_AT, width=CELL_US)


def _on_grid(window: WindowSpec) -> Find:
    """A `Find` by the ends of windows.

    Steps are first grouped by the last window that they close: so few are left that no cells are needed.
    """
    last = last_closed(F.col(PROPOSED), window).alias(END)

    def find(rows: DataFrame, steps: DataFrame, of: str, more: tuple[str, ...]) -> DataFrame:
        # Numbers one by one: for a maximum of several Spark would sort all steps.
        firsts = [F.min_by(name, SEQ).alias(name) for name in (PROPOSED, *more)]
        by_window = steps.where(F.col(PROPOSED).isNotNull()).groupBy(of, last).agg(F.min(SEQ).alias(SEQ), *firsts)
        step = F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(PROPOSED).alias("w"), *more)
        marks = by_window.withColumn(FIRST, step)
        if of == TIMELINE:
            return with_largest_at_or_above(rows, marks, FIRST, key=of, place=END, width=None)
        ends = rows.select(of, END).distinct()  # of all timelines of a log
        found = with_largest_at_or_above(ends, marks, FIRST, key=of, place=END, width=None)
        return rows.join(found, [of, END], "left")

    return find
