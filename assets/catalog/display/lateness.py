"""Lateness and the watermark over the log: pieces of it, a histogram, lines for tolerances.

Here: the numbers, how pieces follow each other, and gathering them: of a batch at work from what became of its
records, of the newest records from the tables, without Spark. Not here: drawing (assets/catalog/display/pictures.py).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.batch import Batch
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.timeops import columns as c
from tidemark.timeops.figures.counts import Outcomes
from tidemark.timeops.rules.reasons import Stage
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.instants import NONE, integers

BINS = 200
"""Into so many pieces a segment is cut."""
PER_DECADE = 40  # buckets of a histogram: a length of time is known to 3 %
FINEST_US = 1_000
QUANTILES = (0.5, 0.9, 0.99)
ON_TIME, MOVED_OR_KEPT, REFUSED = "on time", "moved or kept", "refused"
OUTCOMES = (ON_TIME, MOVED_OR_KEPT, REFUSED)


@dataclass(frozen=True)
class Bin:
    """Some consecutive records of the log; microseconds since the epoch.

    Attributes:
        last: Number of the last record, counted from the first of the segment.
        clock_us: Clock after them; None before the first timed record.
        newest_us: Largest event time so far that moved the watermark; None before the first.
        watermark_us: The largest watermark so far, as far as these records show; None before the first event.
        refused: How many were refused although they have a time.
        refused_behind_us: Smallest and largest event time of the refused minus the clock at which the event came;
            None if none was refused.
    """

    last: int
    clock_us: int | None
    newest_us: int | None
    watermark_us: int | None
    refused: int
    refused_behind_us: tuple[int, int] | None


@dataclass(frozen=True)
class Lateness:
    """The lateness in a segment of records.

    Attributes:
        bins: The records in the order of the log, in at most BINS pieces.
        histogram: Events by bucket of lateness (arrival minus event time, see `bucket_start`) and outcome.
        longest_us: The largest lateness; None if no event has a time.
        exact_us: The lateness that each part of the events does not exceed, if all were looked at, see QUANTILES.
    """

    bins: tuple[Bin, ...]
    histogram: Mapping[tuple[int, str], int]
    longest_us: int | None
    exact_us: Mapping[float, int] = field(default_factory=dict, compare=False)

    def quantile_us(self, part: float) -> int | None:
        """Return the lateness that this part of the events does not exceed, to 3 % where `exact_us` lacks it.

        None if no event has a time.
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
    """Return the start of a bucket, microseconds: bucket 0 holds lateness of less than a millisecond."""
    number = bucket if bucket > 0 else 1 - bucket
    edge = FINEST_US * 10 ** ((number - 1) / PER_DECADE)
    return edge if bucket > 0 else -edge


def carried_on(pieces: Iterable[Bin], position: Position, follows_us: int | None) -> tuple[Bin, ...]:
    """Carry clock, newest event and watermark on through pieces that each know only their own records.

    Args:
        pieces: The pieces, in the order of the log.
        position: The position before the first.
        follows_us: How far the watermark follows the newest event, see `follows_us`.
    """
    newest, watermark, clock = position.max_t_us, position.watermark_us, position.clock_us
    carried = []
    for piece in pieces:
        newest, clock = _largest(newest, piece.newest_us), _largest(clock, piece.clock_us)
        followed_us = newest - follows_us if newest is not None and follows_us is not None else None
        watermark = _largest(watermark, piece.watermark_us, followed_us)
        carried.append(replace(piece, clock_us=clock, newest_us=newest, watermark_us=watermark))
    return tuple(carried)


def follows_us(rules: TimeRules) -> int | None:
    """Return how far the watermark follows the newest event; None if it follows the slowest of several splits."""
    return None if rules.uses_splits else rules.sources[0].out_of_orderness_us


def tolerances(spec: Spec) -> dict[str, float]:
    """Return the lines in the picture of lateness, in seconds."""
    rules = TimeRules.of(spec)
    lines = {f"out of orderness of {source.name}": source.out_of_orderness_us / 1e6 for source in rules.sources}
    if len(rules.sources) == 1:
        lines = {"out of orderness": rules.sources[0].out_of_orderness_us / 1e6}
    if rules.time.late is not None:
        lines["late tolerance"] = rules.time.late.tolerance_us / 1e6
    if rules.time.early is not None:
        lines["early tolerance"] = -rules.time.early.tolerance_us / 1e6
    return lines


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


Integers = NDArray[np.int64]


