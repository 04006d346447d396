"""Rows that Spark computes once, for Arrow to read as often as it has to.

Here: few rows in the memory of this process, others in files that are deleted afterwards. Not here: which rows these
are, and their order (ordering.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.resources.delta.files import COMMITTER
from tidemark.resources.delta.ordering import Places, Rows
from tidemark.resources.delta.versions import files_of
from tidemark.resources.places.place import Place, files_below, relative, spark_url, temporary_place
from tidemark.resources.spark.amount import Amount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Aside:
    """Rows that were computed.

    Attributes:
        parts: The rows as they lie.
        narrow: Returns some columns of all of them, in this order; few bytes a row, as they go into memory.
    """

    parts: Sequence[Rows]
    narrow: Callable[[Sequence[str]], pa.Table]


@contextmanager
def set_aside(frame: "DataFrame", folder: Place, amount: Amount) -> Iterator[Aside]:
    """Let Spark compute rows once; during the block they can be read.

    Args:
        frame: The rows.
        folder: Folder of the pipeline: every Spark that writes its tables can write there.
        amount: How many there probably are. Few come into this process, as an answer of Spark. Others Spark writes
            into files, several at a time.
    """
    rows = amount.answer(frame)
    if rows is not None:
        yield Aside([rows_in_memory(rows)], rows.select)
        return
    with temporary_place(folder / "_state" / "aside") as place:
        frame.write.options(**COMMITTER).parquet(spark_url(place))
        files = files_of(place)
        names = sorted(relative(path, place) for path, _ in files_below(place, "*.parquet"))
        opened = [partial(pq.ParquetFile, name, filesystem=files) for name in names]

        def narrow(wanted: Sequence[str]) -> pa.Table:
            # One after the other: a row is known by its place in this order. A text is there once, not for each row.
            schema = opened[0]().schema_arrow
            texts = [name for name in wanted if pa.types.is_string(schema.field(name).type)]
            return pa.concat_tables(file(read_dictionary=texts).read(columns=[*wanted]) for file in opened)

        yield Aside([*map(rows_of, opened)], narrow)


def rows_in_memory(rows: pa.Table) -> Rows:
    """Return rows that this process has."""

    def read(span: range) -> Iterator[tuple[Places, pa.Table]]:
        yield np.arange(span.start, span.stop), rows.slice(span.start, len(span))

    return Rows(len(rows), read)


def rows_of(opened: Callable[[], pq.ParquetFile], columns: Sequence[str] | None = None) -> Rows:
    """Return the rows of a parquet file; row groups without wanted rows are not read.

    Args:
        opened: Opens the file: each of several threads that read it does so by itself.
        columns: The columns; by default all.
    """
    footer = opened().metadata
    counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    size = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    starts = np.cumsum([0, *counts])

    def read(span: range) -> Iterator[tuple[Places, pa.Table]]:
        groups = [n for n, first in enumerate(starts[:-1]) if first < span.stop and starts[n + 1] > span.start]
        at = int(starts[groups[0]]) if groups else 0
        wanted = None if columns is None else list(columns)
        for batch in opened().iter_batches(_BATCH_ROWS, row_groups=groups, columns=wanted, use_threads=False):
            yield np.arange(at, at + len(batch)), pa.Table.from_batches([batch])
            at += len(batch)

    return Rows(footer.num_rows, read, size // max(footer.num_rows, 1))
