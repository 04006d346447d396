"""The page of a pipeline for the browser: its spec in words, charts, tables, one file of HTML.

Here: sentences on the spec's settings for people who have not read it, which numbers are drawn, and the page that is
made of them. Not here: the numbers of what has happened (pipelines/views/report/accounts.py), drawing
(assets/catalog/display/pictures.py).
"""

import base64
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from tidemark.assets.alarms.losses.causes import around_of, cause_of_loss
from tidemark.assets.alarms.losses.log_tables import LogTables
from tidemark.assets.alarms.losses.rates import losses_since
from tidemark.assets.alarms.losses.sentences import advice, beyond
from tidemark.assets.alarms.silences import silences_after, silences_in_words
from tidemark.assets.catalog.display.lateness import QUANTILES, Lateness, lateness_of_log, tolerances
from tidemark.assets.catalog.display.pictures import MOST_LINES, draw_lateness, draw_watermark, draw_windows, svg
from tidemark.assets.questions.advice import advice_on
from tidemark.assets.questions.record import RecordQuestions
from tidemark.assets.questions.times import PipelineLog
from tidemark.pipelines.views.report import accounts
from tidemark.pipelines.views.report.accounts import State, state_of
from tidemark.pipelines.views.terminal import (
    any_value,
    by_hand,
    changed_by_hand,
    instant,
    instant_us,
    is_number,
    length,
    no_more_than,
    number,
    second,
    share,
    shortened,
    watermark_text,
)
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.delta.queries import newest_rows, python_rows
from tidemark.resources.tables import window_table
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.figures.losses import OF_TIME
from tidemark.timeops.spec import EarlyPolicy, LatePolicy, Source, Spec, TimeSpec, WindowSpec
from tidemark.timeops.spec.between_parts import has_event_time
from tidemark.timeops.spec.event_time import Periodic
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.spec.window import Early
from tidemark.timeops.spec.window_shape import Months, said_length
from tidemark.timeops.values.durations import format_duration, micros

_OUT_OF_ORDER = {
    "drop": "An event behind the watermark is refused, with a dead letter.",
    "adjust": "An event behind the watermark is moved to it.",
    "keep": "An event behind the watermark keeps its time; the windows decide whether it is too late.",
}
_IDLE = {
    "exclude_split": "A split that is silent{for_so_long} no longer holds the watermark back.",
    "arrival_clock": "The watermark stays at most the late tolerance behind the latest arrival.",
    "window_close": "Windows close even if no event comes{for_so_long}.",
}

Row = Mapping[str, Any]
Lines = list[tuple[str, str]]
"""The subject and the text about it: plain, or Markup in which the spec's own text is escaped."""


def of_sources(spec: Spec) -> Lines:
    """Return a line for each source: what is read."""
    return [(source.name, _source(source)) for source in spec.sources]


def of_time(spec: Spec) -> Lines:
    """Return lines on what event time is, how the watermark follows it, and what is refused."""
    time = spec.time
    lines: Lines = [("Event time", _event_time(time)), ("Watermark", _joined(_watermark(spec)))]
    lines.append(("Out of order", _OUT_OF_ORDER[time.out_of_order]))
    if time.late is not None:
        lines.append(("Late", _off("arrives more than {} after its event time", time.late)))
    if time.early is not None:
        lines.append(("Early", _off("has an event time more than {} ahead of its arrival", time.early)))
    if time.deduplicate_by and time.within is not None:
        sentence = Markup("Of records with the same {} and event times at most {} apart, the first counts.")
        lines.append(("Duplicates", sentence.format(_codes(time.deduplicate_by), format_duration(time.within))))
    if time.start_at is not None:
        lines.append(("Start", f"Results for whole windows from {instant_us(time.start_us)} UTC on."))
    if time.flushes():
        lines.append(("End of input", "When all input is read, everything is released and closed."))
    return lines


