"""Two pictures of a batch or of the log: the watermark against arrival, and how late the events were.

Here: drawing, from bounded numbers. Not here: where the numbers come from (lateness.py, stored_lateness.py), sheets
and files (canvas.py).
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from assets.canvas import canvas, days_of, png, set_time_axis
from assets.lateness_numbers import MOVED, ON_TIME, OUTCOMES, REFUSED, Bin, Lateness, bucket_start

_BLUE, _GREEN, _ORANGE, _RED = "#4c72b0", "#55a868", "#dd8452", "#c44e52"
_COLOURS = {ON_TIME: _GREEN, MOVED: _ORANGE, REFUSED: _RED}
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1), ("ms", 0.001))
_SHORT = {"days": "d", "hours": "h", "minutes": "min", "seconds": "s", "ms": "ms"}
_TICKS = (0.01, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 864_000, 8_640_000, 86_400_000)
_LINES = ("--", ":", "-.")


def watermark_picture(bins: Sequence[Bin]) -> bytes | None:
    """The drawing of the watermark as a small PNG; None when no record has a time."""
    figure = draw_watermark(bins)
    return None if figure is None else png(figure)


def lateness_picture(lateness: Lateness, tolerances: Mapping[str, float]) -> bytes | None:
    """The drawing of lateness as a small PNG; None without events."""
    figure = draw_lateness(lateness, tolerances)
    return None if figure is None else png(figure)


def draw_watermark(bins: Sequence[Bin]) -> Figure | None:
    """The newest event, the watermark and the refused events, all relative to the clock of arrivals.

    Lower is older: an event below the watermark when it arrives is out of order. The lines stand as they were at the
    end of each bin. None when no record has a time.
    """
    known = [one for one in bins if one.clock_us is not None and one.newest_us is not None]
    if not known:
        return None
    dots = [(one, us / 1e6) for one in known for us in dict.fromkeys(one.refused_behind_us or ())]
    lines = [_seconds(us, one) for one in known for us in (one.newest_us, one.watermark_us)]
    unit, size = _unit_for(max(abs(value) for value in (*lines, *(y for _, y in dots)) if value is not None))
    figure, axes = canvas()
    across = _across(axes, known)
    for label, colour, values in (
        ("newest event", _BLUE, [one.newest_us for one in known]),
        ("watermark", _GREEN, [one.watermark_us for one in known]),
    ):
        seconds = [_seconds(us, one) for us, one in zip(values, known, strict=True)]
        heights = [math.nan if value is None else value / size for value in seconds]
        axes.plot(across, heights, label=label, color=colour, drawstyle="steps-post")
    if dots:
        place = {one.last: x for one, x in zip(known, across, strict=True)}
        label = f"refused ({sum(one.refused for one in known):,})"
        xs, ys = [place[one.last] for one, _ in dots], [y / size for _, y in dots]
        axes.scatter(xs, ys, s=9, color=_RED, label=label, zorder=3)
    axes.set_ylabel(f"event time - arrival clock, {unit}")
    axes.legend(fontsize=7, framealpha=0.6)
    return figure


def draw_lateness(lateness: Lateness, tolerances: Mapping[str, float]) -> Figure | None:
    """How many events came how late, by outcome, with the tolerances drawn in; None without events.

    Args:
        lateness: The numbers.
        tolerances: Where lines stand, seconds of lateness, by what they are called.
    """
    if not lateness.histogram:
        return None
    known = [bucket for bucket, _ in lateness.histogram]
    buckets = range(min(known), max(known) + 1)
    edges = [bucket_start(bucket) / 1e6 for bucket in (*buckets, buckets.stop)]
    figure, axes = canvas()
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
    _set_scale(axes, [*edges, *tolerances.values()])
    axes.set_xlabel("arrival - event time (negative: an event of the future)")
    axes.set_ylabel("events")
    axes.legend(fontsize=7, framealpha=0.9)  # no line of a tolerance through its words
    return figure


def _across(axes: Axes, bins: Sequence[Bin]) -> list[float]:
    """Places along the axis: the clock where it moves, else the number of the record."""
    clocks = [one.clock_us or 0 for one in bins]
    if len(set(clocks)) < min(len(bins), 3):
        axes.set_xlabel("records, in the order of their arrival")
        return [float(one.last) for one in bins]
    axes.set_xlabel("arrival clock, UTC")
    set_time_axis(axes)
    return [days_of(us) for us in clocks]


def _seconds(us: int | None, at: Bin) -> float | None:
    return None if us is None or at.clock_us is None else (us - at.clock_us) / 1e6


def _unit_for(seconds: float) -> tuple[str, float]:
    return next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])


def _length(seconds: float) -> str:
    if not seconds:
        return "0"
    unit, size = next((unit for unit in _UNITS if abs(seconds) >= unit[1]), _UNITS[-1])
    return f"{seconds / size:.3g} {_SHORT[unit]}"


def _set_scale(axes: Axes, places: Sequence[float]) -> None:
    """Scales the axis of lateness by powers, with ticks at common lengths of time; near zero it is linear."""
    linear = max(max(abs(place) for place in places) / 10_000, 0.001)
    low, high = min(*places, 0), max(*places, 0)
    ticks = [0.0, *(sign * tick for tick in _TICKS if tick >= linear for sign in (1, -1))]
    axes.set_xscale("symlog", linthresh=linear)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _length(seconds)))
