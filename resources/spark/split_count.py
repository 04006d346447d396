"""How many splits the timelines of a segment have, which has to be known before it is judged.

Here: the one small job that counts them, and the limit. Not here: which splits there are
(timeops/watermark/splits.py).
"""

from pyspark.sql import DataFrame

from tidemark.timeops.columns import TIMELINE
from tidemark.timeops.errors import InputError
from tidemark.timeops.events.extraction import timeline
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.splits import most_splits

MOST_SPLITS = 1_000


def count_splits(items: DataFrame, state: DataFrame, rules: TimeRules) -> int:
    """How many splits a timeline has at most; 0 where splits do not count.

    Args:
        items: Records of the log.
        state: timelines.STATE_SCHEMA before them.
        rules: The rules of time.

    Raises:
        InputError: They are too many.
    """
    if not rules.uses_splits:
        return 0
    named = items.withColumn(TIMELINE, timeline(items, rules.time.over))
    found = int(most_splits(named, state, rules).collect()[0]["splits"] or 0)
    if found > MOST_SPLITS:
        raise InputError(
            f"A timeline has {found:,} splits.",
            expected=f"at most {MOST_SPLITS:,}: every one is a number to compare at every record",
            remedy="split by something coarser, or use `over` if each value should have a watermark of its own",
        )
    return found
