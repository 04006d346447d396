"""Arithmetic of time: cutting to a unit, which windows contain an instant, when a window closes.

Only functions of their arguments; no state and no watermark.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tests.oracle.model import Interval, Window

MIN_US = -62_135_596_800_000_000
"""The first instant of year 0001."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def floor(t: int, unit: int) -> int:
    """Cut t to a whole number of units, towards minus infinity."""
    return t // unit * unit


def grid_windows(t_us: int, size: int, hop: int, offset: int = 0, closed: str = "left") -> list[Interval]:
    """Return the windows on the grid offset + k * hop that contain t, the earliest first.

    closed left: start <= t < end; closed right: start < t <= end.
    """
    found: list[Interval] = []
    start = offset + floor(t_us - offset, hop)
    while start + size >= t_us:
        end = start + size
        inside = start <= t_us < end if closed == "left" else start < t_us <= end
        if inside:
            found.insert(0, (start, end))
        start -= hop
    return found


def cumulative_windows(t_us: int, size: int, step: int, offset: int = 0, closed: str = "left") -> list[Interval]:
    """Return the windows [k * size, k * size + j * step) that contain t, j from 1 to size / step."""
    found: list[Interval] = []
    for start, full_end in grid_windows(t_us, size, size, offset, closed):
        end = start + step
        while end <= full_end:
            if t_us < end or (closed == "right" and t_us == end):
                found.append((start, end))
            end += step
    return found


def calendar_window(t_us: int, by: str, zone: str, closed: str = "left") -> Interval:
    """Return the local day or month of the zone that contains t."""
    if closed == "right":
        t_us -= 1
    local = (EPOCH + timedelta(microseconds=t_us)).astimezone(ZoneInfo(zone))
    if by == "day":
        first = datetime(local.year, local.month, local.day)  # noqa: DTZ001  (local midnight, no zone yet)
        following = first + timedelta(days=1)
    else:
        first = datetime(local.year, local.month, 1)  # noqa: DTZ001
        following = datetime(local.year + local.month // 12, local.month % 12 + 1, 1)  # noqa: DTZ001
    return local_instant(first, zone), local_instant(following, zone)


def local_instant(local: datetime, zone: str) -> int:
    """Return a local time as an instant: in an overlap the earlier offset, in a gap moved forward by its length."""
    instant = local.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)
    return (instant - EPOCH) // timedelta(microseconds=1)


def windows_of(window: Window, t_us: int) -> list[Interval]:
    """Return the windows of a definition that contain t; for kinds whose windows do not depend on other events."""
    if window.calendar is not None:
        return [calendar_window(t_us, *window.calendar, window.closed)]
    if window.kind == "tumbling":
        return grid_windows(t_us, window.size_us, window.size_us, window.offset_us, window.closed)
    if window.kind == "hopping":
        return grid_windows(t_us, window.size_us, window.hop_us, window.offset_us, window.closed)
    if window.kind == "cumulative":
        return cumulative_windows(t_us, window.size_us, window.step_us, window.offset_us, window.closed)
    if window.kind == "snapshot":
        return [(t_us, t_us)]
    raise ValueError(f"kind: the windows of a {window.kind} window depend on its events")


def next_window(window: Window, after: Interval) -> Interval:
    """Return the window on the grid of a definition whose end follows that of another."""
    if window.calendar is not None:
        return calendar_window(after[1], *window.calendar)
    if window.kind == "cumulative":
        start, end = after
        begins = end if end == start + window.size_us else start
        return begins, end + window.step_us
    hop = window.hop_us if window.kind == "hopping" else window.size_us
    return after[0] + hop, after[1] + hop


def after_end(window: Window, unit_us: int) -> int:
    """Return how long after its end the clock closes a window: one unit more where an event on the end is inside."""
    end_is_inside = window.closed == "right" or window.kind in ("session", "sliding", "snapshot")
    return window.allowed_lateness_us + (unit_us if end_is_inside else 0)


def close_of(window: Window, t_us: int, unit_us: int) -> int | None:
    """When the last window that contains t closes, for the idle rule `window_close`; None in a gap."""
    later = after_end(window, unit_us)
    if window.kind == "session":
        return t_us + window.gap_us + later
    if window.kind == "sliding":
        return t_us + window.size_us + later
    containing = windows_of(window, t_us)
    return containing[-1][1] + later if containing else None


def latest_close_on_grid(window: Window, limit_us: int, unit_us: int) -> int | None:
    """Return the latest closing time on the grid of a window that is not after the limit; None without a grid."""
    later = after_end(window, unit_us)
    if window.calendar is not None:
        return calendar_window(limit_us - later, *window.calendar)[0] + later
    if window.kind == "tumbling":
        period = window.size_us
    elif window.kind == "hopping":
        period = window.hop_us
    elif window.kind == "cumulative":
        period = window.step_us
    else:
        return None
    one_close = window.offset_us + window.size_us + later
    return one_close + floor(limit_us - one_close, period)
