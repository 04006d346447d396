"""Windows with a change feed: whatever happens to a pipeline, the feed up to a commit adds up to the table of it."""

import json
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.faults.killed import run_killed
from tests.feeds import SIGN, between, changes, net, net_by_spark, rows_at
from tests.runs.landing import LINES, START, land
from tests.runs.running import Made, asked, backfill, go, workspace_of, written
from tidemark.pipelines.running.runner import RunOptions

REVISED, VISITS, MINUTES = "windows/revised", "windows/visits", "windows/minutes"
SPEC = (
    f"name: fed\n{LINES}"
    """\
time: {timestamp_by: at, unit: millisecond, out_of_orderness: 5 s, out_of_order: keep}
windows:
  - {name: revised, kind: tumbling, size: 1 minute, allowed_lateness: 2 minutes, emit: on_time, revise_every: 20 s,
     group_by: [k], aggregates: {n: count(*), total: sum(v)}, change_feed: true}
  - {name: visits, kind: session, gap: 5 s, allowed_lateness: 1 minute, emit: on_time, revise_every: 5 s,
     history: true, group_by: [k], change_feed: true,
     aggregates: {n: count(*), ids: "map_from_arrays(array_sort(collect_set(id)), array_sort(collect_set(id)))"}}
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}, change_feed: true}
  - {name: fives, kind: tumbling, size: 5 minutes, from: minutes, aggregates: {n: sum(n)}}
partitions: {start: 2026-01-01}
"""
)


def fed(base: Path, text: str = SPEC) -> Made:
    return written(base, "fed", text)


def versions(made: Made, table: str) -> list[int]:
    """Return the versions of a table that commits name, the first of all in front."""
    named = [commit.table_versions[table] for commit in workspace_of(made).batches.history()]
    return sorted({0, *(version for version in named if version is not None)})


def assert_feeds_give_the_tables(spark: SparkSession, made: Made, *tables: str) -> None:
    """Between any two commits, and from the first on; Spark is slow and reads the last batch and all of them."""
    for table in tables or (REVISED, VISITS, MINUTES):
        folder, named = workspace_of(made).lake.path(table), versions(made, table)
        for before, after in pairwise(named):
            assert net(folder, before, after) == between(folder, before, after), (table, before, after)
        for before, after in {named[-2:][0]: named[-1], 0: named[-1]}.items():
            assert net_by_spark(spark, folder, before, after) == between(folder, before, after), (table, after)
        assert net(folder, 0, named[-1]) == rows_at(folder, named[-1]), table


def kinds_of_changes(made: Made, table: str, after: int) -> Counter[str]:
    folder = workspace_of(made).lake.path(table)
    return Counter(row["_change_type"] for row in changes(folder, after, versions(made, table)[-1]).to_pylist())


@pytest.mark.long
def test_revisions_retracted_sessions_deaths_upkeep_and_backfills_are_told_row_by_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = fed(tmp_path)
    land(tmp_path / "in", 160, seed=5)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=80)).batches == 2
        lake = workspace_of(made).lake
        for table in (REVISED, VISITS):
            told = kinds_of_changes(made, table, 0)
            assert told["insert"] - told["delete"] == lake.row_count(table)
            assert told["delete"], "some rows were revised or retracted"
        # A window writes at most one row in a batch: what is revised within it is in the feed once.
        for before, after in pairwise(versions(made, REVISED)):
            told_rows = changes(lake.path(REVISED), before, after).to_pylist()
            keys = Counter((row["window_start"], row["k"], SIGN[row["_change_type"]]) for row in told_rows)
            assert set(keys.values()) <= {1}
        land(tmp_path / "in", 60, seed=2, prefix="more", start=START + timedelta(minutes=6))
        for commit in (REVISED, VISITS):
            run_killed(spark, made, commit)
            assert asked(made, "maintain", "--retain", "1h").exit_code == 0
        go(made, instance)
    assert_feeds_give_the_tables(spark, made)
    assert [row for row in workspace_of(made).lake.open(REVISED).history() if row["operation"] == "RESTORE"]

    days = ("--from", "2026-01-01", "--to", "2026-01-02")
    last = {table: versions(made, table)[-1] for table in (REVISED, VISITS, MINUTES)}
    done = backfill(*made, *days, "--window", "minutes", "--window", "revised")
    assert done.exit_code == 0, done.output
    assert {table: versions(made, table)[-1] for table in last} == last, "they give the same rows again"
    made = fed(tmp_path, SPEC.replace("total: sum(v)}", 'total: "sum(if(v = 9, 0, v))"}'))
    done = backfill(*made, *days, "--window", "revised")
    assert done.exit_code == 0, done.output
    told = kinds_of_changes(made, REVISED, last[REVISED])
    assert 0 < told["insert"] == told["delete"] < workspace_of(made).lake.row_count(REVISED)
    assert_feeds_give_the_tables(spark, made, REVISED)


@pytest.mark.long
def test_a_feed_may_be_switched_on_and_off_on_a_running_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    off = SPEC.replace(", change_feed: true", "")
    made = fed(tmp_path, off)
    land(tmp_path / "in", 200, seed=7)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=100))
        first = versions(made, REVISED)[-1]
        # A batch with the feed dies, and takes it back with what it wrote: the next one has it again.
        made = fed(tmp_path)
        land(tmp_path / "in", 60, seed=8, prefix="more", start=START + timedelta(minutes=6))
        run_killed(spark, made, VISITS)
        go(made, instance)
        folder, named = workspace_of(made).lake.path(REVISED), versions(made, REVISED)
        on = next(
            row["version"]
            for row in workspace_of(made).lake.open(REVISED).history()[::-1]
            if "enableChangeDataFeed" in json.dumps(row)
        )
        assert first < on < named[-1]
        assert net(folder, on, named[-1]) == between(folder, on, named[-1]) != {}
        assert net_by_spark(spark, folder, on, named[-1]) == between(folder, on, named[-1])
        made = fed(tmp_path, off)
        land(tmp_path / "in", 60, seed=9, prefix="last", start=START + timedelta(minutes=9))
        go(made, instance)
    assert workspace_of(made).lake.open(REVISED).metadata().configuration["delta.enableChangeDataFeed"] == "false"
