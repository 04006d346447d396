"""As-of joins over a segment of the log: the answers that events of the left side get in it, and their revisions.

Here: which event of the right side is the partner, and the moments at which it has an answer; arrays in, arrays out.
Not here: the sides and what is needed of the past (timeops/joins/events.py), the columns of rows
(timeops/joins/rows.py), storage.

The partner of a left event is the nearest right event of its key in reach; of several at one instant the one that
arrived last. It is a function of the right events that came while the left event was open, so it is the same wherever
a log is cut. Right events that are on time are found in one pass over both sides in the order of time. The others,
which there are under `keep` alone, are few: each left event is set against the late ones in its reach.

An answer is due when the watermark has passed all events that it may come from. Until it is final, each right event
that comes after that, and is a better partner, makes a revision.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidemark.timeops.joins.events import NOBODY, Answers, Events, Flags, Places, joined
from tidemark.timeops.joins.moments import Moments, moments_of
from tidemark.timeops.joins.order import in_reach, last_of_equal, passed
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.watermark.watermarks import Watermarks
from tidemark.timeops.windows.revisions import FINAL, ON_TIME


def answers(events: Events, join: JoinSpec, watermarks: Watermarks, *, flushed: bool) -> Answers:
    """Return the answers of a join in a segment of the log; with `how: inner` only the ones with a partner.

    Args:
        events: The events of both sides.
        join: The join.
        watermarks: How the watermarks rose in the segment.
        flushed: The segment ends with a flush, which answers all left events.
    """
    came_in_time = ~events.came_too_late(join)
    due_us = events.us + (join.looks_ahead_us if join.revises else join.closes_after_us)
    is_due = flushed | (due_us < events.end_us[events.timeline])
    lefts = np.flatnonzero(events.is_left & came_in_time & events.was_open(join) & is_due)
    rights = np.flatnonzero(~events.is_left & came_in_time & (events.key != NOBODY))
    is_late = events.is_late[rights]
    partners = _on_time(events, lefts, rights[~is_late], join)
    late = _Late(events, join, rights[is_late])
    if join.revises:
        parts = late.with_lefts(lefts, partners)
        made = joined(_revised(late, part, watermarks, flushed=flushed) for part in parts)
    else:
        for part in late.with_lefts(lefts, partners) if len(late.rights) else ():
            partners[part.span] = late.better(part.lefts, part.partners, late.best(part))
        closed = watermarks.reaching(events.names_of(lefts), events.us[lefts] + join.closes_after_us + 1).watermark
        made = Answers(lefts, partners, closed, np.zeros(len(lefts), np.int32), np.ones(len(lefts), bool))
    return made if join.keeps_left else made.of(made.right != NOBODY)


def _on_time(events: Events, lefts: Places, rights: Places, join: JoinSpec) -> Places:
    """Return the partner of each left event among right events that were on time."""
    rights = rights[np.lexsort((events.seq[rights], events.us[rights], events.key[rights]))]
    keys, us = events.key[rights], events.us[rights]
    of_left = events.key[lefts], events.us[lefts]

    def near(places: Places) -> Places:
        """Return the right events at some places, NOBODY where one is of another key or too far away."""
        is_near = (places >= 0) & (places < len(rights))
        is_near[is_near] = keys[places[is_near]] == of_left[0][is_near]
        is_near[is_near] = np.abs(us[places[is_near]] - of_left[1][is_near]) <= join.within_us
        partners = np.full(len(lefts), NOBODY)
        partners[is_near] = rights[places[is_near]]
        return partners

    def backward() -> Places:
        return near(passed(keys, us, *of_left, and_equal=True) - 1)

    def forward() -> Places:
        first = passed(keys, us, *of_left, and_equal=False)
        return near(np.append(last_of_equal(keys, us), len(rights))[first])

    if join.direction == "nearest":
        return _Late(events, join, rights[:0]).better(lefts, backward(), forward())
    return backward() if join.direction == "backward" else forward()


@dataclass(frozen=True, eq=False)
class _Part:
    """Left events that are set against late right ones together.

    Attributes:
        span: Which of all left events they are.
        lefts: The left events.
        partners: The partner of each among events that were on time.
        of_left: The left events of pairs, by their place in the part.
        right: The late right events of these; they came while the left ones were open.
    """

    span: slice
    lefts: Places
    partners: Places
    of_left: Places
    right: Places


class _Late:
    """The right events that came late, by key and time, and how good each is as a partner."""

    def __init__(self, events: Events, join: JoinSpec, rights: Places) -> None:
        self.events, self.join = events, join
        self.rights = rights[np.lexsort((events.us[rights], events.key[rights]))]

    def with_lefts(self, lefts: Places, partners: Places) -> Iterator[_Part]:
        """Yield left events, some at a time, with the late ones in reach."""
        events = self.events
        for span, of_left, right in in_reach(events, self.join, lefts, self.rights):
            some = lefts[span]
            closes_us = events.us[some[of_left]] + self.join.closes_after_us
            is_in_time = events.met_us[right] <= closes_us
            yield _Part(span, some, partners[span], of_left[is_in_time], right[is_in_time])

    def best(self, part: _Part) -> Places:
        """Return the best late partner of each left event of a part; NOBODY where it has none."""
        return self.best_of(part, part.of_left, part.right)

    def best_of(self, part: _Part, of_left: Places, right: Places) -> Places:
        """Return the best of the partners that left events of a part have, by their place in it."""
        order = self._by_goodness(part.lefts[of_left], right)
        best = np.full(len(part.lefts), NOBODY)
        best[of_left[order]] = right[order]  # of several the last stays
        return best

    def _by_goodness(self, left: Places, right: Places) -> Places:
        """Return the order of pairs from the worst partner to the best: the nearest, the one before, the last."""
        events = self.events
        apart_us = events.us[right] - events.us[left]
        return np.lexsort((events.seq[right], apart_us <= 0, -np.abs(apart_us)))

    def goodness(self, left: Places, right: Places) -> Array:
        """Return numbers from 1 up that order partners, the best with the largest; 0 without a partner."""
        pairs = np.flatnonzero(right != NOBODY)
        numbers = np.zeros(len(right), np.int64)
        numbers[pairs[self._by_goodness(left[pairs], right[pairs])]] = np.arange(1, len(pairs) + 1)
        return numbers

    def better(self, left: Places, first: Places, other: Places) -> Places:
        """Return the better of two partners of each left event; NOBODY where neither is there."""
        events = self.events
        first_us, other_us = (events.us[right] - events.us[left] for right in (first, other))
        is_nearer = np.abs(other_us) < np.abs(first_us)
        as_near = np.abs(other_us) == np.abs(first_us)
        is_at_same = as_near & (other_us == first_us) & (events.seq[other] > events.seq[first])
        is_better = is_nearer | (as_near & (other_us < first_us)) | is_at_same
        takes_other = (other != NOBODY) & ((first == NOBODY) | is_better)
        return np.where(takes_other, other, first)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Steps of left events of a part, in any order: an answer is due, a late event comes, it is final.

    Attributes:
        left: The left event, by its place in the part.
        rank: ON_TIME, the place in the log of the late event, or FINAL.
        right: The partner that comes with it; NOBODY for none.
        is_answer: Whether it makes an answer, whatever the partner. A late event makes one if it is the best so far.
        is_now: Whether it is in the segment.
        watermark: Just after it.
    """

    left: Places
    rank: Array
    right: Places
    is_answer: Flags
    is_now: Flags
    watermark: Array


