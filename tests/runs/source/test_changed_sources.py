"""Sources and rules of time that change on a running pipeline: its tables equal the oracle, told of the change."""

from datetime import timedelta
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, START, assert_tables_equal_the_oracle, land, table
from tests.runs.running import FLUSH, Made, go, written
from tidemark.pipelines.running.runner import RunOptions
from tidemark.timeops.errors import SpecError

OTHER = LINES.replace("sources:\n", "").replace("name: lines", "name: other").replace("in/", "other/")
OTHER = OTHER.replace("v INT", "v INT, extra STRING")
TIME = "time: {{timestamp_by: at, unit: millisecond, out_of_orderness: {tolerance}, out_of_order: keep{more}}}\n"
WINDOWS = """\
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, allowed_lateness: 3 s, group_by: [k], aggregates: {n: count(*)}}
"""
DUPLICATES = ", deduplicate_by: [id], within: {}"


def made(base: Path, sources: str, *, tolerance: str = "10 s", more: str = "") -> Made:
    return written(base, "shop", f"name: shop\n{sources}{TIME.format(tolerance=tolerance, more=more)}{WINDOWS}")


@pytest.mark.long
def test_a_source_that_is_added_joins_from_there_on(spark: SparkSession, tmp_path: Path) -> None:
    """Other changes of the rules of time are tried without Spark (pure/test_changed_rules.py)."""
    before, after = DUPLICATES.format("10 s"), ", emit: {every: 5 s}" + DUPLICATES.format("1 hour")
    land(tmp_path / "in", 90, seed=1)
    with DagsterInstance.ephemeral() as instance:
        go(made(tmp_path, LINES, more=before), instance, RunOptions(max_events_per_batch=50))
        changed = made(tmp_path, LINES + OTHER, tolerance="3 s", more=after)
        land(tmp_path / "in", 60, seed=2, start=START + timedelta(minutes=2), prefix="g")
        land(tmp_path / "other", 60, seed=3, start=START + timedelta(minutes=1))
        go(changed, instance, RunOptions(max_events_per_batch=50))
        assert_tables_equal_the_oracle(changed[1].warehouse, changed[0].spec)
        land(tmp_path / "other", 30, seed=4, start=START + timedelta(minutes=4), prefix="g")
        go(changed, instance, FLUSH)
        assert_tables_equal_the_oracle(changed[1].warehouse, changed[0].spec, flush=True)
    log = table(changed[1].warehouse, changed[0].spec, "raw_events")
    assert {row["_source"] for row in log} == {"lines", "other"}
    assert len(log) == 240


@pytest.mark.long
def test_what_a_source_leaves_behind_is_told(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in", 20, seed=1)
    (tmp_path / "other").mkdir()
    with DagsterInstance.ephemeral() as instance:
        go(made(tmp_path, LINES + OTHER), instance)
        with pytest.raises(SpecError, match="its splits hold the watermark: keep it"):
            go(made(tmp_path, LINES), instance)
        with pytest.raises(SpecError, match="it would read again what `other` has read: write `was: other`"):
            go(made(tmp_path, LINES + OTHER.replace("name: other", "name: another")), instance)
