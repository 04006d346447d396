"""What a person sees of a time adjustment: counts, watermark and its delay, lateness, and two pictures.

Here: which numbers are shown, and by which names. Not here: gathering them (lateness.py, delay.py), drawing
(pictures.py).
"""

from dagster import MetadataValue

from tidemark.assets.batch.batch import Batch
from tidemark.assets.display import metadata as show
from tidemark.assets.display.delay import causes_of_delay, in_words, watermark_delay
from tidemark.assets.display.lateness import lateness_of
from tidemark.assets.display.lateness_numbers import tolerances
from tidemark.assets.display.pictures import lateness_picture, watermark_picture
from tidemark.assets.time_adjustment import TimeAdjusted
from tidemark.resources import tables
from tidemark.timeops.spec.consistency import has_event_time

_QUANTILES = {"lateness_p50_seconds": 0.5, "lateness_p90_seconds": 0.9, "lateness_p99_seconds": 0.99}


def of_time_adjustment(batch: Batch, done: TimeAdjusted) -> show.Metadata:
    """Metadata of the materialization of `ordered_events`."""
    workspace, plan = batch.workspace, batch.plan
    counts = dict(done.counts)
    refused = {name.removeprefix("refused."): n for name, n in counts.items() if name.startswith("refused.")}
    about: show.Metadata = {
        **show.numbers({"records": counts["records"], "accepted": counts["accepted"]}),
        **show.met(done.met),
        "batch": show.number_of(plan),
        "watermark": show.instant(done.after.watermark_us),
        "refused": show.counted(refused, of="reason"),
    }
    delay = watermark_delay(workspace, done.after)
    if delay is not None:
        about["watermark_delay"] = MetadataValue.text(in_words(delay))
        about["watermark_delay_seconds"] = MetadataValue.float(delay.total_seconds())
        about["watermark_delay_causes"] = MetadataValue.md(causes_of_delay(workspace, plan, done.after))
    if workspace.spec.outputs.ordered_events:
        about |= show.rows(counts["released"])
        about |= show.table(workspace.lake, tables.ORDERED_EVENTS)
        about["held_events"] = MetadataValue.int(workspace.lake.row_count(tables.HELD_EVENTS))
    if has_event_time(workspace.spec.sources, workspace.spec.time):  # else event time is arrival time
        about |= _of_lateness(batch)
    return about


def _of_lateness(batch: Batch) -> show.Metadata:
    lateness = lateness_of(batch)
    about: show.Metadata = {}
    for name, part in _QUANTILES.items():
        us = lateness.quantile_us(part)
        if us is not None:
            about[name] = MetadataValue.float(us / 1e6)
    if lateness.longest_us is not None:
        about["lateness_max_seconds"] = MetadataValue.float(lateness.longest_us / 1e6)
    pictures = {
        "watermark_against_arrival": watermark_picture(lateness.bins),
        "lateness": lateness_picture(lateness, tolerances(batch.workspace.spec)),
    }
    return about | {name: show.picture(png, name) for name, png in pictures.items() if png is not None}
