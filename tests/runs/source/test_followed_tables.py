"""Pipelines that follow the tables of others: what is corrected upstream is corrected downstream."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import run_killed
from tests.runs.landing import LINES, START, assert_tables_equal_the_oracle, corrected_log, land
from tests.runs.running import command, log_of, rows_of, run, written
from tests.runs.source.test_delta_sources import add, made, rows
from tidemark.assets.ingestion.pending_work import look
from tidemark.assets.rebuild.plan import plan_rebuild
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec.scope import Scope

FIRST = (
    f"name: first\n{LINES}"
    """\
time: {timestamp_by: at, unit: millisecond, out_of_orderness: 5 s}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*), v: sum(v)}}
partitions: {start: 2026-01-01}
"""
)
SECOND = """\
name: second
sources:
  - name: minutes
    kind: delta
    path: warehouse/first/windows/minutes
    schema: "window_start TIMESTAMP, window_end TIMESTAMP, k STRING, n BIGINT, v BIGINT"
    rename: {window_start: at}
    arrival_time: window_end
    changes: follow
time: {timestamp_by: at, out_of_orderness: 1 minute, out_of_order: keep}
windows:
  - {name: fives, kind: tumbling, size: 5 minutes, allowed_lateness: 1 day, emit: on_time, revise_every: 0 s,
     group_by: [k], aggregates: {n: count(*), events: sum(n), v: sum(v)}}
"""
THIRD = """\
name: third
sources:
  - name: fives
    kind: delta
    path: warehouse/second/windows/fives
    schema: "window_start TIMESTAMP, window_end TIMESTAMP, k STRING, events BIGINT, v BIGINT"
    rename: {window_start: at}
    arrival_time: window_end
    changes: follow
time: {timestamp_by: at, out_of_orderness: 5 minutes, out_of_order: keep}
windows:
  - {name: quarters, kind: tumbling, size: 15 minutes, allowed_lateness: 1 day, emit: on_time, revise_every: 0 s,
     group_by: [k], aggregates: {n: count(*), events: sum(events), v: sum(v)}}
