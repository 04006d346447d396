"""The state of windows between batches: events and results, groups seen, windows that a flush closed.

Here: which table holds what, which of its rows a batch reads, and which it rewrites. Not here: which events a
window needs (timeops/engine.py), the tables of results (assets/windows.py).

A batch adds rows and takes rows back; it does not rewrite what stays:
- Of windows on a grid, files go when no event in them is needed any longer. Events that share a file with others stay
  until a base is due: they are in no window that closes, and are not read.
- Of sessions and sliding windows, a row whose `_arrival_seq` is -1 - *n* takes back the row *n* of earlier batches.
  It has the `_timestamp` of that row, so that a filter finds both or none. When less than half of the rows count, or
  the files are many, the table is rewritten.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch
from tidemark.assets.schemas import (
    loaded_events,
    loaded_groups,
    needed_columns,
    payload_of,
    stored_events,
    stored_groups,
)
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.lake import MOST_FILES
from tidemark.resources.delta.ordering import ByRank, Rows, in_order, rows_in_memory, set_aside
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import ALL_ROWS, NO_ROWS, Filters, sql_condition
from tidemark.resources.spark.amount import Amount
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.engine import EARLIER, sharing
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import JoinSpec, WindowSpec
from tidemark.timeops.values.utc import Instant
from tidemark.timeops.windows.gap_filling import changed_groups, once, seen_groups
from tidemark.timeops.windows.kinds import kind_of, needed_for_certain_from

_FEW_CHANGES = 1_000  # how many rows that do not count a table may always have


Named = TypeVar("Named", WindowSpec, JoinSpec)


@dataclass(frozen=True)
class ByName(Mapping[str, DataFrame], Generic[Named]):
    """Frames by window, or by join, each read when it is asked for; one without stored rows is not among them."""

    specs: tuple[Named, ...]
    load: Callable[[Named], DataFrame | None]

    def __getitem__(self, name: str) -> DataFrame:
        frame = next((self.load(spec) for spec in self.specs if spec.name == name), None)
        if frame is None:
            raise KeyError(name)
        return frame

    def __iter__(self) -> Iterator[str]:
        return (spec.name for spec in self.specs if self.load(spec) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def needed_by(batch: Batch, position: Position) -> Mapping[str, DataFrame]:
    """Return the events, or results, of earlier batches that take part in what windows return or refuse in a batch.

    Whether a window closes, or an event is too late, depends on events up to the watermark: with a later event a
    window stays open, whatever else it holds. So the cost of a batch does not depend on events after that
    place, nor on events before every open window.
    """
    workspace = batch.workspace

    def load(window: WindowSpec) -> DataFrame:
        only = _up_to_watermark(batch, position, (window,))
        if only is not None and tables.is_one_of(tables.needed_table(window), tables.OPEN_EVENTS):
            only = [*only, *_from_open_windows(workspace, batch.before, window)]
        return needed_rows(workspace, tables.needed_table(window), only=only)

    return ByName(workspace.spec.windows, load)


def seen_by_windows(workspace: Workspace) -> Mapping[str, DataFrame]:
    """Return the groups that windows with `empty` had seen before the batch at work."""
    return ByName(
        tuple(window for window in workspace.spec.windows if window.empty),
        lambda window: once(loaded_groups(workspace.read_base(tables.seen_groups_table(window.name))), window),
    )


def flushed_before(batch: Batch) -> Mapping[str, DataFrame]:
    """Return the windows that flushes before a batch have closed and the watermark has not passed.

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

    return ByName(workspace.spec.windows, load)


def write_window_state(batch: Batch) -> None:
    """Write what windows need after a batch."""
    windows = batch.workspace.spec.windows
    for group in sharing(windows):
        _write_needed(batch, group)
    for window in windows:
        flushed_windows = batch.outcome.flushed_after(window)
        if flushed_windows is not None:
            batch.replace(tables.flushed_table(window.name), stored_groups(flushed_windows), where=ALL_ROWS)
        if window.empty:
            _write_seen_groups(batch, window)


