"""How many events of a segment came to which outcome, by window.

Here: sums that conservation and the metrics are made of (A2: early, late and out-of-order input events, dropped and
adjusted alike). Not here: the decisions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import SOURCE
from tidemark.timeops.engine import Outcome
from tidemark.timeops.events.adjustment import KEPT, MOVED, Adjusted
from tidemark.timeops.events.stored_times import COUNTED_ARRIVAL_US, COUNTED_EVENT_US, MOVED_BY, SOURCE_PLACE, WHY
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.rules.reasons import OF_WINDOWS, REASONS, Reason
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.watermark.fold import AHEAD, JUDGED, Items
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.segment import ENDS, FILTERED, FLUSHED_WINDOWS, MISSED, unfit, with_flushed_windows

FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US = "furthest_ahead_us", "furthest_ahead_seq", "furthest_ahead_t_us"
"""Of the accepted event that came furthest ahead of the clock: how far ahead it was, its `_arrival_seq` and its time;
instants and lengths are microseconds."""

PART = 1_000_000
"""Records whose instants are held at once."""

_OUT_OF_ORDER = 1 + REASONS.index(Reason.OUT_OF_ORDER)
_PLACES = ("in_windows", "in_gap", "filtered", *OF_WINDOWS, "missed_some")


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of the records of a segment, in the order of the log; instants are microseconds, NONE for none.

    In a large segment each array of instants takes a good part of the memory of a run. So the arrays that
    the loop does not have are made when they are asked for, see `parts`.

    Attributes:
        items: What the loop was told, of the whole segment.
        behind: BEHIND: the events that are behind the watermark, with the watermark.
        instants: COUNTED_ARRIVAL_US and COUNTED_EVENT_US of the whole segment; empty where arrival is the event time.
        place: Which items these are.
        reason: Which of REASONS refused the record, counted from 1; 0 of an accepted event.
        moved: Which of MOVED did so to an accepted event, bit by bit.
        source: The place of its source in `sources`; their number for another source.
        sources: The names of the sources of the spec.
        admitted: Whether an operator has let the record in, whatever a rule says of it.
        timelines: The timelines, in the order of their numbers in `items`.
    """

    items: Items
    behind: Array
    instants: Mapping[str, Array]
    place: range
    reason: Array
    moved: Array
    source: Array
    sources: tuple[str, ...]
    admitted: Array
    timelines: pa.Array

    @staticmethod
    def of(judged: Adjusted) -> "Outcomes":
        """Return what became of the records of one log; the segment must be judged with `Segment.counts`."""
        assert judged.count_columns is not None
        columns, [log] = judged.count_columns, judged.watermarks.logs
        items, behind = log.rises.items, log.rises.findings.out_of_order
        none = np.zeros(len(items.seq), np.int8)
        codes = {name: columns.get(name, none).copy() for name in (WHY, MOVED_BY, SOURCE_PLACE)}
        policy = judged.rules.time.out_of_order
        if policy == "drop":
            codes[WHY][behind["item"]] = _OUT_OF_ORDER
        else:
            codes[MOVED_BY][behind["item"]] |= 1 << MOVED.index("out_of_order" if policy == "adjust" else KEPT)
        return Outcomes(
            items=items,
            behind=behind,
            instants={name: columns[name] for name in (COUNTED_ARRIVAL_US, COUNTED_EVENT_US) if name in columns},
            place=range(len(items.seq)),
            reason=codes[WHY],
            moved=codes[MOVED_BY],
            source=codes[SOURCE_PLACE],
            sources=tuple(source.name for source in judged.rules.sources),
            admitted=np.isin(items.seq, judged.admitted_seqs),
            timelines=log.names,
        )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.reason)

    def part(self, some: slice) -> "Outcomes":
        """Return records that follow one another."""
        place = self.place[some]
        ends = np.searchsorted(self.behind["item"], (place.start, place.stop))
        arrays = {name: getattr(self, name)[some] for name in ("reason", "moved", "source", "admitted")}
        return replace(self, behind=self.behind[slice(*ends)], place=place, **arrays)

    def parts(self) -> Iterator["Outcomes"]:
        """Return all records, so many at a time that their instants take little memory."""
        return (self.part(slice(first, first + PART)) for first in range(0, len(self), PART))

    @property
    def arrival(self) -> Array:
        """The arrival of each; NONE where arrival is the event time."""
        return self._instants(COUNTED_ARRIVAL_US)

    @property
    def event(self) -> Array:
        """The event time of each; NONE where arrival is the event time."""
        return self._instants(COUNTED_EVENT_US)

    @property
    def t(self) -> Array:
        """The time that rule 3 judged; NONE of a record that it did not judge."""
        is_judged = np.isin(self._of_items(self.items.role), (JUDGED, AHEAD))
        return np.where(is_judged, self._of_items(self.items.t), NONE)

    @property
    def clock(self) -> Array:
        """The clock of the log."""
        return self._of_items(self.items.clock)

    @property
    def watermark(self) -> Array:
        """The watermark that an event out of order found."""
        watermark = np.full(len(self), NONE)
        watermark[self.behind["item"] - self.place.start] = self.behind["watermark"]
        return watermark

    def watermarks_of(self, items: Array) -> Array:
        """Return the watermark that each of some items found, if it is an event out of order; else NONE."""
        behind = self.behind["item"]
        at = np.searchsorted(behind, items)
        watermarks = np.append(self.behind["watermark"], NONE)[at]
        return np.where(np.append(behind, -1)[at] == items, watermarks, NONE)

    def _instants(self, name: str) -> Array:
        instants = self.instants.get(name)
        return np.full(len(self), NONE) if instants is None else self._of_items(instants)

    def _of_items(self, values: Array) -> Array:
        return values[self.place.start : self.place.stop]

    @property
    def accepted(self) -> int:
        """The number of accepted events, admitted ones among them."""
        return int(((self.reason == 0) | self.admitted).sum())

    @property
    def is_kept(self) -> Array:
        """True if it is accepted outside the sequence, with its own time: kept out of order, or let in."""
        is_kept = (self.moved & (1 << MOVED.index(KEPT)) != 0) & (self.reason == 0)
        return np.asarray(is_kept | self.admitted)

    @property
    def final(self) -> Array:
        """`_timestamp` of accepted events; any number of a record that is refused."""
        t, is_moved = self._of_items(self.items.t), self.moved & (1 << MOVED.index("out_of_order")) != 0
        return np.where(is_moved, self.watermark, t) if is_moved.any() else t

    def moved_by_source(self) -> dict[tuple[str, str], int]:
        """Count the accepted events of each source by what moved them, or kept them out of order."""
        is_moved = (self.moved != 0) & (self.reason == 0) & ~self.admitted
        return {
            (name, mover): int(((self.source[is_moved] == s) & (self.moved[is_moved] & (1 << bit) != 0)).sum())
            for s, name in enumerate((*self.sources, ""))
            for bit, mover in enumerate(MOVED)
        }

    def refused_by_source(self) -> dict[tuple[str, str], int]:
        """Count the refused records of each source by reason; a source that the spec lacks has an empty name."""
        return self._by_source_and_reason(self.reason != 0)

    def admitted_by_source(self) -> dict[tuple[str, str], int]:
        """Count in the same way the records among them that an operator has let in."""
        return self._by_source_and_reason((self.reason != 0) & self.admitted)

    def _by_source_and_reason(self, which: Array) -> dict[tuple[str, str], int]:
        source, reason = (codes[which].astype(np.int64) for codes in (self.source, self.reason))
        pairs, counts = np.unique(source * (len(REASONS) + 1) + reason, return_counts=True)
        names = (*self.sources, "")
        return {
            (names[pair // (len(REASONS) + 1)], REASONS[pair % (len(REASONS) + 1) - 1]): int(n)
            for pair, n in zip(pairs, counts, strict=True)
        }

    def furthest_ahead(self) -> dict[str, int]:
        """Return FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US: of several events the first one's; empty without any."""
        furthest: dict[str, int] = {}
        for part in self.parts():
            # An event that is early and kept moves no watermark, however far ahead it is.
            moves = (part._of_items(self.items.role) == JUDGED) & ~part.admitted
            places, t = np.flatnonzero((part.reason == 0) & moves), part.t
            ahead = t[places] - part.clock[places]
            if not len(places) or (furthest and ahead.max() <= furthest[FURTHEST_US]):
                continue
            item = places[np.argmax(ahead)]
            seq = self.items.seq[part.place.start + item]
            furthest = {FURTHEST_US: int(ahead.max()), FURTHEST_SEQ: int(seq), FURTHEST_T_US: int(t[item])}
        return furthest


def counts_by_window(outcome: Outcome, accepted: int, admitted: int = 0) -> dict[str, int]:
    """Count what became of the accepted events of a segment in each window of events.

    Spark is asked, by one job, only where the loops have not said it. That is so for windows with a filter or with
    gaps, and where some event is kept behind the watermark.

    Args:
        outcome: The segment.
        accepted: The number of accepted events.
        admitted: How many of them an operator has let in: no window is closed to these.

    Returns:
        Per window `<window>.in_windows`, `.in_gap`, `.filtered`, `.bad_expression` (an aggregate fails on the event),
        `.window_closed` (these five are all that are accepted) and `.missed_some` (in some window, late for another).
    """
    windows = [window for window in outcome.windows if window.input is None]
    counts: dict[str, int] = {}
    for across in (False, True):  # which meet another watermark
        some = [window for window in windows if window.across == across]
        if some:
            events = outcome.segment_of(some[0]).accepted
            counts |= _counts_in(outcome, some, events, accepted - admitted, may_miss=True)
    if outcome.judged.admitted is not None:
        admitted_counts = _counts_in(outcome, windows, outcome.judged.admitted, admitted, may_miss=False)
        counts = {name: n + admitted_counts[name] for name, n in counts.items()}
    for name, late in outcome.late_for_sessions().items():
        counts[f"{name}.in_windows"] -= late
        counts[f"{name}.{Reason.WINDOW_CLOSED}"] = late
    return counts


def counts_by_join(outcome: Outcome, let_in: DataFrame | None) -> dict[str, int]:
    """Count what became of the accepted events of a segment in each join.

    Args:
        outcome: The segment.
        let_in: The events that joins have before the log, as an operator has let them in; None after its first
            segment, and where there are none.

    Returns:
        Per join `<join>.left` (accepted events of the left side), `.answered` (ones that have got their last answer,
        with or without a partner, of earlier segments too), `.left_closed` (ones that came too late) and
        `.join_closed` (events of either side that did). The left events without a last answer wait. Of an interval
        join the same of the other side: `.right`, `.right_answered`, `.right_closed`.
    """
    counts: dict[str, int] = {}
    for join in outcome.joins:
        left, right = outcome.fates_of(join)
        counts |= {
            f"{join.name}.left": left.fresh + _count_of(join.left.source, let_in),
            f"{join.name}.answered": left.passed,
            f"{join.name}.left_closed": left.late,
            f"{join.name}.{Reason.JOIN_CLOSED}": left.late + right.late,
        }
        if join.is_interval:
            counts |= {
                f"{join.name}.right": right.fresh + _count_of(join.right.name, let_in),
                f"{join.name}.right_answered": right.passed,
                f"{join.name}.right_closed": right.late,
            }
    return counts


def _count_of(source: str, let_in: DataFrame | None) -> int:
    return 0 if let_in is None else let_in.where(F.col(SOURCE) == source).count()


def _counts_in(
    outcome: Outcome, windows: Sequence[WindowSpec], events: DataFrame, n: int, *, may_miss: bool
) -> dict[str, int]:
    """Count what became of some events in windows, but for the late events of windows that merge."""
    placed, conditions = _with_places(outcome, windows, events, may_miss=may_miss)
    names = [f"{window.name}.{place}" for window in windows for place in _PLACES]
    counts = {name: n if name.endswith(".in_windows") else 0 for name in names}
    if conditions:
        numbered = {f"n{number}": name for number, name in enumerate(conditions)}
        sums = [F.expr(f"count_if({conditions[name]}) AS {n}") for n, name in numbered.items()]
        counts |= {numbered[n]: count for n, count in placed.agg(*sums).collect()[0].asDict().items()}
    return counts


def _with_places(
    outcome: Outcome, windows: Sequence[WindowSpec], accepted: DataFrame, *, may_miss: bool
) -> tuple[DataFrame, dict[str, str]]:
    """Return the events with what the conditions of counts need, and the conditions by count.

    A window whose events all count has no condition. Some events miss none: see `may_miss`.
    """
    counts: dict[str, str] = {}
    placed = accepted
    watermarks = outcome.judged.watermarks
    if windows and windows[0].across:
        some_are_kept = may_miss and len(watermarks.behind_across) > 0
    else:
        some_are_kept = may_miss and outcome.time.out_of_order == "keep" and len(watermarks.behind) > 0
    for number, window in enumerate(windows):
        names = {name: f"{name}{number}" for name in (ENDS, MISSED, FILTERED)}
        kind, fails = kind_of(window), unfit(Columns.of(accepted), window)
        of_window = None  # of windows that merge the loop says it
        if may_miss and not kind.merges:
            of_window = outcome.before.flushed_windows.get(window.name)
        some_miss = of_window is not None or (some_are_kept and not kind.merges)
        if fails is None and window.where is None and not some_miss and not window.has_gaps:
            continue
        in_windows = kind.place(with_flushed_windows(placed, of_window, window))
        placed = in_windows.drop(FLUSHED_WINDOWS).withColumnsRenamed(names)
        conditions = _of_window(names)
        conditions[Reason.BAD_EXPRESSION] = "false"
        if fails is not None:
            is_unfit = f"__tm_unfit{number}"
            placed = placed.withColumn(is_unfit, F.expr(fails))
            conditions |= {
                Reason.BAD_EXPRESSION: is_unfit,
                "filtered": f"{conditions['filtered']} AND NOT {is_unfit}",
            }
        counts |= {f"{window.name}.{name}": condition for name, condition in conditions.items()}
    return placed, counts


def _of_window(names: dict[str, str]) -> dict[str, str]:
    """Return by count SQL of a BOOLEAN, of the columns that `WindowKind.place` adds, by their names here."""
    ends, missed, filtered = (names[name] for name in (ENDS, MISSED, FILTERED))
    return {
        "in_windows": f"size({ends}) > 0",
        "in_gap": f"NOT {filtered} AND size({ends}) = 0 AND size({missed}) = 0",
        "filtered": filtered,
        Reason.WINDOW_CLOSED: f"size({missed}) > 0 AND size({ends}) = 0",
        "missed_some": f"size({missed}) > 0 AND size({ends}) > 0",
    }
