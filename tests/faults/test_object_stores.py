"""Runs against an object store: killed between two commits, and two that begin at the same moment."""

import multiprocessing
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import KILLED, Death, Gateway, run_and_die
from tests.faults.test_killed_runs import SOME
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import changed, go, pipeline
from tests.s3 import S3Server
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import this_process
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.place import place_of
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA
from tidemark.timeops.errors import BusyError

TIMES = 15
WON, LOST = 0, 1


@pytest.mark.long
def test_of_two_processes_that_begin_a_batch_at_once_one_wins_each_time(server: S3Server) -> None:
    warehouse = server.make_bucket("at-once")
    for number in range(TIMES):
        Lake(place_of(f"{warehouse}/p{number}")).create(BATCHES, BATCHES_SCHEMA)
    processes = multiprocessing.get_context("spawn")
    together, outcomes = processes.Barrier(2), processes.Queue()
    both = [
        processes.Process(target=_begin, args=(warehouse, name, together, outcomes, server.environment))
        for name in ("one", "other")
    ]
    for one in both:
        one.start()
    found = Counter(outcomes.get(timeout=300) for _ in range(2 * TIMES))
    for one in both:
        one.join(60)
    assert found == Counter({(number, outcome): 1 for number in range(TIMES) for outcome in (WON, LOST)})
    for number in range(TIMES):
        assert BatchLog(Lake(place_of(f"{warehouse}/p{number}"))).pending() is not None


def _begin(
    warehouse: str,
    name: str,
    together: Barrier,
    outcomes: "multiprocessing.Queue[tuple[int, int]]",
    environment: dict[str, str],
) -> None:
    os.environ |= environment
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(TIMES):
        log = BatchLog(Lake(place_of(f"{warehouse}/p{number}")))
        log.last_commit()
        together.wait(60)
        try:
            log.begin(
                "process", this_process(name), now, after=None, first_seq=0, end_seq=1, input={}, fingerprint="f"
            )
        except BusyError:
            outcomes.put((number, LOST))
        else:
            outcomes.put((number, WON))


@pytest.mark.long
@pytest.mark.parametrize("is_large", [False, True], ids=["few rows", "files of Spark"])
def test_runs_in_a_store_that_are_killed_after_one_commit_after_another_end_with_the_oracles_tables(
    spark: SparkSession, server: S3Server, tmp_path: Path, is_large: bool
) -> None:
    # One for each server: Spark keeps how it reached a bucket as long as it lives.
    store = server.make_bucket(f"killed-{int(is_large)}")
    made = pipeline(tmp_path, "faults", "drop", sparse=False)
    file, settings = changed(made, "path: in_faults", f"path: {store}/in")
    settings = replace(settings, warehouse=place_of(f"{store}/warehouse"))
    land(tmp_path / "in_faults", 200, seed=5)
    for path in (tmp_path / "in_faults").iterdir():
        place_of(f"{store}/in/{path.name}").write_bytes(path.read_bytes())
    for name in SOME[: 2 if is_large else 3]:  # of a local disk after each
        death = Death(name, "python", is_large)
        ended = run_and_die(file.path, settings.warehouse, death, Gateway.of(spark), server.environment)
        assert ended == KILLED, name
    go((file, settings))
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
