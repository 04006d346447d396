"""Interval joins over a segment of the log: the pairs that events form in it, and events that stay without a partner.

Here: which events meet, at which item, and what a late partner revises; arrays in, arrays out. Not here: the sides
and the lengths of time (timeops/joins/events.py), moments (timeops/joins/moments.py), the columns of rows
(timeops/joins/rows.py), storage.

Both sides are alike. An event is open from its item on, until the watermark is further past it than its last partner
may be and the allowed lateness. An event that comes forms a pair with each open event in reach, and a pair is final.
So the pairs of a segment have an event of it, and what earlier segments leave is the open events, each with whether
it has had a partner: an event of an outer side that has none gets a row when the watermark has passed all partners,
and another when it closes. The first partner that comes in between revises the row.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from tidemark.timeops.joins.events import NOBODY, Answers, Events, Flags, Places, joined
from tidemark.timeops.joins.moments import moments_of
from tidemark.timeops.joins.order import in_reach
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NEVER, NONE, Array
from tidemark.timeops.watermark.watermarks import Watermarks

_BEFORE_THE_LOG = -1
"""The item after which two events meet that an operator has let in: they do so before the first one."""


@dataclass(frozen=True, eq=False)
class PairRows(Answers):
    """The rows of an interval join in a segment.

    Attributes:
        row_left: The left event of the row that a row revises, or its own; NOBODY for none.
        row_right: The right event of the same.
    """

    row_left: Places
    row_right: Places

    @property
    def newest(self) -> Self:
        """The last revision of each row."""
        order = np.lexsort((self.revision, self.row_right, self.row_left))
        names = np.stack([self.row_left[order], self.row_right[order]])
        is_last = np.append((names[:, 1:] != names[:, :-1]).any(axis=0), True)[: len(order)]
        return self.of(order[is_last])

    @property
    def revised(self) -> tuple[Places, Places]:
        """The left events and the right events whose rows, without a partner, these rows revise."""
        return self.row_left[self.row_right == NOBODY], self.row_right[self.row_left == NOBODY]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of events that form in a segment.

    Attributes:
        left: The left events.
        right: The right events.
        is_left_later: Whether the left one came later.
        after_seq: The place in the log of the later one, or _BEFORE_THE_LOG.
    """

    left: Places
    right: Places
    is_left_later: Flags
    after_seq: Array


