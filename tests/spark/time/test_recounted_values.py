"""Sums that fit do so in any order of rows, in both ways in which they are added up."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.timeops.expressions.aggregates import overflow_in, without_overflow
from tidemark.timeops.expressions.try_expression import Columns


def test_whether_a_sum_fits_does_not_depend_on_the_order_in_which_it_is_added_up(spark: SparkSession) -> None:
    largest = 2**63 - 1

    def summed(numbers: list[int | None], text: str) -> tuple[Any, ...]:
        rows: DataFrame = spark.createDataFrame([(number,) for number in numbers], "n BIGINT").coalesce(1)
        columns = Columns.of(rows)
        both = [without_overflow(text, columns), without_overflow(text, columns, in_decimals=True)]
        overflow = overflow_in(text, columns)
        assert overflow is not None
        return tuple(rows.agg(*[F.expr(one) for one in (*both, overflow)]).collect()[0])

    assert summed([largest, 1, -5, None], "sum(n)") == (largest - 4, largest - 4, False)
    assert summed([-5, largest, 1], "try_sum(n) - 1") == (largest - 5, largest - 5, False)
    assert summed([largest, 1], "sum(n)") == (None, None, True)
    assert summed([-largest, -2], "sum(ALL n)") == (None, None, True)
    assert summed([largest, largest - 1, largest], "sum(DISTINCT n) FILTER (WHERE n > 0)") == (None, None, True)
    assert summed([largest, -largest, largest], "sum(DISTINCT n)") == (0, 0, False)
    assert summed([None], "sum(n)") == (None, None, False)
