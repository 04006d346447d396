"""A segment of the log as one window meets it: its events, which of them take part, what closes.

Here: the segment's events and earlier ones that the window still needs; the results of another window in the place of
events; what every window asks of an event, as SQL (`where`, `group_by`, arguments of aggregates, gaps), and which of
the windows that hold its time are open to it; which windows close in the segment, and the watermark at the item that
closed one, looked up on the driver (timeops/watermark/watermarks.py); windows that a flush closed and the watermark
has not passed, which stay closed in a reopened pipeline. Not here: which windows hold a time
(timeops/windows/aligned.py, timeops/windows/sessions.py, timeops/windows/sliding.py), what the window makes of them
(timeops/windows/kinds.py, timeops/windows/results.py), the rules of time (timeops/events/).

A result has its end as its time, and the watermark of its timeline. So it is never late: an outer window never
closes first, as it allows at least as much lateness.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import close_time, open_to
from tidemark.timeops.computing.materialize import Execution, from_driver
from tidemark.timeops.events.adjustment import Adjusted, with_both_ends, with_end
from tidemark.timeops.events.event_time import gap_us, timeline
from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window import result_columns, timeline_columns
from tidemark.timeops.values.instants import NONE, Array, integers

START = "__tm_start"  # of a window, microseconds
END = "__tm_end"
BY_END: tuple[str, ...] = (c.TIMELINE, END)
"""Which window of its group a row is of, where its end says so."""
BY_BOUNDS: tuple[str, ...] = (c.TIMELINE, START, END)
"""The same where windows merge: with late events two may have one start, and bounds that are revised share either."""

FILTERED = "__tm_filtered"
ENDS = "__tm_ends"  # ends of the windows that an event is in
NO_ENDS = "CAST(array() AS ARRAY<BIGINT>)"
MISSED = "__tm_missed"  # ends of the windows that an event would be in, had they not closed
OPEN_IN = "__tm_open_in"
"""ARRAY<STRING> of an event that is kept between segments: the sessions and sliding windows that it is kept for;
null for events of the segment."""
FLUSHED_WINDOWS = "__tm_flushed_windows"
"""ARRAY<STRUCT<start, end, seq>> of an event: the windows of its group that an earlier flush closed, `seq` the
largest `_arrival_seq` in each. No such column where there are none."""
BY_FLUSH = "__tm_by_flush"  # BOOLEAN of a late event: a flush had closed its last window, the watermark had not
MISSED_FROM = "__tm_missed_from"  # of a late event of a session: where the session that it missed begins

FRESH = "__tm_fresh"  # BOOLEAN of an event among the ones of earlier segments: it came in this one
RANK = "__tm_rank"
"""BIGINT: orders the moments at which a window that revises its results has one, see timeops/windows/revisions.py."""
Rank = Callable[[str, str, str], str]
"""SQL of the first moment after an event of a row with END, by the clock, the watermark that it met, and its place in
the log."""
CHANGED_BY = "__tm_changed_by"
"""The event of the segment that changed a session's bounds, an EVENT; null where they last."""
EVENT = "struct<seq: bigint, t: bigint, w: bigint, clock: bigint, fresh: boolean>"

_ALL = "__tm_all"

AFTER_SEQ = "__tm_after_seq"  # an item, by its place in the log

_CLOSES_AT = "__tm_closes_at"


class Placed(Protocol):
    """The windows of a segment's events, as the driver finds them; each kind has a class of its own."""

    @property
    def late(self) -> int:
        """How many accepted events of the segment are in none."""


