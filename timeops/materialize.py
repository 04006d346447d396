"""What is done with a frame that is asked for several times, for the functions that take such a way as `keep`.

Here: the two ways. Not here: which of them pays off, which depends on how many rows there are (assets/).
"""

from pyspark.sql import DataFrame


def computed(frame: DataFrame) -> DataFrame:
    """The same rows, computed now: else they are planned and computed anew each time."""
    return frame.localCheckpoint()


def as_it_is(frame: DataFrame) -> DataFrame:
    """The frame itself: many rows are cheaper to compute again than to keep."""
    return frame
