"""Windows across timelines equal the oracle's, wherever a log is cut, flushed or ticked, next to windows within them.

Each log has a timeline for each value of `v`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties import fold
from tests.properties.fold import assert_equal_to_oracle, run, some_of
from tests.properties.logs import BASE_US, Event, Log, generate, near, with_ticks
from tests.seeds import Dice
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec

OVER = ("case", "v")


def across(name: str, **keys: Any) -> WindowSpec:
    return fold.window(**({"name": name, "across": True, "group_by": ("case",)} | keys))


def on_time(name: str, every: str, **keys: Any) -> WindowSpec:
    return across(name, **{"allowed_lateness": "25 us", "emit": "on_time", "revise_every": every} | keys)


WITHIN = fold.window(name="within", kind="tumbling", size="10 us", group_by=OVER)
TUMBLING = across("tumbling", kind="tumbling", size="10 us")
HOPPING = across("hopping", kind="hopping", size="30 us", hop="5 us", where="v > 1")
RIGHT = across("right", kind="cumulative", size="20 us", step="10 us", closed="right")
GAPPED = across("gapped", kind="hopping", size="4 us", hop="10 us")
INSTANTS = across("instants", kind="snapshot")
SLIDING = across("sliding", kind="sliding", size="10 us")
SESSION = across("session", kind="session", gap="7 us")
BY_VALUE = across("by_value", kind="session", gap="12 us", group_by=OVER)
EMPTY = across("empty", kind="tumbling", size="10 us", empty=True, group_by=OVER, empty_max=100_000)
EARLY = across("early", kind="tumbling", size="20 us", emit={"early": "10 us"})
EARLY_SESSION = across("early_session", kind="session", gap="9 us", emit={"early": "5 us"})
OF_RESULTS = {"from": "tumbling", "aggregates": {"seqs": "array_sort(flatten(array_sort(collect_list(seqs))))"}}
FORTIES = across("forties", kind="tumbling", size="40 us", **OF_RESULTS)
RUNS = across("runs", kind="session", gap="15 us", **OF_RESULTS)

KEEP = {"out_of_order": "keep", "out_of_orderness": "3 us"}
EVERY = {"every": "8 us"}
BY_CLOCK = {"late": {"tolerance": "7 us", "policy": "adjust"}, "idle": {"advance": "arrival_clock"}}
IDLE = {"idle": {"advance": "exclude_split", "timeout": "6 us"}}
SILENCE = {"idle": {"advance": "window_close", "timeout": "6 us"}}
CASES = 80  # logs of a mode
HALVES, CUT, WHOLE = (0, 1), (0, 1, 2), (None,)
SOURCES = (SourceTime("s", "e", "UTC", 3, 6), SourceTime("r", "e", "UTC", 0, 11))

# Settings of time, windows, and how the logs are cut.
MODES: dict[str, tuple[dict[str, Any], tuple[WindowSpec, ...], Sequence[int | None]]] = {
    "dropped": ({"out_of_orderness": "9 us"}, (TUMBLING, WITHIN, SESSION, HOPPING, SLIDING, EARLY), HALVES),
    "adjusted by periods": (
        {"out_of_order": "adjust", "emit": EVERY},
        (HOPPING, RIGHT, INSTANTS, EARLY_SESSION, EMPTY),
        CUT,
    ),
    "kept": (
        KEEP,
        (
            on_time("each", "0 us", kind="tumbling", size="10 us"),
            on_time("sliding_later", "10 us", kind="sliding", size="15 us"),
            on_time("session_later", "4 us", kind="session", gap="9 us", having="size(seqs) != 2"),
            BY_VALUE,
        ),
        CUT,
    ),
    "whole": (KEEP, (GAPPED, SESSION, SLIDING, TUMBLING, FORTIES, RUNS), WHOLE),
    "results": ({"out_of_orderness": "3 us"}, (TUMBLING, FORTIES, RUNS), CUT),
    "clock": (KEEP | BY_CLOCK, (TUMBLING, SESSION, EMPTY), HALVES),
    "clock by periods": (BY_CLOCK | {"emit": EVERY}, (TUMBLING, INSTANTS, BY_VALUE), CUT),
    "idle": ({"out_of_order": "keep"} | IDLE, (TUMBLING, SESSION, HOPPING, WITHIN), CUT),
    "idle by periods": ({"out_of_order": "drop", "emit": EVERY} | IDLE, (TUMBLING, SLIDING, EMPTY), HALVES),
    "idle splits": ({"out_of_order": "keep"} | IDLE, (TUMBLING, SESSION, RIGHT), CUT),
    "silence": ({"out_of_order": "keep"} | SILENCE, (TUMBLING, SESSION, WITHIN), CUT),
}
SOON = ("idle",)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode in SOON else [pytest.mark.long]) for mode in MODES]
)
def test_windows_across_timelines_give_what_the_oracle_gives(spark: SparkSession, mode: str, dice: Dice) -> None:
    keys, windows, parts = MODES[mode]
    turn = list(MODES).index(mode)
    drawn = some_of(windows, dice, turn)
    if TUMBLING not in drawn and any(one.input or not one.across for one in drawn):
        drawn = (TUMBLING, *drawn)
    time = TimeSpec(timestamp_by="e", over=OVER, **keys)
    sources = SOURCES if mode == "idle splits" else ()
    logs = near(generate(dice.seed(90 + turn), dice.some(CASES)))
    if parts == HALVES:
        logs = [replace(log, cuts=log.cuts[:1]) for log in logs]
    if mode.startswith(("idle", "clock", "silence")):
        logs = with_ticks(logs, dice.seed(turn))
    flush = bool(turn % 2)
    out = run(spark, logs, time, drawn, sources=sources, parts=parts, flush=flush)
    assert_equal_to_oracle(logs, out, time, drawn, sources, flush=flush)


@pytest.mark.long
def test_what_a_flush_closed_across_timelines_stays_closed(spark: SparkSession, dice: Dice) -> None:
    time = TimeSpec(timestamp_by="e", over=OVER, **KEEP)
    windows = some_of((TUMBLING, SLIDING, SESSION, EMPTY), dice, turn=0)
    logs = near(generate(dice.seed(130), dice.some(CASES)))
    ways: dict[str, Any] = {"flush": True, "flushed_after": (0, 1)}
    out = run(spark, logs, time, windows, parts=CUT, **ways)
    assert_equal_to_oracle(logs, out, time, windows, **ways)


def log_of(*came: tuple[int, int, int], cuts: tuple[int, ...] = ()) -> Log:
    """Return a log of events by their arrival, their time and their value."""
    events = (Event(seq, BASE_US + at, BASE_US + t, value) for seq, (at, t, value) in enumerate(came))
    return Log("c", tuple(events), cuts=cuts)


@pytest.mark.long
def test_a_timeline_that_begins_behind_does_not_move_the_lowest_watermark_back(spark: SparkSession) -> None:
    """Value 1 closes the window up to 10. Value 2 begins at 5: it is on time for itself, and too late across."""
    log = log_of((20, 25, 1), (21, 5, 2), (22, 16, 1), (23, 31, 2), cuts=(2,))
    time = TimeSpec(timestamp_by="e", over=OVER, out_of_order="drop")
    out = run(spark, [log], time, (TUMBLING, WITHIN), parts=(0, 1))
    assert_equal_to_oracle([log], out, time, (TUMBLING, WITHIN))
    assert [letter[:4] for letter in out.letters["1"]] == [(1, "window", "window_closed", "tumbling")]
    assert [letter[6:] for letter in out.letters["1"]] == [(BASE_US + 25, 16, 0)]


def test_a_timeline_without_events_for_the_timeout_lets_the_others_close_windows(spark: SparkSession) -> None:
    """Value 2 is silent from 1 on. At 12 it has left, so that value 1 alone counts."""
    log = log_of((0, 3, 1), (1, 4, 2), (2, 30, 1), (12, 31, 1), (13, 8, 2), cuts=(2, 3))
    time = TimeSpec(timestamp_by="e", over=OVER, idle={"advance": "exclude_split", "timeout": "10 us"})
    out = run(spark, [log], time, (TUMBLING,), parts=(0, 1, 2))
    assert_equal_to_oracle([log], out, time, (TUMBLING,))
    first = (BASE_US, BASE_US + 10, ("c",), (0, 1), 0, True, BASE_US + 31)
    assert out.windows["tumbling"]["c"] == [first]
    assert [letter[:4] for letter in out.letters["4"]] == [(4, "window", "window_closed", "tumbling")]