@dataclass(frozen=True)
class WindowSegment:
    """A segment of the log, and what is known of a window in it.

    Attributes:
        adjusted: The segment; of a window over another one its events are results of that one, see `with_results`.
        earlier: Events of earlier segments that the window still needs; None for none. Of a window that revises its
            results they have `__tm_w_before` and `_clock` as they came.
        flushed_windows: Windows that earlier flushes closed and the watermark had not passed; None for none.
        seen: With `empty` the groups that earlier segments have seen, see timeops/windows/gap_filling.py; None for
        none.
        flushed: The segment ends with a flushing end of input: every window closes.
        placed: What the kind's `placed` returns, where it is known; None where it is not, or the kind finds nothing.
        execution: How its frames are computed.
    """

    adjusted: Adjusted
    earlier: DataFrame | None = None
    flushed_windows: DataFrame | None = None
    seen: DataFrame | None = None
    flushed: bool = False
    placed: Any = None
    execution: Execution = field(default_factory=Execution)

    @property
    def events(self) -> DataFrame:
        """The accepted events of the segment and the known ones, which were on time: `__tm_w_before` is null."""
        if self.earlier is None:
            return self.adjusted.accepted
        earlier = self.earlier.withColumn(c.W_BEFORE, F.expr("CAST(NULL AS BIGINT)"))
        return earlier.unionByName(self.adjusted.accepted, allowMissingColumns=True)

    @property
    def events_as_they_came(self) -> DataFrame:
        """The same with the watermark and the clock that each met, which revised results ask for."""
        if self.earlier is None:
            return self.adjusted.accepted
        return self.earlier.unionByName(self.adjusted.accepted, allowMissingColumns=True)

    @property
    def fresh_and_known(self) -> DataFrame:
        """Events as they came, with FRESH."""
        fresh = self.adjusted.accepted.withColumn(FRESH, F.lit(True))
        if self.earlier is None:
            return fresh
        return self.earlier.withColumn(FRESH, F.lit(False)).unionByName(fresh, allowMissingColumns=True)

    def closing(self, rows: DataFrame, window: WindowSpec) -> DataFrame:
        """Return the rows, by `_timeline` and `__tm_end`, whose window closes in the segment."""
        with_ends = with_both_ends(rows, self.adjusted)
        by_now = "true" if self.flushed else f"{close_time(END, window)} <= {c.W_END}"
        return with_ends.where(f"{open_to(END, c.W_START, window)} AND {by_now}").drop(c.W_START, c.W_END)


