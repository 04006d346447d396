"""What windows of every kind ask of an event: does it pass their filter, can they add it up, of which group is it.

Here: `where`, `group_by` and the arguments of aggregates as columns. Not here: which windows an event is in
(aligned.py, sessions.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.try_expression import any_fails, null_if_it_fails
from tidemark.timeops.spec import WindowSpec

FILTERED = "__filtered"
MISSED = "__missed"  # ends of the windows that an event would be in, had they not closed
START = "__start"  # of a window, microseconds
END = "__end"
OPEN_IN = "__sessions"
"""ARRAY<STRING> of an event that is kept between segments: the sessions and sliding windows that it is kept for;
null for events of the segment."""
FLUSHED = "__flushed"
"""ARRAY<STRUCT<start, end, seq>> of an event: the windows of its group that an earlier flush closed, `seq` the
largest `_arrival_seq` in each; see flushed_windows.py. No such column where there are none."""
BY_FLUSH = "__by_flush"  # BOOLEAN of a late event: a flush had closed its last window, the watermark had not
MISSED_FROM = "__missed_from"  # of such an event of a session: where the session that it missed begins


def filtered(frame: DataFrame, window: WindowSpec) -> Column:
    """BOOLEAN, never null: the window's `where` is not true."""
    if window.where is None:
        return F.lit(False)
    return ~F.coalesce(null_if_it_fails(frame, window.where), F.lit(False))


def unfit(frame: DataFrame, window: WindowSpec) -> Column | None:
    """BOOLEAN, never null: the event passes the filter, and an aggregate fails on it; None where none can.

    It is a dead letter of the window, whichever window of the definition it would be in, and is in none of them.
    """
    fails = any_fails(frame, on_rows(window.aggregates.values()))
    return None if fails is None else ~filtered(frame, window) & fails


def left_out(frame: DataFrame, window: WindowSpec) -> Column:
    """BOOLEAN, never null: the event does not pass the filter, or an aggregate fails on it."""
    fails = any_fails(frame, on_rows(window.aggregates.values()))
    return filtered(frame, window) if fails is None else filtered(frame, window) | fails


def takes_part(events: DataFrame, window: WindowSpec) -> Column:
    """BOOLEAN, never null: the event is not left out, or earlier segments kept it for this window."""
    if OPEN_IN not in events.columns:  # none was kept
        return ~left_out(events, window)
    return F.coalesce(F.array_contains(OPEN_IN, window.name), ~left_out(events, window))


def flushed_at(events: DataFrame, end_us: Column) -> Column:
    """BOOLEAN, never null: an earlier flush closed the window of the event's group that has this end."""
    if FLUSHED not in events.columns:
        return F.lit(False)
    return F.exists(FLUSHED, lambda window: window["end"] == end_us)


def group_names(window: WindowSpec) -> list[str]:
    """Working names of the group columns, in order."""
    return [f"__group{number}" for number in range(len(window.group_expressions))]


def with_groups(frame: DataFrame, window: WindowSpec) -> DataFrame:
    """Adds the values of `group_by`, null where an expression fails."""
    expressions = [expression for _, expression in window.group_expressions]
    values = zip(group_names(window), expressions, strict=True)
    columns = {name: null_if_it_fails(frame, expression) for name, expression in values}
    return frame.withColumns(columns) if columns else frame  # Spark Connect refuses none
