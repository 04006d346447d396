"""Results that are given before a window closes, and again when more events have come.

Here: the moments at which a window gives a result, their order, what it holds at each, and the changes that revisions
make, in the shape of Delta's change data. Not here: which windows an event is in (kinds.py), the aggregates
(results.py), storage.

A window gives its result at moments that its events name by themselves: the first when the watermark passes its end
(`on_time`), then for late events when the period of the clock in which they came is over (F, Beam), or at each of
them (`revise_every: 0 s`); with `early` when a period is over in which events came. The last moment is when it
closes. So the rank of a moment, and with it the number of a revision, is a function of the window's events and the
watermark.

The bounds of a session are a window of their own. When an event changes them before it closes, their last moment is
this event: it takes back what they have given.
"""

from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, TIMELINE, W_BEFORE, W_SET_BY, WATERMARK, floor_to, same_in
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.dating import (
    AFTER,
    AFTER_SEQ,
    BEFORE,
    REACHED,
    W_END,
    W_START,
    closing_watermarks,
    watermarks_after,
    watermarks_around,
)
from tidemark.timeops.windows.kinds import WindowKind
from tidemark.timeops.windows.membership import CHANGED_BY, END, EVENT, FRESH, RANK, group_names
from tidemark.timeops.windows.segment import WindowSegment

REVISION = "__tm_revision"
IS_FINAL = "__tm_is_final"
IS_TAKEN_BACK = "__tm_is_taken_back"
"""BOOLEAN: not a result, but the end of those that a session gave at bounds which an event has changed."""
CAUSE = "__tm_cause"
"""BIGINT: of a late event that is new in a revision its place in the log, or that of the event which takes results
back; null of all others."""

CHANGE = "_change_type"  # STRING: insert, update_preimage, update_postimage or delete
PREIMAGE, DELETE = "update_preimage", "delete"
LATE_EVENTS = "_late_events"
"""ARRAY<BIGINT>: the `_arrival_seq` of the late events that a revision has and the one before had not."""
PASSES = "__tm_passes"
"""BOOLEAN, never null: a revision passes `having`. One that does not takes away the row of those that did."""

# Ranks of moments; that of a period is its end on the clock, that of one event its place in the log.
_ON_TIME, _TAKEN_BACK, _FINAL = -(2**62), 2**61, 2**62
_CLOCK_START = "__tm_clock_start"
_GIVEN, _NOW = "__tm_given", "__tm_now"
_CAME = "__tm_came"
_PREVIOUS = "__tm_previous_rank"  # of the result before; null of the first
_IS_KNOWN, _REPLACED = "__tm_is_known", "__tm_replaced"


