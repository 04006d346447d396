"""How many rows Spark is going to compute, as far as that is known before it does, and what follows from it.

Here: the only place that chooses between a way for few rows and one for many. Few rows take longer to plan than to
compute, on two cores as on many: so they are planned fast, and this process takes them as one answer. Not here: rows
that need no Spark: there one way serves any number (resources/delta/ordering.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:  # writing control tables must not wait for PySpark
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.timeops.computing.materialize import Execution, Materialize

FEW_ROWS = 50_000
"""The most rows that this process takes from Spark as one answer."""

_FEW_BYTES = 4_000_000
"""The most bytes of input that are taken for few records: how many it holds is not known before it is read."""

KEPT_ROWS = 1_000_000
"""The judged records of at most so large a batch are kept for all stages. Of a larger one only what the loop found is
kept, and each stage computes the records' times again: that is a scan of the log, which costs less than writing all
its rows aside."""

_FOR_FEW_ROWS = {
    # To compile a query, to split it, and to plan it again while it runs pay off only on many rows. An expression is
    # compiled as for many: few and many rows get their values from the same code of Spark.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",  # else each small file, and half of the rows of here, is a task
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # each broadcast is a job of its own
}


@dataclass(frozen=True)
class Amount:
    """A number of rows; None for any number."""

    rows: int | None

    @staticmethod
    def of_bytes(size: int) -> "Amount":
        """Return how many records input of some bytes has."""
        return FEW if size <= _FEW_BYTES else ANY

    @property
    def are_few(self) -> bool:
        """True if one answer of Spark holds them."""
        return self.rows is not None and self.rows <= FEW_ROWS

    @contextmanager
    def tuned(self, session: "Callable[[], SparkSession]") -> Iterator[None]:
        """Let a session plan few rows fast during the block; the results stay the same. Many rows need no session."""
        if not self.are_few:
            yield
            return
        from tidemark.resources.spark.session import with_settings  # noqa: PLC0415 - see above

        with with_settings(session(), _FOR_FEW_ROWS):
            yield

    def answer(self, frame: "DataFrame") -> pa.Table | None:
        """Return rows that Spark computes, in one chunk; None of many, which Spark has to write into files.

        A frame that has more rows than expected is computed again by who writes it.
        """
        if not self.are_few:
            return None
        rows: pa.Table = frame.limit(FEW_ROWS + 1).toArrow()
        return rows.combine_chunks() if rows.num_rows <= FEW_ROWS else None

    def execution(self) -> "Execution":
        """Return how a segment of so many records is computed in this process."""
        from tidemark.timeops.computing.materialize import Execution, by_row, computed  # noqa: PLC0415

        keep = computed if self.rows is not None and self.rows <= KEPT_ROWS else None
        return Execution(computed, keep, by_row if self.are_few else _by_keys_once)


def _by_keys_once(rows: "DataFrame", keys: Sequence[str], add: "Materialize") -> "DataFrame":
    from tidemark.timeops.computing.materialize import by_keys, computed  # noqa: PLC0415

    return by_keys(computed(rows), keys, add)


FEW, ANY = Amount(0), Amount(None)
