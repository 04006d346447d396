"""Cases: what is read of their file, what is refused, which rows differ, and how it is said."""

import itertools
import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as t

from tidemark.pipelines.case_tests.differences import CaseOutcomes, Difference, Outcome, cut_differences, differences
from tidemark.pipelines.case_tests.runs import MOST_CUTS, logs_of
from tidemark.pipelines.case_tests.suite import MOST_ROWS, Verdict, show_verdicts
from tidemark.timeops.cases import Case, CasesFile, Expected, equal, parse_cases, read_row, read_value, text_of
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import Misread, ProblemsError
from tidemark.timeops.spec import Spec

SOURCE = {"name": "tills", "kind": "files", "path": "*.csv", "format": "csv", "schema": "at STRING, amount INT"}
SPEC: dict[str, Any] = {
    "name": "shop",
    "sources": [SOURCE],
    "time": {"timestamp_by": "at"},
    "windows": [{"name": "w", "kind": "tumbling", "size": "1 hour", "aggregates": {"n": "count(*)"}}],
}
CASE = {"name": "c", "records": [], "expect": {"watermark": "none"}}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def read(text: str, **changes: object) -> CasesFile:
    return parse_cases(text, Spec.model_validate({**SPEC, **changes}), file="c.yaml")


def refused(text: str, **changes: object) -> str:
    with pytest.raises(SpecError) as error:
        read(text, **changes)
    return str(error.value)


def test_a_case_is_one_list_of_records_or_steps_and_the_last_step_takes_what_the_case_expects() -> None:
    file = read(
        """
cases:
  - name: one
    records: [{at: "x"}, {at: null, amount: 3}]
    expect: {watermark: none, dead_letters: [{reason: bad_timestamp, _event_time: null}]}
  - name: two
    steps:
      - records: [{at: "x"}]
      - {records: [], expect: {watermark: 2026-01-01 12:00}}
    end_of_input: flush
"""
    )
    one, two = file.cases
    assert [len(step.records) for step in one.segments] == [2]
    assert one.records == ({"at": "x"}, {"at": None, "amount": 3})
    assert one.segments[0].expect is not None
    assert one.segments[0].expect.watermark == "none"
    assert one.segments[0].expect.tables["dead_letters"] == ({"reason": "bad_timestamp", "_event_time": None},)
    assert [step.end_of_input for step in two.segments] == [None, "flush"]
    assert two.segments[1].expect is not None
    assert two.segments[1].expect.watermark == NOON


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("{records: []}", "the case expects nothing"),
        ("{expect: {watermark: none}}", "found neither"),
        ("{records: [], steps: [{records: []}], expect: {watermark: none}}", "found both"),
        ("{records: [{at: x, amont: 1}], expect: {watermark: none}}", "did you mean `amount`?"),
        ("{records: [7], expect: {watermark: none}}", "cases[0].records[0]: found 7"),
        ("{records: [{}], expect: {watermark: none}}", "cases[0].records[0]: found an empty mapping"),
        ("{records: [{at: }], expect: {watermark: none}}", "there is no value here"),
        ("{records: , expect: {watermark: none}}", "cases[0].records: there is no value here"),
        ("{records: [], expect: {watermark: noon}}", 'cases[0].expect.watermark: found "noon"'),
        ("{records: [], expect: {watermark: null}}", "cases[0].expect.watermark: found nothing"),
        ("{records: [], expect: {watermarks: {a: 5}}}", "cases[0].expect.watermarks.a: found 5"),
        ("{records: [], expect: {dead_leters: []}}", "did you mean `dead_letters`?"),
        ("{records: [], expect: {dead_letters: {reason: early}}}", "a list of rows"),
        ("{records: [], expect: {windows/v: []}}", "the spec has no `windows/v`"),
        ("{records: [], expect: {windows/v: []}}", "did you mean `windows/w`?"),
        ("{records: [], expct: {}}", "unknown key `expct`"),
        ("{records: [{at: x, _source: till}], expect: {watermark: none}}", "one of tills"),
        ("{records: [{at: x, _split: 3}], expect: {watermark: none}}", "put the value in quotes"),
        ("{records: [{at: x, _split: 010}], expect: {watermark: none}}", "found `010`, which YAML reads as 8"),
        ("{records: [], expect: {watermark: off}}", "cases[0].expect.watermark: found `off`, which YAML reads as"),
        ("{records: [{at: x, _arrival_time: 5}], expect: {watermark: none}}", "_arrival_time: found 5"),
        ("{records: [], end_of_input: never, expect: {watermark: none}}", "hold or flush"),
    ],
)
def test_what_is_wrong_with_a_case_is_said_with_its_place(case: str, said: str) -> None:
    message = refused("cases:\n  - {name: c, " + case[1:])
    assert said in message
    assert "line 2, cases[0]" in message


