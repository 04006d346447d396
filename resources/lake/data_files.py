"""Data files that are written into a table's folder, and their entries for the log: size, rows, bounds.

Here: files that are not yet part of a version. Not here: the commit that adds them (lake.py), finding files of a
version (reading.py).
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import SubTreeFileSystem

from tidemark.resources.lake.filters import files_of
from tidemark.resources.lake.opened import Version
from tidemark.resources.places.place import (
    Place,
    RemotePath,
    copy_file,
    files_below,
    relative,
    remove_tree,
    spark_url,
)
from tidemark.timeops.utc import instant_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREFIX = "attempt-"
_TEXT = 32
"""Characters of a text that a bound keeps, as Delta's own writers do."""
# The second algorithm moves each file once; a store does so by a copy. A task may die before all its files are moved;
# then another task moves its own over them, as the files here are named after the tasks.
_COMMITTER = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}
Piece = Callable[[pa.Schema], Iterable[pa.RecordBatch]]
_LAST_CHARACTER = "\U0010ffff"
_EPOCH_DAY = date(1970, 1, 1)


@dataclass(frozen=True)
class DataFiles:
    """The files of one write.

    Attributes:
        folder: Their own folder, below the table's.
        added: Their entries for the log; files without rows are left out.
        rows: Number of rows in all of them.
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


def write_files(df: "DataFrame", version: Version, attempt: int) -> DataFiles:
    """Let Spark write rows as Parquet files that no reader of the table sees before a commit names them.

    They are in a folder of their own, so that the files of this write are known whatever other writers do.

    Args:
        df: The rows. Columns are found by name; missing columns are null.
        version: The table.
        attempt: The attempt that writes; the folder has its name.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - committing must not wait for PySpark

    schema = StructType.fromJson(json.loads(version.schema.to_json()))
    with _new_folder(version, attempt) as folder:
        df.to(schema).write.options(**_COMMITTER).parquet(spark_url(folder))
        return _files_in(folder, _columns_with_bounds(version))


def write_pieces(pieces: Sequence[Piece], version: Version, attempt: int) -> DataFiles:
    """Write rows of Arrow like `write_files`: a file for each piece, as many at a time as there are cores.

    Args:
        pieces: Each returns its rows as batches of the table's schema, which it receives.
        version: The table.
        attempt: The attempt that writes.
    """
    schema = version.dataset.schema

    def write(files: SubTreeFileSystem, number: int, piece: Piece) -> None:
        with pq.ParquetWriter(
            f"part-{number:05}.parquet", schema, filesystem=files, store_decimal_as_integer=True
        ) as writer:
            for batch in piece(schema):
                writer.write_batch(batch)

    with _new_folder(version, attempt) as folder:
        if not isinstance(folder, RemotePath):
            folder.mkdir()
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            for written in [pool.submit(write, files_of(folder), *one) for one in enumerate(pieces)]:
                written.result()
        return _files_in(folder, _columns_with_bounds(version))


def take_files(files: Sequence[Place], version: Version, attempt: int) -> DataFiles:
    """Take over the files of another table like `write_files`: each gets a second name, or in a store a copy."""
    with _new_folder(version, attempt) as folder:
        if not isinstance(folder, RemotePath):
            folder.mkdir()
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            targets = [folder / f"{number:05}-{uuid4().hex[:12]}.parquet" for number in range(len(files))]
            for copied in pool.map(copy_file, files, targets):
                assert copied is None  # an error shows when the result is read
        return _files_in(folder, _columns_with_bounds(version))


@contextmanager
def _new_folder(version: Version, attempt: int) -> Iterator[Place]:
    """Make a folder for the files of one write; a write that fails leaves none of them."""
    folder = version.folder.absolute() / f"{_PREFIX}{attempt}-{uuid4().hex[:12]}"
    try:
        yield folder
    except BaseException:
        remove_tree(folder)
        raise


def removals(files: Mapping[str, int | None], *, changes: bool = True) -> list[RemoveAction]:
    """Return the log entries for files that a commit removes.

    Args:
        files: Their bytes by their names; delta-rs reads no change feed without them.
        changes: Whether the removal changes rows of the table.
    """
    now_ms = int(time.time() * 1000)
    return [RemoveAction(path, changes, now_ms, size, partition_values={}) for path, size in files.items()]


def stored_bytes(table: Place) -> list[int]:
    """Return the sizes of all data files in a table's folder, of any version or of none."""
    patterns = ("*.parquet", f"{_PREFIX}*/*.parquet")
    return [seen.st_size for pattern in patterns for _, seen in files_below(table, pattern)]


