"""The loop over the events of sessions equals the oracle: thousands of generated logs, whole and cut, without a JVM.

What came before is the oracle's: which events are accepted, with which time, and the watermark that each meets.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pytest

from tests import oracle
from tests.properties.logs import (
    OWN_GAP,
    Log,
    controlled,
    generate,
    own_gap,
    record_of,
    rules_of,
    segment,
    shape_of,
    tick_after,
    with_ticks,
)
from tests.pure.time.test_fold import MODES, Setting, setting
from tests.seeds import Dice
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import NONE
from tidemark.timeops.watermark import fold
from tidemark.timeops.windows.sessions import CLOSED, FLUSHED, LATE, Came, rules_of_sessions, sessions

CASES = 20  # logs of a setting
SETTINGS = 10  # settings of a mode

Found = list[tuple[int, int, int, tuple[int, ...]]]  # group, start, end, events


@dataclass(frozen=True)
class Accepted:
    """An accepted event, with the watermark that it meets if it is below it."""

    seq: int
    group: int
    t: int
    watermark: int
    gap: int


def window(policy: str, rng: random.Random) -> WindowSpec:
    keys = {"gap": rng.choice(["7 us", "2 us", "30 us"])}
    if rng.random() < 0.5:
        keys = {"gap": OWN_GAP, "max_gap": rng.choice(["30 us", "12 us"])}
    if policy == "keep":
        keys["allowed_lateness"] = rng.choice(["0 us", "12 us", "3 us"])
    elif rng.random() < 0.6:
        keys["max_duration"] = rng.choice(["13 us", "2 us", "60 us"])
    return WindowSpec(name="w", kind="session", group_by=("case", "v"), aggregates={"n": "count(*)"}, **keys)


def came(events: Sequence[Accepted], known: Sequence[Accepted], keeps: bool) -> Came:
    both = [*[replace(one, watermark=NONE) for one in known], *events]
    return Came(
        group=np.array([one.group for one in both], np.int64),
        t=np.array([one.t for one in both], np.int64),
        until=np.array([one.t + one.gap for one in both], np.int64),
        watermark=np.array([one.watermark for one in both] if keeps else [], np.int64),
        is_known=np.arange(len(both)) < len(known),
        clock=np.zeros(0, np.int64),
    )


def assert_equal(log: Log, one: Setting, w: WindowSpec, parts: Sequence[int | None], flushed: Sequence[int]) -> None:
    whole = log if parts != (None,) else replace(log, ticks=())
    records = [record_of(event, log) for event in log.events]
    wide = 1 + len(log.events) % 6  # values of one group: few groups have long sessions
    shape = replace(shape_of(w), group=lambda record: (int(str(record.payload["v"])) // wide,))
    gaps = {e.seq: own_gap(e.value, w.reach_us) if w.gap_by else w.gap_us for e in log.events}
    items = list(controlled(whole, records, flushed))
    expected = oracle.run(items, rules_of(one.time, one.sources), [shape])
    values = {event.seq: event.value // wide for event in log.events}
    accepted = {
        e.seq: Accepted(e.seq, values[e.seq], e.timestamp_us, met(e), gap)
        for e in (*expected.ordered, *expected.held)
        if (gap := gaps[e.seq]) is not None
    }
    keeps = one.time.out_of_order == "keep"
    known: list[Accepted] = []
    closed, closed_by_flush, letters, place = list[tuple[int, ...]](), np.zeros(0, CLOSED), {}, -1
    given: Found = []
    for part in parts:
        own = [accepted[event.seq] for event in segment(log, part) if event.seq in accepted]
        all_of = [*known, *own]
        found = sessions(came(own, known, keeps), closed_by_flush, rules_of_sessions(w, keeps=keeps))
        count = len(segment(log, part)) + (tick_after(whole, part) is not None)
        place += count
        watermark = expected.watermarks[place].get(log.timeline) if place >= 0 else None
        is_flushed = part in flushed
        known, ended = [], []
        rows = sorted(
            zip(found.session.tolist(), found.start.tolist(), found.end.tolist(), all_of, strict=True),
            key=lambda row: row[0],
        )
        for name, members in groupby(rows, key=lambda row: row[0]):
            own_rows = list(members)
            if name in (LATE, FLUSHED):
                for _, start, end, event in own_rows:
                    lateness = event.watermark - end - w.allowed_lateness_us if name == LATE else None
                    letters[event.seq] = ((start, end), lateness)
                continue
            _, start, end, event = own_rows[0]
            is_over = watermark is not None and end + w.allowed_lateness_us < watermark
            if is_over or is_flushed:
                given.append((event.group, start, end, tuple(sorted(row[3].seq for row in own_rows))))
                if not is_over:
                    ended.append((event.group, start, end))
            else:
                known += [row[3] for row in own_rows]
        known.sort(key=lambda event: event.seq)
        closed = [
            *ended,
            *[row for row in closed if watermark is None or row[2] + w.allowed_lateness_us >= watermark],
        ]
        closed_by_flush = np.array(closed, CLOSED)
        place += 2 * is_flushed
    wanted = [(int(str(r.group[0])), r.window_start, r.window_end, r.events) for r in expected.windows["w"]]
    assert sorted(given) == sorted(wanted)
    refused = [letter for letter in expected.dead_letters if letter.reason == "window_closed"]
    assert {seq: missed for seq, (missed, _) in letters.items()} == {
        one.seq: one.missed_windows[0] for one in refused
    }
    by_events = {one.seq: one.lateness_us for one in refused if one.lateness_us is not None}  # else the clock's doing
    assert by_events == {seq: lateness for seq, (_, lateness) in letters.items() if seq in by_events}


def met(event: oracle.OrderedEvent) -> int:
    return event.watermark_us if "kept_out_of_order" in event.adjusted_by and event.watermark_us is not None else NONE


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_over_sessions_equals_the_oracle_on_logs_whole_cut_and_reopened(mode: str, dice: Dice) -> None:
    for number in range(SETTINGS):
        rng = random.Random(f"{mode} {dice.seed(number)}")
        one = setting(mode, rng)
        one = replace(one, time=one.time.model_copy(update={"unit": "microsecond"}))
        w = window(one.time.out_of_order, rng)
        one = replace(one, windows=(w,) if mode == "silence" else ())
        logs = generate(
            rng.getrandbits(32), dice.some(CASES), longest=rng.choice([24, 60]), spread_us=rng.choice([40, 120])
        )
        for log in with_ticks(logs, rng.getrandbits(32)):
            parts = tuple(range(len(log.cuts) + 1))
            assert_equal(log, one, w, (None,), ())
            assert_equal(log, one, w, parts, ())
            assert_equal(log, one, w, parts, rng.sample(parts, rng.randint(1, len(parts))))


@pytest.mark.long
def test_compiled_it_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    monkeypatch.setattr(fold, "COMPILED_FROM", 1)
    for _ in range(6):
        one = setting("events", rng)
        one = replace(one, time=one.time.model_copy(update={"unit": "microsecond"}))
        w = window(one.time.out_of_order, rng)
        for log in generate(rng.getrandbits(32), 10):
            parts = tuple(range(len(log.cuts) + 1))
            assert_equal(log, one, w, parts, ())
            assert_equal(log, one, w, parts, parts[:1])
