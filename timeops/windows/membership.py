"""The questions of all windows to an event: does it pass their filter, can they add it up, what is its group.

Here: `where`, `group_by`, the order of `top`, arguments of aggregates and gaps as SQL; of the windows that hold an
event's time which are open to it; the names of the columns that kinds of windows share. Not here: which windows hold
a time (aligned.py, sessions.py, sliding.py).
"""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.calendar.grid import close_time
from tidemark.timeops.columns import LATENESS, TIMELINE, W_BEFORE, with_sql
from tidemark.timeops.events.event_time import gap_us
from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.tokens import literal
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.spec import WindowSpec

START = "__tm_start"  # of a window, microseconds
END = "__tm_end"
BY_END: tuple[str, ...] = (TIMELINE, END)
"""Which window of its group a row is of, where its end says so."""
BY_BOUNDS: tuple[str, ...] = (TIMELINE, START, END)
"""The same where windows merge: with late events two may have one start, and bounds that are revised share either."""

FILTERED = "__tm_filtered"
ENDS = "__tm_ends"  # ends of the windows that an event is in
MISSED = "__tm_missed"  # ends of the windows that an event would be in, had they not closed
OPEN_IN = "__tm_open_in"
"""ARRAY<STRING> of an event that is kept between segments: the sessions and sliding windows that it is kept for;
null for events of the segment."""
FLUSHED_WINDOWS = "__tm_flushed_windows"
"""ARRAY<STRUCT<start, end, seq>> of an event: the windows of its group that an earlier flush closed, `seq` the
largest `_arrival_seq` in each; see segment.py. No such column where there are none."""
BY_FLUSH = "__tm_by_flush"  # BOOLEAN of a late event: a flush had closed its last window, the watermark had not
MISSED_FROM = "__tm_missed_from"  # of a late event of a session: where the session that it missed begins

FRESH = "__tm_fresh"  # BOOLEAN of an event among the ones of earlier segments: it came in this one
RANK = "__tm_rank"
"""BIGINT: orders the moments at which a window that revises its results has one, see revisions.py."""
Rank = Callable[[str, str, str], str]
"""SQL of the first moment after an event of a row with END, by the clock, the watermark that it met, and its place in
the log."""
CHANGED_BY = "__tm_changed_by"
"""The event of the segment that changed a session's bounds, an EVENT; null where they last."""
EVENT = "struct<seq: bigint, t: bigint, w: bigint, clock: bigint, fresh: boolean>"

_ALL = "__tm_all"


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
    return with_sql(
        frame, {name: columns.read(text).sql for name, text in zip(group_names(window), texts, strict=True)}
    )


NO_ENDS = "CAST(array() AS ARRAY<BIGINT>)"


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
    by_watermark = f"coalesce({close_time(end_us, window)} <= {W_BEFORE}, false)"
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
        ends = {name: f"IF({W_BEFORE} IS NULL, {on_time[name]}, {late})" for name, late in ends.items()}
    return with_sql(placed, ends).drop(_ALL)


def late_of(placed: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the placed events that missed their only window, or all of several, with `__tm_lateness_us`.

    Where they have `__tm_flushed_windows`, also `__tm_by_flush`: the watermark had not closed the last of them, so
    `__tm_lateness_us` is null.
    """
    late = placed.where(f"size({MISSED}) > 0 AND size({ENDS}) = 0")
    last = close_time(f"element_at({MISSED}, -1)", window)
    lateness = f"{W_BEFORE} - {last} + 1L"
    if FLUSHED_WINDOWS not in placed.columns:
        return late.withColumn(LATENESS, F.expr(lateness))
    by_flush = f"coalesce({last} > {W_BEFORE}, true)"
    return with_sql(late, {BY_FLUSH: by_flush, LATENESS: f"IF({by_flush}, NULL, {lateness})"})
