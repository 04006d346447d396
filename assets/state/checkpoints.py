"""Checkpoints: the places of the log between two batches, and what the batch before one left there.

Here: what was stored: position, timelines, first times, waits. Not here: which checkpoints matter
(assets/rebuild/days.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from tidemark.assets.log.control import waits_up_to
from tidemark.assets.state.dedup import known_first_times, spans_of
from tidemark.assets.state.timelines import timelines_at
from tidemark.resources import tables
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.workspace import Workspace


@dataclass(frozen=True)
class Checkpoint:
    """The end of a batch in the log.

    Attributes:
        end_seq: The first `_arrival_seq` after it.
        position: The state of the pipeline there.
        batch_id: The batch; -1 before the first.
        versions: The version of each table that it left.
    """

    end_seq: int
    position: Position
    batch_id: int = -1
    versions: Mapping[str, int] = field(default_factory=dict)

    def version_of(self, table: str) -> int:
        """Return the version of a table here; 0, the empty table, where there was none."""
        return self.versions.get(table, 0)


START = Checkpoint(0, Position())


def checkpoints_of(workspace: Workspace) -> list[Checkpoint]:
    """Return the ends of all batches that processed the log, in its order."""
    version = workspace.base_of(tables.WATERMARKS)
    rows = workspace.lake.rows(tables.WATERMARKS, version, filters=[("_timeline", "=", None)]).to_pylist()
    positions = {row["_batch_id"]: Position.of(row) for row in rows}
    return [
        Checkpoint(plan_end(commit.plan), positions[commit.batch_id], commit.batch_id, commit.table_versions)
        for commit in workspace.batches.history("process")
    ]


def has_state(workspace: Workspace, checkpoint: Checkpoint) -> bool:
    """Return whether the timelines at a checkpoint can still be read.

    VACUUM may have deleted their files, and a rebuild keeps only the files of its last batch.
    """
    if not workspace.spec.keeps_timelines:
        return True
    if checkpoint.batch_id >= 0 and tables.TIMELINES not in checkpoint.versions:
        return False
    return workspace.lake.opened.version_at(tables.TIMELINES, checkpoint.version_of(tables.TIMELINES)).has_files


def state_at(workspace: Workspace, checkpoint: Checkpoint) -> pa.Table:
    """Return the timelines at a checkpoint, schemas.TIMELINE_SCHEMA."""
    version, waits = checkpoint.version_of(tables.TIMELINES), waits_up_to(workspace, checkpoint.batch_id)
    return timelines_at(workspace, checkpoint.position, version, waits)


def first_times_at(workspace: Workspace, checkpoint: Checkpoint, log: DataFrame) -> DataFrame:
    """Return the first times before a checkpoint that later records may duplicate."""
    return known_first_times(workspace, spans_of(workspace, log), up_to=checkpoint.batch_id)
