"""Windows that flushes closed up to the end of a segment and the watermark has not passed: they stay closed.

Here: which they are, from the events of every kind of window. Not here: their shape, and how events are told of them
(drained_windows.py), storage.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import TIMELINE, same_in
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import start_of
from tidemark.timeops.materialize import as_it_is
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows import aligned, sessions, sliding
from tidemark.timeops.windows.drained_windows import ahead, of_contents, of_groups, with_flushed
from tidemark.timeops.windows.membership import END, START, group_names
from tidemark.timeops.windows.results import all_events
from tidemark.timeops.windows.seen_groups import once, seen_groups


def staying_closed(
    adjusted: Adjusted,
    open_events: DataFrame,
    window: WindowSpec,
    before: DataFrame | None,
    *,
    flushed: bool,
    seen: DataFrame | None = None,
) -> DataFrame | None:
    """The windows that stay closed behind a segment, flushed_windows.columns_of; None where there was no flush.

    Args:
        adjusted: The segment.
        open_events: As for `windows.window_results`.
        window: The window.
        before: What this gave of the segment before.
        flushed: The end of input is flushed behind the segment.
        seen: As for `windows.window_results`; only a flush asks for it.
    """
    frames = [] if before is None else [ahead(before, adjusted.state, window)]
    if flushed:
        frames.append(_closed_by_flush(adjusted, open_events, window, seen, before))
    return reduce(DataFrame.unionByName, frames) if frames else None


def _closed_by_flush(
    adjusted: Adjusted,
    open_events: DataFrame,
    window: WindowSpec,
    seen: DataFrame | None,
    before: DataFrame | None,
) -> DataFrame:
    """The windows that a flush at the end of a segment closes; those of earlier flushes are not among them."""
    if window.empty:
        fresh = seen_groups(adjusted.accepted, window)
        known = fresh if seen is None else once(seen.unionByName(fresh), window)
        found = of_groups(known, adjusted.state, window)
    else:
        events = all_events(adjusted, open_events)
        if before is not None and window.kind != "session":
            events = with_flushed(events, before, window)
        found = of_contents(_flushed_contents(events, adjusted, window, before), adjusted.state, window)
    if before is None:
        return found
    keys = [TIMELINE, *group_names(window), START, END]
    return found.alias("new").join(before.alias("old"), same_in("new", "old", keys), "left_anti")


def _flushed_contents(
    events: DataFrame, adjusted: Adjusted, window: WindowSpec, stay_closed: DataFrame | None
) -> DataFrame:
    if window.kind == "session":
        return sessions.closed_contents(events, adjusted, window, flushed=True, stay_closed=stay_closed)
    if window.kind == "sliding":
        return sliding.closed_contents(events, adjusted, window, flushed=True, keep=as_it_is)
    contents = aligned.closed_contents(events, adjusted, window, flushed=True)
    return contents.withColumn(START, start_of(F.col(END), window))
