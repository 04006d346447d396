"""Dead letters of one batch, of all stages, in one commit.

Here: gathering and writing them. Not here: the decisions and sentences (timeops/).
"""

from collections import Counter
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import batch_column, has_few_records
from tidemark.assets.batch.segment import Judged, judged_batch
from tidemark.assets.schemas import payload_of
from tidemark.assets.state.drained_windows import windows_with_late_events
from tidemark.assets.state.merging_events import late_events_of
from tidemark.assets.state.results_as_events import with_fresh_results
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.dead_letters import time_letters, unfit_letters, unfit_results, window_letters


def write_dead_letters(workspace: Workspace, plan: Plan) -> Mapping[str, int]:
    """Writes the dead letters of a batch, if there are any.

    Returns:
        How many, by reason.
    """
    reasons: Counter[str] = Counter()
    for name, n in workspace.counts_of(plan.batch_id).items():
        if n and (name.startswith("refused.") or name.endswith((".window_closed", ".bad_expression"))):
            reasons[name.rsplit(".", 1)[1]] += n
    for letters in _unfit_results(workspace, plan):
        reasons += Counter(bad_expression=letters.count())
    if reasons:
        letters = letters_of(workspace, judged_batch(workspace, plan)).withColumns(
            {c.BATCH: batch_column(plan), "replayed_at": F.lit(None).cast("timestamp")}
        )
        expect = workspace.ready(tables.DEAD_LETTERS, plan)
        few = has_few_records(plan)
        # One file, or files of a full size; not one task, which would go through all records of a large batch.
        rows = letters if few else letters.hint("rebalance")
        workspace.lake.append(tables.DEAD_LETTERS, rows, attempt=plan.attempt, expect=expect, are_few=few)
    return reasons


def letters_of(workspace: Workspace, judged: Judged) -> DataFrame:
    """Dead letters of every stage over a judged segment."""
    payload = payload_of(workspace).names
    letters = time_letters(judged.adjusted.refused, payload, judged.adjusted.rules)
    for window in windows_with_late_events(workspace, judged.plan):
        late = late_events_of(workspace, judged, window)
        letters = letters.unionByName(window_letters(late, payload, window))
    for window in workspace.spec.event_windows:
        unfit = unfit_letters(judged.adjusted.accepted, payload, window)
        letters = letters if unfit is None else letters.unionByName(unfit)
    for unfit in _unfit_results(workspace, judged.plan):
        letters = letters.unionByName(unfit)
    return letters


def _unfit_results(workspace: Workspace, plan: Plan) -> list[DataFrame]:
    """Dead letters of windows over windows: of results that the batch wrote, in the stage before this one."""
    found = []
    for window in workspace.spec.chained_windows:
        results = with_fresh_results(workspace, judged_batch(workspace, plan), window).adjusted.accepted
        letters = unfit_results(results, window)
        found += [] if letters is None else [letters]
    return found
