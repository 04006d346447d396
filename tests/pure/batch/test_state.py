"""State that batches keep for the next ones: rows of open sessions that count, times that duplicates need."""

import pyarrow as pa

from tidemark.assets.state.dedup import NEAR_US, joined
from tidemark.assets.state.windows import live_rows


def alive(*rows: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the rows that count, of some by their `_arrival_seq` and `_batch_id`."""
    seqs, batches = zip(*rows, strict=True)
    table = pa.table({"_arrival_seq": pa.array(seqs, pa.int64()), "_batch_id": pa.array(batches, pa.int64())})
    found = live_rows(table)
    return list(zip(found["_arrival_seq"].to_pylist(), found["_batch_id"].to_pylist(), strict=True))


def test_a_row_takes_back_the_event_of_its_number() -> None:
    assert alive((0, 1), (1, 1), (2, 3), (-1, 3)) == [(1, 1), (2, 3)]


def test_an_event_that_is_written_anew_by_the_batch_that_takes_it_back_stays() -> None:
    assert alive((7, 1), (-8, 3), (7, 3)) == [(7, 3)]


def test_of_several_rows_that_take_back_an_event_the_newest_counts() -> None:
    assert alive((7, 1), (-8, 3), (7, 3), (-8, 5), (7, 5), (8, 5)) == [(7, 5), (8, 5)]
    assert alive((7, 1), (-8, 5), (-8, 3), (7, 3)) == []


def test_without_rows_that_take_back_all_count() -> None:
    assert alive((3, 1), (4, 1)) == [(3, 1), (4, 1)]


def test_segments_that_overlap_or_are_near_each_other_are_one() -> None:
    far = 10 * NEAR_US
    assert joined([(far, far + 5), (0, 10), (4, 6), (10 + NEAR_US, 20 + NEAR_US)], 8) == (
        (0, 20 + NEAR_US),
        (far, far + 5),
    )


def test_beyond_the_most_those_with_the_least_between_them_are_joined() -> None:
    starts = [0, 10 * NEAR_US, 13 * NEAR_US, 30 * NEAR_US]
    spans = [(start, start + 1) for start in starts]
    assert joined(spans, 3) == (spans[0], (spans[1][0], spans[2][1]), spans[3])
    assert joined(spans, 1) == ((0, starts[3] + 1),)
    assert joined([], 3) == ()
