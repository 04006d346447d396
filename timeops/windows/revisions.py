"""Results that are given before a window closes, and again when more events have come.

Here: the moments at which a window gives a result, their order, and what it holds at each. Not here: which windows an
event is in (aligned.py), the aggregates (results.py).

A window gives its result at moments that its events name by themselves: the first when the watermark passes its end
(`on_time`), then for late events when the period of the clock in which they came is over (F, Beam), or at each of
them (`revise_every: 0 s`); with `early` when a period is over in which events came. The last moment is when it
closes. So the rank of a moment, and with it the number of a revision, is a function of the window's events and the
watermark.

The bounds of a session are a window of their own. When an event changes them before it closes, their last moment is
this event: it takes back what they have given.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, LOG, SEQ, TIMELINE, W_BEFORE, WATERMARK, floor_to, same_in, to_us
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.ticks import with_ticks
from tidemark.timeops.windows.aligned import ENDS, place
from tidemark.timeops.windows.closing import REACHED, closing_watermarks
from tidemark.timeops.windows.log_items import AT, CLOCK_BEFORE, ITEM, clocks_of, first_item_at, with_clock_before
from tidemark.timeops.windows.membership import END, FILTERED, MISSED, START, group_names, with_groups
from tidemark.timeops.windows.segment_ends import W_END, W_START, with_both_ends
from tidemark.timeops.windows.session_bounds import CHANGED_BY, EVENT, MADE_BY, contents_by_bounds
from tidemark.timeops.windows.sliding import MADE, contents_so_far
from tidemark.timeops.windows.watermark_at import AFTER_SEQ, watermarks_after

RANK = "__rank"
"""BIGINT: orders the moments of a window. Of a period it is its end on the clock, of one event its place in the
log."""
REVISION = "__revision"
IS_FINAL = "__is_final"
IS_TAKEN_BACK = "__is_taken_back"
"""BOOLEAN: not a result, but the end of those that a session gave at bounds which an event has changed."""
CAUSE = "__cause"
"""BIGINT: of a late event that is new in a revision its place in the log, or that of the event which takes results
back; null of all others."""

_ON_TIME, _TAKEN_BACK, _FINAL = -(2**62), 2**61, 2**62
_CLOCK_START = "__clock_start"
_GIVEN, _NOW, _FRESH = "__given", "__now", "__fresh"
_BEFORE, _AFTER, _SIDE, _CAME = "__before", "__after", "__side", "__came"
_PREVIOUS = "__previous_rank"  # of the result before; null of the first


def keys_of(window: WindowSpec) -> tuple[str, ...]:
    """Which window of its group a row is of. Sessions of a group may have one end at different times."""
    return (TIMELINE, START, END) if window.kind == "session" else (TIMELINE, END)


def revised_contents(
    kept: DataFrame,
    adjusted: Adjusted,
    window: WindowSpec,
    *,
    flushed: bool,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Events of the results that windows give in a segment, one row per result that holds them.

    Args:
        kept: Events of earlier segments that `windows.still_needed` kept, with `__w_before` and `_clock` as they
            came.
        adjusted: The segment.
        window: The window.
        flushed: As for `windows.window_results`.
        keep: The same.

    Returns:
        The rows with `keys_of`, the group columns of `contents.with_groups`, `__revision`, `__is_final`,
        `__is_taken_back`, `__cause`, and `_watermark` BIGINT, just after the item at which the result was given; null
        where a flush gave it.
    """
    events = kept.withColumn(_FRESH, F.lit(False)).unionByName(
        adjusted.accepted.withColumn(_FRESH, F.lit(True)), allowMissingColumns=True
    )
    rows = keep(_ranked(events, adjusted, window, keep))
    moments = _moments(rows, adjusted, window, flushed=flushed)
    event = rows.drop(W_START, W_END, _CLOCK_START, _FRESH, CHANGED_BY, WATERMARK).alias("event")
    same = same_in("event", "moment", (*keys_of(window), *group_names(window)))
    so_far = F.col(f"event.{RANK}") <= F.col(f"moment.{RANK}")
    more = [f"moment.{name}" for name in (REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK)]
    is_new = (F.col(f"event.{RANK}") > F.col(_PREVIOUS)) & _reached(F.col(W_BEFORE), window, F.col(f"event.{END}"))
    by = F.col(f"moment.{CHANGED_BY}")["seq"]
    cause = F.when(F.col(IS_TAKEN_BACK), by).when(is_new, F.col(SEQ)).alias(CAUSE)
    return event.join(moments.alias("moment"), same & so_far).select("event.*", *more, cause)


