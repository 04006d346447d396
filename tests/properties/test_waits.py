"""Waiting is not idleness (F): logs with waits of sources and splits in their parts equal the oracle."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import (
    EMPTY,
    IDLE_SPLITS,
    ON_TIME,
    SESSION,
    SILENCE,
    SLIDING,
    assert_equal_to_oracle,
    run,
    some_of,
)
from tests.properties.logs import BASE_US, SPLITS, Event, Log, judged_by_oracle
from tests.seeds import Dice
from tidemark.timeops.rules.time_rules import SourceTime, Waiter, Waits, waiters_from_json, waiters_to_json
from tidemark.timeops.spec import TimeSpec, WindowSpec

CASES = 200
PART_US = 40  # of the clock; a timeout is over within a part, and within a wait
NOBODY = frozenset[Waiter]()
ALONE = ("s", "x")  # a split that waits while the others of its source are read
WAITING = (NOBODY, frozenset[Waiter]({"s"}), frozenset[Waiter]({"r", ALONE}), frozenset[Waiter]({ALONE}), NOBODY)
PARTS = tuple(range(len(WAITING)))

MODES: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[WindowSpec, ...]]] = {
    "splits": ({"out_of_order": "keep", "idle": IDLE_SPLITS}, (), (ON_TIME, SESSION)),
    "listed_splits": ({"out_of_order": "adjust", "idle": IDLE_SPLITS}, ("x", "z"), (EMPTY, SLIDING)),
    "silence": ({"out_of_order": "keep", "idle": SILENCE}, (), (SESSION, EMPTY, ON_TIME)),
}


def waiting_logs(seed: int) -> list[Log]:
    """Logs whose parts hold no record of who waits, and end at the same clocks in all of them."""
    rng = random.Random(seed)
    logs, seq = [], 0
    for case in range(CASES):
        events, cuts = [], []
        for part, waiting in enumerate(WAITING):
            began = BASE_US + part * PART_US
            read = [one for one in SPLITS[: 2 + case % 3] if one[0] not in waiting and one not in waiting]
            arrivals = sorted(rng.randint(0, PART_US) for _ in range(rng.choice([0, 1, 3, 6]) if read else 0))
            for arrival in arrivals:
                source, split = rng.choice(read)
                at = began + arrival + rng.randint(-20, 20) // rng.choice([1, 4])
                events.append(Event(seq, began + arrival, at, rng.randint(0, 5), source=source, split=split))
                seq += 1
            # No event of any timeline, but the clock goes by it.
            events.append(Event(seq, began + PART_US, None, 0, malformed=True))
            seq += 1
            cuts.append(len(events))
        logs.append(Log(f"c{case}", tuple(events), tuple(cuts[:-1]), waits=WAITING))
    return logs


def waits_by_part() -> Mapping[int | None, Waits]:
    """From the second part on, as before the first record there is no clock."""
    starts = [(BASE_US + part * PART_US, WAITING[part]) for part in PARTS[1:]]
    found = accumulate(starts, lambda waits, start: waits.from_here(*start), initial=Waits())
    return dict(zip(PARTS, found, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("mode", list(MODES))
def test_logs_with_waits_give_what_the_oracle_gives(spark: SparkSession, mode: str, dice: Dice) -> None:
    keys, listed, windows = MODES[mode]
    windows = some_of(windows, dice, turn=0)
    time = TimeSpec(timestamp_by="e", over=("case",), **keys)
    sources: tuple[SourceTime, ...] = ()
    if mode != "silence":
        sources = (SourceTime("s", "e", "UTC", 0, 6, listed), SourceTime("r", "e", "UTC", 3, 11))
    logs = waiting_logs(dice.seed(list(MODES).index(mode)))
    heedless = [replace(log, waits=()) for log in logs]
    some = [judged_by_oracle(log, time, windows, sources=sources).watermarks for log in logs]
    assert some != [judged_by_oracle(log, time, windows, sources=sources).watermarks for log in heedless]
    out = run(spark, logs, time, windows, sources=sources, parts=PARTS, waits=waits_by_part())
    assert_equal_to_oracle(logs, out, time, windows, sources)


def test_a_wait_adds_nothing_to_a_silence_and_the_time_around_it_counts() -> None:
    waits = Waits().from_here(None, ["a"])
    assert waits == Waits()
    first = waits.from_here(100, ["a"]).from_here(150, ["a", "b"])
    assert first == Waits(frozenset({"a", "b"}), 150, {"a": 50}, 100, 0)
    second = first.from_here(170, ["b"]).from_here(200, [])
    assert second == Waits(waited_us={"a": 70, "b": 50}, any_waited_us=100)
    assert second.from_here(900, []) is second


def test_a_split_that_waits_alone_does_not_make_its_source_wait() -> None:
    waits = Waits().from_here(100, [ALONE]).from_here(130, ["s"]).from_here(140, [])
    assert waits == Waits(waited_us={ALONE: 30, "s": 10}, any_waited_us=40)
    assert waiters_from_json(waiters_to_json(["s", ALONE])) == {"s", ALONE}
