"""The data files of a table, written with their entries for the log.

Here: files of single tables, and the old and new rows of a replacement that a change feed lists. Not here: the commit
that adds files (resources/delta/lake.py), finding files of a version (resources/delta/versions.py), joining and
deleting files (resources/delta/upkeep.py).

The change feed of a commit lists all rows of the files that it adds and removes. So rows to delete are moved into
files of their own first, by a commit that does not change rows, as OPTIMIZE does.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import SubTreeFileSystem

from tidemark.resources.delta.columns import with_columns_of
from tidemark.resources.delta.versions import (
    BOUNDED,
    Filters,
    Version,
    arrow_condition,
    files_of,
    sql_condition,
)
from tidemark.resources.places.place import (
    Place,
    RemotePath,
    copy_file,
    files_below,
    relative,
    remove_tree,
    spark_url,
)
from tidemark.timeops.columns import BATCH
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.values.utc import instant_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField


FOLDER_OF_WRITE = "attempt-"
"""Begins the name of the folder of one write."""

# The second algorithm moves each file once; a store does so by a copy. A task may die before all its files are moved;
# then another task moves its own over them, as the files here are named after the tasks.
COMMITTER = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}
Piece = Callable[[pa.Schema], Iterable[pa.RecordBatch]]
"""Rows as batches of the table's schema, which it receives."""


def piece_of(rows: pa.Table) -> Piece:
    """Return rows in memory as a piece, in one batch, with null in the columns that they lack."""
    return lambda schema: with_columns_of(schema, rows).combine_chunks().to_batches()


def reshaped_rows(version: Version, file: str, columns: Mapping[str, pc.Expression]) -> Piece:
    """Return the rows of a file with other columns, read piece by piece."""
    return lambda _schema: version.dataset_of([file]).scanner(columns=dict(columns)).to_batches()


