"""The benchmarks' own idea of right answers, on logs of a few events that can be followed by hand."""

import pandas as pd
import pytest

from benchmarks.truth import SIZE_US, Difference, Rule, compare, truth_of


def log(*seconds: float) -> pd.DataFrame:
    """Events in the order in which they arrive, each a hundredth of its place worth more than the one before."""
    values = [place / 100 for place in range(len(seconds))]
    return pd.DataFrame({"t_us": [round(one * 1_000_000) for one in seconds], "k": "a", "v": values})


def rows(*of_window: tuple[int, int]) -> pd.DataFrame:
    """Results of windows by their number, each with so many events of the value 1."""
    starts, counts = zip(*of_window, strict=True)
    table = pd.DataFrame({"start_us": [start * SIZE_US for start in starts], "k": "a", "n": counts})
    return table.assign(total=table["n"] * 1.0, lowest=1.0, highest=1.0, mean=1.0)


@pytest.mark.parametrize(
    ("rule", "dropped"),
    [
        (Rule.BEHIND_IS_DROPPED, {2, 5}),
        (Rule.WINDOW_OPEN, {5}),
        (Rule.WINDOW_OPEN_IN_MS, {5}),
    ],
)
def test_an_event_is_judged_by_the_watermark_just_before_it(rule: Rule, dropped: set[int]) -> None:
    # The watermark after each event: 5, 35, 35, 35, 60, 60. So 35 is on time, and 59 is not, as its window closed.
    assert truth_of(log(10, 40, 34, 35, 65, 59), rule).dropped == dropped


def test_flink_closes_a_window_one_millisecond_sooner() -> None:
    arrived = log(64.999, 59)
    assert truth_of(arrived, Rule.WINDOW_OPEN).dropped == set()
    assert truth_of(arrived, Rule.WINDOW_OPEN_IN_MS).dropped == {1}


def test_only_windows_that_the_last_watermark_has_passed_are_results() -> None:
    closed = truth_of(log(10, 40, 65), Rule.BEHIND_IS_DROPPED).rows
    assert closed[["start_us", "k", "n", "lowest", "highest"]].values.tolist() == [[0, "a", 2, 0.0, 0.01]]
    assert truth_of(log(10, 40, 64.999999), Rule.BEHIND_IS_DROPPED).rows.empty
    assert len(truth_of(log(10, 40, 64.999), Rule.WINDOW_OPEN_IN_MS).rows) == 1


def test_equal_results_are_right_in_any_order() -> None:
    assert compare(rows((1, 2), (0, 3)), rows((0, 3), (1, 2))) == Difference(rows=2, wrong=0, lost=0, more=0)


def test_rows_that_are_missing_surplus_doubled_or_other_are_wrong() -> None:
    found, wanted = rows((0, 3), (0, 3), (2, 5), (3, 1)), rows((0, 3), (1, 4), (2, 7), (3, 1))
    assert compare(found, wanted) == Difference(rows=4, wrong=3, lost=6, more=0)
    assert compare(rows((0, 3), (1, 1)), rows((0, 3))) == Difference(rows=2, wrong=1, lost=0, more=1)


def test_a_sum_may_differ_by_the_order_of_adding_up_and_an_extreme_may_not() -> None:
    wanted = rows((0, 3))
    assert compare(wanted.assign(total=3 * (1 + 1e-14)), wanted).wrong == 0
    assert compare(wanted.assign(total=3.001), wanted).wrong == 1
    assert compare(wanted.assign(lowest=0.99), wanted).wrong == 1
