"""The rules of time as one loop over the items of a segment of the log, in the order of the log.

Here: what an item finds and what it moves: the clock, periods of emission (F), idle rules (A2, F, M), rule 3 (H, A2),
activity, splits (F), the watermark. Arrays in, arrays out. Not here: what one record says by itself, which is its
time and rules 0 to 2 (events/), what becomes of a record behind its watermark (events/adjustment.py), when a
watermark came to a value (rises.py), Spark, stored tables (timelines.py).

At item i, in this order: the clock becomes that of i; idle rules take effect as of it; i is judged; i counts as
activity; i moves the watermark. A timeline is brought up to date when an item asks for it. What the clock alone does
in between is a function of the clock, and the clock never falls.

Instants and lengths are BIGINT microseconds; NONE means that there is no value. The same functions run as
they are on few items, and compiled on many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -(2**63)
NEVER = 2**63 - 1
MIN_US = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z, the lowest watermark

COMPILED_FROM = 200_000
"""From so many items on the loop is compiled: loading the compiler takes as long as some ten thousand items do."""

# What an item is to the watermark of its timeline.
OUTSIDE = 0  # a dead letter of ingestion: it belongs to no timeline, and only moves the clock
ACTIVE = 1  # refused by rules 0 to 2, or without a time: activity, that moves no watermark
JUDGED = 2  # it has a time that rule 3 judges, and moves the watermark

# What the clock alone does (`idle`).
NOTHING, ARRIVAL_CLOCK, EXCLUDE_SPLIT, WINDOW_CLOSE = 0, 1, 2, 3

TIMELINE = np.dtype(
    [
        ("max_t", "i8"),  # the largest t
        ("seen", "i8"),  # the watermark that events find, and after which of them it had this value
        ("seen_by", "i8"),
        ("computed", "i8"),  # the watermark that the rules set: ahead of `seen` until the next period
        ("computed_by", "i8"),
        ("period", "i8"),  # in which `seen` was published
        ("last", "i8"),  # the idle clock at its last event
        ("first_slot", "i8"),  # its splits are slots[first_slot:][:slots]
        ("slots", "i8"),
        ("lowest", "i8"),  # the watermark that its splits had last; NONE where it has to be looked up
        ("next_idle", "i8"),  # no split becomes idle before this clock
    ]
)

SLOT = np.dtype(
    [
        ("allows", "i8"),  # the watermark that the split allows: its largest t less its out-of-orderness
        ("max_t", "i8"),
        ("last", "i8"),  # the idle clock at its last event
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
        ("every", "i8"),  # length of a period of emission; 0: the watermark is seen at once
        ("idle", "i8"),
        ("tolerance", "i8"),  # the out-of-orderness, without splits
        ("clock_tolerance", "i8"),  # how far the watermark is below the arrival clock at most
        ("timeout", "i8"),  # of `window_close`
        ("splits", "i8"),  # 1: the lowest of a timeline's splits counts
        ("waited", "i8"),  # for how long some source had to wait before the segment
        ("since", "i8"),  # some source waits since this clock, throughout the segment; NONE: none does
    ]
)

LOG = np.dtype([("first", "i8"), ("clock", "i8"), ("period", "i8"), ("ended", "i8")])
"""The clock of the log: the first one, that of the last item, its period of emission, and the clock before it."""

BEHIND = np.dtype([("item", "i8"), ("watermark", "i8"), ("set_by", "i8")])
"""An item that is behind the watermark it finds, by its place in the segment."""

RISE = np.dtype(
    [
        ("item", "i8"),  # place in the segment; a tick is one after the last record
        ("timeline", "i8"),
        ("watermark", "i8"),  # after the item
        ("set_by", "i8"),
        ("by_clock", "i8"),  # the watermark of the silence before the item; NONE where it had none
        ("last", "i8"),  # in that silence: the idle clock at the timeline's last event
    ]
)
"""A rise of the computed watermark of a timeline. Those of `arrival_clock` are left out: they follow the clock."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Items:
    """The items of a segment of one log, in its order.

    Attributes:
        seq: `_arrival_seq`.
        t: The time that rule 3 judges, cut to the unit; any number where there is none.
        clock: The clock of the log; NONE before the first timed record.
        timeline: Index of the timeline; any number of an item OUTSIDE.
        slot: Index of the split; without splits empty.
        role: OUTSIDE, ACTIVE or JUDGED.
        closes: By item and window, for `window_close`: the close time that t asks for, NONE in a gap.
        tick: The clock of the tick that ends the segment; None for none.
    """

    seq: Array
    t: Array
    clock: Array
    timeline: Array
    slot: Array
    role: Array
    closes: Array
    tick: int | None = None


