"""Ticks: the fast stages equal the oracle on generated logs with ticks after their segments."""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import (
    CLOSED_RIGHT,
    EARLY,
    EMPTY,
    IDLE_SPLITS,
    ON_TIME,
    SESSION,
    SILENCE,
    SLIDING,
    assert_equal_to_oracle,
    run,
    some_of,
    window,
)
from tests.properties.logs import BASE_US, Event, Log, generate, near, with_ticks
from tests.seeds import Dice
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec

CASES = 220  # logs of a mode
PARTS = (0, 1)


LATE = {"tolerance": "7 us", "policy": "adjust"}
EVERY = {"every": "8 us"}
BY_CLOCK = {"advance": "arrival_clock"}

# What a tick can move, each with windows of some kinds.
MODES: dict[str, tuple[dict[str, Any], tuple[WindowSpec, ...]]] = {
    "revisions": ({"out_of_order": "keep", "out_of_orderness": "9 us"}, (ON_TIME, SLIDING)),
    "clock": ({"out_of_order": "keep", "late": LATE, "idle": BY_CLOCK}, (ON_TIME, SESSION)),
    "clock_periods": ({"late": LATE, "idle": BY_CLOCK, "emit": EVERY}, (SESSION, EARLY)),
    "splits_periods": ({"out_of_order": "adjust", "idle": IDLE_SPLITS, "emit": EVERY}, (SLIDING, CLOSED_RIGHT)),
    "silence": ({"out_of_order": "keep", "idle": SILENCE}, (EMPTY, ON_TIME, SESSION)),
}


@pytest.mark.long
@pytest.mark.parametrize("mode", list(MODES))
def test_logs_with_ticks_give_what_the_oracle_gives(spark: SparkSession, mode: str, dice: Dice) -> None:
    turn = list(MODES).index(mode)
    keys, windows = MODES[mode]
    windows = some_of(windows, dice, turn)
    time = TimeSpec(timestamp_by="e", over=("case",), **keys)
    sources: tuple[SourceTime, ...] = ()
    if mode.startswith("splits"):
        sources = (SourceTime("s", "e", "UTC", 0, 6, ("x",) if turn % 2 else ()), SourceTime("r", "e", "UTC", 3, 11))
    halves = [replace(log, cuts=log.cuts[:1]) for log in near(generate(dice.seed(turn), CASES))]
    logs = with_ticks(halves, dice.seed(turn))
    flush = mode == "clock_periods"
    out = run(spark, logs, time, windows, sources=sources, parts=PARTS, flush=flush)
    assert_equal_to_oracle(logs, out, time, windows, sources, flush=flush)


def test_a_tick_at_the_instant_of_the_timeout_closes_a_window_and_a_record_does_not(spark: SparkSession) -> None:
    time = TimeSpec(timestamp_by="e", over=("case",), idle=SILENCE)
    tumbling = window(kind="tumbling", size="10 us")
    came = Event(0, BASE_US + 20, BASE_US + 5, 2)
    at_the_instant = Event(1, BASE_US + 26, None, 2)
    ticked = Log("c", (came,), ticks=(BASE_US + 26,))
    recorded = Log("d", (came, at_the_instant))
    closed = run(spark, [ticked], time, (tumbling,), parts=(0,)).windows["w"]
    assert closed["c"] == [(BASE_US, BASE_US + 10, ("c",), (0,), 0, True, BASE_US + 10)]
    assert not run(spark, [recorded], time, (tumbling,), parts=(0,)).windows["w"]["d"]


@pytest.mark.long
def test_silent_timelines_close_windows_whose_end_is_inside_also_on_whole_seconds(spark: SparkSession) -> None:
    """Instants of the generated logs are 0.3 seconds apart, so that the unit cuts most of them."""
    windows = (
        window(name="session", kind="session", gap="3 s"),
        window(name="sliding", kind="sliding", size="2 s"),
        window(name="snapshot", kind="snapshot"),
        window(name="right", kind="tumbling", size="4 s", closed="right"),
    )
    time = TimeSpec(
        timestamp_by="e", over=("case",), unit="second", idle={"advance": "window_close", "timeout": "2 s"}
    )
    halves = [replace(log, cuts=log.cuts[:1]) for log in near(generate(seed=8, cases=CASES))]
    logs = [slowed(log, by=300_000) for log in with_ticks(halves, seed=8)]
    out = run(spark, logs, time, windows, parts=PARTS)
    assert_equal_to_oracle(logs, out, time, windows)


def slowed(log: Log, by: int) -> Log:
    """Return the log with its instants so many times as far from its base."""

    def far(us: int | None) -> int | None:
        return None if us is None else BASE_US + (us - BASE_US) * by

    events = (replace(e, arrival_us=far(e.arrival_us), event_us=far(e.event_us)) for e in log.events)
    return replace(log, events=tuple(events), ticks=tuple(map(far, log.ticks)))
