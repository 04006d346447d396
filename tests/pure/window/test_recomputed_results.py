"""Results that are recomputed equal the written ones but for the rounding of sums, inside of other values, too."""

import math
from typing import Any

import pytest
from pyspark.sql import types as T

from tidemark.assets.recount.windows import _floats, _is_comparable, _is_same

NESTED = {"a": [1.0, 0.5], "m": {"k": (0.5, "x")}, "n": None}


@pytest.mark.parametrize(
    ("written", "recomputed", "is_same"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-6, False),
        (1e-13, 0.0, True),  # debits and credits that cancel: the largest of the column is 1
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.nan, 1.0, False),
        (None, 0.0, False),
        (None, None, True),
        (3, 4, False),
        ("a", "a", True),
        (NESTED, {"a": [1.0, 0.5 + 1e-13], "m": {"k": (0.5, "x")}, "n": None}, True),
        (NESTED, {"a": [1.0, 0.6], "m": {"k": (0.5, "x")}, "n": None}, False),
        (NESTED, {"a": [1.0], "m": {"k": (0.5, "x")}, "n": None}, False),
        (NESTED, {"a": [1.0, 0.5], "m": {"j": (0.5, "x")}, "n": None}, False),
        (NESTED, {"a": [1.0, 0.5], "m": {"k": (0.5, "y")}, "n": None}, False),
    ],
)
def test_values_are_one_but_for_rounding(written: Any, recomputed: Any, is_same: bool) -> None:
    assert _is_same(written, recomputed, 1.0) == is_same


def test_the_numbers_of_floating_point_in_a_value_are_found() -> None:
    assert [*_floats({"a": [1.0, (2.0, math.nan)], "b": {"c": -3.0, "d": 4}})] == [1.0, 2.0, -3.0]


@pytest.mark.parametrize(
    ("aggregate", "kind", "is_comparable"),
    [
        ("sum(x)", T.DoubleType(), True),
        ("cast(sum(x) AS STRING)", T.StringType(), False),
        ("sum(x) > 1", T.BooleanType(), False),
        ("max(x)", T.StringType(), True),
        ("percentile_approx(x, 0.5)", T.DoubleType(), False),
        ("hll_sketch_estimate(hll_sketch_agg(x))", T.LongType(), False),
    ],
)
def test_what_the_order_of_rows_changes_by_more_is_not_compared(
    aggregate: str, kind: T.DataType, is_comparable: bool
) -> None:
    assert _is_comparable(aggregate, kind) == is_comparable
