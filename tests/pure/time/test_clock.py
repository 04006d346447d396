"""The rules of the clock for one timeline and for many are the same rules."""

import random

import numpy as np

from tests.seeds import Dice
from tidemark.timeops.values.instants import MIN_US, NONE
from tidemark.timeops.watermark.clock import (
    arrival_clock_watermark,
    arrival_clock_watermarks,
    idle_clock,
    last_close,
    last_closes,
    window_close_watermark,
    window_close_watermarks,
)
from tidemark.timeops.watermark.fold import GRID, LOG, RULES, SPLIT, TIMELINE, Fold

CASES = 100


def rules(rng: random.Random) -> np.ndarray:
    row = np.zeros(1, RULES)
    row["unit"], row["clock_tolerance"], row["timeout"] = rng.choice([1, 1_000]), rng.randrange(50), rng.randrange(30)
    row["waited"], row["since"] = rng.choice([0, 0, 7]), rng.choice([NONE, NONE, NONE, 40])
    return row


def grids(rng: random.Random) -> tuple[np.ndarray, np.ndarray]:
    """Return grids with a period, with instants, and with neither."""
    instants = np.array(sorted(rng.sample(range(-100, 100), 6)))
    return np.array([(rng.randrange(1, 20), rng.randrange(-9, 9), 0, 0), (0, 0, 1, 5), (0, 0, 3, 3)], GRID), instants


def test_the_arrival_clock_sets_the_same_watermark_for_one_and_for_many(dice: Dice) -> None:
    for case in range(CASES):
        rng = random.Random(dice.seed(case))
        row, clocks = (
            rules(rng)[0],
            np.array([MIN_US, MIN_US + 1, *(rng.randrange(-5_000, 5_000) for _ in range(20))]),
        )
        assert arrival_clock_watermarks(clocks, row).tolist() == [
            arrival_clock_watermark(int(now), row) for now in clocks
        ]
        assert arrival_clock_watermarks(np.array([NONE]), row).tolist() == [NONE]


def test_a_silence_closes_the_same_windows_for_one_and_for_many(dice: Dice) -> None:
    for case in range(CASES):
        rng = random.Random(dice.seed(case))
        (of_windows, instants), own = grids(rng), rules(rng)
        state = Fold(
            np.zeros(0, TIMELINE),
            np.zeros(0, SPLIT),
            np.zeros((0, 3), np.int64),
            of_windows,
            instants,
            own,
            np.zeros(1, LOG),
        )
        now = np.array([rng.randrange(-100, 150) for _ in range(30)])
        last = np.array([rng.choice([NONE, rng.randrange(-100, 100)]) for _ in now])
        closes = np.array([[rng.choice([NONE, rng.randrange(-120, 120)]) for _ in of_windows] for _ in now])
        assert window_close_watermarks(last, closes, now, state).tolist() == [
            window_close_watermark(int(last[n]), closes[n], int(now[n]), state) for n in range(len(now))
        ]
        for grid in of_windows:
            assert last_closes(grid, instants, now).tolist() == [last_close(grid, instants, int(us)) for us in now]


def test_an_event_at_the_very_instant_of_a_timeout_beats_it_and_a_tick_does_not() -> None:
    assert (idle_clock(10, False), idle_clock(10, True)) == (9, 10)
    assert idle_clock(np.array([10, 20]), np.array([False, True])).tolist() == [9, 20]
