"""Values that loops find on the driver come back to their rows, of any number; groups are numbered as in Spark."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.resources.spark.frames import readable
from tidemark.timeops import narrow
from tidemark.timeops.narrow import as_flat, beside, fetched, numbers


@pytest.mark.parametrize("most", [0, 100])
@pytest.mark.parametrize("step", [1, 5_000])  # numbers that lie close together, and others
def test_what_was_found_is_beside_the_rows_whether_it_is_much_or_little(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int, step: int
) -> None:
    monkeypatch.setattr(narrow, "BROADCAST", most)
    rows = spark.range(12).select((F.col("id") * step + 4_090).alias("_arrival_seq"), (-F.col("id")).alias("v"))
    seqs = [4_090 + step * place for place in (0, 3, 7, 8, 30)]  # the last is of no row
    found = pa.table({"_arrival_seq": seqs, "a": [1, 2, 3, 4, 5], "b": [10, None, 30, 40, 50]})
    inner = {tuple(row) for row in beside(rows, found, ["_arrival_seq"]).collect()}
    assert inner == {(seqs[0], 0, 1, 10), (seqs[1], -3, 2, None), (seqs[2], -7, 3, 30), (seqs[3], -8, 4, 40)}
    left = beside(rows, found, ["_arrival_seq"], "left").collect()
    assert {(row["v"], row["a"]) for row in left} == {(-n, {0: 1, 3: 2, 7: 3, 8: 4}.get(n)) for n in range(12)}


def test_null_is_a_key_like_others(spark: SparkSession) -> None:
    rows = spark.sql("SELECT * FROM VALUES (CAST(NULL AS STRING), 1), ('x', 2) AS (k, v)")
    found = beside(rows, pa.table({"k": pa.array([None, "y"], pa.string()), "a": [7, 8]}), ["k"])
    assert [tuple(row) for row in found.collect()] == [(None, 1, 7)]


def test_people_read_instants_as_texts_and_rows_without_one_as_they_are(spark: SparkSession) -> None:
    """Spark Connect fails where no column is to be changed."""
    rows = spark.sql("SELECT 1 AS n, timestamp_micros(253402300800000000) AS at")
    assert [tuple(row) for row in readable(rows).collect()] == [(1, "+10000-01-01 00:00:00")]
    without = rows.drop("at")
    assert readable(without) is without


def test_many_rows_are_fetched_piece_by_piece_and_each_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow, "PIECE", 3)
    rows = spark.sql("SELECT CAST(NULL AS BIGINT) AS _arrival_seq UNION ALL SELECT id FROM range(2, 20)")
    assert sorted(fetched(rows, range(5, 20))["_arrival_seq"].to_pylist(), key=str) == sorted(
        [None, *range(2, 20)], key=str
    )


@pytest.mark.parametrize(
    "kind",
    [
        "string",
        "double",
        "array<double>",
        "struct<a: string, b: string>",
        "timestamp",
        "decimal(10, 2)",
        "boolean",
        "binary",
    ],
)
def test_two_values_have_one_number_if_a_group_of_spark_takes_them_for_one(spark: SparkSession, kind: str) -> None:
    values = {
        "string": ["'a'", "'A'", "''", "'a'"],
        "double": ["0.0", "-0.0", "'NaN'", "'NaN'", "1"],
        "array<double>": [
            "array(0.0)",
            "array(-0.0D)",
            "array('NaN')",
            "array()",
            "array(null)",
            "array(null, null)",
        ],
        "struct<a: string, b: string>": ["struct('x', null)", "struct(null, 'x')", "struct('x, null', '')"],
        "timestamp": ["'2026-01-01 00:00:00.000001'", "'2026-01-01'", "'0001-01-01'"],
        "decimal(10, 2)": ["1.10", "1.1", "1.11"],
        "boolean": ["true", "false"],
        "binary": ["X'00'", "X''", "X'0000'"],
    }[kind]
    each = ", ".join(f"(CAST({value} AS {kind}), {n}), (NULL, {n + 100})" for n, value in enumerate(values))
    rows = spark.sql(f"SELECT k, n, n % 2 AS parity FROM VALUES {each} AS (k, n)")
    told = rows.selectExpr(f"{as_flat(rows, 'k')} AS k", "parity", "n").toArrow()
    by_number: dict[int, set[int]] = {}
    for number, n in zip(numbers(told, ["k", "parity"]), told["n"].to_pylist(), strict=True):
        by_number.setdefault(int(number), set()).add(n)
    groups = rows.groupBy("k", "parity").agg(F.collect_set("n").alias("n")).select("n").collect()
    assert sorted(map(sorted, by_number.values())) == sorted(sorted(row["n"]) for row in groups)
