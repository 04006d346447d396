"""Window tables on the page: a chart of an aggregate over the last windows, and the last rows.

Here: which rows, groups and aggregate. Not here: drawing (assets/display/pictures.py), settings in words
(words.py).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tidemark.assets.display.pictures import MOST_LINES, draw_windows
from tidemark.pipelines.report.log_charts import source_of
from tidemark.pipelines.report.state import State
from tidemark.pipelines.report.values import any_value, is_number, plural
from tidemark.pipelines.report.words import of_window
from tidemark.resources.lake.queries import newest_rows, python_rows
from tidemark.resources.tables import window_table
from tidemark.timeops.durations import micros
from tidemark.timeops.spec import WindowSpec

MOST_ROWS = 5_000
"""So many of the newest rows are looked at."""
SHOWN_ROWS = 50
_SHOWN_WINDOWS = 168  # on a chart: a week of hours

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the table of last rows."""

    name: str
    about: str
    is_number: bool


@dataclass(frozen=True)
class WindowPart:
    """What the page shows of a window table.

    Attributes:
        name: Of the window.
        about: What it is, in words.
        columns: Of the rows.
        rows: The last rows, as texts.
        in_all: How many rows the table has.
        chart: The chart, as the `src` of an image; None when there is nothing to draw.
        drawn: The aggregate that the chart shows; empty without one.
        said: Of how many windows and groups, or why there is no chart.
    """

    name: str
    about: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    in_all: int
    chart: str | None
    drawn: str
    said: str


def window_part(state: State, window: WindowSpec) -> WindowPart:
    """Reads the last rows of a window table, and draws them."""
    table = window_table(window.name)
    if table not in state.versions:
        return WindowPart(window.name, of_window(window), (), (), 0, None, "", "The table is made by the next run.")
    version = state.versions[table]
    stored = state.lake.dataset(table, version).schema.names
    wanted = [*window.key_columns, *window.aggregates, *(["_revision", "_is_final"] if window.revises else [])]
    names = [name for name in wanted if name in stored]
    by = "window_end" if window.kind in ("cumulative", "sliding") else "window_start"
    newest = python_rows(newest_rows(state.lake, table, version, names, by=by, most=MOST_ROWS))
    by_group = sorted(newest[:SHOWN_ROWS], key=_named(window.group_columns))
    rows = sorted(by_group, key=lambda row: (row[by], row["window_end"]), reverse=True)
    in_all = state.lake.row_count(table, version)
    chart, drawn, said = _chart(window, newest, by)
    return WindowPart(
        name=window.name,
        about=of_window(window),
        columns=[_column(window, name, rows) for name in names],
        rows=[[any_value(row[name]) for name in names] for row in rows],
        in_all=in_all,
        chart=chart,
        drawn=drawn,
        said=said,
    )


def _column(window: WindowSpec, name: str, rows: Sequence[Row]) -> Column:
    about = window.aggregates.get(name) or dict(window.group_expressions).get(name, "")
    values = [row[name] for row in rows if row[name] is not None]
    return Column(name, " ".join(about.split()), bool(values) and all(map(is_number, values)))


def _chart(window: WindowSpec, newest: Sequence[Row], by: str) -> tuple[str | None, str, str]:
    """The chart of the first aggregate that gives numbers, and what it shows."""
    if not newest:
        return None, "", "No window has closed yet." if not window.revises else "No window has given a result yet."
    aggregate = next((name for name in window.aggregates if any(is_number(row.get(name)) for row in newest)), None)
    if aggregate is None:
        return None, "", "None of its aggregates gives numbers, so nothing is drawn."
    instants = sorted({row[by] for row in newest})[-_SHOWN_WINDOWS:]
    drawn = [row for row in newest if row[by] >= instants[0] and is_number(row[aggregate])]
    name_of = _named(window.group_columns)
    groups: dict[str, float] = defaultdict(float)
    for row in drawn:
        value = abs(float(row[aggregate]))
        groups[name_of(row)] += value if math.isfinite(value) else 0
    chosen = sorted(groups, key=lambda group: (-groups[group], group))[:MOST_LINES]
    lines = {group: _points(drawn, by, aggregate, group, name_of) for group in sorted(chosen)}
    figure = draw_windows(lines, across=by, up=aggregate, step_us=_step_us(window))
    expression = " ".join(window.aggregates[aggregate].split())
    said = _said(window, len(instants), len(chosen), len(groups))
    return source_of(figure), f"{aggregate}: {expression}", said


def _points(
    rows: Sequence[Row], by: str, aggregate: str, group: str, name_of: Callable[[Row], str]
) -> list[tuple[int, float]]:
    return sorted((row[by].us, float(row[aggregate])) for row in rows if name_of(row) == group)


def _named(group_columns: Sequence[str]) -> Callable[[Row], str]:
    """What a group is called: its values."""
    return lambda row: ", ".join(any_value(row[name]) for name in group_columns)


def _said(window: WindowSpec, windows: int, shown: int, groups: int) -> str:
    said = f"Over the last {plural(windows, 'window start')}" if windows > 1 else "Of one window start"
    if not window.group_columns:
        return f"{said}."
    if shown == groups:
        return f"{said}, by {', '.join(window.group_columns)}."
    return f"{said}; {shown} of {groups:,} groups, those with the largest sums of it."


def _step_us(window: WindowSpec) -> int | None:
    """How far apart the windows of a group are where none is missing; None where they are as events make them."""
    if not window.closes_on_grid:
        return None
    longest = {"day": timedelta(hours=25), "month": timedelta(days=31, hours=1)}
    return micros(longest[window.calendar[0]]) if window.calendar else window.end_step_us
