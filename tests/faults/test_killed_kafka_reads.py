"""Runs that read Kafka and are killed, or whose broker is: no offset is lost, none comes twice."""

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import run_killed
from tests.kafka import Topic
from tests.runs.landing import START, assert_tables_equal_the_oracle
from tests.runs.running import command, log_of, rows_of, run
from tests.runs.source.test_kafka_sources import events, made, places, written
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.long

DEATHS = ("plan to ingest", "raw_events", "commit of ingest", "plan to process")
KILLS = 2 * len(DEATHS)


def test_runs_killed_again_and_again_read_each_offset_once(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """More records come after each death, so that the next run plans other offsets than the dead one."""
    rng = random.Random(pytestconfig.option.seed)
    orders = topic(3)
    file, settings = made(tmp_path, "killed", orders, "max_records: 25")
    sent = []
    for number in range(KILLS):
        part = events(rng.getrandbits(32), rng.randint(1, 20), START + timedelta(minutes=number), (0, 0, 1))
        orders.write(part)
        sent += part
        run_killed(spark, (file, settings), DEATHS[number % len(DEATHS)])
    run(tmp_path, "killed")
    assert places(log_of(tmp_path, "killed")) == written(orders, sent)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


BOUND_S = 15
MANY = 100_000  # records of 600 bytes: more than what a consumer has fetched ahead


def test_a_broker_that_dies_while_its_records_are_read_is_one_sentence_and_soon(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path
) -> None:
    orders = topic(1)
    file, settings = made(tmp_path, "x", orders)
    value = json.dumps({"id": "a", "at": START.isoformat(), "k": "a", "v": 1, "more": "x" * 500}).encode()
    orders.write([{"value": value, "partition": 0, "timestamp": int(START.timestamp() * 1_000)}] * MANY)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(_kill_while_read, spark, orders, Workspace(file, settings.warehouse))
        ran = command(tmp_path, "x")
        took_s = time.monotonic() - killed.result()
    try:
        assert ran.exit_code == 1, ran.output
        assert "the brokers do not answer Spark while their records are read" in ran.output
        assert "nothing was ingested" in ran.output
        assert "\tat " not in ran.output
        assert took_s < BOUND_S
    finally:
        orders.broker.start()
    run(tmp_path, "x")
    assert sorted(row["_position"] for row in rows_of(tmp_path, "x")) == list(range(MANY))


def _kill_while_read(spark: SparkSession, orders: Topic, workspace: Workspace) -> float:
    """Kills the broker when Spark has begun to read what the plan says; when that was."""
    tracker = spark.sparkContext.statusTracker()
    while not workspace.exists or workspace.batches.pending("ingest") is None:
        time.sleep(0.05)
    while not tracker.getActiveStageIds():
        time.sleep(0.005)
    orders.broker.kill()
    return time.monotonic()
