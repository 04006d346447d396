"""The state of joins between batches: the events that each of them still needs.

Here: the table of each join, read and written. Not here: which events a join needs (timeops/joins/sides.py), the
tables of answers (../joins.py).

A batch rewrites the table: what it holds is bounded by `within`, or `before` and `after`, by `allowed_lateness` and
the watermark.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame

from tidemark.assets.batch import Batch
from tidemark.assets.schemas import has_partner_column, joining_events, payload_of
from tidemark.assets.state.windows import needed_rows, write_by_time
from tidemark.resources import tables
from tidemark.resources.delta.versions import ALL_ROWS
from tidemark.resources.workspace import Workspace
from tidemark.timeops.joins.interval import HAS_PARTNER
from tidemark.timeops.spec import JoinSpec


def needed_by_joins(workspace: Workspace) -> Mapping[str, DataFrame]:
    """Return the events of earlier batches that each join needs, by its name."""
    return {join.name: _needed(workspace, join) for join in workspace.spec.joins}


def _needed(workspace: Workspace, join: JoinSpec) -> DataFrame:
    events = needed_rows(workspace, tables.joining_table(join.name))
    if not join.is_interval:
        return events
    return events.withColumnRenamed(has_partner_column(payload_of(workspace)), HAS_PARTNER)


def write_joining(batch: Batch, join: JoinSpec) -> None:
    """Write the events that a join needs after a batch."""
    needed = joining_events(batch.outcome.needed_by_join(join), payload_of(batch.workspace), join)
    write_by_time(batch, tables.joining_table(join.name), needed, where=ALL_ROWS)
