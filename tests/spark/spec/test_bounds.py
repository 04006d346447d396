"""One value in a record cannot make an expression fill the memory: it fails on this record, and Spark goes on."""

import pytest
from pyspark.sql import SparkSession

from tidemark.timeops.expressions.aggregates import on_rows
from tidemark.timeops.expressions.bounds import bounded, size_problems
from tidemark.timeops.expressions.text_times import check_built_texts
from tidemark.timeops.expressions.try_expression import Columns

MANY = "repeat('{}', CAST(if(n > 1000000, 1000000, n) AS INT))"
GROWING = [
    "size(sequence(1L, n))",
    "size(sequence(n, 1L, -1))",
    "size(sequence(-5, n, CAST(2 AS TINYINT)))",
    "size(sequence(at, at + make_dt_interval(0, 0, 0, n), INTERVAL 1 SECOND))",
    "size(sequence(CAST(at AS TIMESTAMP_NTZ), CAST(at AS TIMESTAMP_NTZ) + n * INTERVAL 1 HOUR, INTERVAL 1 MINUTE))",
    "length(repeat(k, CAST(n AS INT)))",
    "length(repeat(repeat('x', 10000), CAST(n / 10 AS INT)))",
    "length(system.builtin.space(CAST(n AS INT)))",
    "length(rpad(k, CAST(n AS INT), '-'))",
    "length(lpad(k, CAST(n AS INT)))",
    f"length(replace({MANY.format('a')}, 'a', {MANY.format('b')}))",
    f"length(regexp_replace({MANY.format('a')}, '.', {MANY.format('b')}))",
    f"length(array_join(sequence(1, if(n > 999999, 999999, n)), {MANY.format('b')}))",
    f"length(concat_ws({MANY.format('b')}, array_repeat('a', CAST(if(n > 999999, 999999, n) AS INT))))",
    "size(array_repeat(k, CAST(n AS INT)))",
    "size(array_repeat(repeat('x', 1000000), CAST(n / 100 AS INT)))",
    "size(array_insert(array(1), CAST(n AS INT), 2))",
    "length(format_number(n, CAST(n AS INT)))",
    "length(format_string(concat('%', CAST(n AS STRING), 'd'), 1))",
    "aggregate(array(1, 2), 0, (a, x) -> a + size(sequence(x, n)))",
    "size(sequence(1L, n)) + length(repeat(k, CAST(n AS INT))) -- of both",
]


def test_a_value_that_would_make_too_much_fails_and_others_do_not(spark: SparkSession) -> None:
    rows = [(1, 300), (2, 2_000_000_000), (3, None)]
    frame = spark.createDataFrame(rows, "id INT, n BIGINT").selectExpr("*", "'k' AS k", "TIMESTAMP'2026-05-01' AS at")
    columns = Columns.of(frame)
    found = [f"{columns.read(text).sql} AS c{number}" for number, text in enumerate(GROWING)]
    small, large, _null = frame.orderBy("id").selectExpr(*found).collect()
    assert [text for text, value in zip(GROWING, small, strict=True) if value is None] == []
    assert {text: value for text, value in zip(GROWING, large, strict=True) if value is not None} == {}
    fails = columns.any_fails(on_rows(f"sum({text}\n)" for text in GROWING))
    assert fails is not None
    assert [row["id"] for row in frame.where(fails).collect()] == [2]


@pytest.mark.parametrize(
    "expression",
    ["n + 1", "sequence(DATE'2026-01-01', DATE'2026-02-01', INTERVAL 1 MONTH)", "repeat", "space.x", "array_repeat"],
)
def test_what_makes_little_is_left_as_it_is(spark: SparkSession, expression: str) -> None:
    if "(" not in expression:
        assert bounded(expression) == expression
    else:
        assert spark.sql(f"SELECT size({bounded(expression)}) AS n").collect()[0]["n"] == 2


def test_texts_that_stand_in_an_expression_are_no_cause_to_look_at_sizes() -> None:
    for text in ("replace(replace(k, 'a', 'b'), ',', '.')", "array_join(ks, ', ')", "concat_ws('-', k, k)"):
        assert bounded(text) == text


def test_a_constant_that_would_fill_the_memory_is_not_computed(spark: SparkSession) -> None:
    check_built_texts(spark, "at < repeat('a', 2000000000)", ["at"])
    check_built_texts(spark, "at < array_join(array_repeat('a', 2000000000), '')", ["at"])


def test_an_aggregate_that_takes_memory_for_its_precision_is_refused() -> None:
    for text in (
        "approx_count_distinct(k, 0.0001)",
        "count_min_sketch(k, 1E-9D, 0.9D, 1)",
        "approx_count_distinct(k, n)",
    ):
        [problem] = size_problems(text)
        assert "takes memory" in problem.found
    assert size_problems("approx_count_distinct(k) + approx_count_distinct(k, 0.01)") == []


@pytest.mark.long
def test_a_query_that_runs_out_of_memory_fails_alone(spark: SparkSession) -> None:
    doubled = "aggregate(sequence(1, 40 + CAST(id AS INT)), 'a', (text, _) -> concat(text, text))"
    with pytest.raises(Exception, match=r"Java heap space|array size|GC overhead|memory"):
        spark.range(1).selectExpr(f"length({doubled})").collect()
    assert spark.range(3).count() == 3


def test_calls_in_calls_in_calls_are_looked_into_once_each() -> None:
    def nested(inner: str) -> str:
        return f"{'abs(' * 60}{inner}{')' * 60}"  # looked into anew for each call around it, this would never end

    assert bounded(nested("x")) == nested("x")
    assert bounded(nested("repeat('a', n)")) == nested(bounded("repeat('a', n)"))
    assert bounded("repeat('a', n)") != "repeat('a', n)"
