"""The fast stages equal the oracle on generated logs, whole and cut, row by row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.properties.compared import assert_equal_to_oracle, assert_nothing_lost
from tests.properties.fold import run
from tests.properties.logs import BASE_US, KEY, Event, Log, generate
from tidemark.timeops.rules import SourceTime
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.watermark.watermarks import Way

CASES = 350  # logs of an example
# What moves the watermark that events see; and what duplicates, which move none, do in two of these.
MODES = ("events", "periods", "clock", "splits", "idle_splits", "silence", "duplicates", "idle_duplicates")
WITH_SPLITS = ("splits", "idle_splits", "idle_duplicates")

tolerance = st.fixed_dictionaries(
    {"tolerance": st.sampled_from(["7 us", "0 us", "25 us"]), "policy": st.sampled_from(["adjust", "drop"])}
)


@st.composite
def time_specs(draw: st.DrawFn, mode: str, turn: int) -> TimeSpec:
    return TimeSpec(
        timestamp_by="e",
        over=("case",),
        unit="microsecond",
        out_of_orderness=draw(turned(["9 us", "0 us", "1 us", "60 us"], turn)),
        out_of_order=draw(turned(["keep", "drop", "keep", "adjust"], turn)),
        late=draw(tolerance if mode == "clock" else st.one_of(st.none(), tolerance)),
        early=draw(st.one_of(st.none(), tolerance)),
        emit=draw(turned(_emissions(mode), turn)),
        idle=_IDLE[mode] | draw(st.just({}) if mode == "clock" else timeout) if mode in _IDLE else None,
        deduplicate_by=KEY if "duplicates" in mode else (),
        within=draw(turned(["8 us", "0 us", "2 us", "70 us"], turn)) if "duplicates" in mode else None,
    )


def _emissions(mode: str) -> Sequence[Any]:
    """Where the clock moves watermarks, one of the two tests tries them by periods."""
    periods = [{"every": "30 us"}, {"every": "4 us"}]
    if mode == "periods":
        return periods
    return ["on_event", periods[1], "on_event", periods[0]] if mode in _IDLE else ["on_event"]


_IDLE = {
    "clock": {"advance": "arrival_clock"},
    "idle_splits": {"advance": "exclude_split"},
    "idle_duplicates": {"advance": "exclude_split"},
    "silence": {"advance": "window_close"},
}
timeout = st.fixed_dictionaries({"timeout": st.sampled_from(["6 us", "25 us", "1 us"])})


@st.composite
def source_times(draw: st.DrawFn, time: TimeSpec) -> tuple[SourceTime, ...]:
    """The two sources of generated logs; the second may differ, and splits of the first may be listed."""
    listed = draw(st.sampled_from([(), ("x",), ("y", "z")]))
    first = SourceTime("s", "e", "UTC", time.out_of_orderness_us, time.idle_timeout_us, listed)
    own = draw(st.booleans())
    return (first, SourceTime("r", "e", "UTC", 3, 11) if own else replace(first, name="r", splits=()))


def turned(values: Sequence[Any], turn: int) -> st.SearchStrategy[Any]:
    """One of some values; the first that is tried is another for each turn, so that few examples try all of them."""
    start = turn % len(values)
    return st.sampled_from([*values[start:], *values[:start]])


@st.composite
def window_specs(draw: st.DrawFn, turn: int, *, lateness: bool) -> WindowSpec:
    kind = draw(turned(["sliding", "hopping", "cumulative", "tumbling", "snapshot"], turn))
    keys: dict[str, Any] = {
        "name": "a",
        "kind": kind,
        "group_by": draw(turned([("case",), ("case", "v")], turn)),
        "aggregates": {"seqs": "array_sort(collect_set(_arrival_seq))"},
    }
    step = draw(turned([3, 1, 10, 25], turn))
    size = step * draw(st.sampled_from([3, 1])) if kind == "cumulative" else draw(turned([10, 30, 4, 1], turn))
    if kind != "snapshot":
        keys["size"] = f"{size} us"
    if kind in ("hopping", "cumulative"):
        keys["hop" if kind == "hopping" else "step"] = f"{step} us"
    if kind in ("hopping", "cumulative", "tumbling"):
        keys["offset"] = f"{draw(st.integers(0, (step if kind == 'hopping' else size) - 1))} us"
        keys["closed"] = draw(turned(["left", "right"], turn // 2))
    emit = draw(turned(["on_time" if lateness else "early", "on_close"], turn // 3))
    if lateness:
        keys["allowed_lateness"] = draw(turned(["12 us", "1000 us", "1 us", "0 us"], turn))
    if emit == "on_time" and keys["allowed_lateness"] != "0 us":
        keys |= {"emit": "on_time", "revise_every": draw(turned(["10 us", "0 us", "3 us", "60 us"], turn))}
    if emit == "early":
        keys["emit"] = {"early": draw(turned(["10 us", "3 us", "60 us"], turn))}
    if draw(turned([False, True], turn)):
        keys["where"] = "v > 1"
    if draw(turned([True, False, False], turn)):
        keys["having"] = "size(seqs) != 2"  # a revision may pass, the next one not, and the one behind it again
    return WindowSpec(**keys)


@st.composite
def session_specs(draw: st.DrawFn, turn: int, policy: str) -> WindowSpec:
    keys: dict[str, Any] = {
        "name": "s",
        "kind": "session",
        "gap": draw(turned(["7 us", "2 us", "1 us", "30 us"], turn)),
        "group_by": draw(turned([("case", "v"), ("case",)], turn)),
        "aggregates": {"seqs": "array_sort(collect_set(_arrival_seq))"},
    }
    if policy == "keep":
        keys["allowed_lateness"] = draw(turned(["0 us", "5 us", "1 us", "1000 us"], turn))
    else:
        keys["max_duration"] = draw(turned([None, "13 us", "4 us", "1 us", "200 us"], turn))
    if draw(turned([True, False], turn)):
        keys["where"] = "v > 1"
    return WindowSpec(**keys)


def many_logs() -> settings:
    """One example of settings, or ten with `--hypothesis-profile=thorough`; each is tried on CASES logs."""
    return settings(
        max_examples=10 if settings.get_current_profile_name() == "thorough" else 1,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        derandomize=True,
    )


WAYS: tuple[Way, ...] = ("by_blocks", "in_order")
seeds = st.integers(0, 2**32)


# A log that is cut is judged whole by the oracle, so nearly all modes run always there, and one of them here.
WHOLE = [pytest.param(mode, marks=[pytest.mark.variant] if mode != "events" else []) for mode in MODES]
CUT = [pytest.param(mode, marks=[pytest.mark.variant] if mode == "idle_duplicates" else []) for mode in MODES]


@pytest.mark.parametrize("mode", WHOLE)
@many_logs()
@given(seed=seeds, data=st.data())
def test_every_table_equals_the_oracle(spark: SparkSession, mode: str, seed: int, data: st.DataObject) -> None:
    turn = MODES.index(mode)
    time = data.draw(time_specs(mode, turn))
    way = data.draw(turned(WAYS, turn))
    window = data.draw(window_specs(turn, lateness=time.out_of_order == "keep"))
    windows = (window, data.draw(session_specs(turn, time.out_of_order)))
    sources = data.draw(source_times(time)) if mode in WITH_SPLITS else ()
    flush = data.draw(turned([False, True], turn))
    logs = generate(seed, CASES)
    out = run(spark, logs, time, windows, sources=sources, way=way, flush=flush)
    for log in logs:
        assert_equal_to_oracle(log, out, time, windows, sources, flush=flush)
    assert_nothing_lost(logs, out)


@pytest.mark.parametrize("mode", CUT)
@many_logs()
@given(seed=seeds, data=st.data())
def test_a_log_cut_into_batches_gives_the_same_tables(
    spark: SparkSession, mode: str, seed: int, data: st.DataObject
) -> None:
    """The oracle judges every log whole, so equality with it is independence of the cuts as well."""
    turn = MODES.index(mode) + 3
    time = data.draw(time_specs(mode, turn))
    window = data.draw(window_specs(turn, lateness=time.out_of_order == "keep"))
    windows = (window, data.draw(session_specs(turn, time.out_of_order)))
    sources = data.draw(source_times(time)) if mode in WITH_SPLITS else ()
    flush = data.draw(turned([False, True], turn))
    logs = generate(seed, CASES)
    out = run(spark, logs, time, windows, sources=sources, parts=(0, 1, 2), flush=flush)
    for log in logs:
        assert_equal_to_oracle(log, out, time, windows, sources, flush=flush)
    assert_nothing_lost(logs, out)


def test_the_record_that_set_the_watermark_first_is_named_when_a_later_batch_asks_for_the_same_again(
    spark: SparkSession,
) -> None:
    came = [(10, 10), (11, 10), (12, 10), (13, 5)]
    events = tuple(Event(seq, BASE_US + at, BASE_US + t, 2) for seq, (at, t) in enumerate(came))
    log = Log("c", events, cuts=(1, 3))
    time = TimeSpec(timestamp_by="e", over=("case",), unit="microsecond", out_of_order="drop")
    for way in WAYS:
        out = run(spark, [log], time, (), parts=(0, 1, 2), way=way)
        assert [letter[-1] for letter in out.letters["3"]] == [0]
        assert_equal_to_oracle(log, out, time, (), flush=False)


def test_an_event_stays_named_when_the_clock_comes_to_the_same_watermark_after_it(spark: SparkSession) -> None:
    """Record 0 asks for 105. At record 1 the clock gives 105 as well, and record 2 is behind it."""
    came = [(100, 105), (115, 105), (112, 103)]
    events = tuple(Event(seq, BASE_US + at, BASE_US + t, 2) for seq, (at, t) in enumerate(came))
    log = Log("c", events)
    late = {"tolerance": "10 us", "policy": "adjust"}
    time = TimeSpec(timestamp_by="e", over=("case",), late=late, idle={"advance": "arrival_clock"})
    for way in WAYS:
        out = run(spark, [log], time, (), way=way)
        assert [letter[-2:] for letter in out.letters["2"]] == [(2, 0)]
        assert_equal_to_oracle(log, out, time, (), flush=False)


def test_the_arrival_clock_raises_the_watermark_of_splits_too(spark: SparkSession) -> None:
    """The slowest split allows 105, the clock at record 2 gives 120."""
    came = [(100, 105, "x"), (130, 131, "y"), (112, 110, "x")]
    events = tuple(Event(seq, BASE_US + at, BASE_US + t, 2, split=of) for seq, (at, t, of) in enumerate(came))
    log = Log("c", events)
    late = {"tolerance": "10 us", "policy": "adjust"}
    time = TimeSpec(timestamp_by="e", over=("case",), late=late, idle={"advance": "arrival_clock"})
    sources = (SourceTime("s", "e", "UTC", 0),)
    for way in WAYS:
        out = run(spark, [log], time, (), sources=sources, way=way)
        assert [letter[-3:] for letter in out.letters["2"]] == [(BASE_US + 120, None, None)]
        assert_equal_to_oracle(log, out, time, (), sources, flush=False)
