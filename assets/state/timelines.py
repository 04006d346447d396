"""The timelines between two batches: their state before a batch, and the rows that say how a batch left them.

Here: reading and writing that state. Not here: how events move it (timeops/watermark/timelines.py).

The state of one timeline is the pipeline's row in `watermarks`. With `over`, or when a watermark is not seen at once,
the state is a table, a base and changes: each batch adds the timelines that it moved, and every so often all of them
are rewritten. So neither writing nor reading grows with history.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.batch import Batch
from tidemark.assets.log.control import waits_before
from tidemark.assets.log.spec_changes import check_spec, spec_before
from tidemark.assets.schemas import RELEASED, TIMELINE_SCHEMA
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.versions import ALL_ROWS, NO_ROWS
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.rules.time_rules import Waits
from tidemark.timeops.values.instants import integers
from tidemark.timeops.watermark.timelines import ACROSS, STATE, LogPlace, under_other_rules, with_column
from tidemark.timeops.watermark.watermarks import settled


def one_timeline(position: Position) -> pa.Table:
    """Return a position as the state of the pipeline's one timeline; no row before its first event."""
    if position.max_t_us is None and position.kept_until_us is None:
        return TIMELINE_SCHEMA.empty_table()
    row = {
        c.TIMELINE: c.ONE_TIMELINE,
        "max_t": position.max_t_us,
        "watermark": position.watermark_us,
        "watermark_set_by": position.set_by,
        "computed": position.watermark_us,
        "computed_set_by": position.set_by,
        "clock": position.clock_us,
        RELEASED: position.released,
    }
    return pa.Table.from_pylist([row], schema=TIMELINE_SCHEMA)


def timelines_before(workspace: Workspace, position: Position) -> pa.Table:
    """Return the state of every timeline with an event before the batch at work, as of TIMELINE_SCHEMA."""
    version, waits = workspace.base_of(tables.TIMELINES), waits_before(workspace)
    old_spec = spec_before(workspace) if check_spec(workspace) else None
    if old_spec is None:
        return timelines_at(workspace, position, version, waits)
    earlier = workspace.under(old_spec)
    old, new = replace(earlier.rules, waits=waits), replace(workspace.rules, waits=waits)
    first_us = first_clock_asked_for(workspace) or first_clock_asked_for(earlier)
    place = replace(log_place(workspace, position), first_us=first_us)
    stored = _stored(earlier, position, version)
    return _with_state(stored, lambda rows: under_other_rules(settled(rows, old, place), old, new, place))


def timelines_at(workspace: Workspace, position: Position, version: int, waits: Waits) -> pa.Table:
    """Return the state of every timeline at the end of a committed batch, as of TIMELINE_SCHEMA.

    The pipeline had that position, version of `_state/timelines`, and waits of sources there.
    """
    state = _stored(workspace, position, version)
    if not workspace.spec.keeps_timelines:
        return state
    # A timeline without events of its own in a batch has a row with an earlier clock and its watermark.
    rules, place = replace(workspace.rules, waits=waits), log_place(workspace, position)
    return _with_state(state, lambda rows: settled(rows, rules, place))


def _stored(workspace: Workspace, position: Position, version: int) -> pa.Table:
    """Return the timelines as they were written; the clock may have moved since."""
    if not workspace.spec.keeps_timelines:
        return one_timeline(position)
    rows = workspace.lake.rows(tables.TIMELINES, version).sort_by(c.BATCH)
    timeline = rows[c.TIMELINE].combine_chunks().dictionary_encode()
    latest = np.zeros(len(timeline.dictionary), np.int64)
    latest[timeline.indices.to_numpy()] = np.arange(len(rows))  # of several rows of a timeline the last one stays
    timelines, names = rows.take(latest).select(TIMELINE_SCHEMA.names).cast(TIMELINE_SCHEMA), workspace.source_names
    if not names:
        return timelines
    splits = [
        None if row is None else [split | {"source": names.get(split["source"], split["source"])} for split in row]
        for row in timelines["splits"].to_pylist()
    ]
    return with_column(timelines, "splits", pa.array(splits, STATE.field("splits").type))


