"""Batches that are too large to be kept: each stage judges the log anew, and reads no more of it than it needs."""

from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.orchestration.landing import assert_tables_equal_the_oracle, land
from tests.orchestration.running import go, pipeline
from tidemark.assets.batch import batch as batch_at_work
from tidemark.pipelines.runner import RunOptions


@pytest.mark.parametrize("policy", ["drop", "adjust", pytest.param("keep", marks=pytest.mark.long)])
def test_a_log_in_large_batches_gives_the_oracles_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    assert spark
    for bound in ("FEW_RECORDS", "MODERATE_RECORDS", "MATERIALIZED_RECORDS"):
        monkeypatch.setattr(batch_at_work, bound, 0)
    file, settings = made = pipeline(tmp_path, f"large_{policy}", policy, sessions=True)
    land(tmp_path / f"in_large_{policy}", 600, seed=7)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=220)).batches == 3
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        assert go(made, instance, RunOptions(end_of_input="flush")).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
