"""The sessions of a segment as a loop: chains of events by time, in each the events as they came.

Here: which event is in which session (M, F), which come too late or meet a session that a flush has closed, and the
bounds that a session had one after the other. Arrays in, arrays out. Not here: columns of Spark, when a session
closed (sessions.py), the moments of revisions (revisions.py).

Events of a group at most a gap apart are a chain, and events of two chains never meet. Under drop and adjust a chain
is a session, cut where it is longer than `max_duration`. Only an event that came more than the allowed lateness
behind the watermark can find a closed session within its gap. The events of a chain with such an event are taken one
after the other as they came, beside the sessions that are open then. So are the events of a chain in which a flush
has closed a session. So are the events of sessions that revise their results, as each of their bounds may have had
one.

Instants and lengths are BIGINT microseconds; NONE means that there is no value. The same functions run as
they are on few events, and compiled on many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark import fold
from tidemark.timeops.watermark.fold import NEVER, NONE, Array

# What becomes of an event that is in no session.
LATE = -1  # no open session is within its gap, and its own had closed
FLUSHED = -2  # a flush has closed the session that it would make

RULES = np.dtype(
    [
        ("gap", "i8"),
        ("lateness", "i8"),
        ("longest", "i8"),  # NEVER: as long as there are events
        ("keeps", "i8"),  # 1: events may be behind the watermark
        ("revises", "i8"),  # 1: the bounds are asked for
        ("early", "i8"),  # the period of results before the end; 0: they come when the watermark has passed it
    ]
)

CLOSED = np.dtype([("group", "i8"), ("start", "i8"), ("end", "i8")])
"""A session that an earlier flush has closed."""

SPAN = np.dtype([("root", "i8"), ("first", "i8"), ("last", "i8"), ("made_by", "i8")])
"""A session as it grows, named by its first event."""

BOUNDS = np.dtype([("session", "i8"), ("first", "i8"), ("last", "i8"), ("made_by", "i8"), ("changed_by", "i8")])
"""Bounds of a session, which is named by one of its events. `made_by` and `changed_by` are events by their place: -1
where they came in order and that is enough, or where the bounds last."""


@dataclass(frozen=True)
class Came:
    """Events that take part, in the order in which they came.

    Attributes:
        group: The number of the group, which is of one timeline.
        t: The timestamp.
        watermark: The one just before an event that is out of order; else NONE. Empty under drop and adjust.
        is_known: Earlier segments have kept the event: it is in an open session.
        clock: The clock of the log; empty unless results are revised.
    """

    group: Array
    t: Array
    watermark: Array
    is_known: Array
    clock: Array


@dataclass(frozen=True)
class Sessions:
    """The findings of the loop.

    Attributes:
        session: Of each event the session, named by one of its events; LATE or FLUSHED.
        start: Of each event the start of its session; where it is in none, of the session that it would make.
        end: The end of the same.
        bounds: BOUNDS of sessions that revise their results: changed ones that may have had a result, and the last.
    """

    session: Array
    start: Array
    end: Array
    bounds: Array


def rules_of_sessions(window: WindowSpec, *, keeps: bool) -> Array:
    """RULES of a window, one; `keeps` says that events may be behind the watermark."""
    longest, early = window.max_duration_us, window.early_every_us
    own = (window.gap_us, window.allowed_lateness_us, NEVER if longest is None else longest)
    return np.array([(*own, int(keeps), int(window.revises), early or 0)], RULES)


def sessions(came: Came, closed: Array, rules: Array) -> Sessions:
    """Find the session of every event; `closed` are those of earlier flushes, `rules` RULES, one."""
    count, groups = len(came.t), 1 + int(came.group.max(initial=-1))
    own = closed[(closed["group"] >= 0) & (closed["group"] < groups)]
    own = own[np.argsort(own["group"], kind="stable")]
    session, first, last = np.zeros(count, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64)
    bounds = np.empty(2 * count if rules[0]["revises"] else 0, BOUNDS)
    small = count < fold.COMPILED_FROM
    n_bounds = (_find if small else _compiled())(
        np.argsort(came.t, kind="stable").astype(np.int32),
        came.group.astype(np.int32),
        came.t,
        came.watermark,
        came.is_known,
        came.clock,
        own,
        np.searchsorted(own["group"], np.arange(groups + 1)),
        rules[0],
        session,
        first,
        last,
        bounds,
    )
    at = np.where(session >= 0, session, np.arange(count, dtype=np.int32))
    first, last = first[at], last[at]
    last += rules[0]["gap"]
    if rules[0]["longest"] != NEVER:
        np.minimum(last, first + rules[0]["longest"], out=last)
    return Sessions(session, first, last, bounds[:n_bounds])


def _find(
    by_time: Array,
    group: Array,
    t: Array,
    watermark: Array,
    is_known: Array,
    clock: Array,
    closed: Array,
    closed_from: Array,
    rules: Any,
    session: Array,
    first: Array,
    last: Array,
    bounds: Array,
) -> int:
    """Run the loop over chains; return how many rows of `bounds` it wrote."""
    order = _by_group(by_time, group, len(closed_from))
    n_bounds, begin = 0, 0
    while begin < len(order):
        end = _end_of_chain(order, begin, group, t, rules["gap"])
        chain, g = order[begin:end], group[order[begin]]
        own = closed[closed_from[g] : closed_from[g + 1]]
        if rules["longest"] != NEVER:
            if _may_meet(own, t[chain[0]], t[chain[-1]]):
                _refuse_cuts(np.sort(chain), t, is_known, own, rules, session, first, last)
            _cut(chain, t, rules, session, first, last)
        elif _may_meet(own, t[chain[0]], t[chain[-1]]) or _needs_order(chain, t, watermark, rules):
            n_bounds = _take(
                np.sort(chain), t, watermark, is_known, clock, own, rules, session, first, last, bounds, n_bounds
            )
        else:
            for e in chain:
                session[e] = chain[0]
            first[chain[0]], last[chain[0]] = t[chain[0]], t[chain[-1]]
            if rules["revises"] == 1:
                n_bounds = _note(bounds, n_bounds, chain[0], t[chain[0]], t[chain[-1]], -1, -1)
        begin = end
    return n_bounds


def _by_group(by_time: Array, group: Array, groups: int) -> Array:
    """Return events by group, in each by time, of one time as they came."""
    order, begins = np.empty_like(by_time), np.zeros(groups + 1, np.int64)
    for g in group:
        begins[g + 1] += 1
    for g in range(groups):
        begins[g + 1] += begins[g]
    for e in by_time:
        order[begins[group[e]]] = e
        begins[group[e]] += 1
    return order


def _end_of_chain(order: Array, begin: int, group: Array, t: Array, gap: int) -> int:
    end = begin + 1
    while end < len(order) and group[order[end]] == group[order[begin]] and t[order[end]] - t[order[end - 1]] <= gap:
        end += 1
    return end


def _may_meet(closed: Array, earliest: int, latest: int) -> bool:
    """Return whether events of a chain may make a session that a flush has closed, as that begins within it."""
    return len(closed) > 0 and bool(((earliest <= closed["start"]) & (closed["start"] <= latest)).any())


def _needs_order(chain: Array, t: Array, watermark: Array, rules: Any) -> bool:
    """Return whether the order in which the events of a chain came matters to what is asked."""
    if rules["revises"] == 1 and rules["early"] > 0:
        return True
    if rules["keeps"] == 0:
        return False
    for e in chain:
        if watermark[e] != NONE and (rules["revises"] == 1 or t[e] + rules["lateness"] < watermark[e]):
            return True
    return False


def _take(
    came: Array,
    t: Array,
    watermark: Array,
    is_known: Array,
    clock: Array,
    closed: Array,
    rules: Any,
    session: Array,
    first: Array,
    last: Array,
    bounds: Array,
    n_bounds: int,
) -> int:
    """Take the events of a chain as they came, each beside the sessions that are open then (F)."""
    gap, to_close, before = rules["gap"], rules["gap"] + rules["lateness"], n_bounds
    spans = np.empty(len(came), SPAN)  # in order of time; those from `low` on are open
    low, high = 0, 0
    for e in came:
        w = watermark[e] if rules["keeps"] == 1 else NONE
        while low < high and spans[low]["last"] + to_close < w:
            low += 1
        at, end = _near(spans, low, high, t[e], gap)
        start, until = t[e], t[e]
        if end > at:
            start, until = min(start, spans[at]["first"]), max(until, spans[end - 1]["last"])
        if end == at and t[e] + to_close < w and not is_known[e]:  # NONE is below all times
            session[e], first[e], last[e] = LATE, start, until
        elif not is_known[e] and _is_closed(closed, start, until + gap):
            session[e], first[e], last[e] = FLUSHED, start, until
        elif end - at == 1 and start == spans[at]["first"] and until == spans[at]["last"]:
            session[e] = spans[at]["root"]
        else:
            if rules["revises"] == 1 and not is_known[e]:
                n_bounds = _note_changed(spans[at:end], e, w, clock, rules, bounds, n_bounds)
            high = _put(spans, at, end, high, e, session)
            session[e] = spans[at]["root"]
            spans[at]["first"], spans[at]["last"], spans[at]["made_by"] = start, until, e
    n_bounds = _settle(spans[:high], rules, first, last, bounds, n_bounds)
    _follow(came, session)
    for b in range(before, n_bounds):
        bounds[b]["session"] = session[bounds[b]["session"]]
    return n_bounds


def _follow(came: Array, session: Array) -> None:
    """Name the sessions of events by those into which they were merged."""
    for e in came:
        while session[e] >= 0 and session[session[e]] != session[e]:
            session[e] = session[session[e]]


def _settle(spans: Array, rules: Any, first: Array, last: Array, bounds: Array, n_bounds: int) -> int:
    """Write the sessions of a chain as they are after its last event."""
    for s in range(len(spans)):
        one = spans[s]
        first[one["root"]], last[one["root"]] = one["first"], one["last"]
        if rules["revises"] == 1:
            n_bounds = _note(bounds, n_bounds, one["root"], one["first"], one["last"], one["made_by"], -1)
    return n_bounds


def _near(spans: Array, low: int, high: int, t: int, gap: int) -> tuple[int, int]:
    """Return the open sessions within a gap of a time, from one place on and before another."""
    at = high
    while at > low and spans[at - 1]["last"] >= t - gap:
        at -= 1
    end = at
    while end < high and spans[end]["first"] <= t + gap:
        end += 1
    return at, end


def _put(spans: Array, at: int, end: int, high: int, event: int, session: Array) -> int:
    """Make one session of those near an event, or a new one; return how many there are."""
    if end == at:
        for s in range(high, at, -1):
            spans[s] = spans[s - 1]
        spans[at]["root"] = event
        return high + 1
    for s in range(at + 1, end):
        session[spans[s]["root"]] = spans[at]["root"]
    for s in range(end, high):
        spans[at + 1 + s - end] = spans[s]
    return high - (end - at - 1)


def _note_changed(
    changed: Array, event: int, watermark: int, clock: Array, rules: Any, bounds: Array, n_bounds: int
) -> int:
    """Note the bounds that an event changes and that may have given a result by then."""
    for s in range(len(changed)):
        one = changed[s]
        if rules["early"] == 0:
            may_have = watermark != NONE and watermark > one["last"] + rules["gap"]
        else:
            may_have = (clock[one["made_by"]] // rules["early"] + 1) * rules["early"] <= clock[event]
        if may_have:
            n_bounds = _note(bounds, n_bounds, one["root"], one["first"], one["last"], one["made_by"], event)
    return n_bounds


def _is_closed(closed: Array, start: int, end: int) -> bool:
    """Return whether a flush has closed a session of these bounds."""
    return len(closed) > 0 and bool(((closed["start"] == start) & (closed["end"] == end)).any())


def _note(bounds: Array, n_bounds: int, session: int, first: int, last: int, made_by: int, changed_by: int) -> int:
    one = bounds[n_bounds]
    one["session"], one["first"], one["last"] = session, first, last
    one["made_by"], one["changed_by"] = made_by, changed_by
    return n_bounds + 1


def _cut(chain: Array, t: Array, rules: Any, session: Array, first: Array, last: Array) -> None:
    """Cut a chain, without the events that are refused, into sessions of at most the longest duration."""
    own = -1
    for e in chain:
        if session[e] == FLUSHED:
            continue
        if own < 0 or t[e] - last[own] > rules["gap"] or t[e] - first[own] > rules["longest"]:
            own, first[e] = e, t[e]
        session[e], last[own] = own, t[e]


def _refuse_cuts(
    came: Array, t: Array, is_known: Array, closed: Array, rules: Any, session: Array, first: Array, last: Array
) -> None:
    """Refuse, as they came, the events that make a session which a flush has closed, or cut one off."""
    times, count = np.empty(len(came) + 1, np.int64), 0
    for e in came:
        at = np.searchsorted(times[:count], t[e])
        for s in range(count, at, -1):
            times[s] = times[s - 1]
        times[at], count = t[e], count + 1
        begin = 0
        for s in range(1, count + 1):
            if s < count and times[s] - times[s - 1] <= rules["gap"] and times[s] - times[begin] <= rules["longest"]:
                continue
            end = min(times[s - 1] + rules["gap"], times[begin] + rules["longest"])
            if not is_known[e] and session[e] != FLUSHED and _is_closed(closed, times[begin], end):
                session[e], first[e], last[e] = FLUSHED, times[begin], end - rules["gap"]
            begin = s
        if session[e] == FLUSHED:
            for s in range(at, count - 1):
                times[s] = times[s + 1]
            count -= 1


@cache
def _compiled() -> Callable[..., int]:
    """Return the loop, compiled; see fold.py."""
    from numba import njit  # noqa: PLC0415  (only who has many events pays for it)
    from numba.extending import register_jitable  # noqa: PLC0415

    of_chains = (_by_group, _end_of_chain, _may_meet, _needs_order, _cut, _refuse_cuts)
    for part in (*of_chains, _take, _near, _put, _settle, _follow, _note_changed, _is_closed, _note):
        register_jitable(part)
    compiled: Callable[..., int] = njit(cache=True)(_find)
    return compiled
