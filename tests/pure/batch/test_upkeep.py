"""Upkeep of tables, without Spark: what is joined, what is deleted, what stays, and both at once with a run."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, Definitions, asset
from deltalake import DeltaTable

from tests.runs.landing import LINES
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.spec_files import read_spec
from tidemark.pipelines.upkeep import BY_HAND, forget_runs
from tidemark.resources.delta import files as upkeep
from tidemark.resources.delta.files import compact, size_of, vacuum
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.undoing import outputs, same_rows, take_back
from tidemark.resources.settings import Settings
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, WATERMARKS, WATERMARKS_SCHEMA
from tidemark.resources.workspace import Workspace

T = "events"
SCHEMA = pa.schema([("seq", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
FILES = 14
DAY = timedelta(days=1)


def rows(number: int, of: int = 4) -> pa.Table:
    """Numbers in the order of writing; times in none."""
    seqs = [number * of + i for i in range(of)]
    ats = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=seq * 37 % 100) for seq in seqs]
    return pa.table({"seq": seqs, "at": ats}, schema=SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "shop")
    made.create(T, SCHEMA)
    for attempt in range(1, FILES + 1):
        made.append_rows(T, rows(attempt), attempt=attempt, expect=attempt - 1)
    return made


def of_files(lake: Lake, column: str) -> list[list[Any]]:
    """Return the values of each file as they lie in it."""
    paths = DeltaTable(str(lake.path(T))).file_uris()
    return [pq.read_table(path.removeprefix("file://"))[column].to_pylist() for path in paths]


def test_small_files_that_were_written_one_after_the_other_are_joined(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "FILE_BYTES", 3_000)
    assert compact(lake, T)
    files = sorted(sorted(file) for file in of_files(lake, "seq"))
    assert 1 < len(files) < FILES / 2
    assert [seq for file in files for seq in file] == list(range(4, 4 * FILES + 4)), "no file reaches into another"
    assert outputs(lake, {T: FILES}, FILES + 1) == {T: FILES + 1}


def test_a_table_that_is_read_by_another_column_is_sorted_by_it(lake: Lake) -> None:
    before = lake.rows(T).sort_by("seq")
    assert compact(lake, T, "at")
    [values] = of_files(lake, "at")
    assert values == sorted(values)
    assert lake.rows(T).sort_by("seq") == before


def test_a_few_files_are_left_as_they_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compact(lake, T)
    assert not compact(lake, T)
    for attempt in range(FILES + 1, FILES + 8):
        lake.append_rows(T, rows(attempt), attempt=attempt, expect=lake.version(T))
    assert not compact(lake, T), "eight are few"
    lake.append_rows(T, rows(50), attempt=50, expect=lake.version(T))
    assert compact(lake, T)


def grow_old(lake: Lake) -> None:
    for path in Path(str(lake.path(T))).glob("*.parquet"):
        os.utime(path, (0, 0))


def test_what_the_last_commit_and_the_next_batch_read_stays_however_old(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(lake, T)
    attempt = FILES + 1
    lake.append_rows(T, rows(99), attempt=attempt, expect=FILES + 1)  # of a batch that is not committed
    lost = Path(str(lake.path(T)), "part-of-a-write-that-was-killed.parquet")
    lost.write_bytes(b"x" * 10)
    grow_old(lake)
    kept = same_rows(lake, T, FILES)
    assert vacuum(lake, T, timedelta(0), kept) == 0, "files in no version may be of a write at work"
    assert vacuum(lake, T, 2 * DAY, kept) == 10
    assert not lost.exists()
    assert lake.row_count(T) == 4 * FILES + 4
    assert lake.rows(T, FILES).num_rows == 4 * FILES, "readers of the last commit"
    take_back(lake, T, FILES, attempt + 1)
    time.sleep(0.01)
    freed = size_of(lake, T).stored_bytes
    assert 0 < vacuum(lake, T, timedelta(0), [lake.version(T)]) < freed
    assert lake.row_count(T) == 4 * FILES
    assert lake.opened.seen(T).has_files
    assert not lake.opened.seen(T, 3).has_files


class Busy(Lake):
    """A lake that is looked after whenever a run is about to write."""

    def _committing(self, table: str) -> None:
        compact(Lake(self.root), table)
        vacuum(Lake(self.root), table, timedelta(0), [FILES])


def test_upkeep_and_a_run_do_not_get_into_each_others_way(lake: Lake) -> None:
    busy = Busy(lake.root)
    expect = lake.version(T)
    for number in range(3):
        attempt = FILES + 1 + number
        expect = take_back(busy, T, FILES, attempt)
        assert busy.append_rows(T, rows(number + 80), attempt=attempt, expect=expect).rows == 4
    assert outputs(busy, {T: FILES}, attempt)[T] == lake.version(T)
    assert sorted(lake.rows(T)["seq"].to_pylist()) == list(range(4, 4 * FILES + 4)) + list(range(328, 332))


def test_the_job_in_dagster_looks_after_a_pipeline_beside_its_runs(tmp_path: Path) -> None:
    """It needs no Spark, and no pool in which it would wait."""
    path = tmp_path / "quiet.yaml"
    path.write_text(f"name: quiet\n{LINES}time: {{timestamp_by: at}}\n")
    file, settings = read_spec(path), Settings(tmp_path / "warehouse", tmp_path, tmp_path / "home")
    workspace = Workspace(file, settings.warehouse)
    workspace.lake.create(BATCHES, BATCHES_SCHEMA)
    workspace.lake.create(WATERMARKS, WATERMARKS_SCHEMA)
    for attempt in range(1, FILES + 1):
        row = pa.Table.from_pylist([{"_batch_id": attempt}], schema=WATERMARKS_SCHEMA)
        workspace.lake.append_rows(WATERMARKS, row, attempt=attempt, expect=attempt - 1)
    job = build_definitions(settings, [file]).resolve_job_def("quiet_maintain")
    assert all(op.definition.pools == set() for op in job.nodes)
    with DagsterInstance.ephemeral() as instance:
        config = {"ops": {"quiet__maintain": {"config": {"retain": "2 days"}}}}
        done = job.execute_in_process(instance=instance, run_config=config)
        assert done.success
        wrong = {"ops": {"quiet__maintain": {"config": {"retain": "1 s"}}}}
        failed = job.execute_in_process(instance=instance, run_config=wrong, raise_on_error=False)
        assert not failed.success
    assert len(DeltaTable(str(workspace.lake.path(WATERMARKS))).file_uris()) == 1


def test_runs_by_hand_of_other_assets_of_the_project_stay(tmp_path: Path) -> None:
    path = tmp_path / "quiet.yaml"
    path.write_text(f"name: quiet\n{LINES}time: {{timestamp_by: at}}\n")
    keys = [AssetKey(["stock"]), AssetKey(["quiet", "old_name"])]

    def nothing() -> None:
        """Make an asset that is there to be materialized."""

    job = Definitions(assets=[asset(key=key)(nothing) for key in keys]).resolve_implicit_global_asset_job_def()
    later = datetime.now(UTC) + DAY
    with DagsterInstance.ephemeral() as instance:
        stay = {
            job.execute_in_process(instance=instance, asset_selection=one).run_id for one in (None, keys[:1], keys)
        }
        goes = job.execute_in_process(instance=instance, asset_selection=keys[1:]).run_id
        assert forget_runs(read_spec(path).spec, instance, (BY_HAND,), later, tmp_path) == 1
        left = {run.run_id for run in instance.get_runs()}
    assert left == stay
    assert goes not in stay
