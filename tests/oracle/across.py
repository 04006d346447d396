"""The watermark across timelines: it learns of every change, and asks all timelines again each time.

Here: which timelines count, and how far they let it rise. Not here: the watermark of each (timeline.py), windows.
"""

from collections.abc import Mapping

from tests.oracle.grids import MIN_US, floor
from tests.oracle.model import TimeRules
from tests.oracle.timeline import Timeline

ACROSS = "[]"
"""The name under which windows across timelines have their results."""


class Across:
    """The lowest watermark of the timelines that have had an event and are not idle; it never goes back."""

    def __init__(self, rules: TimeRules, timelines: Mapping[str, Timeline]) -> None:
        self.rules = rules
        self.timelines = timelines
        self.watermark: int | None = None
        self.set_by: int | None = None
        self.published: int | None = None
        self.published_set_by: int | None = None

    def look(self, clock: int, seq: int | None) -> None:
        """Look at all timelines after an event, or with None after the clock has moved."""
        if seq is None and self.rules.idle is not None and self.rules.idle[0] == "arrival_clock":
            tolerance = self.rules.late[0] if self.rules.late else 0
            self.raise_to(floor(max(clock - tolerance, MIN_US), self.rules.unit_us), None)
        self.raise_to(self.allowed(clock), seq)

    def allowed(self, clock: int) -> int | None:
        """Return the lowest watermark of the timelines that count, the highest where all of them are idle."""
        with_event = [timeline for timeline in self.timelines.values() if timeline.max_t]
        active = [timeline for timeline in with_event if not timeline.is_silent(clock)]
        marks = [timeline.watermark for timeline in active or with_event]
        if not active:
            return max((mark for mark in marks if mark is not None), default=None)
        return min((mark for mark in marks if mark is not None), default=None) if None not in marks else None

    def raise_to(self, value: int | None, seq: int | None) -> None:
        if value is not None and (self.watermark is None or value > self.watermark):
            self.watermark, self.set_by = value, seq

    def publish(self) -> None:
        """Let events and windows see it as it is."""
        self.published, self.published_set_by = self.watermark, self.set_by
