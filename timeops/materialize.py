"""What is done with a frame that is read several times, for the functions that take it as `materialize`.

Here: the two ways. Not here: which of them pays off, which depends on how many rows there are (engine.py, assets/).
"""

from collections.abc import Callable

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from tidemark.timeops.session import is_local

Materialize = Callable[[DataFrame], DataFrame]
"""Gives a frame with the same rows, computed once, or leaves it as it is."""


def computed(frame: DataFrame) -> DataFrame:
    """The same rows, computed now: else they are planned and computed anew each time.

    Nothing remembers how to compute them again. On a cluster two executors keep each row, as one may go away.
    """
    is_alone = is_local(frame.sparkSession.conf.get("spark.master", "local") or "")
    level = None if is_alone else StorageLevel.MEMORY_AND_DISK_2
    return frame.localCheckpoint(storageLevel=level)


def as_it_is(frame: DataFrame) -> DataFrame:
    """The frame itself: many rows are cheaper to compute again than to materialize."""
    return frame