"""
VALUES = ("window_start", "window_end", "k", "n", "events", "v")


def change(base: Path, name: str, before: str, now: str) -> None:
    text = (base / f"{name}.yaml").read_text()
    assert text.count(before) == 1
    written(base, name, text.replace(before, now))


def results(base: Path, name: str, window: str) -> list[Any]:
    rows = rows_of(base, name, f"windows/{window}")
    return sorted([str([row.get(value) for value in VALUES]) for row in rows])


def items(base: Path, name: str) -> list[dict[str, Any]]:
    rows = sorted(rows_of(base, name, "log_control"), key=lambda row: int(row["_control_seq"]))
    last = max((n for n, row in enumerate(rows) if row["kind"] == "rebuild"), default=0)
    return [json.loads(row["argument"]) | row for row in rows[last:] if row["kind"] == "correction"]


def assert_followed(base: Path, *names: str) -> None:
    """Run pipelines; each has the rows that its input has now, and what the oracle makes of them."""
    inputs = {"second": ("first", "minutes"), "third": ("second", "fives")}
    for name in names:
        run(base, name)
        spec = read_spec(base / f"{name}.yaml").spec
        assert_tables_equal_the_oracle(base / "warehouse", spec)
        run(base, name, "audit")  # an event has the values of the record that has taken its place
        log = corrected_log(base / "warehouse", spec)
        columns = [column for column in VALUES[1:] if column in log[0]]
        found = sorted(str([row[column] for column in ("at", *columns)]) for row in log)
        there = rows_of(base, inputs[name][0], f"windows/{inputs[name][1]}")
        assert found == sorted(str([row[column] for column in ("window_start", *columns)]) for row in there), name


def write_all(base: Path, *names: str) -> None:
    texts = {"first": FIRST, "second": SECOND, "third": THIRD}
    for name in names:
        written(base, name, texts[name])


def backfill_first(base: Path) -> None:
    change(base, "first", "v: sum(v)", "v: sum(v) * 100")
    run(base, "first", "backfill", "--from", "2026-01-01", "--to", "2026-01-01")


@pytest.mark.long
def test_what_is_backfilled_rebuilt_or_rejudged_upstream_is_corrected_in_all_that_follow(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_all(tmp_path, "first", "second", "third")
    for number in range(2):
        land(tmp_path / "in", 100, seed=number, prefix=f"f{number}", start=START + timedelta(minutes=6 * number))
        run(tmp_path, "first")
    assert_followed(tmp_path, "second", "third")
    before = results(tmp_path, "second", "fives")
    backfill_first(tmp_path)
    assert_followed(tmp_path, "second", "third")  # whatever corrects `second`, `third` follows a rebuild of it
    assert len(items(tmp_path, "third")) == 1
    assert results(tmp_path, "second", "fives") != before
    run(tmp_path, "first", "rejudge", "--where", "k = 'a' AND v > 4", "--reason", "a test")
    assert_followed(tmp_path, "second")
    assert re.search(
        r"\(batch \d+ of first, rebuild: a test\) replaces \d+ records", items(tmp_path, "second")[-1]["reason"]
    )
    change(tmp_path, "first", "out_of_orderness: 5 s", "out_of_orderness: 30 s")
    run(tmp_path, "first", "rebuild")
    assert_followed(tmp_path, "second")
    assert len({item["version"] for item in items(tmp_path, "second")}) == 3, (
        "of the backfill, the rejudging and the rebuild"
    )


@pytest.mark.long
def test_records_that_are_let_in_upstream_are_in_what_follows_and_out_of_it_when_they_are_refused_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_all(tmp_path, "first", "second")
    land(tmp_path / "in", 200, seed=4)
    run(tmp_path, "first")
    assert_followed(tmp_path, "second")
    before = results(tmp_path, "second", "fives")
    letters = ("--where", "reason = 'out_of_order'", "--reason", "they were late")
    run(tmp_path, "first", "replay", *letters)
    assert_followed(tmp_path, "second")
    assert results(tmp_path, "second", "fives") != before
    [item] = items(tmp_path, "second")
    changed_rows = [row for row in rows_of(tmp_path, "first", "windows/minutes") if row["_revision"]]
    assert len(changed_rows) == sum(length for _, _, length in item["replaced"]), "no other record is replaced"
    run(tmp_path, "first", "replay", *letters, "--undo")
    assert_followed(tmp_path, "second")
    assert results(tmp_path, "second", "fives") == before


@pytest.mark.long
def test_a_backfill_of_another_pipeline_corrects_the_log_and_what_was_computed_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever the reader has of the columns, whatever an operator has taken out, and what a flush has closed."""

    def second(name: str, *changes: tuple[str, str]) -> None:
        text = SECOND.replace("name: second", f"name: {name}")
        for before, now in changes:
            text = text.replace(before, now)
        written(tmp_path, name, text)

    write_all(tmp_path, "first")
    land(tmp_path / "in", 100, seed=1)
    run(tmp_path, "first")
    second("second", ("changes: follow", "changes: fail"))
    flush = ("out_of_order: keep}", "out_of_order: keep, end_of_input: flush}")
    second("narrow", (" k STRING,", ""), ("group_by: [k],", ""), flush)
    for name in ("second", "narrow"):
        run(tmp_path, name)
    run(tmp_path, "second", "rejudge", "--exclude", "3", "--reason", "no")
    before, flushed = log_of(tmp_path, "second"), results(tmp_path, "narrow", "fives")
    backfill_first(tmp_path)
    stopped = command(tmp_path, "second")
    assert (stopped.exit_code, "take them in with `changes: follow`" in stopped.output) == (1, True)
    change(tmp_path, "second", "changes: fail", "changes: follow")
    said = run(tmp_path, "second").output
    [item] = items(tmp_path, "second")
    assert f"second: {item['reason']}" in said
    assert item["reason"] == f"minutes: version 2 (batch 2 of first, backfill) replaces {len(before)} records"
    assert (item["pipeline"], item["batch"], item["of"]) == ("first", 2, "backfill")
    spec = read_spec(tmp_path / "second.yaml").spec
    assert_tables_equal_the_oracle(tmp_path / "warehouse", spec, without=[3])
    now = corrected_log(tmp_path / "warehouse", spec)
    assert [row["v"] for row in now] == [100 * row["v"] for row in before]
    of_place = ("_arrival_seq", "_arrival_time", "_clock", "at", "k", "n")
    assert [[row[name] for name in of_place] for row in now] == [[row[name] for name in of_place] for row in before]
    assert "nothing new" in run(tmp_path, "second").output
    assert "corrected minutes: version 2 (batch 2 of first, backfill)" in " ".join(
        command(tmp_path, "second", "status").output.split()
    )
    taken = item["replaced"][0][1]
    for words, says in (
        (["--exclude", str(taken)], "is in the place of record 0"),
        (["--where", "v >= 0 AND n > 99"], "No record"),
    ):
        refused = command(tmp_path, "second", "rejudge", "--reason", "x", *words)
        assert (refused.exit_code, says in refused.output) == (2, True), refused.output
    run(tmp_path, "narrow")
    spec = read_spec(tmp_path / "narrow.yaml").spec
    assert_tables_equal_the_oracle(tmp_path / "warehouse", spec, flush=True)
    assert sorted(row["v"] for row in corrected_log(tmp_path / "warehouse", spec)) == sorted(row["v"] for row in now)
    assert results(tmp_path, "narrow", "fives") != flushed
    assert "nothing new" in run(tmp_path, "narrow").output, "it needs no reopening"
    second("late", ("changes: follow", "changes: follow\n    start_version: 2"))
    run(tmp_path, "late")
    [item] = items(tmp_path, "late")
    assert item["reason"].endswith(
        f"adds {len(now)} records; the log has no record of {len(now)} rows that it took away"
    )


