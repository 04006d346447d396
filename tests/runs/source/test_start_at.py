"""A pipeline that starts at an instant: what is read, and which windows write results."""

from datetime import timedelta
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import START, assert_tables_equal_the_oracle, land, table
from tests.runs.running import go, pipeline
from tidemark.assets.log.spec_changes import check_spec
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError

AT = START + timedelta(minutes=7, seconds=20)


@pytest.mark.long
def test_records_from_before_the_start_are_not_read_and_windows_that_began_before_it_give_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    early = "early: {tolerance: 30 s, policy: drop}\n  "
    made = pipeline(tmp_path, "begun", "keep", sessions=True, time=f'{early}start_at: "{AT.isoformat()}"')
    file, settings = made
    land(tmp_path / "in_begun", 500, seed=8)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        log = table(settings.warehouse, file.spec, "raw_events")
        arrivals = [row["_arrival_time"] for row in log if row["_arrival_time"] is not None]
        assert AT - timedelta(seconds=30) <= min(arrivals) < AT
        assert len(log) < 500
        ingested = [row for row in table(settings.warehouse, file.spec, "batches") if row["kind"] == "ingest"]
        counts = [dict(row["counts"]) for row in ingested if row["state"] == "committed"]
        assert sum(count["before_start"] + count["records"] for count in counts) == 500
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        for name in ("per_minute", "visits"):
            starts = [row["window_start"] for row in table(settings.warehouse, file.spec, f"windows/{name}")]
            assert starts
            assert min(starts) >= AT

        moved = file.path.read_text().replace(AT.isoformat(), START.isoformat())
        file.path.write_text(moved)
        with pytest.raises(SpecError, match=r"time\.start_at"):
            check_spec(Workspace(read_spec(file.path), settings.warehouse))