def lateness_of_batch(batch: Batch, outcomes: Outcomes) -> Lateness:
    """Return the lateness and the watermark of the records of a batch."""
    bins, histogram, longest = [], Counter[tuple[int, str]](), None
    for part in _parts(len(outcomes)):  # one at a time, as each asks for arrays of its own
        log = _judged(outcomes.part(part))
        bins.append(_bin(log, part.start))
        histogram.update(_histogram(log))
        longest = _largest(longest, _some(log.lateness.max()))
    carried = carried_on(bins, batch.before, follows_us(batch.outcome.judged.rules))
    return Lateness(carried, histogram, longest)


def _judged(outcomes: Outcomes) -> "_Log":
    has_time = outcomes.event != NONE
    is_refused = outcomes.reason != 0
    outcome = np.where(is_refused, OUTCOMES.index(REFUSED), OUTCOMES.index(ON_TIME))
    outcome[~is_refused & (outcomes.moved != 0)] = OUTCOMES.index(MOVED_OR_KEPT)
    return _Log(
        clock=outcomes.clock,
        time=outcomes.event,
        moving=outcomes.t,
        watermark=outcomes.watermark,
        lateness=_lateness(outcomes.arrival, outcomes.event),
        outcome=np.where(has_time, outcome, -1),
    )


@dataclass(frozen=True)
class _Log:
    """Records of a segment of the log by their place in it; microseconds since the epoch, NONE for no value.

    Attributes:
        clock: The clock at each.
        time: Event time.
        moving: Time that moves the watermark.
        watermark: The watermark before it, if a table has it.
        lateness: Arrival minus event time.
        outcome: Place in OUTCOMES; -1 where the record has no time.
    """

    clock: Integers
    time: Integers
    moving: Integers
    watermark: Integers
    lateness: Integers
    outcome: Integers


def lateness_of_log(
    lake: Lake,
    versions: Mapping[str, int],
    spec: Spec,
    segment: tuple[int, int],
    positions: Sequence[tuple[int, Position]],
) -> Lateness:
    """Gather lateness and watermark of a segment of processed records. It needs the table `ordered_events`.

    Args:
        lake: The tables.
        versions: Version of each as of one commit.
        spec: The spec.
        segment: First `_arrival_seq` and the end, exclusive; memory grows with its length.
        positions: End of the range and position after it of processed batches, in order: the last one at or before
            the segment, and all that reach into it.
    """
    first, end = segment
    log = _read(lake, versions, first, end)
    timed = log.outcome >= 0
    longest = int(log.lateness[timed].max()) if timed.any() else None
    earlier_positions = [position for at, position in positions if at <= first]
    pieces_of_log = _with_reached(_bins(log), positions, first)
    carried = carried_on(
        pieces_of_log, earlier_positions[-1] if earlier_positions else Position(), follows_us(TimeRules.of(spec))
    )
    bounded = tuple(_bounded(carried, positions, first))
    return Lateness(bounded, _histogram(log), longest, _quantiles(log.lateness[timed]))


def _quantiles(lateness_us: Integers) -> dict[float, int]:
    """Return the quantiles of lateness: for each part of the events, the value of the event at that place."""
    if not lateness_us.size:
        return {}
    places = {part: math.ceil(part * lateness_us.size) - 1 for part in QUANTILES}
    ordered = np.partition(lateness_us, sorted(places.values()))
    return {part: int(ordered[place]) for part, place in places.items()}


def _read(lake: Lake, versions: Mapping[str, int], first: int, end: int) -> _Log:
    clock, time, moving, watermark, lateness = (np.full(end - first, NONE, dtype=np.int64) for _ in range(5))
    log = _Log(clock, time, moving, watermark, lateness, outcome=np.full(end - first, -1, dtype=np.int64))
    segment: Filters = [(c.SEQ, ">=", first), (c.SEQ, "<", end)]

    def read(table: str, columns: Sequence[str], filters: Filters = ()) -> Iterator[tuple[Integers, pa.RecordBatch]]:
        for piece in pieces(lake, table, versions[table], [c.SEQ, *columns], [*segment, *filters]):
            yield _integers(piece, c.SEQ) - first, piece

    for at, piece in read(tables.RAW_EVENTS, [c.CLOCK]):
        log.clock[at] = _integers(piece, c.CLOCK)
    for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
        for at, piece in read(table, [c.EVENT_TIME, c.ARRIVAL, c.TIMESTAMP, c.ADJUSTED_BY, c.WATERMARK]):
            moved = np.asarray(pc.fill_null(pc.list_value_length(piece[c.ADJUSTED_BY]), 0)) > 0
            _put(log, at, piece, np.where(moved, OUTCOMES.index(MOVED_OR_KEPT), OUTCOMES.index(ON_TIME)))
            log.moving[at] = _integers(piece, c.TIMESTAMP)
            log.watermark[at] = _integers(piece, c.WATERMARK)
    for at, piece in read(tables.DEAD_LETTERS, [c.EVENT_TIME, c.ARRIVAL, c.WATERMARK], [("stage", "=", Stage.TIME)]):
        has_time = _integers(piece, c.EVENT_TIME) != NONE
        _put(log, at, piece, np.where(has_time, OUTCOMES.index(REFUSED), -1))
        log.watermark[at] = _integers(piece, c.WATERMARK)
    return log