def _write_needed(batch: Batch, windows: Sequence[WindowSpec]) -> None:
    """Write the events that windows with a shared table need: the batch's own, and earlier ones that it deletes.

    Spark says which they are. Their times are sorted here, and Arrow writes them by time.
    """
    workspace, table, payload = batch.workspace, tables.needed_table(windows[0]), payload_of(batch.workspace)
    where, earlier = _stored_events(batch, table, windows)
    rows = batch.outcome.needed_after(windows, None if earlier is None else earlier.withColumn(EARLIER, F.lit(True)))
    may_stay = _may_be_needed(batch, windows)
    if earlier is not None:  # earlier ones that the table keeps are not written again
        is_deleted = F.expr(sql_condition(where)) if where is not None else F.lit(False)
        may_stay = F.when(F.col(EARLIER).isNull(), may_stay).otherwise(is_deleted)
    needed = stored_events(rows.where(may_stay), payload)
    columns = [*map(quoted, needed_columns(needed.columns, workspace.spec, payload, windows[0]))]
    stays = None
    if where and earlier is None and tables.is_one_of(table, tables.OPEN_EVENTS) and not batch.base_is_due:
        stays = [(name, ">=", value) for name, _, value in where]
    if has_marks(table) and where != ALL_ROWS:
        if not _is_full(workspace, table):
            _write_changes(batch, table, where, needed.selectExpr(*columns, EARLIER))
            return
        stored = live_events(workspace, table).drop(c.BATCH)
        stored = stored.where(f"NOT ({sql_condition(where)})") if where else stored
        needed, where = needed.selectExpr(*columns).unionByName(stored), ALL_ROWS
    write_by_time(batch, table, needed.selectExpr(*columns), where=where, stays=stays)


def write_by_time(
    batch: Batch, table: str, needed: DataFrame, *, where: Filters | None, stays: Filters | None = None
) -> None:
    """Write events in the order of their times, in the place of rows that match `where`."""
    with set_aside(needed, batch.workspace.folder, batch.amount) as aside:
        rows_by_time = _by_time(batch, aside.parts, [aside.narrow([c.TIMESTAMP])])
        batch.replace_pieces(table, rows_by_time, where=where, stays=stays)


def _stored_events(
    batch: Batch, table: str, windows: Sequence[WindowSpec]
) -> tuple[Filters | None, DataFrame | None]:
    """Return which stored events are deleted or may be obsolete, and the earlier events that may still be needed.

    The ones to delete that are still needed are written again.
    """
    if batch.let_in is not None and windows[0].input is None:  # the first batch, which begins with them
        return ALL_ROWS, batch.outcome.earlier_events_of(windows[0])
    look = _around_watermark if kind_of(windows[0]).needs_others else _before_open_windows
    return look(batch, table, windows)


def _by_time(
    batch: Batch, parts: Sequence[Rows], keys: Sequence[pa.Table], is_wanted: NDArray[np.bool_] | None = None
) -> list[Piece]:
    """Return rows in the order of their times, which `keys` have, by default all; with the number of the batch."""
    us = np.concatenate([rows[c.TIMESTAMP].cast(pa.int64()).to_numpy() for rows in keys])
    places = np.arange(len(us)) if is_wanted is None else np.flatnonzero(is_wanted)
    batch_id = pa.scalar(batch.plan.batch_id, pa.int64())
    number: ByRank = {c.BATCH: lambda ranks: pa.repeat(batch_id, ranks.stop - ranks.start)}
    return in_order(parts, places[np.argsort(us[places], kind="stable")], number)


def has_marks(table: str) -> bool:
    """Return whether a table stores the windows that need an event, and may have rows that take back others."""
    return tables.is_one_of(table, tables.SESSION_EVENTS, tables.REVISED_SESSION_EVENTS)


def _is_full(workspace: Workspace, table: str) -> bool:
    """Return whether a table is rewritten: less than half of its rows count, or the files are many."""
    lake, version = workspace.lake, workspace.base_of(table)
    taken_back = sum(len(rows) for rows in pieces(lake, table, version, [c.SEQ], [(c.SEQ, "<", 0)]))
    return 4 * taken_back > lake.row_count(table, version) + _FEW_CHANGES or lake.file_count(table) >= MOST_FILES


