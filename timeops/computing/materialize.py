"""How a segment is computed: what is done with a frame that is read several times.

Here: the ways. Not here: which of them pays off, which depends on how many rows there are
(resources/spark/amount.py).
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

from tidemark.timeops.computing.session import computes_here

Materialize = Callable[[DataFrame], DataFrame]
"""Returns a frame with the same rows, computed once, or leaves it as it is."""

Stored = Callable[[Sequence[str]], Iterator[pa.RecordBatch] | None]
"""Returns some columns of the records of a segment, piece by piece, in any order; None where that is not possible."""

Some = Callable[[NDArray[np.int64]], DataFrame | None]
"""Returns the records of a segment that have some numbers; None where they have to be looked for among all."""

LookUp = Callable[[DataFrame, Sequence[str], Materialize], DataFrame]
"""Returns rows with the columns that a function adds to each combination of some of their columns."""


def computed(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed now: else they are planned and computed again each time.

    Nothing remembers how to compute them again. On a cluster two executors keep each row, as one may go away.
    """
    is_alone = computes_here(frame.sparkSession)
    level = None if is_alone else StorageLevel.MEMORY_AND_DISK_2
    return frame.localCheckpoint(storageLevel=level)


def not_materialized(frame: DataFrame) -> DataFrame:
    """Return the frame itself: many rows are cheaper to compute again than to materialize."""
    return frame


def by_keys(rows: DataFrame, keys: Sequence[str], add: Materialize) -> DataFrame:
    """Look up columns once for each combination of keys, which are never null, and join what is found."""
    return rows.join(add(rows.select(*keys).distinct()), [*keys], "left")


def by_row(rows: DataFrame, keys: Sequence[str], add: Materialize) -> DataFrame:  # noqa: ARG001
    """Look up columns for each row: all of them go where that is done."""
    return add(rows)


def from_driver(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows that the driver has as a frame, by default of the types that Arrow says.

    In one chunk, as Spark stops reading at an empty one and fails without any, and with a schema, which Spark Connect
    needs of no rows.
    """
    one_chunk = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    return spark.createDataFrame(one_chunk, schema or from_arrow_schema(rows.schema))


@dataclass(frozen=True)
class Execution:
    """How the frames of a segment are computed; its results are the same.

    Attributes:
        materialize: What is done with frames that are read several times.
        keep: What is done with the judged records, which many read; None where each reader judges them again.
        look_up: How results get what this process knows of their keys.
    """

    materialize: Materialize = not_materialized
    keep: Materialize | None = None
    look_up: LookUp = by_keys