def _ranked(
    events: DataFrame, adjusted: Adjusted, window: WindowSpec, keep: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """One row per event and window that had not closed before the segment, with `__rank`, where the event is in it.

    Also `__fresh`, that what makes it so came in the segment, and the watermarks and the clock around the segment.
    """
    if window.kind == "session":
        held = contents_by_bounds(events, window, adjusted.rules.time, _FRESH, keep=keep)
        made = F.col(MADE_BY)
        by_maker = _rank(window, made["clock"], made["w"], made["seq"])
        came = with_both_ends(held, adjusted).withColumn(RANK, F.greatest(_own_rank(window), by_maker))
        rows = came.withColumn(_FRESH, F.col(_FRESH) | _is_fresh(made, by_maker)).drop(MADE_BY)
    elif window.kind == "sliding":
        held = contents_so_far(events, adjusted, window, _own_rank(window), _FRESH, keep=keep)
        made, came = F.col(MADE), held.withColumn(RANK, F.greatest(_own_rank(window), F.col(MADE)["moment"]))
        by_maker = made["fresh"] & (F.col(RANK) == made["moment"])
        rows = came.withColumn(_FRESH, F.col(_FRESH) | by_maker).drop(MADE)
    else:
        placed = place(events, window).withColumn(END, F.explode(ENDS)).drop(ENDS, MISSED, FILTERED)
        known = with_both_ends(placed, adjusted)
        is_open = F.coalesce(close_time(F.col(END), window) > F.col(W_START), F.lit(True))
        rows = with_groups(known.where(is_open), window).withColumn(RANK, _own_rank(window))
    if window.kind != "session":
        rows = rows.withColumn(CHANGED_BY, F.lit(None).cast(EVENT))
    clocks = adjusted.before.select(TIMELINE, F.col("clock").alias(_CLOCK_START))
    return rows.join(clocks, TIMELINE, "left")


def _is_fresh(made: Column, by_maker: Column) -> Column:
    """BOOLEAN, never null: an event of the segment made the bounds, and the row is in a result since this came."""
    return F.coalesce(made["fresh"] & (F.col(RANK) == by_maker), F.lit(False))


def _own_rank(window: WindowSpec) -> Column:
    """The first moment at which an event is in the window's result."""
    return _rank(window, to_us(CLOCK), F.col(W_BEFORE), F.col(SEQ))


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


def _moments(rows: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame:
    """The moments of the segment at which windows give a result: their keys, `__rank`, and what makes it a row."""
    keys = [*keys_of(window), *group_names(window)]
    own = rows.groupBy(*keys, RANK, W_START, W_END, _CLOCK_START, CHANGED_BY).agg(F.max(_FRESH).alias(_FRESH))
    closes = F.lit(True) if flushed else close_time(F.col(END), window) <= F.col(W_END)
    lasts = own.where(closes & F.col(CHANGED_BY).isNull())
    found = _dated(own, adjusted, window).unionByName(_closed(lasts, adjusted, window))
    if window.kind == "session":
        found = found.unionByName(_taken_back(own, adjusted, window))
    in_order = Window.partitionBy(*keys).orderBy(RANK)
    numbered = {REVISION: F.row_number().over(in_order) - 1, _PREVIOUS: F.lag(RANK).over(in_order)}
    given = found.where(_GIVEN).withColumns(numbered).where(_NOW)
    is_taken_back = F.col(RANK) == _TAKEN_BACK
    return given.where(~is_taken_back | (F.col(REVISION) > 0)).select(
        *[*keys, RANK, REVISION, _PREVIOUS, WATERMARK, CHANGED_BY],
        (F.col(RANK) == _FINAL).alias(IS_FINAL),
        is_taken_back.alias(IS_TAKEN_BACK),
    )


def _columns(window: WindowSpec) -> list[str]:
    return [*keys_of(window), *group_names(window), RANK, CHANGED_BY, _GIVEN, _NOW, WATERMARK]


def _closed(lasts: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """The moments at which windows close."""
    keys = [*keys_of(window), *group_names(window)]
    last = lasts.select(*keys, CHANGED_BY).distinct().withColumn(RANK, F.lit(_FINAL))
    ends = closing_watermarks(last.select(TIMELINE, END).distinct(), adjusted, window)
    dated = last.join(ends.drop(REACHED), [TIMELINE, END], "left")
    return dated.withColumns({_GIVEN: F.lit(True), _NOW: F.lit(True)}).select(*_columns(window))


def _taken_back(own: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """The moments at which events of the segment changed bounds, also where these had given nothing."""
    keys = [*keys_of(window), *group_names(window)]
    changed = own.where(F.col(CHANGED_BY).isNotNull()).select(*keys, CHANGED_BY).distinct()
    by = F.col(CHANGED_BY)
    placed = changed.withColumns({AFTER_SEQ: by["seq"], AT: by["clock"]})
    found = watermarks_after(placed.select(TIMELINE, AFTER_SEQ, AT).distinct(), adjusted).drop(AT)
    dated = placed.join(found, [TIMELINE, AFTER_SEQ], "left")
    moment = {RANK: F.lit(_TAKEN_BACK), _GIVEN: F.lit(True), _NOW: F.lit(True)}
    return dated.withColumns(moment).select(*_columns(window))


def _dated(own: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Adds to moments before the last whether a result is given, whether in this segment, and the watermark then."""
    columns = _columns(window)
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
    clocks = adjusted.accepted.select(TIMELINE, F.col(SEQ).alias(RANK), to_us(CLOCK).alias(AT))
    places = late.where(_FRESH).select(TIMELINE, RANK).distinct().join(clocks, [TIMELINE, RANK])
    found = watermarks_after(places.withColumn(AFTER_SEQ, F.col(RANK)), adjusted)
    dated = late.join(found.withColumn(RANK, F.col(AFTER_SEQ)).drop(AFTER_SEQ, AT), [TIMELINE, RANK], "left")
    return dated.withColumns({_GIVEN: F.lit(True), _NOW: F.col(_FRESH)})


def _at_periods(late: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Periods of the clock in which events came; the first item behind one gives the result, if it still may."""
    late = late.where(F.col(CHANGED_BY).isNull() | (F.col(RANK) <= F.col(CHANGED_BY)["clock"]))
    earlier = F.coalesce(F.col(RANK) <= F.col(_CLOCK_START), F.lit(False))
    ends = late.where(~earlier).select(TIMELINE, RANK, _CLOCK_START).distinct()
    around = _watermarks_around(ends, adjusted).withColumn(_CAME, F.lit(True))
    dated = late.join(around, [TIMELINE, RANK], "left").withColumn(WATERMARK, F.col(_AFTER))
    may = F.coalesce(F.col(_BEFORE) < close_time(F.col(END), window), F.lit(True))
    now = ~earlier & F.coalesce(_CAME, F.lit(False)) & may
    return dated.withColumns({_GIVEN: earlier | now, _NOW: now})


def _watermarks_around(ends: DataFrame, adjusted: Adjusted) -> DataFrame:
    """The watermarks just before and just after the first item of the log behind the end of a period.

    Args:
        ends: `_timeline`, `__rank` (the end, by the clock), `__clock_start`; each once.
        adjusted: The segment.

    Returns:
        `_timeline`, `__rank`, `__before`, `__after`; no row where no item of the segment comes so far.
    """
    log = adjusted.clock.log
    ends = ends.withColumn(LOG, log)
    wanted = ends.select(LOG, F.col(RANK).alias(AT)).distinct()
    clocks = clocks_of(with_ticks(adjusted.items, adjusted.clock.ticks), log)
    items = with_clock_before(first_item_at(wanted, clocks), clocks).withColumnRenamed(AT, RANK)
    reached = ends.join(items.where(F.col(ITEM).isNotNull()), [LOG, RANK])
    seq = F.col(ITEM)["seq"]
    just_before = F.struct((seq - 1).alias(AFTER_SEQ), F.coalesce(CLOCK_BEFORE, _CLOCK_START).alias(AT))
    just_after = F.struct(seq.alias(AFTER_SEQ), F.col(ITEM)["clock"].alias(AT))
    both = F.explode(F.map_from_arrays(F.array(F.lit(_BEFORE), F.lit(_AFTER)), F.array(just_before, just_after)))
    places = reached.select(TIMELINE, RANK, both.alias(_SIDE, "place")).select(TIMELINE, RANK, _SIDE, "place.*")
    found = watermarks_after(places.select(TIMELINE, AFTER_SEQ, AT).distinct(), adjusted)
    sides = places.drop(AT).join(found, [TIMELINE, AFTER_SEQ], "left").groupBy(TIMELINE, RANK)
    of_side = [F.max(F.when(F.col(_SIDE) == side, F.col(WATERMARK))).alias(side) for side in (_BEFORE, _AFTER)]
    return sides.agg(*of_side)
