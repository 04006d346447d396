"""The tables of one pipeline as they can be read: their versions, columns, statistics and rows.

Here: single tables. Not here: writing (lake.py), the files that Spark reads (scan.py), states of several tables that
belong together (snapshot.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.resources.lake.filters import Filters, arrow_condition, by_statistics, python_values
from tidemark.resources.lake.table_columns import sql_types_of
from tidemark.resources.lake.versions import Versions
from tidemark.timeops.errors import LakeError

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame, SparkSession


def without_spark() -> "SparkSession":
    """Stand for the session where none is needed."""
    raise LakeError("This lake was opened without Spark.", remedy="Give Lake a callable that returns a session.")


@dataclass(frozen=True)
class Tables:
    """The tables of one pipeline, for reading.

    Args:
        root: Folder of the pipeline; its name is the pipeline's.
        session: Gives the Spark session; called only when Spark is needed.
    """

    root: Path
    session: "Callable[[], SparkSession]" = without_spark

    @cached_property
    def _versions(self) -> Versions:
        return Versions(self.root)

    def path(self, table: str) -> Path:
        """Return the folder of a table."""
        return self.root / table

    def exists(self, table: str) -> bool:
        """Tell whether the table has been created."""
        return DeltaTable.is_deltatable(str(self.path(table)))

    def open(self, table: str) -> DeltaTable:
        """Return a table as it is now, opened anew."""
        return self._versions.open(table)

    def version(self, table: str) -> int:
        """Return the table's latest version, without a Spark job."""
        return self._versions.seen(table).delta.version()

    def row_count(self, table: str, version: int | None = None) -> int:
        """Return the number of rows of a table, at a version if one is given, from its log."""
        counts = pa.table(self._versions.seen(table, version).delta.get_add_actions(flatten=True))["num_records"]
        return int(pc.sum(counts).as_py() or 0)

    def has_files(self, table: str, version: int) -> bool:
        """Return whether all files of a version are there; VACUUM deletes those that no later version has."""
        files = pa.table(self._versions.seen(table, version).delta.get_add_actions(flatten=True))["path"].to_pylist()
        return all((self.path(table) / file).exists() for file in files)

    def columns(self, table: str) -> dict[str, str]:
        """Return name and type of each column, the type as Spark SQL writes it, without a Spark job."""
        return sql_types_of(self._versions.seen(table).delta)

    def read(self, table: str, version: int | None = None, *, filters: Filters | None = None) -> "DataFrame":
        """Return rows of a table, at a version if one is given, as a Spark DataFrame.

        The table's log tells which files to read, by delta-rs: to find them, Delta's own reader runs Spark jobs over
        the log at every read, which take a micro-batch more than reading what it wrote. Files that the filters rule
        out are not opened.
        """
        from tidemark.resources.lake.scan import scan  # noqa: PLC0415 - it imports PySpark

        return scan(self.session(), self._versions.seen(table, version), filters or ())

    def rows(
        self,
        table: str,
        version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
    ) -> pa.Table:
        """Return rows of a small table, without a Spark job. Files that the filters rule out are not opened."""
        known = by_statistics(filters or ())
        rest = [one for one in filters or () if one not in known]
        seen = self._versions.seen(table, version)
        try:
            found = seen.dataset.to_table(
                columns=list(columns) if columns is not None and not rest else None,
                filter=arrow_condition(known) if known else None,
            )
        except (OSError, pa.ArrowInvalid) as error:
            raise LakeError(
                f"A file of the table {self.path(table)} cannot be read: {error}",
                expected="all files that the table's log names, as they were written",
                remedy="bring the pipeline's folder back from a copy, all tables of one time. Nothing was changed",
            ) from error
        found = found.filter(arrow_condition(rest)) if rest else found
        return found if columns is None else found.select(list(columns))

    def dataset(self, table: str, version: int) -> pa.dataset.Dataset:
        """Return a table of any size for Arrow to read piece by piece; see `bounded.py`."""
        return self._versions.seen(table, version).dataset

    def lowest_by_file(self, table: str, version: int, column: str) -> list[tuple[Any, int]]:
        """Return the lowest value of a column and the number of rows of each file whose statistics tell both."""
        files = pa.table(self._versions.seen(table, version).delta.get_add_actions(flatten=True))
        lowest = f"min.{column}"
        if lowest not in files.column_names:
            return []
        pairs = zip(python_values(files[lowest]), files["num_records"].to_pylist(), strict=True)
        return [(value, rows) for value, rows in pairs if value is not None and rows]

    def lowest(self, table: str, version: int, column: str) -> Any:
        """Return the lowest value of a column, None for no row; from the statistics of the files if all tell it.

        Of instants it is an Instant.

        Raises:
            LakeError: The table cannot be read.
        """
        try:
            known = self.lowest_by_file(table, version, column)
            if sum(rows for _, rows in known) == self.row_count(table, version):
                return min((value for value, _ in known), default=None)
            values = python_values(self.rows(table, version, columns=[column])[column])
            return min((value for value in values if value is not None), default=None)
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self.path(table)} cannot be read: {error}") from error
