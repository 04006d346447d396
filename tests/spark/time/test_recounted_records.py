"""The recount of late drops: of one timeline piece by piece, and of a timeline among others."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pure.time.test_recounted_splits import RULES, SOURCE
from tests.seeds import Dice
from tidemark.resources.recount import recount as recounts
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.values.utc import us_of

CASES = 1  # a log in each run of the test
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = (
    "_arrival_seq BIGINT, _arrival_time TIMESTAMP, _clock TIMESTAMP, _malformed STRING, _source STRING, "
    "_split STRING, t TIMESTAMP"
)


def test_late_drops_are_those_of_a_walk_through_the_records(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, dice: Dice
) -> None:
    monkeypatch.setattr(recounts, "_PIECE", 25)
    rng = random.Random(dice.seed(1))
    rows, below, untimed, late, highest = [], 0, 0, 0, None
    before = START + timedelta(seconds=rng.choice([-9, 3]))  # the watermark before the range
    for seq in range(100, 190):
        arrival = START + timedelta(seconds=seq - 100)
        at = rng.choice([None, *[arrival - timedelta(seconds=rng.choice([0, 1, 2, 4, 8, 13]))] * 9])
        malformed = "[]" if rng.random() < 0.1 else None
        rows.append((seq, arrival, arrival, malformed, "a", None, at))
        if malformed or at is None:
            untimed += 1
        elif arrival - at > timedelta(seconds=10):
            late += 1
        else:
            seen = before if highest is None else max(before, highest - timedelta(seconds=3))
            below += at < seen
            highest = at if highest is None else max(highest, at)
    rng.shuffle(rows)
    rules = replace(
        RULES,
        uses_splits=False,
        late_us=10_000_000,
        late_policy="drop",
        sources=(replace(SOURCE, name="a", timestamp_by="t", out_of_orderness_us=3_000_000),),
    )
    expected = {"records": 90, "untimed": untimed, "late_arrival": late, "below": below, "out_of_order": below}
    for over, timeline in (((), "[]"), (("'x'",), '["x"]')):
        timelines = {"_timeline": [timeline], "watermark": [us_of(before)], "computed": [us_of(before)], "clock": [0]}
        log, by_over = spark.createDataFrame(rows, SCHEMA).repartition(3), replace(rules, over=over)
        parts = recounts.judge_again(log, range(100, 190), by_over, pa.table(timelines), compute=computed)
        found = recounts.counts_of(parts, by_over)
        assert {name: found[name] for name in expected} == expected
        assert (found["duplicate"], found["mistaken"], found["early"]) == (0, 0, 0)
