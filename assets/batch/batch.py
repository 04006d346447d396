"""The batch at work: its segment of the log, judged once for all stages, the state around it, and its writes.

Here: from what is stored to the engine, the position behind it, and appending and replacing rows of any table as one
attempt: each write is one commit of a table, stamped, counted, and safe to repeat. Not here: the rules
(timeops/engine.py), which rows a stage writes (../), how a commit is made safe (resources/lake/).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.clocks import clock_around, clocks_behind
from tidemark.assets.log_control import waits_of, was_reopened
from tidemark.assets.planning import segment_of
from tidemark.assets.state.dedup import Span, known_first_times, spans_of
from tidemark.assets.state.releases import held_before
from tidemark.assets.state.timelines import joined_fast, one_timeline, timelines_before
from tidemark.assets.state.windows import drained_before, needed_by, seen_by_windows
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.lake.filters import Filters
from tidemark.resources.lake.once import Written
from tidemark.resources.lake.reading import unreadable_file
from tidemark.resources.sources.files import SPARK_FAILURES, cause_of, file_that_failed, is_of_a_file
from tidemark.resources.spark.frames import count_splits
from tidemark.resources.spark.session import tuned_for_few_rows
from tidemark.resources.workspace import Position, Workspace, plan_end, records_in
from tidemark.timeops import columns as c
from tidemark.timeops.engine import Outcome, State, advance
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.events.one_pass import needs_one_pass
from tidemark.timeops.materialize import computed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.clock_rules import clock_watermark

FEW_RECORDS = 50_000
"""A batch of at most so many records takes longer to plan than to compute, on two cores as on many."""

BASE_EVERY = 16  # batches

MODERATE_RECORDS = 500_000
"""The records of at most so large a batch are put in order by one task, and by one query: to plan and compile the
several queries that would share the work takes longer."""

MATERIALIZED_RECORDS = 1_000_000
"""Batches of at most so many records are judged once and kept for all stages. A larger one is judged anew by each,
from the carries of its blocks, which are kept: that is a scan of the log, which costs less than writing all its rows
aside. Where the rules follow the activity of timelines, or look for duplicates, it is more than a scan, and every
batch is kept."""


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
        """Whether planning, not computing, is what the batch takes its time for."""
        return records_in(self.plan) <= FEW_RECORDS

    @property
    def is_moderate(self) -> bool:
        """Whether one task puts all of its records in order, see MODERATE_RECORDS."""
        return records_in(self.plan) <= MODERATE_RECORDS

    @property
    def flushes(self) -> bool:
        """Whether the end of input is flushed behind the batch."""
        return segment_of(self.plan).flushes

    @property
    def base_is_due(self) -> bool:
        """Whether state that is kept as a base and changes is written anew as a base: every so many batches."""
        last = self.workspace.batches.last_commit("process")
        before = last.batch_id if last else -1
        return self.plan.batch_id // BASE_EVERY != before // BASE_EVERY

    @property
    def accepted_because(self) -> str | None:
        """Why an operator takes the batch although a blocking check fails; None when nobody does."""
        accepted = self.workspace.accepted
        return accepted.reason if accepted is not None and accepted.batch_id == self.plan.batch_id else None

    @contextmanager
    def stage(self) -> Iterator[None]:
        """A stage at work on the batch: its lease is kept, and Spark is set for its size."""
        with self.workspace.batches.keeping_lease(self.plan, self.workspace.clock), self.tuned():
            try:
                yield
            except SPARK_FAILURES as error:
                if is_of_a_file(error):  # of a table, as the batch reads nothing else
                    raise unreadable_file(file_that_failed(error), cause_of(error)) from error
                raise

    def tuned(self) -> AbstractContextManager[None]:
        """Spark, set for the size of the batch."""
        return tuned_for_few_rows(self.workspace.spark) if self.is_small else nullcontext()

    def written(self, table: str) -> DataFrame:
        """The rows that the batch has written of a table."""
        return self.workspace.lake.read(table, filters=[(c.BATCH, "=", self.plan.batch_id)])

    def append(self, table: str, rows: DataFrame, *, grows: bool = False, are_few: bool | None = None) -> Written:
        """Adds rows, with the number of the batch.

        Args:
            table: The table.
            rows: The rows, without `_batch_id`.
            grows: The table gets the columns that the rows have and it lacks.
            are_few: As of `Lake.append`; by default where the batch is small.
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
    ) -> Written:
        """Deletes rows and adds others, in one commit; arguments as of `append` and of `Lake.replace`."""
        stamped = rows if c.BATCH in rows.columns else rows.withColumn(c.BATCH, self.stamp)
        ready = self.workspace.ready_for(table, self.plan, stamped) if grows else self._ready(table)
        few = self.is_small if are_few is None else are_few
        return self.workspace.lake.replace(
            table, stamped, where=where, attempt=self.plan.attempt, expect=ready, are_few=few
        )

    def append_rows(self, table: str, rows: pa.Table) -> None:
        """Adds rows that this process has, whole, as they are."""
        self.workspace.lake.append_rows(table, rows, expect=self._ready(table), attempt=self.plan.attempt)

    def _ready(self, table: str) -> int:
        return self.workspace.ready(table, self.plan)


