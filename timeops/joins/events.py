"""The events of both sides of a join in a segment of the log, as arrays, and what each of them says by itself.

Here: which of them came too late, are open, are needed after the segment; arrays in, arrays out. Not here: where the
arrays come from (timeops/joins/gathering.py), which events meet (timeops/joins/as_of.py).

A left event is open until the watermark is further past it than `JoinSpec.closes_after_us`; what comes after that
changes nothing. A right event is useful until the watermark is further past it than `useful_for_us`: until then a
left event that takes it may be open, or may yet come. In an interval join both sides are alike: an event is open
until the watermark is further than that past it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import Array

Flags = NDArray[np.bool_]
Places = NDArray[np.int64]
"""Places of events in the arrays of `Events`."""

NOBODY = -1
"""In place of an event that is not there; and the key of an event that meets none."""

Arrays = TypeVar("Arrays")

OF_EARLIER, OF_SEGMENT, OF_TABLE = 0, 1, 2
"""Where an event is from: an earlier segment, this one, or the table on the right side."""


def joined(several: Iterable[Arrays]) -> Arrays:
    """Concatenate instances of a class whose fields are all arrays; there must be at least one."""
    parts = list(several)
    arrays = zip(*(vars(part).values() for part in parts), strict=True)
    return type(parts[0])(*map(np.concatenate, arrays))


@dataclass(frozen=True, eq=False)
class Events:
    """The events of both sides: one number each in every array. Instants are microseconds, NONE for none.

    Attributes:
        timelines: The names of the timelines.
        timeline: The place of each event's timeline among them.
        seq: `_arrival_seq`; of a row of a table its place in it.
        us: `_timestamp`.
        met_us: The watermark that an event met, if it was out of order.
        key: Equal where the timelines and the columns of `on` are equal; NOBODY where one of these is null.
        origin: OF_EARLIER, OF_SEGMENT or OF_TABLE.
        is_left: Whether it is of the left side.
        had_partner: Of an interval join 1 of an earlier event that has had a partner, 0 of one that has had none, and
            NOBODY where that is not known: of the segment, and of one that an operator has let in before the log.
        start_us: Of each timeline the watermark before the segment.
        end_us: Of each timeline the watermark after it.
    """

    timelines: pa.Array
    timeline: Array
    seq: Array
    us: Array
    met_us: Array
    key: Array
    origin: Array
    is_left: Flags
    had_partner: Array
    start_us: Array
    end_us: Array

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.seq)

    @property
    def is_fresh(self) -> Flags:
        """Flags of the events that came in the segment."""
        return np.asarray(self.origin == OF_SEGMENT)

    @property
    def is_late(self) -> Flags:
        """Flags of the events that came when the watermark had passed them."""
        return np.asarray(self.met_us > self.us)

    def names_of(self, some: Places) -> pa.DictionaryArray:
        """Return `_timeline` of some of them."""
        return pa.DictionaryArray.from_arrays(pa.array(self.timeline[some], pa.int32()), self.timelines)

    def past_us(self, join: JoinSpec) -> Array:
        """Return the watermark that each of them is needed up to, and too late for above."""
        return self.us + np.where(self.is_left, join.closes_after_us, join.useful_for_us)

    def came_too_late(self, join: JoinSpec) -> Flags:
        """Return which of them came when the join could no longer take them."""
        return np.asarray(self.met_us > self.past_us(join))

    def was_open(self, join: JoinSpec) -> Flags:
        """Return which of them the watermark before the segment had not passed.

        Some that it had passed may be stored still, as it costs more to take them out.
        """
        return np.asarray(self.past_us(join) >= self.start_us[self.timeline])

    def is_passed(self, join: JoinSpec) -> Flags:
        """Return which of them the watermark after the segment has passed."""
        return np.asarray(self.past_us(join) < self.end_us[self.timeline])


@dataclass(frozen=True)
class Fates:
    """How many events of one side there are, by what becomes of them in a segment.

    Attributes:
        fresh: They came in it.
        passed: They get their last answer in it, or the watermark passes them.
        late: They came in it too late for the join.
    """

    fresh: int
    passed: int
    late: int


def fates(events: Events, join: JoinSpec, closed_by_flush: Flags) -> tuple[Fates, Fates]:
    """Count the events of the left side and of the right side by what becomes of them in the segment.

    Args:
        events: The events; rows of a table do not count.
        join: The join.
        closed_by_flush: Which of them a flush at the end of the segment closes.
    """
    is_late = events.is_fresh & events.came_too_late(join)
    is_passed = ~is_late & events.was_open(join) & (events.is_passed(join) | closed_by_flush)

    def of_side(is_of_side: Flags) -> Fates:
        flags = (events.is_fresh, is_passed, is_late)
        return Fates(*(int(np.count_nonzero(is_of_side & flag)) for flag in flags))

    return of_side(events.is_left), of_side(~events.is_left & (events.origin != OF_TABLE))


def still_needed(events: Events, join: JoinSpec, *, flushed: bool) -> Places:
    """Return the events that an as-of join still needs after a segment.

    Left events wait for their last answer, which a flush brings to all of them. An answer that looks back takes the
    last right event of its key: so of the ones before all events that are open, or may yet come, one is enough. Only
    where answers have revisions, the ones that came late have each made one, after the last that was on time.
    A table has its rows by itself.
    """
    of_right = np.zeros(len(events), bool) if join.has_table else events.key != NOBODY
    of_side = np.where(events.is_left, not flushed, of_right)
    needed = np.flatnonzero(of_side & ~events.came_too_late(join) & ~events.is_passed(join))
    if join.direction != "backward" or join.has_table:
        return needed
    rights = needed[~events.is_left[needed]]
    is_before = events.us[rights] + join.closes_after_us < events.end_us[events.timeline[rights]]
    if join.revises:
        is_before &= ~events.is_late[rights]
    earlier = rights[is_before]
    earlier = earlier[np.lexsort((events.seq[earlier], events.us[earlier], events.key[earlier]))]
    keys = events.key[earlier]
    is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    return np.setdiff1d(needed, earlier[~is_last], assume_unique=True)


@dataclass(frozen=True, eq=False)
class Answers:
    """The rows of a join in a segment; of an as-of join of each left event one after the other, by revision.

    Attributes:
        left: The left events, by their places in the events; NOBODY of a row without one.
        right: The right events; NOBODY of a row without one.
        watermark: Just after the item at which each row was made; NONE where a flush made it.
        revision: 0, 1, and so on.
        is_final: Whether the row can be revised no more.
    """

    left: Places
    right: Places
    watermark: Array
    revision: Array
    is_final: Flags

    def of(self, which: Flags | Places) -> Self:
        """Return some of them, or all in another order."""
        return replace(self, **{name: values[which] for name, values in vars(self).items()})

    @property
    def newest(self) -> Self:
        """The last revision of each row."""
        return self.of(np.append(self.left[1:] != self.left[:-1], True)[: len(self.left)])

    @property
    def revised(self) -> tuple[Places, Places]:
        """The left events and the right events whose rows, not final, these rows revise."""
        return self.left, self.left[:0]

    @property
    def timed(self) -> Places:
        """The event that each row has its time from: the left one, or else the right one."""
        return np.where(self.left == NOBODY, self.right, self.left)
