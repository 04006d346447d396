"""A clock for tests."""

from datetime import UTC, datetime, timedelta

from tidemark.resources.settings import Clock


class FixedClock(Clock):
    """A clock that does not move by itself."""

    def __init__(self, instant: datetime) -> None:
        self._instant = instant.astimezone(UTC)

    def now(self) -> datetime:
        return self._instant

    def advance(self, by: timedelta) -> None:
        self._instant += by
