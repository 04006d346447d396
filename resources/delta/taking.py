"""Rows set aside by this process, to be taken again and again by their numbers, in bounded memory.

Here: rows that are read as they lie, once, and written in an order of their own to files that are mapped into memory:
an event of a join may be in many of its rows. Not here: which rows these are (assets/), rows of Spark
(resources/delta/ordering.py).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.ordering import Places, Rows, in_order
from tidemark.resources.scratch import scratch_folder


@dataclass(frozen=True, eq=False)
class Taken:
    """Rows that are known by numbers from 0 up.

    Attributes:
        schema: Their columns.
        batches: The rows in this order.
        ends: The number after the last row of each batch.
    """

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    ends: Places

    def take(self, numbers: Places, columns: Sequence[str]) -> pa.Table:
        """Return columns of some rows, in the order of the numbers, which may repeat; -1 has null in all columns."""
        places = np.flatnonzero(numbers >= 0)
        of_batch = np.searchsorted(self.ends, numbers[places], "right")
        narrow = of_batch.astype(np.min_scalar_type(len(self.batches)))  # one or two bytes are sorted by counting
        order = places[np.argsort(narrow, kind="stable")]
        counts = np.bincount(of_batch, minlength=len(self.batches))
        parts, bounds = [], np.cumsum([0, *counts])
        for nth in np.flatnonzero(counts).tolist():
            some = numbers[order[bounds[nth] : bounds[nth + 1]]]
            batch = self.batches[nth].select(list(columns))
            parts.append(batch.take(pa.array(some - (self.ends[nth] - len(batch)))))
        lying = np.full(len(numbers), -1)
        lying[order] = np.arange(len(order))
        schema = pa.schema([self.schema.field(name) for name in columns])
        rows = pa.Table.from_batches(parts, schema).combine_chunks()
        if (lying == np.arange(len(numbers))).all():
            return rows
        return rows.take(pa.array(lying, mask=lying < 0))


@contextmanager
def taken(parts: Sequence[Rows], order: Places, schema: pa.Schema) -> Iterator[Taken]:
    """Read rows once; yield them by their numbers, which follow an order.

    Args:
        parts: The rows as they lie.
        order: The places of the wanted rows, each once; the first gets the number 0.
        schema: Their columns; what rows lack is null.
    """
    with ExitStack() as opened:
        folder = opened.enter_context(scratch_folder())
        pieces = in_order(parts, order, {}) or [lambda _schema: ()]
        files = [folder / f"{number}.arrow" for number in range(len(pieces))]

        def write(file: Path, piece: Piece) -> None:
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in piece(schema):
                    writer.write_batch(batch)

        with ThreadPoolExecutor(pa.cpu_count()) as threads:
            list(threads.map(write, files, pieces))
        readers = [pa.ipc.open_file(opened.enter_context(pa.memory_map(str(file)))) for file in files]
        batches = [reader.get_batch(n) for reader in readers for n in range(reader.num_record_batches)]
        yield Taken(schema, batches, np.cumsum([len(batch) for batch in batches], dtype=np.int64))
