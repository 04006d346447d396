"""Times that are read as they are stored equal what Spark computes; where they may not be, Spark is asked."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.events.adjustment import Adjusted, Segment, time_adjustment
from tidemark.timeops.events.stored_times import stored_times
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.values.utc import FIRST_US, LAST_US
from tidemark.timeops.watermark.timelines import STATE, LogPlace

INSTANT = pa.timestamp("us", "UTC")
KEYS = ["a", "", "null", 'say "so"', "tab\tline\nnul\x00 \x1f", "\\", "/", "é\u2028🌊", " a"]


def records(rng: random.Random, count: int = 300) -> pa.Table:
    arrival = np.cumsum([rng.choice([0, 1, 999, 10_000]) for _ in range(count)])
    columns: dict[str, Any] = {
        "t": pa.array(arrival - [rng.randint(-3_000, 30_000) for _ in range(count)]).cast(INSTANT),
        "k": [rng.choice(KEYS) for _ in range(count)],
        "_arrival_seq": pa.array(np.arange(count)),
        "_arrival_time": pa.array(arrival).cast(INSTANT),
        "_clock": pa.array(arrival).cast(INSTANT),
        "_source": [rng.choice(["x", "y", "gone"]) for _ in range(count)],
        "_split": [rng.choice(["p", "q", None]) for _ in range(count)],
        "_malformed": pa.nulls(count, pa.string()),
    }
    return pa.table(columns)


def rules_of(sources: Sequence[str] = ("x",), *, splits: bool = False, **time: Any) -> TimeRules:
    spec = TimeSpec(**{"timestamp_by": "t", "out_of_orderness": "2 ms", "out_of_order": "drop", **time})
    by = spec.timestamp_by
    times = tuple(SourceTime(name, by, "UTC", spec.out_of_orderness_us) for name in sources)
    return TimeRules(spec, times, uses_splits=splits)


class Shelf:
    """Rows that are stored in pieces, the last ones first."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.is_read = rows, False

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.is_read = True
        return iter(self.rows.select(columns).to_batches(max_chunksize=70)[::-1])


def judged(spark: SparkSession, rows: pa.Table, rules: TimeRules, shelf: Shelf | None) -> Adjusted:
    segment = Segment(from_driver(spark, rows), LogPlace(), stored=shelf.read if shelf else None, counts=True)
    return time_adjustment(segment, STATE.empty_table(), rules)


@pytest.mark.parametrize(
    "rules",
    [
        rules_of(),
        rules_of(unit="millisecond", out_of_order="adjust"),
        rules_of(over=("k",), out_of_order="keep"),
        rules_of(over=("`k`",), unit="millisecond"),
        rules_of(("x", "y")),
        rules_of(("x", "y"), splits=True, idle={"timeout": "1 ms", "advance": "exclude_split"}),
        rules_of(timestamp_by=None),
    ],
)
def test_times_as_they_are_stored_are_those_that_spark_computes(spark: SparkSession, rules: TimeRules) -> None:
    rows = records(random.Random(7))
    shelf = Shelf(rows)
    assert stored_times(from_driver(spark, rows), rules, shelf.read, counts=True) is not None
    found, asked = judged(spark, rows, rules, shelf), judged(spark, rows, rules, None)
    assert found.watermarks.behind.equals(asked.watermarks.behind)
    assert found.state.sort_by("_timeline").equals(asked.state.sort_by("_timeline"))
    assert found.count_columns is not None
    assert asked.count_columns is not None
    assert {name: one.tolist() for name, one in found.count_columns.items()} == {
        n: one.tolist() for n, one in asked.count_columns.items()
    }


@pytest.mark.parametrize(
    "time",
    [
        {"early": {"tolerance": "1 s", "policy": "drop"}},
        {"late": {"tolerance": "1 s", "policy": "adjust"}},
        {"deduplicate_by": ("k",), "within": "1 s"},
        {"timestamp_by": "t + INTERVAL 1 SECOND"},
        {"timestamp_by": "k"},
        {"over": ("upper(k)",)},
        {"over": ("k", "t")},
    ],
)
def test_rules_that_ask_for_sql_are_left_to_spark(spark: SparkSession, time: dict[str, Any]) -> None:
    shelf = Shelf(records(random.Random(1)))
    assert stored_times(from_driver(spark, shelf.rows), rules_of(**time), shelf.read, counts=True) is None
    assert not shelf.is_read


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("t", None),
        ("t", FIRST_US - 1),
        ("t", LAST_US + 1),
        ("_arrival_time", None),
        ("_malformed", "not JSON"),
        ("k", None),
    ],
)
def test_one_record_without_a_plain_time_or_timeline_is_left_to_spark(
    spark: SparkSession, column: str, value: str | int | None
) -> None:
    rows = records(random.Random(2))
    values = rows[column].to_pylist() if column in ("k", "_malformed") else rows[column].cast(pa.int64()).to_pylist()
    values[123] = value
    place, kind = rows.column_names.index(column), rows.schema.field(column).type
    shelf = Shelf(
        rows.set_column(
            place, column, pa.array(values, pa.string() if kind == pa.string() else pa.int64()).cast(kind)
        )
    )
    items = from_driver(spark, records(random.Random(2)))
    assert stored_times(items, rules_of(over=("k",)), shelf.read, counts=True) is None
    assert shelf.is_read


@pytest.mark.parametrize(
    ("column", "kind"), [("t", pa.timestamp("us")), ("t", pa.string()), ("t", pa.int64()), ("k", pa.binary())]
)
def test_a_column_that_is_stored_as_another_type_than_the_spec_declares_is_left_to_spark(
    spark: SparkSession, column: str, kind: pa.DataType
) -> None:
    rows = records(random.Random(3))
    shelf = Shelf(rows.set_column(rows.column_names.index(column), column, rows[column].cast(kind)))
    assert stored_times(from_driver(spark, rows), rules_of(over=("k",)), shelf.read, counts=True) is None
