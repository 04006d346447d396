"""The fast stages equal the oracle on generated logs, whole and cut, row by row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import assert_equal_to_oracle, run, some_of, window
from tests.properties.logs import BASE_US, KEY, Event, Log, cut, generate
from tests.seeds import Dice
from tidemark.timeops.events import adjustment
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec

CASES = 350  # logs of an example
# What moves the watermark that events see; and what duplicates, which move none, do in two of these.
MODES = ("events", "periods", "clock", "splits", "idle_splits", "silence", "duplicates", "idle_duplicates")
WITH_SPLITS = ("splits", "idle_splits", "idle_duplicates")

_IDLE = {
    "clock": {"advance": "arrival_clock"},
    "idle_splits": {"advance": "exclude_split"},
    "idle_duplicates": {"advance": "exclude_split"},
    "silence": {"advance": "window_close"},
}


def tolerance(dice: Dice, *more: str) -> dict[str, str]:
    return {"tolerance": dice.choice(["7 us", "0 us", "25 us"]), "policy": dice.choice(["adjust", "drop", *more])}


def maybe_tolerance(dice: Dice) -> dict[str, str] | None:
    return dice.choice([None, tolerance(dice)])


def time_spec(dice: Dice, mode: str, turn: int) -> TimeSpec:
    timeout = {} if mode == "clock" else {"timeout": dice.choice(["6 us", "25 us", "1 us"])}
    return TimeSpec(
        timestamp_by="e",
        over=("case",),
        unit="microsecond",
        out_of_orderness=dice.choice(turned(["9 us", "0 us", "1 us", "60 us"], turn)),
        out_of_order=dice.turn(["keep", "drop", "keep", "adjust"], turn),
        late=tolerance(dice) if mode == "clock" else maybe_tolerance(dice),
        early=dice.choice([None, tolerance(dice, "keep")]),
        emit=dice.choice(turned(_emissions(mode), turn)),
        idle=_IDLE[mode] | timeout if mode in _IDLE else None,
        deduplicate_by=KEY if "duplicates" in mode else (),
        within=dice.choice(turned(["8 us", "0 us", "2 us", "70 us"], turn)) if "duplicates" in mode else None,
    )


def _emissions(mode: str) -> Sequence[Any]:
    """Where the clock moves watermarks, one of the two tests tries them by periods."""
    periods = [{"every": "30 us"}, {"every": "4 us"}]
    if mode == "periods":
        return periods
    return ["on_event", periods[1], "on_event", periods[0]] if mode in _IDLE else ["on_event"]


def source_times(dice: Dice, time: TimeSpec) -> tuple[SourceTime, ...]:
    """Return the two sources of generated logs; the second may differ, and splits of the first may be listed."""
    listed = dice.choice([(), ("x",), ("y", "z")])
    first = SourceTime("s", "e", "UTC", time.out_of_orderness_us, time.idle_timeout_us, listed)
    own = dice.choice([False, True])
    return (first, SourceTime("r", "e", "UTC", 3, 11) if own else replace(first, name="r", splits=()))


def turned(values: Sequence[Any], turn: int) -> Sequence[Any]:
    """Return the values with another one first for each turn, so that few fixed examples try all of them."""
    start = turn % len(values)
    return [*values[start:], *values[:start]]


def window_spec(dice: Dice, turn: int, *, lateness: bool) -> WindowSpec:
    kind = dice.choice(turned(["sliding", "hopping", "cumulative", "tumbling", "snapshot"], turn))
    keys: dict[str, Any] = {
        "name": "a",
        "kind": kind,
        "group_by": dice.choice(turned([("case",), ("case", "v")], turn)),
    }
    step = dice.choice(turned([3, 1, 10, 25], turn))
    size = step * dice.choice([3, 1]) if kind == "cumulative" else dice.choice(turned([10, 30, 4, 1], turn))
    if kind != "snapshot":
        keys["size"] = f"{size} us"
    if kind in ("hopping", "cumulative"):
        keys["hop" if kind == "hopping" else "step"] = f"{step} us"
    if kind in ("hopping", "cumulative", "tumbling"):
        keys["offset"] = f"{dice.choice(range(step if kind == 'hopping' else size))} us"
        keys["closed"] = dice.choice(turned(["left", "right"], turn // 2))
    emit = dice.choice(turned(["on_time" if lateness else "early", "on_close"], turn // 3))
    if lateness:
        keys["allowed_lateness"] = dice.choice(turned(["12 us", "1000 us", "1 us", "0 us"], turn))
    if emit == "on_time" and keys["allowed_lateness"] != "0 us":
        keys |= {"emit": "on_time", "revise_every": dice.choice(turned(["10 us", "0 us", "3 us", "60 us"], turn))}
    if emit == "early":
        keys["emit"] = {"early": dice.choice(turned(["10 us", "3 us", "60 us"], turn))}
    if dice.choice(turned([False, True], turn)):
        keys["where"] = "v > 1"
    if dice.choice(turned([True, False, False], turn)):
        keys["having"] = "size(seqs) != 2"  # a revision may pass, the next one not, and the one after it again
    return window(**keys)


def session_spec(dice: Dice, turn: int, policy: str) -> WindowSpec:
    keys: dict[str, Any] = {
        "name": "s",
        "kind": "session",
        "gap": dice.choice(turned(["7 us", "2 us", "1 us", "30 us"], turn)),
        "group_by": dice.choice(turned([("case", "v"), ("case",)], turn)),
    }
    if policy == "keep":
        keys["allowed_lateness"] = dice.choice(turned(["0 us", "5 us", "1 us", "1000 us"], turn))
    else:
        keys["max_duration"] = dice.choice(turned([None, "13 us", "4 us", "1 us", "200 us"], turn))
    if dice.choice(turned([True, False], turn)):
        keys["where"] = "v > 1"
    return window(**keys)


KEEPS_RECORDS = (True, False)  # a large segment keeps none: where they are needed they are judged again


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode == "events" else [pytest.mark.long]) for mode in MODES]
)
def test_a_log_whole_or_cut_into_batches_gives_the_oracles_tables(spark: SparkSession, mode: str, dice: Dice) -> None:
    """Compare with the oracle, which judges every log whole: so equality is independence of the cuts as well."""
    turn = MODES.index(mode) + 3
    time = time_spec(dice, mode, turn)
    keeps = dice.choice(turned(KEEPS_RECORDS, turn))
    drawn = window_spec(dice, turn, lateness=time.out_of_order == "keep")
    windows = some_of((drawn, session_spec(dice, turn, time.out_of_order)), dice, turn)
    sources = source_times(dice, time) if mode in WITH_SPLITS else ()
    flush = dice.choice(turned([False, True], turn))
    logs, parts = cut(generate(dice.seed(0), dice.some(CASES)), dice)
    ways: Sequence[Sequence[int | None]] = (parts, parts, (None,))
    out = run(
        spark, logs, time, windows, sources=sources, parts=dice.turn(ways, turn), keeps_records=keeps, flush=flush
    )
    assert_equal_to_oracle(logs, out, time, windows, sources, flush=flush)


@pytest.mark.long
def test_the_record_that_set_the_watermark_first_is_named_when_a_later_batch_asks_for_the_same_again(
    spark: SparkSession,
) -> None:
    came = [(10, 10), (11, 10), (12, 10), (13, 5)]
    events = tuple(Event(seq, BASE_US + at, BASE_US + t, 2) for seq, (at, t) in enumerate(came))
    log = Log("c", events, cuts=(1, 3))
    time = TimeSpec(timestamp_by="e", over=("case",), unit="microsecond", out_of_order="drop")
    for keeps in KEEPS_RECORDS:
        out = run(spark, [log], time, parts=(0, 1, 2), keeps_records=keeps)
        assert [letter[-1] for letter in out.letters["3"]] == [0]
        assert_equal_to_oracle([log], out, time)


def test_an_event_stays_named_when_the_clock_comes_to_the_same_watermark_after_it(spark: SparkSession) -> None:
    """Record 0 asks for 105. At record 1 the clock sets 105 as well, and record 2 is below it."""
    came = [(100, 105), (115, 105), (112, 103)]
    events = tuple(Event(seq, BASE_US + at, BASE_US + t, 2) for seq, (at, t) in enumerate(came))
    log = Log("c", events)
    late = {"tolerance": "10 us", "policy": "adjust"}
    time = TimeSpec(timestamp_by="e", over=("case",), late=late, idle={"advance": "arrival_clock"})
    for keeps in KEEPS_RECORDS:
        out = run(spark, [log], time, keeps_records=keeps)
        assert [letter[-2:] for letter in out.letters["2"]] == [(2, 0)]
        assert_equal_to_oracle([log], out, time)


@pytest.mark.parametrize(
    "policy", ["drop", *(pytest.param(policy, marks=pytest.mark.long) for policy in ("adjust", "keep"))]
)
def test_more_refused_records_than_can_be_named_by_number_are_left_out_all_the_same(
    spark: SparkSession, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adjustment, "BROADCAST", 0)
    logs = generate(31, 60)
    time = TimeSpec.model_validate({"timestamp_by": "e", "over": ["case"], "out_of_order": policy})
    assert_equal_to_oracle(logs, run(spark, logs, time, keeps_records=False), time)


@pytest.mark.long
def test_the_arrival_clock_raises_the_watermark_of_splits_too(spark: SparkSession) -> None:
    """Let the slowest split allow 105, and the clock at record 2 set 120."""
    came = [(100, 105, "x"), (130, 131, "y"), (112, 110, "x")]
    events = tuple(Event(seq, BASE_US + at, BASE_US + t, 2, split=of) for seq, (at, t, of) in enumerate(came))
    log = Log("c", events)
    late = {"tolerance": "10 us", "policy": "adjust"}
    time = TimeSpec(timestamp_by="e", over=("case",), late=late, idle={"advance": "arrival_clock"})
    sources = (SourceTime("s", "e", "UTC", 0),)
    for keeps in KEEPS_RECORDS:
        out = run(spark, [log], time, sources=sources, keeps_records=keeps)
        assert [letter[-3:] for letter in out.letters["2"]] == [(BASE_US + 120, None, None)]
        assert_equal_to_oracle([log], out, time, sources=sources)