@dataclass(frozen=True, eq=False)
class Batch(BatchWriter):
    """One batch of a run. Its segment of the log is judged when a stage first asks for it."""

    @cached_property
    def before(self) -> Position:
        """The pipeline's position before the batch."""
        return self.workspace.position()

    @property
    def after(self) -> Position:
        """The same behind it, without the number of released events."""
        return self._judged[1]

    @property
    def outcome(self) -> Outcome:
        """What the segment gives."""
        return self._judged[0]

    @cached_property
    def was_reopened(self) -> bool:
        """Whether the log was flushed and reopened, up to the end of the batch."""
        return was_reopened(self.workspace, self.plan)

    @cached_property
    def items(self) -> DataFrame:
        """The records of the segment."""
        return records_between(self.workspace, self.plan.first_seq, plan_end(self.plan))

    @cached_property
    def timelines(self) -> DataFrame:
        """State of every timeline before the batch, schemas.TIMELINE_SCHEMA."""
        start = timelines_before(self.workspace, self.before)
        return computed(start) if self.workspace.keeps_timelines else start

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The spans of event time in which its events may have duplicates; none where nobody looks for them."""
        return spans_of(self.workspace, self.items) if self.workspace.spec.time.deduplicate_by else ()

    @cached_property
    def _judged(self) -> tuple[Outcome, Position]:
        workspace, plan, before = self.workspace, self.plan, self.before
        rules = replace(workspace.rules, waits=waits_of(workspace, plan))
        segment = segment_of(plan)
        reached = clocks_behind(workspace, segment, self.items, before, rules)
        timelines = self.timelines.count() if workspace.keeps_timelines else 1
        in_order = self.is_small or (self.is_moderate and needs_one_pass(rules))
        start = State(
            joined_fast(self.timelines, timelines),
            first_times=known_first_times(workspace, self.spans) if self.spans else None,
        )
        judged = advance(
            self.items,
            start,
            rules,
            clock_around(workspace, segment, before, reached),
            flush=self.flushes,
            splits=count_splits(self.items, start.timelines, rules),
            strategy="in_order" if in_order else None,
            # A checkpoint rather than a cache: what follows is planned from its rows, not from what gave them.
            materialize=computed,
            is_small=self._is_judged_once(rules),
            places_sessions=self.is_small,
            written=self._results_of_batch,
        )
        state = judged.timelines
        if workspace.keeps_timelines:
            state = computed(state)
        after, with_time = self._position_behind(reached, state, judged.judged)
        if with_time == records_in(plan):  # all have a time: what is refused came behind the watermark
            assert judged.judged.behind is not None
            judged = replace(judged, judged=replace(judged.judged, refused=judged.judged.behind))
        if workspace.keeps_timelines:
            known = joined_fast(state, timelines + records_in(plan))
        else:
            known = one_timeline(workspace, after)
        stored = replace(
            start,
            held=held_before(workspace, after),
            events=needed_by(self, after),
            seen_groups=seen_by_windows(workspace),
            drained=drained_before(self),
        )
        return replace(judged.with_timelines(known), before=stored), after

    def _is_judged_once(self, rules: TimeRules) -> bool:
        """Whether the judged rows are kept for all stages, see MATERIALIZED_RECORDS."""
        is_more_than_a_scan = rules.follows_activity or bool(rules.time.deduplicate_by)
        return is_more_than_a_scan or records_in(self.plan) <= MATERIALIZED_RECORDS

    def _position_behind(self, reached: Position, state: DataFrame, judged: Adjusted) -> tuple[Position, int | None]:
        """The position behind the segment, and `judged.with_time`, found by one small job."""
        rules = judged.rules
        seen_us = reached.clock_before_period_us if rules.publishes_silences else reached.clock_us
        by_clock = clock_watermark(F.lit(seen_us).cast("bigint"), rules.time)
        found = state.agg(
            F.max("max_t").alias("max_t"),
            F.greatest(F.max("watermark"), by_clock).alias("watermark"),
            F.when(F.count("*") == 1, F.any_value("watermark_set_by")).alias("set_by"),
        )
        row = (found if judged.with_time is None else found.crossJoin(judged.with_time)).collect()[0].asDict()
        after = replace(
            reached,
            watermark_us=row["watermark"],
            max_t_us=row["max_t"],
            set_by=row["set_by"],
            released=self.before.released,
            final=self.flushes,
        )
        return after, row.get("rows")

    def may_reach(self, us: int) -> Column:
        """BOOLEAN, never null: false only of records of the segment whose event time is before an instant.

        These are the records before the first one that comes to the instant: a large batch, which judges its records
        anew for each who asks, need not read them.
        """
        before_us, workspace = self.before.max_t_us, self.workspace
        # An event that is adjusted takes the time of the watermark, which an earlier batch may have left.
        may_be_any = workspace.spec.time.out_of_order == "adjust" or (before_us is not None and before_us >= us)
        if may_be_any or workspace.keeps_timelines or self._is_judged_once(self.outcome.judged.rules):
            return F.lit(True)
        advances = self.outcome.judged.advances.where(F.col(c.T) >= F.lit(us))
        first_seq = advances.agg(F.min(c.SEQ).alias("first")).collect()[0]["first"]
        return F.col(c.SEQ) >= F.lit(plan_end(self.plan) if first_seq is None else first_seq)

    def _results_of_batch(self, window: WindowSpec) -> DataFrame:
        """The final results that the batch has written of a window, for windows over it."""
        of_batch = [(c.BATCH, "=", self.plan.batch_id), ("_is_final", "=", True)]
        return self.workspace.lake.read(tables.window_table(window.name), filters=of_batch)


def records_between(workspace: Workspace, first_seq: int, end_seq: int) -> DataFrame:
    """The records of the log from one number on and before another; files without any are not opened."""
    segment = [(c.SEQ, ">=", first_seq), (c.SEQ, "<", end_seq)]
    return workspace.read_base(tables.RAW_EVENTS, filters=segment)
