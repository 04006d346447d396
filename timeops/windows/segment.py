"""A segment of the log as one window meets it.

Here: its events and those of earlier segments that the window still needs; the results of another window in the place
of events. Not here: what the window makes of them (kinds.py, results.py), the rules of time (events/).

A result has its end as its time, and the watermark of its timeline. So it is never late: a window closes before none
of those over it, as these allow at least its lateness.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import T_FINAL, TIMELINE, TIMESTAMP, W_BEFORE, W_END, W_START, to_us
from tidemark.timeops.events.adjustment import Adjusted, with_both_ends, with_end
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.grid import close_time
from tidemark.timeops.materialize import Materialize, as_it_is
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window import timeline_columns
from tidemark.timeops.windows.membership import END, FRESH


@dataclass(frozen=True)
class WindowSegment:
    """A segment of the log, and what is known of a window in it.

    Attributes:
        adjusted: The segment; of a window over another one its events are results of that one, see `with_results`.
        known: Events of earlier segments that the window still needs; None for none. Of a window that revises its
            results they have `__tm_w_before` and `_clock` as they came.
        drained: Windows that earlier flushes closed and the watermark had not passed, see drained.py; None for none.
        seen: With `empty` the groups that earlier segments have seen, see gap_filling.py; None for none.
        flushed: The segment ends with a flushing end of input: every window closes.
        placed: What the kind's `placed` returns, where it is known; None where it is not, or the kind finds nothing.
        materialize: What is done with frames that are read several times.
        are_few: Its events are few, and so are the results.
    """

    adjusted: Adjusted
    known: DataFrame | None = None
    drained: DataFrame | None = None
    seen: DataFrame | None = None
    flushed: bool = False
    placed: Any = None
    materialize: Materialize = as_it_is
    are_few: bool = False

    @property
    def events(self) -> DataFrame:
        """The accepted events of the segment and the known ones, which were on time: `__tm_w_before` is null."""
        if self.known is None:
            return self.adjusted.accepted
        known = self.known.withColumn(W_BEFORE, F.lit(None).cast("bigint"))
        return known.unionByName(self.adjusted.accepted, allowMissingColumns=True)

    @property
    def events_as_they_came(self) -> DataFrame:
        """The same with the watermark and the clock that each met, which revised results ask for."""
        if self.known is None:
            return self.adjusted.accepted
        return self.known.unionByName(self.adjusted.accepted, allowMissingColumns=True)

    @property
    def fresh_and_known(self) -> DataFrame:
        """Events as they came, with FRESH."""
        fresh = self.adjusted.accepted.withColumn(FRESH, F.lit(True))
        if self.known is None:
            return fresh
        return self.known.withColumn(FRESH, F.lit(False)).unionByName(fresh, allowMissingColumns=True)

    def closing(self, rows: DataFrame, window: WindowSpec) -> DataFrame:
        """Return the rows, by `_timeline` and `__tm_end`, whose window closes in the segment."""
        known = with_both_ends(rows, self.adjusted)
        closes_at = close_time(F.col(END), window)
        not_before = F.coalesce(closes_at > F.col(W_START), F.lit(True))
        by_now = F.lit(True) if self.flushed else closes_at <= F.col(W_END)
        return known.where(not_before & by_now).drop(W_START, W_END)


def with_end_once(rows: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Return rows with `__tm_w_end`, see dating.py, which they may have already."""
    return rows if W_END in rows.columns else with_end(rows, adjusted)


def result_columns(window: WindowSpec) -> tuple[str, ...]:
    """Return the columns of a window's results that a window over them may name."""
    return (*window.key_columns, *window.aggregates)


def as_events(
    results: DataFrame, window: WindowSpec, windows: Sequence[WindowSpec], over: Sequence[str]
) -> DataFrame:
    """Return the final results of a window as accepted events.

    Args:
        results: Rows that `results.window_results` returned, or of the table that holds them.
        window: The window that they are of.
        windows: All windows of the spec.
        over: The spec's `time.over`.

    Returns:
        `result_columns`, `_timeline`, `_timestamp` (the end of the window), `__tm_timestamp`, and a null
        `__tm_w_before`: none is late.
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
    """Return the segment with results for its events: the ones that came in it, as `as_events` returns them."""
    return replace(adjusted, accepted=events)
