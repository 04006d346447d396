"""Benchmarks: their own idea of right answers, their ratios and aims, and how many rounds a budget allows."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks.curve import Budget
from benchmarks.timing import Figure, Report, within
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
    [(Rule.BEHIND_IS_DROPPED, {2, 5}), (Rule.WINDOW_OPEN, {5}), (Rule.WINDOW_OPEN_IN_MS, {5})],
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


def written(report: Report, into: Path) -> dict[str, dict[str, object]]:
    report.save(into)
    return {one["work"]: one for one in json.loads(into.read_text(encoding="utf-8"))["figures"]}


def test_a_ratio_is_that_of_medians_and_an_aim_is_for_it(tmp_path: Path) -> None:
    figures = [
        Figure("peer", [10, 2, 4]),
        Figure("ours", [6, 6, 20], against="peer", aim=1.5),
        Figure("theirs", [40, 12], against="peer", aim=1),
        Figure("peer", [3], unit="GB"),
    ]
    found = written(Report("cold", figures[:3]), tmp_path / "figures.json")
    assert (found["ours"]["ratio"], found["ours"]["aim_reached"]) == (1.5, True)
    assert found["ours"]["ratios"] == [0.6, 3, 5]
    assert (found["theirs"]["ratio"], found["theirs"]["aim_reached"]) == (6.5, False)
    assert (found["peer"]["ratio"], found["peer"]["aim_reached"]) == (None, None)
    assert Report("cold", figures).ratio(figures[1]) == 1.5


def test_an_aim_of_a_figure_alone_is_for_its_median_or_for_its_worst(tmp_path: Path) -> None:
    figures = [
        Figure("seconds", [3, 4, 9], aim=4),
        Figure("rows wrong", [0, 0, 1], unit="", aim=0, worst=True),
        Figure("not there", [], aim=4, note="not installed"),
    ]
    found = written(Report("alone", figures), tmp_path / "figures.json")
    assert [found[one.work]["aim_reached"] for one in figures] == [True, False, None]


def test_no_round_begins_that_would_end_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("benchmarks.timing.time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def rounds(budget_s: float, *, spent_s: float = 0) -> int:
        done = 0
        for _ in within(budget_s, 3, spent_s=spent_s):
            clock[0] += 10
            done += 1
        return done

    assert [rounds(budget_s) for budget_s in (0, 30, 29, 5)] == [3, 3, 2, 1]
    assert rounds(29, spent_s=10) == 1


def test_a_point_of_the_curve_begins_if_it_would_end_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("benchmarks.curve.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    budget = Budget(100, started=0)
    assert budget.allows("ours", 1, 1_000)  # how long the first takes is not known yet
    budget.took("ours", 1, 1_000, 20)
    clock[0] = 40
    assert budget.allows("ours", 1, 3_000)
    assert not budget.allows("ours", 1, 4_000)
    assert budget.allows("ours", 2, 4_000)
    assert Budget(0, started=0).allows("ours", 1, 10**9)
