"""Refused records that an operator lets in: the engine equals the oracle, and a run that waits for ever."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import EMPTY, Gathered, assert_equal_to_oracle, run, window
from tests.properties.logs import FAR_US, Log, cut, generate, judged_by_oracle
from tests.properties.test_oracle_equality import (
    MODES,
    WITH_SPLITS,
    session_spec,
    source_times,
    time_spec,
    window_spec,
)
from tests.seeds import Dice
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec

CASES = 80
LETTERS = ("early", "late_arrival", "out_of_order", "duplicate", "window_closed")


def let_in(
    logs: Sequence[Log],
    time: TimeSpec,
    windows: Sequence[WindowSpec],
    dice: Dice,
    sources: Sequence[SourceTime] = (),
    *,
    reasons: Sequence[str] = LETTERS,
    every: bool = False,
) -> list[Log]:
    """Return the logs with some of their refused records let in, or with every one of some reasons."""
    found = []
    for log in logs:
        letters = judged_by_oracle(log, time, windows, sources=sources).dead_letters
        refused = {letter.seq for letter in letters if letter.reason in reasons}
        chosen = {seq for seq in refused if every or dice.choice((True, False))}
        events = tuple(replace(event, is_let_in=event.seq in chosen) for event in log.events)
        found.append(replace(log, events=events))
    return found


def some_are_let_in(logs: Sequence[Log]) -> bool:
    return any(event.is_let_in for log in logs for event in log.events)


def near(logs: Sequence[Log]) -> list[Log]:
    """Return the logs without events far in the past or future: all windows between them would have to be empty."""
    return [replace(log, events=tuple(e for e in log.events if e.event_us not in FAR_US)) for log in logs]


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_records_that_are_let_in_are_in_their_windows_as_if_they_had_come_in_time(
    spark: SparkSession, mode: str, dice: Dice
) -> None:
    turn = MODES.index(mode)
    for draw in range(10):  # there are rules that refuse no record of the logs
        time = time_spec(dice, mode, turn)
        windows = (
            window_spec(dice, turn, lateness=time.out_of_order == "keep"),
            session_spec(dice, turn, time.out_of_order),
        )
        sources = source_times(dice, time) if mode in WITH_SPLITS else ()
        logs, parts = cut(generate(dice.seed(10 * draw), dice.some(CASES)), dice)
        logs = let_in(logs, time, windows, dice, sources)
        if some_are_let_in(logs):
            break
    assert some_are_let_in(logs)
    keeps, flush = dice.choice((True, False)), dice.choice((False, True))
    out = run(spark, logs, time, windows, sources=sources, parts=parts, keeps_records=keeps, flush=flush)
    assert_equal_to_oracle(logs, out, time, windows, sources, flush=flush)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_windows_with_no_event_know_of_records_that_are_let_in(spark: SparkSession, policy: str, dice: Dice) -> None:
    time = TimeSpec.model_validate(
        {"timestamp_by": "e", "over": ["case"], "out_of_order": policy, "out_of_orderness": "2 us"}
        | {"late": {"tolerance": "20 us", "policy": "drop"}, "early": {"tolerance": "9 us", "policy": "drop"}}
    )
    logs, parts = cut(near(generate(dice.seed(1), dice.some(CASES))), dice)
    logs = let_in(logs, time, (EMPTY,), dice)
    assert some_are_let_in(logs)
    out = run(spark, logs, time, (EMPTY,), parts=parts)
    assert_equal_to_oracle(logs, out, time, (EMPTY,))


FOREVER = "1 day"
EACH_KIND: tuple[dict[str, Any], ...] = (
    {"name": "tumbling", "kind": "tumbling", "size": "10 us"},
    {"name": "hopping", "kind": "hopping", "size": "30 us", "hop": "10 us", "closed": "right"},
    {"name": "apart", "kind": "hopping", "size": "3 us", "hop": "10 us"},
    {"name": "cumulative", "kind": "cumulative", "size": "30 us", "step": "10 us"},
    {"name": "days", "kind": "tumbling", "size": "1 day", "time_zone": "Europe/Berlin"},
    {"name": "snapshot", "kind": "snapshot"},
    {"name": "sliding", "kind": "sliding", "size": "10 us", "group_by": ("case", "v")},
    {"name": "session", "kind": "session", "gap": "7 us", "group_by": ("case", "v")},
    {"name": "filtered", "kind": "session", "gap": "4 us", "where": "v > 1", "having": "size(seqs) > 1"},
)


def test_all_letters_out_of_order_let_in_give_what_a_run_gives_that_waits_for_ever(
    spark: SparkSession, dice: Dice
) -> None:
    logs, parts = cut(near(generate(dice.seed(2), CASES)), dice)
    rules = {"timestamp_by": "e", "over": ["case"], "out_of_orderness": "3 us"}
    drops, keeps = (TimeSpec.model_validate(rules | {"out_of_order": policy}) for policy in ("drop", "keep"))
    kinds = [dice.turn(EACH_KIND, turn) for turn in range(dice.some(len(EACH_KIND)))]
    refusing = tuple(window(**keys) for keys in kinds)
    waiting = tuple(window(**keys, allowed_lateness=FOREVER) for keys in kinds)
    replayed = run(
        spark,
        let_in(logs, drops, (), dice, reasons=["out_of_order"], every=True),
        drops,
        refusing,
        parts=parts,
        flush=True,
    )
    patient = run(spark, logs, keeps, waiting, flush=True)
    for each in refusing:
        assert finals(replayed, each) == finals(patient, each), each.name
    refused = run(spark, logs, drops, refusing[:1], flush=True)
    assert finals(refused, refusing[0]) != finals(patient, refusing[0])


def finals(out: Gathered, each: WindowSpec) -> dict[str, list[tuple[Any, ...]]]:
    """Return the values of the final results of a window, whatever closed it."""
    return {case: sorted(row[:4] for row in rows if row[5]) for case, rows in out.windows[each.name].items() if rows}
