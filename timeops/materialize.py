"""How a segment is computed: what is done with a frame that is read several times.

Here: the ways. Not here: which of them pays off, which depends on how many rows there are (assets/).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemark.timeops.session import computes_here

Materialize = Callable[[DataFrame], DataFrame]
"""Returns a frame with the same rows, computed once, or leaves it as it is."""

Stored = Callable[[Sequence[str]], Iterator[pa.RecordBatch] | None]
"""Returns some columns of the records of a segment, piece by piece, in any order; None where that is not possible."""


def computed(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed now: else they are planned and computed again each time.

    Nothing remembers how to compute them again. On a cluster two executors keep each row, as one may go away.
    """
    is_alone = computes_here(frame.sparkSession)
    level = None if is_alone else StorageLevel.MEMORY_AND_DISK_2
    return frame.localCheckpoint(storageLevel=level)


def as_it_is(frame: DataFrame) -> DataFrame:
    """Return the frame itself: many rows are cheaper to compute again than to materialize."""
    return frame


def from_driver(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows that the driver has as a frame, by default of the types that Arrow says.

    In one chunk, as Spark stops reading at an empty one and fails without any, and with a schema, which Spark Connect
    needs of no rows.
    """
    whole = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    return spark.createDataFrame(whole, schema or from_arrow_schema(rows.schema))


@dataclass(frozen=True)
class Execution:
    """How a segment is computed; its results are the same.

    Attributes:
        materialize: What is done with frames that are read several times.
        counts: The judged records hold what `counts.Outcomes` is made of.
        are_few: The segment has few records: what is found of them goes through the driver instead of joins.
        keeps_records: The judged records are computed once and stay in memory; else each reader judges them again.
        stored: Reads columns of the segment's records without Spark; by default Spark reads them.
        few: Returns the records of the segment that have these numbers, unless they are too large; by default they
            are looked for among all.
        written: Returns the results of a window, by its name, from where they were written, for windows over it; by
            default they are computed again.
    """

    materialize: Materialize = as_it_is
    are_few: bool = False
    keeps_records: bool = False
    counts: bool = False
    stored: Stored | None = None
    few: Callable[[NDArray[np.int64]], DataFrame | None] | None = None
    written: Callable[[str], DataFrame] | None = None
