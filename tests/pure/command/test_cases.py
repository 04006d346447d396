"""The cases file: what is read, what is refused, and how it is said."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.timeops.cases import CasesFile, equal, parse_cases, read_row, read_value, text_of
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import ProblemsError
from tidemark.timeops.spec import Spec

SPEC: dict[str, Any] = {
    "name": "shop",
    "sources": [
        {"name": "tills", "kind": "files", "path": "*.csv", "format": "csv", "schema": "at STRING, amount INT"}
    ],
    "time": {"timestamp_by": "at"},
    "windows": [{"name": "w", "kind": "tumbling", "size": "1 hour", "aggregates": {"n": "count(*)"}}],
}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def spec(**changes: Any) -> Spec:
    source = {**SPEC["sources"][0], **changes.pop("source", {})}
    return Spec.model_validate({**SPEC, "sources": [source], **changes})


def read(text: str, of: Spec | None = None) -> CasesFile:
    return parse_cases(text, of or spec(), file="c.yaml")


def refused(text: str, of: Spec | None = None) -> str:
    with pytest.raises(SpecError) as error:
        read(text, of)
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
        ("{records: [{at: }], expect: {watermark: none}}", "nothing is written here"),
        ("{records: , expect: {watermark: none}}", "cases[0].records: nothing is written here"),
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
        ("{records: [{at: x, _arrival_time: 5}], expect: {watermark: none}}", "_arrival_time: found 5"),
        ("{records: [], end_of_input: never, expect: {watermark: none}}", "hold or flush"),
    ],
)
def test_what_is_wrong_with_a_case_is_said_with_its_place(case: str, said: str) -> None:
    message = refused("cases:\n  - {name: c, " + case[1:])
    assert said in message
    assert "line 2, cases[0]" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("- name: c", "a mapping with `cases`"),
        ("cases: []", "found no case"),
        ("case: []", "unknown key `case`"),
        ("cases:\n  - {name: c, records: [], expect: {watermark: none}}\n" * 2, "occurs twice"),
    ],
)
def test_a_file_that_holds_no_cases_is_refused(text: str, said: str) -> None:
    assert said in refused(text)


def test_names_differ_and_only_the_last_step_ends_the_input() -> None:
    one = "  - {name: c, records: [], expect: {watermark: none}}\n"
    assert 'a second case called "c"' in refused("cases:\n" + one * 2)
    steps = "[{records: [], end_of_input: flush}, {records: [], expect: {watermark: none}}]"
    assert "this is not the last step" in refused(f"cases: [{{name: c, steps: {steps}}}]")
    both = "{name: c, steps: [{records: [], expect: {watermark: none}}], expect: {watermark: none}}"
    assert "`expect` is on the last step as well" in refused(f"cases: [{both}]")


def test_arrival_is_asked_for_where_a_rule_goes_by_it_and_refused_where_an_expression_says_it() -> None:
    case = "cases: [{name: c, records: [{at: x}, {at: y}], expect: {watermark: none}}]"
    assert read(case).cases
    late = spec(time={"timestamp_by": "at", "late": {"tolerance": "5 s", "policy": "drop"}})
    assert "cases[0].records[0]._arrival_time: the key is missing: time.late goes by" in refused(case, late)
    assert read(case.replace("at: x", "at: x, _arrival_time: 2026-01-01"), late).cases
    assert "without `timestamp_by`" in refused(case, spec(time={}))
    own = spec(source={"arrival_time": "at"})
    assert read(case, own).cases
    assert "has no effect" in refused(case.replace("at: x", "at: x, _arrival_time: 2026-01-01"), own)


def test_a_table_that_the_spec_does_not_write_cannot_be_expected() -> None:
    case = "cases: [{name: c, records: [], expect: {ordered_events: []}}]"
    assert "outputs.ordered_events is false" in refused(case, spec(outputs={"ordered_events": False}))


PAIR = StructType([StructField("a", TimestampType()), StructField("k", IntegerType())])
KINDS: dict[str, DataType] = {
    "t": TimestampType(),
    "n": TimestampNTZType(),
    "d": DateType(),
    "i": LongType(),
    "x": DoubleType(),
    "m": DecimalType(9, 2),
    "b": BooleanType(),
    "s": StringType(),
    "l": ArrayType(StringType()),
    "r": ArrayType(PAIR),
    "p": MapType(StringType(), DoubleType()),
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
    ],
)
def test_a_value_is_read_by_the_type_of_its_column(name: str, written: object, value: object) -> None:
    assert read_value(written, KINDS[name]) == value


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *(("t", 5), ("t", "noon"), ("d", "12:00"), ("i", True), ("i", 1.5), ("i", "1"), ("x", "1"), ("b", 1)),
        *(("s", 1), ("l", "late"), ("l", [1]), ("r", [{"z": 1}]), ("p", [1])),
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


def test_ends_of_windows_behind_the_years_of_python_are_read_compared_and_shown() -> None:
    kind = KINDS["t"]
    texts = ["+10000-01-01T00:00:00Z", "0000-12-31T23:00:00Z", "0000-02-29T00:00:00.000001Z", "9999-12-31T00:00:00Z"]
    values = [read_value(text, kind) for text in texts]
    assert [text_of(value) for value in values] == texts
    assert [getattr(value, "us", None) for value in values] == [
        253_402_300_800_000_000,
        -62_135_600_400_000_000,
        -62_162_121_600_000_000 + 1,
        None,
    ]
    assert equal(values[0], read_value("+10000-01-01T01:00:00+01:00", kind))
    with pytest.raises(ProblemsError, match="an instant"):
        read_value("+10000-13-01T00:00:00Z", kind)


def test_values_are_shown_as_a_file_writes_them() -> None:
    values = [NOON, NOON.replace(microsecond=5), None, True, ["late", 1], {"a": NOON}, date(2026, 1, 1)]
    assert [text_of(value) for value in values] == [
        "2026-01-01T12:00:00Z",
        "2026-01-01T12:00:00.000005Z",
        "null",
        "true",
        "[late, 1]",
        "{a: 2026-01-01T12:00:00Z}",
        "2026-01-01",
    ]


def test_a_row_of_spark_is_read_by_the_types_of_its_columns() -> None:
    kinds = StructType([StructField(name, KINDS[name]) for name in ("t", "x", "m")])
    row = read_row('{"t":"2026-01-01T12:00:00.000000Z","x":1.5,"m":1.10}', kinds)
    assert row == {"t": NOON, "x": 1.5, "m": Decimal("1.10")}
