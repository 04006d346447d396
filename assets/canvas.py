"""The sheet that pictures are drawn on, and what becomes of it: a small PNG, or an SVG for light and dark pages.

Here: size, grid, axes of time, files. Not here: what is drawn (pictures.py, window_pictures.py).
"""

import io
from datetime import UTC

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from PIL import Image

_COLOURS_OF_PNG = 48  # a picture is kept for every batch, so it has to be small
_DAY_US = 86_400 * 1e6  # matplotlib counts days since the epoch
# Text and axes take the colour of the reader's scheme; what matplotlib draws black is meant.
_SCHEMES = """<style>
svg { color: #2b2f36; } text { fill: currentColor; }
@media (prefers-color-scheme: dark) { svg { color: #d5d9e0; } }
</style>"""


def canvas() -> tuple[Figure, Axes]:
    """An empty sheet with one pair of axes."""
    figure = Figure(figsize=(7.2, 3.2), dpi=100)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.16, top=0.96)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    return figure, axes


def set_time_axis(axes: Axes, label: str = "arrival clock, UTC") -> None:
    """Makes the axis across one of instants, see `days_of`."""
    axes.set_xlabel(label)
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)


def days_of(us: int) -> float:
    """The place of an instant on an axis of time; microseconds since the epoch."""
    return us / _DAY_US


def png(figure: Figure) -> bytes:
    """The sheet as a small PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    small = io.BytesIO()
    with Image.open(drawn) as image:
        # The default method gives up colours of small areas, such as those of few refused events.
        few = image.convert("RGB").quantize(_COLOURS_OF_PNG, method=Image.Quantize.FASTOCTREE)
        few.save(small, format="png", optimize=True)
    return small.getvalue()


def svg(figure: Figure) -> bytes:
    """The sheet as an SVG without a background, for an `<img>` on a light or a dark page."""
    for axes in figure.axes:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.patch.set_visible(False)
        legend = axes.get_legend()
        if legend is not None:
            legend.get_frame().set_visible(False)
    figure.patch.set_visible(False)
    drawn = io.BytesIO()
    # Text stays text: the page is smaller, and the reader's fonts are used. The salt makes the same drawing twice.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidemark"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue().decode()
    head, tag, rest = text.partition("<defs>")
    return f"{head}{_SCHEMES}{tag}{rest}".replace(": #000000", ": currentColor").encode()
