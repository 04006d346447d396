"""Which spans of event time a batch asks for when it looks for duplicates."""

from tidemark.assets.state.dedup import NEAR_US, joined


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
