"""Files keep their identity when found by several paths, moved, copied, renamed; and the time in a file's name."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from dagster import AssetKey, DagsterInstance
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.runs.landing import table
from tests.runs.running import Made, go, materializations, written
from tidemark.assets.ingestion.pending_work import look
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunReport
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.batches.plans import this_process
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace

SPEC = """
name: {name}
sources:
  - name: trail
    kind: files
    path: landing/**/*.jsonl
    format: json
    schema: "at STRING, k STRING"
    settle: 0 s
    {arrival}
time: {{timestamp_by: at}}
windows:
  - {{name: by_hour, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {{n: count(*)}}}}
"""
IN_NAME = (
    """arrival_time: "to_timestamp(regexp_extract(_file, '_([0-9]{8}T[0-9]{4})Z_', 1), \\"yyyyMMdd'T'HHmm\\")" """
)


def made(folder: Path, name: str, arrival: str = "") -> Made:
    return written(folder, name, SPEC.format(name=name, arrival=arrival))


def land(file: Path, *hours: int, k: str = "a") -> Path:
    """Return a file with an event for each of these hours of a day in 2018."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"at": f"2018-03-05T{hour:02}:00:00Z", "k": k}) for hour in hours]
    file.write_text("\n".join(lines) + "\n")
    return file


def command(monkeyed_home: Path, *words: str) -> Result:
    return CliRunner().invoke(main, words, catch_exceptions=False, env={"DAGSTER_HOME": str(monkeyed_home)})


@pytest.mark.long
def test_names_give_arrivals_links_lead_to_a_file_once_and_days_begin_with_the_first_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made(tmp_path, "trail", IN_NAME)
    name = "2018/03/05/123_CloudTrail_20180305T1205Z_x.jsonl"
    land(tmp_path / "landing" / name, 9, 10, 11)
    land(tmp_path / "landing" / "nothing_of_a_time.jsonl", 12)
    (tmp_path / "landing" / "2018" / "up").symlink_to("..")  # without its end, forty-one times each file
    with DagsterInstance.ephemeral() as instance:
        assert go((file, settings), instance).counts["records"] == 4
        assert instance.get_dynamic_partitions("trail/windows/by_hour") == ["2018-03-05"]
    log = table(settings.warehouse, file.spec, "raw_events")
    arrived = datetime(2018, 3, 5, 12, 5, tzinfo=UTC)
    assert {(row["_file"], row["_arrival_time"]) for row in log} == {
        (name, arrived),
        ("nothing_of_a_time.jsonl", None),
    }
    assert [row["reason"] for row in table(settings.warehouse, file.spec, "dead_letters")] == ["no_arrival_time"]

    asked = ("--from", "2018-03-01", "--to", "2018-03-05", "--warehouse", str(settings.warehouse))
    done = command(settings.dagster_home, "backfill", str(file.path), *asked)
    assert done.exit_code == 0, done.stderr
    rows = table(settings.warehouse, file.spec, "windows/by_hour")
    assert [row["window_start"].hour for row in sorted(rows, key=lambda row: row["window_start"])] == [9, 10]


