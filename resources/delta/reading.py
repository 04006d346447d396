"""Reading the tables of a pipeline.

Here: which tables there are, their versions, columns and rows. Not here: opening tables and the rows of a version
(resources/delta/versions.py), reading within bounded memory (resources/delta/queries.py), writing
(resources/delta/lake.py).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable, Schema

from tidemark.resources.delta.columns import sql_types_of
from tidemark.resources.delta.versions import Filters, Opened
from tidemark.resources.places.place import Place
from tidemark.timeops.errors import LakeError

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame, SparkSession


def without_spark() -> "SparkSession":
    """Raise an error in place of a session where none is needed."""
    raise LakeError("This lake was opened without Spark.", remedy="Pass Lake a callable that returns a session.")


@dataclass(frozen=True)
class LakeReader:
    """The tables of one pipeline, for reading.

    Args:
        root: Folder of the pipeline; its name is the pipeline's.
        session: Returns the Spark session; called only when Spark is needed.
        opened_before: Its tables that this process has opened before.
    """

    root: Place
    session: "Callable[[], SparkSession]" = without_spark
    opened_before: Opened | None = field(default=None, repr=False, compare=False)

    @cached_property
    def opened(self) -> Opened:
        """The opened tables of the pipeline."""
        return self.opened_before or Opened(self.root)

    def path(self, table: str) -> Place:
        """Return the folder of a table."""
        return self.opened.place(table)

    def exists(self, table: str) -> bool:
        """Return whether the table has been created."""
        return self.opened.exists(table)

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Return a table as of now or as of a version, opened again."""
        return self.opened.open(table, version)

    def settled(self) -> AbstractContextManager[None]:
        """Look up the newest version of each table once at most during the block, see `Opened.settled`."""
        return self.opened.settled()

    def version(self, table: str, since: int | None = None) -> int:
        """Return the table's latest version, without a Spark job; see `Opened.version`."""
        return self.opened.version(table, since)

    def newest(self, table: str, since: int) -> int:
        """Return the table's latest version, read from the log, see `Opened.newest`."""
        return self.opened.newest(table, since)

    def row_count(self, table: str, version: int | None = None) -> int:
        """Return the number of rows of a table, by default of its latest version, from its log."""
        return self.opened.version_at(table, version).row_count()

    def file_count(self, table: str) -> int:
        """Return the number of files of a table."""
        return int(self.opened.version_at(table).actions.num_rows)

    def schema(self, table: str) -> Schema:
        """Return the columns of a table."""
        return self.opened.version_at(table).schema

    def columns(self, table: str) -> dict[str, str]:
        """Return name and type of each column, the type as Spark SQL writes it, without a Spark job."""
        return sql_types_of(self.schema(table))

    def read(self, table: str, version: int | None = None, *, filters: Filters | None = None) -> "DataFrame":
        """Return rows of a table, by default of its latest version, as a Spark DataFrame.

        delta-rs finds the files in the table's log. Delta's own reader runs Spark jobs over the log at every read,
        which cost a micro-batch more than reading its own writes. Files that the filters rule out are not opened.
        """
        return self.opened.version_at(table, version).frame(self.session(), filters or ())

    def frame(self, table: str, rows: pa.Table) -> "DataFrame":
        """Return rows of a table that this process has, with any of its columns, as a Spark DataFrame."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - see above

        from tidemark.timeops.computing.materialize import from_driver  # noqa: PLC0415

        schema = self.opened.version_at(table).spark_schema
        return from_driver(self.session(), rows, StructType([schema[name] for name in rows.column_names]))

    def rows(
        self,
        table: str,
        version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
    ) -> pa.Table:
        """Return rows of a small table, by default of its latest version, see `Version.rows`."""
        return self.opened.version_at(table, version).rows(columns=columns, filters=filters)

    def dataset(self, table: str, version: int | None) -> pyarrow.dataset.Dataset:
        """Return a table of any size for Arrow to read piece by piece; see `queries.py`."""
        return self.opened.version_at(table, version).dataset
