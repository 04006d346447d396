"""Metadata of materializations in the Dagster UI: row counts, columns, instants, tables of counts, time.

Here: values to metadata, a sentence on each column that is Tidemark's own, which numbers of a time adjustment are
shown, and what can cause the watermark's delay (A2). Not here: the numbers of lateness
(assets/catalog/display/lateness.py), drawing (assets/catalog/display/pictures.py).
"""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import yaml
from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from tidemark.assets.alarms.losses.causes import tolerance_us
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import Batch
from tidemark.assets.catalog.display.lateness import lateness_of_batch, tolerances
from tidemark.assets.time_adjustment import TimeAdjusted, UntimelyCounts
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.delta.columns import sql_types_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.figures.counts import Outcomes
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.between_parts import has_event_time
from tidemark.timeops.values.durations import format_duration, roughly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metadata = dict[str, Any]

_MOST_SENTENCES = 20
_EVERYWHERE = {
    "_arrival_seq": "Number of the record in the arrival log: 0, 1, 2, …",
    "_arrival_time": "When the record arrived.",
    "_clock": "The latest arrival so far: the clock of the log.",
    "_source": "The source that the record came from.",
    "_split": "Its split: part of a source with its own watermark.",
    "_position": "Line, row or record in its file, from 1.",
    "_file": "The file that it came from: its path from the folder before the first wildcard of the source's path.",
    "_malformed": "The raw text of a record that does not fit the schema.",
    "_batch_id": "The batch that wrote the row, see the asset batches.",
    "_timestamp": "Event time that order and windows use: rounded down to the unit, and moved where a policy "
    "adjusts it.",
    "_event_time": "Event time as the record states it.",
    "_timeline": "The values of `over`, each with its own watermark; [] without `over`.",
    "_release_seq": "Number of the event in event-time order: 0, 1, 2, …",
    "_adjusted_by": "The rules that moved the event's time, or `admitted`: an operator has let it in.",
    "_watermark": "The watermark when the event came, where the event was out of order.",
}
_OF_DEAD_LETTERS = {
    "stage": "What refused the record: ingest, time, window or join.",
    "reason": "Why, in a word.",
    "detail": "Why, in a sentence.",
    "window_name": "The window, or join, that it came too late for.",
    "missed_windows": "Start and end of the windows that it missed.",
    "lateness_us": "The least additional tolerance that would have let it in, in microseconds.",
    "watermark_set_by": "The record that moved the watermark to where it was.",
    "payload": "The record itself: as JSON, or its raw text.",
    "replayed_at": "When an operator let the record in; null while it is refused.",
}
_OF_WINDOWS = {
    "window_start": "Start of the window.",
    "window_end": "End of the window.",
    "_rank": "The place of the event among the first ones of its window and group, from 1.",
    "_revision": "The revision of the row: 0, 1, 2, …",
    "_is_final": "Whether the window is closed, so that the row stays as it is.",
    "_watermark": "The watermark when the row was emitted.",
}

_OF_JOINS = {
    "_timestamp": "Event time of the event of the left side.",
    "_left_seq": "Number of the event of the left side in the arrival log.",
    "_right_seq": "Number of the event of the right side; null where there is none.",
    "_is_final": "Whether no late event can revise the answer any more.",
}


def rows_written(count: int) -> Metadata:
    """Show how many rows a batch wrote; `table_rows` and `partition_rows` show how many a table or a day has."""
    return {"rows_written": MetadataValue.int(count)}


def partition_rows(rows: int) -> Metadata:
    """Show how many rows a day of a table has, at the version that its materialization reports."""
    return {"dagster/partition_row_count": MetadataValue.int(rows)}


def meanings_of(table: str) -> Mapping[str, str]:
    """Return what the columns mean that are Tidemark's own, by their names in a table."""
    if table == tables.DEAD_LETTERS:
        return _EVERYWHERE | _OF_DEAD_LETTERS
    if table.startswith(tables.join_table("")):
        return _EVERYWHERE | _OF_WINDOWS | _OF_JOINS
    return _EVERYWHERE | _OF_WINDOWS if table.startswith(tables.window_table("")) else _EVERYWHERE


def is_complete(*, complete: bool) -> Metadata:
    """Show whether a day is complete: no live batch changes it any more."""
    return {"complete": MetadataValue.bool(complete)}


def table_rows(lake: Lake, name: str) -> Metadata:
    """Show names, types and meaning of a table's columns, how many rows it has now, and where it is."""
    now, meanings = lake.opened.version_at(name), meanings_of(name)
    types = sql_types_of(now.schema).items()
    fields = [TableColumn(name=column, type=kind, description=meanings.get(column)) for column, kind in types]
    return {
        "dagster/row_count": MetadataValue.int(now.row_count()),
        "dagster/column_schema": MetadataValue.table_schema(TableSchema(columns=fields)),
        "path": MetadataValue.path(str(lake.path(name))),
    }