@pytest.mark.long
def test_a_project_that_moves_is_not_read_again_and_copies_are_told_once_and_read_if_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    land(tmp_path / "project" / "landing" / "a" / "x.jsonl", 9, 10)
    first, _ = made(tmp_path / "project", "kept")
    land(tmp_path / "project" / "landing" / "y.jsonl", 11)
    settings = Settings(tmp_path / "warehouse", tmp_path, tmp_path / "home")
    with DagsterInstance.ephemeral() as instance:
        assert go((first, settings), instance).batches == 1
        (tmp_path / "project").rename(tmp_path / "moved")
        file = read_spec(tmp_path / "moved" / "kept.yaml")
        assert replace(go((file, settings), instance), batch=None) == RunReport()

        landing = tmp_path / "moved" / "landing"
        (landing / "y.jsonl").rename(landing / "z.jsonl")
        (landing / "a").rename(landing / "b")
        due = look(Workspace(file, settings.warehouse))
        assert (due.is_there, due.sentence) == (True, "landing/**/*.jsonl: 0 new, 2 with the bytes of others")
        done = go((file, settings), instance)
        said = ("b/x.jsonl: the same bytes were read as a/x.jsonl", "z.jsonl: the same bytes were read as y.jsonl")
        assert (done.batches, done.held_back, done.read_before) == (0, (), said)
        assert materializations(instance, AssetKey(["kept", "raw_events"]))[0]["files_read_before"].value == 2
        assert replace(go((file, settings), instance), batch=None) == RunReport(), "it is told once"
        assert not look(Workspace(file, settings.warehouse)).is_there

    (landing / "z.jsonl").rename(landing / "w.jsonl")
    words = ("run", str(file.path), "--warehouse", str(settings.warehouse))
    told = command(settings.dagster_home, *words)
    assert (told.exit_code, "w.jsonl: the same bytes were read as y.jsonl" in told.stderr) == (0, True)
    assert "kept: 1 file(s) not read: their bytes were read under another name. --reread reads them." in told.stderr
    assert len(table(settings.warehouse, file.spec, "raw_events")) == 3
    asked = command(settings.dagster_home, *words, "--reread")
    assert asked.exit_code == 0, asked.stderr
    log = table(settings.warehouse, file.spec, "raw_events")
    assert Counter(row["_file"] for row in log) == {"a/x.jsonl": 2, "y.jsonl": 1, "b/x.jsonl": 2, "w.jsonl": 1}


@pytest.mark.long
def test_a_warehouse_that_remembers_absolute_paths_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made(tmp_path, "old")
    known = [land(tmp_path / "landing" / f"{name}.jsonl", hour) for name, hour in (("x", 9), ("y", 10))]
    with DagsterInstance.ephemeral() as instance:
        assert go((file, settings), instance).batches == 1
        remember_as_before(Workspace(file, settings.warehouse))
        assert replace(go((file, settings), instance), batch=None) == RunReport()
        land(known[0], 9, 12)
        land(tmp_path / "landing" / "z.jsonl", 13)
        assert go((file, settings), instance).counts["records"] == 2
        assert replace(go((file, settings), instance), batch=None) == RunReport()
    states = table(settings.warehouse, file.spec, tables.FILES)
    assert {(row["path"], row["place"]) for row in states} == {
        *((str(path), None) for path in known),
        *((f"{name}.jsonl", str(tmp_path / "landing" / f"{name}.jsonl")) for name in ("x", "z")),
    }


def remember_as_before(workspace: Workspace) -> None:
    """Makes `_state/files` what format 1 had."""
    rows = [
        {"path": row["place"]}
        | {name: value for name, value in row.items() if name not in ("path", "place", "copy_of")}
        for row in workspace.lake.rows(tables.FILES).to_pylist()
    ]
    schema = pa.schema([field for field in tables.FILES_SCHEMA if field.name not in ("place", "copy_of")])
    folder = str(workspace.lake.path(tables.FILES))
    old = pa.Table.from_pylist(rows, schema=schema)
    write_deltalake(folder, old, mode="overwrite", schema_mode="overwrite")
    last, now = workspace.batches.last_commit("ingest"), workspace.clock.now()
    newest = workspace.batches.last_commit()
    assert last is not None
    assert newest is not None
    plan = workspace.batches.begin(
        "ingest",
        this_process("older"),
        now,
        last_batch=newest.batch_id,
        first_seq=workspace.progress.log_end(),
        end_seq=workspace.progress.log_end(),
        input={},
        fingerprint=workspace.spec.fingerprint(),
    )
    workspace.batches.commit(plan, last.counts, {tables.FILES: DeltaTable(folder).version()}, now)
