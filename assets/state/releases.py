"""Released and held events of one batch.

Here: `ordered_events` with its dense `_release_seq` per timeline, and `held_events`. Not here: the rule of release
(timeops/events/release.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import batch_column, flushes, has_few_records, replace_events
from tidemark.assets.batch.segment import Judged
from tidemark.assets.schemas import held_columns, ordered_columns, payload_of
from tidemark.assets.state.timelines import RELEASED
from tidemark.resources import tables
from tidemark.resources.lake.filters import Filters
from tidemark.resources.spark.frames import numbered
from tidemark.resources.workspace import Position, Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.release import RELEASE_ORDER, Released, release
from tidemark.timeops.utc import Instant


def write_released(workspace: Workspace, judged: Judged, *, kept: int) -> int:
    """Writes what is released and what is held on.

    Args:
        workspace: The pipeline.
        judged: The batch.
        kept: How many of its events pass outside the sequence.

    Returns:
        How many events got a `_release_seq`.
    """
    plan = judged.plan
    split = _split(workspace, judged)
    written = 0
    with _sequence(workspace, judged, split) as (sequence, in_sequence):
        # Events kept out of order pass outside the sequence: their number stays null.
        both = sequence.unionByName(split.passed, allowMissingColumns=True)
        rows = both.select(*ordered_columns(payload_of(workspace)), batch_column(plan))
        if in_sequence != 0 or kept:
            expect = workspace.ready(tables.ORDERED_EVENTS, plan)
            few = has_few_records(plan)
            written = workspace.lake.append(
                tables.ORDERED_EVENTS, rows, attempt=plan.attempt, expect=expect, are_few=few
            ).rows
    _write_held(workspace, judged)
    return written - kept


def with_released(workspace: Workspace, judged: Judged) -> DataFrame:
    """State of every timeline after the batch, timelines.TIMELINE_SCHEMA."""
    before = judged.timelines.select(c.TIMELINE, F.col(RELEASED).alias("__before"))
    state = judged.adjusted.state.join(before, c.TIMELINE, "left")
    known = F.coalesce("__before", F.lit(0).cast("bigint"))
    if not workspace.spec.outputs.ordered_events:
        return state.withColumn(RELEASED, known).drop("__before")
    fresh = _split(workspace, judged).sequence.groupBy(c.TIMELINE).agg(F.count("*").alias("__fresh"))
    counted = state.join(fresh, c.TIMELINE, "left")
    return counted.withColumn(RELEASED, known + F.coalesce("__fresh", F.lit(0))).drop("__before", "__fresh")


def _split(workspace: Workspace, judged: Judged) -> Released:
    """What the batch releases, of its own events and of those that were held; of the latter only what may be."""
    flushed = flushes(judged.plan)
    where = _no_longer_held(judged.after, flushed=flushed)
    events = _fresh(workspace, judged)
    if where is not None:
        events = workspace.read_base(tables.HELD_EVENTS, filters=where).drop(c.BATCH).unionByName(events)
    return release(events, judged.adjusted.state, flushed=flushed)


def _fresh(workspace: Workspace, judged: Judged) -> DataFrame:
    """The batch's accepted events as they are held or released."""
    accepted = judged.adjusted.accepted.withColumn(c.WATERMARK, c.to_instant(c.W_BEFORE))
    return accepted.select(*held_columns(payload_of(workspace)))


@contextmanager
def _sequence(workspace: Workspace, judged: Judged, split: Released) -> Iterator[tuple[DataFrame, int | None]]:
    """The released events with their `_release_seq`, and how many they are where that is known before."""
    if not workspace.spec.time.over:
        order = [F.col(name) for name in RELEASE_ORDER]
        with numbered(split.sequence, order, start=judged.before.released, name=c.RELEASE_SEQ) as sequence:
            yield sequence.frame, sequence.rows
        return
    before = judged.timelines.select(c.TIMELINE, F.coalesce(RELEASED, F.lit(0)).alias("__before"))
    place = F.row_number().over(Window.partitionBy(c.TIMELINE).orderBy(c.TIMESTAMP, c.SEQ)) - 1
    counted = split.sequence.join(before, c.TIMELINE, "left")
    yield counted.withColumn(c.RELEASE_SEQ, F.coalesce("__before", F.lit(0)) + place), None


def _write_held(workspace: Workspace, judged: Judged) -> None:
    """Takes the released events out of `held_events`, and puts the batch's own in that are held on.

    The watermarks of several timelines differ: events below the highest of them are written anew where their own
    timeline still holds them.
    """
    plan = judged.plan
    rows = _fresh(workspace, judged)
    where = _no_longer_held(judged.after, flushed=flushes(plan))
    if workspace.spec.time.over and where is not None:
        rows = rows.unionByName(workspace.read_base(tables.HELD_EVENTS, filters=where).drop(c.BATCH))
    still_held = release(rows, judged.adjusted.state, flushed=flushes(plan)).held
    still_held = still_held.select(*held_columns(payload_of(workspace)))
    replace_events(workspace, plan, tables.HELD_EVENTS, still_held, where=where)


def _no_longer_held(after: Position, *, flushed: bool) -> Filters | None:
    """Which rows of `held_events` are behind a watermark; None for none."""
    if flushed:
        return ()
    if after.watermark_us is None:
        return None
    return [(c.TIMESTAMP, "<", Instant(after.watermark_us))]
