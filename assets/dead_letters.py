"""Dead letters of one batch, of all stages, in one commit.

Here: gathering and writing them. Not here: the decisions and sentences (timeops/).
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.schemas import payload_of
from assets.stretch import Judged
from assets.windows import judged_batch
from resources import tables
from resources.batches import Plan
from resources.workspace import Workspace
from timeops import columns as c
from timeops.dead_letters import time_letters, window_letters
from timeops.windows import late_for_windows


def write_dead_letters(workspace: Workspace, plan: Plan) -> Mapping[str, int]:
    """Writes the dead letters of a batch, if there are any.

    Returns:
        How many, by reason.
    """
    counts = workspace.counts_of(plan.batch_id)
    expected = sum(n for name, n in counts.items() if name.startswith("refused.") or name.endswith(".window_closed"))
    if expected == 0:
        return {}
    letters = letters_of(workspace, judged_batch(workspace, plan)).withColumns(
        {c.BATCH: F.lit(plan.batch_id).cast("bigint"), "replayed_at": F.lit(None).cast("timestamp")}
    )
    expect = workspace.ready(tables.DEAD_LETTERS)
    written = workspace.lake.append(tables.DEAD_LETTERS, letters, attempt=plan.attempt, expect=expect)
    fresh = workspace.lake.read(tables.DEAD_LETTERS, written.version).where(F.col(c.BATCH) == plan.batch_id)
    return {row["reason"]: row["n"] for row in fresh.groupBy("reason").agg(F.count("*").alias("n")).collect()}


def letters_of(workspace: Workspace, judged: Judged) -> DataFrame:
    """Dead letters of every stage over a judged stretch."""
    payload = payload_of(workspace).names
    letters = time_letters(judged.adjusted.refused, payload, workspace.spec.time)
    if workspace.spec.time.out_of_order == "keep":  # otherwise no accepted event is ever late for a window
        for window in workspace.spec.windows:
            late = late_for_windows(judged.adjusted, window)
            letters = letters.unionByName(window_letters(late, payload, window))
    return letters
