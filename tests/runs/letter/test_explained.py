"""Each record of a run is explained as its tables have it: outcome, watermark, lateness, windows and counts."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.landing import LINES, land, table
from tests.runs.running import FLUSH, Made, go, written
from tidemark.assets.questions.record import RecordQuestions
from tidemark.assets.questions.times import PipelineLog
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.workspace import Workspace
from tidemark.timeops.figures.log_times import LogTimes

KEEP = """\
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 4 s
  out_of_order: keep
  late: {tolerance: 40 s, policy: drop}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, allowed_lateness: 5 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: sparse, kind: hopping, size: 20 s, hop: 30 s, where: v > 2, group_by: [k], aggregates: {n: count(*)}}
  - {name: steps, kind: cumulative, size: 1 minute, step: 20 s, closed: right, aggregates: {n: count(*)}}
  - {name: recent, kind: sliding, size: 10 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, allowed_lateness: 5 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: five, kind: tumbling, size: 5 minutes, from: minutes, allowed_lateness: 5 s, group_by: [k],
     aggregates: {n: sum(n)}}
"""
DROP = """\
time:
  timestamp_by: at
  over: [k]
  out_of_orderness: 3 s
  early: {tolerance: 1 s, policy: adjust}
  late: {tolerance: 30 s, policy: adjust}
  idle: {advance: arrival_clock}
outputs: {ordered_events: false}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, max_duration: 20 s, group_by: [k], aggregates: {n: count(*)}}
"""


def asked(made: Made, spark: SparkSession) -> RecordQuestions:
    file, settings = made
    return RecordQuestions(PipelineLog(Workspace(file, settings.warehouse, lambda: spark)))


def explained(made: Made, spark: SparkSession, records: int) -> list[dict[str, Any]]:
    return [one.to_dict() for one in asked(made, spark).answers(range(records))]


def in_json(value: Any) -> str | None:
    return None if value is None else value.replace(tzinfo=None).isoformat() + "Z"


def whole(text: str | None) -> str | None:
    """Return an instant with all its digits or none, as Python writes it."""
    return text if text is None or "." not in text else text.removesuffix("Z").ljust(26, "0") + "Z"


def assert_letters(answers: list[dict[str, Any]], letters: list[dict[str, Any]]) -> None:
    refused = {letter["_arrival_seq"]: letter for letter in letters if letter["stage"] != "window"}
    assert {one["_arrival_seq"] for one in answers if one["outcome"] == "dead_letter"} == refused.keys()
    for seq, letter in refused.items():
        one = answers[seq]
        assert (one["reason"], one["lateness_us"]) == (letter["reason"], letter["lateness_us"])
        assert whole(one["_event_time"]) == in_json(letter["_event_time"])
        if letter["reason"] == "out_of_order":
            assert whole(one["_watermark"]) == in_json(letter["_watermark"])
            assert one["watermark_set_by"] == letter["watermark_set_by"]
    closed = {letter["_arrival_seq"] for letter in letters if letter["stage"] == "window"}
    assert {one["_arrival_seq"] for one in answers if one["reason"] == "window_closed"} == closed


def assert_counts(made: Made, answers: list[dict[str, Any]], rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Assert that a row of a window counts as many records as say that they are counted in it."""
    groups = {row["_arrival_seq"]: row["k"] for row in table(made[1].warehouse, made[0].spec, "raw_events")}
    for window in made[0].spec.windows:
        of_groups = bool(window.group_columns)
        found = Counter(
            (whole(one["start"]), whole(one["end"]), groups[answer["_arrival_seq"]] if of_groups else None)
            for answer in answers
            for one in answer["windows"]
            if (one["name"], one["outcome"]) == (window.name, "counted")
        )
        wanted = {
            (in_json(row["window_start"]), in_json(row["window_end"]), row.get("k")): row["n"]
            for row in rows[window.name]
        }
        assert dict(found) == wanted, window.name


