"""Kinds of windows without any row: which kind a window is, what it needs, against the oracle's windows."""

import random

import pytest

from tests.oracle.model import Window
from tests.oracle.windows import WindowKeeper
from tidemark.timeops.columns import MIN_US
from tidemark.timeops.engine import sharing
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.aligned import AlignedWindows
from tidemark.timeops.windows.kinds import kind_of, needed_for_certain_from
from tidemark.timeops.windows.sessions import Sessions
from tidemark.timeops.windows.sliding import SlidingWindows

REVISED = {"allowed_lateness": "5 us", "emit": "on_time"}
SHAPES = {
    "tumbling": {"kind": "tumbling", "size": "10 us"},
    "hopping": {"kind": "hopping", "size": "10 us", "hop": "4 us"},
    "cumulative": {"kind": "cumulative", "size": "10 us", "step": "5 us"},
    "snapshot": {"kind": "snapshot"},
    "session": {"kind": "session", "gap": "10 us"},
    "sliding": {"kind": "sliding", "size": "10 us"},
}


def spec(name: str = "w", **keys: str) -> WindowSpec:
    return WindowSpec(name=name, aggregates={"n": "count(*)"}, **keys)


def test_every_shape_is_one_of_three_kinds() -> None:
    found = {name: type(kind_of(spec(**keys))) for name, keys in SHAPES.items()}
    aligned = dict.fromkeys(("tumbling", "hopping", "cumulative", "snapshot"), AlignedWindows)
    assert found == {**aligned, "session": Sessions, "sliding": SlidingWindows}


def test_windows_share_a_frame_where_the_same_events_are_needed() -> None:
    """Revised sliding windows need events by their time alone; of the others a session may say which are needed."""
    once = [spec(name, **keys) for name, keys in SHAPES.items()]
    revised = [spec(f"revised_{name}", **keys, **REVISED) for name, keys in SHAPES.items()]
    groups = [{window.name for window in group} for group in sharing([*once, *revised])]
    assert groups == [
        {"tumbling", "hopping", "cumulative", "snapshot"},
        {"session", "sliding"},
        {"revised_tumbling", "revised_hopping", "revised_cumulative", "revised_snapshot", "revised_sliding"},
        {"revised_session"},
    ]


@pytest.mark.parametrize("shape", ["snapshot", "sliding"])
def test_an_event_before_the_place_of_a_plan_is_in_no_open_window(shape: str) -> None:
    keys = {**SHAPES[shape], "allowed_lateness": "3 us"}
    first = kind_of(spec(**keys)).needed_from(100)
    size_us = 10 if shape == "sliding" else 0
    keeper = WindowKeeper(Window("w", "sliding", size_us=10, allowed_lateness_us=3))
    assert keeper.is_closed(("", first - 1, first - 1 + size_us, ()), 100)


def test_a_session_that_is_open_may_have_begun_at_any_time() -> None:
    assert kind_of(spec(**SHAPES["session"])).needed_from(100) == MIN_US


@pytest.mark.parametrize("longest", [None, 4, 15, 200])
def test_an_event_that_a_plan_leaves_in_place_is_in_a_session_that_is_open(longest: int | None) -> None:
    """With a longest duration a session closes although its last event is less than a gap behind the watermark."""
    rule = {} if longest is None else {"max_duration": f"{longest} us"}
    window = spec(kind="session", gap="10 us", **rule)
    rng = random.Random(longest)
    keeper = WindowKeeper(Window("w", "session", gap_us=10, max_duration_us=longest))
    for _ in range(200):
        times = sorted(rng.randint(0, 60) for _ in range(rng.randint(1, 12)))
        watermark = rng.randint(0, 90)
        for session in keeper.sessions_of([(t, seq) for seq, t in enumerate(times)], "", ()):
            if any(times[seq] >= needed_for_certain_from(watermark, window) for seq in session.seqs):
                assert not keeper.is_closed(session.key, watermark), (times, watermark)


def test_an_event_that_a_plan_leaves_in_place_is_in_a_session_that_is_open_also_where_each_has_its_own_gap() -> None:
    window = spec(kind="session", gap="v * INTERVAL 1 SECOND", max_gap="10 us", allowed_lateness="4 us")
    rng, keeper = random.Random(7), WindowKeeper(Window("w", "session", gap_us=10, allowed_lateness_us=4))
    needed = 0
    for _ in range(300):
        times = sorted(rng.randint(0, 60) for _ in range(rng.randint(1, 12)))
        keeper.gaps = {seq: rng.randint(1, 10) for seq in range(len(times))}
        watermark = rng.randint(0, 90)
        for session in keeper.sessions_of([(t, seq) for seq, t in enumerate(times)], "", ()):
            if any(times[seq] >= needed_for_certain_from(watermark, window) for seq in session.seqs):
                assert not keeper.is_closed(session.key, watermark), (times, watermark)
                needed += 1
    assert needed


def test_an_event_of_a_sliding_window_is_needed_until_the_instant_at_which_it_goes_is_closed() -> None:
    window = spec(kind="sliding", size="10 us", allowed_lateness="3 us")
    keeper = WindowKeeper(Window("w", "sliding", size_us=10, allowed_lateness_us=3))
    first = needed_for_certain_from(100, window)
    assert not keeper.is_closed(("", first, first + 10, ()), 100)
    assert keeper.is_closed(("", first - 1, first + 9, ()), 100)
