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

from tidemark.assets.catalog.display.lateness import MOVED_OR_KEPT, ON_TIME, REFUSED, Bin, Lateness, bucket_start
from tidemark.assets.catalog.display.pictures import draw_lateness, draw_watermark, draw_windows, png, svg
from tidemark.timeops.columns import MAX_US, MIN_US

MINUTE, HOUR, YEAR = 60_000_000, 3_600_000_000, 365 * 24 * 3_600_000_000
START = 490_000 * HOUR
LATENESSES = st.lists(st.integers(-20 * 24 * HOUR, 20 * 24 * HOUR), min_size=1, max_size=50)


def bucket_of(us: int) -> int:
    return next(bucket for bucket in range(-500, 501) if bucket_start(bucket) <= us < bucket_start(bucket + 1))


def lateness(values: list[int]) -> Lateness:
    return Lateness((), Counter((bucket_of(us), ON_TIME) for us in values), max(values))


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def size_of(figure: Figure) -> tuple[int, int]:
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
    figure = drawn(draw_lateness(Lateness((), seen, 1), {"out of orderness": 10_800.0}))
    with Image.open(io.BytesIO(png(figure))) as image:
        colours = [colour for _, colour in image.convert("RGB").getcolors(1 << 16) or ()]
    for wanted in ((0x55, 0xA8, 0x68), (0xC4, 0x4E, 0x52)):
        assert min(math.dist(wanted, colour) for colour in colours) < 10, wanted  # type: ignore[arg-type]


def bins_of(count: int, step_us: int = MINUTE) -> list[Bin]:
    """Return segments whose newest event is an hour old, and whose watermark is three."""
    clocks = [(n, START + n * step_us) for n in range(count)]
    return [Bin(n, clock, clock - HOUR, clock - 3 * HOUR, 0, None) for n, clock in clocks]


def test_one_event_of_long_ago_does_not_flatten_the_watermark_and_ticks_are_times() -> None:
    bins = bins_of(200)
    bins[50] = replace(bins[50], refused=1, refused_behind_us=(-30 * YEAR, -30 * YEAR))
    axes = drawn(draw_watermark(bins)).axes[0]
    one, three = (place for _, place in axes.transData.transform([(0, -1), (0, -3)]))
    assert one - three > 0.2 * axes.bbox.height
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert "-10,000 d" in ticks
    assert not any("e+" in tick for tick in ticks)


def test_one_event_of_long_ago_does_not_flatten_the_latenesses_and_ticks_are_times() -> None:
    seen = {(bucket_of(us), ON_TIME): 1_000 for us in (2 * MINUTE, 10 * MINUTE, HOUR)}
    seen |= {(bucket_of(30 * YEAR), REFUSED): 1}
    axes = drawn(draw_lateness(Lateness((), seen, 30 * YEAR), {"out of orderness": 60.0})).axes[0]
    two_minutes, hour = (place for place, _ in axes.transData.transform([(120, 0), (3_600, 0)]))
    assert hour - two_minutes > 0.15 * axes.bbox.width
    assert {"10 min", "1,000 d", "10,000 d"} <= {label.get_text() for label in axes.get_xticklabels()}


@pytest.mark.parametrize("save", [png, svg])
def test_the_label_of_an_axis_with_long_numbers_is_on_the_sheet(save: Callable[[Figure], bytes]) -> None:
    behind = [326 * 24 * HOUR + n * HOUR // 10 for n in range(30)]
    bins = [Bin(n, n * HOUR, n * HOUR - us, n * HOUR - us, 0, None) for n, us in enumerate(behind)]
    figure = drawn(draw_watermark(bins))
    save(figure)
    figure.draw_without_rendering()
    label = figure.axes[0].yaxis.label
    assert label.get_text() == "event time - arrival clock, days"
    assert label.get_window_extent().x0 >= 0


@pytest.mark.parametrize("step_us", [0, MINUTE])
def test_pictures_are_small_whether_the_clock_moves_or_not(step_us: int) -> None:
    bins = bins_of(200, step_us)
    bins[:5] = [replace(one, watermark_us=None) for one in bins[:5]]
    bins[::7] = [replace(one, refused=1, refused_behind_us=(-9 * HOUR, -4 * HOUR)) for one in bins[::7]]
    assert size_of(drawn(draw_watermark(bins))) == (720, 320)


def test_a_picture_of_many_latenesses_is_small() -> None:
    kinds = (ON_TIME, MOVED_OR_KEPT, REFUSED)
    seen = {(bucket, kind): abs(bucket) + 1 for bucket in range(-300, 301) for kind in kinds}
    lines = {"out of orderness": 7_200.0, "early tolerance": -300.0}
    assert size_of(drawn(draw_lateness(Lateness((), seen, HOUR), lines))) == (720, 320)


@pytest.mark.parametrize("instants", [(MIN_US - HOUR, 0), (0, MAX_US + 1), (MAX_US + 1,), (MIN_US, MAX_US)])
def test_windows_of_the_first_and_last_years_are_drawn(instants: tuple[int, ...]) -> None:
    figure = draw_windows({"": [(us, 1.0) for us in instants]}, across="end", up="n", step_us=None)
    assert b"</svg>" in svg(figure)
