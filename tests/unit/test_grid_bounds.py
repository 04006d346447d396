"""What plans say of sessions and sliding windows, against windows that the oracle cuts."""

import random

import pytest

from tests.oracle.model import Window
from tests.oracle.windows import WindowKeeper
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.kinds import needed_for_certain_from


def spec(**keys: str) -> WindowSpec:
    return WindowSpec(name="w", aggregates={"n": "count(*)"}, **keys)


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


def test_an_event_of_a_sliding_window_is_needed_until_the_instant_at_which_it_goes_is_closed() -> None:
    window = spec(kind="sliding", size="10 us", allowed_lateness="3 us")
    keeper = WindowKeeper(Window("w", "sliding", size_us=10, allowed_lateness_us=3))
    first = needed_for_certain_from(100, window)
    assert not keeper.is_closed(("", first, first + 10, ()), 100)
    assert keeper.is_closed(("", first - 1, first + 9, ()), 100)
