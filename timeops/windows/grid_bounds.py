"""Where a watermark stands on the grid of windows, as numbers of Python: for plans, not for rows.

Here: whether windows close between two watermarks, what none of them needs any more, what sessions and sliding
windows need for certain. All may say that too little closes, goes or stays, never too much. Not here: the rules
themselves, as columns (grid.py).
"""

from datetime import date
from zoneinfo import ZoneInfo

from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import instant_of

LONGEST_MONTH_US = 32 * 86_400_000_000
LONGEST_DAY_US = 2 * 86_400_000_000  # of a zone that moved to the other side of the date line


def may_close_between(before_us: int | None, after_us: int | None, window: WindowSpec) -> bool:
    """Whether some window may close when the watermark rises from one value to another; None is before the first."""
    if after_us is None or before_us == after_us:
        return False
    if before_us is None or not window.closes_on_grid:
        return True
    behind = window.allowed_lateness_us + window.ends_inside_us
    if window.calendar is not None:
        days = [_local_day(value - behind, window.calendar[1]) for value in (before_us, after_us)]
        return None in days or days[0] != days[1]
    anchor = window.offset_us + window.size_us + behind
    return (before_us - anchor) // window.end_step_us < (after_us - anchor) // window.end_step_us


def needed_from(watermark_us: int, window: WindowSpec) -> int:
    """An instant, microseconds: no event before it is in a window that is open at the watermark.

    Events in a gap of hopping windows may be before or behind it.
    """
    reached = watermark_us - window.allowed_lateness_us - window.ends_inside_us
    if window.calendar is not None:
        return reached - LONGEST_MONTH_US
    if window.kind in ("sliding", "snapshot"):
        return reached - (window.size_us if window.kind == "sliding" else 0)
    first_open_end = window.offset_us + window.size_us
    first_open_end += ((reached - first_open_end) // window.end_step_us + 1) * window.end_step_us
    return first_open_end - window.size_us + window.ends_inside_us


def needed_for_certain_from(watermark_us: int, window: WindowSpec) -> int:
    """An instant, microseconds: from there on an event of a session or sliding window is in one that is open.

    An event keeps a window open for a gap (or size) and a lateness. A session of a longest duration may end sooner,
    but not before its last event.
    """
    reach = window.size_us if window.kind == "sliding" else window.gap_us if window.max_duration is None else 0
    return watermark_us - reach - window.allowed_lateness_us


def closed_from(before_us: int, window: WindowSpec) -> int:
    """A watermark, microseconds, at which every window of a grid that starts before an instant is closed."""
    if window.calendar is not None:
        longest_us = LONGEST_MONTH_US if window.calendar[0] == "month" else LONGEST_DAY_US
    else:
        longest_us = 0 if window.kind == "snapshot" else window.size_us
    return before_us - 1 + longest_us + window.allowed_lateness_us + window.ends_inside_us


def _local_day(instant_us: int, zone: str) -> date | None:
    try:
        return instant_of(instant_us).astimezone(ZoneInfo(zone)).date()
    except OverflowError:  # at the ends of time
        return None
