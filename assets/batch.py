"""The batch at work: its records and what was judged of them, and its writes.

Here: appending and replacing rows of any table as one attempt: each write is one commit of a table, stamped, counted,
and safe to repeat. Not here: judging (assets/judging/segment.py), which rows a stage writes, how a commit is made
safe (resources/delta/).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.log.admissions import events_let_in
from tidemark.assets.log.control import REOPEN, recorded
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.planning import segment_of
from tidemark.resources.batches.plans import Plan
from tidemark.resources.batches.position import Position, plan_end, records_in
from tidemark.resources.delta.files import Piece, piece_of
from tidemark.resources.delta.lake import Written
from tidemark.resources.delta.versions import NO_ROWS, Filters, unreadable_file
from tidemark.resources.memory import release_memory
from tidemark.resources.sources.records import SPARK_FAILURES, cause_of, file_that_failed, is_of_a_file
from tidemark.resources.spark.amount import ANY, Amount
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.engine import Outcome
from tidemark.timeops.figures.counts import Outcomes

TimeSpan = tuple[int, int]
"""First and last instant of a span of event time, microseconds."""

BASE_EVERY = 16  # batches


@dataclass(frozen=True, eq=False)
class BatchWriter:
    """Writes what an attempt at a batch leaves in its tables."""

    workspace: Workspace
    plan: Plan

    @property
    def stamp(self) -> Column:
        """The column `_batch_id` of its rows."""
        return F.lit(self.plan.batch_id).cast("bigint").alias(c.BATCH)

    @property
    def amount(self) -> Amount:
        """How many records it has; if it judges none, the number of rows to write is unknown."""
        return Amount(records_in(self.plan)) if self.plan.kind == "process" else ANY

    @property
    def flushes(self) -> bool:
        """Return whether the end of input is flushed after the batch."""
        return segment_of(self.plan).flushes

    @property
    def base_is_due(self) -> bool:
        """Return whether the batch rewrites the state that is stored as a base and changes: every few batches."""
        last = self.workspace.batches.last_commit("process")
        last_id = last.batch_id if last else -1
        return self.plan.batch_id // BASE_EVERY != last_id // BASE_EVERY

    @property
    def accepted_because(self) -> str | None:
        """Why an operator takes the batch although a blocking check fails; None if none has decided so."""
        accepted = self.workspace.accepted
        return accepted.reason if accepted is not None and accepted.batch_id == self.plan.batch_id else None

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Run a stage of the batch: its lease is kept, and Spark is set for its size."""
        with (
            self.workspace.batches.keeping_lease(self.plan, self.workspace.clock),  # also while Spark starts
            self.amount.tuned(self.workspace.session),
        ):
            try:
                yield
            except SPARK_FAILURES as error:
                if is_of_a_file(error):  # of a table, as the batch reads nothing else
                    raise unreadable_file(file_that_failed(error), cause_of(error)) from error
                raise
            finally:
                release_memory()

    def written(self, table: str) -> DataFrame:
        """Return the rows that the batch has written to a table."""
        return self.workspace.lake.read(table, filters=[(c.BATCH, "=", self.plan.batch_id)])

    def append(self, table: str, rows: DataFrame, *, grows: bool = False, as_cut: bool = False) -> Written:
        """Add rows, with the number of the batch; arguments as of `replace`."""
        return self.replace(table, rows, where=NO_ROWS, grows=grows, as_cut=as_cut)

    def replace(
        self,
        table: str,
        rows: DataFrame,
        *,
        where: Filters | None,
        grows: bool = False,
        as_cut: bool = False,
    ) -> Written:
        """Delete rows and add others, with the number of the batch, in one commit; arguments as of `Lake.replace`.

        With `grows` the table gets the columns that the rows have and it lacks. With `as_cut` each partition of the
        rows becomes a file, as they were cut on purpose.
        """
        stamped = rows if c.BATCH in rows.columns else rows.withColumn(c.BATCH, self.stamp)
        # The table has the number of the batch, and Spark has told the columns of these rows already.
        ready = self.workspace.ready_for(table, self.plan, rows) if grows else self._ready(table)
        lake, attempt, amount = self.workspace.lake, self.plan.attempt, ANY if as_cut else self.amount
        return lake.replace(table, stamped, where=where, attempt=attempt, expect=ready, amount=amount)

    def revise(self, table: str, rows: DataFrame, revised: DataFrame, keys: Sequence[str], where: Filters) -> Written:
        """Write results in the place of the ones that they revise.

        Only results that are not final are ever revised, and they are no more than what is open: all of them are
        deleted, and the unchanged ones are written again.

        Args:
            table: The table.
            rows: The results.
            revised: The same, and what only takes a result away.
            keys: The columns that distinguish results.
            where: The rows of the table that are not final.
        """
        old = self.workspace.read_base(table, filters=where)
        unrevised = old.alias("old").join(revised.alias("new"), c.same_in("old", "new", keys), "left_anti")
        stamped = rows.withColumn(c.BATCH, self.stamp).unionByName(unrevised, allowMissingColumns=True)
        return self.replace(table, stamped, where=where, grows=True)

    def replace_pieces(
        self, table: str, pieces: Sequence[Piece], *, where: Filters | None, stays: Filters | None = None
    ) -> Written:
        """Delete rows and add others of Arrow, whole, in one commit; see `Lake.replace_pieces`."""
        lake, expect, attempt = self.workspace.lake, self._ready(table), self.plan.attempt
        return lake.replace_pieces(table, pieces, where=where, attempt=attempt, expect=expect, stays=stays)

    def append_rows(self, table: str, rows: pa.Table) -> None:
        """Add rows that this process has, whole, as they are."""
        self.workspace.lake.append_rows(table, rows, expect=self._ready(table), attempt=self.plan.attempt)

    def replace_rows(self, table: str, rows: pa.Table, *, where: Filters | None) -> None:
        """Delete rows and add others that this process has, with the number of the batch, in one commit."""
        numbers = pa.repeat(pa.scalar(self.plan.batch_id, pa.int64()), rows.num_rows)
        self.replace_pieces(table, [piece_of(rows.append_column(c.BATCH, numbers))], where=where)

    def _ready(self, table: str) -> int:
        return self.workspace.ready(table, self.plan)


