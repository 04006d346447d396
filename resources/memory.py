"""The part of a pipeline's tables that a run has read, and need not read again: a version never changes.

Here: what is kept, and until when. Not here: opened tables (delta/versions.py), questions to them (workspace.py).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark.resources.batches.batch_log import BatchMemory
from tidemark.resources.delta.integrity import same_rows
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.versions import Opened
from tidemark.resources.places.place import Place
from tidemark.resources.tables import WATERMARKS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Memory:
    """The knowledge of a run about one pipeline, shared by all that look at the pipeline in the run.

    Attributes:
        batches: The part of the log of batches that it has read.
        is_looked_at: Whether the tables were found whole.
        schemas: The columns of the tables, by the fingerprint of a spec: to ask Spark for them takes seconds.
    """

    def __init__(self) -> None:
        self.batches = BatchMemory()
        self.is_looked_at = False
        self.schemas: dict[str, Mapping[str, StructType]] = {}
        self._tables: Opened | None = None
        self._rows: dict[str, tuple[int, pa.Table]] = {}
        self._same_rows: dict[tuple[str, int, int], int] = {}
        self._pipeline_rows: dict[tuple[int, int], dict[str, Any]] = {}

    def tables(self, folder: Place, elsewhere: Mapping[str, Place]) -> Opened:
        """Return the opened tables of the pipeline, which are in a folder, some of them elsewhere."""
        self._tables = self._tables or Opened(folder, elsewhere)
        return self._tables

    def rows(self, lake: Lake, table: str, version: int) -> pa.Table:
        """Return all rows of a small table at a version; for each table the rows of one version are kept."""
        known = self._rows.get(table)
        if known is None or known[0] != version:
            known = self._rows[table] = (version, lake.rows(table, version))
        return known[1]

    def newest_with_rows_of(self, lake: Lake, table: str, committed: int, latest: int) -> int:
        """Return the newest version of a table, up to one, that has the rows of a committed version."""
        key = table, committed, latest
        if key not in self._same_rows:
            self._same_rows[key] = same_rows(lake, table, committed, latest)[0]
        return self._same_rows[key]

    def pipeline_row(self, lake: Lake, batch_id: int, version: int) -> dict[str, Any]:
        """Return the row of `watermarks` that a batch wrote for the whole pipeline, which has no timeline."""
        key = batch_id, version
        if key not in self._pipeline_rows:
            of_batch = [("_batch_id", "=", batch_id), ("_timeline", "=", None)]
            self._pipeline_rows[key] = lake.rows(WATERMARKS, key[1], filters=of_batch).to_pylist()[0]
        return self._pipeline_rows[key]