def of_window(window: WindowSpec, joins: Collection[str] = ()) -> str:
    """Describe a window, and when it has results; `joins` are the names of the joins that there are."""
    parts: list[str] = [_shape(window)]
    if window.input is not None and window.input in joins:
        parts.append(Markup("Over the final rows of {}.").format(code(window.input)))
    elif window.input is not None:
        parts.append(Markup("Over the final results of {}, each at its end.").format(code(window.input)))
    if window.top is not None:
        first = Markup("One row for each of the first {} by {}").format(
            plural(window.top.n, "event"), code(window.top.by)
        )
        of_groups = Markup(" for each {}").format(_codes(window.group_columns)) if window.group_columns else ""
        parts.append(Markup("{}{}.").format(first, of_groups))
    elif window.group_columns:
        parts.append(Markup("One row for each {}.").format(_codes(window.group_columns)))
    if window.where is not None:
        parts.append(Markup("Only events where {}.").format(code(window.where)))
    if window.having is not None:
        parts.append(Markup("Only results where {}.").format(code(window.having)))
    if window.allowed_lateness:
        noun = "late events" if window.input is None else "results of late events"
        parts.append(f"Takes {noun} for {format_duration(window.allowed_lateness)} after its end.")
    if isinstance(window.emit, Early):
        every = format_duration(window.emit.early)
        parts.append(
            f"Emits results before it closes, one for every {every} in which events came, and the last one "
            "when it closes."
        )
    elif window.emit == "on_time":
        parts.append("Emits a result at its end, and revises it for late events until it closes.")
    return _joined(parts)


def _source(source: Source) -> str:
    arrival = code(source.arrival_time) if source.arrival_time else source.ARRIVAL
    parts: list[str] = [Markup("{} {}; a record arrived at {}.").format(source.what, code(source.place), arrival)]
    if source.timestamp_by:
        parts.append(Markup("Event time here: {}.").format(code(source.timestamp_by)))
    if source.split:
        parts.append(Markup("Split by {}.").format(code(source.split)))
    if source.out_of_orderness is not None:
        parts.append(Markup("Out-of-orderness here: {}.").format(format_duration(source.out_of_orderness)))
    return _joined(parts)


def _event_time(time: TimeSpec) -> str:
    if time.timestamp_by is None:
        return "When a record arrived, unless its source says otherwise."
    parts: list[str] = [Markup("{}.").format(code(time.timestamp_by))]
    if time.time_zone != "UTC":
        parts.append(f"Times without a zone are in {time.time_zone}.")
    if time.unit != "microsecond":
        parts.append(f"Rounded down to the {time.unit}.")
    return _joined(parts)


_POLICIES = {
    "drop": "is refused",
    "adjust": "is moved to the edge of that",
    "keep": "keeps its time, and does not move the watermark",
}


def _off(by: str, policy: EarlyPolicy | LatePolicy) -> str:
    return f"An event that {by.format(format_duration(policy.tolerance))} {_POLICIES[policy.policy]}."


def _watermark(spec: Spec) -> Iterator[str]:
    time = spec.time
    far = (
        f"{format_duration(time.out_of_orderness)} behind the newest event"
        if time.out_of_orderness
        else "at the newest event"
    )
    yield f"Stays {far}{' of the slowest split' if spec.uses_splits else ''}; what is older is final."
    if time.over:
        yield Markup("Each {} has its own watermark (a timeline).").format(_codes(time.over))
    if isinstance(time.emit, Periodic):
        yield f"Events see it move once every {format_duration(time.emit.every)} of the clock of arrivals."
    if time.idle is not None:
        for_so_long = f" for {format_duration(time.idle.timeout)}" if time.idle.timeout else ""
        yield _IDLE[time.idle.advance].format(for_so_long=for_so_long)


def _shape(window: WindowSpec) -> str:
    lengths = {
        "size": window.size,
        "hop": window.hop,
        "step": window.step,
        "gap": window.gap,
        "no longer than": window.max_gap,
        "at most": window.max_duration,
    }
    parts = [
        f"{name} {value if isinstance(value, str) else said_length(value)}"
        for name, value in lengths.items()
        if value
    ]
    zone = [f"days of {window.time_zone}"] if window.time_zone else []
    return f"{window.kind.capitalize()} window{': ' if parts else ''}{', '.join([*parts, *zone])}."


def code(expression: str) -> Markup:
    """Return an expression in one line, as code."""
    return Markup("<code>{}</code>").format(" ".join(expression.split()))


def _codes(expressions: Iterable[str]) -> Markup:
    return Markup(", ").join(code(expression) for expression in expressions)


