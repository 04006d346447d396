"""What revisions change, in the shape of Delta's change data: rows as they were, and as they are.

Here: pairing each revision with the one before. Not here: the revisions (revisions.py), storage.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.spec import WindowSpec

CHANGE = "_change_type"  # STRING: insert, update_preimage, update_postimage or delete
PREIMAGE, DELETE = "update_preimage", "delete"
LATE_EVENTS = "_late_events"
"""ARRAY<BIGINT>: the `_arrival_seq` of the late events that a revision has and the one before had not."""

PASSES = "__passes"
"""BOOLEAN, never null: a revision passes `having`. One that does not takes away the row of those that did."""

_IS_KNOWN, _REPLACED = "__is_known", "__replaced"


def changes(results: DataFrame, known: DataFrame, window: WindowSpec) -> DataFrame:
    """The changes that the results of a segment make.

    Args:
        results: What `windows.window_results` gave, with `_late_events`.
        known: The last revisions of earlier segments that may be replaced, without `_late_events`, and without
            aggregates that are new in the spec.
        window: The window.

    Returns:
        For each result a row `insert`, where its window and group had none, or `update_postimage`, with its
        `_late_events`; and for the latter one row more, `update_preimage`, which holds what it replaces. A revision
        that no longer passes `having` is a row `delete`, which holds what it takes away, with its `_late_events`.
    """
    keys = window.key_columns
    others = [name for name in results.columns if name not in (*keys, LATE_EVENTS, PASSES)]
    columns = [F.col(f"`{name}`") for name in results.columns if name != PASSES]
    passes = F.col(PASSES) if PASSES in results.columns else F.lit(True)
    both = results.withColumns({PASSES: passes, _IS_KNOWN: F.lit(False)}).unionByName(
        known.withColumns({PASSES: F.lit(True), _IS_KNOWN: F.lit(True)}), allowMissingColumns=True
    )
    by_revision = Window.partitionBy(*[F.col(f"`{key}`") for key in keys]).orderBy("_revision")
    shown = F.when(F.col(PASSES), F.struct(*[F.col(f"`{name}`") for name in others]))
    found = both.withColumn(_REPLACED, F.lag(shown).over(by_revision)).where(~F.col(_IS_KNOWN))
    was_shown = F.col(_REPLACED).isNotNull()
    kind = F.when(was_shown, "update_postimage").otherwise("insert")
    given = found.where(PASSES).select(*columns, kind.alias(CHANGE))
    taken = F.when(F.col(PASSES), PREIMAGE).otherwise(DELETE)
    cause = F.when(~F.col(PASSES), F.col(LATE_EVENTS)).alias(LATE_EVENTS)
    of_keys = [F.col(f"`{key}`") for key in keys]
    old = found.where(was_shown).select(*of_keys, f"{_REPLACED}.*", cause, taken.alias(CHANGE))
    return given.unionByName(old)
