"""Advice on an out-of-orderness: what each would refuse of a log, which one loses how much, who comes how late.

Here: numbers about all records of a log, made of what each needs to be in order. Not here: the pass over the log
(timeops/watermark/tolerances.py), reading it, the words (assets/questions/advice_answer.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tidemark.timeops.values.durations import a_little_longer, round_lengths
from tidemark.timeops.values.instants import NEVER, NONE, Array
from tidemark.timeops.watermark.fold import JUDGED, Items
from tidemark.timeops.watermark.tolerances import Needed

MOST_TOLERANCES = 50
TARGETS = (0.01, 0.001, 0.0001)
"""The shares of lost records for which a tolerance is looked for."""
FOUND_ON = 0.7
"""The part of the log, from its beginning, on which it is found; it is verified on the rest."""
NOT_JUDGED = -1
_HOUR_US, _HOURS = 3_600_000_000, 24


@dataclass(frozen=True)
class Tolerance:
    """An out-of-orderness, and what a run of the whole log with it would do.

    Attributes:
        tolerance_us: The out-of-orderness.
        lost: How many records rule 3 would find behind the watermark. Under `drop` they are lost.
        share: Their share of all records.
        later_us: How much later results come than today, in event time; below zero for earlier. None where today's
            is not the same for all sources.
        held: How many accepted events the watermark has not passed at the end of the log; None where that is not
            known.
    """

    tolerance_us: int
    lost: int
    share: float
    later_us: int | None
    held: int | None


@dataclass(frozen=True)
class Target:
    """A share of records that may be lost, and the least out-of-orderness for it.

    Attributes:
        share: The share.
        tolerance_us: The out-of-orderness, found on the first part of the log; None where none is enough.
        verified_share: The share that it loses on the rest of the log; None without one, or without a rest.
    """

    share: float
    tolerance_us: int | None
    verified_share: float | None


@dataclass(frozen=True)
class Delay:
    """The delays of the records of a value: how far behind the watermark they come with an out-of-orderness of 0.

    Attributes:
        by: `source`, `split`, `over` or `hour`, that of the clock in UTC; empty for all.
        value: The value.
        records: Its records that rule 3 judges.
        behind: How many of them are late at all.
        half_us: The delay that half of them do not exceed.
        most_us: The same of 99 %.
        longest_us: The same of all that a tolerance lets in.
        lost: How many today's out-of-orderness finds behind the watermark.
    """

    by: str
    value: str
    records: int
    behind: int
    half_us: int
    most_us: int
    longest_us: int
    lost: int


@dataclass(frozen=True, eq=False)
class LogNeeds:
    """The records of a log, in their order, and what each needs to be in order.

    Attributes:
        rest_seq: The first record of the part of the log on which tolerances are verified.
        seq: `_arrival_seq`.
        t: The time that rule 3 judges; any number where there is none.
        clock_us: The clock of the log.
        least_us: The least out-of-orderness with which each is in order, NEVER for none; NOT_JUDGED of a record that
            rule 3 does not judge.
        is_late: Whether today's rules find it behind the watermark.
        timeline: The index of its timeline.
        source: The place of its source in the rules; empty where there is one only.
        split: The index of its split; empty without splits.
        last: The watermarks at the end.
        adjusts: Rule 3 moves events to the watermark, where some are held.
    """

    rest_seq: int
    seq: Array
    t: Array
    clock_us: Array
    least_us: Array
    is_late: Array
    timeline: Array
    source: Array
    split: Array
    last: Needed | None
    adjusts: bool

    @property
    def records(self) -> int:
        """How many records the log has."""
        return len(self.seq)

    @cached_property
    def ordered_us(self) -> Array:
        """`least_us` of the records that rule 3 judges, the least first."""
        return _judged_us(np.sort(self.least_us))

    def lost(self, tolerance_us: int) -> int:
        """Return how many are behind the watermark with an out-of-orderness."""
        return len(self.ordered_us) - int(np.searchsorted(self.ordered_us, tolerance_us, "right"))

    def held(self, most_us: int) -> Array:
        """Return the out-of-ordernesses up to one from which on one record more is held at the end, in order.

        It is held while `t >= W`.
        """
        if self.last is None or not len(self.last.watermark_us):
            return np.zeros(0, np.int64)
        watermark, by_clock = self.last.watermark_us, self.last.clock_us
        if len(watermark) > 1:
            watermark, by_clock = watermark[self.timeline], by_clock[self.timeline]
        behind = watermark - self.t
        if (watermark == NONE).any():
            behind[np.broadcast_to(watermark == NONE, behind.shape)] = 0
        if self.adjusts:  # an event that was moved to the last watermark is held there, whatever the tolerance
            is_moved = (self.least_us > 0) & (self.least_us < NEVER) & (behind == self.least_us)
            behind[is_moved] = 0
        place = np.flatnonzero((behind <= most_us) & (self.least_us >= 0))
        held, least = np.maximum(behind[place], 0), self.least_us[place]
        if self.adjusts:
            return np.sort(held)
        passed = np.broadcast_to(by_clock, behind.shape)[place]
        return np.sort(held[(self.t[place] >= passed) & (least <= held)])


def _judged_us(ordered_us: Array) -> Array:
    """Leave out the records that rule 3 does not judge, of `least_us` in order."""
    return ordered_us[np.searchsorted(ordered_us, 0) :]


@dataclass
class Gathered:
    """The records of a log while its segments are judged, one after the other.

    Attributes:
        end_seq: The end of the log.
        adjusts: Rule 3 moves events to the watermark, where some are held.
    """

    end_seq: int
    adjusts: bool = False
    _parts: list[dict[str, Array]] = field(default_factory=list)
    _needed: Needed | None = None

    def add(self, items: Items, needed: Needed, late: Array, source: Array | None, split: Array) -> None:
        """Add the records of a segment.

        Args:
            items: The items of the segment.
            needed: What they need.
            late: The places of the ones that are behind the watermark today.
            source: The source of each; None where there is one only.
            split: The split of each, by an index that is the same for all segments; empty without splits.
        """
        is_late = np.zeros(len(items.seq), bool)
        is_late[late] = True
        needed.least_us[items.role < JUDGED] = NOT_JUDGED
        self._parts.append(
            {
                "seq": items.seq,
                "t": items.t,
                "clock_us": items.clock,
                "least_us": needed.least_us,
                "is_late": is_late,
                "timeline": items.timeline,
                "source": np.zeros(0, np.int32) if source is None else source,
                "split": split,
            }
        )
        self._needed = needed

    def all(self) -> LogNeeds:
        """Return all records."""
        names = ("seq", "t", "clock_us", "least_us", "is_late", "timeline", "source", "split")
        columns = {name: self._column(name) for name in names}
        return LogNeeds(round(self.end_seq * FOUND_ON), **columns, last=self._needed, adjusts=self.adjusts)

    def _column(self, name: str) -> Array:
        parts = [part.pop(name) for part in self._parts]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int8), *parts])


def tried(needs: LogNeeds, today_us: Sequence[int], unit_us: int) -> list[int]:
    """Return the tolerances worth a look: 0, today's, and round ones up to the first with which nothing is lost."""
    ordered = needs.ordered_us
    positive = ordered[np.searchsorted(ordered, 0, "right") : np.searchsorted(ordered, NEVER)]
    longest = max(int(positive[-1]) if len(positive) else 0, *today_us, unit_us)
    lengths = [us for us in round_lengths(longest) if us % unit_us == 0 and us >= unit_us]
    shortest = int(positive[0]) if len(positive) else longest
    first = max((place for place, us in enumerate(lengths) if us <= shortest), default=0)
    return sorted({0, *today_us, *lengths[first:][1 + len(today_us) - MOST_TOLERANCES :]})


