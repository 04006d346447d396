"""The writes of one attempt at a batch: each is one commit of a table, stamped, counted, and safe to repeat.

Here: appending and replacing rows of any table. Not here: which rows (the stages), how a commit is made safe
(resources/lake/).
"""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from tidemark.assets.batch.planning import base_is_due, batch_column, flushes, has_few_records
from tidemark.resources.batches.plans import Plan
from tidemark.resources.lake.filters import Filters
from tidemark.resources.lake.lake import Written
from tidemark.resources.workspace import Workspace
from tidemark.timeops.columns import BATCH


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
        return batch_column(self.plan)

    @property
    def is_small(self) -> bool:
        """Whether planning, not computing, is what the batch takes its time for."""
        return has_few_records(self.plan)

    @property
    def flushes(self) -> bool:
        """Whether the end of input is flushed behind the batch."""
        return flushes(self.plan)

    @property
    def base_is_due(self) -> bool:
        """Whether state that is kept as a base and changes is written anew as a base."""
        return base_is_due(self.workspace, self.plan)

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
        stamped = rows if BATCH in rows.columns else rows.withColumn(BATCH, self.stamp)
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