def remove_left_over(table: Place, age: timedelta) -> None:
    """Remove folders of writes whose data files are all gone, or were never finished.

    Args:
        table: The table's folder.
        age: Minimum age of such a folder: a younger one may belong to a write at work.
    """
    if isinstance(table, RemotePath):  # a store has no folders, only the files that Spark left in one
        left: dict[Place, list[tuple[Place, float]]] = {}
        for file, seen in files_below(table, f"{_PREFIX}*/**"):
            left.setdefault(table / relative(file, table).partition("/")[0], []).append((file, seen.st_mtime))
        for folder, files in left.items():
            newest = max(at for _, at in files)
            if not any(file.suffix == ".parquet" for file, _ in files) and time.time() - newest > age.total_seconds():
                remove_tree(folder)
        return
    for folder in table.glob(f"{_PREFIX}*"):
        if time.time() - folder.stat().st_mtime > age.total_seconds() and not list(folder.rglob("*.parquet")):
            remove_tree(folder)


def _columns_with_bounds(version: Version) -> set[str] | None:
    """Return the columns whose bounds the table's properties ask for, None for all."""
    named = version.properties.get("delta.dataSkippingStatsColumns")
    return set(named.split(",")) if named else None


def _files_in(folder: Place, columns: set[str] | None) -> DataFiles:
    added, rows, files = [], 0, files_of(folder)
    for path, seen in sorted(files_below(folder, "*.parquet")):
        footer = pq.read_metadata(path.name, filesystem=files)
        if not footer.num_rows:
            path.unlink()
            continue
        rows += footer.num_rows
        name, modified_ms = f"{folder.name}/{path.name}", int(seen.st_mtime * 1000)
        added.append(
            AddAction(name, seen.st_size, {}, modified_ms, data_change=True, stats=statistics(footer, columns))
        )
    return DataFiles(folder, added, rows)


def statistics(footer: pq.FileMetaData, columns: set[str] | None = None) -> str:
    """Return the statistics of a file's rows for the log, as the Delta protocol has it: "Per-file statistics".

    Args:
        footer: The footer of the file.
        columns: The columns whose bounds are wanted; None for all. Nested columns, BOOLEAN and BINARY have no bounds.
    """
    schema: pa.Schema = footer.schema.to_arrow_schema()
    wanted = [name for name in schema.names if columns is None or name in columns]
    place = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    lowest, highest, nulls = {}, {}, {}
    for name in wanted:
        kind = schema.field(name).type
        if name not in place or pa.types.is_nested(kind):
            continue
        parts = [footer.row_group(group).column(place[name]).statistics for group in range(footer.num_row_groups)]
        if any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[name] = str(sum(part.null_count for part in parts))
        bounds = _bounds([part for part in parts if part.num_values], kind)
        if bounds is not None:
            lowest[name], highest[name] = bounds
    return (
        f'{{"numRecords":{footer.num_rows},"minValues":{_object(lowest)},"maxValues":{_object(highest)},'
        f'"nullCount":{_object(nulls)}}}'
    )


def _bounds(parts: Sequence[pq.Statistics], kind: pa.DataType) -> tuple[str, str] | None:
    """Return the bounds of a column as JSON, None if it has no value or a bound that JSON cannot express."""
    if not parts or not all(part.has_min_max for part in parts):
        return None
    if pa.types.is_string(kind) or pa.types.is_decimal(kind):
        low, high = min(part.min for part in parts), max(part.max for part in parts)
    else:  # as they are stored: Python has no instants after the year 9999
        low, high = min(part.min_raw for part in parts), max(part.max_raw for part in parts)
    if pa.types.is_string(kind):
        high = high if len(high) <= _TEXT else high[:_TEXT] + _LAST_CHARACTER
        return json.dumps(low[:_TEXT]), json.dumps(high)
    lowest, highest = _in_json(low, kind), _in_json(high, kind)
    return (lowest, highest) if lowest and highest else None


def _in_json(value: Any, kind: pa.DataType) -> str | None:
    """Return a bound as JSON; None for infinities, NaN, years after 9999 and other types."""
    try:
        if pa.types.is_integer(kind):
            return str(value)
        if pa.types.is_decimal(kind):
            return f"{value:f}"
        if pa.types.is_floating(kind):
            return repr(value) if math.isfinite(value) else None
        if pa.types.is_date(kind):
            return json.dumps((_EPOCH_DAY + timedelta(days=value)).isoformat())
        if pa.types.is_timestamp(kind):
            text = instant_of(value).replace(tzinfo=None).isoformat(timespec="microseconds")
            return json.dumps(text + ("Z" if kind.tz else ""))
    except OverflowError:
        pass
    return None


def _object(values: Mapping[str, str]) -> str:
    """Return a JSON object of values that are JSON already: Python's own writer knows no decimals."""
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in values.items())}}}"
