"""Judging a batch: from the stored state, through the engine, to what became of its records.

Here: the state that its segment begins with, the position after it, and the tick that a live run may add after its
last record. Not here: the rules (timeops/engine.py), reading each part of the state (state/).
"""

from dataclasses import replace
from functools import partial

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch, Judged
from tidemark.assets.exclusions import excluded, some_records, stored_columns
from tidemark.assets.log_control import waits_of
from tidemark.assets.planning import LogSegment, segment_of
from tidemark.assets.state.dedup import known_first_times, spans_of
from tidemark.assets.state.releases import held_before
from tidemark.assets.state.timelines import log_place, timelines_before
from tidemark.assets.state.windows import flushed_before, needed_by, seen_by_windows
from tidemark.assets.waiting_input import waiting_input
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.counts import Outcomes
from tidemark.timeops.engine import State, advance
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.materialize import Execution, computed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec
from tidemark.timeops.utc import us_of
from tidemark.timeops.watermark.alignment import estimated_clock
from tidemark.timeops.watermark.timelines import STATE, LogPlace, Watermarks, arrival_watermark


def batch_at_work(workspace: Workspace, plan: Plan) -> Batch:
    """Return the batch of a plan; its segment is judged when a stage first asks for it."""
    return Batch(workspace, plan, judge)


def judge(batch: Batch) -> Judged:
    """Judge the segment of a batch, from the state before it."""
    workspace, plan, before = batch.workspace, batch.plan, batch.before
    rules = replace(workspace.rules, waits=waits_of(workspace, plan))
    segment = segment_of(plan)
    reached = clocks_after(workspace, segment, batch.items, before, rules)
    timelines = timelines_before(workspace, before)
    spans = spans_of(workspace, batch.items) if workspace.spec.time.deduplicate_by else ()
    first_times = known_first_times(workspace, spans) if spans else None
    start = State(timelines.select(STATE.names), first_times=first_times)
    place = place_of(workspace, segment, before)
    found = advance(Segment(batch.items, place, _execution(batch)), start, rules)
    after = _position_after(batch, reached, found.judged.watermarks, rules)
    stored = replace(
        start,
        held=held_before(workspace, after),
        events=needed_by(batch, after),
        seen_groups=seen_by_windows(workspace),
        flushed_windows=flushed_before(batch),
    )
    outcome = replace(found, judged=replace(found.judged, told=None), before=stored)
    return Judged(outcome, after, timelines, spans, [Outcomes.of(found.judged)])


def _execution(batch: Batch) -> Execution:
    workspace = batch.workspace
    first_seq, end_seq = batch.plan.first_seq, plan_end(batch.plan)

    def results_of_batch(window: str) -> DataFrame:
        """Return the final results that the batch has written of a window, for windows over it."""
        of_batch = [(c.BATCH, "=", batch.plan.batch_id), ("_is_final", "=", True)]
        return workspace.lake.read(tables.window_table(window), filters=of_batch)

    return Execution(
        computed,  # rather than a cache: what follows is planned from its rows, not from their plan
        counts=True,
        are_few=batch.is_small,
        keeps_records=batch.keeps_records,
        stored=partial(stored_columns, workspace, first_seq, end_seq),
        few=None if workspace.windows_alone else partial(some_records, workspace, first_seq, end_seq),
        written=results_of_batch,
    )


def _position_after(batch: Batch, reached: Position, watermarks: Watermarks, rules: TimeRules) -> Position:
    """Return the position after the segment, without the number of released events."""
    seen_us = reached.clock_before_period_us if rules.publishes_silences else reached.clock_us
    state = watermarks.state
    highest = [pc.max(state["watermark"]).as_py(), arrival_watermark(seen_us, rules.time)]
    return replace(
        reached,
        watermark_us=max((us for us in highest if us is not None), default=None),
        max_t_us=pc.max(state["max_t"]).as_py(),
        set_by=state["watermark_set_by"][0].as_py() if len(state) == 1 else None,
        released=batch.before.released,
        final=batch.flushes,
    )


