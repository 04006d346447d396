"""The recount of a batch's records: refused ones by reason, and the order of released events.

Here: what the recount is asked, and the order of one timeline, which one pass over the written rows checks without a
Spark query. Not here: the recount's queries, which share no code with the rules (resources/recount/);
the order of several timelines (../checks.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch
from tidemark.assets.log_control import waits_of
from tidemark.assets.state.dedup import known_first_times
from tidemark.assets.state.timelines import first_clock_asked_for
from tidemark.resources import tables
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.quality.checks import Measured
from tidemark.resources.recount.ends import EndsOfWindow, LocalWindows
from tidemark.resources.recount.recount import recount
from tidemark.resources.recount.rules import RecountRules, SourceRules
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.materialize import computed
from tidemark.timeops.reasons import Reason
from tidemark.timeops.rules import SourceTime, Waits
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window_shape import LocalGrid

_JUDGED = (Reason.DUPLICATE, Reason.EARLY, Reason.LATE_ARRIVAL, Reason.OUT_OF_ORDER)  # the recount knows each


def recount_of_batch(batch: Batch) -> Mapping[str, int]:
    """Recount a batch's range of the log, see `recount.recount`."""
    workspace, items, duplicates, first_times = batch.workspace, batch.items, None, None
    rules = rules_at(workspace, items, workspace.progress.position(), waits_of(workspace, batch.plan))
    if rules.deduplicate_by:
        duplicates = batch.written(tables.DEAD_LETTERS).where(F.col("reason") == Reason.DUPLICATE).select(c.SEQ)
        first_times = known_first_times(workspace, batch.spans)
    return recount(
        items,
        range(batch.plan.first_seq, plan_end(batch.plan)),
        rules,
        batch.timelines,
        compute=computed,
        told=duplicates,
        first_times=first_times,
    )


def recounted(written: Mapping[str, int], fresh: Mapping[str, int]) -> list[Measured]:
    """Compare a recount with what was written.

    Args:
        written: Dead letters of the stages ingest and time, by reason.
        fresh: The numbers of `recount_of_batch`.
    """
    untimed = sum(n for reason, n in written.items() if reason not in _JUDGED)
    each = [(reason.value, fresh[reason], written.get(reason, 0)) for reason in _JUDGED]
    measured = [
        Measured(what, wanted, n, f"{n:,} dead letters {what}; expected {wanted:,}, by the recount")
        for what, wanted, n in (*each, ("without a time", fresh["untimed"], untimed))
    ]
    what = "mistaken for duplicates, or not known as such"
    sentence = f"{fresh['mistaken']:,} records {what}; expected none"
    return [*measured, Measured(what, 0, fresh["mistaken"], sentence)]


def rules_at(workspace: Workspace, items: DataFrame, before: Position, waits: Waits) -> RecountRules:
    """Return the rules of a spec that the recount needs, and its expressions, guarded over some records.

    Args:
        workspace: The pipeline.
        items: The records.
        before: Where the pipeline was before them.
        waits: The waits of sources while they are judged.
    """
    spec, rules = workspace.spec, workspace.rules
    time, columns = spec.time, Columns.of(items)
    idle = time.idle.advance if time.idle else None
    return RecountRules(
        sources=tuple(_source_rules(source, waits, columns) for source in rules.sources),
        uses_splits=rules.uses_splits,
        over=tuple(columns.read(text).sql for text in time.over),
        deduplicate_by=tuple(columns.read(text).sql for text in time.deduplicate_by),
        within_us=time.within_us,
        emit_every_us=time.emit_every_us,
        unit_us=time.unit_us,
        out_of_order=time.out_of_order,
        early_us=time.early.tolerance_us if time.early else None,
        early_policy=time.early.policy if time.early else None,
        late_us=time.late.tolerance_us if time.late else None,
        late_policy=time.late.policy if time.late else None,
        clock_tolerance_us=time.clock_tolerance_us,
        idle=None if idle == "arrival_clock" else idle,
        idle_timeout_us=time.idle_timeout_us,
        windows=tuple(ends_of(window, time.unit_us, columns) for window in rules.windows_to_close),
        first_clock_us=first_clock_asked_for(workspace),
        start_clock_us=before.clock_us,
        start_ended_us=before.clock_before_period_us,
        waits_since_us=waits.any_since_us,
        waited_us=waits.any_waited_us,
    )


