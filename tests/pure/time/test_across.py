"""The watermark across timelines equals the oracle's: thousands of generated logs, whole and cut, without a JVM.

A window of single instants shows which events are below it: it closes once the watermark has passed its instant.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from tests import oracle
from tests.oracle.across import ACROSS
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
from tests.pure.time.test_fold import MODES, Setting, assert_watermarks, narrow, place_after, setting, stretched
from tests.seeds import Dice
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark import fold
from tidemark.timeops.watermark.timelines import ACROSS as WHOLE
from tidemark.timeops.watermark.timelines import STATE, LogPlace
from tidemark.timeops.watermark.watermarks import judge_log, settled

CASES = 20  # logs of a setting
SETTINGS = 6  # settings of a mode
OVER = ("case", "v")
INSTANTS = WindowSpec(name="instants", kind="snapshot", across=True, group_by=("case",), aggregates={"n": "count(*)"})


def across(one: Setting, rng: random.Random) -> Setting:
    """Return a setting with several timelines in a log, and a window across them; some have no splits."""
    windows = (*(window.model_copy(update={"across": rng.random() < 0.5}) for window in one.windows), INSTANTS)
    time = one.time.model_copy(update={"over": OVER})
    sources = one.sources if rng.random() < 0.6 else ()
    if not sources and one.sources:
        time = time.model_copy(update={"idle": one.time.idle})
    return Setting(time, sources, windows)


def items_of(log: Log, part: int | None, one: Setting, policies: TimePolicies) -> pa.Table:
    """Return the narrow columns of a part of a log, with a timeline for each value."""
    rows = narrow(log, part, one, policies)
    timelines = [record_of(event, log, OVER).timeline for event, _ in arrived(log, part)]
    return rows.set_column(rows.column_names.index("_timeline"), "_timeline", pa.array(timelines, pa.string()))


def assert_equal(log: Log, one: Setting, parts: Sequence[int | None]) -> int:
    """Compare the watermark after every item, and the events below it; return how many these are."""
    rules = rules_of(one.time, one.sources)
    whole = log if parts != (None,) else replace(log, ticks=())
    records = [record_of(event, log, OVER) for event in log.events]
    expected = oracle.run(list(controlled(whole, records)), rules, [shape_of(window) for window in one.windows])
    policies, place, state = TimePolicies(rules, Counts()), LogPlace(), STATE.empty_table()
    behind, done = dict[int, tuple[int, int | None]](), 0
    for part in parts:
        tick, events = tick_after(whole, part), list(arrived(log, part))
        if place.before_us is not None:
            assert settled(state, one.rules, place).equals(state), (
                "a watermark across timelines stays as it is stored"
            )
        judged = judge_log(items_of(log, part, one, policies), state, one.rules, replace(place, tick_us=tick))
        columns = (judged.behind_across[name].to_pylist() for name in ("_arrival_seq", "watermark", "set_by"))
        behind |= {seq: (watermark, set_by) for seq, watermark, set_by in zip(*columns, strict=True)}
        count = len(events) + (tick is not None)
        for timeline in judged.names.to_pylist():
            assert_watermarks(judged, timeline, expected, done, count)
        clocks = [clock for _, clock in events if clock is not None] + ([] if tick is None else [tick])
        place, state, done = place_after(place, clocks, one.time.emit_every_us), judged.state, done + count
    letters = [letter for letter in expected.dead_letters if letter.window_name == INSTANTS.name]
    dropped = {letter.seq for letter in expected.dead_letters if letter.stage == "time"}
    found = {seq: met for seq, met in behind.items() if seq not in dropped}
    assert found == {letter.seq: (letter.watermark_us, letter.watermark_set_by) for letter in letters}
    return len(found)


@pytest.mark.parametrize("mode", MODES)
def test_the_watermark_across_timelines_equals_the_oracles_on_logs_whole_and_cut(mode: str, dice: Dice) -> None:
    below = 0
    for number in range(SETTINGS):
        rng = random.Random(f"across {mode} {dice.seed(number)}")
        one = across(setting(mode, rng), rng)
        logs = with_ticks(generate(rng.getrandbits(32), dice.some(CASES)), rng.getrandbits(32))
        for short in logs:
            log = stretched(short, 1 if one.time.unit_us == 1 else rng.choice([90, 400]))
            below += assert_equal(log, one, (None,))
            assert_equal(log, one, tuple(range(len(log.cuts) + 1)))
    assert below or not dice.is_fixed, "the logs show no event below it"


@pytest.mark.long
def test_compiled_it_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    for mode in MODES:
        one = across(setting(mode, rng), rng)
        for log in with_ticks(generate(11, 10), 12):
            parts = tuple(range(len(log.cuts) + 1))
            with monkeypatch.context() as patched:
                patched.setattr(fold, "COMPILED_FROM", 0)
                assert_equal(log, one, parts)


def test_oracle_and_product_call_the_timeline_that_stands_for_all_the_same() -> None:
    assert ACROSS == WHOLE
