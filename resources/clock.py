"""The only reader of the wall clock.

Here: the present instant, as a value that is handed in. Not here: time of events, watermarks, ticks (see
timeops).
"""

from datetime import UTC, datetime, timedelta


class Clock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        """Return the present instant, aware and in UTC."""
        return datetime.now(UTC)

    def since(self, us: int) -> timedelta:
        """Return how long ago an instant was, microseconds since the epoch; a watermark may be of the year 0001."""
        return timedelta(seconds=self.now().timestamp() - us / 1e6)


class FixedClock(Clock):
    """A clock that stands still until it is moved: for tests and replays.

    Args:
        instant: The instant it shows, aware.
    """

    def __init__(self, instant: datetime) -> None:
        self._instant = instant.astimezone(UTC)

    def now(self) -> datetime:
        """Return the instant that the clock was set to."""
        return self._instant

    def advance(self, by: timedelta) -> None:
        """Move the clock on by a duration."""
        self._instant += by
