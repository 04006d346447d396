"""Hashes of rows: equal for equal rows in any order, cut in any way; another value has another one."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemark.resources.delta.row_hashes import row_hashes

AT = datetime(2026, 1, 1, tzinfo=UTC)
ROW: dict[str, Any] = {
    "at": AT,
    "day": date(2026, 1, 1),
    "k": "a",
    "n": 3,
    "total": 1.5,
    "price": Decimal("1.50"),
    "done": True,
    "seen": ["a", "b"],
    "best": {"x": 1.5, "y": None},
    "raw": b"a",
}


def hashes(*rows: dict[str, Any]) -> list[int]:
    batch = pa.RecordBatch.from_pylist([dict(row) for row in rows])
    return [int(one) for one in row_hashes(batch)]


def test_rows_have_one_number_each_in_any_order_and_among_any_others() -> None:
    other, third = {**ROW, "k": "b"}, {**ROW, "k": None}
    [one, two, three] = hashes(ROW, other, third)
    assert len({one, two, three}) == 3
    assert hashes(third, ROW) == [three, one]
    assert hashes(ROW) == hashes({name: ROW[name] for name in reversed(ROW)}) == [one]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("day", date(2026, 1, 2)),
        ("k", "b"),
        ("k", None),
        ("n", -3),
        ("n", None),
        ("total", 1.500000001),
        ("total", -1.5),
        ("total", float("nan")),
        ("total", float("inf")),
        ("total", 1e-300),
        ("price", Decimal("1.51")),
        ("done", False),
        ("seen", ["b", "a"]),
        ("seen", []),
        ("best", {"x": 1.5, "y": 0}),
        ("best", {"x": 1.6, "y": None}),
        ("raw", b"b"),
    ],
)
def test_another_value_has_another_number(name: str, value: object) -> None:
    assert hashes({**ROW, name: value}) != hashes(ROW)


def test_values_of_two_columns_that_change_places_have_another_number() -> None:
    assert hashes({"a": 1, "b": 2}) != hashes({"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.1 + 0.2, 0.3),
        (sum([0.1] * 1000), 100.0),
        (-0.0, 0.0),
        (999999999.9999999, 1e9),
        (1e308 / 3, 1e308 / 3 * (1 + 1e-15)),
        (1e-280 / 3, 1e-280 / 3 * (1 + 1e-15)),
        (float("nan"), -float("nan")),
        (5e-324, 0.0),
    ],
)
def test_floats_of_ten_equal_digits_have_one_number_also_in_structs(one: float, other: float) -> None:
    assert hashes({"v": one}) == hashes({"v": other})
    if abs(one) > 1e-300:
        assert hashes({"v": {"x": [one]}}) == hashes({"v": {"x": [other]}})


def test_a_column_that_comes_later_changes_no_number_of_earlier_rows_and_a_wider_integer_none() -> None:
    rows = pa.RecordBatch.from_pylist([{"k": "a", "n": 1}])
    wider = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.array([1], pa.int16()), pa.nulls(1, pa.float64())], names=["k", "n", "new"]
    )
    assert np.array_equal(row_hashes(rows), row_hashes(wider))


def test_numbers_stay_from_version_to_version() -> None:
    """Others would let every asset downstream take all days for changed."""
    assert hashes({"at": AT, "k": "a", "n": 3, "total": 0.1}) == [1255615592926576575]


def test_no_row_has_no_number() -> None:
    assert row_hashes(pa.RecordBatch.from_pylist([ROW]).slice(0, 0)).size == 0
