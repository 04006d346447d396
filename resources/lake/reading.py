"""The tables of one pipeline for reading: their columns, statistics and rows.

Here: reading with Arrow, and with Spark as the Parquet files that a version consists of. Not here: opening tables
(opened.py), writing them (lake.py), reading within bounded memory (queries.py).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable, Schema

from tidemark.resources.lake.filters import (
    Filters,
    arrow_condition,
    by_statistics,
    python_values,
    sql_condition,
)
from tidemark.resources.lake.opened import Opened, Version
from tidemark.resources.lake.table_columns import sql_types_of
from tidemark.resources.places.place import Place, spark_url
from tidemark.resources.sources.local_files import without_wildcards
from tidemark.resources.tables import remedy_of
from tidemark.timeops.errors import LakeError, first_line

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame, SparkSession


def unreadable_file(place: Place | str, why: Exception | str) -> LakeError:
    """Return the error for a table that has an unreadable file."""
    return LakeError(
        f"A file of the table {place} cannot be read: {first_line(why)}",
        expected="all files that the table's log names, as they were written",
        remedy=remedy_of(place),
    )


def scan(spark: "SparkSession", version: Version, filters: Filters) -> "DataFrame":
    """Return rows of a table at a version.

    Args:
        spark: The session.
        version: The table.
        filters: Conditions on the rows. Files that cannot hold such rows, by their statistics, are not opened.
    """
    rows = rows_of_files(spark, version, files_with(version, filters))
    return rows.where(sql_condition(filters)) if filters else rows


def files_with(version: Version, filters: Filters) -> list[str]:
    """Return the files of a table at a version that may hold matching rows, by their statistics."""
    known = by_statistics(filters)
    return sorted(file.path for file in version.dataset.get_fragments(arrow_condition(known) if known else None))


def files_to_replace(version: Version, where: Filters, stays: Filters | None = None) -> list[str]:
    """Return the files of a table at a version that are replaced when rows are deleted.

    Args:
        version: The table.
        where: Conditions on the rows to delete; no conditions mean all.
        stays: Files that may hold rows that match these are not replaced; by default all files may be.
    """
    if not where:
        return list(version.sizes)
    found = files_with(version, where)
    if stays is not None:
        left = set(files_with(version, stays))
        found = [path for path in found if path not in left]
    if by_statistics(where) == list(where):
        return found
    names = list(dict.fromkeys(name for name, _, _ in where))
    return [path for path in found if arrow_rows_of_files(version, [path], names).filter(arrow_condition(where))]


def arrow_rows_of_files(version: Version, files: Sequence[str], columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of some files of a table at a version, on the driver; by default with all columns."""
    known = version.dataset
    # Leave out the bounds: of a BOOLEAN column, see `by_statistics`, they would say that it holds no value.
    fragments = [known.format.make_fragment(path, filesystem=known.filesystem) for path in files]
    chosen = pyarrow.dataset.FileSystemDataset(fragments, known.schema, known.format, known.filesystem)
    return chosen.to_table(columns=None if columns is None else list(columns))


