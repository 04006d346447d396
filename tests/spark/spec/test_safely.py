"""Expressions that fail on some rows leave the others alone, whatever the type, and no constant is the clock."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.resources.spark.session import with_settings
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.try_expression import (
    any_fails,
    cannot_fail,
    guarded_sql,
    text_of,
    with_attempt,
)

TOO_LARGE = 2**63 - 1  # no `timestamp_millis`


def rows(spark: SparkSession) -> DataFrame:
    columns = "id INT, n BIGINT, k STRING, m MAP<STRING, INT>, now STRING, at TIMESTAMP"
    return spark.createDataFrame(
        [(1, 5, "a", {"a": 1}, "now", None), (2, TOO_LARGE, "b", {}, "today", None)], columns
    )


FAILING = [
    "timestamp_millis(n)",
    "CAST(timestamp_millis(n) AS TIMESTAMP_NTZ)",
    "date_format(timestamp_millis(n), 'yyyy')",
    "year(timestamp_millis(n)) > 0",
    "year(timestamp_millis(n)) -- a comment",
    "array(timestamp_millis(n))",
    "struct(timestamp_millis(n), k)",
    "map(k, timestamp_millis(n))",
    "map_from_arrays(array('a', IF(n > 5, 'a', 'b')), array(1, 2))",
    "CAST(date_format(timestamp_millis(n), 'yyyy') AS BINARY)",
    "timestamp_millis(n) - timestamp_millis(0)",
    "element_at(array(1), IF(n > 5, 0, 1))",
    "from_utc_timestamp(timestamp_millis(0), IF(n > 5, 'nowhere', 'UTC'))",
    "transform(array(n), one -> timestamp_millis(one))",
]


@pytest.mark.parametrize(("compiled", "some"), [("true", slice(2, 4)), ("false", slice(None))])
def test_what_fails_on_a_row_is_null_there_and_a_value_on_the_others(
    spark: SparkSession, compiled: str, some: slice
) -> None:
    frame = rows(spark)
    found = [f"{guarded_sql(frame, text)} IS NOT NULL AS c{n}" for n, text in enumerate(FAILING[some])]
    settings = {"spark.sql.codegen.wholeStage": compiled}
    settings |= {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY"} if compiled == "true" else {}
    with with_settings(spark, settings):  # all in one projection: their common parts are not computed before
        first, second = frame.repartition(1).sortWithinPartitions("id").selectExpr(*found).collect()
    assert all(first)
    assert not any(second)


def test_a_null_is_told_from_a_failure_and_a_constant_that_fails_from_both(spark: SparkSession) -> None:
    frame = rows(spark)
    told = with_attempt(frame, "IF(id = 1, NULL, timestamp_millis(n))", "value", "failed")
    assert [tuple(row) for row in told.select("value", "failed").collect()] == [(None, False), (None, True)]
    always = guarded_sql(frame, f"id > 0 AND timestamp_millis({TOO_LARGE}) > at")
    assert [row[0] for row in frame.selectExpr(always).collect()] == [None, None]
    fails = any_fails(frame, ["n", "timestamp_millis(n)", "map(k, timestamp_millis(n))"])
    assert fails is not None
    assert [row[0] for row in frame.selectExpr(fails).collect()] == [False, True]


@pytest.mark.parametrize("expression", ["id", "n + 1 > 2.5e3 AND k IS NOT NULL", "CAST(k AS DOUBLE) / 0", "upper(k)"])
def test_arithmetic_on_numbers_and_texts_needs_no_guard(spark: SparkSession, expression: str) -> None:
    assert cannot_fail(rows(spark), expression)
    assert any_fails(rows(spark), [expression]) is None


@pytest.mark.parametrize("expression", ["at + INTERVAL 1 DAY", "timestamp_millis(n)", "m['a']", "CAST(k AS DATE)"])
def test_all_else_is_guarded(spark: SparkSession, expression: str) -> None:
    assert not cannot_fail(rows(spark), expression)


CLOCKS = [
    "CAST(reverse('won') AS TIMESTAMP)",
    "to_timestamp(chr(110) || chr(111) || chr(119))",
    "at < lower('TO') || 'day'",
    "date(concat_ws('', 'to', 'morrow'))",
    "hour(decode(X'6E6F77', 'utf-8'))",
    "at < CAST(X'6E6F77' AS STRING)",
    "to_date(array_join(array('yester', 'day'), ''))",
    "CAST(aggregate(array('ep', 'och'), '', (k, x) -> k || x) AS DATE)",
    "CAST(split('now,x', ',')[0] AS TIMESTAMP)",
]


@pytest.mark.parametrize("expression", CLOCKS)
def test_a_text_that_is_built_to_be_read_as_the_clock_is_refused(spark: SparkSession, expression: str) -> None:
    with pytest.raises(SpecError, match=r"where a time is needed"):
        guarded_sql(rows(spark), expression)


def test_a_record_that_says_now_has_no_time(spark: SparkSession) -> None:
    frame = rows(spark)
    casts = ["CAST(now AS TIMESTAMP)", "to_date(now)", "to_timestamp(concat('', now))", "timestamp_millis(0) < now"]
    found = frame.selectExpr(*[guarded_sql(frame, text) for text in casts], "CAST(now AS DATE)")
    assert {value for row in found.collect() for value in row} == {None}


@pytest.mark.parametrize(
    "aggregate",
    [
        "percentile(v, 0.5, n)",
        "bitmap_construct_agg(n)",
        "hll_sketch_estimate(hll_union_agg(b))",
        "theta_sketch_estimate(theta_union_agg(b))",
        "sum(v) + percentile(v, 0.5, n) FILTER (WHERE v < 9)",
    ],
)
def test_a_row_that_an_aggregate_function_itself_refuses_is_found_before_it(
    spark: SparkSession, aggregate: str
) -> None:
    rows = spark.createDataFrame([(1, 2, None), (2, -1, b"no sketch"), (3, 0, None)], "v INT, n BIGINT, b BINARY")
    with pytest.raises(PySparkException):
        rows.agg(F.expr(aggregate)).collect()
    fails = any_fails(rows, on_rows([aggregate]))
    assert fails is not None
    assert [row["v"] for row in rows.where(fails).collect()] == [2]
    assert len(rows.where(f"NOT {fails}").agg(F.expr(aggregate)).collect()) == 1


def test_bytes_that_are_no_text_are_told_apart_in_a_text_and_fail_where_they_are_cast_to_one(
    spark: SparkSession,
) -> None:
    frame = spark.createDataFrame([(bytearray(each),) for each in (b"\xff\x01", b"\xfe\x01", b"ab")], "b BINARY")
    found = frame.selectExpr(
        text_of(frame, "b"), text_of(frame, "CAST(b AS STRING)"), guarded_sql(frame, "concat('x', CAST(b AS STRING))")
    )
    assert [tuple(row) for row in found.collect()] == [
        ("X'FF01'", None, None),
        ("X'FE01'", None, None),
        ("ab", "ab", "xab"),
    ]
    cast = with_attempt(frame, "concat('x', CAST(b AS STRING))", "value", "failed")
    assert [row["failed"] for row in cast.collect()] == [True, True, False]
