"""The groups that windows with `empty` have seen, between two batches.

Here: reading and writing the tables that keep them, each a base and changes, as the timelines' (timelines.py). Not
here: the rows that follow from them (timeops/windows/gap_filling.py).
"""

from pyspark.sql import DataFrame

from tidemark.assets.batch.batch import base_is_due, batch_column, has_few_records
from tidemark.assets.batch.segment import Judged
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.seen_groups import changed_groups, once, seen_groups


def seen_before(workspace: Workspace, window: WindowSpec) -> DataFrame:
    """The groups that a window had seen before the batch at work."""
    return once(workspace.read_base(tables.seen_groups_table(window.name)).drop(c.BATCH), window)


def write_seen_groups(workspace: Workspace, judged: Judged, window: WindowSpec) -> None:
    """Adds the groups of a batch of which other windows are known now, or writes all of them when a base is due."""
    plan, table = judged.plan, tables.seen_groups_table(window.name)
    known = seen_before(workspace, window)
    fresh = seen_groups(judged.adjusted.accepted, window)
    expect, few = workspace.ready(table, plan), has_few_records(plan)
    stamp = batch_column(plan)
    if base_is_due(workspace, plan):
        rows = once(known.unionByName(fresh), window).withColumn(c.BATCH, stamp)
        workspace.lake.replace(table, rows, where=(), attempt=plan.attempt, expect=expect, are_few=few)
        return
    rows = changed_groups(known, fresh, window).withColumn(c.BATCH, stamp)
    workspace.lake.append(table, rows, attempt=plan.attempt, expect=expect, are_few=few)
