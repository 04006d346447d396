"""What windows need of earlier batches: events and results, groups that they have seen, windows that a flush closed.

Here: which table holds what, which of its rows a batch reads, and which it writes anew. Not here: which events a
window needs (timeops/engine.py), the tables of results (../windows.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.schemas import (
    loaded_events,
    loaded_groups,
    needed_of,
    payload_of,
    stored_events,
    stored_groups,
)
from tidemark.resources import tables
from tidemark.resources.lake.filters import Filters, sql_condition
from tidemark.resources.lake.lake import FEW_ROWS
from tidemark.resources.workspace import Position, Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.engine import EARLIER, sharing
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.gap_filling import changed_groups, once, seen_groups
from tidemark.timeops.windows.kinds import kind_of, needed_for_certain_from

if TYPE_CHECKING:
    from tidemark.assets.batch.batch import Batch


@dataclass(frozen=True)
class ByWindow(Mapping[str, DataFrame]):
    """Frames by window, each read when it is asked for; a window of which nothing is stored is not among them."""

    windows: tuple[WindowSpec, ...]
    load: Callable[[WindowSpec], DataFrame | None]

    def __getitem__(self, name: str) -> DataFrame:
        found = next((self.load(window) for window in self.windows if window.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (window.name for window in self.windows if self.load(window) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def needed_by(batch: "Batch", after: Position) -> Mapping[str, DataFrame]:
    """The events of earlier batches, or results, that have a part in what windows give or refuse in a batch.

    What closes, or comes too late, is told by events up to the watermark: with a later one a window stays open,
    whatever else it holds. So a batch does not cost what is held behind that place, nor what lies before every window
    that was open.

    Args:
        batch: The batch, which is being judged.
        after: The position behind it.
    """
    workspace = batch.workspace

    def load(window: WindowSpec) -> DataFrame:
        only = _up_to_watermark(batch, after, (window,))
        if only is not None and tables.needed_table(window) == tables.OPEN_EVENTS:
            only = [*only, *_from_open_windows(workspace, batch.before, window)]
        return _rows(workspace, tables.needed_table(window), only=only)

    return ByWindow(workspace.spec.windows, load)


def seen_by_windows(workspace: Workspace) -> Mapping[str, DataFrame]:
    """The groups that windows with `empty` had seen before the batch at work."""
    return ByWindow(
        tuple(window for window in workspace.spec.windows if window.empty),
        lambda window: once(loaded_groups(workspace.read_base(tables.seen_groups_table(window.name))), window),
    )


def drained_before(batch: "Batch") -> Mapping[str, DataFrame]:
    """The windows that flushes before a batch have closed and the watermark has not passed.

    No Spark is needed to see that there are none, which is nearly always.
    """
    workspace = batch.workspace
    if not batch.was_reopened:
        return {}

    def load(window: WindowSpec) -> DataFrame | None:
        table = tables.flushed_table(window.name)
        if not workspace.lake.row_count(table, workspace.base_of(table)):
            return None
        return loaded_groups(workspace.read_base(table))

    return ByWindow(workspace.spec.windows, load)


def write_window_state(batch: "Batch") -> None:
    """Writes what windows need behind a batch."""
    windows = batch.workspace.spec.windows
    for group in sharing(windows):
        _write_needed(batch, group)
    for window in windows:
        drained = batch.outcome.drained_after(window)
        if drained is not None:
            batch.replace(tables.flushed_table(window.name), stored_groups(drained), where=())
        if window.empty:
            _write_seen_groups(batch, window)


def _write_needed(batch: "Batch", windows: Sequence[WindowSpec]) -> None:
    """Writes the events that windows which share a table need: the batch's own, and earlier ones that it deletes."""
    table = tables.needed_table(windows[0])
    where, known = (_around_watermark if kind_of(windows[0]).needs_others else _behind_watermark)(
        batch, table, windows
    )
    rows = batch.outcome.needed_after(windows, None if known is None else known.withColumn(EARLIER, F.lit(True)))
    may_stay = _may_be_needed(batch, windows)
    if known is not None:  # earlier ones that the table keeps are not written again
        is_deleted = F.expr(sql_condition(where)) if where is not None else F.lit(False)
        may_stay = F.when(F.col(EARLIER).isNull(), may_stay).otherwise(is_deleted)
    rows = rows.where(may_stay)
    payload = payload_of(batch.workspace)
    stored = needed_of(stored_events(rows, payload), batch.workspace.spec, payload, windows[0])
    batch.replace(table, stored.repartitionByRange(c.TIMESTAMP), where=where)


