"""Data files that Spark writes into a table's folder, and what the log is to say of each: size, rows, bounds.

Here: files that no version has yet. Not here: the commit that adds them (lake.py), finding files of a version
(reading.py).
"""

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from tidemark.timeops.utc import instant_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREFIX = "attempt-"
_TEXT = 32
"""Characters of a text that a bound keeps, as Delta's own writers do."""
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

    folder: Path
    added: Sequence[AddAction]
    rows: int

    def discard(self) -> None:
        """Delete them: no version is going to have them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_files(df: "DataFrame", delta: DeltaTable, table: Path, attempt: int) -> DataFiles:
    """Let Spark write rows as Parquet files that no reader of the table sees before a commit names them.

    They stand in a folder of their own, so that it is known which files this write has made, whoever else writes.

    Args:
        df: The rows. Columns are found by name; those that it lacks are null.
        delta: The table.
        table: Its folder.
        attempt: The attempt that writes, which the folder is named after.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - committing must not wait for PySpark

    folder = table.absolute() / f"{_PREFIX}{attempt}-{uuid4().hex[:12]}"
    schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    try:
        df.to(schema).write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(
            f"file://{folder}"
        )
        return _files_in(folder, table.absolute(), _columns_with_bounds(delta))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def removals(paths: Sequence[str]) -> list[RemoveAction]:
    """Return what the log is to say of files whose rows a commit takes away or writes anew."""
    now_ms = int(time.time() * 1000)
    return [RemoveAction(path, data_change=True, deletion_timestamp=now_ms) for path in paths]


def stored_files(table: Path) -> list[Path]:
    """Return all data files in a table's folder, of whatever version or of none."""
    return [*table.glob("*.parquet"), *table.glob(f"{_PREFIX}*/*.parquet")]


def remove_left_over(table: Path, age: timedelta) -> None:
    """Remove folders of writes whose data files are all gone, or were never finished.

    Args:
        table: The table's folder.
        age: How old such a folder is at least: a younger one may be of a write at work.
    """
    for folder in table.glob(f"{_PREFIX}*"):
        if time.time() - folder.stat().st_mtime > age.total_seconds() and not list(folder.rglob("*.parquet")):
            shutil.rmtree(folder, ignore_errors=True)


def _columns_with_bounds(delta: DeltaTable) -> set[str] | None:
    """The columns whose bounds the table's properties ask for, None for all."""
    named = delta.metadata().configuration.get("delta.dataSkippingStatsColumns")
    return set(named.split(",")) if named else None


def _files_in(folder: Path, table: Path, columns: set[str] | None) -> DataFiles:
    added, rows = [], 0
    for path in sorted(folder.glob("*.parquet")):
        footer = pq.read_metadata(path)
        if not footer.num_rows:
            path.unlink()
            continue
        rows += footer.num_rows
        status = path.stat()
        name, modified_ms = path.relative_to(table).as_posix(), int(status.st_mtime * 1000)
        added.append(
            AddAction(name, status.st_size, {}, modified_ms, data_change=True, stats=statistics(footer, columns))
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
