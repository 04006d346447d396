"""The timelines between two batches: their state before a batch, and the rows that say how a batch left them.

Here: reading and writing that state. Not here: how events move it (timeops/watermark/timelines.py).

The state of one timeline is the pipeline's row in `watermarks`. With `over`, or when a watermark is not seen at once,
the state is a table, a base and changes: each batch adds the timelines that it moved, and every so often all of them
are written anew. So neither writing nor reading grows with history.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log_control import waits_before
from tidemark.assets.schemas import RELEASED, TIMELINE_SCHEMA
from tidemark.assets.spec_changes import check_spec, spec_before
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.spark.frames import small_frame
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.materialize import from_driver
from tidemark.timeops.rules import TimeRules, Waits
from tidemark.timeops.watermark.timelines import STATE, LogPlace, settled, under_other_rules

if TYPE_CHECKING:
    from tidemark.assets.batch import Batch

BROADCAST_TIMELINES = 1_000_000
"""Up to so many are sent to every core; beyond it events and timelines are shuffled to each other."""


def one_timeline(workspace: Workspace, position: Position) -> DataFrame:
    """Return a position as the state of the pipeline's one timeline; no row before its first event."""
    watermark = (position.watermark_us, position.set_by)
    unasked = (None, None, None)  # what the rules ask for that follow the timeline's activity
    row = (c.ONE_TIMELINE, position.max_t_us, *watermark, *watermark, position.clock_us, *unasked, position.released)
    return small_frame(workspace.spark, [row] if position.max_t_us is not None else [], TIMELINE_SCHEMA)


def timelines_before(workspace: Workspace, position: Position) -> DataFrame:
    """Return the state of every timeline with an event before the batch at work, as of TIMELINE_SCHEMA.

    Args:
        workspace: The pipeline.
        position: Its position.
    """
    version, waits = workspace.base_of(tables.TIMELINES), waits_before(workspace)
    before = spec_before(workspace) if check_spec(workspace) else None
    if before is None:
        return timelines_at(workspace, position, version, waits)
    earlier = workspace.under(before)
    old, new = _rules(earlier, waits), _rules(workspace, waits)
    first_us = first_clock_asked_for(workspace) or first_clock_asked_for(earlier)
    place = replace(log_place(workspace, position), first_us=first_us)
    state = _stored(earlier, position, version)
    return _on_the_driver(state, lambda rows: under_other_rules(rows, old, new, place))


def timelines_at(workspace: Workspace, position: Position, version: int, waits: Waits) -> DataFrame:
    """Return the state of every timeline at the end of a committed batch, as of TIMELINE_SCHEMA.

    Args:
        workspace: The pipeline.
        position: Its position there.
        version: The version of `_state/timelines` there, for pipelines that have it.
        waits: The waits of its sources there.
    """
    state = _stored(workspace, position, version)
    if not workspace.keeps_timelines:
        return state
    # A timeline without events of its own in a batch has a row with an earlier clock and its watermark.
    rules, place = _rules(workspace, waits), log_place(workspace, position)
    return _on_the_driver(state, lambda rows: settled(rows, rules, place))


def _stored(workspace: Workspace, position: Position, version: int) -> DataFrame:
    """Return the timelines as they were written; the clock may have gone on since."""
    if not workspace.keeps_timelines:
        return one_timeline(workspace, position)
    rest = [field.name for field in TIMELINE_SCHEMA if field.name != c.TIMELINE]
    known = workspace.lake.read(tables.TIMELINES, version)
    latest = known.groupBy(c.TIMELINE).agg(F.max_by(F.struct(*rest), c.BATCH).alias("state"))
    found, names = latest.select(c.TIMELINE, "state.*"), workspace.source_names
    if not names:
        return found
    splits = F.transform("splits", lambda split: split.withField("source", c.named(split["source"], names)))
    return found.withColumn("splits", splits)


def _on_the_driver(state: DataFrame, change: Callable[[pa.Table], pa.Table]) -> DataFrame:
    """Return the timelines after a change of their state, sent to every core for joins if they are few."""
    rows = state.toArrow()
    changed = change(rows.select(STATE.names).cast(STATE))
    frame = from_driver(state.sparkSession, changed.append_column(RELEASED, rows[RELEASED]))
    return F.broadcast(frame) if len(rows) <= BROADCAST_TIMELINES else frame


def _rules(workspace: Workspace, waits: Waits) -> TimeRules:
    return replace(workspace.rules, waits=waits)


def log_place(workspace: Workspace, before: Position) -> LogPlace:
    """Return the place of a segment in the log that begins at a position."""
    return LogPlace(first_clock_asked_for(workspace), before.clock_us, before.clock_before_period_us)


def first_clock_asked_for(workspace: Workspace) -> int | None:
    """Return the first clock of the log; None if no listed split asks for it: looking it up opens a table."""
    return workspace.progress.first_clock_us() if workspace.rules.listed_splits else None


def write_timelines(batch: "Batch", after: DataFrame) -> None:
    """Write the state of the timelines that a batch's events moved, or of all of them if a new base is due.

    The effect of the clock alone is one number for all timelines, and is not written.

    Args:
        batch: The batch.
        after: TIMELINE_SCHEMA after it.
    """
    workspace = batch.workspace
    # A change of the spec may have moved every timeline.
    if batch.base_is_due or check_spec(workspace):
        batch.replace(tables.TIMELINES, after, where=())
        return
    state = F.struct("max_t", "watermark", "computed", "last_clock", "max_close", "splits", RELEASED)
    rules, place = batch.outcome.judged.rules, log_place(workspace, batch.after)
    unmoved = _on_the_driver(batch.timelines, lambda rows: settled(rows, rules, place))
    joined = after.join(unmoved.select(c.TIMELINE, state.alias("__tm_before")), c.TIMELINE, "left")
    batch.append(tables.TIMELINES, joined.where(~F.col("__tm_before").eqNullSafe(state)).drop("__tm_before"))


def watermark_rows(before: DataFrame, after: DataFrame, clock: Column, *, final: bool) -> DataFrame:
    """Return rows of `watermarks` of the timelines whose own events moved them; without `_batch_id`.

    Args:
        before: TIMELINE_SCHEMA before the batch.
        after: The same after it.
        clock: TIMESTAMP of the pipeline's clock.
        final: The batch flushed: no watermark is stored.
    """
    earlier = before.select(
        c.TIMELINE, F.col("max_t").alias("__tm_t"), F.coalesce(RELEASED, F.lit(0)).alias("__tm_released")
    )
    moved = after.join(earlier, c.TIMELINE, "left").where(~F.col("max_t").eqNullSafe(F.col("__tm_t")))
    watermark = F.lit(None).cast("timestamp") if final else c.to_instant("watermark")
    return moved.select(
        c.TIMELINE,
        watermark.alias("watermark"),
        clock.alias("clock"),
        c.to_instant("max_t").alias("max_timestamp"),
        "watermark_set_by",
        RELEASED,
        F.lit(final).alias("final"),
        F.create_map(F.lit("released"), F.col(RELEASED) - F.coalesce("__tm_released", F.lit(0))).alias("counts"),
    )
