"""Instants and days in UTC: microseconds since the epoch in Python, and the days that partition window tables.

Here: conversions, instants of years that Python's datetime does not have, and where a day of a time zone begins. A
day goes from its first midnight to that of the next day, so days tile the line; a midnight that the clocks skip is
when they are moved. Not here: lengths of time (timeops/values/durations.py), instants in columns
(timeops/columns.py), windows of local days (timeops/calendar/grid.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 0001 to 9999: all that columns and Python's datetime hold."""
_CYCLE_YEARS, _CYCLE_US = 400, 146_097 * 86_400_000_000  # after which the calendar repeats itself


@dataclass(frozen=True, order=True)
class Instant:
    """An instant of any year: windows around the events of the years 1 and 9999 begin before, or end after them.

    Attributes:
        us: Microseconds since the epoch.
    """

    us: int

    @classmethod
    def in_year(cls, year: int, read: Callable[[int], datetime]) -> "Instant":
        """Return an instant of any year, read in a year of Python's with the same calendar."""
        cycles = (year - 2000) // _CYCLE_YEARS
        return cls(us_of(read(year - cycles * _CYCLE_YEARS)) + cycles * _CYCLE_US)

    def __str__(self) -> str:
        """Return UTC without its zone, and with no more of a fraction than there is."""
        cycles = (self.us - us_of(datetime(2000, 1, 1, tzinfo=UTC))) // _CYCLE_US
        like = instant_of(self.us - cycles * _CYCLE_US)
        year = like.year + cycles * _CYCLE_YEARS
        text = f"{'+' if year > 9999 else ''}{year:04}{like.replace(tzinfo=None).isoformat(sep=' ')[4:]}"
        return text.rstrip("0") if like.microsecond else text


def is_instant(us: int) -> bool:
    """Return whether microseconds since the epoch are in the years 0001 to 9999."""
    return FIRST_US <= us <= LAST_US


def instant_of(us: int) -> datetime:
    """Return the aware UTC instant of microseconds since the epoch; OverflowError outside the years 1 to 9999."""
    return EPOCH + timedelta(microseconds=us)


def us_of(instant: datetime) -> int:
    """Return the microseconds since the epoch of an aware instant."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def begin_of(day: date, zone: str) -> datetime:
    """Return the instant with which a day begins, aware UTC."""
    return datetime.combine(day, time(0), ZoneInfo(zone)).astimezone(UTC)
