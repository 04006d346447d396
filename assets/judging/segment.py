"""A segment of the log, judged: the clocks, waits and state that it begins with, and the position after it.

Here: a segment as the engine takes it, of a batch or of a replay; a batch, from the stored state through the engine
to what became of its records. Not here: the rules (timeops/engine.py), segment after segment
(assets/judging/replay.py), reading each part of the state (assets/state/), the tick of a live run
(assets/ingestion/pending_work.py).
"""

from dataclasses import replace
from functools import partial

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch, Judged
from tidemark.assets.log.admissions import Admitted, admitted, events_let_in
from tidemark.assets.log.control import (
    follows_waits,
    waits_before,
)
from tidemark.assets.log.exclusions import excluded, some_records, stored_columns
from tidemark.assets.planning import LogSegment, segment_of
from tidemark.assets.state.dedup import known_first_times, spans_of
from tidemark.assets.state.joins import needed_by_joins, stored_by_joins
from tidemark.assets.state.right_tables import right_sides
from tidemark.assets.state.timelines import log_place, timelines_before
from tidemark.assets.state.windows import flushed_before, needed_by, seen_by_windows
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.spark.amount import Amount
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import Some
from tidemark.timeops.engine import State, advance
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.figures.counts import Outcomes
from tidemark.timeops.rules.time_rules import TimeRules, Waits
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.timelines import STATE, LogPlace, arrival_watermark, own_timelines
from tidemark.timeops.watermark.watermarks import Watermarks


def judge(batch: Batch) -> Judged:
    """Judge the segment of a batch, from the state before it."""
    workspace, segment, before = batch.workspace, segment_of(batch.plan), batch.before
    timelines = timelines_before(workspace, before)
    spans = spans_of(workspace, batch.items) if workspace.spec.time.deduplicate_by else ()
    first_times = known_first_times(workspace, spans) if spans else None
    start = State(timelines.select(STATE.names), first_times=first_times)
    if batch.let_in is not None:
        start = start.with_timelines_of(batch.let_in, workspace.spec.time)
    first_seq, end_seq = segment.first_seq, segment.end_seq
    waits = waits_in_segment(workspace, segment, before, waits_before(workspace))
    rules = replace(workspace.rules, waits=waits)
    some = partial(some_records, workspace, first_seq, end_seq)
    records = segment_at(workspace, segment, batch.items, before, admitted(workspace), some=some, counts=True)
    outcome = advance(records, start, rules)
    judged = outcome.judged
    clocks = clocks_after(workspace, segment, batch.items, before, rules)
    after = _position_after(batch, clocks, judged.watermarks, rules)
    full_state = replace(
        start,
        events=needed_by(batch, after),
        seen_groups=seen_by_windows(workspace),
        flushed_windows=flushed_before(batch),
        joins=needed_by_joins(workspace),
        stored_joins=stored_by_joins(workspace),
    )
    if batch.let_in is not None:
        full_state = full_state.with_events(batch.let_in, workspace.spec.windows, workspace.spec.joins)
    outcome = replace(outcome, judged=replace(judged, count_columns=None), before=full_state)
    return Judged(outcome, after, timelines, spans, [Outcomes.of(judged)])


def _position_after(batch: Batch, clocks: Position, watermarks: Watermarks, rules: TimeRules) -> Position:
    """Return the position after the segment, without the number of released events."""
    seen_us = clocks.clock_before_period_us if rules.publishes_silences else clocks.clock_us
    state = watermarks.state
    own_rows = own_timelines(state, rules.time)
    instants = (batch.before.kept_until_us, watermarks.kept_until_us)
    highest = [pc.max(state["watermark"]).as_py(), arrival_watermark(seen_us, rules.time)]
    return replace(
        clocks,
        watermark_us=max((us for us in highest if us is not None), default=None),
        max_t_us=pc.max(state["max_t"]).as_py(),
        set_by=own_rows["watermark_set_by"][0].as_py() if len(own_rows) == 1 else None,
        released=batch.before.released,
        final=batch.flushes,
        kept_until_us=max((us for us in instants if us is not None), default=None),
    )


