"""Runs that are killed between two commits, and go on as if nothing had happened."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler
from pyspark.sql import SparkSession

from tests.faults.killed import KILLED, Death, Victim, on_every_commit, run_and_die, run_killed
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import assert_same_tables, go, pipeline, rows_by_table
from tidemark.pipelines.code_location import upkeep
from tidemark.resources.delta import upkeep as table_upkeep
from tidemark.resources.delta.lake import Lake
from tidemark.resources.machine import java_gone
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace

COMMITS = (
    "plan to ingest",
    "raw_events",
    "_state/files",
    "commit of ingest",
    "plan to process",
    "ordered_events",
    "held_events",
    "log_control",
    "watermarks",
    "windows/per_minute",
    "_state/open_events",
    "dead_letters",
    "commit of process",
)
"""Every commit of a run, in order: a killed run leaves the tables as they are after one of them."""

SOME = ("raw_events", "windows/per_minute")
"""After the input, and in the midst of the results."""

LARGE = ("raw_events", "ordered_events", "windows/per_minute")
"""Some tables whose files Spark writes in a large batch: one of each stage."""


@dataclass(frozen=True)
class Undisturbed:
    """A run without a kill: its input, its tables, its commits in order."""

    file: SpecFile
    settings: Settings
    commits: tuple[str, ...]

    def elsewhere(self, folder: Path) -> Settings:
        """Settings for the same input and another warehouse."""
        return Settings(folder / "warehouse", self.settings.specs, folder / "home")


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    root = tmp_path_factory.mktemp("undisturbed")
    file, settings = pipeline(root, "faults", "drop", sparse=False)
    land(root / "in_faults", 200, seed=5)
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "_committed", on_every_commit(seen.append))
        go((file, settings))
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    return Undisturbed(file, settings, tuple(seen))


@pytest.mark.long
def test_a_run_makes_the_commits_that_the_tests_kill_it_after(undisturbed: Undisturbed) -> None:
    assert undisturbed.commits == COMMITS


@pytest.mark.parametrize("commits", [SOME, pytest.param(COMMITS, marks=pytest.mark.long)], ids=["some", "each"])
def test_runs_killed_after_one_commit_after_another_end_with_the_tables_of_an_undisturbed_one(
    spark: SparkSession, undisturbed: Undisturbed, tmp_path: Path, commits: tuple[str, ...]
) -> None:
    """Each run takes up what the one before it left, and dies one commit later."""
    settings = undisturbed.elsewhere(tmp_path)
    for commit in commits:
        run_killed(spark, (undisturbed.file, settings), commit)
    assert_finished(undisturbed, settings)


@pytest.mark.parametrize(("sent", "told"), [(b"the token", False), (b"not it...", True)])
def test_a_connection_of_pysparks_own_that_the_jvm_drops_is_no_traceback(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], sent: bytes, told: bool
) -> None:
    with AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "the token") as server:
        with socket.create_connection(("127.0.0.1", server.socket.getsockname()[1])) as jvm:
            jvm.sendall(sent)
        server.handle_request()
    assert ("Traceback" in capsys.readouterr().err) == told


@pytest.mark.long
def test_upkeep_after_each_death_changes_nothing(
    spark: SparkSession, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the dead runs are joined with those of the last commit, and what it does not need is deleted."""
    monkeypatch.setattr(table_upkeep, "_FEW_FILES", 1)
    settings = undisturbed.elsewhere(tmp_path)
    workspace = Workspace(undisturbed.file, settings.warehouse)
    for commit in COMMITS:
        run_killed(spark, (undisturbed.file, settings), commit)
        upkeep.keep_up(workspace, timedelta(0))
        upkeep.keep_up(workspace, timedelta(days=1))
    assert_finished(undisturbed, settings)


@pytest.mark.long
def test_large_writes_that_are_killed_before_their_commit_leave_files_that_no_version_names(
    spark: SparkSession, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    settings = undisturbed.elsewhere(tmp_path)
    workspace = Workspace(undisturbed.file, settings.warehouse)
    for table in LARGE:
        run_killed(spark, (undisturbed.file, settings), table, is_large=True)
        assert left_over(workspace, table), table
    assert_finished(undisturbed, settings)
    for _ in range(2):  # files first, then the folders that they leave empty, each when it is old
        for folder in Path(str(settings.warehouse)).glob("**/attempt-*"):
            for path in (*folder.rglob("*"), folder):
                os.utime(path, (0, 0))
        upkeep.keep_up(workspace, timedelta(days=1))
    assert not any(left_over(workspace, table) for table in LARGE)
    assert_finished(undisturbed, settings)


def left_over(workspace: Workspace, table: str) -> list[Path]:
    """Return folders of a table's large writes without a file that any version names."""
    folder = Path(str(workspace.lake.path(table)))
    log = "".join(entry.read_text() for entry in (folder / "_delta_log").glob("*.json"))
    return [written for written in folder.glob("attempt-*") if written.name not in log]


@pytest.mark.long
@pytest.mark.parametrize("victim", ["jvm", "group"])
def test_runs_with_a_jvm_of_their_own_that_are_killed_are_finished_by_the_next(
    spark: SparkSession, undisturbed: Undisturbed, tmp_path: Path, victim: Victim
) -> None:
    """As the command does; of Python alone each commit is tried above."""
    settings = undisturbed.elsewhere(tmp_path)
    for commit in SOME:
        code = run_and_die(undisturbed.file.path, settings.warehouse, Death(commit, victim))
        if victim != "jvm":
            assert code == KILLED
        elif commit != COMMITS[-1]:
            assert code == 1, "without its JVM a run fails, and says so"
            assert (tmp_path / "said.txt").read_text() == f"{java_gone('ConnectionRefusedError')}\n"
    assert_finished(undisturbed, settings)


def assert_finished(undisturbed: Undisturbed, settings: Settings) -> None:
    """Run once more, and compare every table with that of a run without a kill."""
    go((undisturbed.file, settings))
    here, there = (Workspace(undisturbed.file, own.warehouse) for own in (settings, undisturbed.settings))
    assert here.batches.pending() is None
    assert_same_tables(rows_by_table(here), rows_by_table(there))
