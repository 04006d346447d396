"""The versions of tables that this process has opened, and their rows.

Here: which version is the newest, its files, and reading it with Arrow, or with Spark as the Parquet files that it
consists of; conditions on rows. Not here: writing (resources/delta/lake.py), reading within bounded memory
(resources/delta/queries.py).

Opening a table means reading its log: in a store, at least one request for each commit. A version never changes, so
whatever was read from it stays valid. The newest version is looked up each time, except while a run holds the lease
of a batch. Then only this run writes, and the log refuses a commit on a version that is no longer the newest.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tidemark.resources.delta.log import entry_path, unreadable_log
from tidemark.resources.places.checks import failure_of_store
from tidemark.resources.places.credentials import arrow_files
from tidemark.resources.places.place import (
    Place,
    RemotePath,
    delta_place,
    path_in_store,
    spark_url,
    without_wildcards,
)
from tidemark.resources.tables import remedy_of
from tidemark.timeops.errors import LakeError, first_line
from tidemark.timeops.expressions.tokens import literal
from tidemark.timeops.values.utc import Instant, us_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CHANGE_FEED = "delta.enableChangeDataFeed"
"""The property of a table that has a change feed."""
BOUNDED = "delta.dataSkippingStatsColumns"
"""The property of a table that names the columns that have bounds in its log."""
DELETED_FILE_RETENTION = "delta.deletedFileRetentionDuration"
"""The property of a table that says how old a version may be for Spark to read it, unless it is the newest one."""
Filters = Sequence[tuple[str, str, Any]]
"""Conditions that all hold: column, operator (=, !=, <, <=, >, >=, in), value; `= None` asks for null. Instants are
aware datetimes, or of type Instant, which has all years."""
ALL_ROWS: Filters = ()
"""Conditions that every row meets, as there is none: a table whose rows are replaced `where` it loses all of them."""
NO_ROWS = None
"""In the place of conditions: no row is deleted."""


def arrow_condition(filters: Filters) -> pc.Expression:
    """Return the filters as Arrow's expression."""
    return reduce(and_, [_condition(name, symbol, value) for name, symbol, value in filters])


def _condition(name: str, symbol: str, value: Any) -> pc.Expression:
    if value is None:
        return pc.field(name).is_null()
    is_text = isinstance(value[0] if isinstance(value, list | tuple) and value else value, str)
    # DELETE and UPDATE of delta-rs write texts as `string_view`, which Arrow does not compare with other texts.
    field = pc.field(name).cast(pa.string()) if is_text else pc.field(name)
    return field.isin(list(value)) if symbol == "in" else _COMPARE[symbol](field, _in_arrow(value))


def sql_condition(filters: Filters) -> str:
    """Return the filters as Spark SQL; no filters mean all rows."""
    conditions = [
        f"`{name}` IS NULL" if value is None else f"`{name}` {symbol} {_literal(value)}"
        for name, symbol, value in filters
    ]
    return " AND ".join(conditions) or "true"


_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _in_arrow(value: Any) -> Any:
    return pa.scalar(value.us, pa.timestamp("us", tz="UTC")) if isinstance(value, Instant) else value


def _literal(value: Any) -> str:
    if isinstance(value, Instant):
        return f"timestamp_micros({value.us}L)"
    if isinstance(value, datetime):
        return f"timestamp_micros({us_of(value)})"
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_literal, value))})"
    return str(value)


