"""One timeline: its splits, its watermark, the idle rules that raise it, the events it holds.

A timeline knows when W moves and what that releases; it does not judge events and knows no window results.
"""

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.grids import MIN_US, close_of, floor, latest_close_on_grid
from tests.oracle.model import Record, Split, TimeRules, Window
from tests.oracle.outcome import OrderedEvent
from tests.oracle.waits import Waits


class Timeline:
    """The state of one timeline. `watermark` is W as computed, `published` is W as events see it."""

    def __init__(self, rules: TimeRules, windows: Sequence[Window], waits: Waits) -> None:
        self.rules = rules
        self.windows = windows
        self.waits = waits
        self.watermark: int | None = None
        self.set_by: int | None = None
        self.published: int | None = None
        self.published_set_by: int | None = None
        self.max_t: dict[Split, int] = {}
        self.max_close: dict[str, int] = {}
        self.last_read_of_split: dict[Split, int] = {}  # clocks without the waits of the split
        self.last_read: int | None = None  # the same without the waits of any
        self.first_clock_of_log: int | None = None
        self.source = ""  # of its last event that moved W
        self.has_kept_early = False  # it has an event that moved no W
        self.held: list[OrderedEvent] = []
        self.next_release_seq = 0

    def split_of(self, record: Record) -> Split:
        """Return the split of a record; without splits all records are of one."""
        return (record.source, record.split) if self.rules.use_splits else ("", None)

    def note_activity(self, record: Record, clock: int) -> None:
        """Any event of the timeline, dropped or not, ends its idleness and that of its split."""
        self.last_read = clock - self.waits.any_waited
        self.last_read_of_split[self.split_of(record)] = clock - self.waits.of(record.source, record.split)

    def move(self, record: Record, t: int, clock: int) -> None:
        """Let a judged event with time t move W."""
        split, self.source = self.split_of(record), record.source
        if split not in self.max_t or t > self.max_t[split]:
            self.max_t[split] = t
        for window in self.windows:
            close = close_of(window, t, self.rules.unit_us, record)
            if close is not None and (window.name not in self.max_close or close > self.max_close[window.name]):
                self.max_close[window.name] = close
        self.raise_to(self.event_watermark(clock), record.seq)

    def raise_to(self, value: int | None, seq: int | None) -> None:
        """Raise the watermark, never lower it; `seq` is the event that raises it, None for the clock."""
        if value is not None and (self.watermark is None or value > self.watermark):
            self.watermark = value
            self.set_by = seq

    def go_by(self, rules: TimeRules, clock: int | None) -> None:
        """Other rules hold from here on: what those before did not ask for is counted from here on."""
        before, self.rules = self.rules, rules
        has_events = self.max_t or self.has_kept_early
        if not has_events and not (follows_activity(before) and self.last_read is not None):
            self.watermark = self.set_by = self.published = self.published_set_by = (
                None  # it begins under these rules
            )
            return
        assert clock is not None
        if rules.use_splits and not before.use_splits:  # there was one source, and no split of it
            alone = (self.source, None)
            self.max_t = {} if not self.max_t else {alone: self.max_t["", None]}
            self.last_read_of_split = {} if self.last_read is None else {alone: self.last_read}
        elif before.use_splits and not rules.use_splits:
            self.max_t = {("", None): max(self.max_t.values())} if self.max_t else {}
            self.last_read_of_split = {("", None): max(self.last_read_of_split.values())}
        if follows_activity(rules) and not follows_activity(before):
            self.last_read = clock - self.waits.any_waited
            self.last_read_of_split = {split: clock - self.waits.of(*split) for split in self.max_t}
        if closes_windows(rules) and not closes_windows(before):
            self.max_close = {}
        self.raise_to(self.event_watermark(clock), None)

    def publish(self) -> None:
        """Let events see W as it is."""
        self.published = self.watermark
        self.published_set_by = self.set_by

    def event_watermark(self, clock: int) -> int | None:
        """Return the watermark by the events so far, with the splits that are active at this clock."""
        splits = set(self.max_t)
        if self.rules.known_splits is not None:
            splits.update(self.rules.known_splits)
        active = [split for split in splits if not self.is_idle(split, clock)]
        if not active:
            values = [self.value_of(split) for split in self.max_t]
            return max(values) if values else None
        if any(split not in self.max_t for split in active):
            return None  # a known split is still awaited
        return min(self.value_of(split) for split in active)

    def value_of(self, split: Split) -> int:
        """Return what one split allows W to be: its largest t less the out-of-orderness, from year 0001 up."""
        return max(self.max_t[split] - self.rules.tolerance_of(split[0]), MIN_US)

    def is_idle(self, split: Split, clock: int) -> bool:
        """Return whether exclude_split takes the split out; without an event yet its silence begins with the log."""
        if self.rules.idle is None or self.rules.idle[0] != "exclude_split":
            return False
        last = self.last_read_of_split.get(split, self.first_clock_of_log)
        read = clock - self.waits.of(*split)
        return last is not None and read - last >= self.rules.timeout_of(split[0])

    def is_silent(self, clock: int) -> bool:
        """Return whether exclude_split takes the timeline out of the minimum: all its splits are idle."""
        splits = {*self.last_read_of_split, *(self.rules.known_splits or ())}
        return bool(splits) and all(self.is_idle(split, clock) for split in splits)

    def apply_idle(self, clock: int, is_tick: bool) -> None:
        """Let the idle rule raise W as of this clock, just before the item is judged."""
        if self.first_clock_of_log is None:
            self.first_clock_of_log = clock
        if self.rules.idle is None:
            return
        kind = self.rules.idle[0]
        if kind == "exclude_split":
            value = self.event_watermark(clock)
        elif kind == "arrival_clock":
            tolerance = self.rules.late[0] if self.rules.late else 0
            value = max(clock - tolerance, MIN_US)
        else:
            # An event at the very instant of the timeout beats it, a tick does not.
            value = self.window_close_watermark(clock if is_tick else clock - 1)
        if value is not None:
            self.raise_to(floor(value, self.rules.unit_us), None)

    def window_close_watermark(self, clock: int) -> int | None:
        """Return how far the clock alone may close the windows that hold events."""
        timeout = self.rules.timeout_of("")
        if self.last_read is None or clock - self.waits.any_waited < self.last_read + timeout:
            return None
        if self.waits.waiters:  # who waits may have events for any timeline
            return None
        values: list[int] = []
        for window in self.windows:
            if window.name not in self.max_close:
                continue
            highest = self.max_close[window.name]
            on_grid = latest_close_on_grid(window, clock - timeout, self.rules.unit_us)
            if on_grid is not None:
                values.append(min(highest, on_grid))
            elif highest <= clock - timeout:
                values.append(highest)
        return max(values) if values else None

    def release(self, everything: bool) -> list[OrderedEvent]:
        """Take out the held events behind W, or all, in order of (timestamp, arrival), numbered on."""
        ready: list[OrderedEvent] = []
        for event in self.held:
            behind = self.published is not None and event.timestamp_us < self.published
            if everything or behind:
                ready.append(event)
        ready.sort(key=lambda event: (event.timestamp_us, event.seq))
        released: list[OrderedEvent] = []
        for event in ready:
            self.held.remove(event)
            released.append(replace(event, release_seq=self.next_release_seq))
            self.next_release_seq += 1
        return released


def closes_windows(rules: TimeRules) -> bool:
    return rules.idle is not None and rules.idle[0] == "window_close"


def follows_activity(rules: TimeRules) -> bool:
    """Return whether rules ask when an event came last."""
    return rules.use_splits or closes_windows(rules) or (rules.idle is not None and rules.idle[0] == "exclude_split")
