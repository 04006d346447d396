"""The tables of one pipeline as they can be read: each version opened once; its columns, statistics and rows.

Here: reading with Arrow, and with Spark as the Parquet files that a version consists of. Not here: writing (lake.py),
reading within bounded memory (queries.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.resources.lake.filters import (
    Filters,
    arrow_condition,
    by_statistics,
    files_of,
    python_values,
    sql_condition,
)
from tidemark.resources.lake.table_columns import sql_types_of
from tidemark.resources.places.checks import failure_of_store
from tidemark.resources.places.place import Place, RemotePath, delta_place, spark_url
from tidemark.resources.sources.local_files import without_wildcards
from tidemark.timeops.errors import LakeError

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame, SparkSession

_KEPT = 100  # versions that are kept open before all of them are let go


@dataclass(frozen=True)
class Version:
    """A table as one version has it.

    Attributes:
        folder: Folder of the table.
        delta: The table, opened at the version.
    """

    folder: Place
    delta: DeltaTable

    @cached_property
    def dataset(self) -> pyarrow.dataset.Dataset:
        """Its files as Arrow reads them, with the statistics by which some are left out."""
        files = files_of(self.folder)
        known = self.delta.to_pyarrow_dataset(filesystem=files)
        unread = _without_bounds(self.delta, known.schema)
        if not unread:
            return known
        fragments = [
            known.format.make_fragment(one.path, filesystem=files) if one.path in unread else one
            for one in known.get_fragments()
        ]
        return pyarrow.dataset.FileSystemDataset(fragments, known.schema, known.format, files)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each of its files, by the names in its log."""
        files = pa.table(self.delta.get_add_actions(flatten=True))
        return dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))


def _without_bounds(delta: DeltaTable, schema: pa.Schema) -> set[str]:
    """The files with values that no bound tells: instants of years such as 10000, and NaN.

    delta-rs takes the bound for null, so that no condition on the column would find a row of the file.
    """
    actions = pa.table(delta.get_add_actions(flatten=True))
    found: set[str] = set()
    for name in (one.name for one in schema if pa.types.is_timestamp(one.type) or pa.types.is_floating(one.type)):
        if {f"min.{name}", f"max.{name}", f"null_count.{name}"} <= set(actions.column_names):
            has_value = pc.less(actions[f"null_count.{name}"], actions["num_records"])
            lacks_one = pc.or_(pc.is_null(actions[f"min.{name}"]), pc.is_null(actions[f"max.{name}"]))
            found |= set(actions["path"].filter(pc.and_(has_value, lacks_one)).to_pylist())
    return found


