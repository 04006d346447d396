"""The loop of the recount: the records of one timeline, one after the other, and its watermark by the clock of each.

Here: arrays in, arrays out; compiled for many records. Not here: where the arrays come from
(resources/recount/timelines.py).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.resources.recount.ends import FIRST_US, NONE, Numbers

_MOST = 2**63 - 1
_COMPILED_FROM = 200_000  # records: to load the compiler takes as long as the loop over these does without it

SPLIT_COLUMNS = ("allows", "last", "timeout", "waited", "since", "listed")
ALLOWS, LAST, _TIMEOUT, _WAITED, _SINCE, _LISTED = range(6)
"""A split: the watermark that it allows, the clock of its last record less its waits, after how long it is idle, how
long it had waited, since which clock it waits, and 1 if it counts before its first event."""


class LoopRules(NamedTuple):
    """The numbers that the loop asks for, in microseconds; NONE for what does not hold."""

    every: int
    unit: int
    clock_tolerance: int
    excludes: int
    timeout: int
    waited: int
    waits: int


class LineState(NamedTuple):
    """A timeline before its records, see `judge_again`."""

    published: int
    watermark: int
    period: int
    last: int


class LineRecords(NamedTuple):
    """The records of a timeline in order.

    Attributes:
        t: The time that may be below W; NONE of a record that is refused before or has none.
        allows: The watermark that its split allows by it; NONE of a record that moves none.
        clock: The clock at the record.
        ended: The clock at the end of the period of emission before.
        split: Its split.
        closes: For each window the close time that t asks for, NONE for none.
        silence_closes: For each window the latest close time that a silence until the clock may bring; NONE where any
            may.
        ended_silence_closes: The same of the clock at the end of the period before.
    """

    t: Numbers
    allows: Numbers
    clock: Numbers
    ended: Numbers
    split: Numbers
    closes: Numbers
    silence_closes: Numbers
    ended_silence_closes: Numbers


def loop_for(count: int) -> Callable[..., Any]:
    """Return `walk_line`, compiled where the records are many."""
    return walk_line if count < _COMPILED_FROM else _compiled()


def walk_line(
    records: Any, line: Any, splits: Any, latest: Any, rules: Any
) -> tuple[NDArray[np.bool_], int, int, int, int]:
    """Go through the records of a timeline: W by the clock before each one, whether it is below, W by it.

    Return whether each is below, and the fields of LineState after them. Changed are `splits`, rows of SPLIT, and
    `latest`, of each window the latest close time that its events ask for.
    """
    published, watermark, period, last = line.published, line.watermark, line.period, line.last
    below = np.zeros(len(records.t), np.bool_)
    lowest, next_idle = _lowest(splits, records.clock[0], rules)
    if rules.excludes:
        next_idle = NONE  # some may have become idle since the timeline's last record
    for i in range(len(records.t)):
        now, ended, t = records.clock[i], records.ended[i], records.t[i]
        if rules.every > 0 and now // rules.every > period:
            # A period shows W as it was after the last item of the log before it, which may be of another timeline.
            if ended != NONE:
                lowest, next_idle = _left(splits, ended, lowest, next_idle, rules)
                by_clock = _by_clock(ended, last, lowest, records.ended_silence_closes[i], latest, rules)
                watermark = max(watermark, by_clock)
            published, period = watermark, now // rules.every
        lowest, next_idle = _left(splits, now, lowest, next_idle, rules)
        watermark = max(watermark, _by_clock(now, last, lowest, records.silence_closes[i], latest, rules))
        if rules.every == 0:
            published = watermark
        below[i] = t != NONE and t < published
        last = now - rules.waited
        allows = records.allows[i]
        if len(splits) > 0:
            lowest, next_idle = _met(splits, records.split[i], now, allows, lowest, next_idle, rules)
            allows = NONE if allows == NONE else lowest
        watermark = max(watermark, allows)
        for w in range(len(latest)):
            latest[w] = max(latest[w], records.closes[i][w])
    return below, published, watermark, period, last


def _by_clock(now: int, last: int, lowest: int, silence_closes: Any, latest: Any, rules: Any) -> int:
    """Return how far the clock alone raises W; NONE if it does not."""
    if rules.excludes:
        return lowest
    if rules.clock_tolerance != NONE:
        return int(max(now - rules.clock_tolerance, FIRST_US) // rules.unit * rules.unit)
    if rules.timeout == NONE or rules.waits or last == NONE:  # while a source waits, no timeline is silent
        return NONE
    limit = now - 1 - rules.timeout  # an event at the very instant of the timeout beats it
    if limit < last + rules.waited:
        return NONE
    highest = NONE
    for w in range(len(latest)):
        if silence_closes[w] != NONE:
            highest = max(highest, min(latest[w], silence_closes[w]))
        elif latest[w] <= limit:
            highest = max(highest, latest[w])
    return highest if highest == NONE else highest // rules.unit * rules.unit


def _left(splits: Any, now: int, lowest: int, next_idle: int, rules: Any) -> tuple[int, int]:
    """Return the same as `_lowest` at a clock; `lowest` and `next_idle` are what it returned at an earlier one."""
    return _lowest(splits, now, rules) if rules.excludes and now >= next_idle else (lowest, next_idle)


def _met(splits: Any, split: int, now: int, allows: int, lowest: int, next_idle: int, rules: Any) -> tuple[int, int]:
    """Let a split have a record; return the same as `_lowest` after it."""
    row = splits[split]
    was_idle = rules.excludes and now >= _idle_at(row)
    holds_back = was_idle or row[ALLOWS] <= lowest  # one that is ahead of the slowest changes nothing
    row[LAST] = max(row[LAST], now - row[_WAITED])
    row[ALLOWS] = max(row[ALLOWS], allows)
    return _lowest(splits, now, rules) if holds_back else (lowest, next_idle)


def _lowest(splits: Any, now: int, rules: Any) -> tuple[int, int]:
    """Return what the active splits allow, the highest if all are idle, and the clock at which a next one is idle.

    A listed split without an event allows no watermark.
    """
    lowest, highest, next_idle, is_any = _MOST, NONE, _MOST, False
    for s in range(len(splits)):
        row = splits[s]
        if row[ALLOWS] == NONE and row[_LISTED] == 0:
            continue
        highest = max(highest, row[ALLOWS])
        if rules.excludes:
            if now >= _idle_at(row):
                continue
            next_idle = min(next_idle, _idle_at(row))
        lowest, is_any = min(lowest, row[ALLOWS]), True
    return (lowest if is_any else highest), next_idle


def _idle_at(split: Any) -> int:
    """Return the clock from which on a split is idle."""
    if split[LAST] == NONE:
        return NONE
    at = split[LAST] + split[_TIMEOUT] + split[_WAITED]
    # Waiting is not idleness; but a split that was idle before it had to wait stays so.
    return _MOST if split[_SINCE] != NONE and at > split[_SINCE] else at


@cache
def _compiled() -> Callable[..., Any]:
    from numba import njit  # noqa: PLC0415  (only who has many records pays for it)
    from numba.extending import register_jitable  # noqa: PLC0415

    for part in (_by_clock, _left, _met, _lowest, _idle_at):
        register_jitable(part)
    loop: Callable[..., Any] = njit(cache=True)(walk_line)
    return loop
