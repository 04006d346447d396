"""Pictures of a pipeline's time: watermark against arrival, lateness, windows; and how they are drawn.

Here: lines, bars, axes, labels, and the file that comes of a figure. Not here: the numbers
(assets/catalog/display/lateness.py).
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from tidemark.assets.catalog.display.lateness import (
    MOVED_OR_KEPT,
    ON_TIME,
    OUTCOMES,
    REFUSED,
    Bin,
    Lateness,
    bucket_start,
)
from tidemark.timeops.columns import MAX_US, MIN_US
from tidemark.timeops.values.utc import instant_of

_COLOURS_OF_PNG = 48  # a picture is kept for every batch, so it has to be small
_DAY_US = 86_400 * 1e6  # matplotlib counts days since the epoch
_FLATTENED = 20  # times larger than nine tenths of the values: these would have a twentieth of the height
_ROOM = 3  # decades' worth of height for them
_FAR_TICKS = 3
_MARGIN = 0.005  # share of the width
# Text and axes take the colour of the reader's scheme; what matplotlib draws black is meant.
_SCHEMES = """<style>
svg { color: #2b2f36; } text { fill: currentColor; }
@media (prefers-color-scheme: dark) { svg { color: #d5d9e0; } }
</style>"""


def _canvas() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 3.2), dpi=100)
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.16, top=0.96)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    return figure, axes


def _set_time_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    locator = _TimeLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)


class _TimeLocator(AutoDateLocator):
    """Ticks within the years that Python's datetime has, although the margin of an axis may reach beyond them."""

    def __call__(self) -> Any:
        """Return the places of the ticks."""
        return self.tick_values(*self.viewlim_to_dt())  # type: ignore[no-untyped-call]

    def viewlim_to_dt(self) -> tuple[datetime, datetime]:
        """Return the instants at the ends of the axis, or the nearest to them."""
        assert self.axis is not None
        low, high = sorted(self.axis.get_view_interval())
        return instant_of(max(int(low * _DAY_US), MIN_US)), instant_of(min(int(high * _DAY_US), MAX_US))


def _days_of(us: int) -> float:
    """Return the place of an instant on an axis of time; microseconds since the epoch."""
    return us / _DAY_US


def _outlying_from(values: Iterable[float]) -> float | None:
    """Return the size above which a few values would flatten all others; None if there are none."""
    sizes = sorted(abs(value) for value in values if math.isfinite(value))
    if not sizes:
        return None
    most = sizes[int(0.9 * (len(sizes) - 1))]
    return most if 0 < most < sizes[-1] / _FLATTENED else None


def _bend_upward_axis(
    axes: Axes, most: float, values: Iterable[float], beyond: Iterable[float], text: Callable[[float], str]
) -> None:
    """Make the vertical axis linear up to a size and logarithmic above it, so that outlying values fit.

    Args:
        axes: The axes.
        most: The size, see `_outlying_from`.
        values: What is drawn.
        beyond: Where ticks may be above the size.
        text: Formats the label of a tick.
    """
    drawn = [value for value in values if math.isfinite(value)]
    low, high = min(0.0, *drawn), max(0.0, *drawn)
    axes.set_yscale("symlog", linthresh=most, linscale=_ROOM)
    near = [tick for tick in MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(0, most) if 0 <= tick <= most]
    far = [tick for tick in beyond if 2 * most < tick <= max(high, -low)]
    far = far[::-1][:: -(len(far) // -_FAR_TICKS) or 1]  # the largest, and some before it
    ticks = {sign * tick for tick in (*near, *far) for sign in (1, -1)}
    axes.yaxis.set_major_locator(FixedLocator(sorted(tick for tick in ticks if low <= tick <= high)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def png(figure: Figure) -> bytes:
    """Return the sheet as a small PNG."""
    sheet: Any = FigureCanvasAgg(figure)  # its methods have no types
    sheet.draw()
    if _made_room(figure):
        sheet.draw()
    small = io.BytesIO()
    # The default method loses the colours of small areas, such as the ones of few refused events.
    few = Image.fromarray(np.asarray(sheet.buffer_rgba())).convert("RGB")
    few.quantize(_COLOURS_OF_PNG, method=Image.Quantize.FASTOCTREE).save(small, format="png", optimize=True)
    return small.getvalue()


def svg(figure: Figure) -> bytes:
    """Return the sheet as an SVG without a background, for an `<img>` on a light or a dark page."""
    for axes in figure.axes:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.patch.set_visible(False)
        legend = axes.get_legend()
        if legend is not None:
            legend.get_frame().set_visible(False)
    figure.patch.set_visible(False)
    figure.draw_without_rendering()
    _made_room(figure)
    drawn = io.BytesIO()
    # Text stays text: the page is smaller, and the reader's fonts are used. The salt makes the same drawing twice.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidemark"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue().decode()
    head, tag, drawing = text.partition("<defs>")
    return f"{head}{_SCHEMES}{tag}{drawing}".replace(": #000000", ": currentColor").encode()


def _made_room(figure: Figure) -> bool:
    """Move the axes of a drawn sheet to the right if the label next to their numbers is off; return whether so."""
    lefts = [axes.yaxis.label.get_window_extent().x0 / figure.bbox.width for axes in figure.axes]
    missing = _MARGIN - min(lefts, default=_MARGIN)
    if missing > 0:
        figure.subplots_adjust(left=figure.subplotpars.left + missing)
    return missing > 0


_BLUE, _GREEN, _ORANGE, _RED = "#4c72b0", "#55a868", "#dd8452", "#c44e52"
_COLOURS = {ON_TIME: _GREEN, MOVED_OR_KEPT: _ORANGE, REFUSED: _RED}
_UNITS = (("days", 86_400.0), ("hours", 3_600), ("minutes", 60), ("seconds", 1), ("ms", 0.001))
_SHORT = {"days": "d", "hours": "h", "minutes": "min", "seconds": "s", "ms": "ms"}
_TICKS = (0.01, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 864_000, 8_640_000, 86_400_000, 864_000_000)
_APART = 0.07  # of the width: ticks of lateness that are closer would be written over each other
_LINES = ("--", ":", "-.")
_LEAST_PERCENT = 0.01  # below this the axis of shares is linear, so that it has a zero
_PERCENTS = (0.01, 0.1, 1, 10, 100)
MOST_LINES = 6
_COLOURS_OF_LINES = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_LABEL_LENGTH = 20
_LONGEST_LABEL = 60
_IN_A_LINE = 110  # letters of labels above a picture


def draw_watermark(bins: Sequence[Bin]) -> Figure | None:
    """Draw the newest event, the watermark and the refused events, all relative to the clock of arrivals.

    Lower is older: an event below the watermark when it arrives is out of order. The lines show the values at the end
    of each bin. Return None if no record has a time.
    """
    timed = [piece for piece in bins if piece.clock_us is not None and piece.newest_us is not None]
    if not timed:
        return None
    dots = [(piece, us / 1e6) for piece in timed for us in dict.fromkeys(piece.refused_behind_us or ())]
    lines = {
        ("newest event", _BLUE): [_seconds(piece.newest_us, piece) for piece in timed],
        ("watermark", _GREEN): [_seconds(piece.watermark_us, piece) for piece in timed],
    }
    values = [y for heights in lines.values() for y in heights if not math.isnan(y)] + [y for _, y in dots]
    most = _outlying_from(values)
    longest = most or max(map(abs, values))
    unit, size = next((unit for unit in _UNITS if longest >= 2 * unit[1]), _UNITS[-1])
    figure, axes = _canvas()
    across = _across(axes, timed)
    for (label, colour), heights in lines.items():
        axes.plot(across, [y / size for y in heights], label=label, color=colour, drawstyle="steps-post")
    if dots:
        place = {piece.last: x for piece, x in zip(timed, across, strict=True)}
        label = f"refused ({sum(piece.refused for piece in timed):,})"
        xs, ys = [place[piece.last] for piece, _ in dots], [y / size for _, y in dots]
        axes.scatter(xs, ys, s=9, color=_RED, label=label, zorder=3)
    if most is not None:
        far = [tick / size for tick in _TICKS]
        _bend_upward_axis(axes, most / size, [y / size for y in values], far, lambda y: _length(y * size))
    axes.set_ylabel("event time - arrival clock" + (f", {unit}" if most is None else ""))
    axes.legend(fontsize=7, framealpha=0.6)
    return figure


def draw_lateness(lateness: Lateness, tolerances: Mapping[str, float]) -> Figure | None:
    """Draw how many events came how late, by outcome, with the tolerances; return None without events.

    Args:
        lateness: The numbers.
        tolerances: The places of lines, seconds of lateness, by label.
    """
    if not lateness.histogram:
        return None
    numbers = [bucket for bucket, _ in lateness.histogram]
    buckets = range(min(numbers), max(numbers) + 1)
    edges = [bucket_start(bucket) / 1e6 for bucket in (*buckets, buckets.stop)]
    figure, axes = _canvas()
    floor = [0] * len(buckets)
    for outcome in OUTCOMES:
        events = [lateness.histogram.get((bucket, outcome), 0) for bucket in buckets]
        if any(events):
            top = [below + n for below, n in zip(floor, events, strict=True)]
            label = f"{outcome} ({sum(events):,})"
            axes.stairs(top, edges, baseline=floor, fill=True, color=_COLOURS[outcome], label=label)
            floor = top
    for (name, seconds), line in zip(tolerances.items(), _LINES * len(tolerances), strict=False):
        axes.axvline(seconds, color="black", linestyle=line, linewidth=1, label=f"{name}: {_length(seconds)}")
    _set_scale(axes, [*edges, *tolerances.values()], _linear_up_to(lateness))
    axes.set_xlabel("arrival - event time (negative: an event from the future)")
    axes.set_ylabel("events")
    axes.legend(fontsize=7, framealpha=0.9)  # no line of a tolerance through its words
    return figure


def draw_tolerances(
    shares: Mapping[float, float], today: Mapping[str, float], records: int, measure: str
) -> Figure | None:
    """Draw the share of records that each tolerance loses; return None where none loses any.

    Args:
        shares: By tolerance in seconds the share, from 0 to 1.
        today: The places of lines, seconds, by label.
        records: How many records these are.
        measure: What becomes of the records, such as `lost`.
    """
    if not any(shares.values()):
        return None
    figure, axes = _canvas()
    places, heights = [*shares], [100 * share for share in shares.values()]
    axes.plot(
        places,
        heights,
        color=_RED,
        linewidth=1.4,
        marker="o",
        markersize=2.5,
        label=f"{measure}, {records:,} records",
    )
    for (name, seconds), line in zip(today.items(), _LINES * len(today), strict=False):
        axes.axvline(seconds, color="black", linestyle=line, linewidth=1, label=f"{name}: {_length(seconds)}")
    _set_scale(axes, [*places, *today.values()], max(min(place for place in places if place), 0.001))
    axes.set_yscale("symlog", linthresh=_LEAST_PERCENT)
    ticks = [0.0, *(tick for tick in _PERCENTS if tick <= max(*heights, _PERCENTS[0]))]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda percent, _: f"{percent:g} %"))
    axes.set_ylim(0, 1.5 * max(heights))
    axes.set_xlabel("out_of_orderness")
    axes.set_ylabel(f"{measure} of all records")
    axes.legend(fontsize=7, framealpha=0.9, loc="lower left")
    return figure


def _across(axes: Axes, bins: Sequence[Bin]) -> list[float]:
    """Return the places along the axis: the clock where it moves, else the number of the record."""
    clocks = [piece.clock_us or 0 for piece in bins]
    if len(set(clocks)) < min(len(bins), 3):
        axes.set_xlabel("records, in order of arrival")
        return [float(piece.last) for piece in bins]
    _set_time_axis(axes, "arrival clock, UTC")
    return [_days_of(us) for us in clocks]


def _seconds(us: int | None, at: Bin) -> float:
    return math.nan if us is None or at.clock_us is None else (us - at.clock_us) / 1e6


def _length(seconds: float) -> str:
    if not seconds:
        return "0"
    unit, size = next((unit for unit in _UNITS if abs(seconds) >= unit[1]), _UNITS[-1])
    value = seconds / size
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {_SHORT[unit]}"


def _linear_up_to(lateness: Lateness) -> float:
    """Return the size, seconds, up to which the axis of lateness is linear: it covers a twentieth of the events."""
    left = sum(lateness.histogram.values()) / 20
    for bucket, n in sorted((abs(bucket), n) for (bucket, _), n in lateness.histogram.items()):
        left -= n
        if left < 0:
            return max(abs(bucket_start(bucket)) / 1e6, 0.001)
    return 0.001


def _set_scale(axes: Axes, places: Sequence[float], linear: float) -> None:
    """Scale the axis of lateness by powers, with ticks at common lengths of time; near zero it is linear."""
    largest = max(abs(place) for place in places)
    axes.set_xscale("symlog", linthresh=min(linear, max(largest / 10, 0.001)))
    low, high = min(*places, 0), max(*places, 0)
    scale = axes.xaxis.get_transform()
    first, last = (float(place) for place in scale.transform([low, high]))
    edge = (last - first) / 50  # matplotlib's own margin is as wide as the data on such a scale
    axes.set_xlim(*(float(place) for place in scale.inverted().transform([first - edge, last + edge])))
    ticks = [0.0, *(sign * tick for tick in _TICKS for sign in (1, -1) if low <= sign * tick <= high)]
    across = axes.transAxes.inverted().transform
    written: dict[float, float] = {}
    for tick in sorted(ticks, key=abs):  # from zero outwards, none over another
        [(place, _)] = across(axes.transData.transform([(tick, 0)]))
        if all(abs(place - other) >= _APART for other in written.values()):
            written[tick] = place
    axes.xaxis.set_major_locator(FixedLocator(sorted(written)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _length(seconds)))


Points = Sequence[tuple[int, float]]
"""Instants, microseconds since the epoch, and values."""


def draw_windows(lines: Mapping[str, Points], *, across: str, up: str, step_us: int | None) -> Figure:
    """Draw an aggregate over time.

    Args:
        lines: The points of each group by label; at most MOST_LINES. A line without a label has no legend.
        across: The label of the instants.
        up: The label of the values.
        step_us: The largest distance between neighbouring points, in microseconds: a line breaks where no window has
            a row. None draws points alone.
    """
    figure, axes = _canvas()
    labels = _labels(list(lines))
    for (label, points), colour in zip(zip(labels, lines.values(), strict=True), _COLOURS_OF_LINES, strict=False):
        instants, values = _broken(points, step_us)
        style: dict[str, Any] = {"linestyle": "none"} if step_us is None else {"linewidth": 1.2}
        axes.plot(instants, values, marker="o", markersize=3, color=colour, label=label, **style)
    _set_time_axis(axes, f"{across}, UTC")
    values = [value for points in lines.values() for _, value in points]
    if (most := _outlying_from(values)) is not None:
        powers = [10.0**power for power in range(-12, 40)]
        _bend_upward_axis(axes, most, values, powers, _number)
    else:
        are_whole = all(float(value).is_integer() for value in values)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=are_whole))
    axes.set_ylabel(_labels([up])[0], parse_math=False)
    if any(lines):
        columns = min(max(_IN_A_LINE // (max(map(len, labels)) + 4), 1), MOST_LINES)
        above = axes.legend(fontsize=7.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False)
        for text in above.get_texts():
            text.set_parse_math(False)  # groups are users' text: a dollar is a dollar
        figure.subplots_adjust(top=0.95 - 0.05 * -(len(labels) // -columns))
    return figure


def _broken(points: Points, step_us: int | None) -> tuple[list[float], list[float]]:
    """Return the places of the points, with a gap between two that are more than a step apart."""
    instants, values = [], []
    last_us: int | None = None
    for us, value in points:
        if last_us is not None and step_us is not None and us - last_us > step_us:
            instants.append(_days_of(us))
            values.append(math.nan)
        instants.append(_days_of(us))
        values.append(value)
        last_us = us
    return instants, values


def _number(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < 1e12 else f"{value:.6g}"


def _labels(texts: Sequence[str]) -> list[str]:
    """Return one short line for each text, cut no shorter than the texts differ."""
    lines = [" ".join("".join(char if char.isprintable() else " " for char in text).split()) for text in texts]
    for length in range(_LABEL_LENGTH, _LONGEST_LABEL):
        cut = [_cut(line, length) for line in lines]
        if len(set(cut)) == len(set(lines)):
            break
    else:  # they differ further on, or only in what is not printed
        half = _LONGEST_LABEL // 2
        cut = [line if len(line) <= _LONGEST_LABEL else f"{line[:half]}…{line[-half:]}" for line in lines]
    numbered = [
        f"{label} ({cut[: i + 1].count(label)})" if cut.count(label) > 1 else label for i, label in enumerate(cut)
    ]
    # matplotlib takes a leading underscore for «no legend»
    return ["\u200b" + label if label.startswith("_") else label for label in numbered]


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length + 3 else line[: length - 1] + "…"  # else nothing would be gained
