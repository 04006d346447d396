"""Counts of what became of a segment of the log, by outcome and window.

Here: sums that conservation and the metrics are made of (A2: early, late and out-of-order input events, dropped and
adjusted alike). Not here: the decisions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.events.adjustment import (
    ARRIVAL_US,
    EVENT_US,
    KEPT,
    MOVED_BY,
    REASONS,
    SOURCE_PLACE,
    WHY,
    Adjusted,
)
from tidemark.timeops.narrow import integers
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.watermark.fold import JUDGED, NONE, Array
from tidemark.timeops.windows.drained import told_of
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.membership import DRAINED, ENDS, FILTERED, MISSED, unfit

MOVED = ("early", "late", "out_of_order", KEPT)
"""What `_adjusted_by` may hold, in the order of the bits of `Outcomes.moved`."""

FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US = "furthest_ahead_us", "furthest_ahead_seq", "furthest_ahead_t_us"
"""How far the accepted event that was furthest ahead of the clock as it came was ahead of it, its `_arrival_seq` and
its time, microseconds."""

REFUSED = "refused."  # how the count of a reason begins
_OUT_OF_ORDER = 1 + REASONS.index("out_of_order")
_PLACES = ("in_windows", "in_gap", "filtered", "bad_expression", "window_closed", "missed_some")


@dataclass(frozen=True)
class Outcomes:
    """What became of each record of a segment, in the order of the log; instants are microseconds, NONE for none.

    Attributes:
        seq: `_arrival_seq`.
        reason: Which of REASONS refused the record, counted from 1; 0 of an accepted event.
        moved: Which of MOVED did so to an accepted event, bit by bit.
        arrival: When it arrived.
        event: Its event time. Where arrival is the event time, both are NONE.
        t: What rule 3 judged; NONE of a record that it did not judge.
        clock: The clock of the log.
        watermark: The watermark that the event was behind.
        source: The place of its source in `sources`; their number for another source.
        sources: The names of the sources of the spec.
    """

    seq: Array
    reason: Array
    moved: Array
    arrival: Array
    event: Array
    t: Array
    clock: Array
    watermark: Array
    source: Array
    sources: tuple[str, ...]

    @staticmethod
    def of(judged: Adjusted) -> "Outcomes":
        """Return what became of the records of one log; the segment must be judged with `Execution.counts`."""
        assert judged.told is not None
        told, [log] = judged.told, judged.watermarks.logs
        items, behind = log.rises.items, log.rises.found.behind
        codes = {
            name: np.array(told[name].to_numpy()) if name in told.column_names else np.zeros(len(told), np.int8)
            for name in (WHY, MOVED_BY, SOURCE_PLACE)
        }
        instants = {
            name: integers(told[name]) if name in told.column_names else np.full(len(told), NONE)
            for name in (ARRIVAL_US, EVENT_US)
        }
        policy = judged.rules.time.out_of_order
        if policy == "drop":
            codes[WHY][behind["item"]] = _OUT_OF_ORDER
        else:
            codes[MOVED_BY][behind["item"]] |= 1 << MOVED.index("out_of_order" if policy == "adjust" else KEPT)
        watermark = np.full(len(told), NONE)
        watermark[behind["item"]] = behind["watermark"]
        return Outcomes(
            seq=items.seq,
            reason=codes[WHY],
            moved=codes[MOVED_BY],
            arrival=instants[ARRIVAL_US],
            event=instants[EVENT_US],
            t=np.where(items.role == JUDGED, items.t, NONE),
            clock=items.clock,
            watermark=watermark,
            source=codes[SOURCE_PLACE],
            sources=tuple(source.name for source in judged.rules.sources),
        )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.seq)

    def part(self, some: slice) -> "Outcomes":
        """Return records that follow one another."""
        arrays = {name: value[some] for name, value in vars(self).items() if name != "sources"}
        return replace(self, **arrays)

    @property
    def accepted(self) -> int:
        """How many events are accepted."""
        return int((self.reason == 0).sum())

    @property
    def is_kept(self) -> Array:
        """BOOLEAN: it is accepted out of order, with its own time."""
        return np.asarray((self.moved & (1 << MOVED.index(KEPT)) != 0) & (self.reason == 0))

    @property
    def final(self) -> Array:
        """`_timestamp` of accepted events."""
        is_moved = self.moved & (1 << MOVED.index("out_of_order")) != 0
        return np.where(is_moved, self.watermark, self.t)

    def moved_by_source(self) -> dict[tuple[str, str], int]:
        """Count the accepted events of each source by what moved them, or kept them out of order."""
        is_moved = (self.moved != 0) & (self.reason == 0)
        return {
            (name, mover): int(((self.source[is_moved] == s) & (self.moved[is_moved] & (1 << bit) != 0)).sum())
            for s, name in enumerate((*self.sources, ""))
            for bit, mover in enumerate(MOVED)
        }

    def refused_by_source(self) -> dict[tuple[str, str], int]:
        """Count the refused records of each source by reason; a source that the spec lacks has an empty name."""
        source, reason = (one[self.reason != 0].astype(np.int64) for one in (self.source, self.reason))
        pairs, counts = np.unique(source * (len(REASONS) + 1) + reason, return_counts=True)
        names = (*self.sources, "")
        return {
            (names[pair // (len(REASONS) + 1)], REASONS[pair % (len(REASONS) + 1) - 1]): int(n)
            for pair, n in zip(pairs, counts, strict=True)
        }

    def furthest_ahead(self) -> dict[str, int]:
        """Return FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US: of several events the first one's; empty without any."""
        own = np.flatnonzero(self.reason == 0)
        if not len(own):
            return {}
        ahead = self.t[own] - self.clock[own]
        place = np.argmax(ahead)
        told = (ahead[place], self.seq[own[place]], self.t[own[place]])
        return dict(zip((FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US), map(int, told), strict=True))


