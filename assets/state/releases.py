"""Released and held events of one batch.

Here: `ordered_events` with its dense `_release_seq` per timeline, and `held_events`. Not here: the rule of release
(timeops/events/adjustment.py).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch
from tidemark.assets.schemas import RELEASED, held_columns, ordered_columns, payload_of
from tidemark.assets.state.stored_events import StoredEvents
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.lake import FEW_ROWS
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.spark.numbering import numbered_by_instant, parts_at
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.counts import Outcomes
from tidemark.timeops.events.adjustment import FATE, HELD, IN_SEQUENCE, PASSED, RELEASE_ORDER
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.narrow import integers, numbers, to_join
from tidemark.timeops.utc import Instant
from tidemark.timeops.watermark.fold import Array


def held_before(workspace: Workspace, after: Position) -> DataFrame | None:
    """Return the events that earlier batches hold and this batch may release; None if it releases none.

    The watermarks of several timelines differ: an event below the highest of them may stay held.
    """
    where = _no_longer_held(after)
    if where is None or not workspace.spec.outputs.ordered_events:
        return None
    return workspace.read_base(tables.HELD_EVENTS, filters=where).drop(c.BATCH)


def write_released(batch: Batch, outcomes: Outcomes) -> int:
    """Write the events that are released and the events that stay held; return how many got a `_release_seq`."""
    held_before = batch.workspace.lake.row_count(tables.HELD_EVENTS)
    few_held = held_before <= FEW_ROWS
    stored = StoredEvents.of(batch, outcomes) if few_held else None
    written = None if stored is None else _write_stored(batch, outcomes, stored)
    if written is not None:
        return written
    return _write_few(batch) if batch.is_small and few_held else _write_by_spark(batch, outcomes, held_before)


def _write_stored(batch: Batch, outcomes: Outcomes, stored: StoredEvents) -> int | None:
    """Write events that have the values of the log; return how many got a `_release_seq`, None where Spark has to."""
    are_accepted, are_out = outcomes.reason == 0, stored.t_us < _released_before_us(batch.after)
    are_held = are_accepted & ~are_out
    if np.count_nonzero(are_held) > FEW_ROWS:
        return None
    held = pa.Table.from_batches(_no_longer(batch, stored.schema.names), stored.schema)
    parts = stored.in_order(held, are_accepted & are_out, batch.before.released, batch.plan.batch_id)
    if parts is None:
        return None
    try:
        written = batch.append_pieces(tables.ORDERED_EVENTS, parts).rows if parts else 0
    except pa.ArrowException:  # too many events wait for others before them
        return None
    batch.replace_rows(tables.HELD_EVENTS, stored.some(are_held), where=_no_longer_held(batch.after))
    return written


def _write_by_spark(batch: Batch, outcomes: Outcomes, held_before: int) -> int:
    """Write the events by queries of Spark; return how many got a `_release_seq`."""
    payload = payload_of(batch.workspace)
    passed = batch.outcome.released.passed.select(*held_columns(payload))
    written, kept_events = 0, int(outcomes.is_kept.sum())
    sequence, in_sequence = _sequence(batch, outcomes)
    # Events kept out of order pass outside the sequence: their number stays null.
    both = sequence.unionByName(passed, allowMissingColumns=True)
    if in_sequence != 0 or kept_events:
        written = batch.append(tables.ORDERED_EVENTS, both.select(*ordered_columns(payload))).rows
    # A watermark of one timeline releases all that is before it: what was held earlier need not be read again.
    several = bool(batch.workspace.spec.time.over)
    released = batch.outcome.released if several else batch.outcome.released_of_segment
    held = released.held.select(*held_columns(payload))
    watermark_us = batch.after.watermark_us
    if not several and watermark_us is not None and not batch.flushes:
        held = held.where(batch.may_reach(watermark_us))
    few = batch.is_small or (batch.is_moderate and outcomes.accepted + held_before - written <= FEW_ROWS)
    held = held if few else held.repartitionByRange(c.TIMESTAMP)
    batch.replace(tables.HELD_EVENTS, held, where=_no_longer_held(batch.after), are_few=few)
    return written - kept_events


def _write_few(batch: Batch) -> int:
    """Write few events, which come into this process by one query; return how many got a `_release_seq`."""
    columns = held_columns(payload_of(batch.workspace))
    events = batch.outcome.released.events
    rows = events.selectExpr(*map(quoted, columns), FATE).toArrow()
    fate, rows = rows[FATE], rows.drop_columns(FATE)
    sequence, passed, held = (rows.filter(pc.equal(fate, kind)) for kind in (IN_SEQUENCE, PASSED, HELD))
    sequence = sequence.sort_by([(name, "ascending") for name in RELEASE_ORDER])
    numbered = sequence.append_column(c.RELEASE_SEQ, _numbers(batch, sequence[c.TIMELINE]))
    outside = passed.append_column(c.RELEASE_SEQ, pa.nulls(len(passed), pa.int64()))
    batch.replace_rows(tables.ORDERED_EVENTS, pa.concat_tables([numbered, outside]), where=None)
    batch.replace_rows(tables.HELD_EVENTS, held, where=_no_longer_held(batch.after))
    return len(numbered)


def _numbers(batch: Batch, timelines: pa.ChunkedArray) -> pa.Array:
    """Return `_release_seq` of events in order, by the timeline of each; a timeline's are side by side."""
    places = np.arange(len(timelines))
    if not batch.workspace.spec.time.over:
        return pa.array(batch.before.released + places, pa.int64())
    start = _released_before(batch, timelines)
    code = numbers(pa.table({c.TIMELINE: timelines}), [c.TIMELINE])
    is_first = np.diff(code, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(is_first, places, 0))
    return pa.array(start + places - first, pa.int64())