@dataclass(frozen=True, eq=False)
class Interval:
    """An interval join in a segment of the log.

    Attributes:
        events: The events of both sides; the earlier ones are the ones that were open.
        join: The join.
        watermarks: How the watermarks rose in the segment.
        flushed: The segment ends with a flush, which closes events of outer sides that have no partner.
    """

    events: Events
    join: JoinSpec
    watermarks: Watermarks
    flushed: bool

    @cached_property
    def rows(self) -> PairRows:
        """The rows of the join in the segment: of its pairs, and of events of outer sides that have no partner."""
        return self._of_pairs if self.join.is_inner else joined([self._of_pairs, *self._alone()])

    @cached_property
    def still_needed(self) -> Places:
        """The events that are open after the segment.

        A flush closes the events of an outer side that have no partner: their row says so for good.
        """
        events, join = self.events, self.join
        is_needed = ~events.came_too_late(join) & ~events.is_passed(join) & ~self.closed_by_flush
        return np.flatnonzero(is_needed)

    @cached_property
    def has_partner(self) -> Flags:
        """Flags of the events that have had a partner by the end of the segment, if their side asks for that."""
        if self.join.is_inner:
            return np.zeros(len(self.events), bool)
        return np.asarray((self.events.had_partner == 1) | (self._first_seq != NEVER))

    @cached_property
    def closed_by_flush(self) -> Flags:
        """Flags of the events that a flush at the end of the segment closes."""
        return np.asarray(self._is_outer & ~self.has_partner & self.flushed)

    @cached_property
    def _is_open(self) -> Flags:
        return ~self.events.came_too_late(self.join) & self.events.was_open(self.join)

    @property
    def _is_outer(self) -> Flags:
        """Flags of the events of sides on which one without a partner has a row."""
        return np.where(self.events.is_left, self.join.keeps_left, self.join.keeps_right)

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs that form in the segment."""
        events, join = self.events, self.join
        may_meet = self._is_open & (events.key != NOBODY)
        lefts, rights = np.flatnonzero(may_meet & events.is_left), np.flatnonzero(may_meet & ~events.is_left)
        rights = rights[np.lexsort((events.us[rights], events.key[rights]))]
        in_parts = in_reach(events, join, lefts, rights)
        return joined(self._formed(lefts[span][of_left], right) for span, of_left, right in in_parts)

    def _formed(self, left: Places, right: Places) -> Pairs:
        """Return the pairs, of some in reach, whose earlier event was open when the later one came."""
        events, join = self.events, self.join
        fresh_left, fresh_right = events.is_fresh[left], events.is_fresh[right]
        is_new = fresh_left | fresh_right | ((events.had_partner[left] < 0) & (events.had_partner[right] < 0))
        is_left_later = np.where(fresh_left == fresh_right, events.seq[left] > events.seq[right], fresh_left)
        was_open = np.where(
            is_left_later,
            events.met_us[left] <= events.us[right] + join.useful_for_us,
            events.met_us[right] <= events.us[left] + join.closes_after_us,
        )
        later_seq = np.where(is_left_later, events.seq[left], events.seq[right])
        after_seq = np.where(fresh_left | fresh_right, later_seq, _BEFORE_THE_LOG)
        forms = is_new & was_open
        return Pairs(left[forms], right[forms], is_left_later[forms], after_seq[forms])

    @cached_property
    def _first_seq(self) -> Array:
        """Of each event of an outer side the item after which it has its first pair of the segment; else NEVER."""
        first_seq = np.full(len(self.events), NEVER)
        for is_kept, side in ((self.join.keeps_left, self.pairs.left), (self.join.keeps_right, self.pairs.right)):
            if is_kept:
                np.minimum.at(first_seq, side, self.pairs.after_seq)
        return first_seq

    @cached_property
    def _came_late(self) -> tuple[Flags, Flags]:
        """Of each pair whether its right event, or its left one, came when the row of the other was due.

        A partner that came before the event itself was there.
        """
        events, pairs, join = self.events, self.pairs, self.join
        is_right_late = events.met_us[pairs.right] > events.us[pairs.left] + join.looks_ahead_us
        is_left_late = events.met_us[pairs.left] > events.us[pairs.right] + join.looks_back_us
        return ~pairs.is_left_later & is_right_late, pairs.is_left_later & is_left_late

    @cached_property
    def _of_pairs(self) -> PairRows:
        """The rows of pairs: the first partner of an event that had a row without one revises it."""
        events, pairs, join = self.events, self.pairs, self.join
        later = np.where(pairs.is_left_later, pairs.left, pairs.right)
        watermark = np.full(len(later), NONE)
        is_fresh = events.is_fresh[later]
        fresh = later[is_fresh]
        watermark[is_fresh] = self.watermarks.after(events.names_of(fresh), events.seq[fresh]).value
        revises_left, revises_right = (np.zeros(len(later), bool) for _ in range(2))
        if join.revises:
            right_late, left_late = self._came_late
            revises_left = right_late & self._was_alone(pairs.left) & join.keeps_left
            revises_right = left_late & self._was_alone(pairs.right) & join.keeps_right
        return PairRows(
            left=pairs.left,
            right=pairs.right,
            watermark=watermark,
            revision=(revises_left | revises_right).astype(np.int32),
            is_final=np.ones(len(later), bool),
            row_left=np.where(revises_right, NOBODY, pairs.left),
            row_right=np.where(revises_left, NOBODY, pairs.right),
        )

    def _was_alone(self, side: Places) -> Flags:
        """Return whether each pair is the first one of its event of a side."""
        is_first = self.pairs.after_seq == self._first_seq[side]
        return np.asarray((self.events.had_partner[side] != 1) & is_first)

    def _alone(self) -> list[PairRows]:
        """Return the rows of events of outer sides that have no partner, when they are due and when they close."""
        events, join = self.events, self.join
        left_us, right_us = join.looks_ahead_us, join.looks_back_us
        if not join.revises:
            left_us, right_us = join.closes_after_us, join.useful_for_us
        passes_us = events.us + np.where(events.is_left, left_us, right_us)
        is_due = self.flushed | (passes_us < events.end_us[events.timeline])
        some = np.flatnonzero(self._is_open & self._is_outer & (events.had_partner != 1) & is_due)
        if not join.revises:
            some = some[self._first_seq[some] == NEVER]
            closed = self.watermarks.reaching(events.names_of(some), passes_us[some] + 1).watermark
            return [self._rows_of(some, closed, np.zeros(len(some)), is_final=True)]
        moments = moments_of(events, some, join, self.watermarks, flushed=self.flushed)
        was_on_time = np.zeros(len(events), bool)
        right_late, left_late = self._came_late
        for is_kept, side, is_late in (
            (join.keeps_left, self.pairs.left, right_late),
            (join.keeps_right, self.pairs.right, left_late),
        ):
            was_on_time[side[~is_late]] |= is_kept
        due = moments.is_due_now & ~was_on_time[some]
        last = moments.closes_now & (self._first_seq[some] == NEVER)
        return [
            self._rows_of(some[due], moments.due[due], np.zeros(np.count_nonzero(due)), is_final=False),
            self._rows_of(some[last], moments.close[last], moments.is_due[last], is_final=True),
        ]

    def _rows_of(self, some: Places, watermark: Array, revision: Array, *, is_final: bool) -> PairRows:
        is_left = self.events.is_left[some]
        left, right = np.where(is_left, some, NOBODY), np.where(is_left, NOBODY, some)
        finals = np.full(len(some), is_final)
        return PairRows(left, right, watermark, revision.astype(np.int32), finals, row_left=left, row_right=right)
