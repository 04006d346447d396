"""Explained numbers act: the oracle accepts with the value, and refuses with one unit less."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from tests import oracle
from tests.oracle.grids import close_of, windows_of
from tests.properties.logs import (
    Event,
    Log,
    arrived,
    controlled,
    generate,
    own_gap,
    record_of,
    rules_of,
    shape_of,
    tick_after,
    with_ticks,
)
from tests.pure.time.test_fold import MODES, WINDOWS, Setting, setting, stretched
from tests.seeds import Dice
from tidemark.timeops.calendar.grid import spans_at
from tidemark.timeops.figures.admission import Refusal, admitted_by, admitting_unit, last_close
from tidemark.timeops.figures.log_times import JudgedTimes, LogTimes, Stretch
from tidemark.timeops.rules.reasons import CODES, REASONS, Reason
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.values.instants import NONE, Array

CASES, SETTINGS = 6, 3
CLOCKS = ("clock", "silence", "idle_splits")
"""Where the clock sets watermarks no tolerance may help."""
REASON_OF = {str(reason): reason for reason in REASONS}


def log_times(
    log: Log, *, is_cut: bool, windows: Sequence[WindowSpec] = (), over: Sequence[str] = ("case",)
) -> LogTimes:
    """Return the times of a log, and the gaps that its records say for some windows, as they are read from tables."""
    events = list(log.events)
    clocks = [clock for part in range(len(log.cuts) + 1) for _, clock in arrived(log, part if is_cut else None)]
    clocks = clocks if is_cut else [clock for _, clock in arrived(log, None)]
    why = [
        CODES[Reason.MALFORMED]
        if event.malformed
        else CODES[Reason.NO_ARRIVAL_TIME]
        if event.arrival_us is None
        else CODES[Reason.NO_TIMESTAMP]
        if event.event_us is None
        else 0
        for event in events
    ]
    seqs, sources = [event.seq for event in events], ["s", "r"]
    splits = sorted({event.split for event in events}, key=str)
    timeline = [record_of(event, log, over).timeline for event in events]
    timelines = sorted(set(timeline)) or [log.timeline]
    first, end = (seqs[0], seqs[-1] + 1) if seqs else (0, 0)
    stretches = [Stretch(first, end)]
    if is_cut:
        bounds = [0, *log.cuts, len(events)]
        ends = [first + bound for bound in bounds]
        stretches = [Stretch(ends[part], ends[part + 1], tick_after(log, part)) for part in range(len(bounds) - 1)]

    def numbers(values: Sequence[int | None]) -> Array:
        return np.array([NONE if value is None else value for value in values], np.int64)

    return LogTimes(
        seq=numbers(seqs),
        event_us=numbers([event.event_us for event in events]),
        arrival_us=numbers([event.arrival_us for event in events]),
        clock_us=numbers(clocks),
        why=np.array(why, np.int8),
        timeline=np.array([timelines.index(name) for name in timeline], np.int32),
        timelines=timelines,
        source=np.array([sources.index(event.source) for event in events], np.int32),
        sources=sources,
        split=np.array([splits.index(event.split) for event in events], np.int32),
        splits=splits,
        stretches=stretches,
        gaps={w.name: numbers([own_gap(e.value, w.reach_us) for e in events]) for w in windows if w.gap_by},
    )


def expected(log: Log, one: Setting) -> oracle.Outcome:
    records = [record_of(event, log, one.time.over) for event in log.events]
    rules = rules_of(one.time, one.sources)
    return oracle.run(list(controlled(log, records)), rules, [shape_of(window) for window in one.windows])


def drawn(mode: str, dice: Dice, number: int) -> tuple[Setting, list[tuple[Log, bool]]]:
    rng = random.Random(f"{mode} {dice.seed(number)}")
    one = setting(mode, rng)
    logs = with_ticks(generate(rng.getrandbits(32), CASES), rng.getrandbits(32))
    by = 1 if one.time.unit_us == 1 else rng.choice([90, 400])
    some = [(stretched(log, by), True) for log in logs]
    return one, [*some, *[(replace(log, ticks=()), False) for log, _ in some]]


@pytest.mark.parametrize("mode", MODES)
def test_the_watermark_that_each_record_met_and_its_verdict_are_those_of_the_oracle(mode: str, dice: Dice) -> None:
    for number in range(SETTINGS):
        one, logs = drawn(mode, dice, number)
        for log, is_cut in logs:
            times = log_times(log, is_cut=is_cut, windows=one.windows)
            judged, found = times.judged(one.rules), expected(log, one)
            letters = {letter.seq: letter for letter in found.dead_letters if letter.stage != "window"}
            for event in log.events:
                letter = letters.get(event.seq)
                assert (judged.reason_of(event.seq) or None) == (letter.reason if letter else None), (log, event)
                if letter is not None and letter.reason == "out_of_order":
                    met = judged.before(event.seq)
                    assert (met.us, met.set_by) == (letter.watermark_us, letter.watermark_set_by)
            for ordered in (*found.ordered, *found.held):
                assert judged.before(ordered.seq).us == ordered.watermark_us, (log, ordered)
            assert_reached(judged, log, found)


def assert_reached(judged: JudgedTimes, log: Log, found: oracle.Outcome) -> None:
    """Assert the item that first brought the watermark to any value."""
    own = judged.times.seq[judged.why == 0].tolist()
    if not own:
        return  # no event has begun the timeline
    items = [*controlled(log, [record_of(event, log) for event in log.events])]
    first = next(at for at, item in enumerate(items) if isinstance(item, oracle.Record) and item.seq == own[0])
    items, after = items[first:], [known.get(log.timeline) for known in found.watermarks[first:]]
    for us in {value + near for value in after if value is not None for near in (0, 1)}:
        place = next((place for place, value in enumerate(after) if value is not None and value >= us), None)
        item = judged.reaching(log.timeline, us, own[0])
        assert (item is None) == (place is None), (us, log)
        if item is not None and place is not None:
            at = items[place]
            assert item.seq == (at.seq if isinstance(at, oracle.Record) else None)
            assert item.watermark_us == after[place]
    assert judged.last(log.timeline).us == (after[-1] if after else None)


def with_value(one: Setting, key: str, us: int) -> Setting:
    """Return a setting with another value of a key, as `--set` writes it."""
    length = timedelta(microseconds=us)
    if key.startswith("sources["):
        own_sources = list(one.sources)
        place = int(key[len("sources[") : key.index("]")])
        own_sources[place] = replace(own_sources[place], out_of_orderness_us=us)
        return replace(one, sources=tuple(own_sources))
    if key.startswith("windows["):
        windows = list(one.windows)
        place = int(key[len("windows[") : key.index("]")])
        windows[place] = windows[place].model_copy(update={"allowed_lateness": length})
        return replace(one, windows=tuple(windows))
    part, name = key.removeprefix("time.").rpartition(".")[::2]
    if part:
        policy = getattr(one.time, part).model_copy(update={name: length})
        return replace(one, time=one.time.model_copy(update={part: policy}))
    time = one.time.model_copy(update={name: length})
    own = {"r"} if len(one.sources) == 2 and one.sources[1].out_of_orderness_us == 3 * one.time.unit_us else set()
    sources = tuple(
        source if source.name in own else replace(source, out_of_orderness_us=us) for source in one.sources
    )
    return replace(one, time=time, sources=sources)


def refusals(log: Log, one: Setting) -> dict[tuple[int, str | None], str]:
    return {(letter.seq, letter.window_name): letter.reason for letter in expected(log, one).dead_letters}


@pytest.mark.parametrize("mode", MODES)
def test_with_that_tolerance_a_record_is_accepted_and_with_one_unit_less_it_is_not(mode: str, dice: Dice) -> None:
    acted, most = 0, SETTINGS if mode in CLOCKS else 20
    for number in range(most):
        if acted > 20:
            break
        one, logs = drawn(mode, dice, number)
        own = [1] if len(one.sources) == 2 and one.sources[1].out_of_orderness_us == 3 * one.time.unit_us else []
        for log, is_cut in logs[:: 1 if number == 0 else 3]:
            times = log_times(log, is_cut=is_cut, windows=one.windows)
            for (seq, window), reason in refusals(log, one).items():
                if window is not None:
                    continue
                keys = admitted_by(times, one.rules, Refusal(seq, REASON_OF[reason]), own)
                for key, us in keys.items():
                    step = one.time.unit_us if key.endswith("out_of_orderness") else 1
                    assert (seq, None) not in refusals(log, with_value(one, key, us)), (key, us, log, one)
                    assert (seq, None) in refusals(log, with_value(one, key, us - step)), (key, us, log, one)
                    acted += 1
                may_be_let_in = reason in ("early", "late_arrival", "out_of_order") and not one.time.idle
                if may_be_let_in and reason == "out_of_order":
                    assert any(key.endswith("out_of_orderness") for key in keys) or own, (log, one)
                unit = admitting_unit(times, one.rules, Refusal(seq, REASON_OF[reason]))
                if unit is not None and not one.sources:
                    coarse = replace(one, time=one.time.model_copy(update={"unit": unit}))
                    assert (seq, None) not in refusals(log, coarse)
    assert acted > 2 or mode in CLOCKS


def test_an_early_record_that_is_kept_does_not_hide_the_one_that_set_the_watermark() -> None:
    time = TimeSpec(
        timestamp_by="e", over=("case",), out_of_orderness="20 us", early={"tolerance": "5 us", "policy": "keep"}
    )
    one, log = Setting(time, (), ()), Log("c", (Event(1, 100, 10_000, 0), Event(2, 101, 90, 0), Event(3, 102, 10, 0)))
    assert refusals(log, one) == {(3, None): "out_of_order"}
    refused = Refusal(3, Reason.OUT_OF_ORDER)
    assert admitted_by(log_times(log, is_cut=False), one.rules, refused) == {"time.out_of_orderness": 80}


@pytest.mark.parametrize("gap", ["4 us", "12 us"])
@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_with_that_patience_a_session_across_timelines_takes_the_event_and_with_less_it_does_not(
    policy: str, gap: str, dice: Dice
) -> None:
    """Under drop a longer patience also accepts other events, which may make its session longer."""
    acted = 0
    for number in range(30):
        if acted > 20:
            break
        rng = random.Random(dice.seed(number))
        keys = {"kind": "session", "gap": gap, "across": True, "aggregates": {"n": "count(*)"}}
        window = WindowSpec.model_validate({"name": "w", "group_by": ("case",), "allowed_lateness": "0 us", **keys})
        patience = rng.choice(["0 us", "3 us", "9 us"])
        time = TimeSpec(timestamp_by="e", over=("case", "v"), out_of_order=policy, out_of_orderness=patience)
        one = Setting(time, (), (window,))
        for log in generate(rng.getrandbits(32), 12):
            times, letters = log_times(log, is_cut=False, over=time.over), refusals(log, one)
            of_time = {seq: reason for (seq, window_name), reason in letters.items() if window_name is None}
            accepted = np.array([event.seq for event in log.events if event.seq not in of_time], np.int64)
            dropped = np.array([seq for seq, reason in of_time.items() if reason == "out_of_order"], np.int64)
            for seq in [seq for seq, window_name in letters if window_name == "w"][:3]:
                refused = Refusal(seq, Reason.WINDOW_CLOSED, (0,), {0: accepted}, {0: dropped})
                us = admitted_by(times, one.rules, refused)["time.out_of_orderness"]
                key = "time.out_of_orderness"
                assert (seq, "w") not in refusals(log, with_value(one, key, us)), (us, seq, log, one)
                assert (seq, "w") in refusals(log, with_value(one, key, us - 1)), (us, seq, log, one)
                acted += 1
    assert acted > 0


SHAPES: tuple[dict[str, str], ...] = (
    *WINDOWS,
    {"kind": "tumbling", "size": "10 us", "offset": "3 us", "closed": "right"},
    {"kind": "hopping", "size": "12 us", "hop": "5 us", "offset": "2 us"},
    {"kind": "cumulative", "size": "12 us", "step": "4 us", "closed": "right"},
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " ".join(shape.values()))
def test_with_that_lateness_a_window_takes_the_event_and_with_one_microsecond_less_it_does_not(
    shape: dict[str, str], dice: Dice
) -> None:
    acted = 0
    for number in range(2):
        rng = random.Random(dice.seed(number))
        time = TimeSpec(
            timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness=rng.choice(["0 us", "6 us"])
        )
        lateness = rng.choice(["0 us", "5 us"])
        window = WindowSpec.model_validate(
            {
                "name": "w",
                "group_by": ("case",),
                "aggregates": {"n": "count(*)"},
                "allowed_lateness": lateness,
                **shape,
            }
        )
        one = Setting(time, (), (window,))
        by = 3_000_000_000 if "time_zone" in shape else 1
        logs = [stretched(log, by) for log in generate(rng.getrandbits(32), 12)]
        for log in logs:
            if acted > 20 and dice.is_short:
                break
            times = log_times(log, is_cut=False, windows=one.windows)
            refused = refusals(log, one)
            letters = [seq for (seq, name), reason in refused.items() if name and reason == "window_closed"]
            none_of = {seq for (seq, name), reason in refused.items() if name is None or reason == "bad_expression"}
            accepted = np.array([event.seq for event in log.events if event.seq not in none_of])
            for seq in letters:
                keys = admitted_by(times, one.rules, Refusal(seq, Reason.WINDOW_CLOSED, (0,), {0: accepted}))
                assert {"windows[0].allowed_lateness", "time.out_of_orderness"} == keys.keys(), (log, one)
                for key, us in keys.items():
                    assert (seq, "w") not in refusals(log, with_value(one, key, us)), (key, us, seq, log, one)
                    assert (seq, "w") in refusals(log, with_value(one, key, us - 1)), (key, us, seq, log, one)
                    acted += 1
    assert acted > 0


@pytest.mark.parametrize("shape", [one for one in SHAPES if one["kind"] not in ("session", "sliding")])
def test_the_windows_that_hold_an_instant_are_those_of_the_oracle(shape: dict[str, str], dice: Dice) -> None:
    window = WindowSpec.model_validate({"name": "w", "aggregates": {"n": "count(*)"}, **shape})
    rng = random.Random(dice.seed(1))
    for _ in range(300):
        us = rng.choice([rng.randint(-100, 100), rng.randint(0, 2_000_000_000_000_000)])
        assert spans_at(us, window) == windows_of(shape_of(window), us)


def test_local_days_and_months_around_changes_of_the_clocks_are_those_of_the_oracle(dice: Dice) -> None:
    rng = random.Random(dice.seed(2))
    for zone in ("Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "America/Toronto"):
        for size in ("1 day", "1 month", "1 quarter", "1 year"):
            keys = {"kind": "tumbling", "size": size, "time_zone": zone, "closed": rng.choice(["left", "right"])}
            window = WindowSpec.model_validate({"name": "w", "aggregates": {"n": "count(*)"}, **keys})
            for _ in range(200):
                us = rng.randint(0, 500_000) * 3_600_000_000 + rng.choice([-1, 0, 1])
                assert spans_at(us, window) == windows_of(shape_of(window), us), (zone, size, us)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " ".join(shape.values()))
def test_the_watermark_that_closes_the_last_window_of_an_event_is_that_of_the_oracle(shape: dict[str, str]) -> None:
    window = WindowSpec.model_validate(
        {"name": "w", "aggregates": {"n": "count(*)"}, "allowed_lateness": "2 us", **shape}
    )
    for us in range(100, 160):
        event = Event(us, us, us, us % 6)
        wanted = close_of(shape_of(window), us, 1, record_of(event, Log("c", (event,))))
        own = own_gap(event.value, window.reach_us) if window.gap_by else None
        if wanted is not None:
            assert last_close(us, window, own) == (wanted - 1 if window.kind == "sliding" else wanted)
