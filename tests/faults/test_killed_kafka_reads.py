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

from tests.faults.killed import COPIED, FETCHED, run_killed
from tests.kafka import Topic
from tests.runs.landing import START, assert_tables_equal_the_oracle
from tests.runs.running import command, log_of, rows_of, run
from tests.runs.source.test_kafka_sources import events, made, places, written
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.long

DEATHS = (
    ("plan to ingest", False),
    (FETCHED, False),
    (COPIED, False),
    ("raw_events", False),
    ("raw_events", True),
    ("commit of ingest", False),
    ("plan to process", False),
)
"""After what a run dies, and whether its batches count as large."""


def test_runs_killed_again_and_again_read_each_offset_once(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """More records come after each death, so that the next run plans other offsets than the dead one.

    The runs share a Spark, which has what the dead ones left in its memory.
    """
    rng = random.Random(pytestconfig.option.seed)
    orders = topic(3)
    file, settings = made(tmp_path, "killed", orders, "max_records: 50")
    sent = []
    for number, (death, is_large) in enumerate(rng.sample(DEATHS, len(DEATHS))):
        part = events(rng.getrandbits(32), rng.randint(1, 20), START + timedelta(minutes=number), (0, 0, 1))
        orders.write(part)
        sent += part
        run_killed(spark, (file, settings), death, is_large=is_large)
    run(tmp_path, "killed")
    assert not (settings.warehouse / "killed" / "_state" / "reading").exists()
    assert places(log_of(tmp_path, "killed")) == written(orders, sent)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


BOUND_S = 15
MANY = 60_000  # records of 2 kB: more than the client fetches ahead, which is 64 MB


def test_a_broker_that_dies_while_its_records_are_read_is_one_sentence_and_soon(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path
) -> None:
    orders = topic(1)
    file, settings = made(tmp_path, "x", orders)
    value = json.dumps({"id": "a", "at": START.isoformat(), "k": "a", "v": 1, "more": "x" * 2_000}).encode()
    orders.write([{"value": value, "partition": 0, "timestamp": int(START.timestamp() * 1_000)}] * MANY)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(_kill_while_read, orders, Workspace(file, settings.warehouse))
        ran = command(tmp_path, "x")
        took_s = time.monotonic() - killed.result()
    try:
        assert ran.exit_code == 1, ran.output
        said = f"Source 'orders': Kafka at {orders.broker.address} does not answer: "
        assert said in ran.output
        assert "; nothing was ingested" in ran.output
        assert "Traceback" not in ran.output
        assert not (tmp_path / "warehouse" / "x" / "_state" / "reading").exists()
        assert took_s < BOUND_S
    finally:
        orders.broker.start()
    run(tmp_path, "x")
    assert sorted(row["_position"] for row in rows_of(tmp_path, "x")) == list(range(MANY))


def _kill_while_read(orders: Topic, workspace: Workspace) -> float:
    """Kills the broker when records have begun to come; when that was."""
    reading = Path(str(workspace.folder)) / "_state" / "reading"
    while not any(file.stat().st_size > len(b"PAR1") for file in reading.glob("*/*")):
        time.sleep(0.005)
    orders.broker.kill()
    return time.monotonic()
