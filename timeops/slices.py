"""Windows that overlap much, by slices: an event is added up once, not once for each window that holds it.

Here: hopping and cumulative windows whose aggregates can be computed in parts. Not here: which aggregates can
(partials.py), windows by assignment (gridded.py), which give the same results and can do all others.

A slice is a stretch of time that every window holds whole or not at all. An event that came when some of its windows
had closed (by the watermark, or by a flush before the pipeline was reopened) is not in all the windows of its slice:
such events, which are few, are added up by window.
"""

from math import gcd

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.adjustment import Adjusted
from timeops.columns import T_FINAL, TIMELINE, W_BEFORE, floor_to
from timeops.contents import END, FLUSHED, filtered, group_names, with_groups
from timeops.gridded import ENDS, KEYS, closes_in, place
from timeops.grids import close_time, end_after, ends_of, last_end_of
from timeops.partials import Partial, partials_of
from timeops.spec import WindowSpec

MOST_ASSIGNED = 3
"""An event in at most so many windows is added up in each of them: that is cheaper than adding up twice."""

_SLICE = "__slice"


def partials_by_slice(events: DataFrame, window: WindowSpec) -> dict[str, Partial] | None:
    """The aggregates in parts, where slices are worth it; None where events go to windows one by one."""
    if window.kind not in ("hopping", "cumulative") or window.size_us <= MOST_ASSIGNED * window.end_step_us:
        return None
    return partials_of(window.aggregates, events)


def sliced_results(
    events: DataFrame, adjusted: Adjusted, window: WindowSpec, partials: dict[str, Partial], *, flushed: bool
) -> DataFrame:
    """The aggregates of the windows that close in the stretch, by gridded.KEYS and `contents.group_names`.

    Args:
        events: As for `gridded.closed_contents`.
        adjusted: The stretch.
        window: The window.
        partials: What `partials_by_slice` gave.
        flushed: As for `windows.window_results`.
    """
    groups = group_names(window)
    parts = [column.alias(name) for partial in partials.values() for name, column in partial.parts.items()]
    passing = with_groups(events.where(~filtered(events, window)), window)
    first = end_after(F.col(T_FINAL) - F.lit(window.ends_inside_us), window)
    in_all = F.coalesce(close_time(first, window) > F.col(W_BEFORE), F.lit(True))
    if FLUSHED in passing.columns:
        last = last_end_of(F.col(T_FINAL), window)
        in_all = in_all & ~F.exists(FLUSHED, lambda one: (one["end"] >= first) & (one["end"] <= last))
    by_slice = passing.where(in_all).withColumn(_SLICE, _slice_of(window)).groupBy(TIMELINE, _SLICE, *groups)
    of_slices = by_slice.agg(*parts).withColumn(END, F.explode(ends_of(F.col(_SLICE), window))).drop(_SLICE)
    late = place(passing.where(~in_all), window).withColumn(END, F.explode(ENDS))
    of_windows = late.groupBy(*KEYS, *groups).agg(*parts)
    both = closes_in(of_slices.unionByName(of_windows), adjusted, window, flushed=flushed)
    wholes = [partial.whole.alias(name) for name, partial in partials.items()]
    return both.groupBy(*KEYS, *groups).agg(*wholes)


def _slice_of(window: WindowSpec) -> Column:
    """An instant that is in the same windows as the event: the first of its slice."""
    width = gcd(window.size_us, window.end_step_us)
    inside = F.lit(window.ends_inside_us)
    return floor_to(F.col(T_FINAL) - inside, width, window.offset_us % width) + inside
