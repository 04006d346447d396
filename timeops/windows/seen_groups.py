"""The groups of which a window has seen events: the state of windows that give rows without an event as well.

Here: of each group the first and the last window that held an event. Not here: the rows that follow from it
(gap_filling.py), storage.

A group that was seen once is owed a row for every later window of its timeline, so it can never be forgotten.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import T_FINAL, TIMELINE, W_BEFORE, same_in
from tidemark.timeops.grid import end_after, last_end_of
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.membership import group_names, left_out, with_groups

FIRST_END = "__first_end"
"""BIGINT: end of the first window that held an event of the group, microseconds."""
LAST_END = "__last_end"
"""BIGINT: the same of the last."""


def reaching(events: DataFrame, window: WindowSpec) -> DataFrame:
    """The events that reach a window.

    Args:
        events: Accepted events of a segment.
        window: The window, on a grid.

    Returns:
        The events with the group columns of `contents.with_groups`, and `__first_end` and `__last_end` of the windows
        that each reaches: of those that it is in, the ones that had not closed.
    """
    earliest = end_after(F.col(T_FINAL) - F.lit(window.ends_inside_us), window)
    still_open = end_after(F.col(W_BEFORE) - F.lit(window.allowed_lateness_us + window.ends_inside_us), window)
    ends = {FIRST_END: F.greatest(earliest, still_open), LAST_END: last_end_of(F.col(T_FINAL), window)}
    placed = with_groups(events.where(~left_out(events, window)), window).withColumns(ends)
    return placed.where(F.col(FIRST_END) <= F.col(LAST_END))


def seen_groups(events: DataFrame, window: WindowSpec) -> DataFrame:
    """The groups of events that reach a window.

    Args:
        events: Accepted events of a segment.
        window: The window, on a grid.

    Returns:
        `_timeline`, the group columns of `membership.group_names`, `__first_end`, `__last_end`; each group once.
    """
    return once(reaching(events, window), window)


def once(rows: DataFrame, window: WindowSpec) -> DataFrame:
    """Rows of `seen_groups` of several segments as those of all of them together: each group once."""
    ends = (F.min(FIRST_END).alias(FIRST_END), F.max(LAST_END).alias(LAST_END))
    return rows.groupBy(TIMELINE, *group_names(window)).agg(*ends)


def changed_groups(before: DataFrame, fresh: DataFrame, window: WindowSpec) -> DataFrame:
    """The groups of a segment of which rows of the ones before say nothing, or not as much."""
    keys = [TIMELINE, *group_names(window)]
    new, old = fresh.alias("new"), before.alias("old")
    says_it = (F.col(f"old.{FIRST_END}") <= F.col(f"new.{FIRST_END}")) & (
        F.col(f"old.{LAST_END}") >= F.col(f"new.{LAST_END}")
    )
    return new.join(old, same_in("new", "old", keys) & says_it, "left_anti")
