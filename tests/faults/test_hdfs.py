"""Runs on HDFS: stopped and killed in the midst of a batch, refused meanwhile; the rows are those of a local disk."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.processes import free_port, hdfs, process, wait_until
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import assert_same_tables, go, pipeline, rows_by_table, workspace_of
from tidemark.pipelines.cli import main
from tidemark.pipelines.runner import RunOptions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.place import RemotePath
from tidemark.resources.settings import Settings
from tidemark.resources.tables import WATERMARKS
from tidemark.resources.workspace import SpecFile, Workspace

RECORDS, CUT = 200, RunOptions(max_events_per_batch=70)
PATIENCE_S = 60
"""Four times what a person may have to wait, as other tests run beside these."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[RemotePath]:
    with hdfs(tmp_path) as found:
        yield found


def on_hdfs(base: Path, root: RemotePath, local: SpecFile) -> tuple[SpecFile, Settings]:
    """Return the same pipeline with input and tables on HDFS, which holds a copy of the input."""
    for path in (local.folder / "in_faults").iterdir():
        (root / "in" / path.name).write_bytes(path.read_bytes())
    spec = base / "hdfs" / local.path.name
    spec.parent.mkdir()
    spec.write_text(local.path.read_text().replace("path: in_faults", f"path: {root}/in"))
    return read_spec(spec), Settings(root / "cut", spec.parent, spec.parent / "home")


def rows(made: tuple[SpecFile, Settings], *, of_one_batch: bool) -> dict[str, list[str]]:
    """Return the rows of each table but the tables of batches, without the path of the input and its times."""
    without = {"place", "modified_us"} | (set() if of_one_batch else {"_batch_id"})
    workspace = workspace_of(made)
    names = [name for name in workspace.tables if of_one_batch or name != WATERMARKS]
    found = rows_by_table(workspace, names, without=without, newest=True)
    [folder] = {path.removesuffix("/*.jsonl") for path in made[0].inputs}  # the spec is in one of the tables
    return {name: sorted(text.replace(folder, "folder") for text in of) for name, of in found.items()}


@pytest.mark.long
def test_whole_or_cut_with_a_kill_between_runs_on_hdfs_give_the_rows_of_a_local_disk(
    spark: SparkSession, root: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    local = pipeline(tmp_path, "faults", "drop", sparse=False)
    land(tmp_path / "in_faults", RECORDS, seed=5)
    cut = on_hdfs(tmp_path, root, local[0])
    whole = cut[0], replace(cut[1], warehouse=root / "whole")
    with DagsterInstance.ephemeral() as instance:
        go(local, instance)
        assert go(whole, instance).batches == 1
        stop_and_kill(cut, tmp_path / "run.log")
        assert go(cut, instance, CUT).batches >= 1
    assert_same_tables(rows(whole, of_one_batch=True), rows(local, of_one_batch=True))
    assert_same_tables(rows(cut, of_one_batch=False), rows(local, of_one_batch=False))
    for _, settings in (whole, cut):
        assert_tables_equal_the_oracle(settings.warehouse, cut[0].spec)


def stop_and_kill(made: tuple[SpecFile, Settings], log: Path) -> None:
    """Stops a run in the midst of its second batch; another one is refused; then it is killed with its JVM."""
    file, settings = made
    workspace = Workspace(file, settings.warehouse)
    words = ["run", str(file.path), "--warehouse", str(settings.warehouse)]
    command = [sys.executable, "-m", "tidemark.pipelines.cli", *words, "--max-events-per-batch", "70"]
    with process(command, {}, log) as running:
        wait_until(lambda: workspace.exists and workspace.progress.processed_end() == 70, log)
        wait_until(lambda: (pending := workspace.batches.pending()) is not None and pending.kind == "process", log)
        os.killpg(running.pid, signal.SIGSTOP)
        refused = CliRunner().invoke(main, words)
        os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    assert refused.exit_code == 1
    assert f"Another run is at work: process {running.pid}" in refused.output
    assert workspace.progress.processed_end() == 70
    assert workspace.batches.pending() is not None, "a batch is left half done"


def test_a_name_node_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file, _ = pipeline(tmp_path, "faults", "drop", sparse=False)
    nowhere = f"hdfs://localhost:{free_port()}"
    start = time.monotonic()
    result = CliRunner().invoke(main, ["run", str(file.path), "--warehouse", f"{nowhere}/warehouse"])
    assert time.monotonic() - start < PATIENCE_S
    assert result.exit_code == 1
    assert f"{nowhere} does not answer" in result.output
    assert "Traceback" not in result.output
