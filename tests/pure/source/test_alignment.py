"""Which sources are read on and which wait: by cases, and by what holds for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.timeops.rules import SourceTime
from tidemark.timeops.watermark.alignment import Progress, source_watermark, split_watermark, those_ahead

S = 1_000_000


def source(tolerance_s: int = 0, splits: tuple[str, ...] = ()) -> SourceTime:
    return SourceTime("a", "t", "UTC", tolerance_s * S, splits=splits)


@pytest.mark.parametrize(
    ("given_source", "largest", "watermark_us"),
    [
        (source(), {}, None),
        (source(), {("b", None): 5 * S}, None),
        (source(), {("a", None): 5 * S, ("b", None): 1 * S}, 5 * S),
        (source(2), {("a", "x"): 5 * S, ("a", None): 3 * S}, 1 * S),
        (source(), {("a", "x"): 5 * S, ("a", "only_refused"): None}, 5 * S),
        (source(splits=("x", "y")), {("a", "x"): 5 * S}, None),
        (source(splits=("x", "y")), {("a", "x"): 5 * S, ("a", "y"): None}, None),
        (source(splits=("x", "y")), {("a", "x"): 5 * S, ("a", "y"): 4 * S}, 4 * S),
    ],
)
def test_a_source_has_the_watermark_of_its_lowest_split(
    given_source: SourceTime, largest: dict[tuple[str, str | None], int | None], watermark_us: int | None
) -> None:
    assert source_watermark(given_source, largest) == watermark_us


def test_a_split_that_is_read_by_itself_has_a_watermark_of_its_own() -> None:
    largest: dict[tuple[str, str | None], int | None]
    largest = {("a", "x"): 5 * S, ("a", "y"): 9 * S, ("a", "none_timed"): None, ("b", "z"): 1 * S}
    found = [split_watermark(source(2), split, largest) for split in ("x", "y", "none_timed", "z")]
    assert found == [3 * S, 7 * S, None, None]


def at(watermark_s: int | None, *, drift_s: int = 60, group: str = "g") -> Progress:
    return Progress(group, drift_s * S, None if watermark_s is None else watermark_s * S)


@pytest.mark.parametrize(
    ("waiting", "ahead"),
    [
        ({}, ""),
        ({"a": at(100)}, ""),  # the others have nothing waiting
        ({"a": at(0), "b": at(60)}, ""),  # exactly the drift
        ({"a": at(0), "b": at(61)}, "b"),
        ({"a": at(0), "b": at(61), "c": at(200)}, "bc"),
        ({"a": at(0), "b": at(61, drift_s=90), "c": at(61)}, "c"),  # each its own drift
        ({"a": at(0, drift_s=0), "b": at(0, drift_s=0), "c": at(1, drift_s=0)}, "c"),
        ({"a": at(None), "b": at(None)}, ""),
        ({"a": at(None), "b": at(-100)}, "b"),  # no event yet is lowest
        ({"a": at(0), "b": at(100), "c": at(100, group="h")}, "b"),  # groups know nothing of each other
    ],
)
def test_a_source_waits_while_the_lowest_of_its_group_is_further_behind_than_the_drift(
    waiting: dict[str, Progress], ahead: str
) -> None:
    assert those_ahead(waiting) == set(ahead)


progress = st.builds(
    Progress,
    st.sampled_from("gh"),
    st.integers(0, 5),
    st.none() | st.integers(-10, 10),
)


@given(st.dictionaries(st.sampled_from("abcdef"), progress))
def test_something_of_each_group_is_read_and_never_a_source_that_is_ahead(waiting: dict[str, Progress]) -> None:
    ahead = those_ahead(waiting)
    for group in {one.group for one in waiting.values()}:
        of_group = {name: one for name, one in waiting.items() if one.group == group}
        read = {name: one for name, one in of_group.items() if name not in ahead}
        assert read, "else the pipeline would stand still"
        for name, one in of_group.items():
            for other in of_group.values():
                apart = None
                if one.watermark_us is not None and other.watermark_us is not None:
                    apart = one.watermark_us - other.watermark_us
                if name in read and apart is not None:
                    assert apart <= one.max_drift_us
                if name in read and one.watermark_us is not None:
                    assert other.watermark_us is not None, "who has no event yet is waited for"


@given(st.dictionaries(st.sampled_from("abcdef"), progress), st.integers(-1000, 1000))
def test_only_distances_count(waiting: dict[str, Progress], shift: int) -> None:
    def moved(one: Progress) -> Progress:
        moved_us = None if one.watermark_us is None else one.watermark_us + shift
        return Progress(one.group, one.max_drift_us, moved_us)

    assert those_ahead({name: moved(one) for name, one in waiting.items()}) == those_ahead(waiting)
