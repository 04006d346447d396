"""Whole pipelines through Dagster: what a run writes, records, refuses and repeats."""

import json
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession
from sqlalchemy.exc import DatabaseError

from tests.runs.landing import (
    assert_only_open_sessions_keep_events,
    assert_tables_equal_the_oracle,
    land,
    table,
)
from tests.runs.running import (
    FLUSH,
    assert_dagster_shows_the_rows_of_the_tables,
    assert_the_report_tells_what_the_tables_hold,
    begin_elsewhere,
    command,
    go,
    materialize_days,
    pipeline,
    without_batch,
    written,
)
from tidemark.assets import batch as batch_at_work
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import BusyError, LakeError, MachineError


def test_a_log_in_batches_then_flushed_gives_the_oracles_tables(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made = pipeline(tmp_path, "kept", "keep", sessions=True)
    land(tmp_path / "in_kept", 900, seed=1)
    with DagsterInstance.ephemeral() as instance:
        first = go(made, instance, RunOptions(max_events_per_batch=500))
        assert (first.batches, first.counts["records"]) == (2, 900)
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        assert_only_open_sessions_keep_events(settings.warehouse, file.spec)
        assert_dagster_shows_the_rows_of_the_tables(instance, settings.warehouse, file.spec)

        assert go(made, instance).batches == 0, "nothing is new"
        assert go(made, instance, FLUSH).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
        audited = command(tmp_path, "kept", "audit")
        assert audited.exit_code == 0, audited.output
        land(tmp_path / "in_kept", 1, seed=2, files=1, prefix="g")
        with pytest.raises(LakeError, match="was flushed"):
            go(made, instance)


@pytest.mark.long
def test_adjusted_events_equal_the_oracle_and_a_live_owner_keeps_a_second_run_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = pipeline(tmp_path, "adjusted", "adjust", unit="second")
    land(tmp_path / "in_adjusted", 400, seed=3)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)

        land(tmp_path / "in_adjusted", 5, seed=4, files=1, prefix="z")
        workspace = Workspace(file, settings.warehouse)
        before = workspace.lake.version("raw_events")
        other = begin_elsewhere(workspace)
        assert other.first_seq == 400
        with pytest.raises(BusyError, match="Another run is at work"):
            go(made, instance)
        assert workspace.lake.version("raw_events") == before
        workspace.batches.release(other, workspace.clock.now())
        assert go(made, instance).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_every_substream_has_a_watermark_of_its_own_and_the_clock_moves_those_of_silent_ones_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_at_work, "BASE_EVERY", 2)  # batch 1 writes a base, 2 another, 3 changes
    by_clock = "late: {tolerance: 20 s, policy: adjust}\n  idle: {advance: arrival_clock}"
    file, settings = made = pipeline(tmp_path, "devices", "keep", over="k", time=by_clock, sessions=True)
    land(tmp_path / "in_devices", 300, seed=7)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=160))
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        assert_only_open_sessions_keep_events(settings.warehouse, file.spec)
        live = table(settings.warehouse, file.spec, "windows/per_minute")
        materialize_days(made, instance)
        assert without_batch(table(settings.warehouse, file.spec, "windows/per_minute")) == without_batch(live)
        go(made, instance, FLUSH)
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
    page = assert_the_report_tells_what_the_tables_hold(settings.warehouse, file)
    assert "3 timelines moved in the last 3 batches" in page
    assert "<td><code>[null]</code></td>" in page


