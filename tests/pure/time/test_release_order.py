"""The order of released events, told in one pass: what it lets through, and what it leaves to a query."""

import pyarrow as pa
import pytest

from tidemark.assets.recount import records
from tidemark.assets.recount.records import is_in_order

Row = tuple[int | None, int | None, int]


def piece(*rows: Row) -> pa.RecordBatch:
    numbers, times, arrivals = zip(*rows, strict=True)
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array(times, pa.timestamp("us", "UTC")),
        pa.array(arrivals, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["_release_seq", "_timestamp", "_arrival_seq"])


def holds(*pieces: pa.RecordBatch, start: int = 0, limit_us: int = 100) -> bool:
    return is_in_order(pieces, start=start, limit_us=limit_us)


def test_dense_numbers_that_follow_time_and_arrival_are_in_order() -> None:
    assert holds(piece((0, 10, 5), (1, 10, 6)), piece((2, 20, 1)))
    assert holds(piece((7, 10, 5)), start=7)


def test_pieces_may_lie_in_any_order() -> None:
    assert holds(piece((2, 20, 1), (3, 21, 4)), piece((0, 10, 5), (1, 10, 6)))
    assert holds(piece((1, 11, 1), (0, 10, 5), (2, 12, 6)))


def test_rows_outside_of_the_sequence_do_not_count() -> None:
    assert holds(piece((0, 10, 5), (None, 200, 6), (1, 11, 7)))
    assert holds(piece((None, 5, 6)))
    assert holds()


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(0, 10, 5), (2, 11, 6)], id="a number is missing"),
        pytest.param([(0, 10, 5), (0, 10, 5), (1, 11, 6)], id="a number stands twice"),
        pytest.param([(1, 10, 5), (2, 11, 6)], id="it begins too late"),
        pytest.param([(0, 12, 5), (1, 11, 6)], id="time goes back"),
        pytest.param([(0, 10, 6), (1, 10, 5)], id="of one time the later arrival comes first"),
        pytest.param([(0, 10, 5), (1, 100, 6)], id="an event is not behind the limit"),
        pytest.param([(0, 10, 5), (1, None, 6)], id="an event has no time"),
    ],
)
def test_what_breaks_the_order_is_seen_inside_a_piece_and_between_pieces(rows: list[Row]) -> None:
    assert not holds(piece(*rows))
    assert not holds(*[piece(row) for row in rows])


def test_rows_that_lie_too_scattered_are_left_to_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    scattered = piece((4, 14, 1), (3, 13, 1), (2, 12, 1), (1, 11, 1), (0, 10, 1))
    assert holds(scattered)
    monkeypatch.setattr(records, "_MOST_RUNS", 4)
    assert not holds(scattered)