def _write_changes(batch: Batch, table: str, where: Filters | None, needed: DataFrame) -> None:
    """Add the events of the batch that sessions and sliding windows need, and take back what is obsolete.

    Args:
        batch: The batch.
        table: The table.
        where: Which stored events may be obsolete, or NO_ROWS.
        needed: The events of the batch, and the ones of these that are still needed, with EARLIER.
    """
    workspace, mark = batch.workspace, tables.open_in_column(payload_of(batch.workspace).names)
    with set_aside(needed, workspace.folder, batch.amount) as aside:
        keys, columns = aside.narrow([c.SEQ, c.TIMESTAMP, mark, EARLIER]), [c.SEQ, c.TIMESTAMP, mark, c.BATCH]
        stored = workspace.lake.rows(table, workspace.base_of(table), columns=columns, filters=where)
        obsolete_rows = _differing_rows(live_rows(stored) if where is not None else stored.slice(0, 0), keys, mark)
        taken_back = _taken_back(obsolete_rows)
        is_rewritten = pc.is_in(keys[c.SEQ], value_set=obsolete_rows[c.SEQ].combine_chunks())
        rows_to_write = [
            pc.or_(pc.is_null(keys[EARLIER]), is_rewritten).to_numpy(),
            np.ones(len(obsolete_rows), bool),
        ]
        parts = [*aside.parts, rows_in_memory(taken_back)]
        changes = _by_time(batch, parts, [keys, taken_back], np.concatenate(rows_to_write))
        batch.replace_pieces(table, changes, where=NO_ROWS)


def _differing_rows(before: pa.Table, after: pa.Table, mark: str) -> pa.Table:
    """Return the rows that are obsolete, or needed by other windows than before."""
    texts = pa.list_(pa.string())
    names_before, names_after = (pc.binary_join(rows[mark].cast(texts), "\n") for rows in (before, after))
    places = pc.index_in(before[c.SEQ], value_set=after[c.SEQ].combine_chunks())
    is_same = pc.equal(names_before, names_after.take(places))
    return before.filter(pc.invert(pc.fill_null(is_same, False)))


def _taken_back(rows: pa.Table) -> pa.Table:
    """Return the rows that take back the given ones: all columns but number and time are null."""
    return pa.table({c.SEQ: pc.subtract(pa.scalar(-1, pa.int64()), rows[c.SEQ]), c.TIMESTAMP: rows[c.TIMESTAMP]})


def live_rows(rows: pa.Table) -> pa.Table:
    """Return the rows of a table of sessions that no later batch has taken back."""
    numbers = rows[c.SEQ]
    takes_back = pc.less(numbers, 0)
    if not pc.any(takes_back).as_py():
        return rows
    back = rows.select([c.SEQ, c.BATCH]).filter(takes_back)
    newest = pa.table({c.SEQ: pc.subtract(pa.scalar(-1, pa.int64()), back[c.SEQ]), "by": back[c.BATCH]})
    newest = newest.group_by(c.SEQ).aggregate([("by", "max")])
    places = pc.index_in(numbers, newest[c.SEQ].combine_chunks())
    by = pc.take(newest["by_max"].combine_chunks(), places.combine_chunks())
    stays = pc.fill_null(pc.greater_equal(rows[c.BATCH], by), True)
    return rows.filter(pc.and_(pc.invert(takes_back), stays))


def live_events(workspace: Workspace, table: str, only: Filters | None = None) -> DataFrame:
    """Return the live rows that match as of the last commit, by Spark if they are many."""
    lake, version = workspace.lake, workspace.base_of(table)
    if Amount(lake.row_count(table, version)).are_few:
        return lake.frame(table, live_rows(lake.rows(table, version, filters=only)))
    rows = workspace.read_base(table, filters=only)
    files = lake.opened.version_at(table, version).lowest_by_file(c.SEQ)
    if sum(n for _, n in files) == lake.row_count(table, version) and all(seq >= 0 for seq, _ in files):
        return rows
    back = rows.where(F.col(c.SEQ) < 0).groupBy((-1 - F.col(c.SEQ)).alias("of")).agg(F.max(c.BATCH).alias("by"))
    is_taken = (F.col(c.SEQ) == F.col("of")) & (F.col(c.BATCH) < F.col("by"))
    return rows.where(F.col(c.SEQ) >= 0).join(back, is_taken, "left_anti")


