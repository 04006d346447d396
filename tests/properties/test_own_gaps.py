"""Sessions whose events each say their own gap: equal to the oracle in every mode, wherever a log is cut.

The gap goes by the value of an event: windows refuse value 0, and the longest gap is five times the shortest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import assert_equal_to_oracle, run, some_of, window
from tests.properties.logs import (
    BASE_US,
    OWN_GAP,
    OWN_GAP_OF_RESULTS,
    RESULTS_OF_FEW,
    Event,
    Log,
    generate,
    near,
    with_ticks,
)
from tests.seeds import Dice
from tidemark.timeops.spec import TimeSpec, WindowSpec


def session(name: str, **keys: Any) -> WindowSpec:
    return window(name=name, kind="session", **({"gap": OWN_GAP, "max_gap": "30 us"} | keys))


ONCE = session("once", allowed_lateness="12 us")
AT_ONCE = session("at_once", group_by=("case", "v"))
FILTERED = session("filtered", max_gap="12 us", where="v > 1", allowed_lateness="3 us")
LONGEST = session("longest", max_duration="25 us")
ON_TIME = session("on_time", allowed_lateness="25 us", emit="on_time", revise_every="0 us", history=True)
PERIODS = session("periods", allowed_lateness="40 us", emit="on_time", revise_every="4 us", having="size(seqs) != 2")
EARLY = session("early", emit={"early": "5 us"}, max_gap="12 us")
ACROSS = session("across", across=True, group_by=("case",))
TENS = window(name="tens", kind="tumbling", size="10 us", group_by=("case", "v"))
OF_RESULTS = {"from": "tens", "aggregates": {"seqs": "array_sort(flatten(array_sort(collect_list(seqs))))"}}
RUNS = session("runs", gap=OWN_GAP_OF_RESULTS, max_gap="13 us", **OF_RESULTS)
FEW = window(name="few", kind="session", gap="4 us", where=RESULTS_OF_FEW, **OF_RESULTS)

KEEP = {"out_of_order": "keep", "out_of_orderness": "3 us"}
DROP = {"out_of_orderness": "9 us"}
SILENCE = {"idle": {"advance": "window_close", "timeout": "6 us"}}
BY_CLOCK = {"late": {"tolerance": "7 us", "policy": "adjust"}, "idle": {"advance": "arrival_clock"}}
HALVES, CUT, WHOLE = (0, 1), (0, 1, 2), (None,)
CASES = 120  # logs of a mode

# Settings of time, windows, and how the logs are cut.
MODES: dict[str, tuple[dict[str, Any], tuple[WindowSpec, ...], Sequence[int | None]]] = {
    "kept": (KEEP, (ONCE, AT_ONCE, FILTERED), CUT),
    "dropped": (DROP, (AT_ONCE, LONGEST), HALVES),
    "adjusted": ({"out_of_order": "adjust"}, (LONGEST, EARLY), CUT),
    "revised": (KEEP, (ON_TIME, PERIODS, EARLY), CUT),
    "whole": (KEEP, (ONCE, ON_TIME), WHOLE),
    "silence": (KEEP | SILENCE, (ONCE, PERIODS), CUT),
    "silence of one that drops": (DROP | SILENCE, (AT_ONCE, LONGEST), HALVES),
    "clock by periods": (KEEP | BY_CLOCK | {"emit": {"every": "8 us"}}, (ONCE, EARLY), CUT),
    "across": (KEEP, (ACROSS,), CUT),
    "across, dropped": (DROP, (ACROSS,), HALVES),
    "across, silence": ({"out_of_order": "keep"} | SILENCE, (ACROSS,), CUT),
}
SOON = ("silence of one that drops",)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode in SOON else [pytest.mark.long]) for mode in MODES]
)
def test_sessions_whose_events_say_their_gap_give_the_oracles(spark: SparkSession, mode: str, dice: Dice) -> None:
    keys, windows, parts = MODES[mode]
    turn = list(MODES).index(mode)
    drawn = some_of(windows, dice, turn)
    over = ("case", "v") if mode.startswith("across") else ("case",)
    time = TimeSpec(timestamp_by="e", over=over, **keys)
    logs = generate(dice.seed(300 + turn), dice.some(CASES))
    logs = near(logs) if mode.startswith(("across", "clock", "silence")) else logs
    if parts == HALVES:
        logs = [replace(log, cuts=log.cuts[:1]) for log in logs]
    if mode.startswith(("clock", "silence")):
        logs = with_ticks(logs, dice.seed(turn))
    flush = bool(turn % 2)
    out = run(spark, logs, time, drawn, parts=parts, flush=flush)
    assert_equal_to_oracle(logs, out, time, drawn, flush=flush)
    assert any(out.tally[f"{each.name}.bad_expression"] for each in drawn), "none was refused"


@pytest.mark.long
def test_what_a_flush_closed_of_sessions_with_own_gaps_stays_closed(spark: SparkSession, dice: Dice) -> None:
    logs = generate(dice.seed(320), dice.some(CASES))
    ways: dict[str, Any] = {"flush": True, "flushed_after": (0, 1)}
    for keys, windows in ((KEEP, (ONCE, AT_ONCE)), (DROP, (LONGEST,))):
        time = TimeSpec(timestamp_by="e", over=("case",), **keys)
        out = run(spark, logs, time, windows, parts=CUT, **ways)
        assert_equal_to_oracle(logs, out, time, windows, **ways)


def log_of(*came: tuple[int, int], cuts: tuple[int, ...] = ()) -> Log:
    """Return a log of events by their time and their value."""
    events = (Event(seq, BASE_US + seq, BASE_US + t, value) for seq, (t, value) in enumerate(came))
    return Log("c", tuple(events), cuts=cuts)


def of_one_run(logs: Mapping[str, Log]) -> dict[str, Log]:
    """Return logs by their case, whose records have numbers of all of them."""
    seqs, named = 0, dict[str, Log]()
    for case, log in logs.items():
        events = tuple(replace(event, seq=event.seq + seqs) for event in log.events)
        named[case] = replace(log, case=case, events=events)
        seqs += len(events)
    return named


def test_of_two_events_the_gap_of_the_earlier_one_decides_whether_they_meet(spark: SparkSession) -> None:
    """Values 2, 3 and 5 keep a session open for 6, 9 and 15 us, value 1 for 30; 4 us is the shortest gap here."""
    logs = {
        "the earlier one reaches": log_of((0, 5), (15, 2), (200, 2)),
        "the later one would": log_of((0, 2), (7, 5), (200, 2)),
        "one in between does not end it": log_of((0, 5), (3, 2), (15, 2), (22, 2), (200, 2)),
        "a late one with a long gap joins two": log_of((20, 2), (40, 2), (11, 1), (200, 2)),
        "none says no gap": log_of((0, 5), (3, 0), (200, 2)),
    }
    named = of_one_run(logs)
    time, windows = TimeSpec(timestamp_by="e", over=("case",), **KEEP), (session("s", allowed_lateness="50 us"),)
    out = run(spark, list(named.values()), time, windows)
    assert_equal_to_oracle(list(named.values()), out, time, windows)
    spans = {
        case: [(row[0] - BASE_US, row[1] - BASE_US, len(row[3])) for row in sorted(out.windows["s"][case])]
        for case in named
    }
    assert spans == {
        "the earlier one reaches": [(0, 21, 2)],
        "the later one would": [(0, 6, 1), (7, 22, 1)],
        "one in between does not end it": [(0, 21, 3), (22, 28, 1)],
        "a late one with a long gap joins two": [(11, 46, 3)],
        "none says no gap": [(0, 15, 1)],
    }
    [letter] = out.letters[str(named["none says no gap"].events[1].seq)]
    assert letter[1:4] == ("window", "bad_expression", "s")


@pytest.mark.long
def test_a_result_that_takes_no_part_is_in_no_session_of_another_one_of_its_time(spark: SparkSession) -> None:
    """Of the results at 70, that of four events says a gap above `max_gap`; `where` of the other window drops it."""
    came = ((60, 4), (62, 4), (61, 3), (64, 4), (66, 4), (71, 2), (200, 2))
    logs = of_one_run({str(cuts): log_of(*came, cuts=cuts) for cuts in ((), (3,), (5, 6))})
    time = TimeSpec(timestamp_by="e", over=("case",), **DROP)
    out = run(spark, list(logs.values()), time, (TENS, RUNS, FEW), parts=CUT)
    for case, log in logs.items():
        third, sixth = ((log.events[place].seq,) for place in (2, 5))
        for name in ("runs", "few"):
            spans = [(row[0] - BASE_US, row[1] - BASE_US, row[3]) for row in sorted(out.windows[name][case])]
            assert spans == [(70, 74, third), (80, 84, sixth)], (name, case)


@pytest.mark.long
def test_results_that_say_their_gap_give_the_oracles_sessions(spark: SparkSession, dice: Dice) -> None:
    """Results keep their session open for 4 us an event; of results of one time the longest gap counts.

    Another window takes only the results of few events, which may have the time of others.
    """
    logs = near(generate(dice.seed(330), dice.some(CASES)))
    time, windows = TimeSpec(timestamp_by="e", over=("case",), **DROP), (TENS, RUNS, FEW)
    for parts in (WHOLE, CUT):
        out = run(spark, logs, time, windows, parts=parts, flush=True)
        runs = out.windows["runs"]
        assert {row[1] - max(row[0], row[1] - 13) for rows in runs.values() for row in rows} > {4}, "gaps differ"
        assert_equal_to_oracle(logs, out, time, windows, flush=True)
