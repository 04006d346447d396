"""The sheet that pictures are drawn on, and what becomes of it: a small PNG, or an SVG for light and dark pages.

Here: size, grid, axes of time, files. Not here: what is drawn (pictures.py).
"""

import io
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from tidemark.timeops.columns import MAX_US, MIN_US
from tidemark.timeops.utc import instant_of

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


def canvas() -> tuple[Figure, Axes]:
    """Return an empty sheet with one pair of axes."""
    figure = Figure(figsize=(7.2, 3.2), dpi=100)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.16, top=0.96)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    return figure, axes


def set_time_axis(axes: Axes, label: str = "arrival clock, UTC") -> None:
    """Make the horizontal axis one of instants, see `days_of`."""
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


def days_of(us: int) -> float:
    """Return the place of an instant on an axis of time; microseconds since the epoch."""
    return us / _DAY_US


def outlying_from(values: Iterable[float]) -> float | None:
    """Return the size above which a few values would flatten all others; None if there are none."""
    sizes = sorted(abs(value) for value in values if math.isfinite(value))
    if not sizes:
        return None
    most = sizes[int(0.9 * (len(sizes) - 1))]
    return most if 0 < most < sizes[-1] / _FLATTENED else None


def bend_upward_axis(
    axes: Axes, most: float, values: Iterable[float], beyond: Iterable[float], text: Callable[[float], str]
) -> None:
    """Make the vertical axis linear up to a size and logarithmic above it, so that outlying values fit.

    Args:
        axes: The axes.
        most: The size, see `outlying_from`.
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
    _make_room(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    small = io.BytesIO()
    with Image.open(drawn) as image:
        # The default method loses the colours of small areas, such as those of few refused events.
        few = image.convert("RGB").quantize(_COLOURS_OF_PNG, method=Image.Quantize.FASTOCTREE)
        few.save(small, format="png", optimize=True)
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
    _make_room(figure)
    drawn = io.BytesIO()
    # Text stays text: the page is smaller, and the reader's fonts are used. The salt makes the same drawing twice.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidemark"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue().decode()
    head, tag, rest = text.partition("<defs>")
    return f"{head}{_SCHEMES}{tag}{rest}".replace(": #000000", ": currentColor").encode()


def _make_room(figure: Figure) -> None:
    """Move the axes to the right if their numbers are so long that the label beside them is off the sheet."""
    lefts = [box.x0 / figure.bbox.width for axes in figure.axes if (box := axes.get_tightbbox()) is not None]
    missing = _MARGIN - min(lefts, default=_MARGIN)
    if missing > 0:
        figure.subplots_adjust(left=figure.subplotpars.left + missing)
