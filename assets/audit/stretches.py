"""Stretches of time in which an audit recomputes results, so that no more than a part of a table is looked at once.

Here: counting rows by the hour, and cutting time where there are enough; what `retention` has left. Not here: what is
compared in a stretch (assets/audit/windows.py, assets/audit/joins.py).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemark.assets.log.retention import gone_of
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.workspace import Workspace

MOST_COMPARED = 1_000_000
"""Events and results that are compared at once, unless one hour has more."""
EVENTS = (tables.ORDERED_EVENTS, tables.HELD_EVENTS)
"""The tables with all accepted events."""
_BUCKET_US = 3_600_000_000


def whole_from(workspace: Workspace, names: Sequence[str]) -> int | None:
    """Return the first instant from which some tables have all of their rows, microseconds; None if they have all."""
    removals = [of for table, of in gone_of(workspace).items() if table in names]
    return max((max(of.until_us, of.last_us) + 1 for of in removals), default=None)


def by_hour(workspace: Workspace, names: Sequence[str], column: str) -> Counter[int]:
    """Count the rows of tables by the hour of an instant, counted from the epoch."""
    hours = Counter[int]()
    for table in names:
        for piece in pieces(workspace.lake, table, workspace.base_of(table), [column]):
            numbers, counts = np.unique(piece[column].cast(pa.int64()).to_numpy() // _BUCKET_US, return_counts=True)
            hours.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    return hours


def stretches(hours: Counter[int], reach_us: int = 0) -> Iterator[tuple[int, int]]:
    """Return stretches of time, in order: the first instant and the end of each, microseconds.

    Args:
        hours: How many rows each hour has, see `by_hour`.
        reach_us: How long before a row a result may begin that holds it, microseconds.
    """
    begin, rows = None, 0
    for hour, n in sorted(hours.items()):
        if begin is not None and rows + n > MOST_COMPARED:
            yield begin, hour * _BUCKET_US
            begin, rows = hour * _BUCKET_US, 0
        begin, rows = (hour * _BUCKET_US - reach_us if begin is None else begin), rows + n
    if begin is not None:
        yield begin, (max(hours) + 1) * _BUCKET_US