def counts_by_window(
    events: DataFrame, accepted: int, time: TimeSpec, windows: Sequence[WindowSpec], drained: Mapping[str, DataFrame]
) -> dict[str, int]:
    """Count what became of the accepted events of a segment in each window, by a job if some window asks for one.

    Args:
        events: The accepted events.
        accepted: How many they are.
        time: The spec's `time`.
        windows: The spec's windows of events.
        drained: By window those that an earlier flush closed, see windows/drained.py.

    Returns:
        Per window `<window>.in_windows`, `.in_gap`, `.filtered`, `.bad_expression` (an aggregate fails on the event),
        `.window_closed` (these five are all that are accepted) and `.missed_some` (in some window, late for another).
        Where windows merge, only beside others an event shows late: there `late_counts` tells how many of
        `.in_windows` are `.window_closed`.
    """
    placed, conditions = _with_places(events, time, windows, drained)
    names = [f"{window.name}.{place}" for window in windows for place in _PLACES]
    found = {name: accepted if name.endswith(".in_windows") else 0 for name in names}
    if conditions:
        numbered = {f"n{number}": name for number, name in enumerate(conditions)}
        sums = [F.count_if(conditions[name]).alias(n) for n, name in numbered.items()]
        found |= {numbered[n]: count for n, count in placed.agg(*sums).collect()[0].asDict().items()}
    return found


def _with_places(
    accepted: DataFrame, time: TimeSpec, windows: Sequence[WindowSpec], drained: Mapping[str, DataFrame]
) -> tuple[DataFrame, dict[str, Column]]:
    """The events with what conditions on them need, and these by the name of their count; none of a window of all."""
    counts: dict[str, Column] = {}
    placed = accepted
    for number, window in enumerate(windows):
        names = {name: f"{name}{number}" for name in (ENDS, MISSED, FILTERED)}
        kind, fails = kind_of(window), unfit(accepted, window)
        of_window = None if kind.merges else drained.get(window.name)  # else `late_counts` says it
        if of_window is None and fails is None and _holds_all(window, time):
            continue
        told = kind.place(told_of(placed, of_window, window))
        placed = told.drop(DRAINED).withColumnsRenamed(names)
        found = _of_window(names)
        found["bad_expression"] = F.lit(False)
        if fails is not None:
            own = f"__tm_unfit{number}"
            placed = placed.withColumn(own, fails)
            found |= {"bad_expression": F.col(own), "filtered": found["filtered"] & ~F.col(own)}
        counts |= {f"{window.name}.{name}": condition for name, condition in found.items()}
    return placed, counts


def late_counts(late: Mapping[str, DataFrame]) -> dict[str, int]:
    """How many events came too late for each window of a kind that merges, by one job if there are such windows.

    Args:
        late: By window the events; under drop and adjust there are some only where a flush had closed windows before.
    """
    if not late:
        return {}
    names = [events.select(F.lit(window).alias("window")) for window, events in late.items()]
    found = reduce(DataFrame.unionByName, names).groupBy("window").agg(F.count("*").alias("n")).collect()
    return dict.fromkeys(late, 0) | {row["window"]: row["n"] for row in found}


def without_late(counts: Mapping[str, int], late: Mapping[str, int]) -> dict[str, int]:
    """Counts of accepted events with those that `late_counts` found moved to where they belong."""
    moved = dict(counts)
    for window, n in late.items():
        moved[f"{window}.in_windows"] -= n
        moved[f"{window}.window_closed"] = n
    return moved


def _holds_all(window: WindowSpec, time: TimeSpec) -> bool:
    """Whether a window of every accepted event holds it, or can tell by others alone that it is late."""
    has_gaps = window.kind == "hopping" and window.end_step_us > window.size_us
    return time.out_of_order != "keep" and window.where is None and not has_gaps


def _of_window(names: dict[str, str]) -> dict[str, Column]:
    inside, missed = F.size(names[ENDS]) > 0, F.size(names[MISSED]) > 0
    filtered = F.col(names[FILTERED])
    return {
        "in_windows": inside,
        "in_gap": ~filtered & ~inside & ~missed,
        "filtered": filtered,
        "window_closed": missed & ~inside,
        "missed_some": missed & inside,
    }


def refused(counts: Mapping[str, int]) -> dict[str, int]:
    """Dead letters of the stages `ingest` and `time`, by reason, as the stored counts of a batch have them."""
    found = {name.removeprefix(REFUSED): n for name, n in counts.items() if name.startswith(REFUSED)}
    return {reason: n for reason, n in found.items() if n}


def of_windows(outcome: str, counts: Mapping[str, int], windows: Iterable[str]) -> dict[str, int]:
    """By window how many events had an outcome, such as `window_closed`; of windows that had some."""
    found = {name: counts.get(f"{name}.{outcome}", 0) for name in windows}
    return {name: n for name, n in found.items() if n}


def dead_letters_by_reason(counts: Mapping[str, int], windows: Iterable[str]) -> Counter[str]:
    """Dead letters of records in all stages, by reason."""
    found = Counter(refused(counts))
    names = tuple(windows)
    for reason in ("window_closed", "bad_expression"):
        found[reason] += sum(of_windows(reason, counts, names).values())
    return +found
