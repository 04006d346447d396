"""Expected rows and found rows that belong together, and what is said of two that differ."""

import itertools
import random
from typing import Any

import pytest

from tidemark.pipelines.case_tests.differences import CaseOutcomes, Difference, Outcome, cut_differences, differences
from tidemark.pipelines.case_tests.runs import MOST_CUTS, logs_of
from tidemark.pipelines.case_tests.suite import MOST_ROWS, Verdict, show_verdicts
from tidemark.timeops.cases import Case, Expected

CASE = {"name": "c", "records": [], "expect": {"watermark": "none"}}
Rows = list[dict[str, Any]]


def of_letters(expected: Rows, found: Rows, table: str = "dead_letters") -> list[Difference]:
    return list(differences(Expected({table: expected}), Outcome({table: found}, "none", {}), "in the end"))


def of_ordered(expected: Rows, found: Rows) -> list[Difference]:
    return of_letters(expected, found, "ordered_events")


def event(name: str, release_seq: int | None, timeline: str = "[]") -> dict[str, Any]:
    return {"name": name, "_release_seq": release_seq, "_timeline": timeline}


def test_only_the_written_columns_count_and_the_order_of_rows_does_not() -> None:
    found = [{"reason": "early", "seq": 1}, {"reason": "late", "seq": 2}]
    assert of_letters([{"reason": "late"}, {"seq": 1}], found) == []


