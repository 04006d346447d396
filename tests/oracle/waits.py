"""Waits (F: waiting is not idleness): how much of the clock passed while a source, or a split, was not to be read.

Here: adding it up, item by item. Not here: the effects of a silence (timeline.py).
"""

from collections import defaultdict

from tests.oracle.model import Waiter


class Waits:
    """Who waits now, and how long each of them, and any, has waited."""

    def __init__(self) -> None:
        self.waiters: frozenset[Waiter] = frozenset()
        self.waited: defaultdict[Waiter, int] = defaultdict(int)
        self.any_waited = 0

    def pass_time(self, before: int, clock: int) -> None:
        """Let the clock go on from one instant to another."""
        for waiter in self.waiters:
            self.waited[waiter] += clock - before
        if self.waiters:
            self.any_waited += clock - before

    def of(self, source: str, split: str | None) -> int:
        """Return how long a split has waited, alone and with its source."""
        return self.waited[source] + self.waited[source, split]
