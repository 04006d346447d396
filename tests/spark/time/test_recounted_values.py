"""The recount of windows takes for one result sums in another order, inside other values too, and no more."""

import math
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.assets.recount.windows import is_same, is_sure, moved_sums, with_column
from tidemark.timeops.expressions.aggregates import overflow_in, without_overflow

NESTED = "struct<a: array<double>, m: map<string, struct<v: float>>, t: string>"


def nested(sum_: float | None, text: str = "x", *more: float) -> dict[str, Any]:
    return {"a": [1.0, sum_, *more], "m": {"k": {"v": sum_}, "j": {"v": 1.0}}, "t": text}


def test_values_may_be_apart_as_far_as_the_sums_inside_them_move(spark: SparkSession) -> None:
    base, up, down = nested(0.0), nested(1e-3), nested(-1e-3)
    other_order = {"a": [1.0, 0.0], "m": {"j": {"v": 1.0}, "k": {"v": 0.0}}, "t": "x"}
    cases: list[tuple[Any, Any, Any, bool, bool]] = [  # written, again, moved, same, sure
        (base, base, base, True, True),
        (other_order, base, base, True, True),
        (nested(1e-4), base, up, True, True),
        (nested(-2e-3), base, up, False, True),
        (nested(1e-4), base, base, False, True),
        (nested(0.0, "y"), base, up, False, True),
        (nested(0.0, "x", 1.0), base, up, False, True),
        (base, base, nested(0.0, "y"), True, False),  # the text depends on the sum
        (base, base, nested(0.0, "x", 1.0), True, False),
        (base, base, nested(math.inf), True, False),
        (base, base, nested(math.nan), True, False),
        (nested(math.nan), nested(math.nan), nested(math.nan), True, True),
        (base, base, nested(None), True, False),
        (nested(None), base, down, False, True),
        (None, base, base, False, True),
        (None, None, None, True, True),
        (base, None, base, False, False),
    ]
    rows = spark.createDataFrame([case[:3] for case in cases], f"old {NESTED}, again {NESTED}, moved {NESTED}")
    kind, moved = rows.schema["old"].dataType, ["moved"]
    found = rows.selectExpr(is_same("old", "again", moved, kind), is_sure("again", moved, kind))
    assert [tuple(row) for row in found.collect()] == [case[3:] for case in cases]


@pytest.mark.parametrize("only", ["", " FILTER (WHERE x > -5)"])
def test_a_sum_in_another_order_is_within_the_moved_ones(spark: SparkSession, only: str) -> None:
    rng = random.Random(3)
    numbers = [rng.choice([-1, 1]) * rng.random() * 10 ** rng.randint(-9, 1) for _ in range(300)]
    numbers += [-number for number in numbers]
    rows = spark.createDataFrame([(number, int(number), "1.5") for number in numbers], "x DOUBLE, i BIGINT, s STRING")
    assert moved_sums("max(x) + sum(i) + count(x) + median(x)", rows) == ()
    assert moved_sums("percentile_approx(x, 0.5)", rows) is None
    assert len(moved_sums("sum(x) / sum(s) + avg(i)", rows) or ()) == 6
    aggregates = [f"{name}(x){only}" for name in ("sum", "avg", "variance", "stddev_pop")]
    texts = [text for one in aggregates for text in (one, *(moved_sums(one, rows) or ()))]
    orders = [rows.coalesce(1).sort(*keys) for keys in ([F.col("x")], [F.desc("x")], [F.abs("x")], [F.hash("x")])]
    found = [one.agg(*map(F.expr, texts)).collect()[0] for one in orders]
    values = [[row[place] for row in found] for place in range(len(texts))]
    for start in range(0, len(texts), 3):
        plain, up, down = values[start : start + 3]
        assert max(down) <= min(plain) <= max(plain) <= min(up)
        assert up[0] - down[0] < 1e-9
    assert len(set(values[0])) > 1, "the orders give different sums"


def test_names_of_columns_are_exchanged_and_nothing_else() -> None:
    exchanged = with_column("total > 0 AND TOTAL.x < `total` AND total(1) = 'total'", "total", "n")
    assert exchanged == "`n` > 0 AND `n`.x < `n` AND total(1) = 'total'"


def test_whether_a_sum_fits_does_not_depend_on_the_order_in_which_it_is_added_up(spark: SparkSession) -> None:
    largest = 2**63 - 1

    def summed(numbers: list[int | None], text: str) -> tuple[Any, ...]:
        rows: DataFrame = spark.createDataFrame([(number,) for number in numbers], "n BIGINT").coalesce(1)
        both = [without_overflow(text, rows), without_overflow(text, rows, in_decimals=True)]
        overflow = overflow_in(text, rows)
        assert overflow is not None
        return tuple(rows.agg(*[F.expr(one) for one in (*both, overflow)]).collect()[0])

    assert summed([largest, 1, -5, None], "sum(n)") == (largest - 4, largest - 4, False)
    assert summed([-5, largest, 1], "try_sum(n) - 1") == (largest - 5, largest - 5, False)
    assert summed([largest, 1], "sum(n)") == (None, None, True)
    assert summed([-largest, -2], "sum(ALL n)") == (None, None, True)
    assert summed([largest, largest - 1, largest], "sum(DISTINCT n) FILTER (WHERE n > 0)") == (None, None, True)
    assert summed([largest, -largest, largest], "sum(DISTINCT n)") == (0, 0, False)
    assert summed([None], "sum(n)") == (None, None, False)