ONE = "  - {name: c, records: [], expect: {watermark: none}}\n"
BOTH = "{name: c, steps: [{records: [], expect: {watermark: none}}], expect: {watermark: none}}"
STEPS = "[{records: [], end_of_input: flush}, {records: [], expect: {watermark: none}}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("- name: c", "a mapping with `cases`"),
        ("cases: []", "found no case"),
        ("case: []", "unknown key `case`"),
        (f"cases:\n{ONE}" * 2, "occurs twice"),
        (f"cases:\n{ONE * 2}", 'a second case called "c"'),
        (f"cases: [{{name: c, steps: {STEPS}}}]", "this is not the last step"),
        (f"cases: [{BOTH}]", "`expect` is on the last step as well"),
    ],
)
def test_a_file_holds_cases_whose_names_differ_and_whose_last_step_ends_the_input(text: str, said: str) -> None:
    assert said in refused(text)


def test_arrival_is_asked_for_where_a_rule_goes_by_it_and_refused_where_an_expression_says_it() -> None:
    case = "cases: [{name: c, records: [{at: x}, {at: y}], expect: {watermark: none}}]"
    assert read(case).cases
    dated = case.replace("at: x", "at: x, _arrival_time: 2026-01-01")
    late = {"timestamp_by": "at", "late": {"tolerance": "5 s", "policy": "drop"}}
    assert "cases[0].records[0]._arrival_time: the key is missing: time.late depends on" in refused(case, time=late)
    assert read(dated, time=late).cases
    assert "without `timestamp_by`" in refused(case, time={})
    own = [{**SOURCE, "arrival_time": "at"}]
    assert read(case, sources=own).cases
    assert "has no effect" in refused(dated, sources=own)


def test_a_table_that_the_spec_does_not_write_cannot_be_expected() -> None:
    case = "cases: [{name: c, records: [], expect: {ordered_events: []}}]"
    assert "outputs.ordered_events is false" in refused(case, outputs={"ordered_events": False})


PAIR = t.StructType([t.StructField("a", t.TimestampType()), t.StructField("k", t.IntegerType())])
KINDS: dict[str, t.DataType] = {
    "t": t.TimestampType(),
    "n": t.TimestampNTZType(),
    "d": t.DateType(),
    "i": t.LongType(),
    "x": t.DoubleType(),
    "m": t.DecimalType(9, 2),
    "b": t.BooleanType(),
    "s": t.StringType(),
    "y": t.BinaryType(),
    "l": t.ArrayType(t.StringType()),
    "r": t.ArrayType(PAIR),
    "p": t.MapType(t.StringType(), t.DoubleType()),
}


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("t", "2026-01-01T13:00:00+01:00", NOON),
        ("t", "2026-01-01 12:00", NOON),
        ("n", "2026-01-01T12:00", NOON.replace(tzinfo=None)),
        ("d", "2026-01-01", date(2026, 1, 1)),
        ("i", 7, 7),
        ("x", 7, 7.0),
        ("x", "Infinity", float("inf")),
        ("m", 1.1, Decimal("1.1")),
        ("b", True, True),
        ("l", ["late", None], ["late", None]),
        ("r", [{"a": "2026-01-01T12:00Z"}], [{"a": NOON}]),
        ("p", {"k": 2}, {"k": 2.0}),
        ("i", None, None),
        ("i", Misread("1_000", 1000), 1000),
        ("m", Misread("12345678901234567890.10", 12345678901234567890.10), Decimal("12345678901234567890.10")),
        ("x", Misread("-.INF", float("-inf")), float("-inf")),
        ("x", Misread(".NaN", math.nan), pytest.approx(math.nan, nan_ok=True)),
        ("b", Misread("yes", True), True),
    ],
)
def test_a_value_is_read_by_the_type_of_its_column(name: str, written: object, value: object) -> None:
    assert read_value(written, KINDS[name]) == value


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *(("t", 5), ("t", "noon"), ("d", "12:00"), ("i", True), ("i", 1.5), ("i", "1"), ("x", "1"), ("b", 1)),
        *(("s", 1), ("l", "late"), ("l", [1]), ("r", [{"z": 1}]), ("p", [1])),
        *(
            ("s", Misread("12:30", 750)),
            ("i", Misread("010", 8)),
            ("x", Misread("1:30", 90)),
            ("t", Misread("on", True)),
        ),
        *(("y", Misread("010", 8)), ("l", [Misread("no", False)])),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(name: str, written: object) -> None:
    with pytest.raises(ProblemsError):
        read_value(written, KINDS[name])


