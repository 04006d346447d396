"""A picture of a window table: an aggregate over time, a line for each of a few groups.

Here: drawing. Not here: which windows and groups are drawn (pipelines/report/windows.py).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from assets.canvas import canvas, days_of, set_time_axis

Points = Sequence[tuple[int, float]]
"""Instants, microseconds since the epoch, and values."""

MOST_LINES = 6
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_LABEL_LENGTH = 20


def draw_windows(lines: Mapping[str, Points], *, across: str, up: str, step_us: int | None) -> Figure:
    """An aggregate over time.

    Args:
        lines: The points of each group by what it is called; at most MOST_LINES. One without a name has no legend.
        across: What the instants are.
        up: What the values are.
        step_us: How far apart, in microseconds, points that follow each other are at most: a line breaks where no
            window has a row. None draws points alone.
    """
    figure, axes = canvas()
    for (name, points), colour in zip(lines.items(), _COLOURS, strict=False):
        instants, values = _broken(points, step_us)
        style: dict[str, Any] = {"linestyle": "none"} if step_us is None else {"linewidth": 1.2}
        axes.plot(instants, values, marker="o", markersize=3, color=colour, label=_label(name), **style)
    set_time_axis(axes, f"{across}, UTC")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=_are_whole(lines)))
    axes.set_ylabel(_label(up), parse_math=False)
    if any(lines):
        above = axes.legend(fontsize=7.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=MOST_LINES, frameon=False)
        for text in above.get_texts():
            text.set_parse_math(False)  # groups are users' text: a dollar is a dollar
        figure.subplots_adjust(top=0.9)
    return figure


def _broken(points: Points, step_us: int | None) -> tuple[list[float], list[float]]:
    """Places of the points, with nothing between those that are more than a step apart."""
    instants, values = [], []
    before: int | None = None
    for us, value in points:
        if before is not None and step_us is not None and us - before > step_us:
            instants.append(days_of(us))
            values.append(math.nan)
        instants.append(days_of(us))
        values.append(value)
        before = us
    return instants, values


def _are_whole(lines: Mapping[str, Points]) -> bool:
    return all(float(value).is_integer() for points in lines.values() for _, value in points)


def _label(text: str) -> str:
    """One short line; matplotlib takes a leading underscore for «no legend»."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    short = line if len(line) <= _LABEL_LENGTH else line[: _LABEL_LENGTH - 1] + "…"
    return "\u200b" + short if short.startswith("_") else short
