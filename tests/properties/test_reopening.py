"""Pipelines that are flushed and reopened, some twice: equal to the oracle, whatever their windows and policies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties import fold
from tests.properties.fold import Gathered, assert_equal_to_oracle, run, some_of
from tests.properties.logs import BASE_US, Event, Log, generate, near
from tests.seeds import Dice
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec


def window(name: str, **keys: Any) -> WindowSpec:
    return fold.window(name=name, **({"group_by": ("case", "v")} | keys))


def revised(lateness: str, every: str) -> dict[str, str]:
    return {"allowed_lateness": lateness, "emit": "on_time", "revise_every": every}


# What moves the watermark, after which parts the logs are flushed and reopened, and windows.
MODES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[WindowSpec, ...]]] = {
    "keep": (
        {"out_of_order": "keep", "out_of_orderness": "9 us"},
        (0, 1),
        (
            window("hopping", kind="hopping", size="30 us", hop="5 us", allowed_lateness="12 us", group_by=("case",)),
            window("sliding", kind="sliding", size="20 us", where="v > 1"),
            window("session", kind="session", gap="7 us", allowed_lateness="5 us", group_by=("case",)),
            window("revised", kind="tumbling", size="20 us", **revised("12 us", "10 us")),
        ),
    ),
    "drop": (
        {"out_of_orderness": "20 us"},
        (0,),
        (
            window("tumbling", kind="tumbling", size="10 us", closed="right", group_by=("case",)),
            window("snapshot", kind="snapshot"),
            window("session", kind="session", gap="9 us", max_duration="13 us", group_by=("case",)),
            window("emptied", kind="cumulative", size="30 us", step="10 us", where="v > 1", empty=True),
        ),
    ),
    "adjust by periods": (
        {"out_of_order": "adjust", "emit": {"every": "30 us"}, "out_of_orderness": "9 us"},
        (0, 1),
        (
            window("early", kind="hopping", size="15 us", hop="5 us", emit={"early": "10 us"}, group_by=("case",)),
            window("session", kind="session", gap="9 us", where="v > 1", group_by=("case",)),
            window("sliding", kind="sliding", size="15 us", emit={"early": "10 us"}),
        ),
    ),
    "silences": (
        {"out_of_order": "keep", "idle": {"advance": "window_close", "timeout": "6 us"}, "emit": {"every": "4 us"}},
        (0,),
        (
            window("tumbling", kind="tumbling", size="20 us", allowed_lateness="12 us", empty=True),
            window("sliding", kind="sliding", size="20 us", group_by=("case",), **revised("15 us", "0 us")),
        ),
    ),
    "idle splits": (
        {"out_of_order": "keep", "idle": {"advance": "exclude_split", "timeout": "6 us"}, "out_of_orderness": "9 us"},
        (0,),
        (
            window("gapped", kind="hopping", size="5 us", hop="10 us", allowed_lateness="20 us", group_by=("case",)),
            window("session", kind="session", gap="12 us"),
        ),
    ),
}
CASES = 200  # logs of a mode
FIXED_TOO = True  # in the logs of some seeds a flush closes nothing that comes later
SOURCES = (SourceTime("s", "e", "UTC", 9, 6), SourceTime("r", "e", "UTC", 3, 11))


def cutting_off() -> Log:
    """Return a log whose last event cuts a session of at most 13 us in two; a flush has closed the second."""
    came = enumerate((20, 8, 16, 20, 5), start=1_000_000)
    return Log("cut", tuple(Event(seq, BASE_US + seq % 10, BASE_US + t, 2) for seq, t in came), cuts=(1, 1))


VARIANTS = ("drop", "adjust by periods", "silences", "idle splits")


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.long] if mode in VARIANTS else []) for mode in MODES]
)
def test_what_a_flush_closed_stays_closed_and_all_else_goes_on_as_before(
    spark: SparkSession, mode: str, dice: Dice
) -> None:
    keys, flushed_after, windows = MODES[mode]
    turn = list(MODES).index(mode)
    time = TimeSpec(timestamp_by="e", over=("case",), **keys)
    sources = SOURCES if mode == "idle splits" else ()
    windows = some_of(windows, dice, turn=0)
    logs = near(generate(dice.seed(40 + turn), dice.some(CASES)))
    logs.append(cutting_off())
    parts = tuple(range(len(flushed_after) + 1))
    logs = [replace(log, cuts=log.cuts[: len(flushed_after)]) for log in logs]
    flush = bool(turn % 2)
    out = run(spark, logs, time, windows, sources=sources, parts=parts, flush=flush, flushed_after=flushed_after)
    assert_equal_to_oracle(logs, out, time, windows, sources, flush=flush, flushed_after=flushed_after)
    if dice.is_fixed:
        assert_all_windows_missed_some(out, windows)


def assert_all_windows_missed_some(out: Gathered, windows: Sequence[WindowSpec]) -> None:
    """Otherwise the logs would show nothing: every kind has refused events that were on time."""
    closed = {letter[3] for letters in out.letters.values() for letter in letters if letter[7] is None}
    assert closed >= {one.name for one in windows}


@pytest.mark.long
def test_events_from_before_a_flush_still_count_at_later_instants_of_a_sliding_window(spark: SparkSession) -> None:
    """Close by a flush the instants 10 and 30 of the event at 10. At 15 it still counts, beside the one at 15."""
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness="50 us")
    sliding = window("sliding", kind="sliding", size="20 us", group_by=("case",))
    events = tuple(Event(seq, BASE_US + seq, BASE_US + t, 2) for seq, t in enumerate((10, 15)))
    log = Log("reopened", events, cuts=(1,))
    out = run(spark, [log], time, (sliding,), parts=(0, 1), flush=True, flushed_after=(0,))
    assert_equal_to_oracle([log], out, time, (sliding,), flush=True, flushed_after=(0,))
    assert (0, 1) in [row[3] for row in out.windows["sliding"]["reopened"]]
