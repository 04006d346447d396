"""Windows that revise their results: the current row of each, and the history of its revisions.

Here: writing them. Not here: the moments at which results are given (timeops/windows/revisions.py), windows that
give one result (windows.py).
"""

from pyspark.sql import DataFrame

from tidemark.assets.batch.batch import batch_column, has_few_records
from tidemark.assets.batch.segment import Judged
from tidemark.assets.state.aligned_events import known_to
from tidemark.assets.state.batch_results import results_in_batch
from tidemark.resources import tables
from tidemark.resources.lake.filters import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.materialize import computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.changes import changes
from tidemark.timeops.windows.gap_filling import told_in_words
from tidemark.timeops.windows.grid_bounds import needed_from
from tidemark.timeops.windows.results import last_revisions, passing


def write_revisions(workspace: Workspace, judged: Judged, window: WindowSpec) -> int:
    """Writes the last results of a batch in the place of those that they revise, and all of them to the history.

    Only results that are not final are ever revised, and of these there are no more than open windows: all of them
    are deleted, and those that stay as they are written again.
    """
    plan, table = judged.plan, tables.window_table(window.name)
    known = known_to(workspace, judged, window)
    with told_in_words():
        results = results_in_batch(workspace, judged, window, known, keep=computed).localCheckpoint()
    last = last_revisions(results, window).localCheckpoint()
    if last.isEmpty():
        return 0
    fresh = passing(last)
    not_final: Filters = [("_is_final", "=", False)]
    old = workspace.read_base(table, filters=[*_of_open_windows(workspace, judged, window), *not_final])
    rows = fresh.withColumn(c.BATCH, batch_column(plan)).unionByName(
        _others(old, last, window), allowMissingColumns=True
    )
    expect, few = workspace.ready_for(table, plan, rows), has_few_records(plan)
    workspace.lake.replace(table, rows, where=not_final, attempt=plan.attempt, expect=expect, are_few=few)
    if window.history:
        history = tables.history_table(window.name)
        rows = changes(results, old.drop(c.BATCH), window).withColumn(c.BATCH, batch_column(plan))
        expect = workspace.ready_for(history, plan, rows)
        workspace.lake.append(history, rows, attempt=plan.attempt, expect=expect, are_few=few)
    return fresh.count()


def _of_open_windows(workspace: Workspace, judged: Judged, window: WindowSpec) -> Filters:
    """Where the rows that are not final lie; of several timelines each has a watermark of its own.

    A session may have begun at any time.
    """
    watermark_us = judged.before.watermark_us
    if workspace.keeps_timelines or watermark_us is None or window.kind == "session":
        return ()
    first_us = needed_from(watermark_us, window) - 1  # an event on the start may be outside
    return [("window_start", ">=", Instant(first_us))]


def _others(old: DataFrame, last: DataFrame, window: WindowSpec) -> DataFrame:
    """The old rows of windows that the batch gives no revision of."""
    return old.alias("old").join(last.alias("new"), c.same_in("old", "new", window.key_columns), "left_anti")
