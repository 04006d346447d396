"""Advice on an out-of-orderness: what each would refuse of a log, which one loses how much, who comes how late.

Here: numbers about all records of a log, made of what each needs to be in order. Not here: the pass over the log
(watermark/tolerances.py), reading it, the words (assets/questions/advice.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemark.timeops.durations import a_little_longer, round_lengths
from tidemark.timeops.watermark.fold import JUDGED, NEVER, NONE, Array, Items
from tidemark.timeops.watermark.tolerances import Needed

MOST_TOLERANCES = 50
TARGETS = (0.01, 0.001, 0.0001)
"""The shares of lost records for which a tolerance is looked for."""
FOUND_ON = 0.7
"""The part of the log, from its beginning, on which it is found; it is verified on the rest."""
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


@dataclass(frozen=True)
class LogNeeds:
    """The records of a log that rule 3 judges, in their order, and what each needs to be in order.

    Attributes:
        records: How many records the log has, judged by rule 3 or not.
        rest_seq: The first record of the part of the log on which tolerances are verified.
        rest: How many records that part has.
        seq: `_arrival_seq`.
        least_us: The least out-of-orderness with which each is in order, NEVER for none.
        is_late: Whether today's rules find it behind the watermark.
        timeline: The index of its timeline.
        source: The place of its source in the rules.
        split: The index of its split; empty without splits.
        hour: The hour of the clock in UTC.
        held_us: The least out-of-orderness with which it is still held at the end, NEVER where none holds it.
    """

    records: int
    rest_seq: int
    rest: int
    seq: Array
    least_us: Array
    is_late: Array
    timeline: Array
    source: Array
    split: Array
    hour: Array
    held_us: Array

    def lost(self, tolerance_us: int) -> int:
        """Return how many are behind the watermark with an out-of-orderness."""
        return int(np.count_nonzero(self.least_us > tolerance_us))


@dataclass
class Gathered:
    """The records of a log while its segments are judged, one after the other.

    Attributes:
        end_seq: The end of the log.
        adjusts: Rule 3 moves events to the watermark, where some are held.
    """

    end_seq: int
    adjusts: bool = False
    records: int = 0
    _rest: int = 0
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
        self.records += len(items.seq)
        self._rest += len(items.seq) - int(np.searchsorted(items.seq, self._rest_seq))
        judged, is_late = items.role >= JUDGED, np.zeros(len(items.seq), bool)
        is_late[late] = True
        hour = np.where(items.clock == NONE, 0, items.clock // _HOUR_US % _HOURS)
        columns = {
            "seq": items.seq,
            "t": items.t,
            "least_us": needed.least_us,
            "is_late": is_late,
            "timeline": items.timeline,
            "source": np.zeros(len(judged), np.int16) if source is None else source,
            "split": split,
            "hour": hour.astype(np.int8),
        }
        is_whole = bool(judged.all())
        self._parts.append({n: rows if is_whole or not len(rows) else rows[judged] for n, rows in columns.items()})
        self._needed = needed

    @property
    def _rest_seq(self) -> int:
        return round(self.end_seq * FOUND_ON)

    def all(self) -> LogNeeds:
        """Return all records."""
        names = ("seq", "t", "least_us", "is_late", "timeline", "source", "split", "hour")
        rows = {name: self._column(name) for name in names}
        t = rows.pop("t")
        return LogNeeds(
            self.records,
            self._rest_seq,
            self._rest,
            **rows,
            held_us=self._held(t, rows["timeline"], rows["least_us"]),
        )

    def _column(self, name: str) -> Array:
        parts = [part.pop(name) for part in self._parts]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int8), *parts])

    def _held(self, t: Array, timeline: Array, least_us: Array) -> Array:
        """Return the least out-of-orderness with which each is held, which is while `t >= W`."""
        if self._needed is None or not len(t):
            return np.zeros(0, np.int64)
        watermark, by_clock = self._needed.watermark_us, self._needed.clock_us
        if len(watermark) > 1:
            watermark, by_clock = watermark[timeline], by_clock[timeline]
        held: Array = np.maximum(watermark - t, 0)
        held[np.broadcast_to(watermark == NONE, held.shape)] = 0
        if self.adjusts:  # an event that was moved to the last watermark is held there, whatever the tolerance
            moved = (least_us > 0) & (least_us < NEVER)
            held[moved & (watermark - t == least_us)] = 0
            return held
        held[(t < by_clock) | (least_us > held)] = NEVER
        return held


def tried(needs: LogNeeds, today_us: Sequence[int], unit_us: int) -> list[int]:
    """Return the tolerances worth a look: 0, today's, and round ones up to the first with which nothing is lost."""
    positive = needs.least_us[(needs.least_us > 0) & (needs.least_us < NEVER)]
    longest = max(int(positive.max(initial=0)), *today_us, unit_us)
    whole = [us for us in round_lengths(longest) if us % unit_us == 0 and us >= unit_us]
    shortest = int(positive.min(initial=longest)) if len(positive) else longest
    first = max((place for place, us in enumerate(whole) if us <= shortest), default=0)
    return sorted({0, *today_us, *whole[first:][1 + len(today_us) - MOST_TOLERANCES :]})


