"""Instants in Python as microseconds since the epoch, and back.

Here: the two conversions. Not here: lengths of time (durations.py), instants in columns (columns.py).
"""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_of(us: int) -> datetime:
    """The aware UTC instant of microseconds since the epoch."""
    return EPOCH + timedelta(microseconds=us)


def us_of(instant: datetime) -> int:
    """Microseconds since the epoch of an aware instant."""
    return (instant - EPOCH) // timedelta(microseconds=1)
