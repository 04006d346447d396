"""Files that Spark writes and delta-rs commits: what the log says of them, and what becomes of unfinished ones."""

import json
import math
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from tests.hostile import CONDITIONS, HOSTILE, WAYS, ByDuckDB, in_sql, rows_of
from tests.hostile import T as HOSTILE_TABLE
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.upkeep import size_of, vacuum

T = "windows/all"
TYPES = {
    "small": "TINYINT",
    "big": "BIGINT",
    "exact": "DECIMAL(10, 2)",
    "wide": "DECIMAL(38, 3)",
    "single": "FLOAT",
    "double": "DOUBLE",
    "text": "STRING",
    "day": "DATE",
    "at": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
}
LONG = "é" * 40


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


ROWS = [
    (1, -(2**63), Decimal("-1.25"), Decimal("-3.500"), 1.5, -2.5, "", date(1, 1, 1), utc("2020-01-01"), 1),
    (
        2,
        0,
        Decimal("0.10"),
        Decimal("0.001"),
        2.5,
        0.1,
        LONG,
        date(2020, 2, 29),
        utc("2020-01-01T00:00:00.000007"),
        2,
    ),
    (
        3,
        2**63 - 1,
        Decimal("99999999.99"),
        Decimal("12345678901234567890123.001"),
        -1.0,
        1e300,
        LONG + "z",
        None,
        None,
        3,
    ),
    (4, 5, None, None, math.nan, math.inf, '"\\\n', date(9999, 12, 31), utc("2030-01-01"), 4),
    (5, 6, Decimal("1.00"), Decimal("1.000"), None, None, None, date(1969, 7, 20), utc("1969-07-20T20:17"), 5),
]
OUTER = {"nested": "STRUCT<x: INT>", "named": "MAP<STRING, BIGINT>", "listed": "ARRAY<DATE>", "flag": "BOOLEAN"}


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "shop", lambda: spark)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Lake, list[Row]]:
    """Return a lake whose table has all types, a row in each file, and its rows."""
    lake = Lake(tmp_path_factory.mktemp("lake") / "shop", lambda: spark)
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items() if name != "local")
    rows = spark.createDataFrame(ROWS, f"{columns}, number INT").selectExpr(
        "*",
        "CAST(at AS TIMESTAMP_NTZ) AS local",
        "named_struct('x', number) AS nested",
        "map('a', CAST(number AS BIGINT)) AS named",
        "array(day) AS listed",
        "number > 2 AS flag",
    )
    lake.create(T, rows.schema)
    lake.append(T, rows.repartitionByRange(len(ROWS), "number"), attempt=1, expect=0)
    assert len(lake.open(T).file_uris()) == len(ROWS)
    return lake, rows.collect()


@pytest.mark.parametrize("column", TYPES)
def test_each_value_is_found_by_the_bounds_of_its_file(written: tuple[Lake, list[Row]], column: str) -> None:
    lake, rows = written
    for row in rows:
        value = row[column]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        if column == "at":
            value = value.astimezone(UTC)
        for sign in ("=", ">=", "<="):
            found = lake.rows(T, columns=["number"], filters=[(column, sign, value)])["number"].to_pylist()
            assert row.number in found
            if column not in ("single", "double"):  # beside NaN and infinity no bound is told
                assert sign != "=" or found == [row.number]


def test_other_readers_skip_the_same_files(written: tuple[Lake, list[Row]]) -> None:
    lake, _ = written
    read = lake.session().read.format("delta").load(str(lake.path(T)))
    for condition, numbers in {
        "big = -9223372036854775808": [1],
        "wide > 12345678901234567890123": [3],
        "at = timestamp_micros(1577836800000007)": [2],
        f"text = '{LONG}z'": [3],
        "day >= DATE'9999-01-01'": [4],
        "double = double('Infinity')": [4],
        "isnan(single)": [4],
        "text IS NULL": [5],
        "nested.x = 3": [3],
    }.items():
        assert [row.number for row in read.where(condition).collect()] == numbers, condition


def test_instants_that_python_has_not_and_nan_hide_no_rows(lake: Lake) -> None:
    spark = lake.session()
    rows = spark.range(3).selectExpr(
        "id AS n", "timestamp_micros(253402300800000000 + id) AS at", "IF(id = 0, double('NaN'), id) AS x"
    )
    rows = rows.coalesce(1)
    lake.create(T, rows.schema)
    lake.append(T, rows, attempt=1, expect=0)
    assert lake.rows(T, filters=[("x", "=", 2.0)])["n"].to_pylist() == [2]
    assert lake.read(T, filters=[("at", ">", datetime(9999, 1, 1, tzinfo=UTC))]).count() == 3


