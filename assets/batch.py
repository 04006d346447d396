"""The batch at work: its segment of the log, judged once for all stages, the state around it, and its writes.

Here: from what is stored to the engine; the position after the batch, and the tick that a live run may add after its
last record; appending and replacing rows of any table as one attempt: each write is one commit of a table, stamped,
counted, and safe to repeat. Not here: the rules (timeops/engine.py), which rows a stage writes, how a commit is made
safe (resources/delta/).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.exclusions import excluded, records_between, some_records, stored_columns
from tidemark.assets.log_control import waits_of, was_reopened
from tidemark.assets.planning import LogSegment, segment_of
from tidemark.assets.state.dedup import Span, known_first_times, spans_of
from tidemark.assets.state.releases import held_before
from tidemark.assets.state.timelines import log_place, timelines_before
from tidemark.assets.state.windows import flushed_before, needed_by, seen_by_windows
from tidemark.assets.waiting_input import waiting_input
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.batches.position import Position, plan_end, records_in
from tidemark.resources.delta.lake import Written
from tidemark.resources.delta.versions import Filters, unreadable_file
from tidemark.resources.sources.records import SPARK_FAILURES, cause_of, file_that_failed, is_of_a_file
from tidemark.resources.spark.session import tuned_for_few_rows
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.counts import Outcomes
from tidemark.timeops.engine import Outcome, State, advance
from tidemark.timeops.materialize import Execution, computed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec
from tidemark.timeops.utc import us_of
from tidemark.timeops.watermark.alignment import estimated_clock
from tidemark.timeops.watermark.fold import Array
from tidemark.timeops.watermark.timelines import STATE, LogPlace, Watermarks, arrival_watermark

FEW_RECORDS = 50_000
"""A batch of at most so many records takes longer to plan than to compute, on two cores as on many."""

BASE_EVERY = 16  # batches

MODERATE_RECORDS = 500_000
"""The released events of at most so large a batch are put in order by one task, and by one query: to plan and compile
the several queries that would share the work takes longer."""

MATERIALIZED_RECORDS = 1_000_000
"""The judged records of at most so large a batch are kept for all stages. Of a larger one only what the loop found is
kept, and each stage computes the records' times again: that is a scan of the log, which costs less than writing all
its rows aside. Looking for duplicates is more than a scan, so then every batch is kept."""


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


@dataclass(frozen=True, eq=False)
class BatchWriter:
    """Writes what an attempt at a batch leaves in its tables.

    Attributes:
        workspace: The pipeline.
        plan: The batch.
    """

    workspace: Workspace
    plan: Plan

    @property
    def stamp(self) -> Column:
        """The column `_batch_id` of its rows."""
        return F.lit(self.plan.batch_id).cast("bigint").alias(c.BATCH)

    @property
    def is_small(self) -> bool:
        """Return whether the batch spends its time on planning, not on computing."""
        return records_in(self.plan) <= FEW_RECORDS

    @property
    def is_moderate(self) -> bool:
        """Return whether one task puts all of its records in order, see MODERATE_RECORDS."""
        return records_in(self.plan) <= MODERATE_RECORDS

    @property
    def flushes(self) -> bool:
        """Return whether the end of input is flushed after the batch."""
        return segment_of(self.plan).flushes

    @property
    def base_is_due(self) -> bool:
        """Return whether the batch writes anew the state that is kept as a base and changes: every few batches."""
        last = self.workspace.batches.last_commit("process")
        before = last.batch_id if last else -1
        return self.plan.batch_id // BASE_EVERY != before // BASE_EVERY

    @property
    def accepted_because(self) -> str | None:
        """Why an operator takes the batch although a blocking check fails; None if none has decided so."""
        accepted = self.workspace.accepted
        return accepted.reason if accepted is not None and accepted.batch_id == self.plan.batch_id else None

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Run a stage of the batch: its lease is kept, and Spark is set for its size."""
        with self.workspace.batches.keeping_lease(self.plan, self.workspace.clock), self.tuned():
            try:
                yield
            except SPARK_FAILURES as error:
                if is_of_a_file(error):  # of a table, as the batch reads nothing else
                    raise unreadable_file(file_that_failed(error), cause_of(error)) from error
                raise
            finally:
                pa.default_memory_pool().release_unused()  # else Arrow keeps what it has freed for itself

    def tuned(self) -> AbstractContextManager[None]:
        """Set Spark for the size of the batch."""
        return tuned_for_few_rows(self.workspace.spark) if self.is_small else nullcontext()

    def written(self, table: str) -> DataFrame:
        """Return the rows that the batch has written to a table."""
        return self.workspace.lake.read(table, filters=[(c.BATCH, "=", self.plan.batch_id)])

    def append(self, table: str, rows: DataFrame, *, grows: bool = False, are_few: bool | None = None) -> Written:
        """Add rows, with the number of the batch.

        Args:
            table: The table.
            rows: The rows, without `_batch_id`.
            grows: The table gets the columns that the rows have and it lacks.
            are_few: See `Lake.append`; by default, whether the batch is small.
        """
        return self.replace(table, rows, where=None, grows=grows, are_few=are_few)

    def replace(
        self,
        table: str,
        rows: DataFrame,
        *,
        where: Filters | None,
        grows: bool = False,
        are_few: bool | None = None,
        stays: Filters | None = None,
    ) -> Written:
        """Delete rows and add others, in one commit; arguments as of `append` and of `Lake.replace`."""
        stamped = rows if c.BATCH in rows.columns else rows.withColumn(c.BATCH, self.stamp)
        ready = self.workspace.ready_for(table, self.plan, stamped) if grows else self._ready(table)
        few = self.is_small if are_few is None else are_few
        return self.workspace.lake.replace(
            table, stamped, where=where, attempt=self.plan.attempt, expect=ready, are_few=few, stays=stays
        )

    def append_rows(self, table: str, rows: pa.Table) -> None:
        """Add rows that this process has, whole, as they are."""
        self.workspace.lake.append_rows(table, rows, expect=self._ready(table), attempt=self.plan.attempt)

    def replace_rows(self, table: str, rows: pa.Table, *, where: Filters | None) -> None:
        """Delete rows and add others that this process has, with the number of the batch, in one commit."""
        numbers = pa.repeat(pa.scalar(self.plan.batch_id, pa.int64()), rows.num_rows)
        stamped = rows.append_column(c.BATCH, numbers)
        lake, expect, attempt = self.workspace.lake, self._ready(table), self.plan.attempt
        if where is None:
            lake.append_rows(table, stamped, expect=expect, attempt=attempt)
        else:
            lake.replace_rows(table, stamped, where=where, expect=expect, attempt=attempt)

    def _ready(self, table: str) -> int:
        return self.workspace.ready(table, self.plan)


