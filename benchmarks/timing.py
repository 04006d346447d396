"""Seconds of several pieces of work, taken in turns so that the machine's moods fall on all of them.

Here: the clock and the table of ratios. Not here: the work.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

from rich.console import Console
from rich.table import Table

Work = Mapping[str, Callable[[], object]]


def seconds(work: Work, *, rounds: int) -> dict[str, list[float]]:
    """Runs each piece once to warm up, then in turns; returns the times of each."""
    for piece in work.values():
        piece()
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, piece in work.items():
            start = time.perf_counter()
            piece()
            times[name].append(time.perf_counter() - start)
    return times


def show(title: str, times: Mapping[str, list[float]], *, against: str, at_most: Mapping[str, float]) -> None:
    """Prints medians, their spread and the ratio to one of them, with the bound that was asked for."""
    base = median(times[against])
    table = Table("", "median s", "from", "to", "ratio", "at most", title=title, title_justify="left")
    for name, taken in times.items():
        ratio, bound = median(taken) / base, at_most.get(name)
        table.add_row(
            name,
            f"{median(taken):.2f}",
            f"{min(taken):.2f}",
            f"{max(taken):.2f}",
            f"{ratio:.2f}",
            "" if bound is None else f"{bound:g}",
        )
    Console().print(table)
