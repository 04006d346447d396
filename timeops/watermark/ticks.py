"""Ticks: items of the log that say «every split has been read to its end, and the clock has come so far» (A2).

Here: the estimate that is their clock. Not here: what the clock does at an item (fold.py), when a live run writes a
tick, reading the wall clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LastArrival:
    """When the last record of a source arrived, and when it was seen by the wall clock; microseconds."""

    arrival_us: int
    seen_us: int


def estimated_clock(sources: Iterable[LastArrival | None], now_us: int) -> int | None:
    """Return the clock of a tick: the estimated arrival time of what comes next (A2), microseconds.

    Of each source it is the last arrival and the wall time since that record was seen; of several sources the
    earliest counts.

    Args:
        sources: Of each source its last arrival; None before its first record that has one.
        now_us: The wall clock.

    Returns:
        None where a source has had no record: it holds the clock.
    """
    estimates = []
    for last in sources:
        if last is None:
            return None
        estimates.append(last.arrival_us + max(now_us - last.seen_us, 0))
    return min(estimates, default=None)
