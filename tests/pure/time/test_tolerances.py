"""One pass over a log says for every out-of-orderness what a run with it finds behind the watermark.

Compared with the oracle, under every kind of rule, on logs whole and cut.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

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
from tests.pure.time.test_fold import MODES, Setting, narrow, place_after, setting, stretched
from tests.seeds import Dice
from tidemark.timeops.figures.advice import Gathered, LogNeeds, tolerances
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.values.instants import MIN_US
from tidemark.timeops.watermark.fold import JUDGED
from tidemark.timeops.watermark.timelines import CLOCK_US, ROLE, STATE, T_US, LogPlace
from tidemark.timeops.watermark.tolerances import Tolerances
from tidemark.timeops.watermark.watermarks import judge_log

CASES = 5  # logs of a setting
SETTINGS = 6  # settings of a mode
TRIED = (0, 20, 10**7)  # units


def needs_of(log: Log, one: Setting, parts: Sequence[int | None], passed: Tolerances) -> LogNeeds:
    """Return what the records of a log need that is judged part by part."""
    policies = TimePolicies(rules_of(one.time, one.sources), Counts())
    place, state = LogPlace(), STATE.empty_table()
    gathered = Gathered(len(log.events), adjusts=one.time.out_of_order == "adjust")
    for part in parts:
        tick, events = tick_after(log, part), list(arrived(log, part))
        rows, until = narrow(log, part, one, policies), replace(place, tick_us=tick)
        judged = judge_log(rows, state, one.rules, until, measures=True)
        late = judged.rises.findings.out_of_order["item"]
        gathered.add(judged.rises.items, passed.needed(judged), late, None, judged.rises.items.split)
        clocks = [clock for _, clock in events if clock is not None] + ([] if tick is None else [tick])
        place, state = place_after(place, clocks, one.time.emit_every_us), judged.state
    return gathered.all()


def run_with(log: Log, one: Setting, tolerance_us: int, own: dict[str, int]) -> oracle.Outcome:
    rules = replace(rules_of(one.time, one.sources), out_of_orderness_us=tolerance_us)
    if own:
        rules = replace(rules, out_of_orderness_us={"s": tolerance_us, "r": tolerance_us} | own)
    records = [record_of(event, log) for event in log.events]
    return oracle.run(list(controlled(log, records)), rules, [shape_of(window) for window in one.windows])


def behind_in(found: oracle.Outcome) -> set[int]:
    moved = {"out_of_order", "kept_out_of_order"}
    late = {e.seq for e in (*found.ordered, *found.held) if moved & set(e.adjusted_by)}
    return late | {letter.seq for letter in found.dead_letters if letter.reason == "out_of_order"}


def assert_every_tolerance(log: Log, one: Setting, own: dict[str, int]) -> int:
    tried_us = [units * one.time.unit_us for units in TRIED]
    parts: Sequence[int | None] = tuple(range(len(log.cuts) + 1))
    varied = frozenset({"s", "r"} - {*own}) if own else None
    # What an event is moved to where the clock raises watermarks is not known.
    holds = not own and (one.time.out_of_order != "adjust" or one.time.idle_advance in (None, "exclude_split"))
    refused = 0
    for cut, whole in ((parts, log), ((None,), replace(log, ticks=()))):
        needs = needs_of(whole, one, cut, Tolerances(varied, tried_us))
        told = tolerances(needs, tried_us, None, holds=holds)
        for row in told:
            found = run_with(whole, one, row.tolerance_us, own)
            late = {*needs.seq[needs.least_us > row.tolerance_us].tolist()}
            assert late == behind_in(found), (row, cut, one)
            assert row.lost == len(late)
            assert not holds or row.held == len(found.held), (row, cut, one)
            refused += len(late)
    return refused


@pytest.mark.parametrize("mode", MODES)
def test_every_tolerance_refuses_what_a_run_with_it_refuses(mode: str, dice: Dice) -> None:
    refused = 0
    for number in range(SETTINGS):
        rng = random.Random(f"{mode} {dice.seed(number)}")
        one = setting(mode, rng)
        own: dict[str, int] = {}
        if one.sources and rng.random() < 0.5:  # the second source keeps an out-of-orderness of its own
            own = {"r": 3 * one.time.unit_us}
            one = replace(one, sources=(one.sources[0], replace(one.sources[1], out_of_orderness_us=own["r"])))
        for short in with_ticks(generate(rng.getrandbits(32), dice.some(CASES)), rng.getrandbits(32)):
            log = stretched(short, 1 if one.time.unit_us == 1 else rng.choice([90, 400]))
            refused += assert_every_tolerance(log, one, own)
    assert refused or not dice.is_fixed, "logs without a record behind would show nothing"


def test_a_watermark_in_the_first_year_does_not_hide_what_an_event_needs() -> None:
    time, passed, state = TimeSpec(timestamp_by="e", out_of_orderness="5 us"), Tolerances(), STATE.empty_table()
    rules = TimeRules(time, (SourceTime("s", "e", "UTC", 5),))
    least: list[int] = []
    # 5 us below the first two there is no instant; in the second segment the watermark is another one again.
    for us in ([MIN_US, MIN_US + 3, MIN_US + 1], [MIN_US + 2, MIN_US + 100, MIN_US + 91]):
        first = len(least)
        rows = {"_arrival_seq": [first, first + 1, first + 2], T_US: us, CLOCK_US: [0, 0, 0]}
        items = pa.table(rows | {ROLE: pa.array([JUDGED] * 3, pa.int8())})
        judged = judge_log(items, state, rules, LogPlace(before_us=0 if least else None), measures=True)
        least, state = [*least, *passed.needed(judged).least_us.tolist()], judged.state
    assert least == [0, 0, 2, 1, 0, 9]
