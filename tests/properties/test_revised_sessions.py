"""Sessions that revise their results: equal to the oracle, wherever a log is cut, and their laws."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import Gathered, assert_equal_to_oracle, run, some_of, window
from tests.properties.logs import generate, near, with_ticks
from tests.seeds import Dice
from tidemark.timeops.spec import TimeSpec, WindowSpec


def session(name: str, **keys: Any) -> WindowSpec:
    return window(name=name, kind="session", **({"gap": "9 us"} | keys))


def on_time(name: str, lateness: str, every: str, **keys: Any) -> WindowSpec:
    return session(name, allowed_lateness=lateness, emit="on_time", revise_every=every, **keys)


EACH = on_time("each", "25 us", "0 us", having="size(seqs) != 2", history=True)
PERIODS = on_time("periods", "40 us", "4 us")
LONG = on_time("long", "1000 us", "60 us", group_by=("case", "v"), gap="5 us", where="v > 1")
EARLY = session("early", emit={"early": "5 us"}, group_by=("case", "v"), gap="12 us")
EARLY_AND_LATE = session("early_and_late", emit={"early": "3 us"}, allowed_lateness="30 us", having="size(seqs) != 2")
ONCE = session("once", allowed_lateness="40 us")

KEEP = {"out_of_order": "keep", "out_of_orderness": "3 us"}
EVERY = {"every": "8 us"}
BY_CLOCK = {"late": {"tolerance": "7 us", "policy": "adjust"}, "idle": {"advance": "arrival_clock"}}
SILENCE = {"idle": {"advance": "window_close", "timeout": "6 us"}}
CASES = 160  # logs of a mode
HALVES, CUT, WHOLE = (0, 1), (0, 1, 2), (None,)

# Settings of time, windows, and how the logs are cut; a log is flushed after its last part where it says so.
MODES: dict[str, tuple[dict[str, Any], tuple[WindowSpec, ...], Sequence[int | None], bool]] = {
    "halves": (KEEP, (EACH, EARLY_AND_LATE), HALVES, False),
    "cut and flushed": (KEEP, (PERIODS, LONG, EARLY, ONCE), CUT, True),
    "whole": (KEEP, (EACH, LONG), WHOLE, True),
    "adjusted": ({"out_of_order": "adjust", "out_of_orderness": "6 us"}, (EARLY,), CUT, True),
    "clock by periods": (KEEP | BY_CLOCK | {"emit": EVERY}, (EACH, PERIODS, EARLY_AND_LATE), CUT, False),
    "silence": (KEEP | SILENCE, (PERIODS, EARLY_AND_LATE), CUT, False),
}
SOON = ("halves",)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode in SOON else [pytest.mark.long]) for mode in MODES]
)
def test_sessions_that_revise_their_results_give_the_oracles(spark: SparkSession, mode: str, dice: Dice) -> None:
    keys, windows, parts, flush = MODES[mode]
    windows = some_of(windows, dice, turn=0)
    time = TimeSpec(timestamp_by="e", over=("case",), **keys)
    turn = list(MODES).index(mode)
    logs = generate(dice.seed(70 + turn), dice.some(CASES))
    if parts == HALVES:
        logs = [replace(log, cuts=log.cuts[:1]) for log in logs]
    if mode.startswith(("clock", "silence")):
        logs = with_ticks(near(logs), dice.seed(turn))
    out = run(spark, logs, time, windows, parts=parts, flush=flush)
    assert_equal_to_oracle(logs, out, time, windows, flush=flush)
    for one in (one for one in windows if one.revises):
        assert some_are_taken_back(out, one), f"the logs show nothing of {one.name}"
    if ONCE in windows and PERIODS in windows:
        assert final(out, PERIODS) == final(out, ONCE)


def some_are_taken_back(out: Gathered, window: WindowSpec) -> bool:
    shown = {row[:3] for rows in out.windows[window.name].values() for row in rows}
    final_rows = {row[:3] for rows in out.windows[window.name].values() for row in rows if row[-2]}
    taken = {row[:3] for rows in out.hidden[window.name].values() for row in rows}
    return bool((taken & shown) - final_rows)


def final(out: Gathered, window: WindowSpec) -> dict[str, list[tuple[Any, ...]]]:
    found = {case: sorted(row[:4] for row in rows if row[-2]) for case, rows in out.windows[window.name].items()}
    return {case: rows for case, rows in found.items() if rows}