def segment_at(
    workspace: Workspace,
    segment: LogSegment,
    records: DataFrame,
    position: Position,
    let_in: Admitted,
    *,
    some: Some | None = None,
    counts: bool = False,
) -> Segment:
    """Return a segment as the engine takes it.

    Args:
        workspace: The pipeline.
        segment: The segment.
        records: Its records.
        position: The clocks of the log before it.
        let_in: The records of the log that an operator has let in.
        some: Returns some of its records, see `adjustment.Segment`.
        counts: Whether its outcome is counted.
    """
    first_seq, end_seq = segment.first_seq, segment.end_seq
    has_tables = any(join.has_table for join in workspace.spec.joins)
    return Segment(
        records,
        _place_of(workspace, segment, position),
        Amount(segment.count).execution(),
        events_let_in(workspace, let_in.between(first_seq, end_seq)),
        partial(stored_columns, workspace, first_seq, end_seq),
        some,
        counts,
        right_sides(workspace, segment.tables) if has_tables else {},
    )


def waits_in_segment(workspace: Workspace, segment: LogSegment, position: Position, waits: Waits) -> Waits:
    """Return the waits of sources in a segment, from the ones before it."""
    return waits.from_here(position.clock_us, segment.waits) if follows_waits(workspace.spec) else waits


def _place_of(workspace: Workspace, segment: LogSegment, position: Position) -> LogPlace:
    """Return the place of a segment in the log, and its end."""
    seqs = range(segment.first_seq, segment.end_seq)
    place = log_place(workspace, position)
    return replace(place, tick_us=segment.tick_us, flushed=segment.flushes, seqs=seqs)


def clocks_after(
    workspace: Workspace, segment: LogSegment, items: DataFrame, position: Position, rules: TimeRules
) -> Position:
    """Return the clocks of the log after a segment and its tick; None before the first timed record."""
    clocks, tick_us = _after_records(workspace, segment, items, position, rules), segment.tick_us
    if tick_us is None or clocks.clock_us is None or tick_us <= clocks.clock_us:
        return clocks
    every_us = rules.time.emit_every_us
    begins_period = every_us is not None and tick_us // every_us > clocks.clock_us // every_us
    if begins_period and rules.publishes_silences:
        return Position(clock_us=tick_us, clock_before_period_us=clocks.clock_us)
    return replace(clocks, clock_us=tick_us)


def _after_records(
    workspace: Workspace, segment: LogSegment, items: DataFrame, position: Position, rules: TimeRules
) -> Position:
    as_before = Position(clock_us=position.clock_us, clock_before_period_us=position.clock_before_period_us)
    if segment.first_seq == segment.end_seq:
        return as_before
    if excluded(workspace).concerns(segment.first_seq, segment.end_seq):
        reached_us = items.agg(F.max(c.to_us(c.CLOCK)).alias("latest")).collect()[0]["latest"]
        return as_before if reached_us is None else _at_clock(reached_us, items, position, rules)
    version = workspace.base_of(tables.RAW_EVENTS)
    last = [(c.SEQ, "=", segment.end_seq - 1)]
    rows = workspace.lake.rows(tables.RAW_EVENTS, version, columns=[c.CLOCK], filters=last)
    clock = rows[c.CLOCK][0].as_py()
    return Position() if clock is None else _at_clock(us_of(clock), items, position, rules)


def _at_clock(clock_us: int, items: DataFrame, position: Position, rules: TimeRules) -> Position:
    """Return the clocks of the log after records that end at one clock."""
    every_us = rules.time.emit_every_us
    if every_us is None or not rules.publishes_silences:
        return Position(clock_us=clock_us)
    period = clock_us - clock_us % every_us
    clocks = items.select(c.to_us(c.CLOCK).alias("clock")).where(F.col("clock") < period)
    ended_us = clocks.agg(F.max("clock").alias("latest")).collect()[0]["latest"]
    if ended_us is None:  # the segment lies in one period
        begins_it = position.clock_us is None or position.clock_us < period
        ended_us = position.clock_us if begins_it else position.clock_before_period_us
    return Position(clock_us=clock_us, clock_before_period_us=ended_us)