def place_of(workspace: Workspace, segment: LogSegment, before: Position) -> LogPlace:
    """Return the place of a segment in the log, and its end."""
    seqs = range(segment.first_seq, segment.end_seq)
    place = log_place(workspace, before)
    return replace(place, tick_us=segment.tick_us, flushed=segment.flushes, seqs=seqs)


def clocks_after(
    workspace: Workspace, segment: LogSegment, items: DataFrame, before: Position, rules: TimeRules
) -> Position:
    """Return the clocks of the log after a segment and its tick; None before the first timed record."""
    reached, tick_us = _after_records(workspace, segment, items, before, rules), segment.tick_us
    if tick_us is None or reached.clock_us is None or tick_us <= reached.clock_us:
        return reached
    every_us = rules.time.emit_every_us
    begins_period = every_us is not None and tick_us // every_us > reached.clock_us // every_us
    if begins_period and rules.publishes_silences:
        return Position(clock_us=tick_us, clock_before_period_us=reached.clock_us)
    return replace(reached, clock_us=tick_us)


def _after_records(
    workspace: Workspace, segment: LogSegment, items: DataFrame, before: Position, rules: TimeRules
) -> Position:
    as_before = Position(clock_us=before.clock_us, clock_before_period_us=before.clock_before_period_us)
    if segment.first_seq == segment.end_seq:
        return as_before
    if excluded(workspace).concerns(segment.first_seq, segment.end_seq):
        reached_us = items.agg(F.max(c.to_us(c.CLOCK)).alias("latest")).collect()[0]["latest"]
        return as_before if reached_us is None else _at_clock(reached_us, items, before, rules)
    version = workspace.base_of(tables.RAW_EVENTS)
    last = [(c.SEQ, "=", segment.end_seq - 1)]
    rows = workspace.lake.rows(tables.RAW_EVENTS, version, columns=[c.CLOCK], filters=last)
    clock = rows[c.CLOCK][0].as_py()
    return Position() if clock is None else _at_clock(us_of(clock), items, before, rules)


def _at_clock(clock_us: int, items: DataFrame, before: Position, rules: TimeRules) -> Position:
    """Return the clocks of the log after records that end at one clock."""
    every_us = rules.time.emit_every_us
    if every_us is None or not rules.publishes_silences:
        return Position(clock_us=clock_us)
    period = clock_us - clock_us % every_us
    clocks = items.select(c.to_us(c.CLOCK).alias("clock")).where(F.col("clock") < period)
    ended_us = clocks.agg(F.max("clock").alias("latest")).collect()[0]["latest"]
    if ended_us is None:  # the segment lies in one period
        begins_it = before.clock_us is None or before.clock_us < period
        ended_us = before.clock_us if begins_it else before.clock_before_period_us
    return Position(clock_us=clock_us, clock_before_period_us=ended_us)


def why_never(spec: Spec) -> str | None:
    """Say why a pipeline never has ticks, whatever comes in; return None if it may have them."""
    if not spec.heeds_ticks:
        return "no rule of the spec follows the clock alone (`idle`, `emit: {every: …}`, windows that revise results)"
    own = [source.name for source in spec.sources if not source.follows_wall_clock]
    return f"source `{own[0]}` has an `arrival_time` without `live: true`" if own else None


def clock_of_tick(workspace: Workspace) -> int | None:
    """Return the clock of a tick after the last record of the log, microseconds.

    Returns:
        None if no tick is possible now: by the spec, see `why_never`; if a source has no record yet; if input waits
        or is held back; or if the clock of the log is already there.
    """
    if why_never(workspace.spec) is not None:
        return None
    now_us = us_of(workspace.clock.now())  # before the look, so that a file that comes later is after the tick
    found = waiting_input(workspace)
    if found.is_ready or found.waiting or found.notes or found.left or found.errors or not workspace.exists:
        return None
    last_arrivals = workspace.progress.last_arrivals().values()
    estimate_us, reached_us = estimated_clock(last_arrivals, now_us), workspace.progress.log_clock_us()
    return estimate_us if estimate_us is not None and estimate_us > (reached_us or 0) else None
