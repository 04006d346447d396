"""Runs that read a Delta table and are killed between plan, log and commit: no row is lost, none comes twice."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import Death, Gateway, run_and_die
from tests.runs.landing import START, assert_tables_equal_the_oracle
from tests.runs.running import log_of, run
from tests.runs.source.test_delta_sources import add, made, rows
from tidemark.resources.delta.lake import Lake

DEATHS = ("plan to ingest", "raw_events", "_state/files", "commit of ingest")
KILLED = -9


@pytest.mark.long
def test_runs_killed_while_they_read_versions_leave_the_log_of_undisturbed_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Another version is committed after each death, so that the next run plans other versions than the dead one."""
    file, settings = made(tmp_path, "killed", "start_version: 0, arrival_time: got, max_versions: 2")
    add(tmp_path, rows(100, 20))
    for number, death in enumerate(DEATHS):
        add(tmp_path, rows(number, 20))
        assert run_and_die(file.path, settings.warehouse, Death(death, "python"), Gateway.of(spark)) == KILLED, death
    run(tmp_path, "killed")
    made(tmp_path, "undisturbed", "start_version: 0, arrival_time: got")
    run(tmp_path, "undisturbed")
    log = log_of(tmp_path, "killed")
    assert len(log) == 100
    assert log == log_of(tmp_path, "undisturbed")
    states = Lake(settings.warehouse / "killed").rows("_state/files").to_pylist()
    assert sorted(int(state["path"]) for state in states) == [0, 1, 2, 3, 4]
    assert not (settings.warehouse / "killed" / "_state" / "reading").exists()
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_of_a_pipeline_that_dies_between_two_commits_another_one_reads_each_result_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing that the dead run wrote is committed; the next run takes it back."""
    first, settings = made(tmp_path, "first", "start_version: 0, arrival_time: got")
    (tmp_path / "second.yaml").write_text(
        "name: second\nsources:\n  - {name: minutes, kind: delta, path: warehouse/first/windows/per_minute, "
        'schema: "window_start TIMESTAMP, k STRING, n BIGINT"}\ntime: {timestamp_by: window_start}\n'
    )
    for number in range(2):
        add(tmp_path, rows(number, 40, START + timedelta(hours=number)))
        death = Death("windows/per_minute", "python")
        assert run_and_die(first.path, settings.warehouse, death, Gateway.of(spark)) == KILLED
        run(tmp_path, "second")
        before = len(log_of(tmp_path, "second"))
        run(tmp_path, "first")
        run(tmp_path, "second")
        assert len(log_of(tmp_path, "second")) > before
    given = Lake(settings.warehouse / "first").rows("windows/per_minute").to_pylist()
    taken = log_of(tmp_path, "second")
    key = ("window_start", "k", "n")
    assert sorted(str([row[name] for name in key]) for row in taken) == sorted(
        str([row[name] for name in key]) for row in given
    )
