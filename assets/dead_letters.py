"""Dead letters of one batch, of all stages, in one commit.

Here: writing and counting them. Not here: the decisions and sentences (timeops/).
"""

from collections import Counter
from collections.abc import Mapping

from pyspark.sql import functions as F

from tidemark.assets.batch.batch import Batch
from tidemark.assets.schemas import payload_of
from tidemark.resources import tables


def write_dead_letters(batch: Batch) -> Mapping[str, int]:
    """Writes the dead letters of a batch, if there are any.

    Returns:
        How many, by reason.
    """
    reasons: Counter[str] = Counter()
    for name, n in batch.workspace.counts_of(batch.plan.batch_id).items():
        if n and (name.startswith("refused.") or name.endswith((".window_closed", ".bad_expression"))):
            reasons[name.rsplit(".", 1)[1]] += n
    for unfit in batch.outcome.unfit_results():
        reasons += Counter(bad_expression=unfit.count())
    if reasons:
        rows = batch.outcome.dead_letters(payload_of(batch.workspace).names)
        rows = rows.withColumn("replayed_at", F.lit(None).cast("timestamp"))
        # One file, or files of a full size; not one task, which would go through all records of a large batch.
        batch.append(tables.DEAD_LETTERS, rows if batch.is_small else rows.hint("rebalance"))
    return reasons
