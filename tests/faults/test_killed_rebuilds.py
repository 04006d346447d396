"""Rebuilds and replays that are killed between two commits, with live runs between: in the end nothing shows."""

import json
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.faults.killed import KILLED, OUT_OF_ORDER, Death, Gateway, rebuild_and_die, replay_and_die
from tests.runs.landing import START, assert_tables_equal_the_oracle, land, table
from tests.runs.running import Made, asked, assert_as_new, assert_same, changed, go, pipeline, rebuild
from tidemark.pipelines.running.runner import RunOptions

ORDER = (
    "beside log_control",
    "beside plan to process",
    "beside ordered_events",
    "beside held_events",
    "beside watermarks",
    "beside windows/per_minute",
    "beside _state/open_events",
    "beside dead_letters",
    "beside commit of process",
    "plan to rebuild",
    "commit of rebuild",
    "dead_letters",
    "watermarks",
    "ordered_events",
    "held_events",
    "_state/open_events",
    "windows/per_minute",
    "log_control",
    "log_control",
    "commit of rebuild",
)


@pytest.mark.long
def test_a_rebuild_that_is_killed_again_and_again_ends_with_the_tables_of_a_new_pipeline(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "faults", "drop", sparse=False, source="order: position")
    numbers = count()
    with DagsterInstance.ephemeral() as instance:
        run_more(made, instance, next(numbers))
        made = changed(made, "out_of_orderness: 10 s", "out_of_orderness: 2 s")  # live runs take it from here on
        for commit in ORDER:
            died = rebuild_and_die(made[0].path, made[1].warehouse, Death(commit, "python"), Gateway.of(spark))
            assert died == KILLED, (commit, (tmp_path / "said.txt").read_text())
            run_more(made, instance, next(numbers))
        done = rebuild(made)
        assert done.exit_code == 0, done.output
        fresh = assert_as_new(made, instance)
        for one in (made, fresh):
            run_more(one, instance, 999)
    assert_same(made, fresh)
    assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec)


@pytest.mark.long
def test_a_replay_that_is_killed_again_and_again_lets_all_letters_in_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "faults", "drop", sparse=False, source="order: position")
    made = changed(made, "out_of_orderness: 10 s", "out_of_orderness: 1 s")
    warehouse, spec, numbers = made[1].warehouse, made[0].spec, count()
    deaths = ("beside commit of process", "windows/per_minute", "dead_letters", "ordered_events", "log_control")
    with DagsterInstance.ephemeral() as instance:
        run_more(made, instance, next(numbers))
        for commit in (*deaths, "commit of rebuild"):
            died = replay_and_die(made[0].path, warehouse, Death(commit, "python"), Gateway.of(spark))
            assert died == KILLED, (commit, (tmp_path / "said.txt").read_text())
            run_more(made, instance, next(numbers))
        done = asked(made, "replay", "--where", OUT_OF_ORDER, "--reason", "they were late", "--json")
        found = json.loads(done.output.splitlines()[-1])
        assert found["records"] + found["already"] == sum(
            row["reason"] == "out_of_order" for row in table(warehouse, spec, "dead_letters")
        )
        run_more(made, instance, 999)
    assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
    status = asked(made, "status")
    assert (status.exit_code, "by hand" in status.output) == (0, False), status.output


def run_more(made: Made, instance: DagsterInstance, number: int) -> None:
    folder = made[0].path.parent / "in_faults"
    if not (folder / f"{number:03}0.jsonl").exists():
        land(folder, 20, seed=number, files=1, prefix=f"{number:03}", start=START + number * timedelta(minutes=1))
    assert go(made, instance, RunOptions(max_events_per_batch=15)).batches
