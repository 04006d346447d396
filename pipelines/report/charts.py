"""The charts of the page: the watermark and lateness over the newest records, aggregates over the last windows.

Here: what is read for them, and the last rows of window tables beside them. Not here: drawing (assets/display/).
"""

import base64
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from matplotlib.figure import Figure

from tidemark.assets.display.lateness import QUANTILES, Lateness, lateness_of_log, tolerances
from tidemark.assets.display.pictures import MOST_LINES, draw_lateness, draw_watermark, draw_windows, svg
from tidemark.pipelines.report.accounts import State
from tidemark.pipelines.report.words import of_window
from tidemark.pipelines.terminal import any_value, is_number, no_more_than, plural
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.delta.queries import newest_rows, python_rows
from tidemark.resources.tables import window_table
from tidemark.timeops.durations import micros
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.pipeline import has_event_time

MOST_RECORDS = 1_000_000
"""Pictures are of no more than so many records, the newest: a record takes 48 bytes while they are gathered."""

_QUANTILES = tuple(
    zip(("half of the events at most", "90\u00a0% at most", "99\u00a0% at most"), QUANTILES, strict=True)
)
MOST_ROWS = 5_000
"""The page looks at so many of the newest rows."""
SHOWN_ROWS = 50
_SHOWN_WINDOWS = 168  # on a chart: a week of hours


@dataclass(frozen=True)
class LogCharts:
    """The log over time, as the page shows it.

    Attributes:
        watermark: The picture of the watermark, as the `src` of an image; None when no record has a time.
        lateness: The picture of lateness.
        quantiles: Parts of the events, and the lateness that each does not exceed.
        of: The records in the pictures, in words.
    """

    watermark: str | None
    lateness: str | None
    quantiles: Sequence[tuple[str, str]]
    of: str


def log_charts(state: State) -> LogCharts | str:
    """Return the pictures, or a sentence that says why there are none."""
    if not state.processed_end:
        return "No record has been processed yet."
    if not has_event_time(state.spec.sources, state.spec.time):
        return "Without timestamp_by event time is arrival time, so no event is late."
    if not state.spec.outputs.ordered_events:
        return "This pipeline writes no ordered_events, so there is nothing to draw them from."
    end = state.processed_end
    first = max(0, end - MOST_RECORDS)
    found = lateness_of_log(state.lake, state.versions, state.spec, (first, end), _reached(state, first))
    return LogCharts(
        watermark=source_of(draw_watermark(found.bins)),
        lateness=source_of(draw_lateness(found, tolerances(state.spec))),
        quantiles=_quantiles(found),
        of="all records" if first == 0 else f"the newest {plural(end - first, 'record')}",
    )


def source_of(figure: Figure | None) -> str | None:
    """Return a drawing as the `src` of an image, so that the page needs no other file."""
    return None if figure is None else f"data:image/svg+xml;base64,{base64.b64encode(svg(figure)).decode()}"


def _reached(state: State, first: int) -> list[tuple[int, Position]]:
    """Return ends and positions of the batches that reach into the segment, and of the one before it."""
    inside = [commit for commit in state.processed if plan_end(commit.plan) > first]
    before = state.processed[: -len(inside)][-1:]
    commits = [*before, *inside]
    positions = state.positions_from(commits[0].batch_id)
    return [(plan_end(commit.plan), positions[commit.batch_id]) for commit in commits]


def _quantiles(found: Lateness) -> list[tuple[str, str]]:
    known = [(name, found.quantile_us(part)) for name, part in _QUANTILES]
    return [
        (name, no_more_than(us)) for name, us in [*known, ("the latest event", found.longest_us)] if us is not None
    ]


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the table of last rows."""

    name: str
    about: str
    is_number: bool


@dataclass(frozen=True)
class WindowPart:
    """A window table, as the page shows it.

    Attributes:
        name: The name of the window.
        about: Its description in words.
        columns: The columns of the rows.
        rows: The last rows, as texts.
        in_all: How many rows the table has.
        chart: The chart, as the `src` of an image; None when there is nothing to draw.
        drawn: The aggregate that the chart shows; empty without one.
        said: The number of windows and groups in it, or why there is no chart.
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
    """Read the last rows of a window table, and draw them."""
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
    """Draw the chart of the first numeric aggregate; return it and what it shows."""
    if not newest:
        return None, "", "No window has closed yet." if not window.revises else "No window has given a result yet."
    aggregate = next((name for name in window.aggregates if any(is_number(row.get(name)) for row in newest)), None)
    if aggregate is None:
        return None, "", "None of its aggregates has numbers, so nothing is drawn."
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
    """Return a function that labels a group: its values."""
    return lambda row: ", ".join(any_value(row[name]) for name in group_columns)


def _said(window: WindowSpec, windows: int, shown: int, groups: int) -> str:
    said = f"Over the last {plural(windows, 'window start')}" if windows > 1 else "Of one window start"
    if not window.group_columns:
        return f"{said}."
    if shown == groups:
        return f"{said}, by {', '.join(window.group_columns)}."
    return f"{said}; {shown} of {groups:,} groups, those with the largest sums of it."


def _step_us(window: WindowSpec) -> int | None:
    """Return the distance between a group's windows if none is missing; None if the events decide it."""
    if not window.closes_on_grid:
        return None
    longest = {"day": timedelta(hours=25), "month": timedelta(days=31, hours=1)}
    return micros(longest[window.calendar[0]]) if window.calendar else window.end_step_us
