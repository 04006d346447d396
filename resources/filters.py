"""Which rows of a table to read: conditions as Arrow takes them, and the folder as Arrow sees it.

Here: translation. Not here: reading (lake.py, scan.py).
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

Filters = Sequence[tuple[str, str, Any]]
"""Conditions that all hold: column, operator (=, !=, <, <=, >, >=, in), value; `= None` asks for null."""


def arrow_condition(filters: Filters) -> pc.Expression:
    """Return the filters as Arrow's expression."""
    each = [
        pc.field(name).is_null() if value is None else pq.filters_to_expression([(name, symbol, value)])
        for name, symbol, value in filters
    ]
    return reduce(and_, each)


def files_of(folder: Path) -> SubTreeFileSystem:
    """Arrow's own view of a table's folder.

    With delta-rs's, which is Python's, Arrow's threads may still be at it when the process ends, and abort it.
    """
    return SubTreeFileSystem(str(folder), LocalFileSystem())
