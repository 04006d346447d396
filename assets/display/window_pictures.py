"""A picture of a window table: an aggregate over time, a line for each of a few groups.

Here: drawing. Not here: which windows and groups are drawn (pipelines/report/windows.py).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tidemark.assets.display.canvas import bend_upward_axis, canvas, days_of, outlying_from, set_time_axis

Points = Sequence[tuple[int, float]]
"""Instants, microseconds since the epoch, and values."""

MOST_LINES = 6
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_LABEL_LENGTH = 20
_LONGEST_LABEL = 60
_IN_A_LINE = 110  # letters of labels above a picture


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
    labels = _labels(list(lines))
    for (label, points), colour in zip(zip(labels, lines.values(), strict=True), _COLOURS, strict=False):
        instants, values = _broken(points, step_us)
        style: dict[str, Any] = {"linestyle": "none"} if step_us is None else {"linewidth": 1.2}
        axes.plot(instants, values, marker="o", markersize=3, color=colour, label=label, **style)
    set_time_axis(axes, f"{across}, UTC")
    values = [value for points in lines.values() for _, value in points]
    if (most := outlying_from(values)) is not None:
        powers = [10.0**power for power in range(-12, 40)]
        bend_upward_axis(axes, most, values, powers, _number)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=_are_whole(lines)))
    axes.set_ylabel(_labels([up])[0], parse_math=False)
    if any(lines):
        columns = min(max(_IN_A_LINE // (max(map(len, labels)) + 4), 1), MOST_LINES)
        above = axes.legend(fontsize=7.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False)
        for text in above.get_texts():
            text.set_parse_math(False)  # groups are users' text: a dollar is a dollar
        figure.subplots_adjust(top=0.95 - 0.05 * -(len(labels) // -columns))
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


def _number(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < 1e12 else f"{value:.6g}"


def _are_whole(lines: Mapping[str, Points]) -> bool:
    return all(float(value).is_integer() for points in lines.values() for _, value in points)


def _labels(texts: Sequence[str]) -> list[str]:
    """One short line for each text, cut no shorter than the texts differ."""
    lines = [" ".join("".join(one if one.isprintable() else " " for one in text).split()) for text in texts]
    for length in range(_LABEL_LENGTH, _LONGEST_LABEL):
        cut = [_cut(line, length) for line in lines]
        if len(set(cut)) == len(set(lines)):
            break
    else:  # they differ further behind, or only in what is not printed
        half = _LONGEST_LABEL // 2
        cut = [line if len(line) <= _LONGEST_LABEL else f"{line[:half]}…{line[-half:]}" for line in lines]
    numbered = [f"{one} ({cut[: i + 1].count(one)})" if cut.count(one) > 1 else one for i, one in enumerate(cut)]
    # matplotlib takes a leading underscore for «no legend»
    return ["\u200b" + one if one.startswith("_") else one for one in numbered]


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length + 3 else line[: length - 1] + "…"  # else nothing would be gained