def _revised(late: _Late, part: _Part, watermarks: Watermarks, *, flushed: bool) -> Answers:
    """Return the answers of left events at the moments of the segment at which they have one."""
    events, join = late.events, late.join
    moments = moments_of(events, part.lefts, join, watermarks, flushed=flushed)
    of_left, right = part.of_left, part.right
    came_before = events.seq[right] < events.seq[part.lefts[of_left]]
    revises = ~came_before & (events.met_us[right] > events.us[part.lefts[of_left]] + join.looks_ahead_us)
    first = late.best_of(part, of_left[~revises], right[~revises])
    first = late.better(part.lefts, part.partners, first)
    coming = _coming(events, of_left[revises], right[revises], watermarks)
    steps = joined([_due(moments, first), coming, _closing(moments)])
    order = np.lexsort((steps.rank, steps.left))
    left, right = steps.left[order], steps.right[order]
    goodness = late.goodness(part.lefts[left], right)
    of_group = left * (len(left) + 1)
    best = np.maximum.accumulate(of_group + goodness) - of_group
    is_best = (goodness > 0) & (goodness == best)
    is_row = steps.is_answer[order] | ((steps.rank[order] != ON_TIME) & is_best)
    partner = np.full(len(right) + 1, NOBODY)
    partner[goodness] = right
    partner[0] = NOBODY
    row = np.flatnonzero(is_row)
    begins = np.searchsorted(left[row], left[row])
    made = Answers(
        left=part.lefts[left[row]],
        right=partner[best[row]],
        watermark=steps.watermark[order][row],
        revision=(np.arange(len(row)) - begins).astype(np.int32),
        is_final=steps.rank[order][row] == FINAL,
    )
    return made.of(steps.is_now[order][row])


def _due(moments: Moments, first: Places) -> _Steps:
    """Return the moments at which answers are due, with the partner that each left event has then."""
    count = len(first)
    ranks = np.full(count, ON_TIME)
    return _Steps(np.arange(count), ranks, first, moments.is_due, moments.is_due_now, moments.due)


def _coming(events: Events, of_left: Places, right: Places, watermarks: Watermarks) -> _Steps:
    """Return the late events that come when an answer was due."""
    is_fresh = events.is_fresh[right]
    watermark = np.full(len(right), NONE)
    watermark[is_fresh] = watermarks.after(events.names_of(right[is_fresh]), events.seq[right[is_fresh]]).value
    return _Steps(of_left, events.seq[right], right, np.zeros(len(right), bool), is_fresh, watermark)


def _closing(moments: Moments) -> _Steps:
    """Return the moments at which answers become final."""
    closing = np.flatnonzero(moments.closes_now)
    yes = np.ones(len(closing), bool)
    nobody = np.full(len(closing), NOBODY)
    return _Steps(closing, np.full(len(closing), FINAL), nobody, yes, yes, moments.close[closing])