def _with_state(rows: pa.Table, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """Return timelines after a change of their state, which keeps their number and their order."""
    return change(rows.select(STATE.names)).append_column(RELEASED, rows[RELEASED])


def log_place(workspace: Workspace, position: Position) -> LogPlace:
    """Return the place of a segment in the log that begins at a position."""
    return LogPlace(first_clock_asked_for(workspace), position.clock_us, position.clock_before_period_us)


def first_clock_asked_for(workspace: Workspace) -> int | None:
    """Return the first clock of the log; None if no listed split asks for it: looking it up opens a table."""
    return workspace.progress.first_clock_us() if workspace.rules.listed_splits else None


def write_timelines(batch: Batch, timelines: pa.Table) -> None:
    """Write the state of the timelines that a batch's events moved, or of all of them if a new base is due.

    `timelines` is TIMELINE_SCHEMA after the batch. The effect of the clock alone is one number for all timelines, and
    is not written.
    """
    workspace = batch.workspace
    # A change of the spec may have moved every timeline.
    if batch.base_is_due or check_spec(workspace):
        batch.replace_rows(tables.TIMELINES, timelines, where=ALL_ROWS)
        return
    rules, place = batch.outcome.judged.rules, log_place(workspace, batch.after)
    unmoved = _with_state(batch.timelines, lambda rows: settled(rows, rules, place))
    columns = ("max_t", "watermark", "computed", "last_clock", "max_close", "splits", RELEASED)
    # What the watermark across timelines was in between does not follow from the rows of the others.
    written = pc.or_(_is_moved(unmoved, timelines, columns), pc.equal(timelines[c.TIMELINE], _across_name(workspace)))
    batch.replace_rows(tables.TIMELINES, timelines.filter(written), where=NO_ROWS)


def _across_name(workspace: Workspace) -> str:
    """Return the name of the row for all timelines; one that no row has where no window asks for it."""
    return ACROSS if workspace.rules.has_across else ""


def watermark_rows(before: pa.Table, after: pa.Table, clock: datetime | None, *, final: bool) -> pa.Table:
    """Return rows of `watermarks` of the timelines whose own events moved them; without `_batch_id`.

    Both tables are TIMELINE_SCHEMA, and `after` begins with the timelines of `before`. No watermark is stored of a
    `final` batch, which flushed.
    """
    new = pa.nulls(len(after) - len(before), pa.int64())
    released_before = pc.fill_null(pa.chunked_array([*before[RELEASED].chunks, new]), 0)
    timelines = after.append_column("fresh", pc.subtract(after[RELEASED], released_before))
    moved = timelines.filter(_is_moved(before, after, ["max_t"]))
    instant, count = pa.timestamp("us", "UTC"), len(moved)
    counts = pa.MapArray.from_arrays(
        pa.array(np.arange(count + 1), pa.int32()), pa.repeat("released", count), moved["fresh"].combine_chunks()
    )
    return pa.table(
        {
            c.TIMELINE: moved[c.TIMELINE],
            "watermark": pa.nulls(count, instant) if final else moved["watermark"].cast(instant),
            "clock": pa.repeat(pa.scalar(clock, instant), count),
            "max_timestamp": moved["max_t"].cast(instant),
            "watermark_set_by": moved["watermark_set_by"],
            RELEASED: moved[RELEASED],
            "final": pa.repeat(final, count),
            "counts": counts,
        }
    )


def _is_moved(before: pa.Table, after: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return whether each timeline has another value in some columns than before, or was not there."""
    moved = np.arange(len(after)) >= len(before)
    for name in columns:
        current = after[name].slice(0, len(before))
        if pa.types.is_nested(current.type):
            differs = [old != new for old, new in zip(before[name].to_pylist(), current.to_pylist(), strict=True)]
        else:
            differs = integers(before[name]) != integers(current)
        moved[: len(before)] |= np.asarray(differs, bool)
    return pa.array(moved)
