"""Dense numbers: rows cut by minutes or by a sample of them are numbered as if they were sorted in one list."""

import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.resources.spark import numbering
from tidemark.resources.spark.numbering import Counted, numbered, numbered_by_instant, parts_at, parts_of

MINUTE = 60_000_000
COLUMNS = pa.schema([(name, pa.int64()) for name in Counted._fields])


def table(*minutes: Counted) -> pa.Table:
    return pa.Table.from_pylist([minute._asdict() for minute in minutes], COLUMNS)


@pytest.fixture
def adaptive(spark: SparkSession) -> SparkSession:
    """As a pipeline has it: Spark may join partitions that turn out small."""
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    return spark


@pytest.mark.parametrize("by", ["minutes", "crowded minutes", "a sample", "one task"])
def test_rows_are_numbered_as_if_sorted_in_one_list(
    adaptive: SparkSession, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(numbering, "_LEAST_ROWS", 20)
    if by == "one task":
        adaptive.conf.set("spark.sql.shuffle.partitions", "1")
    dice = random.Random(1)
    minutes = 1 if by == "crowded minutes" else 40
    rows = [(dice.choice([None, *[dice.randrange(-minutes, minutes) * MINUTE] * 9]), number) for number in range(400)]
    frame = adaptive.createDataFrame(rows, "us BIGINT, id BIGINT").repartition(5)
    instant = None if by == "a sample" else "us"
    order = [F.col("us").asc_nulls_last(), F.col("id")]
    with numbered(frame, order, start=100, name="n", instant_us=instant, measure=F.col("us")) as found:
        listed = [(row["us"], row["id"], row["n"]) for row in found.frame.drop(numbering.PART).collect()]
        parts = found.frame.groupBy(numbering.PART).agg(F.max("us")).collect()
    ordered = sorted(rows, key=lambda row: (row[0] is None, row[0] or 0, row[1]))
    assert sorted(listed, key=lambda row: row[2]) == [(*row, 100 + n) for n, row in enumerate(ordered)]
    times = [us for us, _ in rows if us is not None]
    assert (found.rows, found.lowest, max(us for us in found.highest.values() if us is not None)) == (
        400,
        min(times),
        max(times),
    )
    assert {part: us for part, us in found.highest.items() if part in dict(parts)} == dict(parts)
    assert len(parts) == 1 if by == "one task" else len(parts) > 2, "several tasks share the sort"


def test_rows_whose_instants_are_known_are_numbered_in_one_pass(
    adaptive: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "_LEAST_ROWS", 20)
    dice = random.Random(2)
    rows = [(dice.choice([dice.randrange(-500, 500), 7]), number) for number in range(400)]
    parts = parts_at(np.array([us for us, _ in rows]), 7)
    frame = adaptive.createDataFrame(rows, "us BIGINT, id BIGINT").repartition(5)
    found = numbered_by_instant(frame, [F.col("us"), F.col("id")], F.col("us"), parts, start=100, name="n")
    listed = [(row["us"], row["id"], row["n"]) for row in found.frame.collect()]
    assert sorted(listed, key=lambda row: row[2]) == [(*row, 100 + n) for n, row in enumerate(sorted(rows))]
    assert found.rows == 400
    own = sorted((row[numbering.PART], row["count"]) for row in found.frame.groupBy(numbering.PART).count().collect())
    assert own == list(enumerate(part.rows for part in parts))


def test_instants_are_cut_into_parts_of_nearly_equal_size_and_those_of_one_instant_stay_together() -> None:
    instants = np.random.default_rng(3).permutation(np.arange(1_000_000))
    assert [(part.place, part.rows) for part in parts_at(instants, 4)] == [
        (249_999, 250_000),
        (499_999, 250_000),
        (749_999, 250_000),
        (999_999, 250_000),
    ]
    crowded = np.concatenate([np.zeros(900_000, np.int64), np.arange(1, 100_001)])
    assert [(part.place, part.rows) for part in parts_at(crowded, 8)] == [(0, 900_000), (100_000, 100_000)]
    assert [part.rows for part in parts_at(np.arange(30), 8)] == [30]
    assert parts_at(np.zeros(0, np.int64), 8) == []


def test_no_rows_are_numbered_too(spark: SparkSession) -> None:
    none = spark.createDataFrame([], "us BIGINT")
    with numbered(none, [F.col("us")], start=5, name="n", instant_us="us", measure=F.col("us")) as found:
        assert (found.rows, found.lowest, found.frame.count()) == (0, None, 0)


def test_minutes_are_joined_to_parts_of_nearly_equal_size_and_few_rows_stay_together() -> None:
    minutes = [Counted(place * MINUTE, 50_000, place, place) for place in range(8)]
    parts = parts_of(table(*reversed(minutes), Counted(None, 10, None, None)), 4)
    assert parts is not None
    assert [(part.place, part.rows) for part in parts] == [
        (MINUTE, 100_000),
        (3 * MINUTE, 100_000),
        (5 * MINUTE, 100_000),
        (7 * MINUTE, 100_000),
        (None, 10),
    ]
    assert [(part.lowest, part.highest) for part in parts[:2]] == [(0, 1), (2, 3)]
    few = table(Counted(0, 30_000, 1, 1), Counted(MINUTE, 30_000, 2, 2))
    assert parts_of(few, 4) == [Counted(MINUTE, 60_000, 2, 1)]
    assert parts_of(table(Counted(0, 1_000_000, 1, 1), Counted(MINUTE, 10, 2, 2)), 8) is None
    assert parts_of(table(), 8) == []
