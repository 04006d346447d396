"""Pipelines that remove duplicates: equal to the oracle in one batch and in several, and what they keep for it."""

from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import assert_tables_equal_the_oracle, land, table
from tests.runs.running import changed, go, materialize_days, pipeline
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.delta.lake import Lake
from tidemark.resources.recount import recount
from tidemark.timeops.errors import SpecError

DUPLICATES = "deduplicate_by: [k, v]\n  within: 20 s"


def letters_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["reason"] == "duplicate"]


@pytest.mark.long
def test_duplicates_are_the_oracles_in_several_batches_and_days_recomputed_are_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recount, "_PIECE", 100)
    late = "late: {tolerance: 30 s, policy: drop}"
    file, settings = made = pipeline(tmp_path, "once", "keep", sessions=True, time=f"{late}\n  {DUPLICATES}")
    land(tmp_path / "in_once", 700, seed=31)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=250)).batches == 3
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        letters = letters_of(table(settings.warehouse, file.spec, "dead_letters"))
        assert len(letters) > 50
        for letter in letters:
            assert "is a duplicate of the one with _arrival_seq" in letter["detail"]
        live = [row["seen"] for row in table(settings.warehouse, file.spec, "windows/per_minute")]
        materialize_days(made, instance)
        rebuilt = [row["seen"] for row in table(settings.warehouse, file.spec, "windows/per_minute")]
        assert sorted(live) == sorted(rebuilt)


@pytest.mark.long
def test_a_duplicate_ends_a_silence_and_moves_no_watermark_of_its_split(spark: SparkSession, tmp_path: Path) -> None:
    time = f"idle: {{advance: exclude_split, timeout: 8 s}}\n  {DUPLICATES}"
    file, settings = made = pipeline(tmp_path, "splits", "adjust", time=time, source="split: k")
    land(tmp_path / "in_splits", 500, seed=32)
    assert go(made, options=RunOptions(max_events_per_batch=300)).batches == 2
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    assert letters_of(table(settings.warehouse, file.spec, "dead_letters"))


@pytest.mark.long
def test_what_is_kept_of_a_batch_far_from_the_rest_stands_in_files_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = pipeline(tmp_path, "far", "keep", sparse=False, time=DUPLICATES)
    land(tmp_path / "in_far", 30, seed=33)
    far = '{"id": "far", "at": "1999-01-01T00:00:00Z", "got": "2026-01-01T23:50:00Z", "k": "a", "v": 1}'
    (tmp_path / "in_far" / "g.jsonl").write_text(f"{far}\n{far}\n")
    go(made)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    lake = Lake(settings.warehouse / "far", lambda: spark)
    near = lake.read("_state/first_times", filters=[("event_us", ">=", 1_700_000_000_000_000)])
    assert len(lake.read("_state/first_times").inputFiles()) == 2
    assert len(near.inputFiles()) == 1


@pytest.mark.long
def test_another_key_of_duplicates_is_refused_once_there_are_tables_and_another_reach_is_taken(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "fixed", "keep", sparse=False, time=DUPLICATES)
    land(tmp_path / "in_fixed", 5, seed=34)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, "within: 20 s", "within: 21 s")
        (tmp_path / "in_fixed" / "g.jsonl").write_text('{"id": "more", "got": "2026-01-02T00:00:00Z"}\n')
        assert go(made, instance).batches == 1
        made = changed(made, "[k, v]", "[k]")
        (tmp_path / "in_fixed" / "h.jsonl").write_text('{"id": "last", "got": "2026-01-03T00:00:00Z"}\n')
        with pytest.raises(SpecError, match=r"time\.deduplicate_by: was .*, is "):
            go(made, instance)


def test_a_key_without_a_plain_text_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "odd", "keep", sparse=False, time="deduplicate_by: [array(k)]\n  within: 1 s")
    land(tmp_path / "in_odd", 5, seed=35)
    with pytest.raises(SpecError, match="which has no plain text"):
        go(made)
    assert not (made[1].warehouse / "odd" / "raw_events").exists()
