"""What is told of lateness and of the watermark: pieces of the log, a histogram, lines for tolerances.

Here: the numbers and how pieces follow each other. Not here: gathering them from judged records (lateness.py) or from
tables (stored_lateness.py), drawing them (pictures.py).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidemark.resources.workspace import Position
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec

BINS = 200
PER_DECADE = 40  # buckets of a histogram: a length of time is known to 3 %
FINEST_US = 1_000

QUANTILES = (0.5, 0.9, 0.99)

ON_TIME, MOVED, REFUSED = "on time", "moved or kept", "refused"
OUTCOMES = (ON_TIME, MOVED, REFUSED)


@dataclass(frozen=True)
class Bin:
    """Some consecutive records of the log; microseconds since the epoch.

    Attributes:
        last: Number of the last record, counted from the first of the segment.
        clock_us: Clock behind them; None before the first timed record.
        newest_us: Largest event time so far that moved the watermark; None before the first.
        watermark_us: The largest watermark so far, as far as these records tell; None before the first event.
        refused: How many were refused although they have a time.
        refused_behind_us: Of these the smallest and the largest event time minus the clock at which the event came;
            None where there is none.
    """

    last: int
    clock_us: int | None
    newest_us: int | None
    watermark_us: int | None
    refused: int
    refused_behind_us: tuple[int, int] | None


@dataclass(frozen=True)
class Lateness:
    """What a segment of records tells.

    Attributes:
        bins: They, in the order of the log, in at most BINS pieces.
        histogram: Events by bucket of lateness (arrival minus event time, see `bucket_start`) and outcome.
        longest_us: The largest lateness; None where no event has a time.
        exact_us: What parts of the events do not exceed, where each event was looked at, see QUANTILES.
    """

    bins: tuple[Bin, ...]
    histogram: Mapping[tuple[int, str], int]
    longest_us: int | None
    exact_us: Mapping[float, int] = field(default_factory=dict, compare=False)

    def quantile_us(self, part: float) -> int | None:
        """The lateness that this part of the events does not exceed, to 3 % where `exact_us` does not tell it.

        None where no event has a time.
        """
        if self.longest_us is None:
            return None
        if part in self.exact_us:
            return self.exact_us[part]
        left = math.ceil(part * sum(self.histogram.values()))
        for (bucket, _), n in sorted(self.histogram.items()):
            left -= n
            if left <= 0:
                return min(round((bucket_start(bucket) + bucket_start(bucket + 1)) / 2), self.longest_us)
        return self.longest_us


def bucket_start(bucket: int) -> float:
    """Where a bucket of the histogram starts, microseconds: bucket 0 holds what is less than a millisecond off."""
    if bucket <= 0:
        return -_edge(1 - bucket)
    return _edge(bucket)


def _edge(number: int) -> float:
    return FINEST_US * 10 ** ((number - 1) / PER_DECADE)


def carried_on(pieces: Iterable[Bin], before: Position, follows_us: int | None) -> tuple[Bin, ...]:
    """Pieces that each know their own records alone, with clock, newest event and watermark carried on.

    Args:
        pieces: They, in the order of the log.
        before: The position before the first.
        follows_us: How far the watermark follows the newest event, see `follows_us`.
    """
    newest, watermark, clock = before.max_t_us, before.watermark_us, before.clock_us
    carried = []
    for piece in pieces:
        newest, clock = _largest(newest, piece.newest_us), _largest(clock, piece.clock_us)
        asked = newest - follows_us if newest is not None and follows_us is not None else None
        watermark = _largest(watermark, piece.watermark_us, asked)
        carried.append(replace(piece, clock_us=clock, newest_us=newest, watermark_us=watermark))
    return tuple(carried)


def follows_us(rules: TimeRules) -> int | None:
    """How far the watermark follows the newest event; None where it follows the slowest of several splits."""
    return None if rules.uses_splits else rules.sources[0].out_of_orderness_us


def tolerances(spec: Spec) -> dict[str, float]:
    """Where the picture of lateness has lines, in seconds."""
    rules = TimeRules.of(spec)
    lines = {
        "out of orderness" if len(rules.sources) == 1 else f"out of orderness of {source.name}": (
            source.out_of_orderness_us / 1e6
        )
        for source in rules.sources
    }
    if rules.time.late is not None:
        lines["late tolerance"] = rules.time.late.tolerance_us / 1e6
    if rules.time.early is not None:
        lines["early tolerance"] = -rules.time.early.tolerance_us / 1e6
    return lines


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