def tolerances(
    needs: LogNeeds, tolerances_us: Sequence[int], today_us: int | None, *, holds: bool
) -> tuple[Tolerance, ...]:
    """Return what each of some tolerances would do; `holds` is False where it is not known what it would hold."""
    held = needs.held(max(tolerances_us, default=0)) if holds else None
    of_lengths = []
    for us in tolerances_us:
        lost = needs.lost(us)
        later = None if today_us is None else us - today_us
        n_held = None if held is None else int(np.searchsorted(held, us, "right"))
        of_lengths.append(Tolerance(us, lost, lost / needs.records if needs.records else 0.0, later, n_held))
    return tuple(of_lengths)


def targets(needs: LogNeeds, unit_us: int) -> tuple[Target, ...]:
    """Return the tolerances for TARGETS."""
    part = int(np.searchsorted(needs.seq, needs.rest_seq))
    n_rest, least_of_rest = needs.records - part, needs.least_us[part:]
    # Of the first part all have to be in order but so many of the latest.
    allowed = [int(share * part + 1e-9) for share in TARGETS]
    most = min(max(allowed) + 1, part)
    latest = np.sort(np.partition(needs.least_us[:part], part - most)[part - most :]) if part else needs.least_us[:0]
    of_shares = list[Target]()
    for share, spare in zip(TARGETS, allowed, strict=True):
        least = max(int(latest[most - 1 - spare]), 0) if spare < most else 0
        if least == NEVER:
            of_shares.append(Target(share, None, None))
            continue
        tolerance_us = -(-a_little_longer(least) // unit_us) * unit_us
        lost = int(np.count_nonzero(least_of_rest > tolerance_us))
        of_shares.append(Target(share, tolerance_us, lost / n_rest if n_rest else None))
    return tuple(of_shares)


def delays(needs: LogNeeds, by: str, of: Array, values: Sequence[str]) -> list[Delay]:
    """Return how late the records of each value are, the values with most lost records first.

    Args:
        needs: The records.
        by: Whose values these are.
        of: The index of the value of each record; any where there is one value.
        values: The values.
    """
    if len(values) == 1:
        delay = _delay(by, values[0], needs.ordered_us, needs.is_late)
        return [] if delay is None else [delay]
    # Numbers of two bytes are sorted by counting.
    order = np.argsort(of.astype(np.uint16) if len(values) <= 1 << 16 else of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=len(values)))
    parts = {
        value: [slice(end - n, end)] for value, end, n in zip(values, ends, np.diff(ends, prepend=0), strict=True)
    }
    return _by_value(by, needs.least_us[order], needs.is_late[order], parts)


