"""When windows close, for the second opinion on late drops: grids, wall clocks of zones, and windows on neither.

Here: the close time of the last window that holds an instant, and the latest one up to an instant. Not here: which
records are late for them (resources/recount/recount.py). No code of the rules is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

FIRST_US, LAST_US = -62135596800000000, 253402300799999999  # of the years 0001 to 9999
NONE = -(2**63)
Numbers = NDArray[np.int64]
_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LocalWindows:
    """Windows on the wall clock of a zone; times of it are microseconds as if they were UTC.

    Attributes:
        zone: The time zone.
        every_us: How far one start is from the next; None where that is `every_months`.
        anchor_us: One of the starts.
        lengths_us: The lengths of the windows with one start; empty where each ends when the next begins.
        splits: A start that comes twice begins a window each time.
        every_months: How many months one start is from the next, without `every_us`.
    """

    zone: str
    every_us: int | None
    anchor_us: int
    lengths_us: tuple[int, ...]
    splits: bool
    every_months: int = 1


@dataclass(frozen=True)
class EndsOfWindow:
    """The times at which windows close; one of `grid`, `local` and `after_event_us` is set.

    Attributes:
        allowed_lateness_us: Time after the ends of windows.
        inside_us: 1 where an event on the end is inside.
        delay_us: How far after its end and lateness the clock closes a window: one unit if the end is inside.
        grid: Offset, size, how far apart starts are and how far apart ends are, microseconds.
        local: The windows of a wall clock.
        after_event_us: Windows end this long after an event, and are not on a grid.
        own_gap: SQL, which never fails, of the INTERVAL DAY TO SECOND after which the window of each event ends; for
            none where it is null, not above zero, or longer than `after_event_us`. None where all have one length.
    """

    allowed_lateness_us: int
    inside_us: int = 0
    delay_us: int = 0
    grid: tuple[int, int, int, int] | None = None
    local: LocalWindows | None = None
    after_event_us: int | None = None
    own_gap: str | None = None


def close_times(window: EndsOfWindow, t: Numbers, gaps: Numbers | None = None) -> Numbers:
    """Return the close time of the last window that holds each t; NONE in a gap, and without t.

    `gaps` is after how long the window of each ends, NONE where it says no length; None where all have one length.
    """
    is_any = t != NONE
    inside, later_us = np.where(is_any, t, 0) - window.inside_us, window.allowed_lateness_us + window.delay_us
    if window.local is not None:
        starts, ends = _local_spans(window.local, inside)
        end = ends[np.searchsorted(starts, inside, "right") - 1]
        is_any &= inside < end
    elif gaps is not None:
        is_any &= gaps != NONE
        end = inside + np.where(is_any, gaps, 0)
    elif window.grid is None:
        end = inside + window.inside_us + (window.after_event_us or 0)
    else:
        offset_us, size_us, begins_every_us, _ = window.grid
        end = inside - (inside - offset_us) % begins_every_us + size_us
        is_any &= inside < end
    return np.where(is_any, end + later_us, NONE)


def last_close_times(window: EndsOfWindow, limit: Numbers) -> Numbers:
    """Return the latest close time that is at most each limit; NONE where any instant may be one."""
    later_us = window.allowed_lateness_us + window.delay_us
    if window.local is not None:
        ends = np.unique(_local_spans(window.local, limit - later_us)[1])
        return ends[np.searchsorted(ends, limit - later_us, "right") - 1] + later_us
    if window.grid is None:
        return np.full(len(limit), NONE)
    offset_us, size_us, _, ends_every_us = window.grid
    return limit - (limit - (offset_us + size_us + later_us)) % ends_every_us


def _local_spans(windows: LocalWindows, instants: Numbers) -> tuple[Numbers, Numbers]:
    """Return the starts and the ends of the windows of a wall clock around some instants, in order.

    A window that the clocks skip has no length.
    """
    if windows.every_us is None:
        begins = _begins_by_month(windows, instants)
        return begins[:-1], begins[1:]
    longest = 2 * max(windows.lengths_us, default=windows.every_us) // _DAY_US + 3
    days = np.unique(np.clip(instants, FIRST_US, LAST_US) // _DAY_US).tolist()
    around = sorted({near for day in days for near in range(day - longest, day + longest + 1)})
    spans = [span for day in around for span in _spans_of_day(windows, day, windows.every_us)]
    if windows.lengths_us:
        starts, ends = np.array(sorted(set(spans)), np.int64).T
        return starts, ends
    begins = np.array(sorted({begin for begin, _ in spans}), np.int64)
    return begins[:-1], begins[1:]


def _begins_by_month(windows: LocalWindows, instants: Numbers) -> Numbers:
    """Return when the windows of whole months begin around some instants, in order."""
    # NONE is far outside of the years that dates have.
    when = np.clip(instants, FIRST_US, LAST_US).astype("datetime64[us]")
    years = np.unique(when.astype("datetime64[Y]").astype(int))
    reach = windows.every_months // 12 + 2
    around = {near for year in years.tolist() for near in range(year - reach, year + reach + 1)}
    return np.array(sorted({begin for year in around for begin in _begins_of_year(windows, year)}), np.int64)


@cache
def _begins_of_year(windows: LocalWindows, year: int) -> Sequence[int]:
    """Return when the windows of whole months begin that start in a year, counted from 1970."""
    anchor = _EPOCH + timedelta(microseconds=windows.anchor_us)
    of_anchor = 12 * (anchor.year - 1970) + anchor.month - 1
    months = [month for month in range(12 * year, 12 * year + 12) if not (month - of_anchor) % windows.every_months]
    firsts = [int(np.datetime64(month, "M").astype("datetime64[D]").astype(int)) for month in months]
    return [_first_at(windows.zone, (first + anchor.day - 1) * _DAY_US) for first in firsts]


@cache
def _spans_of_day(windows: LocalWindows, day: int, every_us: int) -> Sequence[tuple[int, int]]:
    """Return the starts and ends of the windows that begin on a day of the wall clock, counted from the epoch."""
    midnight = day * _DAY_US
    starts = range(midnight + (windows.anchor_us - midnight) % every_us, midnight + _DAY_US, every_us)
    spans = [(start, start + length) for start in starts for length in windows.lengths_us or (0,)]
    instants = [(_first_at(windows.zone, start), _first_at(windows.zone, end)) for start, end in spans]
    again = [(_second_at(windows.zone, start), 0) for start in starts if windows.splits]
    return [*instants, *[(begin, end) for begin, end in again if begin is not None]]


def _first_at(zone: str, wall_us: int) -> int:
    """Return the first instant at which the clocks of a zone show a time or, where they skip it, a later one."""
    first_us, second_us = _offsets_at(zone, wall_us)
    if first_us >= second_us:
        return wall_us - first_us
    low, high = wall_us - second_us, wall_us - first_us  # the clocks are moved between these
    while high - low > 1_000_000:  # clocks are moved at whole seconds
        middle = low + (high - low) // 2_000_000 * 1_000_000
        is_moved = (_EPOCH + timedelta(microseconds=middle)).astimezone(ZoneInfo(zone)).utcoffset() != timedelta(
            microseconds=first_us
        )
        low, high = (low, middle) if is_moved else (middle, high)
    return high


def _second_at(zone: str, wall_us: int) -> int | None:
    """Return the instant at which the clocks of a zone show a time again; None where they show it once."""
    first_us, second_us = _offsets_at(zone, wall_us)
    return wall_us - second_us if first_us > second_us else None


def _offsets_at(zone: str, wall_us: int) -> tuple[int, int]:
    """Return the offsets from UTC before and after clocks are moved over a time; equal for all other times."""
    near = datetime(1970, 1, 1) + timedelta(microseconds=min(max(wall_us, FIRST_US), LAST_US))  # noqa: DTZ001
    both = (near.replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset() or timedelta(0) for fold in (0, 1))
    first, second = (offset // timedelta(microseconds=1) for offset in both)
    return first, second
