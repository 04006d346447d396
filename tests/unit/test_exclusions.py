"""Which records are excluded after some control items, and how their numbers are stored."""

import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tidemark.assets.exclusions import excluded_by, numbers_in, ranges_of


def item(kind: str, *ranges: list[int], after: int = 99, moved: bool = False) -> dict[str, Any]:
    argument = json.dumps({"records": ranges, "moved_clock": moved})
    return {"kind": kind, "argument": argument, "_after_seq": after}


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