def _joined(sentences: Iterable[str]) -> Markup:
    return Markup(" ").join(sentences)


MOST_PICTURED = 1_000_000
"""Pictures are of no more than so many records, the newest: a record takes 48 bytes while they are gathered."""

_QUANTILES = tuple(
    zip(("at most half of the events", "90\u00a0% at most", "99\u00a0% at most"), QUANTILES, strict=True)
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
    first = max(0, end - MOST_PICTURED)
    lateness = lateness_of_log(state.lake, state.versions, state.spec, (first, end), _positions(state, first))
    return LogCharts(
        watermark=source_of(draw_watermark(lateness.bins)),
        lateness=source_of(draw_lateness(lateness, tolerances(state.spec))),
        quantiles=_quantiles(lateness),
        of="all records" if first == 0 else f"the newest {plural(end - first, 'record')}",
    )


@dataclass(frozen=True)
class AdvicePart:
    """Advice on an out-of-orderness, as `tidemark advise` prints it, and its picture as the `src` of an image."""

    text: str
    picture: str | None


def advice_part(log: PipelineLog, state: State) -> AdvicePart | None:
    """Return advice where it can be computed quickly and without Spark; None elsewhere."""
    is_asked = 0 < state.processed_end <= MOST_PICTURED and has_event_time(state.spec.sources, state.spec.time)
    with suppress(TidemarkError):  # where SQL of the spec would have to be computed
        if is_asked:
            answer = advice_on(log.workspace, log.committed.times)
            return AdvicePart(answer.text, source_of(answer.picture()))
    return None


@dataclass(frozen=True)
class Story:
    """A refused record as `tidemark explain` explains it; the text is empty where that takes long, or needs Spark."""

    reason: str
    seq: int
    text: str


def stories(log: PipelineLog, state: State, letters: Sequence[Row]) -> list[Story]:
    """Explain the newest dead letter of each reason; `letters` are the newest first."""
    newest = {row["reason"]: row["_arrival_seq"] for row in reversed(letters) if row["_arrival_seq"] is not None}
    texts = _explained(log, [*newest.values()]) if state.processed_end <= MOST_PICTURED else [""] * len(newest)
    unsorted = [Story(reason, seq, text) for (reason, seq), text in zip(newest.items(), texts, strict=True)]
    return sorted(unsorted, key=lambda story: (story.reason not in OF_TIME, -state.dead_letters[story.reason]))


def _explained(log: PipelineLog, seqs: Sequence[int]) -> list[str]:
    for with_windows in (True, False):
        with suppress(TidemarkError):  # where SQL of the spec would have to be computed
            return [answer.text for answer in RecordQuestions(log, with_windows=with_windows).answers(seqs)]
    return [""] * len(seqs)


def source_of(figure: Figure | None) -> str | None:
    """Return a drawing as the `src` of an image, so that the page needs no other file."""
    return None if figure is None else f"data:image/svg+xml;base64,{base64.b64encode(svg(figure)).decode()}"


def _positions(state: State, first: int) -> list[tuple[int, Position]]:
    """Return ends and positions of the batches that reach into the segment, and of the one before it."""
    inside = [commit for commit in state.processed if plan_end(commit.plan) > first]
    last_before = state.processed[: -len(inside)][-1:]
    commits = [*last_before, *inside]
    positions = state.positions_from(commits[0].batch_id)
    return [(plan_end(commit.plan), positions[commit.batch_id]) for commit in commits]


def _quantiles(lateness: Lateness) -> list[tuple[str, str]]:
    lengths_us = [(name, lateness.quantile_us(part)) for name, part in _QUANTILES]
    return [
        (name, no_more_than(us))
        for name, us in [*lengths_us, ("the latest event", lateness.longest_us)]
        if us is not None
    ]


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
        about: Its description in words.
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
    sentence: str


def window_part(state: State, window: WindowSpec) -> WindowPart:
    """Read the last rows of a window table, and draw them."""
    table, joins = window_table(window.name), [join.name for join in state.spec.joins]
    if table not in state.versions:
        return WindowPart(
            window.name, of_window(window, joins), (), (), 0, None, "", "The next run creates the table."
        )
    version = state.versions[table]
    stored = state.lake.dataset(table, version).schema.names
    revision = ["_revision", "_is_final"] if window.revises else []
    columns = [*window.key_columns, *window.event_columns(stored), *window.aggregates, *revision]
    names = [name for name in columns if name in stored]
    by = "window_end" if window.kind in ("cumulative", "sliding") else "window_start"
    newest = python_rows(newest_rows(state.lake, table, version, names, by=by, most=MOST_ROWS))
    by_rank = sorted(newest[:SHOWN_ROWS], key=lambda row: row.get(TOP_RANK) or 0)
    by_group = sorted(by_rank, key=_label_of_group(window.group_columns))
    rows = sorted(by_group, key=lambda row: (row[by], row["window_end"]), reverse=True)
    in_all = state.lake.row_count(table, version)
    chart, drawn, sentence = _chart(window, newest, by)
    return WindowPart(
        name=window.name,
        about=of_window(window, joins),
        columns=[_column(window, name, rows) for name in names],
        rows=[[any_value(row[name]) for name in names] for row in rows],
        in_all=in_all,
        chart=chart,
        drawn=drawn,
        sentence=sentence,
    )


def _column(window: WindowSpec, name: str, rows: Sequence[Row]) -> Column:
    about = window.aggregates.get(name) or dict(window.group_expressions).get(name, "")
    values = [row[name] for row in rows if row[name] is not None]
    return Column(name, " ".join(about.split()), bool(values) and all(map(is_number, values)))


def _chart(window: WindowSpec, newest: Sequence[Row], by: str) -> tuple[str | None, str, str]:
    """Draw the chart of the first numeric aggregate; return it and what it shows."""
    if not newest:
        return None, "", "No window has closed yet." if not window.revises else "No window has produced a result yet."
    aggregate = next((name for name in window.aggregates if any(is_number(row.get(name)) for row in newest)), None)
    if aggregate is None and window.top is not None:
        return None, "", "Its rows are events, so nothing is drawn."
    if aggregate is None:
        return None, "", "None of its aggregates has numbers, so nothing is drawn."
    instants = sorted({row[by] for row in newest})[-_SHOWN_WINDOWS:]
    once = [row for row in newest if row.get(TOP_RANK, 1) == 1]  # next to `top` they are the same on each row
    drawn = [row for row in once if row[by] >= instants[0] and is_number(row[aggregate])]
    name_of = _label_of_group(window.group_columns)
    groups: dict[str, float] = defaultdict(float)
    for row in drawn:
        value = abs(float(row[aggregate]))
        groups[name_of(row)] += value if math.isfinite(value) else 0
    chosen = sorted(groups, key=lambda group: (-groups[group], group))[:MOST_LINES]
    lines = {
        group: sorted((row[by].us, float(row[aggregate])) for row in drawn if name_of(row) == group)
        for group in sorted(chosen)
    }
    figure = draw_windows(lines, across=by, up=aggregate, step_us=_step_us(window))
    expression = " ".join(window.aggregates[aggregate].split())
    sentence = _sentence_on(window, len(instants), len(chosen), len(groups))
    return source_of(figure), f"{aggregate}: {expression}", sentence


def _label_of_group(group_columns: Sequence[str]) -> Callable[[Row], str]:
    """Return a function that labels a group: its values."""
    return lambda row: ", ".join(any_value(row[name]) for name in group_columns)


def _sentence_on(window: WindowSpec, windows: int, shown: int, groups: int) -> str:
    sentence = f"Over the last {plural(windows, 'window start')}" if windows > 1 else "Of one window start"
    if not window.group_columns:
        return f"{sentence}."
    if shown == groups:
        return f"{sentence}, by {', '.join(window.group_columns)}."
    return f"{sentence}; {shown} of {groups:,} groups, the ones with the largest sums of it."


def _step_us(window: WindowSpec) -> int | None:
    """Return the distance between a group's windows if none is missing; None if the events decide it."""
    if not window.closes_on_grid:
        return None
    if window.local_grid is None:
        return window.end_step_us
    step_us = micros(window.size.longest) if isinstance(window.size, Months) else window.end_step_us
    return step_us + micros(timedelta(hours=1))  # an hour may come twice


_TEMPLATES = Path(__file__).parent / "templates"
_LAST_BATCHES = 50
_SHOWN_TIMELINES = 12


def page_of(workspace: Workspace) -> str:
    """Return the page of a pipeline as of its last commit, as HTML. It writes nothing and needs no Spark."""
    state = state_of(workspace)
    about: dict[str, object] = {"written": workspace.clock.now()}
    if state is None:
        return _rendered("not_run.html.j2", workspace.spec, about)
    by_reason = state.dead_letters
    has_timelines = bool(state.spec.time.over and state.processed)
    workspace.tell("reading counts")
    values = about | {
        "state": state,
        "places": (places := accounts.places(state)),
        "adds_up": sum(place.records for place in places) == state.counts.records,
        "by_hand": by_hand(changed_by_hand(state.lake, state.versions, state.spec, state.counts, state.log_end)),
        "sources": accounts.sources(state),
        "clocks": accounts.clocks(state),
        "by_window": accounts.windows(state),
        "watermark": watermark_text(state.position),
        "in_all": (sum(by_reason.values()), by_reason),
        "batches": accounts.batches(state, _LAST_BATCHES),
        "timelines": accounts.timelines(state, _LAST_BATCHES, _SHOWN_TIMELINES) if has_timelines else None,
        "last_batches": _LAST_BATCHES,
        "lost": list(_lost(workspace, state)),
        "silent": list(_silent(workspace, state)),
    }
    workspace.tell("drawing the log")
    values["charts"] = log_charts(state)
    values["advice"] = advice_part(log := PipelineLog(workspace), state)
    workspace.tell("reading windows")
    values["windows"] = [window_part(state, window) for window in workspace.spec.windows]
    workspace.tell("reading dead letters")
    values["dead_letters"] = letters = accounts.newest_dead_letters(state, by_reason)
    workspace.tell("explaining dead letters")
    values["stories"] = stories(log, state, letters)
    return _rendered("page.html.j2", workspace.spec, values)


def _lost(workspace: Workspace, state: State) -> Iterator[Markup]:
    """Return sentences on what was lost beyond `alerts.dead_letter_rate`, and what to do; none if all is well."""
    if not state.processed:
        return
    levels = workspace.spec.alerts.dead_letter_rate
    log = LogTables(workspace, lambda table: state.versions[table], state.processed_end)
    excess = beyond(losses_since(log, 0, levels), levels.lowest, levels)
    yield from (_with_code(f"{sentence}.") for sentence in excess.sentences)
    if excess.records:
        cause = cause_of_loss(log, excess.letters, around_of(log, excess.letters))
        yield _with_code(f"To do: {advice(cause, workspace.spec)}.")


def _silent(workspace: Workspace, state: State) -> Iterator[Markup]:
    """Return a sentence on who is silent for longer than ever before; none if no device or source is."""
    if not state.processed:
        return
    log = LogTables(workspace, lambda table: state.versions[table], state.processed_end)
    silent, _ = silences_after(log, state.processed[-1].batch_id, state.position.clock_us)
    if silent:
        yield _with_code(f"{silences_in_words(silent)}.")


def _with_code(sentence: str) -> Markup:
    """Return a sentence in which what is between backticks is code."""
    parts = sentence.split("`")
    return Markup("").join(code(part) if place % 2 else part for place, part in enumerate(parts))


def _rendered(template: str, spec: Spec, values: dict[str, object]) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,  # names, expressions and payloads are text of users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "share": share,
        "instant": instant,
        "instant_us": instant_us,
        "second": second,
        "length": length,
        "shortened": shortened,
        "plural": plural,
        "length_of": len,
        "before_start": lambda commits: sum(commit.counts.get("before_start", 0) for commit in commits),
    }
    style, script = (_TEMPLATES / "page.css").read_text(), (_TEMPLATES / "filter.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        values
        | {
            "spec": spec,
            "time_lines": of_time(spec),
            "source_lines": of_sources(spec),
            "window_lines": [
                (window.name, of_window(window, [join.name for join in spec.joins])) for window in spec.windows
            ],
            "style": Markup(style),
            "script": Markup(script),
            # The browser runs this one script and loads nothing, whatever a payload says.
            "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        }
    )
