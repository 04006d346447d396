"""Sums and averages of decimals and intervals: exact, or null where the whole does not fit, in any order of rows."""

from collections.abc import Sequence
from decimal import Decimal
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.seeds import Dice
from tidemark.timeops.expressions.aggregates import overflow_in, without_overflow
from tidemark.timeops.expressions.determinism import in_event_order
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.windows.aggregates import with_aggregates

CASES = 1  # for each throw of the dice
AGGREGATES = {
    "total": "sum(x)",
    "mean": "avg(x) -- of all",
    "once": "try_sum(DISTINCT x)",
    "mean_once": "mean(DISTINCT x)",
    "part": "sum(x) FILTER (WHERE even)",
}


def results(frame: DataFrame, aggregates: dict[str, str]) -> DataFrame:
    columns = Columns.of(frame)
    exact = {name: without_overflow(text, columns) for name, text in aggregates.items()}
    return with_aggregates(frame.groupBy("g"), exact)


def decimal(units: int | None, precision: int, scale: int) -> Decimal | None:
    return None if units is None or abs(units) >= 10**precision else Decimal((units < 0, digits(units), -scale))


def digits(units: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(units))))


def total(units: Sequence[int]) -> int | None:
    return None if not units or abs(sum(units)) >= 10**38 else sum(units)


def mean(units: Sequence[int], parts: int) -> int | None:
    """Rounded half up, in so many parts of a unit."""
    whole = total(units)
    if whole is None:
        return None
    rounded = (2 * abs(whole) * parts + len(units)) // (2 * len(units))
    return rounded if whole >= 0 else -rounded


@pytest.mark.parametrize(
    ("precision", "scale"),
    [(38, 0), *(pytest.param(*of, marks=pytest.mark.long) for of in ((38, 38), (38, 17), (29, 21), (11, 2)))],
)
def test_sums_of_decimals_are_exact_or_null_by_the_whole_alone(
    spark: SparkSession, dice: Dice, precision: int, scale: int
) -> None:
    rng, top = Random(dice.seed(7)), 10**precision - 1
    groups: list[list[int]] = [[top, top, -top], [top, -top, top], [top, top], [-top, -1, 5], [], [top, -top]]
    for _ in range(30):
        size = 10 ** rng.randint(1, precision)
        some = [rng.choice([top, -top, rng.randrange(-size, size)]) for _ in range(rng.randint(1, 9))]
        groups.append([*some, *(-one for one in some[: rng.randint(0, 9)])])
    rows = [
        (g, number % 2 == 0, decimal(units, precision, scale))
        for g, group in enumerate(groups)
        for number, units in enumerate(group or [None])
    ]
    rng.shuffle(rows)
    frame = spark.createDataFrame(rows, f"g INT, even BOOLEAN, x DECIMAL({precision}, {scale})")
    found = results(frame, AGGREGATES)
    sparks_own = frame.agg(*[F.expr(f"{text}\n").alias(name) for name, text in AGGREGATES.items()]).schema
    assert [found.schema[field.name].dataType for field in sparks_own] == [field.dataType for field in sparks_own]
    of_mean = min(38, precision + 4), min(38, scale + 4)
    parts = 10 ** (of_mean[1] - scale)
    by_group = {row["g"]: row for row in found.collect()}
    for g, group in enumerate(groups):
        expected = {
            "total": decimal(total(group), 38, scale),
            "mean": decimal(mean(group, parts), *of_mean),
            "once": decimal(total([*set(group)]), 38, scale),
            "mean_once": decimal(mean([*set(group)], parts), *of_mean),
            "part": decimal(total(group[::2]), 38, scale),
        }
        assert {name: by_group[g][name] for name in expected} == expected, group


def test_sums_of_intervals_are_exact_and_fail_in_no_order(spark: SparkSession) -> None:
    longest, months = "make_dt_interval(106751991)", "make_ym_interval(0, 2147483647)"
    rows = {
        "fits": [(longest, months), (longest, months), (f"-{longest}", f"-{months}")],
        "turned": [(f"-{longest}", f"-{months}"), (longest, months), (longest, months)],
        "too much": [(longest, months), (longest, months)],
    }
    values = ", ".join(f"('{g}', {day}, {month})" for g, pairs in rows.items() for day, month in pairs)
    frame = spark.sql(f"SELECT * FROM VALUES {values} AS t(g, d, m)")
    aggregates = {
        "days": "extract(DAY FROM sum(d))",
        "years": "extract(YEAR FROM sum(m))",
        "mean_days": "extract(DAY FROM avg(d))",
        "mean_years": "extract(YEAR FROM avg(m))",
    }
    found = {row["g"]: tuple(row)[1:] for row in results(frame, aggregates).collect()}
    whole = (106751991, 178956970, 35583997, 59652323)
    assert found == {"fits": whole, "turned": whole, "too much": (None, None, 106751991, 178956970)}


def test_a_sum_that_does_not_fit_is_told_from_one_of_nothing(spark: SparkSession) -> None:
    top = Decimal(10**38 - 1)
    rows = [("over", top), ("over", Decimal(1)), ("fits", top), ("fits", Decimal(-1)), ("none", None)]
    frame = spark.createDataFrame(rows, "g STRING, x DECIMAL(38, 0)")
    told = {}
    for aggregate in ("sum(x)", "1 + coalesce(avg(x), 0)"):
        overflow = overflow_in(aggregate, Columns.of(frame))
        assert overflow is not None
        told[aggregate] = {
            row["g"]: row["over"] for row in frame.groupBy("g").agg(F.expr(overflow).alias("over")).collect()
        }
    assert told["sum(x)"] == {"over": True, "fits": False, "none": False}
    assert told["1 + coalesce(avg(x), 0)"] == {"over": True, "fits": True, "none": False}  # four digits more
    shorter = Columns.of(frame.selectExpr("CAST(x AS DECIMAL(28, 0)) AS x"))
    assert overflow_in("sum(x)", shorter) is None


FIRST_AND_LAST = {
    "first": "first(x)",
    "last": "last_value(x)",
    "first_value": "first(x, true)",
    "last_value": "last(x) IGNORE NULLS",
    "last_even": "last(x) FILTER (WHERE x % 2 = 0)",
    "change": "last(x, true) - first(x, true)",
}


def test_first_and_last_values_go_by_event_time_and_then_by_arrival(spark: SparkSession, dice: Dice) -> None:
    rng = Random(dice.seed(8))
    rows = [
        (g, rng.randrange(4), seq, rng.choice([None, *range(9)]))
        for g in range(20)
        for seq in range(rng.randint(1, 7))
    ]
    rng.shuffle(rows)
    frame = spark.createDataFrame(rows, "g INT, _timestamp INT, _arrival_seq INT, x INT").repartition(3)
    read = {name: in_event_order(text) for name, text in FIRST_AND_LAST.items()}
    for row in results(frame, read).collect():
        values = [x for g, _, _, x in sorted(rows, key=lambda row: row[:3]) if g == row["g"]]
        some = [x for x in values if x is not None] or [None]
        even = [x for x in values if x is not None and x % 2 == 0] or [None]
        change = None if some == [None] else some[-1] - some[0]
        assert tuple(row)[1:] == (values[0], values[-1], some[0], some[-1], even[-1], change)
