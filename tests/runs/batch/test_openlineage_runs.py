"""Whole runs that send lineage: by Dagster's jobs, to a real web server."""

from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.receiver import receiving
from tests.runs.landing import land
from tests.runs.running import go, materialize_days, pipeline, rebuild, rows_of
from tidemark.resources import openlineage


@pytest.mark.long  # what the events say is tested without Spark, tests/pure/batch/test_openlineage.py
def test_a_run_days_and_a_rebuild_are_runs_below_those_of_dagster(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(tmp_path, "told", "drop")
    land(tmp_path / "in_told", 300, seed=1)
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    openlineage._sender.cache_clear()
    with receiving() as receiver, DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", receiver.url)
        go(made, instance)
        materialize_days(made, instance)
        assert rebuild(made).exit_code == 0
        events = receiver.wait_for(8, seconds=20)
        openlineage._sender.cache_clear()
        known = {run.run_id: run.job_name for run in instance.get_runs()}
    assert [(one["job"]["name"], one["eventType"]) for one in events] == [
        (f"told.{kind}", state)
        for kind in ("ingest", "process", "backfill", "rebuild")
        for state in ("START", "COMPLETE")
    ]
    for one in events[:6]:  # the command that rebuilds has an instance of its own
        parent = one["run"]["facets"]["parent"]
        assert known[parent["run"]["runId"]] == parent["job"]["name"]
    refused = events[3]["run"]["facets"]["tidemark_refusals"]
    assert refused["reasons"]["out_of_order"] == sum(
        row["reason"] == "out_of_order" for row in rows_of(tmp_path, "told", "dead_letters")
    )
    ordered = next(one for one in events[3]["outputs"] if one["name"].endswith("ordered_events"))
    assert ordered["outputFacets"]["outputStatistics"]["rowCount"] == len(rows_of(tmp_path, "told", "ordered_events"))