@dataclass(frozen=True, eq=False)
class Batch(BatchWriter):
    """One batch of a run. Its segment of the log is judged when a stage first asks for it."""

    _outcomes: list[Outcomes] = field(default_factory=list, init=False)

    @cached_property
    def before(self) -> Position:
        """The pipeline's position before the batch."""
        return self.workspace.progress.position()

    @property
    def after(self) -> Position:
        """The pipeline's position after the batch, without the number of released events."""
        return self._judged[1]

    @property
    def outcome(self) -> Outcome:
        """The outcome of the segment."""
        return self._judged[0]

    def take_outcomes(self) -> Outcomes:
        """Return the outcome of every record, once: it is as long as the segment, and only one stage asks for it."""
        _ = self._judged
        return self._outcomes.pop()

    @cached_property
    def was_reopened(self) -> bool:
        """Return whether the log was flushed and reopened by the end of the batch."""
        return was_reopened(self.workspace, self.plan)

    @cached_property
    def items(self) -> DataFrame:
        """The records of the segment."""
        return records_between(self.workspace, self.plan.first_seq, plan_end(self.plan))

    @cached_property
    def timelines(self) -> pa.Table:
        """State of every timeline before the batch, schemas.TIMELINE_SCHEMA."""
        return timelines_before(self.workspace, self.before)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The spans of event time in which its events may have duplicates; none if no rule asks for duplicates."""
        return spans_of(self.workspace, self.items) if self.workspace.spec.time.deduplicate_by else ()

    @cached_property
    def _judged(self) -> tuple[Outcome, Position]:
        workspace, plan, before = self.workspace, self.plan, self.before
        rules = replace(workspace.rules, waits=waits_of(workspace, plan))
        segment = segment_of(plan)
        reached = clocks_after(workspace, segment, self.items, before, rules)
        timelines = self.timelines.select(STATE.names)
        start = State(timelines, first_times=known_first_times(workspace, self.spans) if self.spans else None)
        execution = Execution(
            computed,  # rather than a cache: what follows is planned from its rows, not from their plan
            counts=True,
            are_few=self.is_small,
            keeps_records=self._keeps_records,
            stored=self._stored_columns,
            few=None if workspace.windows_alone else self._some_records,
            written=self._results_of_batch,
        )
        judged = advance(self.items, start, rules, place_of(workspace, segment, before), execution)
        after = self._position_after(reached, judged.judged.watermarks, rules)
        stored = replace(
            start,
            held=held_before(workspace, after),
            events=needed_by(self, after),
            seen_groups=seen_by_windows(workspace),
            flushed_windows=flushed_before(self),
        )
        self._outcomes.append(Outcomes.of(judged.judged))
        return replace(judged, judged=replace(judged.judged, told=None), before=stored), after

    def _stored_columns(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch] | None:
        return stored_columns(self.workspace, self.plan.first_seq, plan_end(self.plan), columns)

    def _some_records(self, seqs: Array) -> DataFrame | None:
        return some_records(self.workspace, self.plan.first_seq, plan_end(self.plan), seqs)

    @property
    def _keeps_records(self) -> bool:
        """Return whether the judged records are kept for all stages, see MATERIALIZED_RECORDS."""
        deduplicates = bool(self.workspace.spec.time.deduplicate_by)
        return deduplicates or records_in(self.plan) <= MATERIALIZED_RECORDS

    def _position_after(self, reached: Position, watermarks: Watermarks, rules: TimeRules) -> Position:
        """Return the position after the segment, without the number of released events."""
        seen_us = reached.clock_before_period_us if rules.publishes_silences else reached.clock_us
        state = watermarks.state
        highest = [pc.max(state["watermark"]).as_py(), arrival_watermark(seen_us, rules.time)]
        return replace(
            reached,
            watermark_us=max((us for us in highest if us is not None), default=None),
            max_t_us=pc.max(state["max_t"]).as_py(),
            set_by=state["watermark_set_by"][0].as_py() if len(state) == 1 else None,
            released=self.before.released,
            final=self.flushes,
        )

    def may_reach(self, us: int) -> Column:
        """Return a BOOLEAN, never null: false only for records of the segment with an event time before an instant.

        These are the records before the first one that comes to the instant: a large batch, which judges its records
        anew for each who asks, need not read them.
        """
        before_us, workspace = self.before.max_t_us, self.workspace
        # An event that is adjusted takes the time of the watermark, which an earlier batch may have left.
        may_be_any = workspace.spec.time.out_of_order == "adjust" or (before_us is not None and before_us >= us)
        if may_be_any or workspace.keeps_timelines or self._keeps_records:
            return F.lit(True)
        first_seq = self.outcome.judged.watermarks.first_seq_from(us)
        return F.col(c.SEQ) >= F.lit(plan_end(self.plan) if first_seq is None else first_seq)

    def _results_of_batch(self, window: str) -> DataFrame:
        """Return the final results that the batch has written of a window, for windows over it."""
        of_batch = [(c.BATCH, "=", self.plan.batch_id), ("_is_final", "=", True)]
        return self.workspace.lake.read(tables.window_table(window), filters=of_batch)
