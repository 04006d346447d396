"""The windows that a batch wrote, read without a Spark query: which of them are to be computed once more.

Here: choosing them, and whether each window and group is there once. Not here: how they are computed again
(windows.py), which rows break a check (window_checks.py).
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.batch.batch import Batch
from tidemark.assets.log_control import last_flush
from tidemark.resources import tables
from tidemark.resources.batches.position import Position, records_in
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import pieces
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.aggregates import SUMS, calls_of
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant

_COMPARISONS = 2_000_000  # about as many as a second is enough for
_FEWEST, _MOST = 12, 1_000
_MOST_ROWS = 1_000_000  # whose keys are held together

_START, _END = "window_start", "window_end"
_LACKS = "lacks"  # BOOLEAN: a sum is null, because it does not fit or because there was nothing to add up

Span = tuple[int, int]
"""Start and end, microseconds."""


@dataclass(frozen=True)
class Look:
    """The results that a batch wrote of a window.

    Attributes:
        first_us: Start of the first of its windows, microseconds.
        spans: Some of the closed windows.
    """

    first_us: int
    spans: tuple[Span, ...] = ()


def most_windows(records: int) -> int:
    """Return how many windows of each definition are computed again: of a small batch all, otherwise a sample.

    Each is compared with every event of their time. They are chosen by a hash, windows without a sum first.
    """
    return max(_FEWEST, min(_MOST, _COMPARISONS // max(records, 1)))


def looks_at(batch: Batch) -> dict[str, Look]:
    """Return what a batch wrote of each window; nothing of a window without a new row."""
    looks = {window.name: _look_at(batch, window) for window in batch.workspace.spec.windows}
    return {name: look for name, look in looks.items() if look is not None}


def _look_at(batch: Batch, window: WindowSpec) -> Look | None:
    lake, table = batch.workspace.lake, tables.window_table(window.name)
    most = most_windows(records_in(batch.plan))
    behind_us = _flushed_up_to(batch.workspace, window) if batch.was_reopened and window.is_linked else None
    sums = [name for name, text in window.aggregates.items() if calls_of(text, SUMS)]
    chosen = pa.schema([(_START, pa.int64()), (_END, pa.int64()), (_LACKS, pa.bool_())]).empty_table()
    first_us: int | None = None
    columns, of_batch = [_START, _END, "_is_final", *sums], [(c.BATCH, "=", batch.plan.batch_id)]
    for piece in pieces(lake, table, lake.version(table), columns, of_batch):
        if not piece.num_rows:
            continue
        starts, ends = (piece[name].cast(pa.int64()) for name in (_START, _END))
        lowest = pc.min(starts).as_py()
        first_us = lowest if first_us is None else min(first_us, lowest)
        lacks = reduce(pc.or_, [piece[name].is_null() for name in sums], pa.repeat(pa.scalar(False), piece.num_rows))
        is_asked = pc.fill_null(piece["_is_final"], False)
        if behind_us is not None:
            is_asked = pc.and_(is_asked, pc.greater(starts, behind_us))
        found = pa.table({_START: starts, _END: ends, _LACKS: lacks}).filter(is_asked)
        chosen = _first_of(pa.concat_tables([chosen, found]), most)
    if first_us is None:
        return None
    return Look(first_us, tuple(zip(chosen[_START].to_pylist(), chosen[_END].to_pylist(), strict=True)))


def _first_of(windows: pa.Table, most: int) -> pa.Table:
    """Choose some of the windows, each once: first those without a sum, then by a hash of their bounds."""
    each = windows.group_by([_START, _END]).aggregate([(_LACKS, "max")]).rename_columns([_START, _END, _LACKS])
    starts, ends = each[_START].to_numpy(), each[_END].to_numpy()
    order = np.lexsort((ends, starts, _hashed(starts, ends), ~each[_LACKS].to_numpy()))
    return each.take(order[:most])


def _hashed(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number for each window that does not depend on the order of times, always the same: splitmix64."""
    mixed = starts.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + ends.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def _flushed_up_to(workspace: Workspace, window: WindowSpec) -> int | None:
    """Return the instant, microseconds, after which no session or sliding window meets one that a flush has closed.

    For windows before it, the tables of events do not show which events a flush keeps out.
    """
    batch = last_flush(workspace)
    position = Position() if batch is None else workspace.progress.position_after(batch)
    reached = [us for us in (position.max_t_us, position.watermark_us) if us is not None]
    return max(reached) + window.reach_us if reached else None


def stand_once(lake: Lake, window: WindowSpec, look: Look) -> bool:
    """Return whether every window and group is in a table once, from the first one on that a batch wrote.

    Returns:
        True only if it is so. False also if there are too many rows, or keys of types that it cannot compare.
    """
    table, keys = tables.window_table(window.name), list(window.key_columns)
    since = [(_START, ">=", Instant(look.first_us))]
    found: list[pa.RecordBatch] = []
    rows = 0
    for piece in pieces(lake, table, lake.version(table), keys, since):
        rows += piece.num_rows
        if rows > _MOST_ROWS or not all(_is_plain(field.type) for field in piece.schema):
            return False
        found.append(piece)
    if not rows:
        return True
    return bool(pa.Table.from_batches(found).group_by(keys).aggregate([]).num_rows == rows)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether equal bytes mean equal values of a type: not for floating point, nor for types that hold it."""
    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_string, pa.types.is_decimal)
    return any(is_one(kind) for is_one in kinds)