class Fold(NamedTuple):
    """The state that a segment starts from, and that the loop leaves in the same arrays.

    Only what few items need takes all of it: a compiled call counts the references of each array.

    Attributes:
        timelines: TIMELINE.
        slots: SLOT, those of a timeline side by side.
        reached: By timeline and window, for `window_close`: the latest close time that its events ask for.
        grids: GRID of each window, for `window_close`.
        instants: Close times of calendar windows, in order.
        rules: RULES, one.
        log: LOG, one.
    """

    timelines: Array
    slots: Array
    reached: Array
    grids: Array
    instants: Array
    rules: Array
    log: Array


@dataclass(frozen=True)
class Found:
    """The findings of the loop: BEHIND and RISE, in log order; `silences` holds, of each rise, `reached`."""

    behind: Array
    rises: Array
    silences: Array


def fold(items: Items, state: Fold) -> Found:
    """Judge the items of a segment, one after the other, and leave the state after them in `state`."""
    count = len(items.seq)
    clock = items.clock if items.tick is None else np.append(items.clock, np.int64(items.tick))
    most = 2 * count + len(state.timelines) + len(state.slots)
    behind = np.empty(count, BEHIND)
    rises = np.empty(most, RISE)
    silences = np.empty((most if state.rules[0]["idle"] == WINDOW_CLOSE else 0, len(state.grids)), np.int64)
    run = _judge if count < COMPILED_FROM else compiled(_judge, *_PARTS)
    n_behind, n_rises = run(
        items.seq,
        items.t,
        clock,
        items.timeline,
        items.slot,
        items.role,
        items.closes,
        state,
        behind,
        rises,
        silences,
    )
    order = np.argsort(rises["item"][:n_rises], kind="stable")  # the rises of a silence are found at its end
    return Found(
        behind[:n_behind], rises[:n_rises][order], silences[: len(silences) and n_rises][order[: len(silences)]]
    )


def _judge(
    seq: Array,
    t: Array,
    clock: Array,
    timeline: Array,
    slot: Array,
    role: Array,
    closes: Array,
    state: Fold,
    behind: Array,
    rises: Array,
    silences: Array,
) -> tuple[int, int]:
    """Run the loop; return how many rows of `behind` and of `rises` it wrote."""
    timelines, slots, rules, log = state.timelines, state.slots, state.rules[0], state.log[0]
    n_behind, n_rises = 0, 0
    for i in range(len(clock)):
        is_tick = i == len(seq)
        if clock[i] == NONE:
            continue
        _pass_time(clock[i], log, rules)
        if is_tick or role[i] == OUTSIDE:
            continue
        k = timeline[i]
        one = timelines[k]
        if _is_due(one, rules, log):
            n_rises = _bring_up_to_date(k, i, False, clock, state, rises, silences, n_rises)
        if role[i] == JUDGED:
            n_behind = _judge_order(one, i, t[i], behind, n_behind)
        was_active = _note_activity(one, slots, slot[i] if rules["splits"] == 1 else 0, rules, log)
        if role[i] == JUDGED:
            _note_closes(state.reached[k], closes[i])
            own = slot[i] if rules["splits"] == 1 else 0
            n_rises = _move(one, k, i, seq[i], t[i], slots, own, was_active, rules, log, rises, n_rises)
    if log["clock"] != NONE:
        end = len(clock) - 1
        for k in range(len(timelines)):
            n_rises = _bring_up_to_date(k, end, end == len(seq), clock, state, rises, silences, n_rises)
    return n_behind, n_rises


def _is_due(one: Any, rules: Any, log: Any) -> bool:
    """Return whether the clock may change what a timeline shows: nearly no item has to ask any further."""
    now, idle = log["clock"], rules["idle"]
    if rules["every"] > 0:
        if log["period"] > one["period"]:
            return True
    elif one["seen"] != one["computed"]:
        return True
    if idle == ARRIVAL_CLOCK:
        return bool(now - rules["clock_tolerance"] > one["computed"])
    if idle == EXCLUDE_SPLIT:
        return bool(one["next_idle"] <= now)
    return bool(idle == WINDOW_CLOSE and one["last"] != NONE and now > one["last"] + rules["timeout"])


def _judge_order(one: Any, item: int, t: int, behind: Array, n_behind: int) -> int:
    """Apply rule 3 (H, A2): an event is out of order whose t is below the watermark just before it."""
    if one["seen"] == NONE or t >= one["seen"]:
        return n_behind
    found = behind[n_behind]
    found["item"], found["watermark"], found["set_by"] = item, one["seen"], one["seen_by"]
    return n_behind + 1


