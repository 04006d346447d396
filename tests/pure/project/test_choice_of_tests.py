"""Which tests run: random ones and the sample of long ones go by a seed, and those of pages need a browser."""

import pytest

from tests.choice import sample
from tests.chromium import chromium
from tests.seeds import Dice

VALUES = range(1000)


def thrown(dice: Dice) -> list[int]:
    return [*(dice.choice(VALUES) for _ in range(5)), dice.seed(fixed=7)]


def test_the_same_seed_throws_the_same_and_another_one_something_else() -> None:
    assert thrown(Dice("1 a test")) == thrown(Dice("1 a test"))
    assert thrown(Dice("1 a test")) != thrown(Dice("2 a test"))
    assert thrown(Dice("1 a test")) != thrown(Dice("1 another test"))


def test_fixed_dice_show_the_first_of_all_values() -> None:
    assert thrown(Dice(None)) == [0, 0, 0, 0, 0, 7]


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1])
def test_as_many_turns_as_values_show_all_of_them(seed: int) -> None:
    assert {Dice("a test", seed).turn("abcd", turn) for turn in range(5, 9)} == set("abcd")


def test_a_sample_fits_into_its_time_and_changes_with_the_seed() -> None:
    tests = {f"test_{number}": float(number) for number in range(1, 100)}
    samples = [sample(tests, 300, seed) for seed in range(200)]
    assert samples[3] == sample(tests, 300, 3)
    for one in samples:
        assert 290 <= sum(tests[name] for name in one) <= 300
    assert set().union(*samples) == set(tests), "each has its turn"
    assert sample(tests, 0, 1) == set()


def test_without_a_browser_a_test_is_skipped_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no Chromium: install it"):
        chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="There is no Chromium: install it"):
        chromium()
