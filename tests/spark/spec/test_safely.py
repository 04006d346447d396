"""Expressions that fail on some rows leave the others alone, whatever the type, and no constant is the clock."""

from dataclasses import replace

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType

from tidemark.resources.spark.session import with_settings
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.try_expression import Columns, with_attempt

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
    columns = Columns.of(frame)
    found = [f"{columns.read(text).sql} IS NOT NULL AS c{n}" for n, text in enumerate(FAILING[some])]
    settings = {"spark.sql.codegen.wholeStage": compiled}
    settings |= {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY"} if compiled == "true" else {}
    with with_settings(spark, settings):  # all in one projection: their common parts are not computed before
        first, second = frame.repartition(1).sortWithinPartitions("id").selectExpr(*found).collect()
    assert all(first)
    assert not any(second)


def test_a_null_is_told_from_a_failure_and_a_constant_that_fails_from_both(spark: SparkSession) -> None:
    frame = rows(spark)
    columns = Columns.of(frame)
    told = with_attempt(frame, columns.read("IF(id = 1, NULL, timestamp_millis(n))"), "value", "failed")
    assert [tuple(row) for row in told.select("value", "failed").collect()] == [(None, False), (None, True)]
    always = columns.read(f"id > 0 AND timestamp_millis({TOO_LARGE}) > at").sql
    assert [row[0] for row in frame.selectExpr(always).collect()] == [None, None]
    fails = columns.any_fails(["n", "timestamp_millis(n)", "map(k, timestamp_millis(n))"])
    assert fails is not None
    assert [row[0] for row in frame.selectExpr(fails).collect()] == [False, True]


@pytest.mark.parametrize("expression", ["id", "n + 1 > 2.5e3 AND k IS NOT NULL", "CAST(k AS DOUBLE) / 0", "upper(k)"])
def test_arithmetic_on_numbers_and_texts_needs_no_guard(spark: SparkSession, expression: str) -> None:
    columns = Columns.of(rows(spark))
    assert not columns.read(expression).can_fail
    assert columns.any_fails([expression]) is None


@pytest.mark.parametrize("expression", ["at + INTERVAL 1 DAY", "timestamp_millis(n)", "m['a']", "CAST(k AS DATE)"])
def test_all_else_is_guarded(spark: SparkSession, expression: str) -> None:
    assert Columns.of(rows(spark)).read(expression).can_fail


def test_spark_types_an_expression_once_for_the_types_of_the_columns_that_it_names(spark: SparkSession) -> None:
    asked: list[str] = []

    def columns(frame: DataFrame) -> Columns:
        spark_columns = Columns.of(frame)

        def ask(text: str) -> DataType:
            asked.append(text)
            return spark_columns.ask(text)

        return replace(spark_columns, ask=ask)

    frame, text = rows(spark), "date_add(at, CAST(n AS INT) - 7)"
    read = columns(frame).read(text)
    assert (read.columns, read.can_fail, read.type) == (("n", "at"), True, DateType())
    assert columns(frame.withColumn("__tm_t", F.lit(1))).read(text) == read
    assert columns(frame.drop("m")).read(text) is read
    assert asked == [text]
    other = columns(frame.withColumn("n", F.lit(1))).read(text)
    assert (other, asked) == (read, [text, text])
    for refused in range(2):
        with pytest.raises(AnalysisException):
            columns(frame).read("date_add(nothing, 1)")
        assert len(asked) == 3 + refused
    everything = "md5(to_json(struct(*, timestamp_millis(1) AS first)))"
    assert columns(frame).read(everything).columns == (*frame.columns,)


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
        Columns.of(rows(spark)).read(expression)


def test_a_record_that_says_now_has_no_time(spark: SparkSession) -> None:
    frame = rows(spark)
    casts = ["CAST(now AS TIMESTAMP)", "to_date(now)", "to_timestamp(concat('', now))", "timestamp_millis(0) < now"]
    found = frame.selectExpr(*[Columns.of(frame).read(text).sql for text in casts], "CAST(now AS DATE)")
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
    fails = Columns.of(rows).any_fails(on_rows([aggregate]))
    assert fails is not None
    assert [row["v"] for row in rows.where(fails).collect()] == [2]
    assert len(rows.where(f"NOT {fails}").agg(F.expr(aggregate)).collect()) == 1


def test_bytes_that_are_no_text_are_told_apart_in_a_text_and_fail_where_they_are_cast_to_one(
    spark: SparkSession,
) -> None:
    frame = spark.createDataFrame([(bytearray(each),) for each in (b"\xff\x01", b"\xfe\x01", b"ab")], "b BINARY")
    columns = Columns.of(frame)
    text, cast_text, longer = map(columns.read, ("b", "CAST(b AS STRING)", "concat('x', CAST(b AS STRING))"))
    found = frame.selectExpr(text.value_text, cast_text.value_text, longer.sql)
    assert [tuple(row) for row in found.collect()] == [
        ("X'FF01'", None, None),
        ("X'FE01'", None, None),
        ("ab", "ab", "xab"),
    ]
    cast = with_attempt(frame, longer, "value", "failed")
    assert [row["failed"] for row in cast.collect()] == [True, True, False]