def number_of(batch: Plan) -> Any:
    """Return the number of a batch as text: a plot of it over runs would mean nothing."""
    return MetadataValue.text(str(batch.batch_id))


def numbers(counts: Mapping[str, int]) -> Metadata:
    """Return each count as a number of its own, which the UI plots over runs."""
    return {name: MetadataValue.int(count) for name, count in counts.items()}


def _numbers_met(by_source: Mapping[str, UntimelyCounts]) -> Metadata:
    """Return early, late and out-of-order events (A2's metrics): of all sources, and of each if there are several."""
    shown = {"": sum(by_source.values(), UntimelyCounts(0, 0, 0))}
    if len(by_source) > 1:
        shown |= {f"_{source}": of_source for source, of_source in by_source.items()}
    counts = {}
    for of, met in shown.items():
        counts[f"out_of_order_events{of}"] = met.out_of_order
        counts[f"late_input_events{of}"] = met.late
        counts[f"early_input_events{of}"] = met.early
    return numbers(counts)


def counted(counts: Mapping[str, int], *, of: str) -> Any:
    """Return counts as a small table, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    records = [TableRecord({of: name, "events": count}) for name, count in ordered]
    columns = [TableColumn(name=of, type="string"), TableColumn(name="events", type="int")]
    return MetadataValue.table(records, TableSchema(columns=columns))


def rows_as_table(shown: Sequence[Mapping[str, object]]) -> Any:
    """Return rows of any columns as a small table, all as text."""
    names = list(dict.fromkeys(name for row in shown for name in row))
    records = [TableRecord({name: str(row.get(name, "")) for name in names}) for row in shown]
    columns = [TableColumn(name=name, type="string") for name in names]
    return MetadataValue.table(records, TableSchema(columns=columns))


def sentences(texts: Sequence[str], *, of: str) -> Any:
    """Return sentences as a small table of one column; of many only the first."""
    ending = [f"... and {len(texts) - _MOST_SENTENCES} more"] if len(texts) > _MOST_SENTENCES else []
    return rows_as_table([{of: sentence} for sentence in (*texts[:_MOST_SENTENCES], *ending)])


def losses(lost: BatchLosses) -> Metadata:
    """Return what a batch lost, why, and what to do about it, in words, and how to ask more; nothing for nothing."""
    lines = lost.in_two_lines()
    about: Metadata = dict(zip(("lost", "to_do"), map(MetadataValue.text, lines), strict=False))
    return about | questions(lost) if lines else {}


def questions(lost: BatchLosses) -> Metadata:
    """Say how to ask in Dagster why the newest late record was refused, and what other settings would do."""
    spec, seq = lost.batch.workspace.spec, lost.newest_seq
    configs: dict[str, dict[str, Any]] = {
        f"Why was record {seq:,} refused, and what would have let it in?": {"explain": {"seq": seq}}
    }
    if has_event_time(spec.sources, spec.time):
        longer = timedelta(microseconds=2 * tolerance_us(spec)) or timedelta(minutes=1)
        setting = f"time.out_of_orderness={format_duration(longer)}"
        configs |= {
            "How late do events come, and what would each tolerance lose?": {"advise": {}},
            "Which results would another setting change?": {"simulate": {"set": [setting]}},
        }
    parts = [f"Launch the job `{spec.name}_ask`. Its output has the answer as metadata."]
    for question, config in configs.items():
        run_config = yaml.safe_dump(ask_with(spec, config), default_flow_style=None)
        parts.append(f"{question}\n```yaml\n{run_config}```")
    return {"ask": MetadataValue.md("\n\n".join(parts))}


def ask_with(spec: Spec, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run config with which the job `<pipeline>_ask` answers a question, such as `{"advise": {}}`."""
    return {"ops": {f"{spec.name}__ask": {"config": dict(question)}}}


_SHOWN_QUANTILES = {"lateness_p50_seconds": 0.5, "lateness_p90_seconds": 0.9, "lateness_p99_seconds": 0.99}
_HEAD = ("| what can cause it | here |", "|---|---|")


def of_time_adjustment(batch: Batch, adjusted: TimeAdjusted) -> Metadata:
    """Return the metadata of the materialization of `ordered_events`."""
    workspace, plan = batch.workspace, batch.plan
    counts = adjusted.counts
    about: Metadata = {
        **numbers({"records": counts.records, "accepted": counts.accepted}),
        **_numbers_met(adjusted.met),
        "batch": number_of(plan),
        "watermark": MetadataValue.text("none"),
        "refused": counted(counts.refused, of="reason"),
    }
    if adjusted.position.watermark_us is not None:
        about["watermark"] = MetadataValue.timestamp(adjusted.position.watermark_us / 1e6)
        # Of several timelines this is the delay of the largest (A2).
        delay = workspace.clock.since(adjusted.position.watermark_us)
        about["watermark_delay"] = MetadataValue.text(_in_words(delay))
        about["watermark_delay_seconds"] = MetadataValue.float(delay.total_seconds())
        about["watermark_delay_causes"] = MetadataValue.md(_causes_of_delay(workspace, plan, adjusted.position))
    if workspace.spec.outputs.ordered_events:
        about |= rows_written(counts.ordered)
        about |= table_rows(workspace.lake, tables.ORDERED_EVENTS)
        about["held_events"] = MetadataValue.int(workspace.lake.row_count(tables.HELD_EVENTS))
    if has_event_time(workspace.spec.sources, workspace.spec.time):  # else event time is arrival time
        about |= _of_lateness(batch, adjusted.outcomes)
    return about