def _may_be_needed(batch: "Batch", windows: Sequence[WindowSpec]) -> Column:
    """BOOLEAN, never null: false only of records of the batch that lie before every open window."""
    watermark_us = batch.after.watermark_us
    if watermark_us is None or batch.flushes:
        return F.lit(True)
    return batch.may_reach(min(kind_of(window).needed_from(watermark_us) for window in windows))


def _behind_watermark(
    batch: "Batch", table: str, windows: Sequence[WindowSpec]
) -> tuple[Filters | None, DataFrame | None]:
    """Which events are deleted as they lie before the first open window, and which of them others may still need.

    An event in a gap behind that place stays until the watermark has passed it, and is in no window. Another
    timeline, or after a flush another instant of a sliding window, may still need what is deleted.
    """
    if batch.flushes:
        return (), _rows(batch.workspace, table, only=())
    if batch.after.watermark_us is None or _may_stay(batch, table):
        return None, None
    first = min(kind_of(window).needed_from(batch.after.watermark_us) for window in windows)
    where: Filters = [(c.TIMESTAMP, "<", Instant(first))]
    return where, _rows(batch.workspace, table, only=where) if batch.workspace.keeps_timelines else None


def _around_watermark(
    batch: "Batch", table: str, windows: Sequence[WindowSpec]
) -> tuple[Filters | None, DataFrame | None]:
    """Which events of sessions and sliding windows may be needed no more, and those that tell it.

    Those that are still needed are written anew.
    """
    known = _rows(batch.workspace, table, only=_up_to_watermark(batch, batch.after, windows))
    if batch.flushes:
        return (), known
    if batch.after.watermark_us is None:
        return None, known
    first = max(needed_for_certain_from(batch.after.watermark_us, window) for window in windows)
    return [(c.TIMESTAMP, "<", Instant(first))], known


def _may_stay(batch: "Batch", table: str) -> bool:
    """Whether events that no window needs any more may stay until a later batch.

    They are in no window that closes, and to take rows out of a large table costs a Spark job that rewrites others.
    """
    if table != tables.OPEN_EVENTS or batch.base_is_due:
        return False
    return batch.workspace.lake.row_count(table, batch.workspace.base_of(table)) > FEW_ROWS


def _write_seen_groups(batch: "Batch", window: WindowSpec) -> None:
    """Adds the groups of a batch of which other windows are known now, or writes all of them when a base is due."""
    table, outcome = tables.seen_groups_table(window.name), batch.outcome
    if batch.base_is_due:
        batch.replace(table, stored_groups(outcome.seen_after(window)), where=())
        return
    fresh = seen_groups(outcome.segment_of(window).accepted, window)
    batch.append(table, stored_groups(changed_groups(outcome.before.seen_groups[window.name], fresh, window)))


def _rows(workspace: Workspace, table: str, *, only: Filters | None = None) -> DataFrame:
    return loaded_events(workspace.read_base(table, filters=only).drop(c.BATCH), payload_of(workspace))


def _from_open_windows(workspace: Workspace, before: Position, window: WindowSpec) -> Filters:
    """Leaves out the events that only stay because taking them out costs more, see `_may_stay`."""
    if workspace.keeps_timelines or before.watermark_us is None:
        return []
    return [(c.TIMESTAMP, ">=", Instant(kind_of(window).needed_from(before.watermark_us)))]


def _up_to_watermark(batch: "Batch", after: Position, windows: Sequence[WindowSpec]) -> Filters | None:
    """Which of the kept events have a part in what happens in a batch; None where it may be all of them.

    Early results go before the watermark, sessions that take back results look at all of them, and so does what a
    flush closes or has closed.
    """
    looks_at_all = any(window.early_every_us or window.may_take_back or window.input for window in windows)
    if looks_at_all or batch.flushes or batch.was_reopened:
        return None
    return [(c.TIMESTAMP, "<=", Instant(c.MIN_US if after.watermark_us is None else after.watermark_us))]