def changed_rows(version: Version, file: str, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Piece:
    """Return the rows of a file with other values, read piece by piece."""

    def rows(_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with version.reading():
            yield from map(change, version.dataset_of([file]).to_batches())

    return rows


def rows_left(version: Version, file: str, where: Filters) -> Piece:
    """Return the rows of a file that do not match filters, read piece by piece."""
    return lambda _schema: version.rows_without(file, where)


def rows_meant(version: Version, file: str, where: Filters) -> Piece:
    """Return the rows of a file that match filters, read piece by piece."""

    def rows(_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with version.reading():
            yield from version.dataset_of([file]).to_batches(filter=arrow_condition(where))

    return rows


def rows_then(earlier: pa.Table, pieces: Sequence[Piece]) -> Piece:
    """Return rows in memory, and after them the rows of pieces, whose first batch is joined with them."""

    def rows(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        batches = (batch for piece in pieces for batch in piece(schema))
        first = pa.concat_tables([earlier, pa.Table.from_batches([*islice(batches, 1)], schema)])
        yield from first.combine_chunks().to_batches()
        yield from batches

    return rows


UNLIMITED = timedelta(days=3650)
"""The retention of a table as long as none of its files were deleted."""


def interval(retention: timedelta) -> str:
    """Return a retention as Spark and delta-rs read it in a table's properties, in hours, rounded up."""
    return f"interval {math.ceil(retention / timedelta(hours=1))} hours"


@dataclass(frozen=True)
class DataFiles:
    """The files of one write: their entries for the log, and the number of rows in all of them.

    They are in a folder of their own, below the table's. Files without rows are left out.
    """

    folder: Place
    added: Sequence[AddAction]
    rows: int

    @property
    def moved(self) -> list[AddAction]:
        """The entries of files whose rows were in other files before."""
        return [replace(action, data_change=False) for action in self.added]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each by its name."""
        return {action.path: action.size for action in self.added}

    def discard(self) -> None:
        """Delete the files: no version is going to hold them."""
        remove_tree(self.folder)


def write_files(df: "DataFrame", version: Version, attempt: int | None) -> DataFiles:
    """Let Spark write rows as Parquet files that no reader of the table sees before a commit names them.

    They are in a folder of their own, so that the files of this write are known whatever other writers do. Columns
    are found by name; missing columns are null.
    """
    with _new_folder(version, attempt) as folder:
        df.to(version.spark_schema).write.options(**COMMITTER).parquet(spark_url(folder))
        return _files_in(folder, version)


def write_pieces(
    pieces: Sequence[Piece], version: Version, attempt: int | None = None, *, schema: pa.Schema | None = None
) -> DataFiles:
    """Write rows of Arrow like `write_files`: a file for each piece, as many at a time as there are cores.

    By default they have the columns of the version.
    """
    columns = version.dataset.schema if schema is None else schema
    written_as = {
        "store_decimal_as_integer": True,
        "write_page_checksum": True,  # by it an audit finds a turned byte; Spark writes checksums, too
        # Arrow's own text of the types, a quarter of a small file: the log of the table has them, and so has Parquet.
        "store_schema": False,
        **_encodings(columns),
    }

    def write(files: SubTreeFileSystem, number: int, piece: Piece) -> None:
        with pq.ParquetWriter(f"part-{number:05}.parquet", columns, filesystem=files, **written_as) as writer:
            for batch in piece(columns):
                if batch.num_rows:  # a row group without rows has no bounds: no filter would find a row of its file
                    writer.write_batch(batch)

    with _new_folder(version, attempt) as folder:
        if not isinstance(folder, RemotePath):
            folder.mkdir()
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            for written in [pool.submit(write, files_of(folder), *numbered) for numbered in enumerate(pieces)]:
                written.result()
        return _files_in(folder, version)


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return how columns are written: instants and numbers of our own by their differences, others by a dictionary.

    Floats have no bounds.

    Nearly all of them differ, and each is close to the one before it: a log has a fifth of the bytes by this, is
    written with a third of the work, and read faster.
    """
    numbers = [field.name for field in schema if field.name.startswith("_") and pa.types.is_int64(field.type)]
    close = {*numbers, *[field.name for field in schema if pa.types.is_timestamp(field.type)]}
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema  # with the parts of nested ones
    paths = [columns.column(number).path for number in range(len(columns))]
    other_paths = [path for path in paths if path not in close]
    # Arrow and delta-rs leave NaN out of bounds, and Spark and delta-rs count it as the largest value: without a word
    # they pass over row groups that hold it for `v > 5`.
    floats = {
        path for number, path in enumerate(paths) if columns.column(number).physical_type in ("FLOAT", "DOUBLE")
    }
    return {
        "use_dictionary": other_paths,
        "column_encoding": dict.fromkeys(close, "DELTA_BINARY_PACKED"),
        "write_statistics": [path for path in paths if path not in floats],
    }


def take_files(files: Sequence[Place], version: Version, attempt: int) -> DataFiles:
    """Take over the files of another table like `write_files`: each gets a second name, or in a store a copy."""
    with _new_folder(version, attempt) as folder:
        if not isinstance(folder, RemotePath):
            folder.mkdir()
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            targets = [folder / f"{number:05}-{uuid4().hex[:12]}.parquet" for number in range(len(files))]
            list(pool.map(copy_file, files, targets))  # an error shows when a result is read
        return _files_in(folder, version)


@contextmanager
def _new_folder(version: Version, attempt: int | None) -> Iterator[Place]:
    """Make a folder for the files of one write; a write that fails leaves none of them."""
    folder = version.folder.absolute() / f"{FOLDER_OF_WRITE}{attempt or 0}-{uuid4().hex[:12]}"
    try:
        yield folder
    except BaseException:
        remove_tree(folder)
        raise


def removals(files: Mapping[str, int | None], *, changes: bool = True) -> list[RemoveAction]:
    """Return the log entries for files that a commit removes.

    `files` are their bytes by name: delta-rs reads no change feed without them. Without `changes` the rows of the
    table stay the same.
    """
    now_ms = int(time.time() * 1000)
    return [RemoveAction(path, changes, now_ms, size, partition_values={}) for path, size in files.items()]


def remove_left_over(table: Place, age: timedelta) -> None:
    """Remove folders of writes whose data files are all gone, or were never finished.

    A folder younger than `age` stays: it may belong to a write at work.
    """
    if isinstance(table, RemotePath):  # a store has no folders, only the files that Spark left in one
        left: dict[Place, list[tuple[Place, float]]] = {}
        for file, file_stat in files_below(table, f"{FOLDER_OF_WRITE}*/**"):
            left.setdefault(table / relative(file, table).partition("/")[0], []).append((file, file_stat.st_mtime))
        for folder, files in left.items():
            newest = max(at for _, at in files)
            if not any(file.suffix == ".parquet" for file, _ in files) and time.time() - newest > age.total_seconds():
                remove_tree(folder)
        return
    for folder in table.glob(f"{FOLDER_OF_WRITE}*"):
        if time.time() - folder.stat().st_mtime > age.total_seconds() and not list(folder.rglob("*.parquet")):
            remove_tree(folder)


def _files_in(folder: Place, version: Version) -> DataFiles:
    """Return the files in a folder, with bounds of the columns that the table's property names."""
    added, rows, files = [], 0, files_of(folder)
    for path, file_stat in sorted(files_below(folder, "*.parquet")):
        footer = pq.read_metadata(path.name, filesystem=files)
        if not footer.num_rows:
            path.unlink()
            continue
        rows += footer.num_rows
        name, modified_ms = f"{folder.name}/{path.name}", int(file_stat.st_mtime * 1000)
        added.append(
            AddAction(
                name,
                file_stat.st_size,
                {},
                modified_ms,
                data_change=True,
                stats=statistics(footer, columns_with_bounds(version)),
            )
        )
    return DataFiles(folder, added, rows)


def columns_with_bounds(version: Version) -> list[str]:
    """Return the columns of a table that have bounds in its log; none where its properties do not say."""
    columns = {field.name for field in version.schema.fields}
    return [name for name in version.properties.get(BOUNDED, "").split(",") if name in columns]


def statistics(footer: pq.FileMetaData, columns: Sequence[str]) -> str:
    """Return the statistics of a file's rows for the log, as the Delta protocol has it: "Per-file statistics".

    They have bounds of all these columns, or of none: the dataset of delta-rs finds no row of a file that lacks one.
    Numbers and instants have bounds; an instant outside the years 1 to 9999 has none that readers know.
    """
    place = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    schema: pa.Schema = footer.schema.to_arrow_schema()
    lowest, highest, nulls = {}, {}, {}
    for name in columns:
        parts = [footer.row_group(group).column(place[name]).statistics for group in range(footer.num_row_groups)]
        if any(part is None or not part.has_null_count for part in parts):
            return json.dumps({"numRecords": footer.num_rows})
        nulls[name] = sum(part.null_count for part in parts)
        if nulls[name] == footer.num_rows:
            continue
        bounds = _bounds([part for part in parts if part.num_values], schema.field(name).type)
        if bounds is None:
            return json.dumps({"numRecords": footer.num_rows})
        lowest[name], highest[name] = bounds
    all_bounds = {"minValues": lowest, "maxValues": highest, "nullCount": nulls} if columns else {}
    return json.dumps({"numRecords": footer.num_rows} | all_bounds)


def _bounds(parts: Sequence[pq.Statistics], kind: pa.DataType) -> tuple[int | str, int | str] | None:
    """Return the bounds of a column as JSON has them, None if that cannot express them."""
    if not all(part.has_min_max for part in parts):
        return None
    low, high = min(part.min_raw for part in parts), max(part.max_raw for part in parts)
    if pa.types.is_integer(kind):
        return low, high
    if not pa.types.is_timestamp(kind):
        return None
    try:
        return _instant_in_json(low), _instant_in_json(high)
    except OverflowError:
        return None


def _instant_in_json(us: int) -> str:
    return instant_of(us).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def footers_of_joined(version: Version) -> WriterProperties:
    """Return how delta-rs writes the files of a table that it joins: floats have no bounds in them, as in ours.

    Neither have parts of nested columns, which cannot be named here.
    """
    schema: pa.Schema = version.dataset.schema
    plain = [
        field.name for field in schema if not (pa.types.is_nested(field.type) or pa.types.is_floating(field.type))
    ]
    bounded = dict.fromkeys(plain, ColumnProperties(statistics_enabled="CHUNK"))
    return WriterProperties(
        default_column_properties=ColumnProperties(statistics_enabled="NONE"), column_properties=bounded
    )


_FILE, _IS_NEW, _NUMBER, _FATE = "__tm_file", "__tm_is_new", "__tm_number", "__tm_fate"
_GOES, _STAYS, _COMES, _KNOWN = "goes", "stays", "comes", "known"


@dataclass(frozen=True)
class RowChanges:
    """The differences between the matching rows of a table and the rows that are to replace them.

    Rows are compared by all columns but `_batch_id`: a row that comes again is not a change. `rows` are the old and
    the new ones, each with its fate.
    """

    session: "SparkSession"
    version: Version
    where: Filters
    attempt: int
    rows: "DataFrame"

    @classmethod
    def between(cls, version: Version, where: Filters, new: "DataFrame", attempt: int) -> "RowChanges":
        """Compare the rows of a table with new ones, by one Spark job."""
        from pyspark.sql import functions as F  # noqa: PLC0415 - see above
        from pyspark.sql.window import Window  # noqa: PLC0415

        session, files = new.sparkSession, version.files_with(where)
        held = version.frame_of(session, files)
        name = held.metadataColumn("_metadata")["file_name"] if files else F.lit(None).cast("string")
        old = held.withColumns({_FILE: name, _IS_NEW: F.lit(False)}).where(sql_condition(where))
        new_rows = new.to(held.schema).withColumns({_FILE: F.lit(None).cast("string"), _IS_NEW: F.lit(True)})
        same = [_comparable(field) for field in held.schema if field.name != BATCH]
        # Equal rows are matched one by one: where there are two and one comes, one goes.
        number = F.row_number().over(Window.partitionBy(*same, _IS_NEW).orderBy(F.lit(0)))
        in_both = F.count("*").over(Window.partitionBy(*same, _NUMBER)) == 2
        fate = (
            F.when(F.col(_IS_NEW), F.when(in_both, _KNOWN).otherwise(_COMES)).when(in_both, _STAYS).otherwise(_GOES)
        )
        marked = old.unionByName(new_rows).withColumn(_NUMBER, number).withColumn(_FATE, fate)
        # What comes, goes and stays, and in which files, are queries of their own.
        return cls(session, version, where, attempt, marked.drop(_NUMBER, _IS_NEW).localCheckpoint())

    @cached_property
    def files(self) -> Sequence[str]:
        """The files of the table that hold rows to delete, by their names in its log."""
        names = {row[0] for row in self._of(_GOES, _FILE).select(_FILE).distinct().collect()}
        paths = [path for path in self.version.sizes if _name(path) in names]
        assert names == set(map(_name, paths)), f"{names} are not files of {self.version.folder}"
        return paths

    def coming(self) -> DataFiles:
        """Write the rows to add."""
        return self._write(self._of(_COMES))

    def going(self) -> DataFiles:
        """Write the rows to delete."""
        return self._write(self._of(_GOES))

    def staying(self) -> DataFiles:
        """Write the other rows of the files that hold rows to delete."""
        from pyspark.sql import functions as F  # noqa: PLC0415

        rows_of_files = self.version.frame_of(self.session, self.files)
        unmatched = rows_of_files.where(f"NOT coalesce({sql_condition(self.where)}, false)")
        same = self._of(_STAYS, _FILE).where(F.col(_FILE).isin([_name(path) for path in self.files]))
        return self._write(unmatched.unionByName(same.drop(_FILE)))

    def _of(self, fate: str, *helper_columns: str) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: PLC0415

        return self.rows.where(F.col(_FATE) == fate).drop(*({_FATE, _FILE} - {*helper_columns}))

    def _write(self, rows: "DataFrame") -> DataFiles:
        files = write_files(rows, self.version, self.attempt)
        if not files.rows:
            files.discard()
        return files


def _name(path: str) -> str:
    """Return the name of a file, which is unique in the table: Spark and delta-rs put a UUID into it."""
    return path.rpartition("/")[2]


def _comparable(field: "StructField") -> "Column":
    """Return a column in a form that Spark can compare: maps as text."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    from tidemark.timeops.expressions.try_expression import as_json  # noqa: PLC0415

    name = quoted(field.name)
    return F.expr(as_json(name) if "map<" in field.dataType.simpleString() else name)
