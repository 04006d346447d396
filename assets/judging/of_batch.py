"""Judging a batch: from the stored state, through the engine, to what became of its records.

Here: the state that its segment begins with, and the position after it. Not here: the rules (timeops/engine.py),
reading each part of the state (../state/), the tick of a live run (../ingestion/ticks.py).
"""

from dataclasses import replace
from functools import partial

import pyarrow.compute as pc

from tidemark.assets.batch import Batch, Judged
from tidemark.assets.judging.replay import clocks_after, segment_at, waits_in_segment
from tidemark.assets.log.admissions import admitted
from tidemark.assets.log.control import waits_before
from tidemark.assets.log.exclusions import some_records
from tidemark.assets.planning import segment_of
from tidemark.assets.state.dedup import known_first_times, spans_of
from tidemark.assets.state.joins import needed_by_joins, stored_by_joins
from tidemark.assets.state.timelines import timelines_before
from tidemark.assets.state.windows import flushed_before, needed_by, seen_by_windows
from tidemark.resources.batches.position import Position
from tidemark.timeops.engine import State, advance
from tidemark.timeops.figures.counts import Outcomes
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.watermark.timelines import STATE, arrival_watermark, own_timelines
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