def python_values(column: pa.ChunkedArray, *, maps: Literal["lossy"] | None = None) -> list[Any]:
    """Return the values of a column of Arrow as Python's; instants have the type Instant, which has all years.

    Maps are lists of pairs; with "lossy" they are dicts, where the last of several entries with one key wins.
    """
    numbers = _with_numbers(column.type)
    if numbers == column.type:
        return list(column.to_pylist(maps_as_pydicts=maps))
    return [_with_instants(value, column.type) for value in column.cast(numbers).to_pylist(maps_as_pydicts=maps)]


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    """Return a type with microseconds in place of its instants; instants in maps stay."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us":
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_numbers(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_numbers(field.type)) for field in kind])
    return kind


def _with_instants(value: Any, kind: pa.DataType) -> Any:
    if value is None or _with_numbers(kind) == kind:
        return value
    if pa.types.is_list(kind):
        return [_with_instants(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _with_instants(value[field.name], field.type) for field in kind}
    return Instant(value)


def files_of(folder: Place) -> SubTreeFileSystem:
    """Return Arrow's own view of a table's folder.

    The view of delta-rs runs Python: Arrow's threads may still use it when the process ends, and abort the process.
    """
    if isinstance(folder, RemotePath):
        return SubTreeFileSystem(path_in_store(folder), arrow_files(folder.root))
    return SubTreeFileSystem(str(folder), LocalFileSystem())


_DIGITS = re.compile(r"\d{20}")
_PAGE_ROWS = 16_384  # are decoded at once where nothing is made of them
_KEPT = 100  # the number of known versions at which all are dropped


def unreadable_file(place: Place | str, why: Exception | str) -> LakeError:
    """Return the error for a table that has an unreadable file."""
    return LakeError(
        f"A file of the table {place} cannot be read: {first_line(why)}",
        expected="all files that the table's log names, as they were written",
        remedy=remedy_of(place),
    )


@dataclass(frozen=True, eq=False)
class Version:
    """A table as of one version, for reading.

    `actions` has the log entry of each of its files, with the statistics by which `dataset` leaves some out.
    """

    folder: Place
    number: int
    schema: Schema
    properties: Mapping[str, str]
    actions: pa.Table
    dataset: pyarrow.dataset.Dataset

    @classmethod
    def of(cls, folder: Place, delta: DeltaTable) -> "Version":
        """Return the current version of an opened table; it stays the same when the opened table moves on."""
        actions = pa.table(delta.get_add_actions(flatten=True))
        properties: Mapping[str, str] = delta.metadata().configuration
        return cls(folder, delta.version(), delta.schema(), properties, actions, _dataset(folder, delta, actions))

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each of its files, by the names in its log."""
        return _by_file(self.actions, "size_bytes")

    @property
    def spark_schema(self) -> "StructType":
        """Its columns as Spark has them."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - control tables must not wait for PySpark

        return StructType.fromJson(json.loads(self.schema.to_json()))

    @property
    def has_change_feed(self) -> bool:
        """Return whether it has a change feed."""
        return str(self.properties.get(CHANGE_FEED, "false")).lower() == "true"

    @property
    def has_files(self) -> bool:
        """Return whether all its files are there; VACUUM deletes files that no later version has."""
        return all((self.folder / file).is_file() for file in self.sizes)

    def row_count(self, files: Sequence[str] | None = None) -> int:
        """Return the number of its rows, or of the rows in some of its files, from its log."""
        if files is None:
            return int(pc.sum(self.actions["num_records"]).as_py() or 0)
        rows = _by_file(self.actions, "num_records")
        return sum(rows[file] for file in files)

    def count(self, filters: Filters) -> int:
        """Count the rows that match. Only files whose bounds leave it open are opened.

        Raises:
            LakeError: One of them cannot be read.
        """
        matching_files = self.files_within(filters)
        unclear = sorted({*self.files_with(filters)} - {*matching_files})
        with self.reading():
            matching = self.dataset_of(unclear).count_rows(filter=arrow_condition(filters)) if unclear else 0
        return self.row_count(matching_files) + int(matching)

    def lowest_by_file(self, column: str) -> list[tuple[Any, int]]:
        """Return the lowest value of a column and the number of rows, for each file whose statistics have both."""
        lowest = f"min.{column}"
        if lowest not in self.actions.column_names:
            return []
        pairs = zip(python_values(self.actions[lowest]), self.actions["num_records"].to_pylist(), strict=True)
        return [(value, rows) for value, rows in pairs if value is not None and rows]

    def bounds_by_file(self, column: str) -> dict[str, tuple[int, int]]:
        """Return the lowest and highest value of a column of numbers, or of instants in microseconds.

        Files are left out whose statistics do not say both, or say that a row has none.
        """
        low, high, nulls = (f"{what}.{column}" for what in ("min", "max", "null_count"))
        if not {low, high, nulls} <= {*self.actions.column_names}:
            return {}
        bounded = self.actions.filter(pc.equal(self.actions[nulls], 0)).select(["path", low, high]).drop_null()
        bounds = (bounded[name].cast(pa.int64()).to_pylist() for name in (low, high))
        return dict(zip(bounded["path"].to_pylist(), zip(*bounds, strict=True), strict=True))

    def files_with(self, filters: Filters) -> list[str]:
        """Return the files that may hold matching rows, by their bounds."""
        return sorted(file.path for file in self.dataset.get_fragments(arrow_condition(filters) if filters else None))

    def files_within(self, filters: Filters) -> list[str]:
        """Return the files all of whose rows match, by their bounds."""
        may_not = {file.path for file in self.dataset.get_fragments(~arrow_condition(filters))}
        return [file for file in self.files_with(filters) if file not in may_not]

    def files_meant(self, filters: Filters) -> tuple[list[str], list[str]]:
        """Return the files all of whose rows match, and the files with matching and other rows.

        Only files whose bounds leave it open, or that have a null, are read, and of these the columns of the filters.
        """
        mixed_files, names = list[str](), list(dict.fromkeys(name for name, _, _ in filters))
        matching_files = self.files_within(filters) if self._are_bounded(filters) else []
        for name in names if matching_files else []:
            bounds = self.bounds_by_file(name)
            matching_files = [path for path in matching_files if path in bounds]
        for path in sorted({*self.files_with(filters)} - {*matching_files}):
            rows = self.rows_of([path], names)
            if met := rows.filter(arrow_condition(filters)).num_rows:
                (matching_files if met == rows.num_rows else mixed_files).append(path)
        return matching_files, mixed_files

    def _are_bounded(self, filters: Filters) -> bool:
        """Return whether the log has bounds of all columns that filters name, where it has any."""
        return {name for name, _, _ in filters} <= {*self.properties.get(BOUNDED, "").split(",")}

    def files_to_replace(self, where: Filters, stays: Filters | None = None) -> list[str]:
        """Return the files that are replaced when the rows that match `where` are deleted; no conditions mean all.

        Files that may hold rows that match `stays` are not replaced.
        """
        if not where:
            return list(self.sizes)
        left = set() if stays is None else set(self.files_with(stays))
        paths = [path for path in self.files_with(where) if path not in left]
        if self._are_bounded(where):
            return paths
        names = list(dict.fromkeys(name for name, _, _ in where))
        return [path for path in paths if self.rows_of([path], names).filter(arrow_condition(where))]

    def rows(self, *, columns: Sequence[str] | None = None, filters: Filters | None = None) -> pa.Table:
        """Return its rows without a Spark job: only for few. Files that the filters rule out are not opened."""
        condition = arrow_condition(filters) if filters else None
        with self.reading():
            return self.dataset.to_table(columns=None if columns is None else list(columns), filter=condition)

    def rows_of(self, files: Sequence[str], columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of some of its files, on the driver; by default with all columns."""
        with self.reading():
            return self.dataset_of(files).to_table(columns=None if columns is None else list(columns))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn a failure of Arrow to read its files during the block into an error that names the first bad one.

        Raises:
            LakeError: A file cannot be read.
        """
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> LakeError:
        """Return the error for a failure to read its files. Arrow does not always say which file it was."""
        for file in self.sizes:
            try:
                for _ in self.dataset_of([file]).to_batches():
                    pass
            except (OSError, pa.ArrowInvalid) as why:
                return unreadable_file(self.folder / file, why)
        return unreadable_file(self.folder, error)

    def fault_of(self, file: str) -> str:
        """Read every page of one of its files; return what is wrong with it, or an empty text.

        A page is compared with its checksum if it has one: Spark and this program write it, delta-rs does not when it
        joins files.
        """
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - only an audit reads pages

        try:
            with (
                self.dataset.filesystem.open_input_file(file) as opened,
                ParquetFile(opened, page_checksum_verification=True) as parquet,
            ):
                rows = sum(batch.num_rows for batch in parquet.iter_batches(_PAGE_ROWS, use_threads=False))
        except FileNotFoundError:
            return "is missing"
        except (OSError, pa.ArrowException) as error:
            return f"cannot be read: {first_line(error)}"
        named = _by_file(self.actions, "num_records").get(file)
        return "" if named in (None, rows) else f"has {rows:,} rows of {named:,}"

    def dataset_of(self, files: Sequence[str]) -> pyarrow.dataset.Dataset:
        """Return some of its files for Arrow to read."""
        dataset = self.dataset
        fragments = [dataset.format.make_fragment(path, filesystem=dataset.filesystem) for path in files]
        return pyarrow.dataset.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)

    def rows_without(self, file: str, filters: Filters) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that do not match filters, some at a time; rows for which these are null too.

        Raises:
            LakeError: The file cannot be read.
        """
        stay = pc.coalesce(~arrow_condition(filters), pc.scalar(True))
        with self.reading():
            yield from self.dataset_of([file]).to_batches(filter=stay)

    def frame(self, spark: "SparkSession", filters: Filters) -> "DataFrame":
        """Return its rows as a DataFrame. Files whose statistics rule such rows out are not opened."""
        rows = self.frame_of(spark, self.files_with(filters))
        return rows.where(sql_condition(filters)) if filters else rows

    def frame_of(self, spark: "SparkSession", files: Sequence[str]) -> "DataFrame":
        """Return all rows of some of its files as a DataFrame."""
        from tidemark.resources.spark.frames import empty_frame  # noqa: PLC0415 - see above

        if not files:
            return empty_frame(spark, self.spark_schema)
        # The base path keeps Spark from reading folders above, such as `year=2026`, as columns.
        reader = spark.read.schema(self.spark_schema).option("basePath", spark_url(self.folder))
        return reader.parquet(*(without_wildcards(spark_url(self.folder / file)) for file in files))