def revised_contents(segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """Events of the results that windows give in a segment, one row per result that holds them.

    Args:
        segment: The segment; its known events have `__tm_w_before` and `_clock` as they came.
        kind: The window's.

    Returns:
        The rows with `kind.keys`, the group columns of `membership.with_groups`, `__tm_revision`, `__tm_is_final`,
        `__tm_is_taken_back`, `__tm_cause`, and `_watermark` BIGINT, just after the item at which the result was
        given; null where a flush gave it.
    """
    rows = segment.materialize(_ranked(segment, kind))
    moments = _moments(rows, segment, kind)
    event = rows.drop(W_START, W_END, _CLOCK_START, FRESH, CHANGED_BY, WATERMARK).alias("event")
    same = same_in("event", "moment", (*kind.keys, *group_names(kind.window)))
    so_far = F.col(f"event.{RANK}") <= F.col(f"moment.{RANK}")
    more = [f"moment.{name}" for name in (REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK)]
    has_ended = _reached(F.col(W_BEFORE), kind.window, F.col(f"event.{END}"))
    is_new = (F.col(f"event.{RANK}") > F.col(_PREVIOUS)) & has_ended
    by = F.col(f"moment.{CHANGED_BY}")["seq"]
    cause = F.when(F.col(IS_TAKEN_BACK), by).when(is_new, F.col(SEQ)).alias(CAUSE)
    return event.join(moments.alias("moment"), same & so_far).select("event.*", *more, cause)


def _ranked(segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """One row per event and window that had not closed before the segment, with RANK, from which the event is in it.

    Also FRESH, that what makes it so came in the segment, and the watermarks and the clock around the segment.
    """
    rows = kind.contents_so_far(segment, partial(_rank, kind.window))
    if not kind.merges:
        rows = rows.withColumn(CHANGED_BY, F.lit(None).cast(EVENT))
    clocks = segment.adjusted.before.select(TIMELINE, F.col("clock").alias(_CLOCK_START))
    return rows.join(clocks, TIMELINE, "left")


def _rank(window: WindowSpec, clock_us: Column, watermark_us: Column, seq: Column) -> Column:
    """The first moment behind an event, by the clock, the watermark that it met, and its place in the log."""
    if window.early_every_us is not None:
        return floor_to(clock_us, window.early_every_us) + F.lit(window.early_every_us)
    every_us = window.revise_every_us
    late = floor_to(clock_us, every_us) + F.lit(every_us) if every_us else seq
    return F.when(_reached(watermark_us, window), late).otherwise(F.lit(_ON_TIME))


def _reached(watermark_us: Column, window: WindowSpec, end_us: Column | None = None) -> Column:
    """BOOLEAN, never null: a watermark has passed the end of the window."""
    end = F.col(END) if end_us is None else end_us
    return F.coalesce(watermark_us >= end + F.lit(window.ends_inside_us), F.lit(False))


def _moments(rows: DataFrame, segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """The moments of the segment at which windows give a result: their keys, `__tm_rank`, and what makes it a row."""
    adjusted, window, keys = segment.adjusted, kind.window, _keys(kind)
    own = rows.groupBy(*keys, RANK, W_START, W_END, _CLOCK_START, CHANGED_BY).agg(F.max(FRESH).alias(FRESH))
    closes = F.lit(True) if segment.flushed else close_time(F.col(END), window) <= F.col(W_END)
    lasts = own.where(closes & F.col(CHANGED_BY).isNull())
    columns = [*keys, RANK, CHANGED_BY, _GIVEN, _NOW, WATERMARK]
    closing = _closed(lasts, adjusted, window, keys)
    found = _dated(own, adjusted, window, columns).unionByName(closing.select(*columns))
    if kind.merges:
        found = found.unionByName(_taken_back(own, adjusted, keys).select(*columns))
    in_order = Window.partitionBy(*keys).orderBy(RANK)
    numbered = {REVISION: F.row_number().over(in_order) - 1, _PREVIOUS: F.lag(RANK).over(in_order)}
    given = found.where(_GIVEN).withColumns(numbered).where(_NOW)
    is_taken_back = F.col(RANK) == _TAKEN_BACK
    return given.where(~is_taken_back | (F.col(REVISION) > 0)).select(
        *[*keys, RANK, REVISION, _PREVIOUS, WATERMARK, CHANGED_BY],
        (F.col(RANK) == _FINAL).alias(IS_FINAL),
        is_taken_back.alias(IS_TAKEN_BACK),
    )


def _keys(kind: WindowKind) -> list[str]:
    return [*kind.keys, *group_names(kind.window)]


def _closed(lasts: DataFrame, adjusted: Adjusted, window: WindowSpec, keys: list[str]) -> DataFrame:
    """The moments at which windows close."""
    last = lasts.select(*keys, CHANGED_BY).distinct().withColumn(RANK, F.lit(_FINAL))
    ends = closing_watermarks(last.select(TIMELINE, END).distinct(), adjusted, window)
    dated = last.join(ends.drop(REACHED), [TIMELINE, END], "left")
    return dated.withColumns({_GIVEN: F.lit(True), _NOW: F.lit(True)})


def _taken_back(own: DataFrame, adjusted: Adjusted, keys: list[str]) -> DataFrame:
    """The moments at which events of the segment changed bounds, also where these had given nothing."""
    changed = own.where(F.col(CHANGED_BY).isNotNull()).select(*keys, CHANGED_BY).distinct()
    placed = changed.withColumn(AFTER_SEQ, F.col(CHANGED_BY)["seq"])
    found = watermarks_after(placed.select(TIMELINE, AFTER_SEQ).distinct(), adjusted).drop(W_SET_BY)
    dated = placed.join(found, [TIMELINE, AFTER_SEQ], "left")
    return dated.withColumns({RANK: F.lit(_TAKEN_BACK), _GIVEN: F.lit(True), _NOW: F.lit(True)})


def _dated(own: DataFrame, adjusted: Adjusted, window: WindowSpec, columns: list[str]) -> DataFrame:
    """Moments before the last, with whether a result is given, whether in this segment, and the watermark then."""
    if window.early_every_us is not None:
        return _at_periods(own, adjusted, window).select(*columns)
    late = own.where(F.col(RANK) != _ON_TIME)
    dated = _at_periods(late, adjusted, window) if window.revise_every_us else _at_events(late, adjusted)
    return dated.select(*columns).unionByName(_on_time(own, adjusted, window).select(*columns))


def _on_time(own: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """The moments at which the watermark passes the end; none where it passes the close time at once."""
    in_time = F.col(CHANGED_BY).isNull() | _reached(F.col(CHANGED_BY)["w"], window)
    on_time = own.where((F.col(RANK) == _ON_TIME) & in_time)
    crossing = on_time.where(~_reached(F.col(W_START), window) & _reached(F.col(W_END), window))
    at_the_end = window.model_copy(update={"allowed_lateness": window.allowed_lateness * 0})
    ends = closing_watermarks(crossing.select(TIMELINE, END).distinct(), adjusted, at_the_end)
    dated = on_time.join(ends, [TIMELINE, END], "left")
    earlier = _reached(F.col(W_START), window)
    now = ~earlier & F.coalesce(F.col(REACHED) < close_time(F.col(END), window), F.lit(False))
    return dated.withColumns({_GIVEN: earlier | now, _NOW: now})


def _at_events(late: DataFrame, adjusted: Adjusted) -> DataFrame:
    """Late events each of which makes a revision."""
    places = late.where(FRESH).select(TIMELINE, F.col(RANK).alias(AFTER_SEQ)).distinct()
    found = watermarks_after(places, adjusted).drop(W_SET_BY).withColumnRenamed(AFTER_SEQ, RANK)
    dated = late.join(found, [TIMELINE, RANK], "left")
    return dated.withColumns({_GIVEN: F.lit(True), _NOW: F.col(FRESH)})


def _at_periods(late: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Periods of the clock in which events came; the first item behind one gives the result, if it still may."""
    late = late.where(F.col(CHANGED_BY).isNull() | (F.col(RANK) <= F.col(CHANGED_BY)["clock"]))
    earlier = F.coalesce(F.col(RANK) <= F.col(_CLOCK_START), F.lit(False))
    ends = late.where(~earlier).select(TIMELINE, RANK).distinct()
    around = watermarks_around(ends, adjusted, RANK).withColumn(_CAME, F.lit(True))
    dated = late.join(around, [TIMELINE, RANK], "left").withColumn(WATERMARK, F.col(AFTER))
    may = F.coalesce(F.col(BEFORE) < close_time(F.col(END), window), F.lit(True))
    now = ~earlier & F.coalesce(_CAME, F.lit(False)) & may
    return dated.withColumns({_GIVEN: earlier | now, _NOW: now})


def changes(results: DataFrame, known: DataFrame, window: WindowSpec) -> DataFrame:
    """The changes that the results of a segment make.

    Args:
        results: What `results.window_results` gave, with `_late_events`.
        known: The last revisions of earlier segments that may be replaced, without `_late_events`, and without
            aggregates that are new in the spec.
        window: The window.

    Returns:
        For each result a row `insert`, where its window and group had none, or `update_postimage`, with its
        `_late_events`; and for the latter one row more, `update_preimage`, which holds what it replaces. A revision
        that no longer passes `having` is a row `delete`, which holds what it takes away, with its `_late_events`.
    """
    keys = window.key_columns
    others = [name for name in results.columns if name not in (*keys, LATE_EVENTS, PASSES)]
    columns = [F.col(f"`{name}`") for name in results.columns if name != PASSES]
    passes = F.col(PASSES) if PASSES in results.columns else F.lit(True)
    both = results.withColumns({PASSES: passes, _IS_KNOWN: F.lit(False)}).unionByName(
        known.withColumns({PASSES: F.lit(True), _IS_KNOWN: F.lit(True)}), allowMissingColumns=True
    )
    by_revision = Window.partitionBy(*[F.col(f"`{key}`") for key in keys]).orderBy("_revision")
    shown = F.when(F.col(PASSES), F.struct(*[F.col(f"`{name}`") for name in others]))
    found = both.withColumn(_REPLACED, F.lag(shown).over(by_revision)).where(~F.col(_IS_KNOWN))
    was_shown = F.col(_REPLACED).isNotNull()
    kind = F.when(was_shown, "update_postimage").otherwise("insert")
    given = found.where(PASSES).select(*columns, kind.alias(CHANGE))
    taken = F.when(F.col(PASSES), PREIMAGE).otherwise(DELETE)
    cause = F.when(~F.col(PASSES), F.col(LATE_EVENTS)).alias(LATE_EVENTS)
    of_keys = [F.col(f"`{key}`") for key in keys]
    old = found.where(was_shown).select(*of_keys, f"{_REPLACED}.*", cause, taken.alias(CHANGE))
    return given.unionByName(old)
