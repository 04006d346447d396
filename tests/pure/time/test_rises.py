"""Look-ups in how watermarks rose, by number: the oracle's tests of the loop have the watermarks themselves."""

import numpy as np

from tidemark.timeops.watermark.rises import _Ascending, _bisect


def test_timelines_come_to_a_number_where_a_bisection_finds_it() -> None:
    chance = np.random.default_rng(7)
    for timelines, count in ((1, 0), (1, 1), (1, 40), (7, 5), (7, 200)):
        timeline = np.sort(chance.integers(0, timelines, count))
        numbers = chance.integers(-9, 9, count)
        numbers = numbers[np.lexsort((numbers, timeline))]
        begins = np.searchsorted(timeline, np.arange(timelines + 1))
        asked, wanted = chance.integers(0, timelines, 300), chance.integers(-12, 12, 300)
        padded = np.append(numbers, 0)
        expected = _bisect(padded.take, begins[asked], begins[asked + 1], wanted)
        assert _Ascending.of(timeline, numbers).first(asked, wanted).tolist() == expected.tolist()