def _by_file(actions: pa.Table, column: str) -> Mapping[str, int]:
    return dict(zip(actions["path"].to_pylist(), actions[column].to_pylist(), strict=True))


def _dataset(folder: Place, delta: DeltaTable, actions: pa.Table) -> pyarrow.dataset.Dataset:
    """Return the files with their sizes, so that a store need not be asked for them."""
    files = files_of(folder)
    dataset = delta.to_pyarrow_dataset(filesystem=files)
    is_bounded = BOUNDED in delta.metadata().configuration  # if not, an earlier version wrote bounds of all columns
    sizes, unread = _by_file(actions, "size_bytes"), files_beyond_bounds(actions, dataset.schema)
    fragments = [
        dataset.format.make_fragment(
            fragment.path,
            filesystem=files,
            partition_expression=fragment.partition_expression
            if is_bounded and fragment.path not in unread
            else None,
            file_size=sizes.get(fragment.path),
        )
        for fragment in dataset.get_fragments()
    ]
    return pyarrow.dataset.FileSystemDataset(fragments, dataset.schema, dataset.format, files)


def files_beyond_bounds(actions: pa.Table, schema: pa.Schema) -> list[str]:
    """Return the files that have bounds, but lack one of a column of instants that has values.

    These are of years such as 10000, or -1: delta-rs reads them as null, so no condition on the column would find a
    row of the file. Earlier versions wrote such files, and so does a writer of others that joins files.
    """
    paths: dict[str, None] = {}
    for name in (field.name for field in schema if pa.types.is_timestamp(field.type)):
        if {f"min.{name}", f"max.{name}", f"null_count.{name}"} <= set(actions.column_names):
            has_value = pc.less(actions[f"null_count.{name}"], actions["num_records"])
            lacks_one = pc.or_(pc.is_null(actions[f"min.{name}"]), pc.is_null(actions[f"max.{name}"]))
            paths |= dict.fromkeys(actions["path"].filter(pc.and_(has_value, lacks_one)).to_pylist())
    return list(paths)