def _may_be_needed(batch: Batch, windows: Sequence[WindowSpec]) -> Column:
    """Return a BOOLEAN, never null: false only for records of the batch that are before every open window."""
    watermark_us = batch.after.watermark_us
    if watermark_us is None or batch.flushes or windows[0].input is not None:  # results are not records
        return F.lit(True)
    return batch.may_reach(min(kind_of(window).needed_from(watermark_us) for window in windows))


def _before_open_windows(
    batch: Batch, table: str, windows: Sequence[WindowSpec]
) -> tuple[Filters | None, DataFrame | None]:
    """Return which events are deleted because they are before the first open window; which of them may be needed.

    An event in a gap after that place stays until the watermark has passed it, and is in no window. Another
    timeline, or after a flush another instant of a sliding window, may still need a deleted event.
    """
    if batch.flushes:
        return (), needed_rows(batch.workspace, table, only=())
    several = batch.workspace.spec.keeps_timelines  # then some of the events in a deleted file may be needed
    is_open_events = tables.is_one_of(table, tables.OPEN_EVENTS)
    if batch.after.watermark_us is None or (several and is_open_events and not batch.base_is_due):
        return None, None
    first = min(kind_of(window).needed_from(batch.after.watermark_us) for window in windows)
    where: Filters = [(c.TIMESTAMP, "<", Instant(first))]
    return where, needed_rows(batch.workspace, table, only=where) if several else None


def _around_watermark(
    batch: Batch, table: str, windows: Sequence[WindowSpec]
) -> tuple[Filters | None, DataFrame | None]:
    """Return which events of sessions and sliding windows may be obsolete, and the events that decide it."""
    events = needed_rows(batch.workspace, table, only=_up_to_watermark(batch, batch.after, windows))
    if batch.flushes:
        return (), events
    if batch.after.watermark_us is None:
        return None, events
    first = max(needed_for_certain_from(batch.after.watermark_us, window) for window in windows)
    return [(c.TIMESTAMP, "<", Instant(first))], events


def _write_seen_groups(batch: Batch, window: WindowSpec) -> None:
    """Add the groups of a batch whose windows have changed, or write all groups if a base is due."""
    table, outcome = tables.seen_groups_table(window.name), batch.outcome
    if batch.base_is_due or batch.let_in is not None:
        batch.replace(table, stored_groups(outcome.seen_after(window)), where=ALL_ROWS)
        return
    fresh = seen_groups(outcome.segment_of(window).accepted, window)
    batch.append(table, stored_groups(changed_groups(outcome.before.seen_groups[window.name], fresh, window)))


def needed_rows(workspace: Workspace, table: str, *, only: Filters | None = None) -> DataFrame:
    """Return the events, or results, of a table of needed ones, as the engine knows them."""
    rows = live_events(workspace, table, only) if has_marks(table) else workspace.read_base(table, filters=only)
    return loaded_events(_of_names_now(workspace, rows.drop(c.BATCH)), payload_of(workspace))


def _of_names_now(workspace: Workspace, rows: DataFrame) -> DataFrame:
    """Return stored events with the names that sources have now."""
    names = workspace.source_names if c.SOURCE in rows.columns else {}
    return rows.withColumn(c.SOURCE, c.named(c.SOURCE, names)) if names else rows


def _from_open_windows(workspace: Workspace, position: Position, window: WindowSpec) -> Filters:
    """Leave out the events that stay only because it costs more to take them out."""
    if workspace.spec.keeps_timelines or position.watermark_us is None:
        return []
    return [(c.TIMESTAMP, ">=", Instant(kind_of(window).needed_from(position.watermark_us)))]


def _up_to_watermark(batch: Batch, position: Position, windows: Sequence[WindowSpec]) -> Filters | None:
    """Return which of the kept events take part in a batch; None if it may be all of them.

    Early results go before the watermark. Sessions that take back results look at all events, and so do windows that
    a flush closes or has closed.
    """
    looks_at_all = any(window.early_every_us or window.may_take_back or window.input for window in windows)
    if looks_at_all or batch.flushes or batch.was_reopened:
        return None
    return [(c.TIMESTAMP, "<=", Instant(c.MIN_US if position.watermark_us is None else position.watermark_us))]
