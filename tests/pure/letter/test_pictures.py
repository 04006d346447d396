"""Pictures of a batch, drawn from numbers: no Spark."""

import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from tidemark.assets.display.lateness import MOVED_OR_KEPT, ON_TIME, REFUSED, Bin, Lateness, bucket_start
from tidemark.assets.display.pictures import (
    draw_lateness,
    draw_watermark,
    draw_windows,
    png,
    svg,
)
from tidemark.timeops.columns import MAX_US, MIN_US

HOUR = 3_600_000_000
LATENESSES = st.lists(st.integers(-20 * 24 * HOUR, 20 * 24 * HOUR), min_size=1, max_size=50)


def bucket_of(us: int) -> int:
    return next(bucket for bucket in range(-500, 501) if bucket_start(bucket) <= us < bucket_start(bucket + 1))


def lateness(values: list[int]) -> Lateness:
    return Lateness((), Counter((bucket_of(us), ON_TIME) for us in values), max(values))


def size_of(figure: Figure | None) -> tuple[int, int]:
    assert figure is not None
    picture = png(figure)
    assert len(picture) < 30_000, "one is kept for every batch"
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        return image.size


@settings(deadline=None)
@given(LATENESSES, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_event_s_lateness_to_3_percent(values: list[int], part: float) -> None:
    exact = sorted(values)[math.ceil(part * len(values)) - 1]
    found = lateness(values).quantile_us(part)
    assert found is not None
    assert abs(found - exact) <= 0.03 * abs(exact) + 1_000


def test_the_buckets_follow_each_other_and_know_the_future_from_the_past() -> None:
    starts = [bucket_start(bucket) for bucket in range(-100, 101)]
    assert starts == sorted(starts)
    assert (bucket_start(0), bucket_start(1)) == (-1_000, 1_000)
    assert bucket_start(41) == pytest.approx(10_000)
    assert bucket_start(-40) == pytest.approx(-10_000)


def test_a_batch_without_events_has_no_pictures_and_no_quantiles() -> None:
    nothing = Lateness((Bin(9, None, None, None, 0, None),), {}, None)
    assert nothing.quantile_us(0.5) is None
    assert draw_watermark(nothing.bins) is None
    assert draw_lateness(nothing, {"out of orderness": 1.0}) is None


def test_few_refused_events_are_as_red_as_many() -> None:
    many = [*range(-240, -190, 4), *range(190, 224, 6), *range(224, 282)]
    seen = {(bucket, ON_TIME): 1_800 - 5 * abs(bucket) for bucket in many}
    seen |= {(bucket, REFUSED): 20 for bucket in range(274, 290)}
    figure = draw_lateness(Lateness((), seen, 1), {"out of orderness": 10_800.0})
    assert figure is not None
    with Image.open(io.BytesIO(png(figure))) as image:
        colours = [colour for _, colour in image.convert("RGB").getcolors(1 << 16) or ()]
    for wanted in ((0x55, 0xA8, 0x68), (0xC4, 0x4E, 0x52)):
        assert min(math.dist(wanted, colour) for colour in colours) < 10, wanted  # type: ignore[arg-type]


def test_one_event_of_long_ago_does_not_flatten_the_rest_and_ticks_are_times() -> None:
    year = 365 * 24 * HOUR
    start = 490_000 * HOUR
    bins = [
        Bin(n, start + n * 60_000_000, start + n * 60_000_000 - HOUR, start + n * 60_000_000 - 3 * HOUR, 0, None)
        for n in range(200)
    ]
    bins[50] = replace(bins[50], refused=1, refused_behind_us=(-30 * year, -30 * year))
    figure = draw_watermark(bins)
    assert figure is not None
    axes = figure.axes[0]
    one, three, _ = (place for _, place in axes.transData.transform([(0, -1), (0, -3), (0, 0)]))
    assert one - three > 0.2 * axes.bbox.height
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert "-10,000 d" in ticks
    assert not any("e+" in tick for tick in ticks)

    seen = {(bucket_of(us), ON_TIME): 1_000 for us in (2 * 60_000_000, 10 * 60_000_000, HOUR)}
    drawn = draw_lateness(
        Lateness((), seen | {(bucket_of(30 * year), REFUSED): 1}, 30 * year), {"out of orderness": 60.0}
    )
    assert drawn is not None
    axes = drawn.axes[0]
    places = [place for place, _ in axes.transData.transform([(120, 0), (3_600, 0)])]
    assert places[1] - places[0] > 0.15 * axes.bbox.width
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert {"10 min", "1,000 d", "10,000 d"} <= set(ticks)


@pytest.mark.parametrize("save", [png, svg])
def test_the_label_of_an_axis_with_long_numbers_is_on_the_sheet(save: Callable[[Figure], bytes]) -> None:
    behind = [326 * 24 * HOUR + n * HOUR // 10 for n in range(30)]
    figure = draw_watermark([Bin(n, n * HOUR, n * HOUR - us, n * HOUR - us, 0, None) for n, us in enumerate(behind)])
    assert figure is not None
    save(figure)
    figure.draw_without_rendering()
    label = figure.axes[0].yaxis.label
    assert label.get_text() == "event time - arrival clock, days"
    assert label.get_window_extent().x0 >= 0


@pytest.mark.parametrize("step_us", [0, 60_000_000])
def test_pictures_are_small_whether_the_clock_moves_or_stands_still(step_us: int) -> None:
    start = 490_000 * HOUR
    bins = [
        Bin(
            last=number,
            clock_us=start + number * step_us,
            newest_us=start + number * step_us - HOUR,
            watermark_us=None if number < 5 else start + number * step_us - 3 * HOUR,
            refused=number % 7 == 0,
            refused_behind_us=(-9 * HOUR, -4 * HOUR) if number % 7 == 0 else None,
        )
        for number in range(200)
    ]
    assert size_of(draw_watermark(bins)) == (720, 320)
    seen = {
        (bucket, kind): abs(bucket) + 1 for bucket in range(-300, 301) for kind in (ON_TIME, MOVED_OR_KEPT, REFUSED)
    }
    lines = {"out of orderness": 7_200.0, "early tolerance": -300.0}
    assert size_of(draw_lateness(Lateness((), seen, HOUR), lines)) == (720, 320)


@pytest.mark.parametrize("instants", [(MIN_US - HOUR, 0), (0, MAX_US + 1), (MAX_US + 1,), (MIN_US, MAX_US)])
def test_windows_of_the_first_and_last_years_are_drawn(instants: tuple[int, ...]) -> None:
    drawn = svg(draw_windows({"": [(us, 1.0) for us in instants]}, across="end", up="n", step_us=None))
    assert b"</svg>" in drawn
