"""Instants in Python as microseconds since the epoch, and back.

Here: the two conversions, and instants of years that Python's datetime does not have. Not here: lengths of time
(durations.py), instants in columns (columns.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_YEARS, _CYCLE_US = 400, 146_097 * 86_400_000_000  # after which the calendar repeats itself


@dataclass(frozen=True, order=True)
class Instant:
    """An instant of any year: windows around the events of the years 1 and 9999 begin before, or end behind them.

    Attributes:
        us: Microseconds since the epoch.
    """

    us: int

    @classmethod
    def in_year(cls, year: int, read: Callable[[int], datetime]) -> "Instant":
        """An instant of any year, read in a year of Python's with the same calendar."""
        cycles = (year - 2000) // _CYCLE_YEARS
        return cls(us_of(read(year - cycles * _CYCLE_YEARS)) + cycles * _CYCLE_US)

    def __str__(self) -> str:
        """UTC without its zone, and with no more of a fraction than there is."""
        cycles = (self.us - us_of(datetime(2000, 1, 1, tzinfo=UTC))) // _CYCLE_US
        like = instant_of(self.us - cycles * _CYCLE_US)
        year = like.year + cycles * _CYCLE_YEARS
        text = f"{'+' if year > 9999 else ''}{year:04}{like.replace(tzinfo=None).isoformat(sep=' ')[4:]}"
        return text.rstrip("0") if like.microsecond else text


def instant_of(us: int) -> datetime:
    """The aware UTC instant of microseconds since the epoch; OverflowError outside the years 1 to 9999."""
    return EPOCH + timedelta(microseconds=us)


def us_of(instant: datetime) -> int:
    """Microseconds since the epoch of an aware instant."""
    return (instant - EPOCH) // timedelta(microseconds=1)
