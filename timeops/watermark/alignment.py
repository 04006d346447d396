"""How sources keep step: which are read on, which wait (F), and the clock when all are read to their end (A2).

Here: the watermark of a source or split, the choice, and the estimate that is the clock of a tick. Not here: what is
waiting (resources/sources/), where largest times are kept (assets/ingestion/waiting_input.py), what the clock does at
an item (timeops/watermark/fold.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidemark.timeops.rules.time_rules import SourceTime, Waiter


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


LargestTimes = Mapping[tuple[str, str | None], int | None]
"""By source and value of its split the largest t so far, microseconds; None before the first event that has one."""


@dataclass(frozen=True)
class Progress:
    """How far a source, or a split that is read by itself, has come that has input waiting.

    Attributes:
        group: Its alignment group.
        max_drift_us: How far it may be ahead of the lowest of the group, microseconds.
        watermark_us: See `source_watermark` and `split_watermark`.
    """

    group: str
    max_drift_us: int
    watermark_us: int | None


def source_watermark(source: SourceTime, largest: LargestTimes) -> int | None:
    """Return the watermark of one source, microseconds: that of the lowest of its splits, over all timelines.

    None before its first event, and while a listed split has none: then the source holds the watermark back.
    """
    times = [t for (name, _), t in largest.items() if name == source.name and t is not None]
    awaited = any(largest.get((source.name, value)) is None for value in source.splits)
    return None if awaited or not times else min(times) - source.out_of_orderness_us


def split_watermark(source: SourceTime, split: str, largest: LargestTimes) -> int | None:
    """Return the watermark of one split, microseconds, over all timelines; None before its first event."""
    t = largest.get((source.name, split))
    return None if t is None else t - source.out_of_orderness_us


_W = TypeVar("_W", bound=Waiter)


def those_ahead(waiting: Mapping[_W, Progress]) -> frozenset[_W]:
    """Return the sources and splits that are too far ahead to be read on (F, scan.watermark.alignment.max-drift).

    The lowest of a group is never among them, so something of each group is read.

    Args:
        waiting: The sources and splits of groups that have input waiting. The others do not count.
    """
    by_group: dict[str, list[int | None]] = {}
    for progress in waiting.values():
        by_group.setdefault(progress.group, []).append(progress.watermark_us)
    lowest = {group: _lowest(watermarks) for group, watermarks in by_group.items()}
    return frozenset(name for name, progress in waiting.items() if _is_ahead(progress, lowest[progress.group]))


def _lowest(watermarks: list[int | None]) -> int | None:
    """Return the lowest watermark; None, no watermark yet, is lower than all."""
    values = [us for us in watermarks if us is not None]
    return min(values) if len(values) == len(watermarks) else None


def _is_ahead(progress: Progress, lowest_us: int | None) -> bool:
    if progress.watermark_us is None:
        return False
    return lowest_us is None or progress.watermark_us - lowest_us > progress.max_drift_us
