"""Waits of sources (F: waiting is not idleness): how much of the clock passed while a source was not to be read.

Here: adding it up, item by item. Not here: what a silence gives (timeline.py).
"""

from collections import defaultdict


class Waits:
    """Which sources wait now, and how long each, and any of them, has waited."""

    def __init__(self) -> None:
        self.sources: frozenset[str] = frozenset()
        self.waited: defaultdict[str, int] = defaultdict(int)
        self.any_waited = 0

    def pass_time(self, before: int, clock: int) -> None:
        """The clock goes on from one instant to another."""
        for source in self.sources:
            self.waited[source] += clock - before
        if self.sources:
            self.any_waited += clock - before
