"""The moments of windows that revise their results equal the oracle's: generated logs, whole and cut, without a JVM.

Which events are accepted, and which window on a grid holds one, is the oracle's here; sessions are those of the loop.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests import oracle
from tests.oracle.grids import windows_of
from tests.oracle.outcome import Counts
from tests.oracle.policies import TimePolicies
from tests.properties.logs import (
    OWN_GAP,
    Log,
    arrived,
    controlled,
    generate,
    near,
    own_gap,
    record_of,
    rules_of,
    shape_of,
    tick_after,
    with_ticks,
)
from tests.pure.time.test_fold import MODES, Setting, narrow, place_after, setting
from tests.pure.window.test_sessions import met
from tests.seeds import Dice
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import NONE
from tidemark.timeops.watermark.timelines import STATE, LogPlace
from tidemark.timeops.watermark.watermarks import Watermarks, judge_log
from tidemark.timeops.windows.revisions import FINAL, MOMENT, ON_TIME, TAKEN_BACK, Marks, Open, moments
from tidemark.timeops.windows.sessions import CLOSED, Came, rules_of_sessions, sessions

CASES = 15  # logs of a setting
SETTINGS = 10  # settings of a mode
SHAPES: tuple[dict[str, str], ...] = (
    {"kind": "tumbling", "size": "10 us"},
    {"kind": "hopping", "size": "30 us", "hop": "10 us", "closed": "right"},
    {"kind": "session", "gap": "9 us"},
    {"kind": "session", "gap": "3 us"},
    {"kind": "session", "gap": OWN_GAP, "max_gap": "30 us"},
)


@dataclass(frozen=True)
class Accepted:
    """An accepted event, with the watermark that it meets if it is below it, and the clock."""

    seq: int
    t: int
    watermark: int
    clock: int
    gap: int


@dataclass(frozen=True)
class Held:
    """A window, or bounds of a session, by what the events in it have: the first moment, and whether it is new."""

    start: int
    end: int
    changed_by: Accepted | None
    events: tuple[tuple[int, int, bool], ...]  # number, rank, fresh


def window(policy: str, rng: random.Random) -> WindowSpec:
    keys: dict[str, Any] = {"emit": {"early": rng.choice(["5 us", "20 us"])}}
    if policy == "keep" and rng.random() < 0.7:
        keys = {"emit": "on_time", "revise_every": rng.choice(["0 s", "4 us", "30 us"])}
    if policy == "keep":
        keys["allowed_lateness"] = rng.choice(["25 us", "6 us", "200 us"])
    return WindowSpec(name="w", group_by=("case",), aggregates={"n": "count(*)"}, **keys, **rng.choice(SHAPES))


def rank(w: WindowSpec, event: Accepted, end: int) -> int:
    """Return the first moment after an event."""
    every = w.early_every_us or w.revise_every_us
    if w.early_every_us is None and event.watermark < end + w.ends_inside_us:
        return ON_TIME
    return (event.clock // every + 1) * every if every else event.seq


def on_a_grid(w: WindowSpec, known: Sequence[Accepted], fresh: Sequence[Accepted], before: int) -> Iterator[Held]:
    after = w.allowed_lateness_us + w.ends_inside_us
    held: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    for event in (*known, *fresh):
        for start, end in windows_of(shape_of(w), event.t):
            if end + after > max(event.watermark, before):
                one = (event.seq, rank(w, event, end), event in fresh)
                held.setdefault((start, end), []).append(one)
    for (start, end), events in held.items():
        yield Held(start, end, None, tuple(events))


def in_sessions(
    w: WindowSpec, known: Sequence[Accepted], fresh: Sequence[Accepted], *, keeps: bool
) -> Iterator[Held]:
    both = [*known, *fresh]
    came = Came(
        group=np.zeros(len(both), np.int64),
        t=np.array([one.t for one in both], np.int64),
        until=np.array([one.t + one.gap for one in both], np.int64),
        watermark=np.array([one.watermark for one in both] if keeps else [], np.int64),
        is_known=np.arange(len(both)) < len(known),
        clock=np.array([one.clock for one in both], np.int64),
    )
    found = sessions(came, np.zeros(0, CLOSED), rules_of_sessions(w, keeps=keeps))
    for session, first, end, made_by, changed_by in found.bounds.tolist():
        events = list[tuple[int, int, bool]]()
        by_maker = rank(w, both[made_by], end) if made_by >= 0 else ON_TIME
        for place, event in enumerate(both):
            inside = found.session[place] == session and first <= event.t <= end
            if inside and (changed_by < 0 or place < changed_by):
                own = max(rank(w, event, end), by_maker)
                made_now = made_by >= len(known) and own == by_maker
                events.append((event.seq, own, place >= len(known) or made_now))
        yield Held(first, end, both[changed_by] if changed_by >= 0 else None, tuple(events))


def given(
    w: WindowSpec,
    held: Sequence[Held],
    log: Log,
    watermarks: Watermarks,
    ends: tuple[int, int, int],
    *,
    flushed: bool,
) -> list[tuple[Any, ...]]:
    """Return the results of a segment: start, end, events where they are shown, revision, is final, watermark."""
    own = [one.changed_by or Accepted(NONE, NONE, NONE, NONE, 0) for one in held]
    known = Open(
        pa.chunked_array([pa.array([log.timeline] * len(held), pa.string())]),
        np.array([one.end for one in held], np.int64),
        *(np.full(len(held), us) for us in ends),
        *(np.array([getattr(one, name) for one in own], np.int64) for name in ("seq", "watermark", "clock")),
    )
    marks = {(n, r): False for n, one in enumerate(held) for _, r, _ in one.events}
    for n, one in enumerate(held):
        for _, r, fresh in one.events:
            marks[n, r] |= fresh
    places = np.array(list(marks), np.int64).reshape(-1, 2)
    found = moments(
        known, Marks(places[:, 0], places[:, 1], np.array(list(marks.values()), bool)), w, watermarks, flushed=flushed
    )
    assert found.dtype == MOMENT
    rows = []
    for place, r, revision, _, watermark in found.tolist():
        one = held[place]
        events = None if r == TAKEN_BACK else tuple(sorted(seq for seq, own_rank, _ in one.events if own_rank <= r))
        rows.append((one.start, one.end, events, revision, r == FINAL, None if watermark == NONE else watermark))
    return rows


def assert_equal(log: Log, one: Setting, w: WindowSpec, parts: Sequence[int | None], *, flush: bool) -> None:
    whole = log if parts != (None,) else replace(log, ticks=())
    rules = rules_of(one.time, one.sources)
    records = [record_of(event, log) for event in log.events]
    shape = shape_of(w)
    expected = oracle.run(list(controlled(whole, records, flush=flush)), rules, [shape])
    one_gap = w.gap_us if w.kind == "session" and not w.gap_by else None
    gaps = {event.seq: one_gap or own_gap(event.value, w.reach_us if w.gap_by else 30) for event in log.events}
    accepted = {e.seq: (e.timestamp_us, met(e)) for e in (*expected.ordered, *expected.held)}
    late = {letter.seq for letter in expected.dead_letters if letter.stage == "window"}
    policies, place, state, done = TimePolicies(rules, Counts()), LogPlace(), STATE.empty_table(), 0
    known, rows = list[Accepted](), list[tuple[Any, ...]]()
    for part in parts:
        tick, events = tick_after(whole, part), list(arrived(log, part))
        judged = judge_log(narrow(log, part, one, policies), state, one.rules, replace(place, tick_us=tick))
        count = len(events) + (tick is not None)
        at = [expected.watermarks[n].get(log.timeline) if n >= 0 else None for n in (done - 1, done + count - 1)]
        before, after = (NONE if us is None else us for us in at)
        fresh = [
            Accepted(event.seq, *accepted[event.seq], NONE if clock is None else clock, gaps[event.seq] or 0)
            for event, clock in events
            if event.seq in accepted and event.seq not in late
        ]
        keeps = one.time.out_of_order == "keep"
        held = list(
            in_sessions(w, known, fresh, keeps=keeps) if w.kind == "session" else on_a_grid(w, known, fresh, before)
        )
        clock_before = NONE if place.before_us is None else place.before_us
        flushed = flush and part == parts[-1]
        rows += given(w, held, log, Watermarks((judged,)), (before, after, clock_before), flushed=flushed)
        closes_after = w.allowed_lateness_us + w.ends_inside_us
        still = {seq for h in held if h.changed_by is None and h.end + closes_after > after for seq, _, _ in h.events}
        known = [event for event in (*known, *fresh) if event.seq in still]
        clocks = [clock for _, clock in events if clock is not None] + ([] if tick is None else [tick])
        place, state, done = place_after(place, clocks, one.time.emit_every_us), judged.state, done + count
    wanted = [
        (r.window_start, r.window_end, r.events if r.is_shown else None, r.revision, r.is_final, r.watermark_us)
        for r in (*expected.windows["w"], *expected.hidden["w"])
    ]
    assert sorted(rows, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("mode", MODES)
def test_the_moments_of_revisions_equal_the_oracles_on_logs_whole_and_cut(mode: str, dice: Dice) -> None:
    for number in range(SETTINGS):
        rng = random.Random(f"{mode} {dice.seed(number)}")
        one = setting(mode, rng)
        one = replace(one, time=one.time.model_copy(update={"unit": "microsecond"}))
        w = window(one.time.out_of_order, rng)
        one = replace(one, windows=(w,) if mode == "silence" else ())
        logs = near(generate(rng.getrandbits(32), dice.some(CASES), spread_us=rng.choice([40, 120])))
        for log in with_ticks(logs, rng.getrandbits(32)):
            assert_equal(log, one, w, (None,), flush=rng.random() < 0.5)
            assert_equal(log, one, w, tuple(range(len(log.cuts) + 1)), flush=rng.random() < 0.5)