def with_released(batch: Batch) -> pa.Table:
    """Return the state of every timeline after the batch, schemas.TIMELINE_SCHEMA, once its events are written."""
    state, lake = batch.outcome.timelines, batch.workspace.lake
    before = _released_before(batch, state[c.TIMELINE])
    if not batch.workspace.spec.outputs.ordered_events:
        return state.append_column(RELEASED, pa.array(before))
    fresh = np.zeros(len(state), np.int64)
    names, of_batch = state[c.TIMELINE].combine_chunks(), [(c.BATCH, "=", batch.plan.batch_id)]
    written, columns = lake.version(tables.ORDERED_EVENTS), [c.TIMELINE, c.RELEASE_SEQ]
    for rows in pieces(lake, tables.ORDERED_EVENTS, written, columns, of_batch):
        numbered = rows.filter(pc.is_valid(rows[c.RELEASE_SEQ]))
        fresh += np.bincount(pc.index_in(numbered[c.TIMELINE], names).to_numpy(), minlength=len(state))
    return state.append_column(RELEASED, pa.array(before + fresh))


def _released_before(batch: Batch, timelines: pa.ChunkedArray) -> Array:
    """Return how many events of each timeline got a `_release_seq` before the batch."""
    places = pc.index_in(timelines, batch.timelines[c.TIMELINE].combine_chunks())
    return integers(pc.fill_null(batch.timelines[RELEASED].combine_chunks().take(places.combine_chunks()), 0))


def _sequence(batch: Batch, outcomes: Outcomes) -> tuple[DataFrame, int | None]:
    """Return the released events with their `_release_seq`, and their number if that is known before."""
    released = batch.outcome.released.sequence.select(*held_columns(payload_of(batch.workspace)))
    # Where that is little work, one task puts a timeline in order, in the query that writes it.
    if not batch.workspace.spec.time.over and not batch.is_moderate:
        # Without the timeline, which is the same in all: rows would first be compared by its text.
        order, at = [F.col(name) for name in RELEASE_ORDER if name != c.TIMELINE], c.to_us(c.TIMESTAMP)
        tasks = int(batch.workspace.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        parts = parts_at(_released_us(batch, outcomes), tasks)
        sequence = numbered_by_instant(released, order, at, parts, start=batch.before.released, name=c.RELEASE_SEQ)
        return sequence.frame, sequence.rows
    place = F.row_number().over(Window.partitionBy(c.TIMELINE).orderBy(c.TIMESTAMP, c.SEQ)) - 1
    if not batch.workspace.spec.time.over:
        return released.withColumn(c.RELEASE_SEQ, F.lit(batch.before.released) + place), None
    before = batch.timelines.select([c.TIMELINE, RELEASED])
    counted = released.join(to_join(batch.workspace.spark, before), c.TIMELINE, "left")
    return counted.withColumn(c.RELEASE_SEQ, F.coalesce(RELEASED, F.lit(0)) + place).drop(RELEASED), None


def _released_us(batch: Batch, outcomes: Outcomes) -> Array:
    """Return the `_timestamp` of the events that a batch of one timeline releases in the sequence, in any order."""
    times = (part.final[(part.reason == 0) & ~part.is_kept] for part in outcomes.parts())
    fresh = [us[us < _released_before_us(batch.after)] for us in times]
    held = [np.asarray(piece[c.TIMESTAMP].cast(pa.int64())) for piece in _no_longer(batch, [c.TIMESTAMP])]
    return np.concatenate([np.zeros(0, np.int64), *held, *fresh])


def _no_longer(batch: Batch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the events that earlier batches held and a batch of one timeline releases."""
    where, held = _no_longer_held(batch.after), tables.HELD_EVENTS
    if where is not None:
        yield from pieces(batch.workspace.lake, held, batch.workspace.base_of(held), columns, where)


def _released_before_us(after: Position) -> int:
    """Return the instant before which events of the only timeline are released."""
    if after.final:
        return c.MAX_US + 1
    return c.MIN_US if after.watermark_us is None else after.watermark_us


def _no_longer_held(after: Position) -> Filters | None:
    """Return the filters for rows of `held_events` before the watermark; None if there are none."""
    if after.final:
        return ()
    if after.watermark_us is None:
        return None
    return [(c.TIMESTAMP, "<", Instant(after.watermark_us))]
