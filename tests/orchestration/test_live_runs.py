"""Whole pipelines through Dagster: what a run writes, records, refuses and repeats."""

from datetime import date
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance
from pyspark.sql import SparkSession

from assets.backfill import between_days
from pipelines.definitions import build_definitions
from pipelines.runner import RunOptions, RunReport, run_pipeline
from pipelines.specfiles import read_spec
from resources.owner import this_process
from resources.settings import Settings
from resources.workspace import SpecFile, Workspace
from tests.orchestration.landing import assert_tables_equal_the_oracle, land, table
from timeops.errors import BusyError, LakeError

SPEC = """
name: {name}
sources:
  - name: lines
    kind: files
    path: {landing}/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v INT"
    arrival_time: got
    settle: 0 s
time:
  timestamp_by: at
  unit: {unit}
  out_of_orderness: 10 s
  out_of_order: {policy}
windows:
  - name: per_minute
    kind: tumbling
    size: 1 minute
    group_by: [k]
    aggregates: {{n: count(*), total: sum(v), seen: array_sort(collect_set(id))}}
{more}
partitions: {{start: 2026-01-01}}
"""
SPARSE = """
  - name: sparse
    kind: hopping
    size: 20 s
    hop: 30 s
    {lateness}
    where: v > 2
    aggregates: {{n: count(*)}}
"""


def pipeline(
    tmp_path: Path, name: str, policy: str, *, unit: str = "millisecond", sparse: bool = True
) -> tuple[SpecFile, Settings]:
    lateness = "allowed_lateness: 5 s" if policy == "keep" else ""
    more = SPARSE.format(lateness=lateness) if sparse else ""
    path = tmp_path / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, landing=f"in_{name}", policy=policy, unit=unit, more=more))
    return read_spec(path), Settings(tmp_path / "warehouse", tmp_path, tmp_path / "home")


def go(made: tuple[SpecFile, Settings], instance: DagsterInstance, options: RunOptions | None = None) -> RunReport:
    return run_pipeline(*made, options or RunOptions(), instance=instance)


def test_a_log_in_batches_then_flushed_gives_the_oracles_tables_and_days_recomputed_from_the_log_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = pipeline(tmp_path, "kept", "keep")
    land(tmp_path / "in_kept", 900, seed=1)
    with DagsterInstance.ephemeral() as instance:
        first = go(made, instance, RunOptions(max_events_per_batch=500))
        assert (first.batches, first.counts["records"]) == (2, 900)
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)

        assert go(made, instance).batches == 0, "nothing is new"

        asked = AssetKey(["kept", "windows", "per_minute"])
        assert instance.get_materialized_partitions(asked) == {"2026-01-01", "2026-01-02"}

        live = table(settings.warehouse, file.spec, "windows/per_minute")
        _materialize_days(made, instance)
        rebuilt = table(settings.warehouse, file.spec, "windows/per_minute")
        assert {row["_batch_id"] for row in rebuilt} != {row["_batch_id"] for row in live}
        assert _without_batch(rebuilt) == _without_batch(live)

        assert go(made, instance, RunOptions(end_of_input="flush")).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
        land(tmp_path / "in_kept" / "more", 1, seed=2)
        (tmp_path / "in_kept" / "more" / "f0.jsonl").rename(tmp_path / "in_kept" / "g.jsonl")
        with pytest.raises(LakeError, match="was flushed"):
            go(made, instance)


def _materialize_days(made: tuple[SpecFile, Settings], instance: DagsterInstance) -> None:
    file, settings = made
    job = build_definitions(settings, [file]).resolve_implicit_global_asset_job_def()
    tags = {
        "dagster/asset_partition_range_start": "2026-01-01",
        "dagster/asset_partition_range_end": "2026-01-02",
    }
    days = job.execute_in_process(
        instance=instance, asset_selection=[AssetKey(["kept", "windows", "per_minute"])], tags=tags
    )
    assert days.success


def _without_batch(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    bare = [{name: value for name, value in row.items() if name != "_batch_id"} for row in rows]
    return sorted(bare, key=lambda row: (str(row["window_start"]), str(row["k"])))


def test_adjusted_events_equal_the_oracle_and_a_live_owner_keeps_a_second_run_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = pipeline(tmp_path, "adjusted", "adjust", unit="second")
    land(tmp_path / "in_adjusted", 400, seed=3)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)

        land(tmp_path / "in_adjusted" / "later", 5, seed=4, files=1)
        (tmp_path / "in_adjusted" / "later" / "f0.jsonl").rename(tmp_path / "in_adjusted" / "z.jsonl")
        workspace = Workspace(file, settings.warehouse)
        last = workspace.batches.last_commit()
        assert last is not None
        before = workspace.lake.version("raw_events")
        other = workspace.batches.begin(
            "ingest",
            this_process("another run"),
            workspace.clock.now(),
            after=last.batch_id,
            first_seq=400,
            end_seq=None,
            input={},
            fingerprint=file.spec.fingerprint(),
        )
        with pytest.raises(BusyError, match="Another run is at work"):
            go(made, instance)
        assert workspace.lake.version("raw_events") == before
        workspace.batches.release(other, workspace.clock.now())
        assert go(made, instance).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)


def test_days_are_half_open() -> None:
    assert between_days(date(2026, 1, 1), date(2026, 1, 1)) == (
        "window_start >= TIMESTAMP'2026-01-01 00:00:00Z' AND window_start < TIMESTAMP'2026-01-02 00:00:00Z'"
    )
