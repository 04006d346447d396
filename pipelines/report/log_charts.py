"""The pictures of the watermark and of lateness, over the newest records of the log.

Here: which records, and what is said of them. Not here: gathering (assets/display/lateness.py), drawing
(assets/display/pictures.py).
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from tidemark.assets.display.canvas import svg
from tidemark.assets.display.lateness import QUANTILES, Lateness, lateness_of_log, tolerances
from tidemark.assets.display.pictures import draw_lateness, draw_watermark
from tidemark.pipelines.report.state import State
from tidemark.pipelines.report.values import no_more_than, plural
from tidemark.resources.workspace import Position, plan_end
from tidemark.timeops.spec.consistency import has_event_time

MOST_RECORDS = 1_000_000
"""Pictures are of no more than so many records, the newest: a record takes 48 bytes while they are gathered."""

_QUANTILES = tuple(
    zip(("half of the events at most", "90\u00a0% at most", "99\u00a0% at most"), QUANTILES, strict=True)
)


@dataclass(frozen=True)
class LogCharts:
    """What is shown of the log over time.

    Attributes:
        watermark: The picture of the watermark, as the `src` of an image; None when no record has a time.
        lateness: The picture of lateness.
        quantiles: Which part of the events came at most how late.
        of: Which records these are.
    """

    watermark: str | None
    lateness: str | None
    quantiles: Sequence[tuple[str, str]]
    of: str


def log_charts(state: State) -> LogCharts | str:
    """The pictures, or a sentence that says why there are none."""
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
    """A drawing as the `src` of an image, so that the page needs no other file."""
    return None if figure is None else f"data:image/svg+xml;base64,{base64.b64encode(svg(figure)).decode()}"


def _reached(state: State, first: int) -> list[tuple[int, Position]]:
    """Ends and positions of the batches that reach into the segment, and of the one before it."""
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