def delays_by_hour(needs: LogNeeds) -> list[Delay]:
    """Return how late the records of each hour of the clock in UTC are, as `delays` does."""
    clock, place, parts = needs.clock_us, 0, dict[str, list[slice]]()
    while place < len(clock):  # the clock never falls, so each hour of a day is a stretch of the log
        hour = int(clock[place]) // _HOUR_US
        end = int(np.searchsorted(clock, (hour + 1) * _HOUR_US))
        parts.setdefault(f"{hour % _HOURS:02}", []).append(slice(place, end))
        place = end
    return _by_value("hour", needs.least_us, needs.is_late, parts)


def _by_value(by: str, least_us: Array, is_late: Array, parts: Mapping[str, Sequence[slice]]) -> list[Delay]:
    """Return how late the records of each value are, which are some slices of all."""
    optional = []
    for value, slices in parts.items():
        least, late = (np.concatenate([rows[part] for part in slices]) for rows in (least_us, is_late))
        optional.append(_delay(by, value, _judged_us(np.sort(least)), late))
    return sorted(
        (delay for delay in optional if delay is not None),
        key=lambda delay: (-delay.lost, -delay.most_us, delay.value),
    )


def _delay(by: str, value: str, ordered_us: Array, is_late: Array) -> Delay | None:
    """Return how late some records are; `ordered_us` has what the judged ones need. None without any."""
    if not len(ordered_us):
        return None
    in_reach = ordered_us[: np.searchsorted(ordered_us, NEVER)]
    places = [min(max(int(np.ceil(part * len(ordered_us))), 1), len(in_reach)) - 1 for part in (0.5, 0.99, 1.0)]
    half, most, longest = (int(in_reach[place]) if len(in_reach) else 0 for place in places)
    return Delay(
        by=by,
        value=value,
        records=len(ordered_us),
        behind=len(ordered_us) - int(np.searchsorted(ordered_us, 0, "right")),
        half_us=half,
        most_us=most,
        longest_us=longest,
        lost=int(np.count_nonzero(is_late)),
    )