def test_a_row_that_fits_several_gives_way_to_one_that_fits_less() -> None:
    found = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}]
    assert of_letters([{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], found) == []
    assert of_letters([{"a": 1, "b": 1}, {"b": 1}, {"a": 1}], found) == []
    assert of_letters([{"a": 1}, {"a": 1}, {"a": 1, "b": 1}], found) != []


def test_no_choice_of_rows_leaves_fewer_unmatched() -> None:
    rng = random.Random(5)
    kinds = [{"a": 1}, {"a": 2}, {"b": 1}, {"b": 2}, {"a": 1, "b": 1}, {"a": 2, "b": 2}]
    for _ in range(300):
        expected = rng.choices(kinds, k=4)
        found = [{"a": rng.randint(1, 2), "b": rng.randint(1, 2)} for _ in range(4)]
        best = max(
            sum(want.items() <= row.items() for want, row in zip(expected, order, strict=True))
            for order in itertools.permutations(found)
        )
        told = of_letters(expected, found)
        assert sum(len(one.pairs) for one in told) == 4 - best


def test_a_row_that_differs_is_told_beside_the_nearest_found_one() -> None:
    found = [{"reason": "late", "seq": 9, "x": 0}, {"reason": "early", "seq": 1, "x": 0}]
    [difference] = of_letters([{"reason": "late", "seq": 9}, {"reason": "early", "seq": 2}], found)
    assert difference.sentence == "expected 2 rows, found 2: 1 differs"
    assert difference.columns == ("reason", "seq")
    [pair] = difference.pairs
    assert [pair.differs_in(name) for name in difference.columns] == [False, True]
    assert difference.text.splitlines() == [
        "in the end, dead_letters: expected 2 rows, found 2: 1 differs",
        "expected {reason: early, seq: 2}",
        "found {reason: early, seq: 1}",
    ]


def test_rows_that_are_missing_or_too_many_are_counted() -> None:
    [missing] = of_letters([{"seq": 1}, {"seq": 2}, {"seq": 3}], [{"seq": 1}])
    assert missing.sentence == "expected 3 rows, found 1: 2 missing"
    [unexpected] = of_letters([], [{"seq": 1, "_position": 1}])
    assert unexpected.sentence == "expected 0 rows, found 1: 1 not expected"
    assert unexpected.columns == ("seq",)


def test_ordered_events_stand_in_the_order_of_their_release() -> None:
    found = [event("a", 0), event("b", 1)]
    assert of_ordered([{"name": "a"}, {"name": "b"}], found) == []
    [difference] = of_ordered([{"name": "b"}, {"name": "a"}], found)
    assert difference.sentence.startswith("the rows are as expected, their order is not")
    assert [pair.found for pair in difference.pairs] == found


def test_order_holds_within_a_timeline_and_not_for_events_outside_the_sequence() -> None:
    found = [event("a", 0, "x"), event("b", 1, "x"), event("c", 0, "y"), event("kept", None, "x")]
    assert of_ordered([{"name": name} for name in ("kept", "c", "a", "b")], found) == []
    assert of_ordered([{"name": name} for name in ("kept", "c", "b", "a")], found) != []


def test_watermarks_are_compared_by_timeline_and_one_value_stands_for_its_timeline() -> None:
    found = Outcome({}, "final", {'["a"]': "none", '["b"]': "final"})
    assert list(differences(Expected({}, "final", {"a": "none", '["b"]': "final"}), found, "p")) == []
    told = [one.text for one in differences(Expected({}, "none", {"a": "final", "c": "none"}), found, "p")]
    assert told == [
        "p, watermark: expected none, found final",
        'p, watermark of the timeline ["a"]: expected final, found none',
        'p, watermark of the timeline ["b"]: expected no such timeline, found final',
        'p, watermark of the timeline ["c"]: expected none, found no such timeline',
    ]


def test_a_result_that_depends_on_the_cut_is_told_once_and_fails_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    whole = Outcome({"dead_letters": []}, "none", {})
    wrong = Outcome({"dead_letters": [{"seq": 0}]}, "none", {})
    assert cut_differences(CaseOutcomes((wrong, whole), {0: whole, 1: whole})) == []
    [told] = cut_differences(CaseOutcomes((whole,), {0: whole, 1: wrong, 2: wrong}))
    assert told.place == "record 2 in a segment of its own, against all records in one, dead_letters"
    assert told.sentence == "expected 0 rows, found 1: 1 not expected"
    verdict = Verdict(Case.model_validate(CASE), cuts=(told,))
    assert not verdict.holds
    failing = Case.model_validate({**CASE, "error": "found"})
    assert not Verdict(failing, cuts=(told,)).holds
    show_verdicts("shop", [verdict])
    shown = capsys.readouterr().out
    assert "The result depends on how the log is cut" in shown
    assert "0 of 1 hold, 1 FAIL" in shown


def test_of_many_rows_that_differ_some_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told = of_letters([], [{"seq": seq} for seq in range(MOST_ROWS + 5)])
    show_verdicts("shop", [Verdict(Case.model_validate(CASE), differences=tuple(told))])
    shown = capsys.readouterr().out
    assert shown.count("+ found") == MOST_ROWS
    assert "and 5 more" in shown


def test_a_case_is_cut_before_every_record_and_a_long_one_at_its_steps_and_some_places_more() -> None:
    record = {"at": "x"}
    steps = [{"records": [record] * 45}, {"records": [record] * 57, "expect": {"watermark": "none"}}]
    short = Case.model_validate({**CASE, "records": [record] * 3})
    ends = [[records for records, _ in log.ends] for log in logs_of(7, short)]
    assert ends == [[0, 1, 3], [1, 2, 3], [2, 3], [3]]
    assert [log.name for log in logs_of(7, short)] == ["7:0", "7:1", "7:2", "7:3"]
    long = Case.model_validate({"name": "c", "steps": steps})
    cuts = [log.cut for log in logs_of(0, long)]
    assert {0, 45, 102} <= set(cuts)
    assert len(cuts) == MOST_CUTS + 2


def test_a_tick_ends_a_segment_however_a_case_is_cut() -> None:
    record, noon = {"at": "x"}, "2026-01-01T12:00:00Z"
    steps = [
        {"records": [record], "tick": noon},
        {"tick": noon},
        {"records": [record], "expect": {"watermark": "none"}},
    ]
    case = Case.model_validate({"name": "c", "steps": steps})
    behind_first = [(1, 1), (1, 2), (2, 2)]
    assert [log.ends for log in logs_of(0, case)] == [[(0, 0), *behind_first], [(1, 0), *behind_first], behind_first]
