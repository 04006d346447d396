"""The order of released events, told in one pass: what it lets through, and what it leaves to a query."""

import pyarrow as pa
import pytest

from tidemark.assets.recount import sequences
from tidemark.assets.recount.sequences import RELEASE_COLUMNS, are_in_order

Row = tuple[int | None, int | None, int]


def piece(*rows: Row, timeline: str = "[]") -> pa.RecordBatch:
    numbers, times, arrivals = zip(*rows, strict=True)
    columns = [
        pa.array([timeline] * len(rows)),
        pa.array(numbers, pa.int64()),
        pa.array(times, pa.timestamp("us", "UTC")),
        pa.array(arrivals, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=RELEASE_COLUMNS)


def holds(*pieces: pa.RecordBatch, start: int = 0, limit_us: int = 100) -> bool:
    return are_in_order(pieces, {"[]": start}, {"[]": limit_us})


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


def test_each_timeline_has_numbers_and_a_limit_of_its_own() -> None:
    pieces = [piece((3, 50, 1), (4, 51, 4), timeline="a"), piece((0, 10, 2), (1, 10, 3), timeline="b")]
    starts = {"a": 3, "c": 9}
    assert are_in_order(pieces, starts, {"a": 52, "b": 11})
    assert not are_in_order(pieces, {}, {"a": 52, "b": 11})
    assert not are_in_order(pieces, starts, {"a": 51, "b": 11})
    assert not are_in_order(pieces, starts, {"a": 52})  # the state does not know `b`


def test_rows_may_be_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "_MOST_RUNS", 2)
    rows = [piece((number, 10 + number, 1)) for number in (4, 0, 2, 1, 3)]
    assert holds(*rows)
    assert not holds(*rows[:-1])