@pytest.mark.long
def test_events_that_no_window_needs_any_more_stay_while_their_file_is_needed_and_change_no_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(
        tmp_path,
        "lazy",
        """\
name: lazy
sources:
  - {name: s, kind: files, path: "in/*.jsonl", format: json, order: position, settle: 0 s, schema: "at TIMESTAMP"}
time: {timestamp_by: at, out_of_orderness: 30 minutes, out_of_order: drop}
windows:
  - {name: by_hour, kind: tumbling, size: 1 hour, aggregates: {n: "count(*)"}}
""",
    )
    (tmp_path / "in").mkdir()
    kept = []
    with DagsterInstance.ephemeral() as instance:
        for number, times in enumerate([["10:10", "11:20"], ["11:40"], ["12:50"], ["15:00"]]):
            lines = [json.dumps({"at": f"2026-01-01T{time}:00Z"}) + "\n" for time in times]
            (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines))
            go(made, instance)
            kept.append(
                sorted(row["_arrival_seq"] for row in table(settings.warehouse, file.spec, "_state/open_events"))
            )
        go(made, instance, FLUSH)
    # The window of 10:00 closes with the third event, while its file holds the second, which the next window needs.
    assert kept == [[0, 1], [0, 1, 2], [3], [4]]
    assert table(settings.warehouse, file.spec, "_state/open_events") == []
    counts = [row["n"] for row in table(settings.warehouse, file.spec, "windows/by_hour")]
    assert sorted(counts) == [1, 1, 1, 2]


@pytest.mark.long
def test_windows_that_a_change_of_the_spec_closes_are_closed_by_it(spark: SparkSession, tmp_path: Path) -> None:
    """At 12:01:40 the watermark is 12:00:40. With 10 seconds instead of 60 it is 12:01:30, past the first window."""
    file, settings = pipeline(tmp_path, "changed", "drop", unit="second", sparse=False)
    landing = tmp_path / "in_changed"
    landing.mkdir()

    def at(*times: str) -> str:
        days = [f"2026-01-01T12:{time}Z" for time in times]
        return "".join(f'{{"id": "e", "at": "{day}", "got": "{day}", "k": "a", "v": 1}}\n' for day in days)

    with DagsterInstance.ephemeral() as instance:
        (landing / "1.jsonl").write_text(at("00:30", "01:40"))
        go((read_spec(file.path, ["time.out_of_orderness=60 s"]), settings), instance)
        (landing / "2.jsonl").write_text(at("01:20", "02:30"))
        go((file, settings), instance)
    specs = [row for row in table(settings.warehouse, file.spec, "log_control") if row["kind"] == "spec"]
    recorded = {row["_after_seq"]: json.loads(row["argument"])["time"]["out_of_orderness"] for row in specs}
    assert recorded == {-1: "1 minute", 1: "10 seconds"}
    minutes = table(settings.warehouse, file.spec, "windows/per_minute")
    shown = sorted((f"{row['window_start']:%M}", row["n"], f"{row['_watermark']:%M:%S}") for row in minutes)
    assert shown == [("00", 1, "01:30"), ("01", 1, "02:20")]
    [late] = table(settings.warehouse, file.spec, "dead_letters")
    assert (late["reason"], f"{late['_watermark']:%M:%S}", late["watermark_set_by"]) == (
        "out_of_order",
        "01:30",
        None,
    )


@pytest.mark.long
def test_a_batch_is_free_when_dagsters_database_has_broken_under_its_run(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made = pipeline(tmp_path, "broken", "drop", sparse=False)
    land(tmp_path / "in_broken", 60, seed=5)
    workspace, home = Workspace(file, settings.warehouse), tmp_path / "home"
    home.mkdir()

    def breaks(doing: str) -> None:
        if "closing windows" in doing:  # the batch is planned, and its next stage is still to be noted
            for database in home.rglob("*.db"):
                database.write_bytes(b"no database" * 1_000)

    # The run fails in a stage that can still be noted, over the connection that it keeps, or in Dagster itself.
    broken = pytest.raises((DatabaseError, MachineError), match=r"is malformed|is not a database")
    with DagsterInstance.local_temp(str(home)) as instance, broken:
        run_pipeline(file, settings, RunOptions(), instance=instance, tell=breaks)
    pending = workspace.batches.pending("process")
    assert pending is not None
    assert pending.released
    assert go(made).batches == 1
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
