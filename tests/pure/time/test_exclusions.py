"""Which records are excluded after some control items, and how their numbers are stored."""

import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tidemark.assets.log.exclusions import excluded_by, numbers_in, pairs_in, pairs_of, ranges_of


def item(kind: str, *ranges: list[int], after: int = 99, moved: bool = False) -> dict[str, Any]:
    argument = json.dumps({"records": ranges, "moved_clock": moved})
    return {"kind": kind, "argument": argument, "_after_seq": after}


def correction(*replaced: list[int], removed: list[list[int]] | None = None) -> dict[str, Any]:
    argument = json.dumps({"records": removed or [], "replaced": replaced, "moved_clock": False})
    return {"kind": "correction", "argument": argument, "_after_seq": 99}


@pytest.mark.parametrize("seed", range(20))
def test_ranges_hold_the_numbers_that_they_were_made_of(seed: int) -> None:
    rng = random.Random(seed)
    numbers = np.array(sorted(rng.sample(range(30), rng.randint(1, 30))), np.int64)
    ranges = ranges_of(numbers)
    assert numbers_in(ranges).tolist() == numbers.tolist()
    assert all(second[0] > first[1] + 1 for first, second in pairwise(ranges))


def test_items_are_taken_in_their_order() -> None:
    out = excluded_by([item("exclude", [2, 5], [9, 9]), item("include", [3, 4]), item("exclude", [4, 4])])
    assert out.seqs.tolist() == [2, 4, 5, 9]
    assert out.between(4, 9).tolist() == [4, 5]
    assert [out.concerns(0, 2), out.concerns(3, 5), out.concerns(10, 99)] == [False, True, False]


def test_what_moved_the_clock_concerns_all_that_was_read_until_then() -> None:
    out = excluded_by([item("exclude", [7, 7], moved=True), item("include", [7, 7], after=120, moved=True)])
    assert (out.seqs.tolist(), out.clock_until) == ([], 121)
    assert [out.concerns(100, 110), out.concerns(121, 130)] == [True, False]


@pytest.mark.parametrize("seed", range(20))
def test_runs_hold_the_places_and_the_records_that_they_were_made_of(seed: int) -> None:
    rng = random.Random(seed)
    places = np.array(sorted(rng.sample(range(20), rng.randint(0, 20))), np.int64)
    records = np.array(sorted(rng.sample(range(20, 45), len(places))), np.int64)
    runs = pairs_of(places, records)
    assert [numbers.tolist() for numbers in pairs_in(runs)] == [places.tolist(), records.tolist()]
    assert all((b[0], b[1]) != (a[0] + a[2], a[1] + a[2]) for a, b in pairwise(runs))


def test_a_record_that_took_a_place_gives_it_to_the_next_and_leaves_the_log_with_it() -> None:
    first = correction([3, 10, 2], [7, 12, 1])
    out = excluded_by([first])
    assert (out.places.tolist(), out.records.tolist(), out.seqs.tolist()) == ([3, 4, 7], [10, 11, 12], [10, 11, 12])
    out = excluded_by([first, correction([4, 13, 1]), item("exclude", [4, 4])])
    assert (out.places.tolist(), out.records.tolist()) == ([3, 4, 7], [10, 13, 12])
    assert out.seqs.tolist() == [4, 10, 11, 12, 13]
    assert out.places_of(np.array([0, 4, 10, 11, 13])).tolist() == [0, 3, 4]
    out = excluded_by([first, correction([4, 13, 1], removed=[[3, 3]])])
    assert (out.places.tolist(), out.records.tolist(), out.seqs.tolist()) == ([4, 7], [13, 12], [3, 10, 11, 12, 13])
    assert out.between(0, 10).tolist() == [3]


@pytest.mark.parametrize("seed", range(20))
def test_any_items_leave_the_log_that_a_table_of_places_has_after_them(seed: int) -> None:
    rng = random.Random(seed)
    log = {place: place for place in range(15)}
    end, out_by_hand, items = 15, set[int](), []
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.3:
            place = rng.randrange(15)
            kind = rng.choice(["exclude", "include"])
            (out_by_hand.add if kind == "exclude" else out_by_hand.discard)(place)
            items.append(item(kind, [place, place]))
            continue
        touched = sorted(rng.sample(sorted(log), rng.randint(0, min(4, len(log)))))
        replaced = [place for place in touched if rng.random() < 0.6]
        removed = [place for place in touched if place not in replaced]
        records = list(range(end, end + len(replaced)))
        new = list(range(end + len(replaced), end + len(replaced) + rng.randint(0, 2)))
        end += len(replaced) + len(new)
        pairs = pairs_of(np.array(replaced, np.int64), np.array(records, np.int64))
        items.append(correction(*pairs, removed=ranges_of(np.array(removed, np.int64))))
        log |= dict(zip(replaced, records, strict=True)) | {seq: seq for seq in new}
        log = {place: record for place, record in log.items() if place not in removed}
    found = excluded_by(items)
    moved = dict(zip(found.places.tolist(), found.records.tolist(), strict=True))
    there = {seq: moved.get(seq, seq) for seq in range(end) if seq not in set(found.seqs.tolist())}
    assert there == {place: record for place, record in log.items() if place not in out_by_hand}
    assert found.places.tolist() == sorted(moved)
