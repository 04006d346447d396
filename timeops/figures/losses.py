"""Losses of a log: the shares of a day that were refused, and why: who pulled the watermark, or how late they were.

Here: values, made from rows of `dead_letters` and the log. Duplicates are left out: the spec asks for their removal.
An event in a gap, or filtered, is not a loss either, nor is one that missed some of its windows and reached others.
Not here: reading tables and the sentences (assets/alarms/losses/), the limits (timeops/spec/automation.py).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.timeops.rules.reasons import REASONS, Reason

SEQ, EVENT, ARRIVAL = "_arrival_seq", "event_us", "arrival_us"
"""Columns of the records and letters here: the number of a record, and instants in microseconds."""
LETTERS = pa.schema(
    [
        (SEQ, pa.int64()),
        *[(name, pa.string()) for name in ("_source", "_timeline", "stage", "reason", "window_name")],
        *[(name, pa.int64()) for name in (EVENT, ARRIVAL, "watermark_us", "lateness_us", "watermark_set_by")],
    ]
)
"""A dead letter, as far as it counts here."""

LOSSES = tuple(reason for reason in REASONS if reason is not Reason.DUPLICATE)
OF_TIME = (Reason.EARLY, Reason.LATE_ARRIVAL, Reason.OUT_OF_ORDER, Reason.WINDOW_CLOSED, Reason.JOIN_CLOSED)
"""The reasons that the time of an event decides: results for that time lack it."""

Integers = NDArray[np.int64]
Refused = Mapping[tuple[str, str], int]
"""Numbers of letters by the window that refused, empty before windows, and by reason."""


@dataclass(frozen=True)
class Loss:
    """The losses among some records.

    Attributes:
        column: The column that says whose they are, `_source` or `_timeline`; empty for all.
        value: Its value.
        is_arrived: True for the records that arrived in a period; False for the events of one, by their event time.
        period: The period, in words: `on 2026-03-04`.
        records: How many records these are.
        refused: The letters among them. An accepted event may have one for each window.
    """

    column: str
    value: str
    is_arrived: bool
    period: str
    records: int
    refused: Refused

    @property
    def worst_window(self) -> str:
        """The window that refused most; empty where none did."""
        by_window = Counter[str]()
        for (window, _), n in self.refused.items():
            by_window[window] += n if window else 0
        return max(by_window, key=lambda name: by_window[name], default="")

    @property
    def lost(self) -> int:
        """How many records did not come to the window that refused most; without windows, to any table of events."""
        return sum(self.by_reason.values())

    @property
    def by_reason(self) -> dict[str, int]:
        """The same by reason."""
        counts = Counter[str]()
        for (window, reason), n in self.refused.items():
            counts[reason] += n if window in ("", self.worst_window) else 0
        return dict(+counts)

    @property
    def percent(self) -> float:
        """The share that was lost, in percent."""
        return 100 * self.lost / self.records if self.records else 0.0

    def beyond(self, share: float, least: int) -> int:
        """Return how many more were lost than a share of them; 0 where there are fewer records than `least`."""
        allowed = int(self.records * share + 1e-9)  # the product with a decimal fraction may be a hair below
        return max(self.lost - allowed, 0) if self.records >= least else 0


def refused_by(letters: pa.Table, subject: str | None, day: Integers) -> dict[tuple[str, int], Refused]:
    """Count letters, which are LETTERS without duplicates, by the value of a column and by day.

    Args:
        letters: The letters.
        subject: The column; None counts all of them as one. Rows without a value are left out.
        day: The day of each, as any number.
    """
    values = pa.repeat("", len(letters)) if subject is None else letters[subject]
    columns = {"of": values, "day": day, "window": letters["window_name"], "reason": letters["reason"]}
    counted = pa.table(columns).group_by(["of", "day", "window", "reason"]).aggregate([([], "count_all")])
    by_group: dict[tuple[str, int], dict[tuple[str, str], int]] = defaultdict(dict)
    for row in counted.to_pylist():
        if row["of"] is not None:
            by_group[row["of"], row["day"]][row["window"] or "", row["reason"]] = row["count_all"]
    return dict(by_group)


_REASONS = {str(reason): reason for reason in REASONS}
FEW = 3
"""So many records may have pulled the watermark, and be named for it, though they have nothing in common."""
MOST = 0.5
"""From this share on it is most of them."""
MOST_OF_ALL = 0.9
LIKELY = (0.5, 0.9, 0.99)
_ENOUGH = 10
"""Of so many records the times are looked at."""
_RECORDS_OF_ONE = 50
"""Values with fewer records on average are rarely late for themselves, whatever they are."""
_NEVER = -(2**63)


@dataclass(frozen=True)
class Trait:
    """A value that most of some records have in common, and few of the others."""

    column: str
    value: object


@dataclass(frozen=True)
class Pull:
    """The records that set the watermark which shut most letters out.

    Attributes:
        trait: What they have in common; None where they are a few records that have nothing in common.
        seq: The one of them whose watermark shut most letters out.
        event_us: Its event time.
        arrival_us: Its arrival.
        letters: How many letters a watermark shut out that they set.
        alone: How many the one at `seq` did.
        of: How many any watermark shut out that an event set.
        ahead_us: How far half of these letters had the watermark's event ahead of its own arrival, at least; None
            where arrivals do not follow event times, as where all was read at once.
        behind_us: How far half of the letters were before the event that set the watermark, at least.
    """

    trait: Trait | None
    seq: int
    event_us: int
    arrival_us: int | None
    letters: int
    alone: int
    of: int
    ahead_us: int | None
    behind_us: int


@dataclass(frozen=True)
class Shortfall:
    """By how much letters of one reason missed a tolerance.

    Attributes:
        reason: The reason.
        window: The window that refused them; empty for none.
        letters: How many there are.
        more_us: How much more of the tolerance lets in each of LIKELY of them; empty where none would.
        trait: What most of them have in common; None for nothing.
    """

    reason: Reason
    window: str
    letters: int
    more_us: Mapping[float, int]
    trait: Trait | None


@dataclass(frozen=True)
class Habit:
    """A habit of the times of some records, in comparison with the others.

    Attributes:
        kind: `ahead`: their clock is ahead by a constant. `slow`: it is slow by one, or they are always so long
            under way. `bursts`: they come together after silences.
        length_us: How far ahead or late half of them are, or how long half of the silences last.
    """

    kind: str
    length_us: int


def habit_of(records: pa.Table, other_records: pa.Table | None) -> Habit | None:
    """Return what the times of some records are like; None where nothing is special, or arrivals do not say it.

    Args:
        records: EVENT and ARRIVAL, in the order of the log.
        other_records: The other records around; None for none.
    """
    timed_records = records.filter(pc.and_(pc.is_valid(records[EVENT]), pc.is_valid(records[ARRIVAL])))
    if len(timed_records) < _ENOUGH or not is_followed(timed_records):
        return None
    event, arrival = _numbers(timed_records[EVENT]), _numbers(timed_records[ARRIVAL])
    lag = arrival - event
    low, half, high = (int(us) for us in np.quantile(lag, (0.1, 0.5, 0.9)))
    gaps, happened = np.diff(arrival), np.diff(event)
    is_close = 4 * gaps < np.abs(happened)  # they came faster than they happened: in a burst, in order
    silences = gaps[:-1][is_close[1:] & ~is_close[:-1]]  # each is before a burst
    in_order = np.count_nonzero(is_close & (happened > 0))
    is_burst = 2 * in_order >= len(gaps) and in_order >= MOST_OF_ALL * np.count_nonzero(is_close)
    if is_burst and len(silences) and np.median(silences) > np.median(gaps):
        return Habit("bursts", int(np.median(silences)))
    usual = 0
    if other_records is not None:
        timed = other_records.filter(pc.and_(pc.is_valid(other_records[EVENT]), pc.is_valid(other_records[ARRIVAL])))
        usual = int(np.median(_numbers(timed[ARRIVAL]) - _numbers(timed[EVENT]))) if len(timed) else 0
    if high < 0 and 2 * (high - low) <= -half:
        return Habit("ahead", -half)
    slow = half - max(usual, 0)
    if 2 * slow > half and 4 * (high - low) <= slow:
        return Habit("slow", slow)
    return None


def is_followed(records: pa.Table) -> bool:
    """Return whether arrivals follow event times; they do not where all was read at once."""
    timed = records.filter(pc.and_(pc.is_valid(records[EVENT]), pc.is_valid(records[ARRIVAL])))
    if not len(timed):
        return False
    (first, last), (begin, end) = (np.quantile(_numbers(timed[name]), (0.25, 0.75)) for name in (EVENT, ARRIVAL))
    return bool(2 * (end - begin) >= last - first)


def pulls_of(letters: pa.Table) -> pa.Table:
    """Return the records that set the watermarks of letters: `_arrival_seq`, `letters`, `watermark_us`."""
    set_by = letters.filter(pc.is_valid(letters["watermark_set_by"]))
    pulls = set_by.group_by("watermark_set_by").aggregate([([], "count_all"), ("watermark_us", "max")])
    pulls = pulls.select(["watermark_set_by", "count_all", "watermark_us_max"])
    return pulls.rename_columns([SEQ, "letters", "watermark_us"]).sort_by(
        [("letters", "descending"), (SEQ, "ascending")]
    )


def trait_of(seqs: Integers, weights: Integers, records: pa.Table, columns: Sequence[str]) -> Trait | None:
    """Return what most of some records have in common, and at most half as large a share of all records.

    Args:
        seqs: The records; only the ones that are among `records` count.
        weights: How often each counts.
        records: `_arrival_seq`, in order, and columns.
        columns: The columns, first the ones that a spec would name. Of equally telling ones the first counts.
    """
    place = np.searchsorted(_numbers(records[SEQ]), seqs)
    is_there = place < len(records)
    is_there[is_there] = _numbers(records[SEQ])[place[is_there]] == seqs[is_there]
    if not is_there.any():
        return None
    at, weight = place[is_there], weights[is_there]
    best, margin = None, 0.0
    for name in columns:
        coded = records[name].combine_chunks().dictionary_encode()
        values = coded.dictionary
        if 4 * len(values) > len(records) or not len(values):  # an id: each has its own
            continue
        codes = _numbers(pc.fill_null(coded.indices.cast(pa.int64()), len(values)))
        shares = np.bincount(codes[at], weight, len(values) + 1) / weight.sum()
        usual = np.bincount(codes, minlength=len(values) + 1) / len(codes)
        most = int(np.argmax(shares[:-1]))
        excess = float(shares[most] - usual[most])
        if shares[most] >= MOST and usual[most] <= shares[most] / 2 and excess > margin + 0.05:
            best, margin = Trait(name, values[most].as_py()), excess
    return best


def pull_of(
    letters: pa.Table, pulls: pa.Table, records: pa.Table, columns: Sequence[str], tolerance_us: int
) -> Pull | None:
    """Return who pulled the watermark ahead of the letters; None where it is the letters that came late.

    Args:
        letters: LETTERS.
        pulls: The records that set their watermarks, as of `pulls_of`.
        records: Records around the letters and the ones in `pulls` that count most, in the order of the log:
            `_arrival_seq`, EVENT and ARRIVAL (null where unknown), and `columns`.
        columns: The columns that may say who they are.
        tolerance_us: How far the watermark is below the event that sets it.

    `Pull.letters` counts the letters of a few records; where there is a trait, the caller has to count.
    """
    if not len(pulls):
        return None
    seqs, weights = _numbers(pulls[SEQ]), _numbers(pulls["letters"])
    total = int(weights.sum())
    trait = trait_of(seqs, weights, records, columns)
    of_few = int(weights[:FEW].sum())
    if trait is None and of_few < MOST * total:
        return None
    behind = letters.filter(pc.and_(pc.is_valid(letters["watermark_set_by"]), pc.is_valid(letters[EVENT])))
    gaps = _numbers(behind["watermark_us"]) + tolerance_us - _numbers(behind[EVENT])
    follows = is_followed(records)
    ahead = _ahead_us(pulls, records, tolerance_us)
    if not _are_ahead(behind, pulls, records, trait, tolerance_us, ahead_us=ahead if follows else None):
        return None
    first = records.filter(pc.equal(records[SEQ], int(seqs[0])))
    return Pull(
        trait=trait,
        seq=int(seqs[0]),
        event_us=pulls["watermark_us"][0].as_py() + tolerance_us,
        arrival_us=first[ARRIVAL][0].as_py() if len(first) else None,
        letters=of_few,
        alone=int(weights[0]),
        of=total,
        ahead_us=ahead if follows else None,
        behind_us=int(np.median(gaps)),
    )


def shortfalls_of(letters: pa.Table, records: pa.Table, columns: Sequence[str]) -> list[Shortfall]:
    """Return by how much letters missed their tolerances, by reason and window, the most frequent first."""
    shortfalls = []
    counted = letters.group_by(["reason", "window_name"]).aggregate([([], "count_all")]).to_pylist()
    for row in sorted(counted, key=lambda row: (-row["count_all"], row["reason"])):
        window = row["window_name"]
        of_window = pc.is_null(letters["window_name"]) if window is None else pc.equal(letters["window_name"], window)
        missed = letters.filter(pc.and_(pc.equal(letters["reason"], row["reason"]), of_window))
        lateness_us = np.sort(_numbers(missed["lateness_us"].drop_null()))
        places = (
            {part: max(int(np.ceil(part * len(lateness_us))) - 1, 0) for part in LIKELY} if len(lateness_us) else {}
        )
        trait = trait_of(_numbers(missed[SEQ]), np.ones(len(missed), np.int64), records, columns)
        more_us = {part: int(lateness_us[place]) for part, place in places.items()}
        shortfalls.append(Shortfall(_REASONS[row["reason"]], window or "", row["count_all"], more_us, trait))
    return shortfalls


def _ahead_us(pulls: pa.Table, records: pa.Table, tolerance_us: int) -> int | None:
    """Return how far records that set watermarks were ahead of their arrival, the median over letters."""
    seqs = _numbers(records[SEQ])
    place = np.minimum(np.searchsorted(seqs, _numbers(pulls[SEQ])), len(seqs) - 1)
    is_there = (seqs[place] == _numbers(pulls[SEQ])) & np.asarray(pc.is_valid(records[ARRIVAL].take(pa.array(place))))
    if not is_there.any():
        return None
    at = place[is_there]
    lead = _numbers(pulls["watermark_us"])[is_there] + tolerance_us - _numbers(records[ARRIVAL].take(pa.array(at)))
    order = np.argsort(lead)
    weight = np.cumsum(_numbers(pulls["letters"])[is_there][order])
    return int(lead[order][np.searchsorted(weight, weight[-1] / 2)])


def _would_pass(letters: pa.Table, records: pa.Table, groups: Integers, tolerance_us: int) -> float:
    """Return the share of the letters among the records that would not be late for the other events.

    Args:
        letters: LETTERS.
        records: `_arrival_seq` and EVENT, in the order of the log.
        groups: To which group each record belongs; an event is late only for its group. Below zero: it is not there.
        tolerance_us: How far the watermark is below the latest event.
    """
    events = np.asarray(pc.fill_null(records[EVENT], _NEVER).to_numpy(), np.int64)
    is_there = (groups >= 0) & (events != _NEVER)
    seqs, times, group = _numbers(records[SEQ])[is_there], events[is_there], groups[is_there]
    if not len(seqs):
        return 1.0
    order = np.argsort(group, kind="stable")
    step = int(times.max() - times.min()) + 1
    latest = np.maximum.accumulate(
        times[order] - times.min() + group[order] * float(step)
    )  # groups follow each other
    late = times[order] - times.min() + group[order] * float(step) < latest - tolerance_us
    is_letter = np.isin(seqs[order], _numbers(letters[SEQ]))
    return float(1 - late[is_letter].mean()) if is_letter.any() else 0.0


def over_of(letters: pa.Table, records: pa.Table, columns: Sequence[str], tolerance_us: int) -> str | None:
    """Return the first column by whose values nearly no letter would be late, if each had a watermark of its own."""
    for name in columns:
        coded = records[name].combine_chunks().dictionary_encode()
        values = len(coded.dictionary)
        if not 1 < values <= len(records) / _RECORDS_OF_ONE:
            continue
        groups = _numbers(pc.fill_null(coded.indices.cast(pa.int64()), values))
        if _would_pass(letters, records, groups, tolerance_us) >= MOST_OF_ALL:
            return name
    return None


def _are_ahead(
    behind: pa.Table,
    pulls: pa.Table,
    records: pa.Table,
    trait: Trait | None,
    tolerance_us: int,
    *,
    ahead_us: int | None,
) -> bool:
    """Return whether the events that set watermarks were ahead of the others, rather than the letters late.

    Without them most letters would pass; and where arrivals say it, they are further from the usual than the letters.
    """
    is_ahead = pc.is_in(records[SEQ], pulls[SEQ][:FEW].combine_chunks())
    if trait is not None:
        is_ahead = pc.fill_null(pc.equal(records[trait.column], trait.value), False)
    groups = np.where(np.asarray(is_ahead.to_numpy(), bool), -1, 0)
    if _would_pass(behind, records, groups, tolerance_us) < MOST:
        return False
    if ahead_us is None:
        return True
    usual = records.filter(pc.and_(pc.is_valid(records[EVENT]), pc.is_valid(records[ARRIVAL])))
    late = behind.filter(pc.is_valid(behind[ARRIVAL]))
    delay = max(float(np.median(_numbers(usual[ARRIVAL]) - _numbers(usual[EVENT]))), 0.0)
    lag = float(np.median(_numbers(late[ARRIVAL]) - _numbers(late[EVENT]))) if len(late) else 0.0
    return ahead_us + delay > lag - delay


def _numbers(column: pa.ChunkedArray) -> Integers:
    return np.asarray(column.to_numpy(), np.int64)