def test_values_are_equal_floats_within_a_relative_1e_12_and_structs_as_far_as_written() -> None:
    assert equal(0.1 + 0.2, 0.3)
    assert not equal(1.0, 1.00000000001)
    assert equal(float("nan"), float("nan"))
    assert equal([{"a": 1}], [{"a": 1, "b": 2}])
    assert not equal([{"a": 1, "b": 2}], [{"a": 1}])
    assert not equal([1], [1, 1])
    assert not equal(None, 0)


def test_ends_of_windows_after_the_years_of_python_are_read_compared_and_shown() -> None:
    kind = KINDS["t"]
    texts = ["+10000-01-01T00:00:00Z", "0000-12-31T23:00:00Z", "0000-02-29T00:00:00.000001Z", "9999-12-31T00:00:00Z"]
    values = [read_value(text, kind) for text in texts]
    assert [text_of(value) for value in values] == texts
    microseconds = [253_402_300_800_000_000, -62_135_600_400_000_000, -62_162_121_600_000_000 + 1, None]
    assert [getattr(value, "us", None) for value in values] == microseconds
    assert equal(values[0], read_value("+10000-01-01T01:00:00+01:00", kind))
    with pytest.raises(ProblemsError, match="an instant"):
        read_value("+10000-13-01T00:00:00Z", kind)


def test_values_are_shown_as_a_file_writes_them() -> None:
    values = [NOON.replace(microsecond=5), None, True, ["late", 1], {"a": NOON}, date(2026, 1, 1)]
    texts = ["2026-01-01T12:00:00.000005Z", "null", "true", "[late, 1]", "{a: 2026-01-01T12:00:00Z}", "2026-01-01"]
    assert [text_of(value) for value in values] == texts


def test_a_row_of_spark_is_read_by_the_types_of_its_columns() -> None:
    kinds = t.StructType([t.StructField(name, KINDS[name]) for name in ("t", "x", "m")])
    row = read_row('{"t":"2026-01-01T12:00:00.000000Z","x":1.5,"m":1.10}', kinds)
    assert row == {"t": NOON, "x": 1.5, "m": Decimal("1.10")}


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
    said = capsys.readouterr().out
    assert "The result depends on how the log is cut" in said
    assert "0 of 1 hold, 1 FAIL" in said


def test_of_many_rows_that_differ_some_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told = of_letters([], [{"seq": seq} for seq in range(MOST_ROWS + 5)])
    show_verdicts("shop", [Verdict(Case.model_validate(CASE), differences=tuple(told))])
    said = capsys.readouterr().out
    assert said.count("+ found") == MOST_ROWS
    assert "and 5 more" in said


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
    last = {"records": [record], "expect": {"watermark": "none"}}
    case = Case.model_validate({"name": "c", "steps": [{"records": [record], "tick": noon}, {"tick": noon}, last]})
    after_first = [(1, 1), (1, 2), (2, 2)]
    assert [log.ends for log in logs_of(0, case)] == [[(0, 0), *after_first], [(1, 0), *after_first], after_first]