@dataclass(frozen=True)
class Versions:
    """The opened versions of the tables of one pipeline.

    Args:
        root: Folder of the pipeline.
    """

    root: Place
    _seen: dict[tuple[str, int | None], Version] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seen(self, table: str, version: int | None = None) -> Version:
        """Return a table for reading only, as it was opened before where that is still what it is.

        A version never changes, and the latest one is known as long as the log has no file of the next: every stage
        asks for the same versions of the same tables, and opening one reads its log.
        """
        known = self._seen.get((table, version))
        if known is None or (version is None and not self._is_latest(known)):
            if len(self._seen) >= _KEPT:
                self._seen.clear()
            known = self._seen[table, version] = Version(self.root / table, self.open(table, version))
        return known

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Return a table as it is now, or was at a version, for reading and writing.

        Raises:
            LakeError: There is no such table, or its log cannot be read.
        """
        folder = self.root / table
        try:
            delta = DeltaTable(**delta_place(folder), version=version)
            entry = folder / "_delta_log" / f"{delta.version():020}.json"
            # A disk that was full leaves such a one, and delta-rs takes it for a commit that did nothing. A store has
            # a file whole or not at all.
            if isinstance(entry, Path) and entry.exists() and not entry.stat().st_size:
                raise _unreadable(folder, "its newest entry is empty")
            return delta
        except TableNotFoundError as error:
            raise LakeError(
                f"There is no table {folder}.",
                expected="the tables of a pipeline that has run",
                remedy="Check the warehouse and the pipeline's name, or run the pipeline first.",
            ) from error
        except (DeltaError, OSError) as error:
            if known := failure_of_store(str(error)):
                raise known from error
            if isinstance(error, OSError):
                raise
            raise _unreadable(folder, str(error).splitlines()[0]) from error

    def _is_latest(self, known: Version) -> bool:
        log, version = known.folder / "_delta_log", known.delta.version()
        if isinstance(log, RemotePath):  # each look is a request
            return not (log / f"{version + 1:020}.json").is_file()
        return (log / f"{version:020}.json").is_file() and not (log / f"{version + 1:020}.json").is_file()


def unreadable_file(folder: Place, error: Exception) -> LakeError:
    """The error of a table of which a file cannot be read."""
    return LakeError(
        f"A file of the table {folder} cannot be read: {error}",
        expected="all files that the table's log names, as they were written",
        remedy="restore the pipeline's folder from a backup, all tables of one time. Nothing was changed",
    )


def _unreadable(folder: Place, why: str) -> LakeError:
    """The error of a table whose log cannot be read, with the entry that is broken where one is."""
    entries: list[Place] = [*(folder / "_delta_log").glob("*.json")]
    entries.sort(key=str, reverse=True)
    broken = next(filter(_is_broken, entries), None)
    what = f"{broken.name} in it is truncated or damaged" if broken is not None else why
    for later, entry in pairwise(entries):
        if broken is None and int(later.stem) != int(entry.stem) + 1:
            what = f"the entry before {later.name} is missing"
    return LakeError(
        f"The log of the table {folder} cannot be read: {what}.",
        expected="whole entries in `_delta_log`, one for each version with no gap",
        remedy="restore the pipeline's folder from a backup, all tables of one time. An entry that came behind "
        "the last commit in `batches`, when the machine went down, may be moved away instead: the next run writes it "
        "anew. Nothing was changed",
    )


def _is_broken(entry: Place) -> bool:
    lines = entry.read_text(errors="replace").splitlines()
    try:
        return not [json.loads(line) for line in lines]
    except ValueError:
        return True


def scan(spark: "SparkSession", version: Version, filters: Filters) -> "DataFrame":
    """Rows of a table at a version.

    Args:
        spark: The session.
        version: The table.
        filters: Which rows. Files that can hold none of them, by their statistics, are not opened.
    """
    rows = rows_of_files(spark, version, files_with(version, filters))
    return rows.where(sql_condition(filters)) if filters else rows


def files_with(version: Version, filters: Filters) -> list[str]:
    """Files of a table at a version that may hold rows which match, by their statistics."""
    known = by_statistics(filters)
    return sorted(file.path for file in version.dataset.get_fragments(arrow_condition(known) if known else None))


def rows_of_files(spark: "SparkSession", version: Version, files: Sequence[str]) -> "DataFrame":
    """All rows of some files of a table at a version."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - see above

    from tidemark.resources.spark.frames import empty_frame  # noqa: PLC0415

    schema = StructType.fromJson(json.loads(version.delta.schema().to_json()))
    if not files:
        return empty_frame(spark, schema)
    # The base path keeps Spark from taking folders above, such as `year=2026`, for columns.
    reader = spark.read.schema(schema).option("basePath", spark_url(version.folder))
    return reader.parquet(*(without_wildcards(spark_url(version.folder / file)) for file in files))


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

    root: Place
    session: "Callable[[], SparkSession]" = without_spark

    @cached_property
    def _versions(self) -> Versions:
        return Versions(self.root)

    def path(self, table: str) -> Place:
        """Return the folder of a table."""
        return self.root / table

    def exists(self, table: str) -> bool:
        """Tell whether the table has been created."""
        return DeltaTable.is_deltatable(**delta_place(self.path(table)))

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
        return all((self.path(table) / file).is_file() for file in files)

    def columns(self, table: str) -> dict[str, str]:
        """Return name and type of each column, the type as Spark SQL writes it, without a Spark job."""
        return sql_types_of(self._versions.seen(table).delta)

    def read(self, table: str, version: int | None = None, *, filters: Filters | None = None) -> "DataFrame":
        """Return rows of a table, at a version if one is given, as a Spark DataFrame.

        The table's log tells which files to read, by delta-rs: to find them, Delta's own reader runs Spark jobs over
        the log at every read, which take a micro-batch more than reading what it wrote. Files that the filters rule
        out are not opened.
        """
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
            raise unreadable_file(self.path(table), error) from error
        found = found.filter(arrow_condition(rest)) if rest else found
        return found if columns is None else found.select(list(columns))

    def dataset(self, table: str, version: int) -> pa.dataset.Dataset:
        """Return a table of any size for Arrow to read piece by piece; see `queries.py`."""
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
