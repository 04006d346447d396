"""The days of a time zone, the partitions of window tables: where one begins, and which one holds an instant.

Here: one rule, for Python and for columns. A day goes from its first midnight to that of the next day, so days tile
the line; a midnight that the clocks skip is when they are moved. Not here: windows of local days (grid.py).
"""

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F


def begin_of(day: date, zone: str) -> datetime:
    """The instant with which a day begins, aware UTC."""
    return datetime.combine(day, time(0), ZoneInfo(zone)).astimezone(UTC)


def day_of(instant: Column, zone: str) -> Column:
    """DATE: the day that holds a TIMESTAMP; null of null."""
    shown = F.to_date(F.from_utc_timestamp(instant, zone))
    following = F.date_add(shown, 1)
    # Where the clocks go back over midnight they show the day before once more.
    has_begun = F.to_utc_timestamp(following.cast("timestamp"), zone) <= instant
    return F.when(has_begun, following).otherwise(shown)