def _put(log: _Log, at: Integers, piece: pa.RecordBatch, outcome: Integers) -> None:
    time = _integers(piece, c.EVENT_TIME)
    log.time[at], log.outcome[at] = time, outcome
    log.lateness[at] = _lateness(_integers(piece, c.ARRIVAL), time)


def _lateness(arrival: Integers, time: Integers) -> Integers:
    return np.where(time == NONE, NONE, arrival - np.where(time == NONE, 0, time))


def _parts(records: int) -> Iterator[slice]:
    """Divide the places of so many records into at most BINS pieces."""
    width = math.ceil(records / BINS) or 1
    for start in range(0, records, width):
        yield slice(start, start + width)


def _histogram(log: _Log) -> dict[tuple[int, str], int]:
    buckets = _buckets(log.lateness)
    histogram: dict[tuple[int, str], int] = {}
    for number, outcome in enumerate(OUTCOMES):
        numbers, counts = np.unique(buckets[log.outcome == number], return_counts=True)
        histogram |= {(int(bucket), outcome): int(n) for bucket, n in zip(numbers, counts, strict=True)}
    return histogram


def _bins(log: _Log) -> Iterator[Bin]:
    for part in _parts(len(log.clock)):
        yield _bin(_Log(**{name: value[part] for name, value in vars(log).items()}), part.start)


def _bin(log: _Log, start: int) -> Bin:
    refused = (log.outcome == OUTCOMES.index(REFUSED)) & (log.clock != NONE)
    behind = log.time[refused] - log.clock[refused]
    return Bin(
        last=start + len(log.clock) - 1,
        clock_us=_some(log.clock.max()),
        newest_us=_some(log.moving.max()),
        watermark_us=_some(log.watermark.max()),
        refused=int(refused.sum()),
        refused_behind_us=(int(behind.min()), int(behind.max())) if behind.size else None,
    )


def _with_reached(bins: Iterable[Bin], positions: Sequence[tuple[int, Position]], first: int) -> Iterator[Bin]:
    """Add the watermarks at the ends of batches, which the clock or the slowest of several splits may have set."""
    left = [(end, position.watermark_us) for end, position in positions if position.watermark_us is not None]
    for piece in bins:
        watermark_us = piece.watermark_us
        while left and left[0][0] - first <= piece.last + 1:
            watermark_us = max(watermark_us if watermark_us is not None else NONE, left.pop(0)[1])
        yield replace(piece, watermark_us=watermark_us)


def _bounded(bins: Iterable[Bin], positions: Sequence[tuple[int, Position]], first: int) -> Iterator[Bin]:
    """Limit watermarks to the one at the end of the record's batch: the spec may have changed since."""
    left = [(end - first, position.watermark_us) for end, position in positions if not position.final]
    for piece in bins:
        while left and left[0][0] <= piece.last:
            left.pop(0)
        limits = [us for us in (piece.watermark_us, left[0][1] if left else None) if us is not None]
        yield piece if piece.watermark_us is None else replace(piece, watermark_us=min(limits))


def _buckets(lateness_us: Integers) -> Integers:
    """Return the bucket of each lateness, see `bucket_start`."""
    off = np.abs(np.where(lateness_us == NONE, 0, lateness_us))
    size = np.floor(PER_DECADE * np.log10(np.maximum(off, FINEST_US) / FINEST_US)).astype(np.int64) + 1
    return np.where(off < FINEST_US, 0, np.sign(lateness_us) * size)


def _integers(piece: pa.RecordBatch, column: str) -> Integers:
    return integers(piece[column].cast(pa.int64()))


def _some(value: np.int64) -> int | None:
    return None if value == NONE else int(value)
