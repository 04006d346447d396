"""Rows that were set aside are taken by their numbers, in any order, again and again."""

import numpy as np
import pyarrow as pa
import pytest

from tests.pure.batch.test_ordering import rows_of
from tidemark.resources.delta import ordering
from tidemark.resources.delta.taking import taken

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("lacks", pa.float64())])


@pytest.mark.parametrize("wanted", [300, 9, 0])
def test_rows_are_taken_by_their_numbers_and_nobody_has_nothing(monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    for name, value in {"_GROUP_ROWS": 7, "_LEAST_ROWS": 50, "FILE_ROWS": 90}.items():
        monkeypatch.setattr(ordering, name, value)
    drawn = np.random.default_rng(wanted)
    order = drawn.permutation(431)[:wanted]
    parts = [rows_of(0, 130, 11), rows_of(130, 1, 11), rows_of(131, 300, 11, backwards=True)]
    with taken(parts, order, SCHEMA) as rows:
        for numbers in (np.arange(wanted), drawn.integers(-1, wanted, 1_000), np.full(3, -1), np.zeros(0, np.int64)):
            found = rows.take(numbers, ["text", "n"])
            values = [None if number < 0 else int(order[number]) for number in numbers]
            assert found["n"].to_pylist() == values
            assert found["text"].to_pylist() == [None if n is None else f"é{n}" * 20 for n in values]
            assert found.column_names == ["text", "n"]
            assert rows.take(numbers, ["lacks"])["lacks"].null_count == len(numbers)