def _of_lateness(batch: Batch, outcomes: Outcomes) -> Metadata:
    from tidemark.assets.catalog.display.pictures import draw_lateness, draw_watermark  # noqa: PLC0415 - see `pictures`

    lateness = lateness_of_batch(batch, outcomes)
    about: Metadata = {}
    for name, part in _SHOWN_QUANTILES.items():
        us = lateness.quantile_us(part)
        if us is not None:
            about[name] = MetadataValue.float(us / 1e6)
    if lateness.longest_us is not None:
        about["lateness_max_seconds"] = MetadataValue.float(lateness.longest_us / 1e6)
    drawn = {
        "watermark_against_arrival": draw_watermark(lateness.bins),
        "lateness": draw_lateness(lateness, tolerances(batch.workspace.spec)),
    }
    return about | pictures(drawn)


def pictures(drawn: "Mapping[str, Figure | None]") -> Metadata:
    """Return pictures; they are inside Markdown, so that no other file has to be kept or served."""
    from tidemark.assets.catalog.display.pictures import png  # noqa: PLC0415 - matplotlib takes a second

    data = {name: base64.b64encode(png(figure)).decode() for name, figure in drawn.items() if figure is not None}
    return {name: MetadataValue.md(f"![{name}](data:image/png;base64,{picture})") for name, picture in data.items()}


def text_block(text: str) -> Any:
    """Return a text of lines whose columns are below each other, whatever signs are in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return MetadataValue.md("\n".join([f"{fence}text", printable(text, keep="\n"), fence]))


def _in_words(delay: timedelta) -> str:
    return roughly(delay) if delay >= timedelta(0) else f"{roughly(-delay)} ahead of the wall clock"


def _causes_of_delay(workspace: Workspace, plan: Plan, position: Position) -> str:
    """Return as Markdown what can make the watermark delay large, each cause with what is known of it here."""
    behind, last = workspace.progress.log_end() - plan_end(plan), _ago(workspace, position.clock_us)
    rows = [
        ("processing", f"{roughly(workspace.clock.now() - plan.planned_at)} since this batch was planned"),
        *_tolerances(workspace),
        ("clocks that differ, of events and of this machine", _skew(position)),
        ("too little compute", f"{behind:,} records of the log wait for the next batch"),
        ("no input, or a source that is throttled", f"the last record or tick came {last}"),
        ("a sink that is throttled", "compare the durations of this run's steps with earlier runs"),
    ]
    lines = [f"| {cause} | {here} |" for cause, here in rows]
    return "\n".join([f"The watermark is {_ago(workspace, position.watermark_us)}.", "", *_HEAD, *lines])


def _tolerances(workspace: Workspace) -> list[tuple[str, str]]:
    rules = workspace.rules
    most_us = max(source.out_of_orderness_us for source in rules.sources)
    rows = [("`out_of_orderness`", f"{_length(most_us)} behind the newest event")]
    if rules.uses_splits:
        rows.append(("the slowest split", "the watermark is the lowest of the active ones"))
    if rules.time.late is not None:
        moves = rules.time.clock_tolerance_us is not None
        how = "behind the clock while a timeline is silent" if moves else "does not hold the watermark back"
        rows.append(("`late.tolerance`", f"{_length(rules.time.late.tolerance_us)}: {how}"))
    if rules.time.emit_every_us is not None:
        rows.append(("`emit.every`", f"{_length(rules.time.emit_every_us)}: seen a period later"))
    return rows


def _skew(position: Position) -> str:
    if position.max_t_us is None or position.clock_us is None:
        return "no event yet"
    apart = timedelta(microseconds=abs(position.max_t_us - position.clock_us))
    where = "ahead of" if position.max_t_us > position.clock_us else "behind"
    return f"the newest event is {roughly(apart)} {where} the arrival clock"


def _ago(workspace: Workspace, us: int | None) -> str:
    if us is None:
        return "not there yet"
    since = workspace.clock.since(us)
    return f"{roughly(since)} ago" if since >= timedelta(0) else _in_words(since)


def _length(us: int) -> str:
    return format_duration(timedelta(microseconds=us))
