"""Windows that depend on nothing but an instant: which of them hold it, where they end, when they close.

Here: tumbling and hopping windows (M, F), cumulative ones (F), snapshots (A2), local days and months; as SQL for
rows, in BIGINT microseconds, and as numbers of Python for plans. Of sliding windows and sessions the close time, and
the end of the last one that an event alone makes. Not here: what windows hold (windows/).

A window is named by its end, which no other window of its definition shares. Where the end belongs to the window
(`closed: right`, snapshots) an instant is in the window in which one microsecond earlier would be, were the end
outside. What is said for plans may say that too little closes, goes or stays, never too much.
"""

from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from tidemark.timeops.columns import floor_to, shifted
from tidemark.timeops.expressions.tokens import literal
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import begin_of, instant_of, us_of

Numbers = NDArray[Any]
LONGEST_MONTH_US = 32 * 86_400_000_000


def ends_of(timestamp_us: str, window: WindowSpec) -> str:
    """Return ARRAY<BIGINT>: ends of the windows of a grid that hold an instant, earliest first; empty in a gap."""
    within = shifted(timestamp_us, -window.ends_inside_us)
    first = end_after(within, window)
    if window.kind == "cumulative":
        return f"sequence({first}, {_full_end(within, window)}, {window.end_step_us}L)"
    if window.kind != "hopping":
        return f"array({first})"
    most = -(-window.size_us // window.end_step_us)
    ends = f"transform(sequence(0L, {most - 1}L), __tm_step -> {first} + __tm_step * {window.end_step_us}L)"
    return f"filter({ends}, __tm_e -> __tm_e - {window.size_us}L <= {within})"


def start_of(end_us: str, window: WindowSpec) -> str:
    """Return the start of the window of a grid with this end."""
    if window.calendar is not None:
        return _local_first(shifted(end_us, -1), window)
    if window.kind == "cumulative":
        return floor_to(shifted(end_us, -1), window.size_us, window.offset_us)
    return end_us if window.kind == "snapshot" else shifted(end_us, -window.size_us)


def last_end_of(timestamp_us: str, window: WindowSpec) -> str:
    """Return the end of the last window that an event needs; null in a gap.

    Of sliding windows this is where it is gone, which makes a result of the events that stay; of sessions where its
    own would end.
    """
    if window.is_linked:
        return shifted(timestamp_us, window.reach_us)
    within = shifted(timestamp_us, -window.ends_inside_us)
    if window.kind == "cumulative":
        return _full_end(within, window)
    if window.kind != "hopping":
        return end_after(within, window)
    end = shifted(floor_to(within, window.end_step_us, window.offset_us), window.size_us)
    return f"IF({within} < {end}, {end}, NULL)"


def close_time(end_us: str, window: WindowSpec) -> str:
    """Return the lowest watermark at which a window is closed: its end and allowed lateness (M), or just after."""
    return shifted(end_us, window.closes_after_us)


def open_to(end_us: str, watermark_us: str, window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: a window is not closed at a watermark; before the first none is."""
    return f"coalesce({close_time(end_us, window)} > {watermark_us}, true)"


def close_asked(timestamp_us: str, window: WindowSpec, unit_us: int) -> str:
    """Return the watermark with which the clock closes the last window that holds an instant (M); null in a gap.

    Where the end is inside, a window closes only after its end and lateness: the next watermark of the clock, which
    is a whole number of units, is one unit later.
    """
    return shifted(last_end_of(timestamp_us, window), window.allowed_lateness_us + window.ends_inside_us * unit_us)


def last_closed(watermark_us: str, window: WindowSpec) -> str:
    """Return the end of the last window of the grid that is closed at a watermark."""
    return last_end(shifted(watermark_us, -window.closes_after_us), window)


def last_end(limit_us: str, window: WindowSpec) -> str:
    """Return the latest end on the grid that is at most a limit."""
    if window.calendar is not None:
        return _local_first(limit_us, window)
    if window.end_step_us == 1:  # every instant is an end
        return limit_us
    return floor_to(limit_us, window.end_step_us, window.offset_us + window.size_us)


def end_after(limit_us: str, window: WindowSpec) -> str:
    """Return the first end on the grid after a limit."""
    if window.calendar is not None:
        following = _local_midnight(limit_us, window, 1)
        return f"IF({following} > {limit_us}, {following}, {_local_midnight(limit_us, window, 2)})"
    return shifted(last_end(limit_us, window), window.end_step_us)


def ends_between(after_us: str, limit_us: str, window: WindowSpec) -> str:
    """Return ARRAY<BIGINT>: the ends on the grid after one limit and at most another, earliest first; null for none.

    There may be very many: see `count_between`.
    """
    if window.calendar is not None:
        return _local_firsts(after_us, limit_us, window)
    first, last = end_after(after_us, window), last_end(limit_us, window)
    return f"IF({first} <= {last}, sequence({first}, {last}, {window.end_step_us}L), NULL)"


def count_between(after_us: str, limit_us: str, window: WindowSpec) -> str:
    """Return BIGINT: how many ends on the grid are after one limit and are at most another; below zero for none.

    Days that a zone left out, in the whole of history a few, count as well.
    """
    first, last = last_end(after_us, window), last_end(limit_us, window)
    if window.calendar is None:
        return f"CAST(({last} - {first}) / {window.end_step_us}L AS BIGINT)"
    days = [f"to_date({_local(limit, window)})" for limit in (first, last)]
    if window.calendar[0] == "day":
        return f"CAST(datediff({days[1]}, {days[0]}) AS BIGINT)"
    months = [f"year({day}) * 12 + month({day})" for day in days]
    return f"CAST({months[1]} - ({months[0]}) AS BIGINT)"


def may_close_between(before_us: int | None, after_us: int | None, window: WindowSpec) -> bool:
    """Return whether some window may close when the watermark rises between two values; None is before the first."""
    if after_us is None or before_us == after_us:
        return False
    if before_us is None or not window.closes_on_grid:
        return True
    if window.calendar is not None:
        days = [_local_day(value - window.closes_after_us, window.calendar[1]) for value in (before_us, after_us)]
        return None in days or days[0] != days[1]
    anchor = window.offset_us + window.size_us + window.closes_after_us
    return (before_us - anchor) // window.end_step_us < (after_us - anchor) // window.end_step_us


def needed_from(watermark_us: int, window: WindowSpec) -> int:
    """Return an instant, microseconds: no event before it is in a window of a grid that is open at the watermark.

    Events in a gap of hopping windows may be before or after it.
    """
    reached = watermark_us - window.closes_after_us
    if window.calendar is not None:
        return reached - LONGEST_MONTH_US
    if window.kind == "snapshot":
        return reached
    first_open_end = window.offset_us + window.size_us
    first_open_end += ((reached - first_open_end) // window.end_step_us + 1) * window.end_step_us
    return first_open_end - window.size_us + window.ends_inside_us


def spans_at(us: int, window: WindowSpec) -> list[tuple[int, int]]:
    """Return start and end of the windows of a grid that hold an instant, earliest first; none in a gap.

    The numbers of `ends_of` and `start_of`.

    Raises:
        OverflowError: A window of the calendar is at the ends of the years 0001 to 9999.
    """
    within = us - window.ends_inside_us
    if window.kind == "snapshot":
        return [(us, us)]
    if window.calendar is not None:
        end = _local_begin_from(within + 1, window)
        start = end
        for reach in (LONGEST_MONTH_US, 2 * LONGEST_MONTH_US):  # a midnight that comes twice may hide the one before
            begin = within - reach
            while (following := _local_begin_from(begin + 1, window)) <= within:
                start = begin = following
            if start < end:
                break
        return [(start, end)]
    size, step, offset = window.size_us, window.end_step_us, window.offset_us
    first = (within - offset - size) // step * step + offset + size + step
    if window.kind == "cumulative":
        start = (within - offset) // size * size + offset
        return [(start, end) for end in range(first, start + size + 1, step)]
    return [(end - size, end) for end in range(first, within + size + 1, step)]


def last_ends(us: Numbers, window: WindowSpec, around: Numbers) -> Numbers:
    """Return the end of the last window that each event needs, as `last_end_of` does; the lowest BIGINT in a gap.

    Args:
        us: Times of events, microseconds.
        window: The window.
        around: Of a window of the calendar the local midnights around them, in order.
    """
    if window.is_linked or window.kind == "snapshot":
        return us + window.reach_us
    within = us - window.ends_inside_us
    if window.calendar is not None:
        return np.asarray(around[np.searchsorted(around, within, "right")], np.int64)
    period = window.end_step_us if window.kind == "hopping" else window.size_us
    end = (within - window.offset_us) // period * period + window.offset_us + window.size_us
    return np.where(within < end, end, np.iinfo(np.int64).min)


def closed_from(before_us: int, window: WindowSpec) -> int:
    """Return the lowest watermark, microseconds, at which all windows that start before an instant are closed.

    A session counts as one event alone makes it: other events may join it.
    """
    return last_end_before(before_us, window) + window.closes_after_us


def last_end_before(before_us: int, window: WindowSpec) -> int:
    """Return the end of the last window that starts before an instant, microseconds."""
    if window.calendar is not None:
        return _local_begin_from(before_us, window)
    if not window.closes_on_grid:
        return before_us - 1 + window.reach_us
    starts = (before_us - 1 - window.offset_us) // window.start_step_us
    return starts * window.start_step_us + window.offset_us + window.size_us


def _local_begin_from(instant_us: int, window: WindowSpec) -> int:
    """Return the first local midnight, of any day or only of a month's first, at or after an instant."""
    unit, zone = window.calendar or ("day", "UTC")
    day = instant_of(instant_us).astimezone(ZoneInfo(zone)).date()
    if unit == "month":
        months = [day.year * 12 + day.month - 1 + n for n in (0, 1, 2)]
        days = [date(month // 12, month % 12 + 1, 1) for month in months]
    else:  # a zone may have left a day out, and gone back over a midnight
        days = [day + timedelta(days=n) for n in (-1, 0, 1, 2)]
    return min(begin for begin in (us_of(begin_of(day, zone)) for day in days) if begin >= instant_us)


def _full_end(within: str, window: WindowSpec) -> str:
    """Return the end of the longest cumulative window around an instant."""
    return shifted(floor_to(within, window.size_us, window.offset_us), window.size_us)


def _local_first(limit_us: str, window: WindowSpec) -> str:
    """Return the latest local midnight, of any day or only of a month's first, that is at most a limit.

    A midnight that the clocks skip is when they are moved. Of one that comes twice the first counts: where the clocks
    go back over it, the local date may be that of the day before.
    """
    following = _local_midnight(limit_us, window, 1)
    return f"IF({following} <= {limit_us}, {following}, {_local_midnight(limit_us, window, 0)})"


def _local_firsts(after_us: str, limit_us: str, window: WindowSpec) -> str:
    """Return the midnights after one limit and at most another; a day that a zone left out has that of the next."""
    unit, zone = _calendar(window)
    first, last = (f"date_trunc('{unit}', {_local(limit, window)})" for limit in (after_us, limit_us))
    # One more than asked for, as the clocks may go back over midnight.
    days = f"IF({first} <= {last}, sequence({first}, {last} + INTERVAL 1 {unit}, INTERVAL 1 {unit}), NULL)"
    midnights = f"array_distinct(transform({days}, __tm_day -> unix_micros(to_utc_timestamp(__tm_day, {zone}))))"
    return f"filter({midnights}, __tm_e -> __tm_e > {after_us} AND __tm_e <= {limit_us})"


def _local(instant_us: str, window: WindowSpec) -> str:
    """Return an instant as the clocks of the window's zone show it."""
    return f"from_utc_timestamp(timestamp_micros({instant_us}), {_calendar(window)[1]})"


def _local_midnight(limit_us: str, window: WindowSpec, later: int) -> str:
    """Return the midnight with which the local day or month of a limit begins, or a later one."""
    unit, zone = _calendar(window)
    first = f"date_trunc('{unit}', {_local(limit_us, window)})"
    return f"unix_micros(to_utc_timestamp({first} + INTERVAL {later} {unit}, {zone}))"


def _calendar(window: WindowSpec) -> tuple[str, str]:
    """Return the unit of a window's calendar, and its zone as a literal."""
    unit, zone = window.calendar or ("day", "UTC")
    return unit, literal(zone)


def _local_day(instant_us: int, zone: str) -> date | None:
    try:
        return instant_of(instant_us).astimezone(ZoneInfo(zone)).date()
    except OverflowError:  # at the ends of time
        return None