SOURCE = "changes: follow, start_version: 0, arrival_time: got"


@pytest.mark.long
def test_rows_that_any_table_updates_or_deletes_are_no_part_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """It holds where files are written anew and where rows in them are marked, whatever one ingestion reads."""
    table = tmp_path / "bronze" / "orders"

    def mark_rows(*, is_on: bool) -> None:
        value = str(is_on).lower()
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = '{value}')")

    for name in ("as_it_came", "at_once"):
        made(tmp_path, name, SOURCE, time="emit: {every: 5 s}")  # the clock counts
    add(tmp_path, pa.concat_tables([rows(1, 30), rows(2, 3), rows(2, 3)]), partition_by=["k"])
    mark_rows(is_on=True)
    run(tmp_path, "as_it_came")
    spark.sql(f"UPDATE delta.`{table}` SET v = v + 100 WHERE id LIKE '1-%' AND v > 5")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = '2-0'")
    run(tmp_path, "as_it_came")
    spark.sql(f"OPTIMIZE delta.`{table}`")
    mark_rows(is_on=False)
    spark.sql(
        f"MERGE INTO delta.`{table}` there USING (SELECT DISTINCT id FROM delta.`{table}`) one ON there.id = one.id "
        "WHEN MATCHED AND v > 107 THEN UPDATE SET v = v - 100 WHEN MATCHED AND one.id = '2-1' THEN DELETE"
    )
    add(tmp_path, rows(3, 20, START + timedelta(minutes=1)))
    run(tmp_path, "as_it_came")
    run(tmp_path, "at_once")
    for name in ("as_it_came", "at_once"):
        spec = read_spec(tmp_path / f"{name}.yaml").spec
        assert_tables_equal_the_oracle(tmp_path / "warehouse", spec)
        found = corrected_log(tmp_path / "warehouse", spec)
        there = [row.asDict() for row in spark.read.format("delta").load(str(table)).collect()]
        columns = ("id", "at", "k", "v")
        assert sorted(str([row[name] for name in columns]) for row in found) == sorted(
            str([row[name] for name in columns]) for row in there
        )
    assert log_of(tmp_path, "at_once") == log_of(tmp_path, "as_it_came")


def totals(base: Path) -> dict[tuple[Any, ...], Any]:
    rows = rows_of(base, "killed", "windows/per_minute")
    return {(row["window_start"], row["k"]): (row["n"], row["total"], row["_is_final"]) for row in rows}


@pytest.mark.long
def test_a_run_that_dies_before_tables_are_made_anew_leaves_that_to_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made(tmp_path, "killed", SOURCE)
    table = add(tmp_path, rows(1, 30))
    run(tmp_path, "killed")
    workspace = Workspace(file, settings.warehouse, lambda: spark)
    begun = Shadow(workspace, "begun", plan_rebuild(workspace, Scope.ALL))
    begun.begin()
    begun.keep_numbers()
    begun.catch_up()
    outdated = [begun.is_outdated]
    table.update(updates={"v": "v + 100"}, predicate="v > 5")
    run_killed(spark, (file, settings), "commit of ingest")
    workspace = Workspace(file, settings.warehouse)
    assert [*outdated, begun.is_outdated] == [False, True]
    assert "corrected, and not recomputed: orders: version 1 takes away" in look(workspace).sentence
    status = command(tmp_path, "killed", "status")
    assert "the tables are not rebuilt for it yet. To do: `tidemark run` does so." in " ".join(status.output.split())
    plan = command(tmp_path, "killed", "plan", "--json")
    [announced] = json.loads(plan.output.splitlines()[-1])["corrected"]
    assert announced["days"], plan.output
    assert "The next run computes the tables again" in command(tmp_path, "killed", "plan").output
    before = totals(tmp_path)
    assert "what another rebuild has left, which did not end, is thrown away" in run(tmp_path, "killed").output
    after = totals(tmp_path)
    differ = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert len(differ) == sum(announced[how] for how in ("changed", "new", "gone"))
    assert {key[0].date().isoformat() for key in differ} == {*announced["days"]}
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    assert len([one for one in workspace.batches.every_commit() if one.plan.input.get("numbers")]) == 1
    assert not look(Workspace(file, settings.warehouse)).is_there
    assert "nothing new" in run(tmp_path, "killed").output