def _note_activity(one: Any, slots: Array, own: int, rules: Any, log: Any) -> bool:
    """Note an event of a timeline and its split; return whether the split was in the minimum just before (F)."""
    now = log["clock"]
    one["last"] = now - waited(rules["waited"], rules["since"], now)
    if rules["splits"] == 0:
        return True
    split = slots[own]
    was_active = rules["idle"] != EXCLUDE_SPLIT or now < _idle_at(split, log["first"])
    split["last"] = now - waited(split["waited"], split["since"], now)
    if not was_active:
        one["lowest"] = NONE
    return bool(was_active)


def _note_closes(reached: Array, closes: Array) -> None:
    """Note that the clock may close the windows that an event is in (M)."""
    for w in range(len(closes)):
        if closes[w] != NONE and closes[w] > reached[w]:
            reached[w] = closes[w]


def _move(
    one: Any,
    k: int,
    item: int,
    seq: int,
    t: int,
    slots: Array,
    own: int,
    was_active: bool,
    rules: Any,
    log: Any,
    rises: Array,
    n_rises: int,
) -> int:
    """Move the watermark to the largest t less the out-of-orderness (H, A2), with splits to the lowest (F)."""
    one["max_t"] = max(one["max_t"], t)
    if rules["splits"] == 1:
        proposed = _with_split(one, slots, own, was_active, t, log)
    else:
        proposed = max(t - rules["tolerance"], MIN_US)
    if proposed > one["computed"]:
        one["computed"], one["computed_by"] = proposed, seq
        n_rises = _write_rise(rises, n_rises, item, k, proposed, seq)
    if rules["every"] == 0:
        one["seen"], one["seen_by"] = one["computed"], one["computed_by"]
    return n_rises


def _floor(value: int, step: int) -> int:
    return value // step * step


def waited(before: int, since: int, now: int) -> int:
    """Return how long a source or split has waited by now: before the segment, and since it waits in it."""
    return before if since == NONE else before + now - since


def _pass_time(now: int, log: Any, rules: Any) -> None:
    """Let the clock come to an item; where that begins a period, remember the clock before it."""
    if log["first"] == NONE:
        log["first"] = now
    if rules["every"] > 0:
        period = _floor(now, rules["every"])
        if period > log["period"]:
            log["ended"], log["period"] = log["clock"], period
    log["clock"] = now


def _write_rise(rises: Array, n_rises: int, item: int, k: int, watermark: int, set_by: int) -> int:
    """Write a rise of a timeline at an item; of a second one at the same item the watermark is the higher."""
    if n_rises > 0 and rises[n_rises - 1]["item"] == item and rises[n_rises - 1]["timeline"] == k:
        rises[n_rises - 1]["watermark"], rises[n_rises - 1]["set_by"] = watermark, set_by
        return n_rises
    one = rises[n_rises]
    one["item"], one["timeline"], one["watermark"], one["set_by"] = item, k, watermark, set_by
    one["by_clock"], one["last"] = NONE, NONE
    return n_rises + 1


def _bring_up_to_date(
    k: int, item: int, is_tick: bool, clock: Array, state: Fold, rises: Array, silences: Array, n_rises: int
) -> int:
    """Bring a timeline up to date as the clock comes to an item: publish what is due, apply idle rules."""
    one, rules, log = state.timelines[k], state.rules[0], state.log[0]
    before = one["computed"]
    if rules["every"] > 0 and log["period"] > one["period"]:
        # Shown is the watermark as it was after the last item before the period.
        if log["ended"] != NONE:
            n_rises = _by_clock(k, log["ended"], False, item, clock, state, rises, n_rises)
        one["seen"], one["seen_by"], one["period"] = one["computed"], one["computed_by"], log["period"]
    n_rises = _by_clock(k, log["clock"], is_tick, item, clock, state, rises, n_rises)
    if rules["every"] == 0:
        one["seen"], one["seen_by"] = one["computed"], one["computed_by"]
    if rules["idle"] == WINDOW_CLOSE and one["computed"] > before:
        n_rises = _write_rise(rises, n_rises, item, k, one["computed"], NONE)
        rises[n_rises - 1]["by_clock"], rises[n_rises - 1]["last"] = one["computed"], one["last"]
        silences[n_rises - 1] = state.reached[k]
    return n_rises


