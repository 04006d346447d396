"""The exact watermark at which a window closed.

Here: for each window that closes in a segment, the watermark just after the item that closed it. Not here: what
the window holds.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import with_largest_at_or_above
from tidemark.timeops.columns import ASKED, BY_CLOCK, LOG, SEQ, TIMELINE, WATERMARK
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.grid import close_time, last_closed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.idleness import GATHERED, clock_gives, clock_that_gives, gathered_in_state
from tidemark.timeops.watermark.ticks import BEHIND_ALL
from tidemark.timeops.watermark.timelines import clock_after_silence
from tidemark.timeops.windows.closing_by_periods import of_periods, published_steps, with_published_watermark
from tidemark.timeops.windows.log_items import AT, ITEM, clocks_of, first_item_at
from tidemark.timeops.windows.membership import END

_FIRST = "__first"
REACHED = "__reached"  # the watermark at which a window closed, at an item that may raise it further
OF_SILENCE = (BY_CLOCK, GATHERED)
"""What a step says of the silence before it, where the clock raises timelines one by one."""


def closing_watermarks(wanted: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """When windows closed.

    What closed a window is the first item of the log at which the watermark reaches its close time: a step of its
    timeline, or of the clock for all timelines. Of one item the higher counts.

    Args:
        wanted: `_timeline`, `__end` of windows that close in the segment, each once.
        adjusted: The segment.
        window: The window.

    Returns:
        `wanted` with `_watermark` BIGINT: null for a window that no item closed (a flush does); and `__reached`, the
        watermark that closed it, which is lower where the clock comes to an item first and its event asks for more.
    """
    if adjusted.ended is not None:
        return _by_periods(wanted.select(TIMELINE, END), adjusted, window, adjusted.ended)
    if adjusted.rules.clock_raises_single_timelines:
        return _with_silences(wanted.select(TIMELINE, END), adjusted, window)
    by_events = _first_steps(wanted.select(TIMELINE, END), adjusted.steps, window, TIMELINE)
    if adjusted.clock_steps is None:
        w = F.col(_FIRST)["w"]
        return by_events.select(TIMELINE, END, w.alias(WATERMARK), w.alias(REACHED))
    ends = wanted.select(adjusted.clock.log.alias(LOG), END).distinct()
    by_clock = _first_steps(ends, adjusted.clock_steps, window, LOG).withColumnRenamed(_FIRST, "__by_clock")
    both = by_events.withColumn(LOG, adjusted.clock.log).join(by_clock, [LOG, END], "left")
    clock_step, first = F.col("__by_clock"), F.greatest(_FIRST, "__by_clock")
    is_first = clock_step["negative_seq"] == first["negative_seq"]
    reached = F.when(is_first, clock_step["w"]).otherwise(first["w"])
    return both.select(TIMELINE, END, first["w"].alias(WATERMARK), reached.alias(REACHED))


def _by_periods(wanted: DataFrame, adjusted: Adjusted, window: WindowSpec, ended: DataFrame) -> DataFrame:
    """Where periods publish what the clock gave, the period may be one in which the timeline had no event."""
    first = _first_steps(wanted, published_steps(adjusted), window, TIMELINE, *of_periods(adjusted))
    found = with_published_watermark(first, F.col(_FIRST), close_time(F.col(END), window), adjusted, ended)
    return found.select(TIMELINE, END, F.col(WATERMARK), F.col(WATERMARK).alias(REACHED))


def _with_silences(wanted: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Where the clock raises timelines one by one, the item may stand in a silence before one of their events."""
    first = _first_steps(wanted, steps_with_last_silence(adjusted), window, TIMELINE, *OF_SILENCE)
    found = with_watermark_of(first, F.col(_FIRST), close_time(F.col(END), window), adjusted)
    return found.select(TIMELINE, END, WATERMARK, REACHED)


def with_watermark_of(rows: DataFrame, step: Column, closes_at: Column, adjusted: Adjusted) -> DataFrame:
    """Adds `_watermark` and `__reached` BIGINT: as `closing_watermarks`.

    Args:
        rows: Rows with `_timeline`.
        step: The first step of the timeline that reaches it: STRUCT<negative_seq, w> with OF_SILENCE.
        closes_at: The close time.
        adjusted: The segment.
    """
    in_silence = F.coalesce(step[BY_CLOCK] >= closes_at, F.lit(False))
    at = F.when(in_silence, clock_that_gives(step[GATHERED], closes_at, adjusted.rules))
    asked = rows.withColumns({LOG: adjusted.clock.log, AT: at})
    items = first_item_at(
        asked.where(F.col(AT).isNotNull()).select(LOG, AT).distinct(), clocks_of(adjusted.items, adjusted.clock.log)
    )
    dated = asked.join(items, [LOG, AT], "left")
    is_own = F.coalesce(F.col(ITEM)["seq"] == -step["negative_seq"], F.lit(True))
    given = clock_gives(step[GATHERED], F.col(ITEM)["clock"], adjusted.rules)
    values = {
        WATERMARK: F.when(is_own, step["w"]).otherwise(given),
        REACHED: F.when(~is_own, given).otherwise(F.when(in_silence, step[BY_CLOCK]).otherwise(step["w"])),
    }
    return dated.withColumns(values).drop(LOG, AT, ITEM)


def steps_with_last_silence(adjusted: Adjusted) -> DataFrame:
    """The steps of a segment, and what the clock has given every timeline behind its last event.

    The latter is what the segment's tick gives, where no record before it gave as much.
    """
    known = gathered_in_state(adjusted.rules, adjusted.clock.first)
    end = adjusted.state.select(
        TIMELINE,
        F.lit(BEHIND_ALL).alias(SEQ),
        clock_gives(known, clock_after_silence(adjusted.clock, adjusted.rules), adjusted.rules).alias(BY_CLOCK),
        known.alias(GATHERED),
    )
    return adjusted.steps.unionByName(end.withColumn(ASKED, F.col(BY_CLOCK)), allowMissingColumns=True)


def _first_steps(wanted: DataFrame, steps: DataFrame, window: WindowSpec, of: str, *more: str) -> DataFrame:
    """Adds `__first` to windows, each of one `of`: the first step that closes them, so that the first is the largest.

    Steps are first grouped by the last window that they close, so that few rows are left to be ordered. `__first` has
    `negative_seq`, `w`, and `more` columns of the step.
    """
    last = last_closed(F.col(ASKED), window).alias(END)
    # Numbers one by one: for a maximum of several Spark would sort all steps.
    firsts = [F.min_by(name, SEQ).alias(name) for name in (ASKED, *more)]
    by_window = steps.where(F.col(ASKED).isNotNull()).groupBy(of, last).agg(F.min(SEQ).alias(SEQ), *firsts)
    step = F.struct((-F.col(SEQ)).alias("negative_seq"), F.col(ASKED).alias("w"), *more)
    marks = by_window.withColumn(_FIRST, step)
    return with_largest_at_or_above(wanted.select(of, END), marks, _FIRST, key=of, place=END, width=None)
