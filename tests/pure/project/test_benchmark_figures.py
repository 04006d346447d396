"""Figures of benchmarks: their ratios, whether an aim is reached, how many rounds a budget allows."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.curve import Budget
from benchmarks.timing import Figure, Report, within


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


def test_no_round_begins_that_would_end_behind_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("benchmarks.timing.time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def rounds(budget_s: float, *, spent_s: float = 0) -> int:
        done = 0
        for _ in within(budget_s, 3, spent_s=spent_s):
            clock[0] += 10
            done += 1
        return done

    assert rounds(0) == 3
    assert rounds(30) == 3
    assert rounds(29) == 2
    assert rounds(29, spent_s=10) == 1
    assert rounds(5) == 1


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
