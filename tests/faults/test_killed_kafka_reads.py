"""Runs that read Kafka and are killed between plan, log and commit: no offset is lost, none comes twice."""

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.killed import Death, Gateway, run_and_die
from tests.kafka import Topic
from tests.orchestration.landing import START, assert_tables_equal_the_oracle
from tests.orchestration.running import log_of, run
from tests.orchestration.test_kafka_sources import events, made, places, written
from tests.seeds import Dice

pytestmark = pytest.mark.long

DEATHS = ("plan to ingest", "raw_events", "commit of ingest", "plan to process")
KILLED = -9
KILLS = 20
CASES = 1  # a log for each turn of the dice


def test_runs_killed_twenty_times_read_each_offset_once(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path, dice: Dice
) -> None:
    """More records come behind each death, so that the next run plans other offsets than the dead one."""
    rng = random.Random(dice.seed(3))
    orders = topic(3)
    file, settings = made(tmp_path, "killed", orders, "max_records: 25")
    sent = []
    for number in range(KILLS):
        part = events(rng.getrandbits(32), rng.randint(1, 20), START + timedelta(minutes=number), (0, 0, 1))
        orders.write(part)
        sent += part
        death = Death(DEATHS[number % len(DEATHS)], "python")
        assert run_and_die(file.path, settings.warehouse, death, Gateway.of(spark)) == KILLED, death
    run(tmp_path, "killed")
    assert places(log_of(tmp_path, "killed")) == written(orders, sent)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
