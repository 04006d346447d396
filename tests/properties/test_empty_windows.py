"""Windows that write rows without an event too: equal to the oracle, whole and cut, whatever moves the watermark."""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties import fold
from tests.properties.fold import assert_equal_to_oracle, run
from tests.properties.logs import BASE_US, FAR_US, Event, Log, generate, near
from tests.seeds import Dice
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows.gap_filling import told_in_words

SOON = ("clock",)
CASES = 90  # logs of a mode


def emptied(name: str, **keys: Any) -> WindowSpec:
    return fold.window(name=name, empty=True, **({"group_by": ("case", "v")} | keys))


# What moves the watermark, each with a grid. Where `where`, a gap or the clock comes between, rows wait for events.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "periods": (
        {"out_of_order": "keep", "emit": {"every": "30 us"}},
        {"kind": "tumbling", "size": "10 us", "where": "v > 1", "allowed_lateness": "12 us"}
        | {"emit": "on_time", "revise_every": "10 us", "having": "size(seqs) != 2"},
    ),
    "clock": (
        {"late": {"tolerance": "7 us", "policy": "adjust"}, "idle": {"advance": "arrival_clock"}},
        {"kind": "hopping", "size": "4 us", "hop": "10 us", "closed": "right"},
    ),
    "idle_splits": (
        {"out_of_order": "keep", "idle": {"advance": "exclude_split", "timeout": "6 us"}},
        {"kind": "cumulative", "size": "30 us", "step": "10 us", "offset": "7 us", "allowed_lateness": "12 us"},
    ),
    "silence": (
        {"out_of_order": "adjust", "idle": {"advance": "window_close", "timeout": "6 us"}},
        {"kind": "hopping", "size": "20 us", "hop": "10 us", "where": "v > 1", "emit": {"early": "10 us"}},
    ),
    "months": (
        {"out_of_order": "keep"},
        {"kind": "tumbling", "size": "1 month", "time_zone": "Europe/Berlin", "allowed_lateness": "20 days"},
    ),
    "fiscal_quarters": (
        {"out_of_order": "adjust"},
        {"kind": "tumbling", "size": "1 quarter", "origin": "2023-10-06", "time_zone": "Europe/London"},
    ),
    "days": (
        {"out_of_order": "adjust", "out_of_orderness": "2 days"},
        {"kind": "tumbling", "size": "1 day", "time_zone": "America/New_York", "closed": "right", "where": "v > 1"},
    ),
}
STRETCHED = {"months": 8 * 86_400_000_000, "fiscal_quarters": 25 * 86_400_000_000, "days": 86_400_000_000}
"""How far apart times are that are a microsecond apart elsewhere, so that they lie in months and days."""


def stretched(log: Log, times: int) -> Log:
    """Return a log whose event times are so many times as far from `BASE_US`."""
    at = [None if event.event_us is None else BASE_US + (event.event_us - BASE_US) * times for event in log.events]
    return replace(log, events=tuple(replace(e, event_us=us) for e, us in zip(log.events, at, strict=True)))


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode in SOON else [pytest.mark.long]) for mode in MODES]
)
def test_rows_without_an_event_are_those_of_the_oracle_wherever_the_log_is_cut(
    spark: SparkSession, mode: str, dice: Dice
) -> None:
    turn = list(MODES).index(mode)
    time_keys, keys = MODES[mode]
    time = TimeSpec(timestamp_by="e", over=("case",), **time_keys)
    window = emptied("w", **keys)
    first = SourceTime("s", "e", "UTC", 0, 6)
    sources = (first, replace(first, name="r")) if mode == "idle_splits" else ()
    logs = [replace(log, cuts=log.cuts[:2]) for log in near(generate(dice.seed(turn), CASES))]
    logs = [stretched(log, STRETCHED.get(mode, 1)) for log in logs]
    flush = bool(turn % 2)
    out = run(spark, logs, time, (window,), sources=sources, parts=(0, 1, 2), flush=flush)
    assert_equal_to_oracle(logs, out, time, (window,), sources, flush=flush)
    assert sum(not row[3] for rows in out.windows["w"].values() for row in rows) > 100


@pytest.mark.long
def test_a_time_that_is_far_off_is_refused_before_a_row_is_made(spark: SparkSession) -> None:
    events = tuple(Event(seq, BASE_US + seq, t, 2) for seq, t in enumerate([BASE_US, BASE_US + 5, FAR_US[1]]))
    time, window = TimeSpec(timestamp_by="e", over=("case",)), emptied("w", kind="tumbling", size="1 us")
    with pytest.raises(TidemarkError) as caught, told_in_words():
        run(spark, [Log("c", events)], time, (window,))
    assert caught.value.found.startswith(
        'The window `w` adds to the group {"case":"c","v":2} 248299999999999998 rows for windows with no event, '
        "more than its `empty_max`, 10000, in one batch: they end from 2023-11-14 22:13:20.000001 to "
    )
    assert "raise `empty_max`" in caught.value.remedy
    most = window.model_copy(update={"empty_max": 4})
    out = run(spark, [Log("c", events[:2])], time, (most,), flush=True)
    assert len(out.windows["w"]["c"]) == 6
    with pytest.raises(TidemarkError, match=" 4 rows for windows with no event"), told_in_words():
        run(spark, [Log("c", events[:2])], time, (most.model_copy(update={"empty_max": 3}),), flush=True)
