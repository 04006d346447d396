"""Tables that others compact, clean and change while a pipeline goes on, by its commands."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from dagster import AssetKey, DagsterInstance
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.landing import START, assert_tables_equal_the_oracle, land
from tests.runs.running import pipeline
from tidemark.pipelines.cli import main
from tidemark.pipelines.code_location import upkeep
from tidemark.resources.delta import upkeep as table_upkeep
from tidemark.resources.delta.lake import Lake
from tidemark.resources.workspace import Workspace

ORDERED = "ordered_events"
NAME = "shared"


@dataclass(frozen=True)
class Shared:
    """A pipeline that others lay hands on."""

    folder: Path
    workspace: Workspace

    def delta(self, table: str) -> DeltaTable:
        return DeltaTable(str(self.workspace.lake.path(table)))

    def command(self, name: str, *options: str) -> Result:
        words = [name, str(self.workspace.file.path), "--warehouse", str(self.workspace.warehouse), *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    def land_and_run(self) -> Result:
        landing = self.folder / f"in_{NAME}"
        number = len(list(landing.glob("*")))
        start = START + number * timedelta(minutes=10)
        land(landing, 60, seed=number, files=1, start=start, prefix=f"f{number}_")
        return self.command("run")


@pytest.mark.long
def test_a_pipeline_goes_on_whatever_others_do_to_its_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE and VACUUM, a late append of a killed attempt, upkeep, a DELETE that was asked for, in this order."""
    file, settings = pipeline(tmp_path, NAME, "drop", sparse=False)
    monkeypatch.setenv("DAGSTER_HOME", str(settings.dagster_home))
    monkeypatch.setattr(upkeep, "LEAST", timedelta(0))
    monkeypatch.setattr(table_upkeep, "_FEW_FILES", 1)
    shared = Shared(tmp_path, Workspace(file, settings.warehouse))
    for _ in range(2):
        done = shared.land_and_run()
        assert done.exit_code == 0, done.output
    for table in shared.workspace.tables:
        shared.delta(table).optimize.compact()
        shared.delta(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    compacted = shared.delta("raw_events").file_uris()
    assert len(compacted) == 1

    assert_a_late_append_is_not_committed(shared)
    assert_upkeep_leaves_what_readers_need(shared, spark)
    done = shared.command("run")
    assert done.exit_code == 0, done.output
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    assert set(compacted) < set(shared.delta("raw_events").file_uris()), "OPTIMIZE is not undone"
    assert_a_wanted_delete_is_kept(shared, spark)


def assert_a_late_append_is_not_committed(shared: Shared) -> None:
    def late(lake: Lake, table: str, _version: int) -> None:
        if table == "raw_events":
            patch.undo()
            lost = CommitProperties(custom_metadata={"userMetadata": "attempt 1"})
            rows = shared.delta(ORDERED).to_pyarrow_table()
            write_deltalake(str(lake.path(ORDERED)), rows, mode="append", commit_properties=lost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "_committed", late)
        stopped = shared.land_and_run()
    assert stopped.exit_code == 1
    assert "holds what attempt 1 wrote" in stopped.output


def assert_upkeep_leaves_what_readers_need(shared: Shared, spark: SparkSession) -> None:
    """While a batch is not committed."""
    with DagsterInstance.get() as instance:
        window = AssetKey([NAME, "windows", "per_minute"])
        days, runs = instance.get_materialized_partitions(window), instance.get_runs_count()
        done = shared.command("maintain", "--retain", "0 s")
        assert done.exit_code == 0, done.output
        assert "bytes freed" in done.output
        assert instance.get_materialized_partitions(window) == days != set()
        left = instance.get_runs_count()
        assert 0 < left < runs
        assert f"{runs - left} run(s) of Dagster deleted" in done.output
    assert tm.read(spark, shared.workspace.warehouse, NAME, "raw_events").count() == 120


def assert_a_wanted_delete_is_kept(shared: Shared, spark: SparkSession) -> None:
    assert shared.command("changes").output == "shared: no changes of rows by others\n"
    rows = shared.workspace.lake.row_count(ORDERED)
    deleted = shared.delta(ORDERED).delete("v = 3")["num_deleted_rows"]
    stopped = shared.land_and_run()
    assert stopped.exit_code == 1
    assert "ordered_events: version" in stopped.output
    assert "tidemark changes SPEC --accept TEXT" in stopped.output
    looked = shared.command("changes")
    assert looked.exit_code == 1
    assert "DELETE at 20" in looked.output
    assert f"{deleted} rows deleted" in looked.output
    kept = shared.command("changes", "--accept", "erasure request 17")
    assert kept.exit_code == 0, kept.output
    last = shared.workspace.batches.last_commit()
    assert last is not None
    assert (last.plan.kind, last.reason) == ("change", "erasure request 17")
    assert {one["table"]: one["rows_deleted"] for one in last.plan.input["changes"]}[ORDERED] == deleted
    assert tm.read(spark, shared.workspace.warehouse, NAME, ORDERED).count() == rows - deleted > 0
    assert shared.command("changes").output == "shared: no changes of rows by others\n"
