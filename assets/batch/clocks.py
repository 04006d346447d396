"""The clock of the log around a segment of it, and the tick that a live run may add after it.

Here: reading the clock, and whether a tick can follow the log now. Not here: the effect of the clock on timelines
(../state/timelines.py), the estimate of a tick's clock (timeops/watermark/ticks.py).
"""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.exclusions import excluded
from tidemark.assets.planning import LogSegment
from tidemark.assets.state.timelines import log_place
from tidemark.assets.waiting_input import waiting_input
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec
from tidemark.timeops.utc import us_of
from tidemark.timeops.watermark.ticks import estimated_clock
from tidemark.timeops.watermark.timelines import LogPlace


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
    estimate_us, reached_us = (
        estimated_clock(workspace.progress.last_arrivals().values(), now_us),
        workspace.progress.log_clock_us(),
    )
    return estimate_us if estimate_us is not None and estimate_us > (reached_us or 0) else None


def place_of(workspace: Workspace, segment: LogSegment, before: Position) -> LogPlace:
    """Return the place of a segment in the log, and its end."""
    seqs = range(segment.first_seq, segment.end_seq)
    place = log_place(workspace, before)
    return replace(place, tick_us=segment.tick_us, flushed=segment.flushes, seqs=seqs)


def clocks_behind(
    workspace: Workspace, segment: LogSegment, items: DataFrame, before: Position, rules: TimeRules
) -> Position:
    """Return the clocks of the log after a segment and its tick; None before the first timed record."""
    reached, tick_us = _behind_records(workspace, segment, items, before, rules), segment.tick_us
    if tick_us is None or reached.clock_us is None or tick_us <= reached.clock_us:
        return reached
    every_us = rules.time.emit_every_us
    begins_period = every_us is not None and tick_us // every_us > reached.clock_us // every_us
    if begins_period and rules.publishes_silences:
        return Position(clock_us=tick_us, clock_before_period_us=reached.clock_us)
    return replace(reached, clock_us=tick_us)


def _behind_records(
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
