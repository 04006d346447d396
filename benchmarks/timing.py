"""Figures of several pieces of work, measured in turns so that the machine's moods fall on all of them.

Here: the clock, the figures with their ratios and aims, their table and their JSON. Not here: the work, the machine.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

Work = Mapping[str, Callable[[], object]]

LOGS = click.option(
    "--logs", default="benchmarks/.logs", type=click.Path(path_type=Path), help="Where logs and files are kept."
)
BUDGET = click.option("--budget", default=0.0, help="Begin no round that would end after so many seconds; 0: no end.")
INTO = click.option("--json", "into", type=click.Path(path_type=Path), help="Also write the figures to this file.")


@dataclass(frozen=True)
class Figure:
    """Durations of one piece of work, one for each round.

    Attributes:
        work: What it is called in the table.
        values: One of each round; none where it could not be measured.
        unit: What is counted; nothing where it is plain.
        against: The work that it is compared with, of the same report.
        aim: The most that the ratio may be, or the median where there is nothing to compare with.
        worst: The aim holds for every round rather than for the median.
        note: What a reader of the row must know.
    """

    work: str
    values: Sequence[float]
    unit: str = "s"
    against: str | None = None
    aim: float | None = None
    worst: bool = False
    note: str = ""

    @property
    def judged(self) -> float | None:
        """Value that is held against the aim of a figure that is compared with no other."""
        if not self.values:
            return None
        return max(self.values) if self.worst else median(self.values)


@dataclass
class Report:
    """The figures of one piece of the benchmarks, and what they were measured on."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    about: dict[str, object] = field(default_factory=dict)

    def _compared_with(self, figure: Figure) -> Sequence[float]:
        if figure.against is None:
            return ()
        [other] = [one for one in self.figures if (one.work, one.unit) == (figure.against, figure.unit)]
        return other.values

    def ratio(self, figure: Figure) -> float | None:
        """Return the ratio of the medians."""
        other = self._compared_with(figure)
        return median(figure.values) / median(other) if figure.values and other else None

    def as_json(self) -> dict[str, Any]:
        """All of it, with what the table shows of each figure."""
        figures = []
        for figure in self.figures:
            ratio, rounds = self.ratio(figure), zip(figure.values, self._compared_with(figure), strict=False)
            judged = ratio if figure.against else figure.judged
            figures.append(
                {
                    "work": figure.work,
                    "unit": figure.unit,
                    "median": median(figure.values) if figure.values else None,
                    "values": list(figure.values),
                    "against": figure.against,
                    "ratio": ratio,
                    "ratios": [mine / its for mine, its in rounds],
                    "aim": figure.aim,
                    "worst": figure.worst,
                    "aim_reached": None if figure.aim is None or judged is None else judged <= figure.aim,
                    "note": figure.note,
                }
            )
        return {"title": self.title, "about": self.about, "figures": figures}

    def save(self, into: Path | None) -> None:
        """Prints the table, and writes the JSON where a file is given."""
        show(self.as_json())
        self.write(into)

    def write(self, into: Path | None) -> None:
        """Writes the JSON where a file is given."""
        if into is not None:
            into.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def seconds(work: Work, *, rounds: int, budget_s: float = 0) -> dict[str, list[float]]:
    """Runs each piece once to warm up, then in turns; returns the times of each."""
    start = time.perf_counter()
    for piece in work.values():
        piece()
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in within(budget_s, rounds, spent_s=time.perf_counter() - start):
        for name, piece in work.items():
            began = time.perf_counter()
            piece()
            times[name].append(time.perf_counter() - began)
    return times


def within(budget_s: float, rounds: int, *, spent_s: float = 0) -> Iterator[int]:
    """Numbers of rounds; after the first none begins that, if it takes as long as the longest, would end too late."""
    began = time.perf_counter() - spent_s
    longest = 0.0
    for number in range(rounds):
        start = time.perf_counter()
        if number and budget_s and start - began + longest > budget_s:
            return
        yield number
        longest = max(longest, time.perf_counter() - start)


def show(*reports: Mapping[str, Any], title: str | None = None) -> None:
    """Prints the figures of reports, as their JSON has them, in one table."""
    table = Table("work", "figure", "ratio", "aim", title=title, title_justify="left")
    for report in reports:
        table.add_section()
        table.add_row(f"[bold]{report['title']}[/bold]")
        for figure in report["figures"]:
            table.add_row(*_cells(figure))
    Console(width=max(Console().width, 120)).print(table)


def _cells(figure: Mapping[str, Any]) -> tuple[str, ...]:
    ratio, aim, values = figure["ratio"], figure["aim"], figure["values"]
    said = figure["note"]
    if values:
        said = f"{_spread(figure)} {figure['unit']}".strip() + (f"; {said}" if said else "")
    missed = figure["aim_reached"] is False
    shown = "" if aim is None else f"{aim:g}" + (", missed" if missed else "")
    return f"  {figure['work']}", said, "" if ratio is None else f"{ratio:.2f}", shown


def _spread(figure: Mapping[str, Any]) -> str:
    """Return the median with the least and the most; where every round counts, each of them."""
    values = figure["values"]
    digits = 0 if all(float(value).is_integer() for value in values) else 1 if figure["median"] >= 10 else 2
    if figure["worst"]:
        return " / ".join(f"{value:,.{digits}f}" for value in values)
    spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(set(values)) > 1 else ""
    return f"{figure['median']:.{digits}f}{spread}"
