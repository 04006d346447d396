"""Running maxima equal a plain loop over the rows, whatever the width of the cells."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.seeds import Dice
from tidemark.timeops import asof
from tidemark.timeops.asof import with_largest_at_or_above, with_largest_at_or_below, with_maxima_before

CASES = 1
KEYS = ("a", "b", "c")

Row = tuple[str, int, int | None]
Look = Callable[..., DataFrame]


def rows_of(rng: random.Random, count: int, places: int) -> list[Row]:
    """Rows with ties, empty stretches, places below zero, and values that are null."""
    return [
        (rng.choice(KEYS), rng.randint(-places, places), rng.choice([None, rng.randint(-9, 9)])) for _ in range(count)
    ]


def highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


@pytest.mark.parametrize("in_cells", [True, False])
def test_every_row_finds_the_largest_of_the_earlier_rows_of_its_key(
    spark: SparkSession, dice: Dice, in_cells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asof, "CELL_ROWS", 4)
    rng = random.Random(dice.seed(1))
    rows = [(rng.choice(KEYS), 3 * seq - 50, rng.choice([None, rng.randint(-9, 9)])) for seq in range(60)]
    carried = {"a": 2, "b": None}
    frame = spark.createDataFrame(rows, "k STRING, seq BIGINT, own BIGINT")
    before = spark.createDataFrame(list(carried.items()), "k STRING, m BIGINT")
    found = with_maxima_before(frame, before, {"m": F.col("own")}, key="k", place="seq", in_cells=in_cells)
    expected = {
        (key, seq): highest([carried.get(key), *(own for other, at, own in rows if other == key and at < seq)])
        for key, seq, _ in rows
    }
    assert {(row["k"], row["seq"]): row["m"] for row in found.collect()} == expected
    assert {(row["k"], row["seq"], row["m__own"]) for row in found.collect()} == set(rows)


@pytest.mark.parametrize("width", [1, 3, 8, 1_000, None])
@pytest.mark.parametrize(
    ("look", "counts"),
    [
        pytest.param(with_largest_at_or_below, lambda mark, place: mark <= place, id="below"),
        pytest.param(with_largest_at_or_above, lambda mark, place: mark >= place, id="above"),
    ],
)
def test_rows_find_the_largest_of_the_marks_on_one_side_of_them(
    spark: SparkSession, dice: Dice, look: Look, counts: Callable[[int, int], bool], width: int | None
) -> None:
    rng = random.Random(dice.seed(2))
    marks = [*rows_of(rng, 50, 40), ("d", 0, 1)]  # of the last key no row asks
    asked = [(key, at, n) for n, (key, at, _) in enumerate([*rows_of(rng, 40, 50), ("e", 0, 0)])]  # e has no mark
    found = look(
        spark.createDataFrame(asked, "k STRING, at BIGINT, n INT"),
        spark.createDataFrame(marks, "k STRING, at BIGINT, value BIGINT"),
        "value",
        key="k",
        place="at",
        width=width,
    )
    expected = {
        number: (key, place, highest(value for other, at, value in marks if other == key and counts(at, place)))
        for key, place, number in asked
    }
    assert found.columns == ["k", "at", "n", "value"]
    assert {row["n"]: (row["k"], row["at"], row["value"]) for row in found.collect()} == expected


def test_the_first_of_several_marks_is_found_by_values_of_which_it_is_the_largest(spark: SparkSession) -> None:
    marks = [("a", 10, 5), ("a", 20, 3), ("a", 30, 4)]
    named = spark.createDataFrame(marks, "k STRING, at BIGINT, seq BIGINT").select(
        "k", "at", F.struct((-F.col("seq")).alias("negative_seq"), F.col("at").alias("came")).alias("mark")
    )
    asked = spark.createDataFrame([("a", 5), ("a", 11), ("a", 21), ("a", 31)], "k STRING, at BIGINT")
    for width in (4, None):
        found = with_largest_at_or_above(asked, named, "mark", key="k", place="at", width=width)
        seen: dict[int, Any] = {row["at"]: row["mark"] and row["mark"]["came"] for row in found.collect()}
        assert seen == {5: 20, 11: 20, 21: 30, 31: None}
