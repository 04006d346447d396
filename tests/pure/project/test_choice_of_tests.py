"""Which tests run: random ones and the sample of long ones go by a seed, and those of pages need a browser."""

import pytest

from tests.choice import sample
from tests.chromium import chromium
from tests.durations import merged, table
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


def test_a_test_tries_all_its_logs_or_the_share_that_it_is_given_and_never_none() -> None:
    assert [Dice("a test").some(count) for count in (1, 80)] == [1, 80]
    assert [Dice("a test", share=4).some(count) for count in (1, 80, 81)] == [1, 20, 21]


def test_a_sample_fits_into_its_time_and_changes_with_the_seed() -> None:
    tests = {f"test_{number}": float(number) for number in range(1, 100)}
    samples = [sample(tests, 300, seed) for seed in range(200)]
    assert samples[3] == sample(tests, 300, 3)
    for one in samples:
        assert 290 <= sum(tests[name] for name in one) <= 300
    assert set().union(*samples) == set(tests), "each has its turn"
    assert sample(tests, 0, 1) == set()


def test_seconds_are_kept_for_each_test_that_is_long_or_takes_one_and_for_the_others_of_a_file_together() -> None:
    known = {"a.py::gone": 7.0, "a.py::slow": 9.0, "a.py::was_slow": 3.0, "a.py": 1.0, "b.py::rest": 2.0}
    measured = {"a.py::slow": 4.04, "a.py::was_slow": 0.5, "a.py::x": 0.25, "c.py::fast": 0.01, "c.py::long": 0.04}
    assert merged(known, measured, {"a.py::slow", "c.py::long"}) == {
        "a.py": 0.8,
        "a.py::gone": 7.0,
        "a.py::slow": 4.0,
        "b.py::rest": 2.0,
        "c.py::long": 0.1,
    }


def test_a_run_says_at_its_end_which_rooms_and_files_took_its_time() -> None:
    seconds = {
        "tests/pure/x/test_a.py::one": 10.0,
        "tests/pure/x/test_a.py::two": 5.0,
        "tests/runs/test_b.py::three": 40.0,
    }
    lines = [line.split() for line in table(seconds, {"tests/runs/test_b.py::three": 30.0})]
    assert lines == [
        ["tests", "seconds", "fixtures"],
        ["tests/runs", "1", "40", "30"],
        ["tests/pure", "2", "15", "0"],
        [],
        ["tests/runs/test_b.py", "1", "40", "30"],
        ["tests/pure/x/test_a.py", "2", "15", "0"],
    ]


def test_without_a_browser_a_test_is_skipped_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no Chromium: install it"):
        chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="There is no Chromium: install it"):
        chromium()
