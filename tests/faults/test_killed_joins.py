"""Runs of a pipeline with joins that are killed between two commits: answers and state are those of a calm one."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import run_killed
from tests.runs.join.test_joins import SPEC, assert_joins_equal_the_oracle
from tests.runs.landing import START, land
from tests.runs.running import assert_same_tables, go, rows_by_table, written
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace

NAMES = ("priced", "nearest", "near", "following")
COMMITS = (
    "plan to process",
    "watermarks",
    *[f"{folder}/{name}" for name in NAMES for folder in ("joins", "_state/joins")],
    "dead_letters",
    "commit of process",
)
"""Where the second run dies: its batch revises answers of the first one, and rewrites what joins need."""


@pytest.mark.long
def test_a_batch_with_joins_that_is_killed_again_and_again_ends_with_the_rows_of_an_undisturbed_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, undisturbed = written(tmp_path, "joining", SPEC)
    (tmp_path / "killed").mkdir()
    killed = Settings(tmp_path / "killed" / "warehouse", undisturbed.specs, tmp_path / "killed" / "home")
    for seed, start in ((3, START), (5, START.replace(day=2, hour=0, minute=0))):
        land(tmp_path / "asks", 150, seed=seed, prefix=f"f{seed}", start=start)
        land(tmp_path / "bids", 150, seed=seed + 1, prefix=f"f{seed}", start=start)
        go((file, undisturbed))
        if start == START:
            go((file, killed))
    for commit in COMMITS:
        run_killed(spark, (file, killed), commit)
    go((file, killed))
    here, there = (Workspace(file, settings.warehouse) for settings in (killed, undisturbed))
    assert here.batches.pending() is None
    assert_same_tables(rows_by_table(here), rows_by_table(there))
    assert_joins_equal_the_oracle((file, killed))