def rows_of_files(spark: "SparkSession", version: Version, files: Sequence[str]) -> "DataFrame":
    """Return all rows of some files of a table at a version."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - see above

    from tidemark.resources.spark.frames import empty_frame  # noqa: PLC0415

    schema = StructType.fromJson(json.loads(version.schema.to_json()))
    if not files:
        return empty_frame(spark, schema)
    # The base path keeps Spark from reading folders above, such as `year=2026`, as columns.
    reader = spark.read.schema(schema).option("basePath", spark_url(version.folder))
    return reader.parquet(*(without_wildcards(spark_url(version.folder / file)) for file in files))


def without_spark() -> "SparkSession":
    """Raise an error in place of a session where none is needed."""
    raise LakeError("This lake was opened without Spark.", remedy="Pass Lake a callable that returns a session.")


@dataclass(frozen=True)
class Tables:
    """The tables of one pipeline, for reading.

    Args:
        root: Folder of the pipeline; its name is the pipeline's.
        session: Returns the Spark session; called only when Spark is needed.
        known: Its tables that this process has opened before; None for a first look.
    """

    root: Place
    session: "Callable[[], SparkSession]" = without_spark
    known: Opened | None = field(default=None, repr=False, compare=False)

    @cached_property
    def opened(self) -> Opened:
        """The opened tables of the pipeline."""
        return self.known or Opened(self.root)

    def path(self, table: str) -> Place:
        """Return the folder of a table."""
        return self.opened.place(table)

    def exists(self, table: str) -> bool:
        """Return whether the table has been created."""
        return self.opened.exists(table)

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Return a table as of now or as of a version, opened anew."""
        return self.opened.open(table, version)

    def settled(self) -> AbstractContextManager[None]:
        """Do not look up the newest versions again during the block, see `Opened.settled`."""
        return self.opened.settled()

    def version(self, table: str, since: int | None = None) -> int:
        """Return the table's latest version, without a Spark job; see `Opened.version`."""
        return self.opened.version(table, since)

    def newest(self, table: str, since: int) -> int:
        """Return the table's latest version, read from the log, see `Opened.newest`."""
        return self.opened.newest(table, since)

    def row_count(self, table: str, version: int | None = None) -> int:
        """Return the number of rows of a table, by default of its latest version, from its log."""
        return int(pc.sum(self.opened.seen(table, version).actions["num_records"]).as_py() or 0)

    def file_count(self, table: str) -> int:
        """Return the number of files of a table."""
        return int(self.opened.seen(table).actions.num_rows)

    def has_files(self, table: str, version: int) -> bool:
        """Return whether all files of a version are there; VACUUM deletes files that no later version has."""
        return all((self.path(table) / file).is_file() for file in self.opened.seen(table, version).sizes)

    def schema(self, table: str) -> Schema:
        """Return the columns of a table."""
        return self.opened.seen(table).schema

    def columns(self, table: str) -> dict[str, str]:
        """Return name and type of each column, the type as Spark SQL writes it, without a Spark job."""
        return sql_types_of(self.schema(table))

    def read(self, table: str, version: int | None = None, *, filters: Filters | None = None) -> "DataFrame":
        """Return rows of a table, by default of its latest version, as a Spark DataFrame.

        delta-rs finds the files in the table's log. Delta's own reader runs Spark jobs over the log at every read,
        which cost a micro-batch more than reading its own writes. Files that the filters rule out are not opened.
        """
        return scan(self.session(), self.opened.seen(table, version), filters or ())

    def frame(self, table: str, rows: pa.Table) -> "DataFrame":
        """Return rows of a table that this process has, with any of its columns, as a Spark DataFrame."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - see above

        from tidemark.timeops.materialize import from_driver  # noqa: PLC0415

        known = StructType.fromJson(json.loads(self.opened.seen(table).schema.to_json()))
        return from_driver(self.session(), rows, StructType([known[name] for name in rows.column_names]))

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
        seen = self.opened.seen(table, version)
        try:
            found = seen.dataset.to_table(
                columns=list(columns) if columns is not None and not rest else None,
                filter=arrow_condition(known) if known else None,
            )
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable_file(self.path(table), error) from error
        found = found.filter(arrow_condition(rest)) if rest else found
        return found if columns is None else found.select(list(columns))

    def dataset(self, table: str, version: int | None) -> pa.dataset.Dataset:
        """Return a table of any size for Arrow to read piece by piece; see `queries.py`."""
        return self.opened.seen(table, version).dataset

    def lowest_by_file(self, table: str, version: int, column: str) -> list[tuple[Any, int]]:
        """Return the lowest value of a column and the number of rows, for each file whose statistics have both."""
        files = self.opened.seen(table, version).actions
        lowest = f"min.{column}"
        if lowest not in files.column_names:
            return []
        pairs = zip(python_values(files[lowest]), files["num_records"].to_pylist(), strict=True)
        return [(value, rows) for value, rows in pairs if value is not None and rows]