@pytest.mark.long
def test_each_record_is_explained_as_the_tables_have_it(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made = written(tmp_path, "asked", f"name: asked\n{LINES}{KEEP}")
    land(tmp_path / "in", 130, seed=4)
    assert go(made, options=RunOptions(max_events_per_batch=70)).batches == 2
    answers = explained(made, spark, 130)

    def rows(name: str) -> list[dict[str, Any]]:
        return table(settings.warehouse, file.spec, name)

    letters = rows("dead_letters")
    assert_letters(answers, letters)
    assert {one["_arrival_seq"] for one in rows("held_events")} == {
        one["_arrival_seq"] for one in answers if one["outcome"] == "held"
    }
    for row in rows("ordered_events"):
        one = answers[row["_arrival_seq"]]
        assert one["outcome"] == ("ordered" if row["_release_seq"] is not None else "kept")
        assert whole(one["_timestamp"]) == in_json(row["_timestamp"])
        if row["_watermark"] is not None:
            assert whole(one["_watermark"]) == in_json(row["_watermark"])
    assert_counts(made, answers, {window.name: rows(f"windows/{window.name}") for window in file.spec.windows})
    missed = {(letter["_arrival_seq"], letter["window_name"]) for letter in letters if letter["stage"] == "window"}
    of_events = {window.name for window in file.spec.windows if window.input is None}
    alone = {
        (answer["_arrival_seq"], name)
        for answer in answers
        if answer["outcome"] != "dead_letter"
        for name in of_events - {"recent"}  # whose later instants, which no event has made, are open
        if {"missed"} == {one["outcome"] for one in answer["windows"] if one["name"] == name}
    }
    assert alone == {one for one in missed if one[1] != "recent"}
    assert any(one["admitted_by"] for one in answers)
    assert {"filtered", "in_gap", "missed", "open", "counted"} <= {
        one["outcome"] for answer in answers for one in answer["windows"]
    }


@pytest.mark.long
def test_without_tables_of_events_the_loop_says_the_same(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made = written(tmp_path, "bare", f"name: bare\n{LINES}{DROP}")
    land(tmp_path / "in", 160, seed=5)
    go(made)
    answers = explained(made, spark, 160)

    def rows(name: str) -> list[dict[str, Any]]:
        return table(settings.warehouse, file.spec, name)

    assert_letters(answers, rows("dead_letters"))
    assert_counts(made, answers, {window.name: rows(f"windows/{window.name}") for window in file.spec.windows})
    assert {one["outcome"] for one in answers} == {"dead_letter", "held", "ordered"}


@pytest.mark.long
def test_the_times_that_tables_hold_are_those_that_spark_computes(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "asked", f"name: asked\n{LINES}{KEEP}")
    land(tmp_path / "in", 160, seed=6)
    go(made)
    read = asked(made, spark).log.committed.times
    file = written(tmp_path, "asked", f"name: asked\n{LINES}outputs: {{ordered_events: false}}\n{KEEP}")[0]
    computed = asked((file, made[1]), spark).log.committed.times
    for name in ("seq", "event_us", "arrival_us", "clock_us", "why"):
        assert same(getattr(read, name), getattr(computed, name), read, name), name


def same(one: Any, other: Any, times: LogTimes, name: str) -> bool:
    """Return whether arrays are equal; rules 1 and 2 are judged later."""
    return bool((one == other).all()) and len(one) == len(times.seq) and bool(name)


def test_a_program_asks_as_the_command_does(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made = written(tmp_path, "asked", f"name: asked\n{LINES}{KEEP}")
    land(tmp_path / "in", 60, seed=8)
    go(made)
    warehouse = str(settings.warehouse)
    some = tm.explain(file.path, where="v = 3", warehouse=warehouse, most=2)
    assert [one["_arrival_seq"] for one in some.to_dict()["records"]] == sorted(
        row["_arrival_seq"] for row in table(settings.warehouse, file.spec, "raw_events") if row["v"] == 3
    )[:2]
    rows = sorted(table(settings.warehouse, file.spec, "windows/minutes"), key=lambda row: row["window_start"])
    for row in (rows[0], rows[-1]):  # the counts of all of them: see the first test
        start = row["window_start"]
        one = tm.explain(file.path, window="minutes", start=start, group={"k": row["k"]}, warehouse=warehouse)
        said = one.to_dict()
        assert (said["state"], said["groups"][0]["events"]) == ("closed", row["n"]), json.dumps(said)


@pytest.mark.long
def test_a_window_over_results_is_explained_with_its_where_and_groups_that_are_expressions(
    spark: SparkSession, tmp_path: Path
) -> None:
    window = (
        "  - {name: many, kind: tumbling, size: 5 minutes, from: minutes, allowed_lateness: 5 s, where: n > 1,\n"
        '     group_by: ["upper(k) AS key"], aggregates: {rows: count(*)}}\n'
    )
    file, settings = made = written(tmp_path, "asked", f"name: asked\n{LINES}{KEEP}{window}")
    land(tmp_path / "in", 150, seed=8)
    go(made, options=FLUSH)
    rows = table(settings.warehouse, file.spec, "windows/many")
    assert rows
    for row in rows:
        start, group = row["window_start"], {"key": row["key"]}
        answer = tm.explain(
            file.path, window="many", start=start, group=group, warehouse=str(settings.warehouse)
        ).to_dict()
        assert (answer["state"], answer["groups"][0]["events"]) == ("closed", row["rows"]), json.dumps(answer)