def _source_rules(source: SourceTime, waits: Waits, columns: Columns) -> SourceRules:
    by = None if source.timestamp_by is None else columns.read(source.timestamp_by, source.time_zone).sql
    since_us = dict.fromkeys(waits.sources, waits.since_us)
    alone = {
        waiter
        for waiter in (*waits.sources, *waits.waited_us)
        if isinstance(waiter, tuple) and waiter[0] == source.name
    }
    return SourceRules(
        **{**asdict(source), "timestamp_by": by},
        waited_us=waits.waited_us.get(source.name, 0),
        waits_since_us=since_us.get(source.name),
        waits_of_splits={waiter[1]: (waits.waited_us.get(waiter, 0), since_us.get(waiter)) for waiter in alone},
    )


def ends_of(window: WindowSpec, unit_us: int, columns: Columns | None = None) -> EndsOfWindow:
    """Return when a window closes, in the numbers of the recount; `columns` are the ones of the records."""
    lateness_us, inside_us = window.allowed_lateness_us, window.ends_inside_us
    delay_us = unit_us * inside_us
    if not window.closes_on_grid:
        gap = window.gap_by if window.has_gap_of_records else None
        own_gap = None if gap is None or columns is None else columns.read(gap).sql
        return EndsOfWindow(lateness_us, delay_us=delay_us, after_event_us=window.reach_us, own_gap=own_gap)
    if window.local_grid is not None:
        return EndsOfWindow(lateness_us, inside_us, delay_us, local=_local_windows(window, window.local_grid))
    grid = (window.offset_us, window.size_us, window.start_step_us, window.end_step_us)
    return EndsOfWindow(lateness_us, inside_us, delay_us, grid=grid)


def _local_windows(window: WindowSpec, grid: LocalGrid) -> LocalWindows:
    if window.kind == "tumbling":
        return LocalWindows(grid.zone, grid.step_us, grid.anchor_us, (), grid.splits, grid.months)
    first_us = window.end_step_us if window.kind == "cumulative" else window.size_us
    lengths_us = tuple(range(first_us, window.size_us + 1, window.end_step_us))
    return LocalWindows(grid.zone, grid.step_us, grid.anchor_us, lengths_us, grid.splits)


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
    ends: list[NDArray[np.int64]] = []
    runs = 0
    for piece in rows:
        numbered = piece.filter(pc.is_valid(piece[c.RELEASE_SEQ]))
        if not numbered.num_rows:
            continue
        if any(numbered[name].null_count for name in RELEASE_COLUMNS):
            return False
        columns = np.stack([numbered[name].cast(pa.int64()).to_numpy() for name in RELEASE_COLUMNS])
        if columns[1].max() >= limit_us:
            return False
        begins = np.flatnonzero(np.concatenate([[True], ~_follows(columns[:, :-1], columns[:, 1:])]))
        ends.append(np.concatenate([columns[:, begins], columns[:, np.append(begins[1:], columns.shape[1]) - 1]]))
        runs += len(begins)
        if runs > _MOST_RUNS:
            return False
    if not ends:
        return True
    together = np.concatenate(ends, axis=1)
    together = together[:, np.argsort(together[0])]
    firsts, lasts = together[:3], together[3:]
    return bool(firsts[0, 0] == start and _follows(lasts[:, :-1], firsts[:, 1:]).all())


def _follows(before: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each row whether it has the next number, and a later time or the same and a later arrival."""
    comes_later = (row[1] > before[1]) | ((row[1] == before[1]) & (row[2] > before[2]))
    follows: NDArray[np.bool_] = (row[0] == before[0] + 1) & comes_later
    return follows