def with_end_once(rows: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Return rows with `__tm_w_end`, which they may have already."""
    return rows if c.W_END in rows.columns else with_end(rows, adjusted)


def as_events(
    results: DataFrame,
    window: WindowSpec,
    windows: Sequence[WindowSpec],
    over: Sequence[str],
    apart: Sequence[str] = (),
) -> DataFrame:
    """Return the final results of a window as accepted events.

    `results` are rows of `results.window_results`, or of the table that holds them; `windows` and `over` all windows
    and `time.over` of the spec; `apart` is that of `TimeRules`.

    Returns:
        `result_columns`, `_timeline`, `_timestamp` (the end of the window), `__tm_timestamp`, and a null
        `__tm_w_before`: none is late.
    """
    final = results.where("_is_final").selectExpr(*map(quoted, result_columns(window, results.columns)))
    return final.withColumns(
        {
            c.TIMELINE: F.expr(timeline(Columns.of(final), timeline_columns(window, windows, over, apart))),
            c.TIMESTAMP: F.col("window_end"),
            c.T_FINAL: c.to_us("window_end"),
            c.W_BEFORE: F.expr("CAST(NULL AS BIGINT)"),
        }
    )


def with_results(adjusted: Adjusted, events: DataFrame) -> Adjusted:
    """Return the segment with results for its events: the ones that came in it, as `as_events` returns them."""
    return replace(adjusted, accepted=events)


# What a window asks of an event.


def filtered(columns: Columns, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: the window's `where` is not true."""
    if window.where is None:
        return "false"
    return f"(NOT coalesce({columns.read(window.where).sql}, false))"


def on_events(window: WindowSpec) -> tuple[str, ...]:
    """Return what a window evaluates on each event that passes its filter: on one that fails it has no result."""
    return tuple(dict.fromkeys([*on_rows(window.aggregates.values()), *window.order]))


def _fails(columns: Columns, window: WindowSpec) -> str | None:
    """Return SQL of a BOOLEAN, never null: something fails on the event, or it has no gap; None where nothing can."""
    fails = columns.any_fails(on_events(window))
    if window.gap_by is None:
        return fails
    has_none = f"({gap_us(columns, window)} IS NULL)"
    return has_none if fails is None else f"({fails} OR {has_none})"


def unfit(columns: Columns, window: WindowSpec) -> str | None:
    """Return SQL of a BOOLEAN, never null: the event passes the filter, and fails where the window evaluates it.

    That is an aggregate, the order, or a gap that is not a length up to `max_gap`. It is a dead letter of the window,
    whichever window of the definition it would be in, and is in none of them. None where nothing can fail.
    """
    fails = _fails(columns, window)
    return None if fails is None else f"(NOT {filtered(columns, window)} AND {fails})"


def left_out(columns: Columns, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: the event does not pass the filter, or something else fails on it."""
    fails = _fails(columns, window)
    return filtered(columns, window) if fails is None else f"({filtered(columns, window)} OR {fails})"


def takes_part(columns: Columns, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: the event is not left out, or earlier segments kept it for this window."""
    fits = f"NOT {left_out(columns, window)}"
    if OPEN_IN not in columns.types:  # none was kept
        return f"({fits})"
    return f"coalesce(array_contains({OPEN_IN}, {literal(window.name)}), {fits})"


def group_names(window: WindowSpec) -> list[str]:
    """Return the working names of the group columns, in order."""
    return [f"__tm_group_{number}" for number in range(len(window.group_expressions))]


def with_groups(frame: DataFrame, window: WindowSpec) -> DataFrame:
    """Add the values of `group_by`, null where an expression fails."""
    columns, texts = Columns.of(frame), [text for _, text in window.group_expressions]
    return c.with_sql(
        frame, {name: columns.read(text).sql for name, text in zip(group_names(window), texts, strict=True)}
    )


def flushed_at(events: DataFrame, end_us: str) -> str:
    """Return SQL of a BOOLEAN, never null: an earlier flush closed the window of the event's group with this end."""
    if FLUSHED_WINDOWS not in events.columns:
        return "false"
    return f"exists({FLUSHED_WINDOWS}, __tm_f -> __tm_f.`end` = {end_us})"


def flushed_between(first_us: str, last_us: str) -> str:
    """Return SQL of a BOOLEAN, never null: an earlier flush closed a window of the event's group that ends there.

    Both ends count. The event has FLUSHED_WINDOWS.
    """
    return f"exists({FLUSHED_WINDOWS}, __tm_f -> __tm_f.`end` BETWEEN {first_us} AND {last_us})"


def closed_to(events: DataFrame, end_us: str, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: when an event came, as of `place`, the window with this end had closed."""
    by_watermark = f"coalesce({close_time(end_us, window)} <= {c.W_BEFORE}, false)"
    return f"({by_watermark} OR {flushed_at(events, end_us)})"


def place(events: DataFrame, ends_us: str, window: WindowSpec) -> DataFrame:
    """Add the windows that each event is in, and the windows that it missed.

    Args:
        events: Events with `__tm_w_before` (microseconds; null: on time for certain), and where the pipeline was
            reopened with `__tm_flushed_windows`.
        ends_us: SQL of an ARRAY<BIGINT>: the ends of the windows that hold its time.
        window: Its filter, and when it closes.

    Returns:
        `events` with `__tm_filtered` BOOLEAN (the window leaves the event out), `__tm_ends` and `__tm_missed`
        ARRAY<BIGINT>, ends of windows (both empty when filtered, or in a gap).
    """
    placed = events.withColumn(FILTERED, F.expr(left_out(Columns.of(events), window)))
    placed = placed.withColumn(_ALL, F.expr(f"IF({FILTERED}, {NO_ENDS}, {ends_us})"))
    is_closed = closed_to(events, "__tm_e", window)
    ends = {MISSED: f"filter({_ALL}, __tm_e -> {is_closed})", ENDS: f"filter({_ALL}, __tm_e -> NOT {is_closed})"}
    if FLUSHED_WINDOWS not in events.columns:  # most events are on time for certain
        on_time = {MISSED: NO_ENDS, ENDS: _ALL}
        ends = {name: f"IF({c.W_BEFORE} IS NULL, {on_time[name]}, {late})" for name, late in ends.items()}
    return c.with_sql(placed, ends).drop(_ALL)


def late_of(placed: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the placed events that missed their only window, or all of several, with `__tm_lateness_us`.

    Where they have `__tm_flushed_windows`, also `__tm_by_flush`: the watermark had not closed the last of them, so
    `__tm_lateness_us` is null.
    """
    late = placed.where(f"size({MISSED}) > 0 AND size({ENDS}) = 0")
    last = close_time(f"element_at({MISSED}, -1)", window)
    lateness = f"{c.W_BEFORE} - {last} + 1L"
    if FLUSHED_WINDOWS not in placed.columns:
        return late.withColumn(c.LATENESS, F.expr(lateness))
    by_flush = f"coalesce({last} > {c.W_BEFORE}, true)"
    return c.with_sql(late, {BY_FLUSH: by_flush, c.LATENESS: f"IF({by_flush}, NULL, {lateness})"})


# When windows closed.


def closing_watermarks(ends: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Look up when windows closed; `ends` has `_timeline`, `__tm_end`, and what else names a window, each once.

    Returns:
        `ends` with `_watermark` BIGINT, just after the item that closed the window: null where no item did (a flush
        does).
    """

    def ask(rows: pa.Table) -> list[Array]:
        return [adjusted.watermarks.reaching(rows[c.TIMELINE], integers(rows[_CLOSES_AT])).watermark]

    closed = ends.withColumn(_CLOSES_AT, F.expr(close_time(END, window)))
    return _with_looked_up(closed, adjusted, [c.WATERMARK], ask).drop(_CLOSES_AT)


def watermarks_after(items: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Look up the watermark just after items; `items` has `_timeline` and `__tm_after_seq`, each once.

    An item is of the segment, or the one before its first.

    Returns:
        `items` with `_watermark` BIGINT, null where there is none yet.
    """

    def ask(rows: pa.Table) -> list[Array]:
        return [adjusted.watermarks.after(rows[c.TIMELINE], integers(rows[AFTER_SEQ])).value]

    return _with_looked_up(items, adjusted, [c.WATERMARK], ask)


def with_watermark_met(events: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Add the watermark before each of few events, and what set it: `__tm_w_before`, `__tm_w_set_by`."""

    def ask(rows: pa.Table) -> list[Array]:
        watermark = adjusted.watermarks.before(rows[c.TIMELINE], integers(rows[c.SEQ]))
        return [watermark.value, watermark.set_by]

    bare = events.drop(c.W_BEFORE, c.W_SET_BY)
    watermarks = _with_looked_up(bare.select(c.TIMELINE, c.SEQ), adjusted, [c.W_BEFORE, c.W_SET_BY], ask)
    return bare.join(watermarks, [c.TIMELINE, c.SEQ])


def _with_looked_up(
    rows_asked: DataFrame, adjusted: Adjusted, names: Sequence[str], ask: Callable[[pa.Table], Sequence[Array]]
) -> DataFrame:
    """Return the rows with columns that are looked up on the driver; without items nothing rises."""
    if not adjusted.watermarks.has_items:
        return rows_asked.withColumns({name: F.lit(None).cast("bigint") for name in names})
    rows = rows_asked.toArrow()
    for name, values in zip(names, ask(rows), strict=True):
        rows = rows.append_column(name, pa.array(values, pa.int64(), mask=values == NONE))
    fields = [StructField(name, LongType()) for name in names]
    return from_driver(rows_asked.sparkSession, rows, StructType([*rows_asked.schema.fields, *fields]))


# Windows that a flush has closed.


LAST_SEQ = "__tm_last_seq"
"""BIGINT: the largest `_arrival_seq` in the window; null in one without events."""


def columns_of(window: WindowSpec) -> list[str]:
    """Return the columns of a frame of flushed windows: BIGINT microseconds, the group, and LAST_SEQ."""
    return [c.TIMELINE, *group_names(window), START, END, LAST_SEQ]


def of_contents(contents: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Return the windows that a flush at the end of a segment closes, each once.

    `contents` are events of the windows that close in it, one row per window that holds them, with `__tm_start`,
    `__tm_end` and the group columns.
    """
    keys = [c.TIMELINE, *group_names(window), START, END]
    once = contents.groupBy(*keys).agg(F.max(c.SEQ).alias(LAST_SEQ) if c.SEQ in contents.columns else no_seq())
    return not_passed(once, adjusted, window).select(*columns_of(window))


def not_passed(windows: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Return the windows that the watermark has not passed; one whose end it has reached is kept as well."""
    is_ahead = f"NOT coalesce({close_time(END, window)} < {c.W_END}, false)"
    return with_end(windows, adjusted).where(is_ahead).drop(c.W_END)


def with_flushed_windows(events: DataFrame, flushed_windows: DataFrame | None, window: WindowSpec) -> DataFrame:
    """Return events with FLUSHED_WINDOWS, empty where their group has none; unchanged without any."""
    if flushed_windows is None:
        return events
    groups = group_names(window)
    entry = f"struct({START} AS start, {END} AS `end`, {LAST_SEQ} AS seq)"
    lists = flushed_windows.groupBy(c.TIMELINE, *groups).agg(F.expr(f"collect_list({entry}) AS {FLUSHED_WINDOWS}"))
    same = c.same_in("event", "own", [c.TIMELINE, *groups])
    joined = with_groups(events, window).alias("event").join(lists.alias("own"), same, "left")
    kind = lists.schema[FLUSHED_WINDOWS].dataType.simpleString()
    column = f"coalesce(own.{FLUSHED_WINDOWS}, CAST(array() AS {kind})) AS {FLUSHED_WINDOWS}"
    return joined.selectExpr(*[f"event.{quoted(name)}" for name in events.columns], column)


def may_be_late(accepted: DataFrame, flushed_windows: DataFrame | None, window: WindowSpec) -> DataFrame:
    """Return the accepted events that may find windows closed: behind the watermark, or where a flush closed some."""
    if flushed_windows is None:
        return accepted.where(f"{c.W_BEFORE} IS NOT NULL")
    return with_flushed_windows(accepted, flushed_windows, window)


def no_seq() -> Column:
    """Return LAST_SEQ of a window without events."""
    return F.lit(None).cast("bigint").alias(LAST_SEQ)
