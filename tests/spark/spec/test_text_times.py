"""Expressions that take texts for times: by the rule of `timestamp_by` or not at all, never by the machine's date."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.pipelines.cli import main
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.determinism import determinism_problems
from tidemark.timeops.expressions.text_times import constant_time_problem, hidden_time_problem, local_time_problem
from tidemark.timeops.expressions.try_expression import Columns, with_attempt

COLUMNS = {
    "t": "string",
    "opened": "timestamp",
    "d": "date",
    "n": "timestamp_ntz",
    "k": "bigint",
    "s": "struct<a:string>",
    "l": "array<string>",
}
CONSTANTS = [
    *("opened >= '08:00'", "opened > 'T08:00'", "opened > '8:0:0'", "opened > '08:00:00.5Z'", "d > '08:00'"),
    *("opened > '08:00 Europe/Berlin'", "opened BETWEEN '08:00' AND '17:00'", "'08:00'::timestamp > opened"),
    *("count_if(CAST('07:30' AS TIMESTAMP) > opened)", "hour('08:00') > k", "to_timestamp('08:00') > opened"),
    *("opened > '08' ':00'", "opened > '08' || ':00'", "opened > concat('08', ':00')", r"opened > '08\u003a00'"),
]
HIDDEN = [
    *("opened > t", "opened > concat(t, 'x')", "hour(t)", "t::timestamp", "opened > s.a", "date_trunc('DAY', t)"),
    *("CAST(l AS ARRAY<TIMESTAMP>)", "t + INTERVAL 1 DAY > opened", "max(opened) FILTER (WHERE opened > t)"),
]
FINE = [
    *(
        "date_format(opened, 'HH:mm') >= '08:00'",
        "t = '08:00'",
        "t LIKE '08:00'",
        "opened > '2026-05-04'",
        "upper(t)",
    ),
    *("opened > d", "opened > to_date(t)", "opened > CAST(t AS TIMESTAMP)", "hour(to_timestamp(t))", "k = 1"),
    *("transform(l, x -> CAST(x AS TIMESTAMP))", "max_by(t, struct(opened, k))", "timestamp_millis(k)"),
    *("coalesce(TRY_CAST(s.a AS TIMESTAMP), opened)", "CAST(t AS DATE) > d", "to_timestamp(t, 'HH:mm')"),
]


def test_a_constant_time_of_day_that_is_read_as_a_time_is_refused(spark: SparkSession) -> None:
    found = {text: constant_time_problem(spark, text, COLUMNS) for text in (*CONSTANTS, *HIDDEN, *FINE)}
    assert [text for text, problem in found.items() if problem is not None] == CONSTANTS
    problem = found[CONSTANTS[0]]
    assert problem is not None
    assert problem.found.startswith("'08:00' is a time of day")
    assert problem.remedy.endswith("`date_format(x, 'HH:mm') >= '08:00'`")
    frame = spark.range(1).select(F.timestamp_millis("id").alias("opened"))
    with pytest.raises(SpecError, match="is a time of day"):
        Columns.of(frame).read("opened >= '08:00'")


def test_a_text_of_the_record_that_spark_takes_for_a_time_by_itself_is_refused(spark: SparkSession) -> None:
    found = {text: hidden_time_problem(spark, text, COLUMNS) for text in (*HIDDEN, *FINE)}
    assert [text for text, problem in found.items() if problem is not None] == HIDDEN


@pytest.mark.parametrize(
    "expression",
    [
        *("TIMESTAMP '08:00' < opened", "from_json(t, 'at TIMESTAMP').at", "from_csv(t, 'a INT, b timestamp')"),
        *("variant_get(parse_json(t), '$.at', 'timestamp')",),
    ],
)
def test_a_time_that_no_rule_can_reach_is_refused(expression: str) -> None:
    assert determinism_problems(expression) != []


def test_a_text_that_an_expression_converts_is_a_time_of_its_zone_null_or_a_failure(spark: SparkSession) -> None:
    texts = ["2026-05-04T12:00:00", "2026-05-04T12:00:00Z", "abc", "2026", None, "12:15:00", "T12"]
    frame = spark.createDataFrame([(text,) for text in texts], "t STRING")

    def told(expression: str, zone: str) -> list[tuple[str | None, bool]]:
        tried = with_attempt(frame, Columns.of(frame).read(expression, zone), "v", "f")
        return [(v and v[11:16], f) for v, f in tried.select(F.col("v").cast("string"), "f").collect()]

    nothing, failed = (None, False), (None, True)
    for zone, hour in (("UTC", "12:00"), ("Europe/Rome", "10:00")):
        times, other = [(hour, False), ("12:00", False)], [nothing, nothing, nothing]
        for expression in ("CAST(t AS TIMESTAMP)", "to_timestamp(t)", "timestamp(concat('', t))"):
            assert told(expression, zone) == [*times, *other, failed, failed], expression
        assert told("try_to_timestamp(t)", zone) == [*times, *other, nothing, nothing]
        form = "\"yyyy-MM-dd'T'HH:mm:ss\""
        for expression in (f"to_timestamp(t, {form})", f"timestamp_seconds(unix_timestamp(t, {form}))"):
            assert told(expression, zone) == [(hour, False), *[nothing] * 6], expression
        with_offset = "to_timestamp(t, \"yyyy-MM-dd'T'HH:mm:ssX\")"
        assert told(with_offset, zone) == [nothing, ("12:00", False), *[nothing] * 5]


def test_local_times_outside_of_timestamp_by_are_refused_where_they_would_be_read_in_utc() -> None:
    def refused(expression: str, zone: str = "Europe/Rome") -> bool:
        return local_time_problem(expression, zone, lambda part: part != "k") is not None

    assert refused("CAST(t AS TIMESTAMP) > opened")
    assert refused("to_timestamp(t, 'dd.MM.yyyy')")
    assert not refused("CAST(t AS TIMESTAMP)", "UTC")
    assert not refused("CAST(k AS TIMESTAMP)")
    assert not refused("to_timestamp(t, 'dd.MM.yyyy HH:mm XXX')")


@pytest.fixture
def shifts(tmp_path: Path, spark: SparkSession) -> Path:
    spec = """\
name: shifts
sources:
  - {name: doors, kind: files, path: in/*.jsonl, format: json, settle: 0 s, schema: "at STRING, opened TIMESTAMP"}
time: {timestamp_by: at}
windows:
  - name: since_eight
    kind: tumbling
    size: 1 day
    where: "opened >= '08:00'"
    aggregates:
      n: "count(*)"
      late: "count_if(opened > at)"
"""
    (tmp_path / "shifts.yaml").write_text(spec)
    return tmp_path / "shifts.yaml"


def test_validate_names_the_line_of_a_time_of_day_and_what_to_write(shifts: Path) -> None:
    done = CliRunner().invoke(main, ["validate", str(shifts)])
    assert done.exit_code == 2
    said = done.stderr.replace("\n", " ")
    assert "line 9, windows[0].where: '08:00' is a time of day" in said
    assert "date_format(x, 'HH:mm') >= '08:00'" in said
    assert (
        "line 12, windows[0].aggregates.late: `count_if(opened > at)` implicitly reads the text `at` as a time"
        in said
    )
