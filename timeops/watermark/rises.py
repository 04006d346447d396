"""How watermarks rose in a segment of one log: the watermark after any item, the item that brought one to a value.

Here: look-ups in what the loop found (timeops/watermark/fold.py): between two rises a timeline is silent, and what
the clock shows then is a function of the clock. Arrays in, arrays out, each of one length. Not here: the loop, frames
of Spark (timeops/windows/segment.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tidemark.timeops.values.instants import NONE, Array, distinct
from tidemark.timeops.watermark.clock import (
    ARRIVAL_CLOCK,
    NOTHING,
    WINDOW_CLOSE,
    arrival_clock_watermarks,
    idle_clock,
    window_close_watermarks,
)
from tidemark.timeops.watermark.fold import RISE, Findings, Fold, Items


@dataclass(frozen=True)
class Watermark:
    """Watermarks, and after which `_arrival_seq` each had its value first; NONE for none."""

    value: Array
    set_by: Array


@dataclass(frozen=True)
class Reached:
    """The items at which watermarks came to wanted values.

    Attributes:
        watermark: Just after the item that brought it there; NONE where no item did.
        first_watermark: The watermark that first came so far: within an item the clock acts before the event, which
            may raise the watermark further.
    """

    watermark: Array
    first_watermark: Array


@dataclass(frozen=True)
class Rises:
    """The arrays that the look-ups go by.

    Attributes:
        items: The items of the segment.
        start: TIMELINE and LOG before the segment, and what does not change in it.
        findings: What the loop finds.
    """

    items: Items
    start: Fold
    findings: Findings

    # Places: the index of an item; -1 is before the first one, and the tick is after the last record.

    @cached_property
    def clock(self) -> Array:
        """The clock at each item, the tick's last."""
        tick = self.items.tick
        return self.items.clock if tick is None else np.append(self.items.clock, np.int64(tick))

    @cached_property
    def _silent_at(self) -> Array:
        """The idle clock at each item."""
        is_tick = np.zeros(len(self.clock), bool)
        is_tick[len(self.items.clock) :] = True
        return np.where(self.clock == NONE, NONE, idle_clock(self.clock, is_tick))

    @cached_property
    def _order(self) -> Array:
        return np.argsort(self.findings.rises["timeline"], kind="stable")

    @cached_property
    def _rows(self) -> Array:
        """The rises by timeline, in each by item; and a last row of no timeline, so that each place has one."""
        rows = np.zeros(len(self._order) + 1, RISE)
        # By its default mode, `take` would copy the rows first.
        np.take(self.findings.rises, self._order, out=rows[:-1], mode="clip")
        return rows

    @cached_property
    def _by_item(self) -> "_Ascending":
        return _Ascending.of(self._rows["timeline"][:-1], self._rows["item"][:-1])

    @cached_property
    def _by_watermark(self) -> "_Ascending":
        return _Ascending.of(self._rows["timeline"][:-1], self._rows["computed"][:-1])

    @cached_property
    def _silences(self) -> Array:
        return self.findings.silences[self._order] if len(self.findings.silences) else self.findings.silences

    @cached_property
    def _begins(self) -> Array:
        """The place in `_rows` at which the rises of each timeline begin."""
        return np.searchsorted(self._rows["timeline"][:-1], np.arange(len(self.start.timelines) + 1))

    @property
    def _idle(self) -> int:
        return int(self.start.rules[0]["idle"])

    @property
    def _every(self) -> int:
        return int(self.start.rules[0]["every"])

    def place_of(self, seq: Array) -> Array:
        """Return the last item whose `_arrival_seq` is at most a number."""
        return np.searchsorted(self.items.seq, seq, "right") - 1

    def first_at(self, clock_us: Array) -> Array:
        """Return the first item at which the clock has come to an instant; the number of items where none has."""
        return np.searchsorted(self.clock, clock_us, "left")

    def after(self, timeline: Array, place: Array) -> Watermark:
        """Return the watermark that the next item finds after an item."""
        timelines = self.start.timelines
        if self._every == 0:
            computed, at_start = self.computed(timeline, place), place < 0
            return Watermark(
                np.where(at_start, timelines["watermark"][timeline], computed.value),
                np.where(at_start, timelines["watermark_set_by"][timeline], computed.set_by),
            )
        timelines_before = timelines[timeline]
        log = self.start.log[0]
        now = self._clock_at(place)
        period = np.where(now == NONE, NONE, now // self._every * self._every)
        ended = np.searchsorted(self.clock, period, "left") - 1
        ended = np.where(self._clock_at(ended) == NONE, -1, ended)
        at_end_of_period = self.computed(timeline, ended)
        # The period began before the segment, and was published there.
        was_published = (ended < 0) & (period <= log["period"])
        published = timelines_before["watermark"]
        if self._idle == ARRIVAL_CLOCK and log["ended"] != NONE:
            published = np.maximum(published, self._by_arrival(np.full(len(published), log["ended"])))
        value = np.where(was_published, published, at_end_of_period.value)
        published_set_by = np.where(
            published > timelines_before["watermark"], NONE, timelines_before["watermark_set_by"]
        )
        return Watermark(value, np.where(was_published, published_set_by, at_end_of_period.set_by))

    def before(self, timeline: Array, place: Array) -> Watermark:
        """Return the watermark that events of the segment find, at their items: the clock may have raised it."""
        if self._every > 0:
            return self.after(timeline, place)  # what a period shows, it shows from its first item on
        computed, rows = self.computed(timeline, place - 1), self._rows
        if self._idle == ARRIVAL_CLOCK:
            by_clock = self._by_arrival(self._clock_at(place))
        else:
            high = self._begins[timeline + 1]
            row = self._by_item.first(timeline, place)
            by_clock = np.where((row < high) & (rows["item"][row] == place), rows["by_clock"][row], NONE)
        return Watermark(
            np.maximum(computed.value, by_clock), np.where(by_clock > computed.value, NONE, computed.set_by)
        )

    def reaching(self, timeline: Array, wanted_us: Array) -> Reached:
        """Find when the watermarks of timelines came to values that they did not have before the segment."""
        place, watermark = self._computed_place(timeline, wanted_us)
        nowhere = len(self.clock)
        if self._every == 0:
            if self._idle == NOTHING:
                return Reached(watermark, watermark)  # an event alone raises it, once
            # What was computed before the segment, and not seen there, is seen at once.
            value = self.computed(timeline, np.minimum(place, nowhere - 1)).value
            is_none = place >= nowhere
            return Reached(np.where(is_none, NONE, value), np.where(is_none, NONE, watermark))
        log = self.start.log[0]
        now = self._clock_at(np.minimum(place, nowhere - 1))
        period = np.where(place < 0, log["period"], now // self._every * self._every)
        shown = np.where(place >= nowhere, nowhere, np.searchsorted(self.clock, period + self._every, "left"))
        value = self.computed(timeline, np.minimum(shown, nowhere) - 1).value
        value = np.where(shown >= nowhere, NONE, value)
        return Reached(value, value)

    def computed(self, timeline: Array, place: Array) -> Watermark:
        """Return the watermark as the rules compute it after an item; periods of emission show it later."""
        timelines = self.start.timelines  # field by field: a row of them is long
        rows, low, high = self._rows, self._begins[timeline], self._begins[timeline + 1]
        following = self._by_item.first(timeline, place + 1)
        is_own, last = following > low, np.maximum(following - 1, 0)
        value = np.where(is_own, rows["computed"][last], timelines["computed"][timeline])
        set_by = np.where(is_own, rows["set_by"][last], timelines["computed_set_by"][timeline])
        by_clock = self._clock_watermarks(timeline, place, following, high)
        return Watermark(np.maximum(value, by_clock), np.where(by_clock > value, NONE, set_by))

    def _clock_watermarks(self, timeline: Array, place: Array, following: Array, high: Array) -> Array:
        """Return the watermarks that the clock alone allows timelines at a place."""
        if self._idle == ARRIVAL_CLOCK:
            return self._by_arrival(self._clock_at(place))
        by_clock = np.full(len(timeline), NONE)
        if self._idle == WINDOW_CLOSE:
            in_silence = (following < high) & (self._rows["by_clock"][following] != NONE) & (place >= 0)
            by_clock[in_silence] = self._in_silence(following[in_silence], self._silent_at[place[in_silence]])
        return by_clock

    def _computed_place(self, timeline: Array, wanted_us: Array) -> tuple[Array, Array]:
        """Return the first item at which the computed watermark reaches each value, and that watermark."""
        rows, high = self._rows, self._begins[timeline + 1]
        row = self._by_watermark.first(timeline, wanted_us)
        is_row = row < high
        is_asked = np.zeros(len(self.start.timelines), bool)
        is_asked[timeline] = True
        asked_timelines = np.flatnonzero(is_asked)  # each once, and not for each of its values
        before = self.computed(asked_timelines, np.full(len(asked_timelines), -1)).value
        before = before[(np.cumsum(is_asked) - 1)[timeline]]
        place = np.where(is_row, rows["item"][row], len(self.clock))
        by_clock = is_row & (rows["by_clock"][row] >= wanted_us)
        watermark = np.where(by_clock, rows["by_clock"][row], np.where(is_row, rows["computed"][row], NONE))
        if self._idle == WINDOW_CLOSE and by_clock.any():
            of_silence, rise_item = row[by_clock], place[by_clock]

            def allowed(at: Array) -> Array:
                return self._in_silence(of_silence, self._silent_at[at])

            first = _bisect(allowed, np.zeros_like(rise_item), rise_item, wanted_us[by_clock])
            watermark[by_clock] = np.where(first < rise_item, allowed(first), watermark[by_clock])
            place[by_clock] = first
        elif self._idle == ARRIVAL_CLOCK and len(self.clock):
            nowhere = np.full(len(wanted_us), len(self.clock))
            first = _bisect(lambda at: self._by_arrival(self.clock[at]), np.zeros_like(nowhere), nowhere, wanted_us)
            by_arrival = self._by_arrival(self.clock[np.minimum(first, nowhere - 1)])
            watermark = np.where((first <= place) & (first < nowhere), by_arrival, watermark)
            place = np.minimum(place, first)
        had_it = before >= wanted_us
        return np.where(had_it, -1, place), np.where(had_it, before, watermark)

    def _clock_at(self, place: Array) -> Array:
        if not len(self.clock):
            return np.full(len(place), self.start.log[0]["clock"])
        return np.where(place < 0, self.start.log[0]["clock"], self.clock[np.maximum(place, 0)])

    def _by_arrival(self, clock_us: Array) -> Array:
        return arrival_clock_watermarks(clock_us, self.start.rules[0])

    def _in_silence(self, row: Array, silent_us: Array) -> Array:
        """Return what the clock allows in the silence before a rise (M)."""
        return window_close_watermarks(self._rows["last_clock"][row], self._silences[row], silent_us, self.start)


@dataclass(frozen=True)
class _Ascending:
    """Numbers that never fall within a timeline, in the order of the timelines.

    Of one timeline, for millions of look-ups at once, NumPy's own search takes a third to a tenth of the time of
    `_bisect`; of many as long. It knows one order only, so a timeline and the rank of a number become one key.

    Attributes:
        values: The numbers of all timelines, each once, in order.
        keys: The key of each number.
    """

    values: Array
    keys: Array

    @staticmethod
    def of(timeline: Array, numbers: Array) -> "_Ascending":
        """Return numbers as they are searched."""
        values = distinct(numbers)
        return _Ascending(values, _keys(values, timeline, numbers))

    def first(self, timeline: Array, numbers: Array) -> Array:
        """Return the first places at which timelines come to some numbers; for none the end of the timeline."""
        return np.searchsorted(self.keys, _keys(self.values, timeline, numbers))


def _keys(values: Array, timeline: Array, numbers: Array) -> Array:
    return timeline.astype(np.int64) * (len(values) + 1) + np.searchsorted(values, numbers)


def _bisect(values: Callable[[Array], Array], low: Array, high: Array, wanted_us: Array) -> Array:
    """Return the first places from `low` on at which values that never fall come to wanted ones; `high` for none.

    `values` takes an array of places, one for each wanted value.
    """
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = open_ & (values(np.where(open_, middle, 0)) < wanted_us)
        low = np.where(less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    return low
