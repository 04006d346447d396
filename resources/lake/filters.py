"""Conditions on the rows of a table, for Arrow and for SQL, and the folder as Arrow sees it.

Here: translation of conditions, and of values back. Not here: reading and writing (lake.py, reading.py).
"""

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tidemark.resources.places.credentials import arrow_files
from tidemark.resources.places.place import Place, RemotePath, path_in_store
from tidemark.timeops.utc import Instant, us_of

Filters = Sequence[tuple[str, str, Any]]
"""Conditions that all hold: column, operator (=, !=, <, <=, >, >=, in), value; `= None` asks for null. Instants are
aware datetimes, or of type Instant, which has all years."""


def arrow_condition(filters: Filters) -> pc.Expression:
    """Return the filters as Arrow's expression.

    Do not apply it to BOOLEAN columns of a table's files: see `by_statistics`.
    """
    each = [
        pc.field(name).is_null() if value is None else pq.filters_to_expression([(name, symbol, _in_arrow(value))])
        for name, symbol, value in filters
    ]
    return reduce(and_, each)


def by_statistics(filters: Filters) -> Filters:
    """Return the filters by which files can be left out unopened.

    Spark writes no statistics of BOOLEAN columns, and delta-rs treats a file without them as one that holds no value.
    """
    return [(name, symbol, value) for name, symbol, value in filters if not isinstance(value, bool)]


def sql_condition(filters: Filters) -> str:
    """Return the filters as Spark SQL; no filters mean all rows."""
    each = [
        f"`{name}` IS NULL" if value is None else f"`{name}` {symbol} {_literal(value)}"
        for name, symbol, value in filters
    ]
    return " AND ".join(each) or "true"


def _in_arrow(value: Any) -> Any:
    return pa.scalar(value.us, pa.timestamp("us", tz="UTC")) if isinstance(value, Instant) else value


def _literal(value: Any) -> str:
    if isinstance(value, Instant):
        return f"timestamp_micros({value.us}L)"
    if isinstance(value, datetime):
        return f"timestamp_micros({us_of(value)})"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_literal, value))})"
    return str(value)


def python_values(column: pa.ChunkedArray, *, maps: Literal["lossy"] | None = None) -> list[Any]:
    """Return the values of a column of Arrow as Python's; instants have the type Instant, which has all years.

    Args:
        column: The column.
        maps: Maps become dicts, where the last of several entries with one key wins; by default lists of pairs.
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
