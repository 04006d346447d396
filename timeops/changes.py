"""What revisions change, in the shape of Delta's change data: rows as they were, and as they are.

Here: pairing each revision with the one before. Not here: the revisions (revisions.py), storage.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from timeops.spec import WindowSpec

CHANGE = "_change_type"  # STRING: insert, update_preimage or update_postimage
PREIMAGE = "update_preimage"
LATE_EVENTS = "_late_events"
"""ARRAY<BIGINT>: the `_arrival_seq` of the late events that a revision has and the one before had not."""

_IS_KNOWN, _REPLACED = "__is_known", "__replaced"


def changes(results: DataFrame, known: DataFrame, window: WindowSpec) -> DataFrame:
    """The changes that the results of a stretch make.

    Args:
        results: What `windows.window_results` gave, with `_late_events`.
        known: The last revisions of earlier stretches that may be replaced, without `_late_events`, and without
            aggregates that are new in the spec.
        window: The window.

    Returns:
        For each result a row `insert`, when it is the first of its window and group, or `update_postimage`, with its
        `_late_events`; and for the latter one row more, `update_preimage`, which holds what it replaces.
    """
    keys = window.key_columns
    others = [name for name in results.columns if name not in (*keys, LATE_EVENTS)]
    both = results.withColumn(_IS_KNOWN, F.lit(False)).unionByName(
        known.withColumn(_IS_KNOWN, F.lit(True)), allowMissingColumns=True
    )
    by_revision = Window.partitionBy(*[F.col(f"`{key}`") for key in keys]).orderBy("_revision")
    before = F.lag(F.struct(*[F.col(f"`{name}`") for name in others])).over(by_revision)
    found = both.withColumn(_REPLACED, before).where(~F.col(_IS_KNOWN))
    kind = F.when(F.col(_REPLACED).isNull(), "insert").otherwise("update_postimage")
    replaced = found.where(F.col(_REPLACED).isNotNull())
    columns = [F.col(f"`{name}`") for name in results.columns]
    old = replaced.select(*[F.col(f"`{key}`") for key in keys], f"{_REPLACED}.*")
    return (
        found.select(*columns, kind.alias(CHANGE))
        .unionByName(old.withColumn(CHANGE, F.lit(PREIMAGE)), allowMissingColumns=True)
        .select(*columns, CHANGE)
    )
