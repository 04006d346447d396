"""Arithmetic of time: cutting to a unit, which windows contain an instant, when a window closes.

Only functions of their arguments; no state and no watermark.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from tests.oracle.model import Interval, Record, Window

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


def calendar_window(window: Window, t_us: int) -> Interval:
    """Return the local day, month or months of the zone that contain t, from when their midnight comes first."""
    by, zone = window.calendar or ("day", "UTC")
    today = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=floor(shows(zone, t_us), DAY_US))
    reach = 3 if by == "day" else 31 * (window.months + 1)
    year, month, of_month = window.origin

    def begins_one(day: datetime) -> bool:
        since = 12 * (day.year - year) + day.month - month
        return by == "day" or (day.day == of_month and since % window.months == 0)

    days = [today + timedelta(days=n) for n in range(-reach, reach + 1)]
    firsts = [(day - EPOCH) // timedelta(microseconds=1) for day in days if begins_one(day)]
    begins = sorted({comes_to(zone, first)[0] for first in firsts})
    return max(begin for begin in begins if begin <= t_us), min(begin for begin in begins if begin > t_us)


@lru_cache(maxsize=1_000_000)
def shows(zone: str, t_us: int) -> int:
    """Return the time that the clocks of a zone show at an instant, as if they were UTC."""
    at = (EPOCH + timedelta(microseconds=t_us)).astimezone(ZoneInfo(zone))
    return (at.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=1_000_000)
def comes_to(zone: str, wall_us: int) -> tuple[int, ...]:
    """Return the instants at which the clocks of a zone come to a time: one, or two where they show it twice.

    A time that they skip they come to when they are moved.
    """
    naive = datetime(1970, 1, 1) + timedelta(microseconds=wall_us)  # noqa: DTZ001  (a time of the wall clock)
    both = [naive.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC) for fold in (0, 1)]
    first, second = sorted((at - EPOCH) // timedelta(microseconds=1) for at in both)
    if shows(zone, second) == wall_us:
        return (first,) if first == second else (first, second)
    while second - first > 1:  # from before to after the change
        middle = (first + second) // 2
        first, second = (middle, second) if shows(zone, middle) < wall_us else (first, middle)
    return (second,)


DAY_US = 86_400_000_000


def starts_near(window: Window, first_us: int, last_us: int) -> list[int]:
    """Return the starts on the wall clock that may be near to some instants."""
    hop = window.hop_us if window.kind == "hopping" else window.size_us
    low, high = (floor(t_us - window.offset_us, hop) + window.offset_us for t_us in (first_us, last_us))
    reach = 2 * DAY_US + window.size_us
    return list(range(low - floor(reach, hop) - hop, high + floor(reach, hop) + 2 * hop, hop))


def local_windows(window: Window, t_us: int) -> list[Interval]:
    """Return the windows on a wall clock that contain t: from when the clocks come to a start until the end."""
    zone = window.zone or "UTC"
    inside = t_us - 1 if window.closed == "right" else t_us
    starts = starts_near(window, inside, inside)
    if window.split:
        begins = sorted({at for start in starts for at in comes_to(zone, start)})
        spans = set(pairwise(begins))
    else:
        step = window.step_us if window.kind == "cumulative" else window.size_us
        lengths = range(step, window.size_us + 1, step)
        spans = {
            (comes_to(zone, start)[0], comes_to(zone, start + length)[0]) for start in starts for length in lengths
        }
    return sorted((span for span in spans if span[0] <= inside < span[1]), key=lambda span: (span[1], span[0]))


def windows_of(window: Window, t_us: int) -> list[Interval]:
    """Return the windows of a definition that contain t; for kinds whose windows do not depend on other events."""
    if window.zone is not None:
        return local_windows(window, t_us)
    if window.calendar is not None:
        return [calendar_window(window, t_us - 1 if window.closed == "right" else t_us)]
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
        return calendar_window(window, after[1])
    if window.zone is not None:  # one after the other: others have no rows without an event
        [following] = local_windows(window, after[1] + (1 if window.closed == "right" else 0))
        return following
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


def close_of(window: Window, t_us: int, unit_us: int, record: Record | None = None) -> int | None:
    """When the last window that contains t closes, for the idle rule `window_close`; None in a gap.

    A record that says how long it keeps its session open is asked for it; None where it says no length.
    """
    later = after_end(window, unit_us)
    if window.kind == "session":
        gap = window.gap_us if window.gap is None or record is None else window.gap(record)
        return None if gap is None else t_us + gap + later
    if window.kind == "sliding":
        return t_us + window.size_us + later
    containing = windows_of(window, t_us)
    return containing[-1][1] + later if containing else None


def latest_close_on_grid(window: Window, limit_us: int, unit_us: int) -> int | None:
    """Return the latest closing time on the grid of a window that is not after the limit; None without a grid."""
    later = after_end(window, unit_us)
    if window.calendar is not None:
        return calendar_window(window, limit_us - later)[0] + later
    if window.zone is not None:
        starts = starts_near(window, limit_us - later, limit_us - later)
        step = window.step_us or window.size_us
        ends = [start + length for start in starts for length in range(step, window.size_us + 1, step)]
        instants = [at for end in ends for at in comes_to(window.zone, end)[: 2 if window.split else 1]]
        return max(at for at in instants if at <= limit_us - later) + later
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
