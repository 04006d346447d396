"""Windows over windows: the final results of one window as the events of another.

Here: what a result is as an event, and for how long one is needed. Not here: the windows of these events (aligned.py,
sessions.py, sliding.py), which window may take the results of which (spec/window.py).

A result has its end as its time, and the watermark of its timeline. So it is never late: a window closes before none
of those over it, as these allow at least its lateness.
"""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import T_FINAL, TIMELINE, TIMESTAMP, W_BEFORE, to_us
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.events.extraction import timeline
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.spec.window import timeline_columns
from tidemark.timeops.windows.membership import OPEN_IN
from tidemark.timeops.windows.results import in_open_windows, still_needed


def result_columns(window: WindowSpec) -> tuple[str, ...]:
    """The columns of a window's results that a window over them may name."""
    return (*window.key_columns, *window.aggregates)


def as_events(
    results: DataFrame, window: WindowSpec, windows: Sequence[WindowSpec], over: Sequence[str]
) -> DataFrame:
    """Final results of a window as accepted events.

    Args:
        results: Rows that `windows.window_results` gave, or of the table that holds them.
        window: The window that gave them.
        windows: All windows of the spec.
        over: The spec's `time.over`.

    Returns:
        `result_columns`, `_timeline`, `_timestamp` (the end of the window), `__timestamp`, and a null `__w_before`:
        none is late.
    """
    final = results.where("_is_final").select(*[F.col(f"`{name}`") for name in result_columns(window)])
    return final.withColumns(
        {
            TIMELINE: timeline(final, timeline_columns(window, windows, over)),
            TIMESTAMP: F.col("window_end"),
            T_FINAL: to_us("window_end"),
            W_BEFORE: F.lit(None).cast("bigint"),
        }
    )


def with_results(adjusted: Adjusted, events: DataFrame) -> Adjusted:
    """The segment with other events than those of the log: the results that came in it, as `as_events` gives them."""
    return replace(adjusted, accepted=events)


def results_still_needed(results: DataFrame, state: DataFrame, window: WindowSpec, time: TimeSpec) -> DataFrame:
    """Results that a window over them still needs at the end of a segment.

    Args:
        results: What this function gave after the segment before, and those that came in it: as of `as_events`.
        state: The timelines' state after the segment.
        window: The window.
        time: The spec's `time` section.
    """
    if window.is_linked:
        return in_open_windows(results, state, (window,), time).drop(OPEN_IN)
    return still_needed(results, state, (window,))
