"""Windows that depend on nothing but an instant: which of them hold it, where they end, when they close.

Here: tumbling and hopping windows (M, F), cumulative ones (F), snapshots (A2), local days and months; as columns for
rows, in BIGINT microseconds, and as numbers of Python for plans. Of sliding windows and sessions the close time, and
the end of the last one that an event alone makes. Not here: what windows hold (windows/).

A window is named by its end, which no other window of its definition shares. Where the end belongs to the window
(`closed: right`, snapshots) an instant is in the window in which one microsecond earlier would be, were the end
outside. What is said for plans may say that too little closes, goes or stays, never too much.
"""

from datetime import date
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.timeops.columns import floor_to, to_instant, to_us
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import instant_of

LONGEST_MONTH_US = 32 * 86_400_000_000
LONGEST_DAY_US = 2 * 86_400_000_000  # of a zone that moved to the other side of the date line


def ends_of(timestamp_us: Column, window: WindowSpec) -> Column:
    """Return ARRAY<BIGINT>: ends of the windows of a grid that hold an instant, earliest first; empty in a gap."""
    within = timestamp_us - F.lit(window.ends_inside_us)
    if window.kind == "cumulative":
        return F.sequence(end_after(within, window), _full_end(within, window), F.lit(window.end_step_us))
    if window.kind != "hopping":
        return F.array(end_after(within, window))
    first = end_after(within, window)
    most = -(-window.size_us // window.end_step_us)
    steps = F.sequence(F.lit(0), F.lit(most - 1))
    ends = F.transform(steps, lambda step: first + step.cast("bigint") * F.lit(window.end_step_us))
    return F.filter(ends, lambda end: end - F.lit(window.size_us) <= within)


def start_of(end_us: Column, window: WindowSpec) -> Column:
    """Return the start of the window of a grid with this end."""
    if window.calendar is not None:
        return _local_first(end_us - F.lit(1), window)
    if window.kind == "cumulative":
        return floor_to(end_us - F.lit(1), window.size_us, window.offset_us)
    return end_us if window.kind == "snapshot" else end_us - F.lit(window.size_us)


def last_end_of(timestamp_us: Column, window: WindowSpec) -> Column:
    """Return the end of the last window that an event needs; null in a gap.

    Of sliding windows this is where it is gone, which makes a result of the events that stay; of sessions where its
    own would end.
    """
    if window.is_linked:
        return timestamp_us + F.lit(window.reach_us)
    within = timestamp_us - F.lit(window.ends_inside_us)
    if window.kind == "cumulative":
        return _full_end(within, window)
    if window.kind != "hopping":
        return end_after(within, window)
    end = floor_to(within, window.end_step_us, window.offset_us) + F.lit(window.size_us)
    return F.when(within < end, end)


def close_time(end_us: Column, window: WindowSpec) -> Column:
    """Return the lowest watermark at which a window is closed: its end and allowed lateness (M), or just after."""
    return end_us + F.lit(window.allowed_lateness_us + window.ends_inside_us)


def close_asked(timestamp_us: Column, window: WindowSpec, unit_us: int) -> Column:
    """Return the watermark with which the clock closes the last window that holds an instant (M); null in a gap.

    Where the end is inside, a window closes only after its end and lateness: the next watermark of the clock, which
    is a whole number of units, is one unit later.
    """
    after_us = window.allowed_lateness_us + window.ends_inside_us * unit_us
    return last_end_of(timestamp_us, window) + F.lit(after_us)


def last_closed(watermark_us: Column, window: WindowSpec) -> Column:
    """Return the end of the last window of the grid that is closed at a watermark."""
    return last_end(watermark_us - F.lit(window.allowed_lateness_us + window.ends_inside_us), window)


def last_end(limit_us: Column, window: WindowSpec) -> Column:
    """Return the latest end on the grid that is at most a limit."""
    if window.calendar is not None:
        return _local_first(limit_us, window)
    if window.end_step_us == 1:  # every instant is an end
        return limit_us
    return floor_to(limit_us, window.end_step_us, window.offset_us + window.size_us)


def end_after(limit_us: Column, window: WindowSpec) -> Column:
    """Return the first end on the grid after a limit."""
    if window.calendar is not None:
        return _local_first_after(limit_us, window)
    return last_end(limit_us, window) + F.lit(window.end_step_us)


def ends_between(after_us: Column, limit_us: Column, window: WindowSpec) -> Column:
    """Return ARRAY<BIGINT>: the ends on the grid after one limit and at most another, earliest first; null for none.

    There may be very many: see `count_between`.
    """
    if window.calendar is not None:
        return _local_firsts(after_us, limit_us, window)
    first, last = end_after(after_us, window), last_end(limit_us, window)
    return F.when(first <= last, F.sequence(first, last, F.lit(window.end_step_us)))


def count_between(after_us: Column, limit_us: Column, window: WindowSpec) -> Column:
    """Return BIGINT: how many ends on the grid are after one limit and are at most another; below zero for none.

    Days that a zone left out, in the whole of history a few, count as well.
    """
    first, last = last_end(after_us, window), last_end(limit_us, window)
    if window.calendar is None:
        return ((last - first) / F.lit(window.end_step_us)).cast("bigint")
    days = [F.to_date(_local(limit, window)) for limit in (first, last)]
    if window.calendar[0] == "day":
        return F.datediff(days[1], days[0]).cast("bigint")
    months = [F.year(day) * 12 + F.month(day) for day in days]
    return (months[1] - months[0]).cast("bigint")


def may_close_between(before_us: int | None, after_us: int | None, window: WindowSpec) -> bool:
    """Return whether some window may close when the watermark rises between two values; None is before the first."""
    if after_us is None or before_us == after_us:
        return False
    if before_us is None or not window.closes_on_grid:
        return True
    delay_us = window.allowed_lateness_us + window.ends_inside_us
    if window.calendar is not None:
        days = [_local_day(value - delay_us, window.calendar[1]) for value in (before_us, after_us)]
        return None in days or days[0] != days[1]
    anchor = window.offset_us + window.size_us + delay_us
    return (before_us - anchor) // window.end_step_us < (after_us - anchor) // window.end_step_us


def needed_from(watermark_us: int, window: WindowSpec) -> int:
    """Return an instant, microseconds: no event before it is in a window of a grid that is open at the watermark.

    Events in a gap of hopping windows may be before or after it.
    """
    reached = watermark_us - window.allowed_lateness_us - window.ends_inside_us
    if window.calendar is not None:
        return reached - LONGEST_MONTH_US
    if window.kind == "snapshot":
        return reached
    first_open_end = window.offset_us + window.size_us
    first_open_end += ((reached - first_open_end) // window.end_step_us + 1) * window.end_step_us
    return first_open_end - window.size_us + window.ends_inside_us


def closed_from(before_us: int, window: WindowSpec) -> int:
    """Return a watermark, microseconds, at which every window of a grid that starts before an instant is closed."""
    if window.calendar is not None:
        longest_us = LONGEST_MONTH_US if window.calendar[0] == "month" else LONGEST_DAY_US
    else:
        longest_us = 0 if window.kind == "snapshot" else window.size_us
    return before_us - 1 + longest_us + window.allowed_lateness_us + window.ends_inside_us


def _full_end(within: Column, window: WindowSpec) -> Column:
    """Return the end of the longest cumulative window around an instant."""
    return floor_to(within, window.size_us, window.offset_us) + F.lit(window.size_us)


def _local_first(limit_us: Column, window: WindowSpec) -> Column:
    """Return the latest local midnight, of any day or of the first of a month, that is at most a limit.

    A midnight that the clocks skip is when they are moved. Of one that comes twice the first counts: where the clocks
    go back over it, the local date may be that of the day before.
    """
    following = _local_midnight(limit_us, window, 1)
    return F.when(following <= limit_us, following).otherwise(_local_midnight(limit_us, window, 0))


def _local_first_after(limit_us: Column, window: WindowSpec) -> Column:
    following = _local_midnight(limit_us, window, 1)
    return F.when(following > limit_us, following).otherwise(_local_midnight(limit_us, window, 2))


def _local_firsts(after_us: Column, limit_us: Column, window: WindowSpec) -> Column:
    """Return the midnights after one limit and at most another; a day that a zone left out has that of the next."""
    unit, zone = window.calendar or ("day", "UTC")
    first, last = (F.date_trunc(unit, _local(limit, window)) for limit in (after_us, limit_us))
    step = F.expr(f"INTERVAL 1 {unit}")  # one more than asked for, as the clocks may go back over midnight
    days = F.when(first <= last, F.sequence(first, last + step, step))
    midnights = F.array_distinct(F.transform(days, lambda day: to_us(F.to_utc_timestamp(day, zone))))
    return F.filter(midnights, lambda end: (end > after_us) & (end <= limit_us))


def _local(instant_us: Column, window: WindowSpec) -> Column:
    """Return an instant as the clocks of the window's zone show it."""
    return F.from_utc_timestamp(to_instant(instant_us), (window.calendar or ("day", "UTC"))[1])


def _local_midnight(limit_us: Column, window: WindowSpec, later: int) -> Column:
    """Return the midnight with which the local day or month of a limit begins, or a later one."""
    unit, zone = window.calendar or ("day", "UTC")
    first = F.date_trunc(unit, _local(limit_us, window))
    shifted = first + F.expr(f"INTERVAL {later} {unit}")
    return to_us(F.to_utc_timestamp(shifted, zone))


def _local_day(instant_us: int, zone: str) -> date | None:
    try:
        return instant_of(instant_us).astimezone(ZoneInfo(zone)).date()
    except OverflowError:  # at the ends of time
        return None
