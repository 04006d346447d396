"""The metadata of a time adjustment: counts, watermark and its delay (A2), lateness, and two pictures.

Here: which numbers are shown, by which names, and what can cause a delay. Not here: gathering the numbers of lateness
(lateness.py), drawing (pictures.py).
"""

from datetime import timedelta

from dagster import MetadataValue

from tidemark.assets.batch import Batch
from tidemark.assets.display import metadata as show
from tidemark.assets.display.lateness import lateness_of_batch, tolerances
from tidemark.assets.display.pictures import draw_lateness, draw_watermark, png
from tidemark.assets.time_adjustment import TimeAdjusted
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.workspace import Workspace
from tidemark.timeops.counts import Outcomes, refused
from tidemark.timeops.durations import format_duration, roughly
from tidemark.timeops.spec.pipeline import has_event_time

_SHOWN_QUANTILES = {"lateness_p50_seconds": 0.5, "lateness_p90_seconds": 0.9, "lateness_p99_seconds": 0.99}
_HEAD = ("| what can cause it | here |", "|---|---|")


def of_time_adjustment(batch: Batch, done: TimeAdjusted) -> show.Metadata:
    """Return the metadata of the materialization of `ordered_events`."""
    workspace, plan = batch.workspace, batch.plan
    counts = dict(done.counts)
    about: show.Metadata = {
        **show.numbers({"records": counts["records"], "accepted": counts["accepted"]}),
        **show.met(done.met),
        "batch": show.number_of(plan),
        "watermark": show.instant(done.after.watermark_us),
        "refused": show.counted(refused(counts), of="reason"),
    }
    if done.after.watermark_us is not None:
        delay = workspace.clock.since(done.after.watermark_us)  # of several timelines, the delay of the largest (A2)
        about["watermark_delay"] = MetadataValue.text(in_words(delay))
        about["watermark_delay_seconds"] = MetadataValue.float(delay.total_seconds())
        about["watermark_delay_causes"] = MetadataValue.md(causes_of_delay(workspace, plan, done.after))
    if workspace.spec.outputs.ordered_events:
        about |= show.rows_written(counts["released"] + counts.get("kept_out_of_order", 0))
        about |= show.table_rows(workspace.lake, tables.ORDERED_EVENTS)
        about["held_events"] = MetadataValue.int(workspace.lake.row_count(tables.HELD_EVENTS))
    if has_event_time(workspace.spec.sources, workspace.spec.time):  # else event time is arrival time
        about |= _of_lateness(batch, done.outcomes)
    return about


def _of_lateness(batch: Batch, outcomes: Outcomes) -> show.Metadata:
    lateness = lateness_of_batch(batch, outcomes)
    about: show.Metadata = {}
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
    return about | {name: show.picture(png(figure), name) for name, figure in drawn.items() if figure is not None}


def in_words(delay: timedelta) -> str:
    """Return a delay as a person reads it."""
    return roughly(delay) if delay >= timedelta(0) else f"{roughly(-delay)} ahead of the wall clock"


def causes_of_delay(workspace: Workspace, plan: Plan, after: Position) -> str:
    """Return as Markdown what can make the watermark delay large, each cause with what is known of it here."""
    behind = workspace.progress.log_end() - plan_end(plan)
    rows = [
        ("processing", f"{roughly(workspace.clock.now() - plan.planned_at)} since this batch was planned"),
        *_tolerances(workspace),
        ("clocks that differ, of events and of this machine", _skew(after)),
        ("too little compute", f"{behind:,} records of the log wait for the next batch"),
        (
            "no input, or a source that is throttled",
            f"the last record or tick came {_ago(workspace, after.clock_us)}",
        ),
        ("a sink that is throttled", "compare the durations of this run's steps with those of earlier ones"),
    ]
    lines = [f"| {cause} | {here} |" for cause, here in rows]
    return "\n".join([f"The watermark is {_ago(workspace, after.watermark_us)}.", "", *_HEAD, *lines])


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


def _skew(after: Position) -> str:
    if after.max_t_us is None or after.clock_us is None:
        return "no event yet"
    apart = timedelta(microseconds=abs(after.max_t_us - after.clock_us))
    where = "ahead of" if after.max_t_us > after.clock_us else "behind"
    return f"the newest event is {roughly(apart)} {where} the arrival clock"


def _ago(workspace: Workspace, us: int | None) -> str:
    if us is None:
        return "not there yet"
    since = workspace.clock.since(us)
    return f"{roughly(since)} ago" if since >= timedelta(0) else in_words(since)


def _length(us: int) -> str:
    return format_duration(timedelta(microseconds=us))
