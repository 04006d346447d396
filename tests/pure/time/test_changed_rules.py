"""Rules of time that change in the midst of a log equal the oracle, which is told of the change at its place."""

import random
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa

from tests import oracle
from tests.oracle.outcome import Counts
from tests.oracle.policies import TimePolicies
from tests.properties.logs import (
    Log,
    arrived,
    controlled,
    generate,
    record_of,
    rules_of,
    shape_of,
    tick_after,
    with_ticks,
)
from tests.pure.time.test_fold import (
    CASES,
    MODES,
    Setting,
    assert_behind,
    assert_watermarks,
    behind_in,
    narrow,
    place_after,
    setting,
    stretched,
)
from tests.seeds import Dice
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.watermark.timelines import STATE, LogPlace, under_other_rules
from tidemark.timeops.watermark.watermarks import judge_log, settled

PAIRS = 25  # pairs of settings
EARLIER = SourceTime("s", "e", "UTC", 0)
"""The one source that there is before another one is added."""


def pair_of(rng: random.Random) -> tuple[Setting, Setting]:
    """Two settings of one pipeline: other rules of time, the same windows, the unit that both can have."""
    one, other = setting(rng.choice(MODES), rng), setting(rng.choice(MODES), rng)
    # Such a change needs the past: see spec/changes.py.
    while other.rules.publishes_silences or (other.time.idle and other.time.unit != one.time.unit):
        other = setting(rng.choice(MODES), rng)
    windows = one.windows or other.windows
    windows = tuple(window.model_copy(update={"allowed_lateness": TimeSpec().out_of_orderness}) for window in windows)
    return replace(one, windows=windows), replace(other, windows=windows)


def rules_in_force(one: Setting, number: int, settings: tuple[Setting, ...]) -> TimeRules:
    """Return the rules of a setting; where splits come to count later, it has one source so far."""
    if one.sources or not any(later.sources for later in settings[number:]):
        return one.rules
    return replace(one.rules, sources=(replace(EARLIER, out_of_orderness_us=one.time.out_of_orderness_us),))


def of_one_source(log: Log, parts: int) -> Log:
    """Return the log, in whose first parts all events are of one source without splits."""
    first = {event.seq for part in range(parts) for event, _ in arrived(log, part)}
    events = [replace(e, source="s", split=None) if e.seq in first else e for e in log.events]
    return replace(log, events=tuple(events))


def assert_equal(log: Log, settings: tuple[Setting, Setting], change: int) -> None:
    """Rules that change in front of a part of the log apply from it on, as the oracle applies them."""
    of_oracle = [rules_of(one.time, one.sources) for one in settings]
    records = [record_of(event, log) for event in log.events]
    items = list(controlled(log, records))
    at = sum(len(list(arrived(log, part))) + (tick_after(log, part) is not None) for part in range(change))
    last = max((item.seq for item in items[:at] if isinstance(item, oracle.Record)), default=-1)
    items.insert(at, oracle.Control(last, "spec", rules=of_oracle[1]))
    expected = oracle.run(items, of_oracle[0], [shape_of(window) for window in settings[0].windows])
    policies, place, state = TimePolicies(of_oracle[0], Counts()), LogPlace(), STATE.empty_table()
    behind, done = dict[int, tuple[int, int | None]](), 0
    for part in range(len(log.cuts) + 1):
        now = int(part >= change)
        one, rules = settings[now], rules_in_force(settings[now], now, settings)
        if part == change:
            before = rules_in_force(settings[0], 0, settings)
            state = under_other_rules(settled(state, before, place), before, rules, place)
            policies.rules, done = of_oracle[1], done + 1
        tick, events = tick_after(log, part), list(arrived(log, part))
        judged = judge_log(narrow(log, part, one, policies), state, rules, replace(place, tick_us=tick))
        behind |= behind_in(judged)
        count = len(events) + (tick is not None)
        assert_watermarks(judged, log.timeline, expected, done, count)
        clocks = [clock for _, clock in events if clock is not None] + ([] if tick is None else [tick])
        place, state, done = place_after(place, clocks, one.time.emit_every_us), judged.state, done + count
    assert_behind(behind, expected)


def test_rules_that_change_in_the_midst_of_a_log_equal_the_oracle_that_is_told_of_it(dice: Dice) -> None:
    for number in range(PAIRS):
        rng = random.Random(f"changed {dice.seed(number)}")
        settings = pair_of(rng)
        for short in with_ticks(generate(rng.getrandbits(32), dice.some(CASES)), rng.getrandbits(32)):
            log = stretched(short, 1 if settings[0].time.unit_us == settings[1].time.unit_us == 1 else 400)
            change = rng.randint(0, len(log.cuts))
            if settings[1].sources and not settings[0].sources:
                log = of_one_source(log, change)
            assert_equal(log, settings, change)


def test_a_source_that_is_added_holds_back_the_watermark_from_its_first_event_on() -> None:
    """Written out: the largest time of the first source is known when it becomes a split."""
    alone = TimeRules(TimeSpec(timestamp_by="e"), (EARLIER,))
    both = replace(alone, sources=(EARLIER, replace(EARLIER, name="r")), uses_splits=True)
    place, state, seen = LogPlace(), STATE.empty_table(), []
    for number, (source, t) in enumerate([("s", 100), ("r", 40), ("s", 120), ("r", 130)]):
        if number == 1:
            state = under_other_rules(settled(state, alone, place), alone, both, place)
        row = {
            "_arrival_seq": [number],
            "t": [t],
            "clock": [number],
            "role": [2],
            "_timeline": ["[]"],
            "_source": [source],
        }
        items = pa.table(row | {"_split": pa.nulls(1, pa.string())})
        state = judge_log(items, state, alone if number == 0 else both, place).state
        place = replace(place, first_us=0, before_us=number)
        seen.append(state["watermark"][0].as_py())
    assert seen == [100, 100, 100, 120]
    assert all(one <= other for one, other in pairwise(seen))