class Opened:
    """The opened tables of one pipeline, shared by all stages of a run.

    A table that moves to another version is taken out meanwhile, so that no thread sees it half-way.

    Some of their folders may be elsewhere than below the root.
    """

    def __init__(self, root: Place, elsewhere: Mapping[str, Place] = MappingProxyType({})) -> None:
        self._root, self._elsewhere = root, elsewhere
        self._newest: dict[str, DeltaTable] = {}
        self._versions: dict[tuple[str, int], Version] = {}
        self._settled = 0

    def place(self, table: str) -> Place:
        """Return the folder of a table."""
        return self._elsewhere.get(table) or self._root / table

    def forget(self, table: str) -> None:
        """Forget a table whose folder was removed."""
        self._newest.pop(table, None)
        self._versions = {key: version for key, version in self._versions.items() if key[0] != table}

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Look up each table at most once during the block, and rely on that afterwards.

        Where others may write meanwhile, ask for `newest`.
        """
        self._settled += 1
        try:
            yield
        finally:
            self._settled -= 1

    @property
    def is_settled(self) -> bool:
        """Return whether a block of `settled` is running."""
        return self._settled > 0

    def exists(self, table: str) -> bool:
        """Return whether a table exists."""
        if self._settled and table in self._newest:
            return True
        return bool(DeltaTable.is_deltatable(**delta_place(self.place(table))))

    def version(self, table: str, since: int | None = None) -> int:
        """Return the newest version of a table.

        If it is known to have reached version `since`, a table of a store is not opened to find out, unless settled.

        Raises:
            LakeError: The table does not exist, or its log cannot be read.
        """
        if not self._settled:
            return self.newest(table, since)
        newest = self._newest.get(table)
        if newest is not None and newest.version() >= (since or 0):
            return int(newest.version())
        return self.newest(table)  # which opens it, once

    def newest(self, table: str, since: int | None = None) -> int:
        """Return the newest version of a table, read from the log even if one is known."""
        if since is not None and table not in self._newest and isinstance(self._root, RemotePath):
            last = _last_entry(self.place(table), since)
            if last is not None:
                return last
        delta = self._asked(table)
        version: int = delta.version()
        self.keep(table, delta)
        return version

    def version_at(self, table: str, version: int | None = None) -> Version:
        """Return a table at a version, by default the newest, for reading; raises the errors of `version`."""
        number = self.version(table) if version is None else version
        cached_version = self._versions.get((table, number))
        if cached_version is not None:
            return cached_version
        newest = self._newest.pop(table, None) or self.open(table)
        opened_version = self.version_of(table, newest if newest.version() == number else self.open(table, number))
        self.keep(table, newest)
        return opened_version

    def still_readable(self, table: str, version: int) -> Version | None:
        """Return a table at an old version; None if upkeep has deleted its entry in the log, or a file of it."""
        if not entry_path(self.place(table), version).is_file():
            return None
        old = self.version_at(table, version)
        return old if old.has_files else None

    def version_of(self, table: str, delta: DeltaTable) -> Version:
        """Return the current version of an opened table, with whatever was read from it before."""
        number = delta.version()
        if (table, number) not in self._versions:
            if len(self._versions) >= _KEPT:
                self._versions.clear()
            self._versions[table, number] = Version.of(self.place(table), delta)
        return self._versions[table, number]

    def take(self, table: str, since: int | None = None) -> DeltaTable:
        """Return a table for writing, to one caller at a time. After a commit, return it with `keep`.

        By default it is at the newest version. If it is known to have reached `since`, it is as it was opened: the
        commit fails if there is a newer version.

        Raises:
            LakeError: The table does not exist, or its log cannot be read.
        """
        newest = self._newest.get(table)
        if newest is not None and since is not None and newest.version() >= since:
            return self._newest.pop(table, None) or self.open(table)
        return self._asked(table)

    def _asked(self, table: str) -> DeltaTable:
        delta = self._newest.pop(table, None)
        if delta is None:
            return self.open(table)
        last = _last_entry(self.place(table), delta.version())
        if last is None:  # the folder was put back to an earlier version, or is gone
            self.forget(table)
            return self.open(table)
        return delta if last == delta.version() else self._gone_on(table, delta)

    def keep(self, table: str, delta: DeltaTable, version: int | None = None) -> None:
        """Take back an opened table, with the version of a commit that it has not noticed itself."""
        behind = version is not None and delta.version() < version
        self._newest[table] = self._gone_on(table, delta) if behind else delta

    def _gone_on(self, table: str, delta: DeltaTable) -> DeltaTable:
        with _telling(self.place(table)):
            delta.update_incremental()
            return _whole(self.place(table), delta)

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Return a table, opened again; raises the errors of `version`."""
        folder = self.place(table)
        with _telling(folder):
            return _whole(folder, DeltaTable(**delta_place(folder), version=version))