def _by_clock(
    k: int, now: int, is_tick: bool, item: int, clock: Array, state: Fold, rises: Array, n_rises: int
) -> int:
    """Raise the computed watermark of a timeline to what the clock alone allows."""
    one, rules, log = state.timelines[k], state.rules[0], state.log[0]
    idle = rules["idle"]
    if idle == ARRIVAL_CLOCK:
        _raise_by_clock(one, _floor(max(now - rules["clock_tolerance"], MIN_US), rules["unit"]))
    elif idle == WINDOW_CLOSE and rules["since"] == NONE and one["last"] != NONE:
        # A record at the very instant of the timeout beats it, a tick does not.
        silent = now if is_tick else now - 1
        if silent - rules["waited"] >= one["last"] + rules["timeout"]:
            _raise_by_clock(one, _closed_by_clock(state, k, silent - rules["timeout"]))
    elif idle == EXCLUDE_SPLIT:
        while one["next_idle"] <= now:  # at the first item of the log by which a split is idle, and so on
            at = np.searchsorted(clock[: item + 1], one["next_idle"])
            proposed = lowest(one, state.slots, min(clock[at], now) if at <= item else now, log)
            if proposed > one["computed"]:
                _raise_by_clock(one, proposed)
                if at > item:  # a segment of no items
                    break
                n_rises = _write_rise(rises, n_rises, at, k, proposed, NONE)
                rises[n_rises - 1]["by_clock"] = proposed
    return n_rises


def _raise_by_clock(one: Any, proposed: int) -> None:
    if proposed > one["computed"]:
        one["computed"], one["computed_by"] = proposed, NONE


def _closed_by_clock(state: Fold, k: int, limit: int) -> int:
    """Return the latest close time up to a limit of windows that hold events (M); NONE where there is none."""
    found = NONE
    for w in range(len(state.grids)):
        highest, on_grid = state.reached[k, w], _last_close(state.grids[w], state.instants, limit)
        if on_grid != NONE:
            found = max(found, min(highest, on_grid))
        elif highest <= limit:  # only the close time itself
            found = max(found, highest)
    return found if found == NONE else _floor(found, state.rules[0]["unit"])


def _last_close(grid: Any, instants: Array, limit: int) -> int:
    """Return the latest close time on a grid that is at most a limit; NONE where there is no grid."""
    if grid["period"] > 0:
        return int(grid["anchor"] + _floor(limit - grid["anchor"], grid["period"]))
    place = np.searchsorted(instants[grid["first"] : grid["end"]], limit, "right")
    return int(instants[grid["first"] + place - 1]) if place > 0 else NONE


def _with_split(one: Any, slots: Array, own: int, was_active: bool, t: int, log: Any) -> int:
    """Return the watermark that the splits of a timeline allow after an event of one of them."""
    split = slots[own]
    before = split["allows"]
    if t > split["max_t"]:
        split["max_t"] = t
        split["allows"] = max(t - split["tolerance"], MIN_US)
    if before != NONE and was_active and one["lowest"] != NONE and before > one["lowest"]:
        return int(one["lowest"])  # a split that is ahead of the slowest does not hold it back
    return lowest(one, slots, log["clock"], log)


def lowest(one: Any, slots: Array, now: int, log: Any) -> int:
    """Return the lowest of active splits (F), the highest if all are idle; NONE while a listed one is awaited."""
    least, highest, next_idle, is_any, is_awaited = NEVER, NONE, NEVER, False, False
    for s in range(one["first_slot"], one["first_slot"] + one["slots"]):
        split = slots[s]
        has_events = split["allows"] != NONE
        if has_events:
            highest = max(highest, split["allows"])
        elif split["listed"] == 0:
            continue
        idle_at = _idle_at(split, log["first"])
        if now >= idle_at:
            continue
        is_any = True
        next_idle = min(next_idle, idle_at)
        if has_events:
            least = min(least, split["allows"])
        else:
            is_awaited = True
    one["next_idle"] = next_idle
    one["lowest"] = least if is_any and not is_awaited else NONE
    if not is_any:
        return int(highest)
    return NONE if is_awaited else int(least)


def _idle_at(split: Any, first: int) -> int:
    """Return the clock from which on a split is idle (F); without an event its silence begins with the log."""
    if split["timeout"] == NONE:
        return NEVER
    last = first if split["last"] == NONE else split["last"]
    at = last + split["timeout"] + split["waited"]
    # Waiting is not idleness; but a split that was idle before it had to wait stays so.
    return NEVER if split["since"] != NONE and at > split["since"] else at


_PARTS = (
    *(_is_due, _judge_order, _note_activity, _note_closes, _move),
    *(_floor, waited, _pass_time, _write_rise, _bring_up_to_date, _by_clock, _raise_by_clock),
    *(_closed_by_clock, _last_close),
    *(_with_split, lowest, _idle_at),
)


@cache
def compiled(loop: Callable[..., Any], *parts: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop, compiled; the code is kept beside its file, or in the user's cache folder.

    `parts` are the functions that it calls, and that these call in turn.
    """
    from numba import njit  # noqa: PLC0415  (only who has many items pays for it)
    from numba.extending import register_jitable  # noqa: PLC0415

    for part in parts:
        register_jitable(part)
    found: Callable[..., Any] = njit(cache=True)(loop)
    return found