@dataclass(frozen=True)
class Judged:
    """The segment of a batch, judged.

    Attributes:
        outcome: What it produces.
        after: The pipeline's position after the batch, without the number of released events.
        timelines: State of every timeline before the batch, schemas.TIMELINE_SCHEMA.
        spans: The spans of event time in which its events may have duplicates; none if no rule asks for duplicates.
        outcomes: The outcome of every record, until a stage takes it.
    """

    outcome: Outcome
    after: Position
    timelines: pa.Table
    spans: tuple[TimeSpan, ...]
    outcomes: list[Outcomes]

    def take_outcomes(self) -> Outcomes:
        """Return the outcome of every record, once: it is as long as the segment, and only one stage asks for it."""
        if not self.outcomes:
            raise RuntimeError("The outcomes of the records of this batch were taken before: only one stage may.")
        return self.outcomes.pop()


@dataclass(frozen=True, eq=False)
class Batch(BatchWriter):
    """One batch of a run. Its segment of the log is judged when a stage first asks for it."""

    judge: "Callable[[Batch], Judged]"

    @cached_property
    def before(self) -> Position:
        """The pipeline's position before the batch."""
        return self.workspace.progress.position()

    @cached_property
    def judged(self) -> Judged:
        """Its segment, judged by `judge` in assets/judging/segment.py, which every run passes in."""
        return self.judge(self)

    @property
    def after(self) -> Position:
        """The pipeline's position after the batch, without the number of released events."""
        return self.judged.after

    @property
    def outcome(self) -> Outcome:
        """The outcome of the segment."""
        return self.judged.outcome

    @property
    def timelines(self) -> pa.Table:
        """State of every timeline before the batch, schemas.TIMELINE_SCHEMA."""
        return self.judged.timelines

    @property
    def spans(self) -> tuple[TimeSpan, ...]:
        """The spans of event time in which its events may have duplicates; none if no rule asks for duplicates."""
        return self.judged.spans

    @cached_property
    def was_reopened(self) -> bool:
        """Return whether the log was flushed and reopened by the end of the batch."""
        return segment_of(self.plan).reopens is not None or bool(recorded(self.workspace, REOPEN))

    @cached_property
    def let_in(self) -> DataFrame | None:
        """The events that an operator has let in, before the first batch of the log; None after it."""
        is_first, spec = self.workspace.batches.last_commit() is None, self.workspace.spec
        return events_let_in(self.workspace) if is_first and (spec.event_windows or spec.joins) else None

    @cached_property
    def items(self) -> DataFrame:
        """The records of the segment."""
        return records_between(self.workspace, self.plan.first_seq, plan_end(self.plan))

    def may_reach(self, us: int) -> Column:
        """Return a BOOLEAN, never null: false only for records of the segment with an event time before an instant.

        These are the records before the first one that comes to the instant: a large batch, which judges its records
        again for each stage, need not read them.
        """
        before_us, workspace = self.before.max_t_us, self.workspace
        # An event that is adjusted takes the time of the watermark, which an earlier batch may have left.
        is_any = workspace.spec.time.out_of_order == "adjust" or (before_us is not None and before_us >= us)
        if is_any or workspace.spec.keeps_timelines:
            return F.lit(True)
        first_seq = self.outcome.judged.watermarks.first_seq_from(us)
        return F.col(c.SEQ) >= F.lit(plan_end(self.plan) if first_seq is None else first_seq)
