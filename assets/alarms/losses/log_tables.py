"""A pipeline's tables at one moment: what losses and silences are read from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters, Version
from tidemark.resources.workspace import Workspace


@dataclass(frozen=True)
class LogTables:
    """A pipeline's tables at one moment.

    Attributes:
        workspace: The pipeline.
        version: Returns the version of a table.
        end_seq: The end of the processed records.
    """

    workspace: Workspace
    version: Callable[[str], int]
    end_seq: int

    def pieces(self, table: str, names: Sequence[str], which: Filters) -> Iterator[pa.RecordBatch]:
        """Return rows of a table, some at a time."""
        return pieces(self.workspace.lake, table, self.version(table), names, which)

    def count(self, table: str, which: Filters) -> int:
        """Count rows of a table."""
        return self.seen(table).count(which)

    def seen(self, table: str) -> Version:
        """Return a table with the statistics of its files."""
        return self.workspace.lake.opened.version_at(table, self.version(table))
