"""Aligned sources: what one ingestion reads, what waits, and how much less is held for it."""

import json
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import START, assert_tables_equal_the_oracle, table, us
from tests.runs.running import FLUSH, Made, backfill, changed, go, materializations, written
from tidemark.assets.ingestion.pending_work import look
from tidemark.assets.ingestion.waiting_input import largest_times
from tidemark.assets.live import BATCH
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace

SPEC = """
name: {name}
sources:
  - name: fast
    kind: files
    path: in_fast/*.jsonl
    {common}
  - name: slow
    kind: files
    path: in_slow/*.jsonl
    {common}
time: {{timestamp_by: at}}
"""
COMMON = """format: json
    schema: "at STRING, got STRING"
    arrival_time: got
    settle: 0 s
    max_files: 1
    """
ALIGNED = "alignment: {group: g, max_drift: 20 minutes}"


def made(tmp_path: Path, name: str, alignment: str = "") -> Made:
    return written(tmp_path, name, SPEC.format(name=name, common=COMMON + alignment))


def land_both(tmp_path: Path) -> None:
    """Write an hour in each file of one source, half an hour in each of the other; one event is 40 minutes late."""
    write(tmp_path / "in_fast" / "0.jsonl", [(m, m) for m in range(0, 60, 10)])
    write(tmp_path / "in_fast" / "1.jsonl", [(m, m) for m in range(60, 120, 10)] + [(65, 105)])
    for number in range(3):
        minutes = range(30 * number + 2, 30 * number + 30, 10)
        write(tmp_path / "in_slow" / f"{number}.jsonl", [(m, m) for m in minutes])


def write(path: Path, minutes: list[tuple[int, int]]) -> None:
    """Write a file of records, each with the minutes of its event and its arrival."""
    path.parent.mkdir(exist_ok=True)
    lines = [{key: minute(m).isoformat() for key, m in zip(("at", "got"), one, strict=True)} for one in minutes]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def minute(number: int) -> Any:
    return START + timedelta(minutes=number)


def ingestions(file: SpecFile, settings: Settings) -> list[list[str]]:
    """Return the files of each ingestion, as `source/name`."""
    commits = Workspace(file, settings.warehouse).batches.history()
    read = [commit.plan.input["files"] for commit in commits if commit.plan.kind == "ingest"]
    return [[f"{source}/{Path(path).stem}" for source in sorted(one) for path, *_ in one[source]] for one in read]


def held(file: SpecFile, settings: Settings) -> list[int]:
    """Return how many events were held after each processed batch."""
    commits = Workspace(file, settings.warehouse).batches.history()
    processed = [commit.counts for commit in commits if commit.plan.kind == "process"]
    return list(accumulate(counts["accepted"] - counts["released"] for counts in processed))


def dropped(file: SpecFile, settings: Settings) -> list[str]:
    return [row["reason"] for row in table(settings.warehouse, file.spec, "dead_letters")]


def launch(file: SpecFile, settings: Settings, instance: DagsterInstance, most: int | None = None) -> dict[str, Any]:
    """One run as Dagster launches it; the metadata of `raw_events`."""
    job = build_definitions(settings, [file]).resolve_job_def(job_name(file))
    asked = {"config": {"max_events_per_batch": most}} if most else {}
    assert job.execute_in_process(instance=instance, run_config={"resources": {BATCH: asked}}).success
    last = materializations(instance, AssetKey([file.spec.name, "raw_events"]))[0]
    return {name: shown.value for name, shown in last.items()}


@pytest.mark.long
def test_without_alignment_a_fast_source_is_held_until_a_slow_one_comes(spark: SparkSession, tmp_path: Path) -> None:
    land_both(tmp_path)
    alone, settings = made(tmp_path, "alone")
    go((alone, settings), options=FLUSH)
    assert ingestions(alone, settings) == [["fast/0", "slow/0"], ["fast/1", "slow/1"], ["slow/2"]]
    assert held(alone, settings) == [4, 8, 0], "it is flushed once, behind the last file"
    assert dropped(alone, settings) == []
    assert_tables_equal_the_oracle(settings.warehouse, alone.spec, flush=True)


@pytest.mark.long
def test_a_fast_source_waits_for_a_slow_one_so_that_less_is_held_at_once(spark: SparkSession, tmp_path: Path) -> None:
    land_both(tmp_path)
    file, settings = made(tmp_path, "together", ALIGNED)
    workspace = Workspace(file, settings.warehouse)
    with DagsterInstance.ephemeral() as instance:
        launch(file, settings, instance, most=5)
        assert look(workspace).sentence.endswith("4 records of the log are not processed")
        shown = launch(file, settings, instance)
        assert shown["files_read"] == 0, "what was read is processed before sources are judged by it"
        assert "3 new, 1 of sources that wait for others" in look(workspace).sentence
        shown = launch(file, settings, instance)
        assert (shown["files_read"], shown["files_ahead"]) == (1, 1)
        shown = launch(file, settings, instance)
        assert (shown["files_read"], shown["files_ahead"]) == (2, 0)
        assert not look(workspace).is_there
        assert ingestions(file, settings) == [["fast/0", "slow/0"], ["slow/1"], ["fast/1", "slow/2"]]
        assert max(held(file, settings)) == 4, "half as many as without alignment"
        assert dropped(file, settings) == ["out_of_order"], "the watermark is nearer to the fast source"
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        assert largest_times(workspace) == {("fast", None): us(minute(110)), ("slow", None): us(minute(82))}

        wider = read_spec(file.path, ["sources[0].alignment.max_drift=1 h"])
        write(tmp_path / "in_fast" / "2.jsonl", [(120, 120)])
        go((wider, settings), instance, FLUSH)
    assert ingestions(file, settings)[3:] == [["fast/2"]]
    assert_tables_equal_the_oracle(settings.warehouse, wider.spec, flush=True)


@pytest.mark.long
def test_a_source_that_waits_is_not_silent_in_live_runs_and_backfills(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    write(tmp_path / "in_fast" / "0.jsonl", [(m, m) for m in range(0, 60, 10)])
    write(tmp_path / "in_fast" / "1.jsonl", [(m, 90) for m in range(60, 120, 10)])
    write(tmp_path / "in_slow" / "0.jsonl", [(m, m) for m in range(2, 32, 10)])
    write(tmp_path / "in_slow" / "1.jsonl", [(32, 51), (52, 75), (72, 89)])
    patience = "by: at, idle: {advance: exclude_split, timeout: 30 minutes}}\n"
    windows = "windows: [{name: w, kind: tumbling, size: 10 minutes, aggregates: {n: count(*)}}]\n"
    file, settings = changed(made(tmp_path, "patient", ALIGNED), "by: at}\n", patience + windows)
    go((file, settings))
    assert ingestions(file, settings) == [["fast/0", "slow/0"], ["slow/1"], ["fast/1"]]
    items = sorted(table(settings.warehouse, file.spec, "log_control"), key=lambda row: row["_control_seq"])
    waits = [row for row in items if row["kind"] == "wait"]
    assert [(row["_after_seq"], row["argument"], row["clock"]) for row in waits] == [
        (8, '["fast"]', minute(50)),
        (11, "[]", minute(89)),
    ]
    assert dropped(file, settings) == [], "39 minutes of its silence were a wait"
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    live = results(file, settings)
    assert backfill(file, settings, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    assert results(file, settings) == live


def results(file: SpecFile, settings: Settings) -> list[tuple[Any, ...]]:
    rows = table(settings.warehouse, file.spec, "windows/w")
    return sorted((row["window_start"], row["n"], row["_watermark"]) for row in rows)