def statistics_of(lake: Lake, version: int) -> dict[str, Any]:
    entry = lake.path(T) / "_delta_log" / f"{version:020}.json"
    [added] = [json.loads(line)["add"] for line in entry.read_text().splitlines() if '"add"' in line]
    known: dict[str, Any] = json.loads(added["stats"])
    return known


def test_bounds_are_those_of_our_own_numbers_and_instants_or_none(lake: Lake) -> None:
    spark = lake.session()
    columns = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in OUTER.items())
    rows = spark.sql(
        f"SELECT timestamp_micros(7) AS window_start, CAST(NULL AS BIGINT) AS _batch_id, 1 AS n, {columns}"
    )
    lake.create(T, rows.schema)
    lake.append(T, rows, attempt=1, expect=0)
    at = {"window_start": "1970-01-01T00:00:00.000007Z"}
    nulls = {"window_start": 0, "_batch_id": 1}
    assert statistics_of(lake, 1) == {"numRecords": 1, "minValues": at, "maxValues": at, "nullCount": nulls}
    far = rows.withColumn("window_start", F.expr("timestamp_micros(253402300800000000)"))  # the year 10000
    lake.append(T, far, attempt=2, expect=1)
    assert statistics_of(lake, 2) == {"numRecords": 1}


def test_columns_are_found_by_name_and_missing_ones_are_null(lake: Lake) -> None:
    spark = lake.session()
    lake.create(T, spark.sql("SELECT 1L AS a, 'x' AS b, 2L AS c").schema)
    lake.append(T, spark.sql("SELECT 'y' AS b, 7 AS a"), attempt=1, expect=0)
    assert lake.rows(T).to_pylist() == [{"a": 7, "b": "y", "c": None}]


def test_no_rows_make_no_commit_and_leave_no_file(lake: Lake) -> None:
    spark = lake.session()
    none = spark.range(0).coalesce(1)
    lake.create(T, none.schema)
    assert lake.append(T, none, attempt=1, expect=0).version == 0
    assert size_of(lake, T).stored == 0


def test_rows_for_which_the_condition_is_null_stay_in_files_that_hold_rows_to_delete(lake: Lake) -> None:
    spark = lake.session()
    rows = spark.createDataFrame([(1, 1), (2, None), (3, 9)], "n INT, x INT").coalesce(1)
    lake.create(T, rows.schema)
    lake.append(T, rows, attempt=1, expect=0)
    lake.replace(T, rows.limit(0), where=[("x", "<", 20)], attempt=2, expect=1)
    assert lake.rows(T)["n"].to_pylist() == [2]


def test_upkeep_clears_away_what_a_killed_write_has_left(lake: Lake) -> None:
    spark = lake.session()
    rows = spark.range(5).coalesce(1)
    lake.create(T, rows.schema)
    lake.append(T, rows, attempt=1, expect=0)
    unfinished = Path(str(lake.path(T)), "attempt-2-0123456789ab", "_temporary", "0")
    unfinished.mkdir(parents=True)
    left = unfinished / "part-00000.parquet"
    left.write_bytes(b"x" * 10)
    two_days = timedelta(days=2)
    assert vacuum(lake, T, two_days, [1]) == 0, "it may be of a write at work"
    for path in (left, unfinished.parents[1]):
        os.utime(path, (0, 0))
    assert vacuum(lake, T, two_days, [1]) == 10
    vacuum(lake, T, two_days, [1])
    assert [path.name[:10] for path in lake.path(T).glob("attempt-*")] == ["attempt-1-"]
    assert DeltaTable(str(lake.path(T))).count() == 5


@pytest.mark.long
def test_spark_finds_the_same_with_bounds_as_in_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.concat_tables(map(rows_of, HOSTILE))
    right = [ByDuckDB(rows)(condition) for condition in CONDITIONS]
    tables = {way: WAYS[way](tmp_path / way) for way in ("in pieces", "joined")}
    own = Lake(tmp_path / "own", session=lambda: spark)
    own.create(HOSTILE_TABLE, rows.schema)
    for version, file in enumerate(HOSTILE):
        own.append(HOSTILE_TABLE, own.frame(HOSTILE_TABLE, rows_of(file)), attempt=version + 1, expect=version)
    for way, lake in {**tables, "by Spark": own}.items():
        table = f"delta.`{lake.path(HOSTILE_TABLE)}`"
        counts = [
            f"SELECT {n} AS n, count(*) AS c FROM {table} WHERE {in_sql(one)}" for n, one in enumerate(CONDITIONS)
        ]
        found = {row["n"]: row["c"] for row in spark.sql(" UNION ALL ".join(counts)).collect()}
        wrong = [(in_sql(one), found[n], right[n]) for n, one in enumerate(CONDITIONS) if found[n] != right[n]]
        assert not wrong, way
