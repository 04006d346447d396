"""Data files that are written into a table's folder, and what the log is to say of each: size, rows, bounds.

Here: files that no version has yet. Not here: the commit that adds them (lake.py), finding files of a version
(reading.py).
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
# The second algorithm moves each file once, which a store does by copying it. What a task has moved and then not
# finished, another moves over it: the files of this folder are named after the tasks.
_COMMITTER = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}
Piece = Callable[[pa.Schema], Iterable[pa.RecordBatch]]
_LAST_CHARACTER = "\U0010ffff"
_EPOCH_DAY = date(1970, 1, 1)


@dataclass(frozen=True)
class DataFiles:
    """Files of one write.

    Attributes:
        folder: The folder that they alone stand in, below the table's.
        added: What the log is to say of each; files without a row are left out.
        rows: Rows of all of them.
    """

    folder: Place
    added: Sequence[AddAction]
    rows: int

    @property
    def moved(self) -> list[AddAction]:
        """What the log is to say of them where their rows stood in other files before."""
        return [replace(action, data_change=False) for action in self.added]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each by its name."""
        return {action.path: action.size for action in self.added}

    def discard(self) -> None:
        """Delete them: no version is going to have them."""
        remove_tree(self.folder)


def write_files(df: "DataFrame", version: Version, attempt: int) -> DataFiles:
    """Let Spark write rows as Parquet files that no reader of the table sees before a commit names them.

    They stand in a folder of their own, so that it is known which files this write has made, whoever else writes.

    Args:
        df: The rows. Columns are found by name; those that it lacks are null.
        version: The table.
        attempt: The attempt that writes, which the folder is named after.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - committing must not wait for PySpark

    schema = StructType.fromJson(json.loads(version.schema.to_json()))
    with _new_folder(version, attempt) as folder:
        df.to(schema).write.options(**_COMMITTER).parquet(spark_url(folder))
        return _files_in(folder, _columns_with_bounds(version))


def write_pieces(pieces: Sequence[Piece], version: Version, attempt: int) -> DataFiles:
    """As `write_files`, of rows that Arrow has: a file for each piece, as many at a time as there are cores.

    Args:
        pieces: Each returns its rows as batches of the schema that it is given, the table's.
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
    """As `write_files`, of files that another table has: they get a second name, or in a store a copy."""
    with _new_folder(version, attempt) as folder:
        if not isinstance(folder, RemotePath):
            folder.mkdir()
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            targets = [folder / f"{number:05}-{uuid4().hex[:12]}.parquet" for number in range(len(files))]
            for copied in pool.map(copy_file, files, targets):
                assert copied is None  # an error shows when it is asked for
        return _files_in(folder, _columns_with_bounds(version))


@contextmanager
def _new_folder(version: Version, attempt: int) -> Iterator[Place]:
    """Give the files of one write a folder of their own; a write that fails leaves none of them."""
    folder = version.folder.absolute() / f"{_PREFIX}{attempt}-{uuid4().hex[:12]}"
    try:
        yield folder
    except BaseException:
        remove_tree(folder)
        raise


def removals(files: Mapping[str, int | None], *, changes: bool = True) -> list[RemoveAction]:
    """Return what the log is to say of files that a commit takes away.

    Args:
        files: Their bytes by their names; delta-rs reads no change feed without them.
        changes: Whether that changes rows of the table.
    """
    now_ms = int(time.time() * 1000)
    return [RemoveAction(path, changes, now_ms, size, partition_values={}) for path, size in files.items()]


def stored_bytes(table: Place) -> list[int]:
    """Return the sizes of all data files in a table's folder, of whatever version or of none."""
    patterns = ("*.parquet", f"{_PREFIX}*/*.parquet")
    return [seen.st_size for pattern in patterns for _, seen in files_below(table, pattern)]


def remove_left_over(table: Place, age: timedelta) -> None:
    """Remove folders of writes whose data files are all gone, or were never finished.

    Args:
        table: The table's folder.
        age: How old such a folder is at least: a younger one may be of a write at work.
    """
    if isinstance(table, RemotePath):  # in a store there are no folders, only files that Spark left in such a one
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
    """The columns whose bounds the table's properties ask for, None for all."""
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
    """Return what the log says of a file's rows, as the Delta protocol has it: "Per-file statistics".

    Args:
        footer: What the file says of itself.
        columns: The columns whose bounds are wanted; None for all. Of columns within columns there are none, and none
            of BOOLEAN and BINARY.
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
    """The bounds of a column as JSON, None where it has no value or one that JSON cannot tell."""
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
    """A bound as JSON; None of an infinite one, which NaN is as well, of years behind 9999, and of other types."""
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
    """A JSON object of values that are JSON already: Python's own writer knows no decimals."""
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in values.items())}}}"