def _last_entry(folder: Place, since: int) -> int | None:
    """Return the newest version in the log of a table from one on; None if an entry is missing, even that one."""
    log = folder / "_delta_log"
    if isinstance(log, RemotePath):  # one request
        names = set(log.store.names_from(log.key, f"{since:020}"))
        newest = max((int(match[0]) for match in map(_DIGITS.match, names) if match), default=since)
        has_all = all(entry_path(folder, version).name in names for version in range(since, newest + 1))
        return newest if has_all else None
    last = since - 1
    while entry_path(folder, last + 1).is_file():
        last += 1
    behind = (log / f"{last + 1:020}.checkpoint.parquet", entry_path(folder, last + 2))
    return None if last < since or any(path.is_file() for path in behind) else last


def _whole(folder: Place, delta: DeltaTable) -> DeltaTable:
    """Return the table, unless its newest entry is an empty file, which delta-rs takes for a commit of nothing.

    A full disk leaves such an entry; a store has a file whole or not at all.
    """
    entry = entry_path(folder, delta.version())
    if isinstance(entry, Path) and entry.exists() and not entry.stat().st_size:
        raise unreadable_log(folder, "its newest entry is empty")
    return delta


@contextmanager
def _telling(folder: Place) -> Iterator[None]:
    """Turn a failure to read the log during the block into an error with a remedy."""
    try:
        yield
    except TableNotFoundError as error:
        raise LakeError(
            f"There is no table {folder}.",
            expected="the tables of a pipeline that has run",
            remedy="Check the warehouse and the pipeline's name, or run the pipeline first.",
        ) from error
    except (DeltaError, OSError) as error:
        if failure := failure_of_store(str(error)):
            raise failure from error
        if isinstance(error, OSError):
            raise
        raise unreadable_log(folder, first_line(error)) from error
