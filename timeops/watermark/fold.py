"""The rules of time as one loop over the items of a segment of the log, in the order of the log.

Here: what each item is judged against, and what it changes: the clock, periods of emission (F), idle rules (A2, F,
M), rule 3 (H, A2), activity, splits (F), the watermark W. Arrays in, arrays out. Not here: what one record says by
itself, which is its time and rules 0 to 2 (timeops/events/), how far the clock alone raises W
(timeops/watermark/clock.py), what becomes of a record that is out of order (timeops/events/adjustment.py), when a
watermark came to a value (timeops/watermark/rises.py), Spark, stored tables (timeops/watermark/timelines.py).

For each timeline the loop has, as the stored state does, W as the rules compute it (`computed`) and W as events and
windows see it (`watermark`). They differ only with `emit: every`. A timeline is brought up to date when an item asks
for it: what the clock alone does in between is a function of the clock, and the clock never falls.

A flush at the end of the segment changes nothing here: it closes windows and releases events, and W stays as it is
(docs/guarantees/flush-and-reopen.md). Which function carries out which rule: docs/tour.md.

Instants and lengths are BIGINT microseconds; NONE means that there is no value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from tidemark.timeops.values.instants import MIN_US, NEVER, NONE, Array, floored
from tidemark.timeops.watermark.clock import (
    ARRIVAL_CLOCK,
    EXCLUDE_SPLIT,
    WINDOW_CLOSE,
    arrival_clock_watermark,
    idle_clock,
    split_idle_at,
    waited,
    window_close_watermark,
)

# The role of a record for the watermark of its timeline, see `role_sql` in timeops/events/adjustment.py.
OUTSIDE = 0
"""A dead letter of ingestion, which belongs to no timeline and only moves the clock. So is every record that rules 0
to 2 refuse or that has no time, unless a rule follows activity: a timeline without any other then has no state."""
ACTIVE = 1  # refused by rules 0 to 2, or without a time: activity that moves no watermark
JUDGED = 2  # it has a time that rule 3 judges, and moves the watermark
AHEAD = 3  # kept though it is early: rule 3 judges its time, and it moves no watermark

COMPILED_FROM = 200_000
"""The loop is compiled from this many items on: loading the compiler takes as long as 100,000 of them."""
_COMPILED_AGAIN_FROM = 5_000  # once it is loaded

TIMELINE = np.dtype(
    [
        ("max_t", "i8"),  # the largest t
        ("watermark", "i8"),  # W as events and windows see it
        ("watermark_set_by", "i8"),  # the event that first raised W to this value; NONE if the clock did
        ("computed", "i8"),  # W as the rules compute it: ahead of `watermark` until the next period
        ("computed_set_by", "i8"),
        ("period", "i8"),  # in which W was published
        ("last_clock", "i8"),  # the idle clock at its last event
        ("first_split", "i8"),  # its splits are splits[first_split:][:n_splits]
        ("n_splits", "i8"),
        ("lowest", "i8"),  # the last minimum of its splits; NONE if it must be computed again
        ("next_idle", "i8"),  # no split becomes idle before this clock
    ]
)
"""A timeline; fields that timelines.STATE has, too, have its names."""

SPLIT = np.dtype(
    [
        ("allows", "i8"),  # the watermark that the split allows: its largest t less its out-of-orderness
        ("max_t", "i8"),
        ("last_clock", "i8"),  # the idle clock at its last event
        ("tolerance", "i8"),
        ("timeout", "i8"),  # NONE: it is never idle
        ("waited", "i8"),  # for how long it, or its source, had to wait before the segment
        ("since", "i8"),  # it waits since this clock, throughout the segment; NONE: it does not
        ("listed", "i8"),  # 1: it counts before its first event
    ]
)
"""A split of a timeline: a source and a value."""

GRID = np.dtype([("period", "i8"), ("anchor", "i8"), ("first", "i8"), ("end", "i8")])
"""The close times of a window: anchor + k * period; with period 0 the `instants` from `first` to `end`, and where
there are none of these, no grid."""

RULES = np.dtype(
    [
        ("unit", "i8"),
        ("every", "i8"),  # length of a period of emission; 0: W is published after each item
        ("idle", "i8"),
        ("tolerance", "i8"),  # the out-of-orderness, without splits
        ("clock_tolerance", "i8"),  # how far the watermark is below the arrival clock at most
        ("timeout", "i8"),  # of `window_close`
        ("uses_splits", "i8"),  # 1: the lowest of a timeline's splits counts
        ("waited", "i8"),  # for how long some source had to wait before the segment
        ("since", "i8"),  # some source waits since this clock, throughout the segment; NONE: none does
    ]
)

LOG = np.dtype([("first", "i8"), ("clock", "i8"), ("period", "i8"), ("ended", "i8")])
"""The clock of the log: the first one, that of the last item, its period of emission, and the clock before it."""

OUT_OF_ORDER = np.dtype([("item", "i8"), ("watermark", "i8"), ("set_by", "i8")])
"""An out-of-order item, by its index in the segment."""

RISE = np.dtype(
    [
        ("item", "i8"),  # place in the segment; a tick is one after the last record
        ("timeline", "i8"),
        ("computed", "i8"),  # the watermark after the item
        ("set_by", "i8"),
        ("by_clock", "i8"),  # the watermark of the silence before the item; NONE where it had none
        ("last_clock", "i8"),  # in that silence: the idle clock at the timeline's last event
    ]
)
"""A rise of the computed watermark of a timeline. Rises of `arrival_clock` are left out: they follow the clock."""


@dataclass(frozen=True)
class Items:
    """The items of a segment of one log, in its order.

    Attributes:
        seq: `_arrival_seq`.
        t: The time that rule 3 judges, cut to the unit; any number where there is none.
        clock: The clock of the log; NONE before the first timed record.
        timeline: Index of the timeline; any number of an item OUTSIDE.
        split: Index of the split; without splits empty.
        role: OUTSIDE, ACTIVE, JUDGED or AHEAD.
        closes: By item and window, for `window_close`: the close time that t asks for, NONE in a gap.
        tick: The clock of the tick that ends the segment; None for none.
    """

    seq: Array
    t: Array
    clock: Array
    timeline: Array
    split: Array
    role: Array
    closes: Array
    tick: int | None = None


class Fold(NamedTuple):
    """The state that a segment starts from, and that the loop leaves in the same arrays.

    Attributes:
        timelines: TIMELINE.
        splits: SPLIT, with the splits of a timeline side by side.
        max_close: By timeline and window, for `window_close`: the latest close time that its events ask for.
        grids: GRID of each window, for `window_close`.
        instants: Close times of calendar windows, in order.
        rules: RULES, one.
        log: LOG, one.
    """

    timelines: Any
    splits: Any
    max_close: Any
    grids: Any
    instants: Array
    rules: Any
    log: Any

    def copied(self) -> "Fold":
        """Return the same in arrays of its own, as far as the loop changes them."""
        return self._replace(
            timelines=self.timelines.copy(),
            splits=self.splits.copy(),
            max_close=self.max_close.copy(),
            log=self.log.copy(),
        )


@dataclass(frozen=True)
class Findings:
    """The findings of the loop, in log order.

    Attributes:
        out_of_order: OUT_OF_ORDER.
        rises: RISE.
        silences: By rise, the `max_close` of its timeline.
        below_us: With `measures`, by item how far it is below the watermark that it finds, negative where it is
            ahead of it; NONE without a watermark, or without a time that rule 3 judges. Empty otherwise.
    """

    out_of_order: Array
    rises: Array
    silences: Array
    below_us: Array


def fold(items: Items, state: Fold, *, measures: bool = False) -> Findings:
    """Judge the items of a segment, one after the other, and leave the state after them in `state`.

    With `measures` it also finds how far each item is below the watermark.
    """
    count = len(items.seq)
    clock = items.clock if items.tick is None else np.append(items.clock, np.int64(items.tick))
    most = 2 * count + len(state.timelines) + len(state.splits)
    out_of_order = np.empty(count, OUT_OF_ORDER)
    rises = np.empty(most, RISE)
    silences = np.empty((most if state.rules[0]["idle"] == WINDOW_CLOSE else 0, len(state.grids)), np.int64)
    below_us = np.full(count if measures else 0, NONE)
    columns = [to_read(rows) for rows in (items.seq, items.t, clock, items.timeline, items.split, items.role)]
    columns.append(to_read(items.closes))
    judge: Callable[..., tuple[int, int]] = _judge
    if count < (_COMPILED_AGAIN_FROM if compiled.cache_info().currsize else COMPILED_FROM):
        plain = plain_state(state)
        plain_columns = (column.tolist() for column in columns)
        n_late, n_rises = judge(*plain_columns, plain, out_of_order, rises, silences, below_us)
        _take_over(state, plain)
    else:
        n_late, n_rises = compiled(judge)(*columns, state, out_of_order, rises, silences, below_us)
    rises, silences = rises[:n_rises], silences[:n_rises]
    if (rises["item"][1:] < rises["item"][:-1]).any():  # the rises of a silence are found at its end
        order = np.argsort(rises["item"], kind="stable")
        rises, silences = rises[order], silences[order] if len(silences) else silences
    return Findings(out_of_order[:n_late], rises, silences, below_us)


def to_read(rows: Array) -> Array:
    """Return a read-only view: the loop is compiled for read-only arrays, which Arrow's are."""
    view = np.require(rows, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


def plain_state(state: Fold) -> Fold:
    """Return the state as numbers of Python: without the compiler, reading an array is ten times as slow."""

    def rows(records: Array) -> list[dict[str, int]]:
        names = records.dtype.names or ()
        return [dict(zip(names, record, strict=True)) for record in records.tolist()]

    return Fold(
        *(rows(state.timelines), rows(state.splits), state.max_close.tolist(), rows(state.grids), state.instants),
        *(rows(state.rules), rows(state.log)),
    )


def _take_over(state: Fold, plain: Fold) -> None:
    """Put into the arrays of a state what the loop left in its plain numbers."""
    for records, after in ((state.timelines, plain.timelines), (state.splits, plain.splits), (state.log, plain.log)):
        records[:] = [tuple(record.values()) for record in after]
    if plain.max_close:
        state.max_close[:] = plain.max_close


def _judge(
    seq: Any,
    t: Any,
    clock: Any,
    timeline_of: Any,
    split_of: Any,
    role: Any,
    closes: Any,
    state: Fold,
    out_of_order: Array,
    rises: Array,
    silences: Array,
    below_us: Array,
) -> tuple[int, int]:
    """Run the loop; return how many rows of `out_of_order` and of `rises` it wrote.

    The arrays come one by one: of a tuple of them, each call of compiled code would count the references.
    """
    timelines, splits, rules, log = state.timelines, state.splits, state.rules[0], state.log[0]
    n_late, n_rises = 0, 0
    for i in range(len(clock)):
        if clock[i] == NONE:
            continue
        # The clock becomes that of i: semantics/README.md, «The one principle».
        advance_clock(clock[i], log, rules)
        if i == len(seq) or role[i] == OUTSIDE:  # a tick belongs to no timeline, nor does a dead letter of ingestion
            continue
        k = timeline_of[i]
        timeline = timelines[k]
        split = split_of[i] if rules["uses_splits"] == 1 else 0
        # Periods end and idle rules take effect as of that clock: semantics/idleness.md, «With periodic emission».
        if _is_due(timeline, rules, log):
            n_rises = _apply_idle_and_publish(k, i, False, clock, state, rises, silences, n_rises)
        # i is judged: semantics/watermarks.md, «Out of order».
        if role[i] != ACTIVE:
            n_late = _apply_out_of_order(timeline, i, t[i], out_of_order, n_late)
            if len(below_us) > 0 and timeline["watermark"] != NONE:
                below_us[i] = timeline["watermark"] - t[i]
        # i counts as activity, refused or not: semantics/idleness.md, «Idleness».
        was_active = note_activity(timeline, splits, split, rules, log)
        # i moves W, also where rule 3 drops it, and not where it was kept though early: semantics/watermarks.md.
        if role[i] == JUDGED:
            note_closes(state.max_close[k], closes[i])
            n_rises = _move(timeline, k, i, seq[i], t[i], splits, split, was_active, rules, log, rises, n_rises)
    if log["clock"] != NONE:
        # All timelines come to the clock of the last item. At a tick a timeout has passed that an event would beat.
        end = len(clock) - 1
        for k in range(len(timelines)):
            n_rises = _apply_idle_and_publish(k, end, end == len(seq), clock, state, rises, silences, n_rises)
    return n_late, n_rises


# The clock and periods of emission.


def advance_clock(now: int, log: Any, rules: Any) -> None:
    """Advance the clock to an item; if a new period begins, remember the clock before it."""
    if log["first"] == NONE:
        log["first"] = now
    if rules["every"] > 0:
        period = floored(now, rules["every"])
        if period > log["period"]:
            log["ended"], log["period"] = log["clock"], period
    log["clock"] = now


def _is_due(timeline: Any, rules: Any, log: Any) -> bool:
    """Return whether the clock may change a timeline. Most items need nothing more, so this check uses no arrays."""
    now, idle = log["clock"], rules["idle"]
    if rules["every"] > 0 and log["period"] > timeline["period"]:
        return True
    if rules["every"] == 0 and timeline["watermark"] != timeline["computed"]:
        return True
    if idle == ARRIVAL_CLOCK:
        return bool(arrival_clock_watermark(now, rules) > timeline["computed"])
    if idle == EXCLUDE_SPLIT:
        return bool(timeline["next_idle"] <= now)
    return bool(
        idle == WINDOW_CLOSE and timeline["last_clock"] != NONE and now > timeline["last_clock"] + rules["timeout"]
    )


def _publish(timeline: Any) -> None:
    """Let events and windows see W as the rules compute it."""
    timeline["watermark"], timeline["watermark_set_by"] = timeline["computed"], timeline["computed_set_by"]


def _apply_idle_and_publish(
    k: int, item: int, is_tick: bool, clock: Any, state: Fold, rises: Array, silences: Array, n_rises: int
) -> int:
    """Bring a timeline up to the clock of an item: publish what is due, apply idle rules."""
    timeline, rules, log = state.timelines[k], state.rules[0], state.log[0]
    watermark_before = timeline["computed"]
    if rules["every"] > 0 and log["period"] > timeline["period"]:
        # A period shows W as it was after the last item before it, which may be an item of another timeline.
        if log["ended"] != NONE:
            n_rises = _apply_idle(k, log["ended"], False, item, clock, state, rises, n_rises)
        _publish(timeline)
        timeline["period"] = log["period"]
    n_rises = _apply_idle(k, log["clock"], is_tick, item, clock, state, rises, n_rises)
    if rules["every"] == 0:
        _publish(timeline)
    if rules["idle"] == WINDOW_CLOSE and timeline["computed"] > watermark_before:
        computed = timeline["computed"]
        n_rises = write_rise(rises, n_rises, item, k, computed, NONE, computed, timeline["last_clock"])
        for w in range(len(state.grids)):
            silences[n_rises - 1][w] = state.max_close[k][w]
    return n_rises


# Idle rules: how far the clock alone raises W.


def _apply_idle(
    k: int, now: int, is_tick: bool, item: int, clock: Any, state: Fold, rises: Array, n_rises: int
) -> int:
    """Raise the watermark of a timeline to what the clock alone allows."""
    timeline, rules = state.timelines[k], state.rules[0]
    idle = rules["idle"]
    if idle == ARRIVAL_CLOCK:
        raise_by_clock(timeline, arrival_clock_watermark(now, rules))
    elif idle == WINDOW_CLOSE:
        silent_until = idle_clock(now, is_tick)
        raise_by_clock(
            timeline, window_close_watermark(timeline["last_clock"], state.max_close[k], silent_until, state)
        )
    elif idle == EXCLUDE_SPLIT:
        n_rises = _exclude_splits(k, now, item, clock, state, rises, n_rises)
    return n_rises


def raise_by_clock(timeline: Any, proposed: int) -> None:
    """Raise a timeline's watermark on behalf of the clock."""
    if proposed > timeline["computed"]:  # it never goes back
        timeline["computed"], timeline["computed_set_by"] = proposed, NONE


def _exclude_splits(k: int, now: int, item: int, clock: Any, state: Fold, rises: Array, n_rises: int) -> int:
    """Let idle splits leave the minimum (F), each at the first item of the log by which it is idle."""
    timeline, log = state.timelines[k], state.log[0]
    while timeline["next_idle"] <= now:
        idle_item = _first_from(timeline["next_idle"], clock, item + 1)
        proposed = event_watermark(
            timeline, state.splits, min(clock[idle_item], now) if idle_item <= item else now, log
        )
        if proposed > timeline["computed"]:
            raise_by_clock(timeline, proposed)
            if idle_item > item:  # a segment of no items
                break
            n_rises = write_rise(rises, n_rises, idle_item, k, proposed, NONE, proposed, NONE)
    return n_rises


# Rule 3, activity, and how an event moves W.


def _apply_out_of_order(timeline: Any, item: int, t: int, out_of_order: Array, n_late: int) -> int:
    """Apply rule 3 (H, A2): an event is out of order whose t is below the watermark just before it."""
    if timeline["watermark"] == NONE or t >= timeline["watermark"]:
        return n_late
    late = out_of_order[n_late]
    late["item"], late["watermark"], late["set_by"] = item, timeline["watermark"], timeline["watermark_set_by"]
    return n_late + 1


def note_activity(timeline: Any, splits: Any, split_index: int, rules: Any, log: Any) -> bool:
    """Note an event of a timeline and its split; return whether the split was in the minimum just before (F)."""
    now = log["clock"]
    timeline["last_clock"] = now - waited(rules["waited"], rules["since"], now)
    if rules["uses_splits"] == 0:
        return True
    split = splits[split_index]
    was_active = rules["idle"] != EXCLUDE_SPLIT or now < split_idle_at(split, log["first"])
    split["last_clock"] = now - waited(split["waited"], split["since"], now)
    if not was_active:
        timeline["lowest"] = NONE
    return bool(was_active)


def note_closes(max_close: Any, closes: Any) -> None:
    """Note that the clock may close the windows that an event is in (M)."""
    for w in range(len(closes)):
        if closes[w] != NONE and closes[w] > max_close[w]:
            max_close[w] = closes[w]


def _move(
    timeline: Any,
    k: int,
    item: int,
    seq: int,
    t: int,
    splits: Any,
    split_index: int,
    was_active: bool,
    rules: Any,
    log: Any,
    rises: Array,
    n_rises: int,
) -> int:
    """Move W to the largest t less the out-of-orderness (H, A2), with splits to the lowest of them (F)."""
    timeline["max_t"] = max(timeline["max_t"], t)
    if rules["uses_splits"] == 1:
        proposed = _move_split(timeline, splits, split_index, was_active, t, log)
    else:
        proposed = max(t - rules["tolerance"], MIN_US)
    if proposed > timeline["computed"]:  # it never goes back
        timeline["computed"], timeline["computed_set_by"] = proposed, seq
        n_rises = write_rise(rises, n_rises, item, k, proposed, seq, NONE, NONE)
    if rules["every"] == 0:
        _publish(timeline)
    return n_rises


# Splits.


def _move_split(timeline: Any, splits: Any, split_index: int, was_active: bool, t: int, log: Any) -> int:
    """Let an event move its split; return the watermark that the splits of its timeline allow then."""
    split = splits[split_index]
    allows_before = split["allows"]
    if t > split["max_t"]:
        split["max_t"] = t
        split["allows"] = max(t - split["tolerance"], MIN_US)
    if allows_before != NONE and was_active and timeline["lowest"] != NONE and allows_before > timeline["lowest"]:
        return int(timeline["lowest"])  # a split that is ahead of the slowest does not hold it back
    return event_watermark(timeline, splits, log["clock"], log)


def event_watermark(timeline: Any, splits: Any, now: int, log: Any) -> int:
    """Return the lowest of active splits (F), the highest if all are idle; NONE while a listed one is awaited."""
    least, highest, next_idle, is_any, is_awaited = NEVER, NONE, NEVER, False, False
    for s in range(timeline["first_split"], timeline["first_split"] + timeline["n_splits"]):
        split = splits[s]
        has_events = split["allows"] != NONE
        if has_events:
            highest = max(highest, split["allows"])
        elif split["listed"] == 0:
            continue
        leaves = split_idle_at(split, log["first"])
        if now >= leaves:
            continue
        is_any = True
        next_idle = min(next_idle, leaves)
        if has_events:
            least = min(least, split["allows"])
        else:
            is_awaited = True
    timeline["next_idle"] = next_idle
    timeline["lowest"] = least if is_any and not is_awaited else NONE
    if not is_any:
        return int(highest)
    return NONE if is_awaited else int(least)


# Tools of the loop.


def _first_from(us: int, clock: Any, end: int) -> int:
    """Return the first of `clock[:end]` that has come to an instant; `end` for none."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        if clock[middle] < us:
            low = middle + 1
        else:
            high = middle
    return low


def write_rise(
    rises: Array, n_rises: int, item: int, k: int, computed: int, set_by: int, by_clock: int, last_clock: int
) -> int:
    """Write a rise of a timeline at an item; a second rise at the same item replaces the first."""
    is_second = n_rises > 0 and rises[n_rises - 1]["item"] == item and rises[n_rises - 1]["timeline"] == k
    n_rises = n_rises if is_second else n_rises + 1
    rise = rises[n_rises - 1]
    rise["item"], rise["timeline"], rise["computed"], rise["set_by"] = item, k, computed, set_by
    if by_clock != NONE or not is_second:  # the clock acts before the event of the item
        rise["by_clock"], rise["last_clock"] = by_clock, last_clock
    return n_rises


@cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop, compiled; the code is stored next to its file, or in the user's cache folder.

    What it calls is compiled with it. A change of that alone leaves the stored code as it is: touch the loop's file.
    """
    from numba import njit  # noqa: PLC0415  (only who has many items pays for it)
    from numba.extending import register_jitable  # noqa: PLC0415

    for part in _called_by(loop):
        register_jitable(part)
    loaded: Callable[..., Any] = njit(cache=True)(loop)
    return loaded


def _called_by(loop: Callable[..., Any]) -> set[FunctionType]:
    """Return the functions of modules that a function calls, and that these call in turn."""
    called, to_look_into = set[FunctionType](), [loop]
    while to_look_into:
        caller = to_look_into.pop()
        assert isinstance(caller, FunctionType)
        names = [name for name in caller.__code__.co_names if isinstance(caller.__globals__.get(name), FunctionType)]
        fresh = {caller.__globals__[name] for name in names} - called
        called |= fresh
        to_look_into += fresh
    return called
