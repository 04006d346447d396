"""Rules of the clock: how far the clock alone raises the watermark of a timeline, and when a split is idle.

Here: each rule once. What the loop applies to one timeline (timeops/watermark/fold.py, timeops/watermark/across.py)
takes numbers, and is compiled in a large segment; below it is the same for arrays, which look-ups ask
(timeops/watermark/rises.py). Not here: when a rule is applied, and what it does to the minimum of splits
(timeops/watermark/fold.py).

`rules` is fold.RULES, one, and `state` a fold.Fold. Instants and lengths are BIGINT microseconds; NONE means that
there is no value.
"""

from typing import Any

import numpy as np

from tidemark.timeops.values.instants import MIN_US, NEVER, NONE, Array, floored

# What the clock alone does (`idle`).
NOTHING, ARRIVAL_CLOCK, EXCLUDE_SPLIT, WINDOW_CLOSE = 0, 1, 2, 3


# The arrival clock (A2).


def arrival_clock_watermark(now: int, rules: Any) -> int:
    """Return the watermark that the arrival clock sets for every timeline (A2)."""
    return int(floored(max(now - rules["clock_tolerance"], MIN_US), rules["unit"]))


def arrival_clock_watermarks(now: Array, rules: Any) -> Array:
    """Return the same by clock; NONE before the first one."""
    allowed = np.maximum(np.where(now == NONE, MIN_US, now) - rules["clock_tolerance"], MIN_US)
    return np.where(now == NONE, NONE, floored(allowed, rules["unit"]))


# Silence that closes windows (M).


def idle_clock(now: Any, is_tick: Any) -> Any:
    """Return the clock by which silence is measured; of one item, or of each in arrays.

    An event at the very instant of a timeout beats it, a tick does not.
    """
    return now - 1 + is_tick


def window_close_watermark(last: int, max_close: Any, now: int, state: Any) -> int:
    """Return the latest close time that the clock allows, of windows that hold events (M); NONE for none.

    Args:
        last: The idle clock at the timeline's last event.
        max_close: By window the latest close time that its events ask for.
        now: The `idle_clock`.
        state: The rules, and the grids of windows.
    """
    rules = state.rules[0]
    # While a source waits, no timeline is silent: what waits may hold events of it.
    if rules["since"] != NONE or last == NONE or now - rules["waited"] < last + rules["timeout"]:
        return NONE
    latest, limit = NONE, now - rules["timeout"]
    for w in range(len(state.grids)):
        on_grid = last_close(state.grids[w], state.instants, limit)
        if on_grid != NONE:
            latest = max(latest, min(max_close[w], on_grid))
        elif max_close[w] <= limit:  # only the close time itself
            latest = max(latest, max_close[w])
    return int(latest if latest == NONE else floored(latest, rules["unit"]))


def window_close_watermarks(last: Array, max_close: Array, now: Array, state: Any) -> Array:
    """Return the same by row of `last`, `max_close` and `now`."""
    rules = state.rules[0]
    if rules["since"] != NONE:
        return np.full(len(now), NONE)
    latest, limit = np.full(len(now), NONE), now - rules["timeout"]
    for w, grid in enumerate(state.grids):
        on_grid, ends_asked = last_closes(grid, state.instants, limit), max_close[:, w]
        alone = np.where(ends_asked <= limit, ends_asked, NONE)
        latest = np.maximum(latest, np.where(on_grid != NONE, np.minimum(ends_asked, on_grid), alone))
    is_silent = (last != NONE) & (now - rules["waited"] >= last + rules["timeout"])
    return np.where(is_silent & (latest != NONE), floored(latest, rules["unit"]), NONE)


def last_close(grid: Any, instants: Array, limit: int) -> int:
    """Return the latest close time on a grid (fold.GRID) that is at most a limit; NONE where there is no grid."""
    if grid["period"] > 0:
        return int(grid["anchor"] + floored(limit - grid["anchor"], grid["period"]))
    place = np.searchsorted(instants[grid["first"] : grid["end"]], limit, "right")
    return int(instants[grid["first"] + place - 1]) if place > 0 else NONE


def last_closes(grid: Any, instants: Array, limit: Array) -> Array:
    """Return the same by limit."""
    if grid["period"] > 0:
        return np.asarray(grid["anchor"] + floored(limit - grid["anchor"], grid["period"]))
    of_grid = instants[grid["first"] : grid["end"]]
    if not len(of_grid):
        return np.full(len(limit), NONE)
    place = np.searchsorted(of_grid, limit, "right")
    return np.where(place > 0, of_grid[np.maximum(place - 1, 0)], NONE)


# Idle splits and timelines (F). Waiting is not idleness; but what was idle before it had to wait stays so.


def waited(before: int, since: int, now: int) -> int:
    """Return how long a source or split has waited by now: before the segment, and since it waits in it."""
    return before if since == NONE else before + now - since


def split_idle_at(split: Any, first: int) -> int:
    """Return the clock from which on a split is idle (F); without an event its silence begins with the log."""
    if split["timeout"] == NONE:
        return NEVER
    last = first if split["last_clock"] == NONE else split["last_clock"]
    idle_at = last + split["timeout"] + split["waited"]
    return int(NEVER if split["since"] != NONE and idle_at > split["since"] else idle_at)


def timeline_idle_at(timeline: Any, rules: Any) -> int:
    """Return the clock from which on a timeline without splits, which has had an event, is idle."""
    idle_at = timeline["last_clock"] + rules["timeout"] + rules["waited"]
    return int(NEVER if rules["since"] != NONE and idle_at > rules["since"] else idle_at)
