"""The watermark across timelines: the lowest of the ones that have had an event and are not idle.

Here: how it rises in a segment, as one more timeline that has no events of its own; which timelines count, and when
one is idle. Not here: the watermark of each timeline (timeops/watermark/fold.py), which the loop has found before;
what windows across timelines see (across_timelines in timeops/events/adjustment.py).

It is to timelines what the watermark of a timeline is to splits: a timeline joins the minimum with its first event
that moves a watermark, and leaves it while it is idle (`exclude_split`). Where all are idle the highest counts. It
never goes back: a timeline that begins with an earlier time keeps it where it is, until that timeline has caught up.

Instants and lengths are BIGINT microseconds; NONE means that there is no value.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tidemark.timeops.values.instants import NEVER, NONE, Array
from tidemark.timeops.watermark import fold
from tidemark.timeops.watermark.clock import (
    ARRIVAL_CLOCK,
    EXCLUDE_SPLIT,
    WINDOW_CLOSE,
    arrival_clock_watermark,
    idle_clock,
    split_idle_at,
    timeline_idle_at,
    window_close_watermark,
)
from tidemark.timeops.watermark.fold import (
    JUDGED,
    OUTSIDE,
    RISE,
    Findings,
    Fold,
    Items,
    advance_clock,
    compiled,
    note_activity,
    note_closes,
    plain_state,
    raise_by_clock,
    to_read,
    write_rise,
)
from tidemark.timeops.watermark.rises import Rises

# Whether a timeline is in the minimum.
NO_EVENT, COUNTS, IDLE = 0, 1, 2


def raise_at_start(start: Fold, across: int) -> None:
    """Raise the watermark across timelines to what these allow before the segment.

    It is there already, unless a change of the spec has just raised theirs, or has made some of them idle.
    """
    of_all, now = start.timelines[across], int(start.log[0]["clock"])
    if now == NONE:
        return
    part, idle_from = _standing(start, int(start.log[0]["first"]))
    watermarks = start.timelines["computed"]
    counts = (part == COUNTS) & (idle_from > now)
    counted = watermarks[counts] if counts.any() else watermarks[part == COUNTS]
    allowed = int(counted.min(initial=NEVER) if counts.any() else counted.max(initial=NONE))
    if allowed > of_all["computed"]:
        of_all["computed"], of_all["computed_set_by"] = allowed, NONE


def with_across(items: Items, start: Fold, findings: Findings, across: int) -> Findings:
    """Add the rises of the watermark across timelines to the findings of the loop.

    Args:
        items: The items of the segment.
        start: The state before it.
        findings: What the loop says of each timeline.
        across: The index of the timeline that represents all.
    """
    raised = rises_across(items, start, findings.rises, across)
    if not len(raised):
        return findings
    rises = np.concatenate([findings.rises, raised])
    order = np.argsort(rises["item"], kind="stable")
    # The clock raises it at items that are known, so its rises need no silences.
    silences = findings.silences
    if start.rules[0]["idle"] == WINDOW_CLOSE:
        silences = np.concatenate([silences, np.full((len(raised), len(start.grids)), NONE)])[order]
    return Findings(findings.out_of_order, rises[order], silences, findings.below_us)


def rises_across(items: Items, start: Fold, rises: Array, across: int) -> Array:
    """Return the rises of the watermark across timelines, RISE in the order of the log."""
    clock = items.clock if items.tick is None else np.append(items.clock, np.int64(items.tick))
    timed = clock[clock != NONE]
    if not len(timed):
        return np.zeros(0, RISE)
    first = int(start.log[0]["first"])
    part, idle_from = _standing(start, int(timed[0]) if first == NONE else first)
    watermarks = start.timelines["computed"]
    lowest = _tree(np.where(part == COUNTS, watermarks, NEVER))
    idle = _tree(np.where(part == COUNTS, idle_from, NEVER))
    highest = int(watermarks[part == COUNTS].max(initial=NONE))
    state = start.copied()
    raised = np.empty(len(clock), RISE)
    columns = (clock, items.seq, items.timeline, items.split, items.role, items.closes)
    of_rises = tuple(rises[name] for name in ("item", "timeline", "computed", "set_by", "by_clock"))
    walk: Callable[..., int] = _walk
    if len(clock) < fold.COMPILED_FROM:
        plain = [rows.tolist() for rows in (*columns, *of_rises)]
        trees = [rows.tolist() for rows in (part, lowest, idle, idle_from)]
        n_raised = walk(*plain, plain_state(state), *trees, highest, across, raised)
    else:
        arrays = [to_read(rows) for rows in (*columns, *of_rises)]
        n_raised = compiled(walk)(*arrays, state, part, lowest, idle, idle_from, highest, across, raised)
    return raised[:n_raised]


def _standing(start: Fold, first: int) -> tuple[Array, Array]:
    """For each timeline, return whether it counts towards the minimum, and the clock at which it becomes idle."""
    rows, rules = start.timelines, start.rules[0]
    part = np.where(rows["max_t"] == NONE, NO_EVENT, COUNTS).astype(np.int64)
    idle_from = np.full(len(rows), NEVER)
    if rules["idle"] != EXCLUDE_SPLIT:
        return part, idle_from
    if rules["uses_splits"] == 0:
        idle_from[:] = [NEVER if row["last_clock"] == NONE else timeline_idle_at(row, rules) for row in rows]
        return part, idle_from
    for k, (begin, count) in enumerate(zip(rows["first_split"].tolist(), rows["n_splits"].tolist(), strict=True)):
        splits = start.splits[begin : begin + count]
        silent = splits[(splits["last_clock"] != NONE) | (splits["listed"] == 1)]
        idle_from[k] = max((split_idle_at(split, first) for split in silent), default=NONE)
    return part, idle_from


def _walk(
    clock: Any,
    seq: Any,
    timeline_of: Any,
    split_of: Any,
    role: Any,
    closes: Any,
    rise_item: Any,
    rise_timeline: Any,
    rise_watermark: Any,
    rise_set_by: Any,
    rise_by_clock: Any,
    state: Fold,
    part: Any,
    lowest: Any,
    idle: Any,
    idle_from: Any,
    highest: int,
    across: int,
    raised: Array,
) -> int:
    """Run the loop over the items; return how many rows of `raised` it wrote."""
    timelines, rules, log = state.timelines, state.rules[0], state.log[0]
    of_all, n_raised, row = timelines[across], 0, 0
    for i in range(len(clock)):
        if clock[i] == NONE:
            continue
        # The clock becomes that of i; it raises timelines, and makes some of them idle.
        advance_clock(clock[i], log, rules)
        end = row
        while end < len(rise_item) and rise_item[end] == i:
            if rise_by_clock[end] != NONE:
                highest = _stand(rise_timeline[end], rise_by_clock[end], timelines, part, lowest, highest)
            end += 1
        _leave(clock[i], part, lowest, idle)
        _follow_silences(i == len(seq), state, lowest)
        n_raised = _raise_by_clock(
            of_all, i, across, lowest[1] if lowest[1] != NEVER else highest, state, raised, n_raised
        )
        # i counts as activity of its timeline, and moves its watermark.
        if i < len(seq) and role[i] != OUTSIDE:
            k = timeline_of[i]
            _note(k, split_of[i] if rules["uses_splits"] == 1 else 0, state, part, lowest, idle, idle_from)
            if role[i] == JUDGED:
                note_closes(state.max_close[k], closes[i])
                _join(k, timelines, part, lowest, idle, idle_from)
                for r in range(row, end):
                    if rise_timeline[r] == k and rise_set_by[r] != NONE:
                        highest = _stand(k, rise_watermark[r], timelines, part, lowest, highest)
                _follow_silences(False, state, lowest)  # another one may be the lowest now
                if lowest[1] != NEVER and lowest[1] > of_all["computed"]:
                    of_all["computed"], of_all["computed_set_by"] = lowest[1], seq[i]
                    n_raised = write_rise(raised, n_raised, i, across, lowest[1], seq[i], NONE, NONE)
        row = end
    return n_raised


def _raise_by_clock(
    of_all: Any, item: int, across: int, allowed: int, state: Fold, raised: Array, n_raised: int
) -> int:
    """Raise the watermark across timelines before the event of an item; return the number of rows of `raised`."""
    rules = state.rules[0]
    if rules["idle"] == ARRIVAL_CLOCK:
        raise_by_clock(of_all, arrival_clock_watermark(state.log[0]["clock"], rules))
    if allowed > of_all["computed"]:
        raise_by_clock(of_all, allowed)
        n_raised = write_rise(raised, n_raised, item, across, allowed, NONE, allowed, NONE)
    return n_raised


def _stand(k: int, watermark: int, timelines: Any, part: Any, lowest: Any, highest: int) -> int:
    """Note the watermark of a timeline; return the highest of the ones that have had an event."""
    timelines[k]["computed"] = max(timelines[k]["computed"], watermark)
    if part[k] == NO_EVENT:
        return highest
    if part[k] == COUNTS:
        _put(lowest, k, timelines[k]["computed"])
    return int(max(highest, timelines[k]["computed"]))


def _leave(now: int, part: Any, lowest: Any, idle: Any) -> None:
    """Let the timelines that are idle by a clock leave the minimum."""
    while idle[1] <= now:
        k = _place_of_lowest(idle)
        part[k] = IDLE
        _put(idle, k, NEVER)
        _put(lowest, k, NEVER)


def _follow_silences(is_tick: bool, state: Fold, lowest: Any) -> None:
    """Raise the lowest watermarks to what the clock allows timelines that are silent (M)."""
    if state.rules[0]["idle"] != WINDOW_CLOSE:
        return
    silent_until = idle_clock(state.log[0]["clock"], is_tick)
    while lowest[1] != NEVER:
        k = _place_of_lowest(lowest)
        watermark = window_close_watermark(state.timelines[k]["last_clock"], state.max_close[k], silent_until, state)
        if watermark <= state.timelines[k]["computed"]:
            return
        state.timelines[k]["computed"] = watermark
        _put(lowest, k, watermark)


def _note(k: int, split: int, state: Fold, part: Any, lowest: Any, idle: Any, idle_from: Any) -> None:
    """Note an event of a timeline, refused or not: one that was idle is in the minimum again."""
    timeline, rules, log = state.timelines[k], state.rules[0], state.log[0]
    note_activity(timeline, state.splits, split, rules, log)
    if rules["idle"] != EXCLUDE_SPLIT:
        return
    if rules["uses_splits"] == 1:
        idle_from[k] = max(idle_from[k], split_idle_at(state.splits[split], log["first"]))
    else:
        idle_from[k] = timeline_idle_at(timeline, rules)
    if part[k] == IDLE:
        part[k] = COUNTS
        _put(lowest, k, timeline["computed"])
    if part[k] == COUNTS:
        _put(idle, k, idle_from[k])


def _join(k: int, timelines: Any, part: Any, lowest: Any, idle: Any, idle_from: Any) -> None:
    """Let a timeline join the minimum with its first event that moves a watermark."""
    if part[k] == NO_EVENT:
        part[k] = COUNTS
        _put(lowest, k, timelines[k]["computed"])
        _put(idle, k, idle_from[k])


# The lowest of many numbers that change one at a time: the leaves of a tree hold them, and each node above holds the
# lower of its two. The root is at 1.


def _tree(numbers: Array) -> Array:
    size = 1 << max(int(len(numbers) - 1).bit_length(), 0)
    tree = np.full(2 * size, NEVER)
    tree[size : size + len(numbers)] = numbers
    while size > 1:
        tree[size // 2 : size] = np.minimum(tree[size : 2 * size : 2], tree[size + 1 : 2 * size : 2])
        size //= 2
    return tree


def _put(tree: Any, place: int, number: int) -> None:
    at = len(tree) // 2 + place
    tree[at] = number
    while at > 1:
        at //= 2
        lower = min(tree[2 * at], tree[2 * at + 1])
        if tree[at] == lower:
            return
        tree[at] = lower


def _place_of_lowest(tree: Any) -> int:
    at, size = 1, len(tree) // 2
    while at < size:
        at = 2 * at if tree[2 * at] == tree[1] else 2 * at + 1
    return int(at - size)


def publish(items: Items, start: Fold, findings: Findings, state: Fold, across: int) -> None:
    """Leave in the state after the segment how far the watermark across timelines is, computed and seen."""
    place = np.array([len(items.seq) - (items.tick is None)])
    of_all, which = state.timelines[across], np.array([across])
    if place[0] < 0:
        return
    rises = Rises(items, start, findings)
    published, computed = rises.after(which, place), rises.computed(which, place)
    of_all["watermark"], of_all["watermark_set_by"] = published.value[0], published.set_by[0]
    of_all["computed"], of_all["computed_set_by"] = computed.value[0], computed.set_by[0]
