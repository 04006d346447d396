"""Runs that read a Delta table and are killed between plan, log and commit: no row is lost, none comes twice."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import run_killed
from tests.runs.landing import START, assert_tables_equal_the_oracle
from tests.runs.running import log_of, rows_of, run, workspace_of, written
from tests.runs.source.test_delta_sources import add, made, rows
from tidemark.assets.ingestion.pending_work import signature

DEATHS = ("plan to ingest", "raw_events", "_state/files", "commit of ingest")
SECOND = """\
name: second
sources:
  - {name: minutes, kind: delta, path: warehouse/first/windows/per_minute,
     schema: "window_start TIMESTAMP, window_end TIMESTAMP, k STRING, n BIGINT, total BIGINT"}
time: {timestamp_by: window_end - INTERVAL 1 MICROSECOND, out_of_order: keep}
windows:
  - {name: per_hour, kind: tumbling, size: 1 hour, aggregates: {n: sum(n)}, allowed_lateness: 1 hour}
"""


@pytest.mark.long
def test_runs_killed_while_they_read_versions_leave_the_log_of_undisturbed_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Another version is committed after each death, so that the next run plans other versions than the dead one."""
    file, settings = made(tmp_path, "killed", "start_version: 0, arrival_time: got, max_versions: 2")
    add(tmp_path, rows(100, 20))
    for number, death in enumerate(DEATHS):
        add(tmp_path, rows(number, 20))
        run_killed(spark, (file, settings), death)
    run(tmp_path, "killed")
    made(tmp_path, "undisturbed", "start_version: 0, arrival_time: got")
    run(tmp_path, "undisturbed")
    log = log_of(tmp_path, "killed")
    assert len(log) == 100
    assert log == log_of(tmp_path, "undisturbed")
    assert sorted(int(state["path"]) for state in rows_of(tmp_path, "killed", "_state/files")) == [0, 1, 2, 3, 4]
    assert not (settings.warehouse / "killed" / "_state" / "reading").exists()
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_windows_of_one_pipeline_are_the_input_of_another_which_reads_each_result_once_though_runs_die(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each committed batch is one version. What a dead run wrote is not committed; the next run takes it back."""
    first = made(tmp_path, "first", "start_version: 0, arrival_time: got, max_versions: 1")
    second = workspace_of(written(tmp_path, "second", SECOND))
    for number in range(4):
        add(tmp_path, rows(number, 40, START + timedelta(hours=number)))
        if number < 3:  # the last commit follows the one before it at once
            run_killed(spark, first, "windows/per_minute")
        run(tmp_path, "second")
        before, seen = len(log_of(tmp_path, "second")), signature(second)
        run(tmp_path, "first")
        assert signature(second) != seen
        run(tmp_path, "second")
        assert len(log_of(tmp_path, "second")) > before
    given, taken = rows_of(tmp_path, "first", "windows/per_minute"), log_of(tmp_path, "second")
    assert len(given) > 10
    key = ("window_start", "k", "n")
    assert sorted(str([row[name] for name in key]) for row in taken) == sorted(
        str([row[name] for name in key]) for row in given
    )
