"""Which rows of a table are meant: conditions as Arrow and as SQL take them, and the folder as Arrow sees it.

Here: translation. Not here: reading and writing (lake.py, scan.py).
"""

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from timeops.epoch import us_of

Filters = Sequence[tuple[str, str, Any]]
"""Conditions that all hold: column, operator (=, !=, <, <=, >, >=, in), value; `= None` asks for null."""


def arrow_condition(filters: Filters) -> pc.Expression:
    """Return the filters as Arrow's expression.

    Of a table's files, do not ask it for a BOOLEAN column: see `by_statistics`.
    """
    each = [
        pc.field(name).is_null() if value is None else pq.filters_to_expression([(name, symbol, value)])
        for name, symbol, value in filters
    ]
    return reduce(and_, each)


def by_statistics(filters: Filters) -> Filters:
    """Return the filters by which files can be left out unopened.

    Spark writes no statistics of BOOLEAN columns, and delta-rs takes a file without them for one that holds no value.
    """
    return [(name, symbol, value) for name, symbol, value in filters if not isinstance(value, bool)]


def sql_condition(filters: Filters) -> str:
    """Return the filters as Spark SQL; no filters mean all rows."""
    each = [
        f"`{name}` IS NULL" if value is None else f"`{name}` {symbol} {_literal(value)}"
        for name, symbol, value in filters
    ]
    return " AND ".join(each) or "true"


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"timestamp_micros({us_of(value)})"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_literal, value))})"
    return str(value)


def files_of(folder: Path) -> SubTreeFileSystem:
    """Arrow's own view of a table's folder.

    With delta-rs's, which is Python's, Arrow's threads may still be at it when the process ends, and abort it.
    """
    return SubTreeFileSystem(str(folder), LocalFileSystem())
