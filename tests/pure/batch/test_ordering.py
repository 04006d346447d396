"""Rows are written in the order that was asked for, whatever way they lie and however few may wait in memory."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tidemark.resources.delta import ordering
from tidemark.resources.delta.ordering import Places, Rows, in_order

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("rank", pa.int64()), ("lacks", pa.float64())])


def rows_of(first: int, count: int, piece: int, *, backwards: bool = False) -> Rows:
    """Returns rows that are read some at a time; the reader may yield more than it was asked for."""

    def read(span: range) -> Iterator[tuple[Places, pa.Table]]:
        starts = range(span.start // piece * piece, span.stop, piece)
        for start in reversed(starts) if backwards else starts:
            places = np.arange(start, min(start + piece, count))
            yield places, pa.table({"n": first + places, "text": [f"é{n}" * 20 for n in first + places]})

    return Rows(count, read)


@pytest.mark.parametrize("waiting_bytes", [0, 5_000, 1 << 30])
@pytest.mark.parametrize("far", [0, 20, 10_000])
@pytest.mark.parametrize("backwards", [False, True])
def test_rows_are_written_in_any_order(
    monkeypatch: pytest.MonkeyPatch, waiting_bytes: int, far: int, *, backwards: bool
) -> None:
    drawn = np.random.default_rng(far)
    for name, value in {
        "_GROUP_ROWS": 7,
        "_LEAST_ROWS": 50,
        "FILE_ROWS": 90,
        "_WAITING_BYTES": waiting_bytes,
    }.items():
        monkeypatch.setattr(ordering, name, value)
    counts = [0, 130, 1, 300]
    parts = [rows_of(sum(counts[:n]), count, 11, backwards=backwards) for n, count in enumerate(counts)]
    at = np.arange(sum(counts)) + drawn.integers(0, far + 1, sum(counts))
    wanted = np.flatnonzero(drawn.random(sum(counts)) < 0.9)
    order = wanted[np.argsort(at[wanted], kind="stable")]
    pieces = in_order(parts, order, {"rank": lambda own: pa.array(range(own.start, own.stop))})
    batches = [[*piece(SCHEMA)] for piece in pieces]
    assert all(batch.num_rows <= 7 for piece in batches for batch in piece)
    made = pa.Table.from_batches([batch for piece in batches for batch in piece], SCHEMA)
    assert made["n"].to_pylist() == order.tolist()
    assert made["rank"].to_pylist() == list(range(len(order)))
    assert made["text"].to_pylist() == [f"é{n}" * 20 for n in order]
    assert len(pieces) == (5 if far < 10_000 else 2), "files far out of order share their reads"


def test_no_rows_make_no_file() -> None:
    assert in_order([rows_of(0, 3, 2)], np.zeros(0, np.int64), {}) == []
    assert in_order([], np.zeros(0, np.int64), {}) == []
