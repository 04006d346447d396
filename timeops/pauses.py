"""Which sources wait for others in a segment of the log, and for how long each has waited (F, alignment).

Here: adding up waits. Not here: which sources wait (alignment.py), what a silence is without them
(idle_clock.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Waits:
    """The waits of sources as they are in a segment of the log, which has no record of those that wait.

    Attributes:
        sources: Names of those that wait throughout the segment.
        since_us: The clock of the log at which this began, microseconds; None where none waits.
        waited_us: By source how long it had waited before that.
        any_since_us: The clock from which on some source, whichever, has waited; None where none waits.
        any_waited_us: For how long before that some source waited.
    """

    sources: frozenset[str] = frozenset()
    since_us: int | None = None
    waited_us: Mapping[str, int] = field(default_factory=dict)
    any_since_us: int | None = None
    any_waited_us: int = 0

    def from_here(self, clock_us: int | None, sources: Iterable[str]) -> "Waits":
        """The waits from a place of the log on.

        Args:
            clock_us: The clock of the log there, microseconds. Before the first timed record no source has a
                watermark, so none can be ahead of another.
            sources: Those that wait from there on.
        """
        waiting = frozenset(sources)
        if clock_us is None or waiting == self.sources:
            return self
        gone_us = 0 if self.since_us is None else clock_us - self.since_us
        waited = dict(self.waited_us) | {name: self.waited_us.get(name, 0) + gone_us for name in self.sources}
        if not waiting:
            any_gone_us = 0 if self.any_since_us is None else clock_us - self.any_since_us
            return Waits(waited_us=waited, any_waited_us=self.any_waited_us + any_gone_us)
        any_since_us = clock_us if self.any_since_us is None else self.any_since_us
        return Waits(waiting, clock_us, waited, any_since_us, self.any_waited_us)
