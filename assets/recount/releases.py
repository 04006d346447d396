"""The order of released events, checked by one pass over the rows that a batch wrote, without a Spark query.

Here: whether it is correct, for a pipeline with one timeline. Not here: which rows break it, and several timelines;
for these there is a query (../checks.py).
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.timeops import columns as c

RELEASE_COLUMNS = (c.RELEASE_SEQ, c.TIMESTAMP, c.SEQ)
_MOST_RUNS = 100_000  # whose ends are kept


def is_in_order(rows: Iterable[pa.RecordBatch], *, start: int, limit_us: int) -> bool:
    """Return whether the numbers of released events are dense and follow times, and all times are below a limit.

    Rows are cut into runs: inside a run each row follows the one before it. The runs may come in any order.

    Args:
        rows: RELEASE_COLUMNS of them, piece by piece; rows without a `_release_seq` do not count.
        start: The expected first number.
        limit_us: The limit, microseconds.

    Returns:
        True only if it holds. False also if the rows are too scattered for this pass.
    """
    ends: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    runs = 0
    for piece in rows:
        numbered = piece.filter(pc.is_valid(piece[c.RELEASE_SEQ]))
        if not numbered.num_rows:
            continue
        if any(numbered[name].null_count for name in RELEASE_COLUMNS):
            return False
        found = np.stack([numbered[name].cast(pa.int64()).to_numpy() for name in RELEASE_COLUMNS])
        if found[1].max() >= limit_us:
            return False
        begins = np.flatnonzero(np.concatenate([[True], ~_follows(found[:, :-1], found[:, 1:])]))
        ends.append(np.concatenate([found[:, begins], found[:, np.append(begins[1:], found.shape[1]) - 1]]))
        runs += len(begins)
        if runs > _MOST_RUNS:
            return False
    if not ends:
        return True
    together = np.concatenate(ends, axis=1)
    together = together[:, np.argsort(together[0])]
    firsts, lasts = together[:3], together[3:]
    return bool(firsts[0, 0] == start and _follows(lasts[:, :-1], firsts[:, 1:]).all())


def _follows(
    before: np.ndarray[tuple[int, ...], np.dtype[np.int64]], row: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return for each row whether it has the next number, and a later time or the same and a later arrival."""
    comes_later = (row[1] > before[1]) | ((row[1] == before[1]) & (row[2] > before[2]))
    found: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (row[0] == before[0] + 1) & comes_later
    return found