def tolerances(
    needs: LogNeeds, tolerances_us: Sequence[int], today_us: int | None, *, holds: bool
) -> tuple[Tolerance, ...]:
    """Return what each of some tolerances would do; `holds` is False where it is not known what it would hold."""
    held = np.sort(needs.held_us[needs.held_us <= max(tolerances_us, default=0)])
    outcomes = []
    for us in tolerances_us:
        lost = int(np.count_nonzero(needs.least_us > us))
        later = None if today_us is None else us - today_us
        held_count = int(np.searchsorted(held, us, "right")) if holds else None
        outcomes.append(Tolerance(us, lost, lost / needs.records if needs.records else 0.0, later, held_count))
    return tuple(outcomes)


def targets(needs: LogNeeds, unit_us: int) -> tuple[Target, ...]:
    """Return the tolerances for TARGETS."""
    place = int(np.searchsorted(needs.seq, needs.rest_seq))
    after, part, rest = needs.least_us[place:], needs.records - needs.rest, needs.rest
    # Of the first part all have to be in order but so many of the latest.
    allowed = [int(share * part + 1e-9) for share in TARGETS]
    last = [max(place - 1 - spare, 0) for spare in allowed]
    before = np.partition(needs.least_us[:place], sorted({*last})) if place else needs.least_us[:0]
    reached = []
    for share, spare, at in zip(TARGETS, allowed, last, strict=True):
        least = int(before[at]) if spare < place else 0
        if least == NEVER:
            reached.append(Target(share, None, None))
            continue
        tolerance_us = -(-a_little_longer(least) // unit_us) * unit_us
        lost = int(np.count_nonzero(after > tolerance_us))
        reached.append(Target(share, tolerance_us, lost / rest if rest else None))
    return tuple(reached)


def delays(needs: LogNeeds, by: str, of: Array, values: Sequence[str]) -> Iterator[Delay]:
    """Yield how late the records of each value are, the values with most lost records first.

    Args:
        needs: The records.
        by: Whose values these are.
        of: The index of the value of each record.
        values: The values.
    """
    if len(values) == 1:
        yield from [_delay(by, values[0], needs.least_us, needs.is_late)] if len(of) else []
        return
    order = np.argsort(of, kind="stable")
    begins = np.searchsorted(of[order], np.arange(len(values) + 1))
    by_value = []
    for number, value in enumerate(values):
        rows = order[begins[number] : begins[number + 1]]
        if len(rows):
            by_value.append(_delay(by, value, needs.least_us[rows], needs.is_late[rows]))
    yield from sorted(by_value, key=lambda delay: (-delay.lost, -delay.most_us, delay.value))


def _delay(by: str, value: str, least_us: Array, is_late: Array) -> Delay:
    finite = least_us if least_us.max() < NEVER else least_us[least_us < NEVER]
    places = [min(max(int(np.ceil(part * len(least_us))), 1), len(finite)) - 1 for part in (0.5, 0.99, 1.0)]
    ordered = np.partition(finite, sorted({*places})) if len(finite) else np.zeros(1, np.int64)
    half, most, longest = (int(ordered[max(place, 0)]) for place in places)
    return Delay(
        by=by,
        value=value,
        records=len(least_us),
        behind=int(np.count_nonzero(least_us)),
        half_us=half,
        most_us=most,
        longest_us=longest,
        lost=int(np.count_nonzero(is_late)),
    )
