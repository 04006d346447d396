"""The recount of a batch's records: refused ones by reason.

Here: the records and rules that the recount gets. Not here: the recount's queries, which share no code with the rules
(resources/recount/); the order of released events (assets/recount/sequences.py).
"""

from collections.abc import Mapping
from dataclasses import asdict

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch
from tidemark.assets.log.control import waits_of
from tidemark.assets.state.dedup import known_first_times
from tidemark.assets.state.timelines import first_clock_asked_for
from tidemark.resources import tables
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.quality.checks import Measured
from tidemark.resources.recount.ends import EndsOfWindow, LocalWindows
from tidemark.resources.recount.recount import counts_of, judge_again
from tidemark.resources.recount.rules import RecountRules, SourceRules
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.rules.time_rules import SourceTime, Waits
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window_shape import LocalGrid

_JUDGED = (Reason.DUPLICATE, Reason.EARLY, Reason.LATE_ARRIVAL, Reason.OUT_OF_ORDER)  # the recount knows each


def recount_of_batch(batch: Batch) -> Mapping[str, int]:
    """Recount a batch's range of the log, see `counts_of`."""
    workspace, items, duplicates, first_times = batch.workspace, batch.items, None, None
    rules = rules_at(workspace, items, workspace.progress.position(), waits_of(workspace, batch.plan))
    if rules.deduplicate_by:
        duplicates = batch.written(tables.DEAD_LETTERS).where(F.col("reason") == Reason.DUPLICATE).select(c.SEQ)
        first_times = known_first_times(workspace, batch.spans)
    seqs, timelines = range(batch.plan.first_seq, plan_end(batch.plan)), batch.timelines
    parts = judge_again(items, seqs, rules, timelines, compute=computed, refused=duplicates, first_times=first_times)
    return counts_of(parts, rules)


def recounted(written: Mapping[str, int], fresh: Mapping[str, int]) -> list[Measured]:
    """Compare a recount with what was written.

    Args:
        written: Dead letters of the stages ingest and time, by reason.
        fresh: The numbers of `recount_of_batch`.
    """
    untimed = sum(n for reason, n in written.items() if reason not in _JUDGED)
    by_reason = [(reason.value, fresh[reason], written.get(reason, 0)) for reason in _JUDGED]
    measured = [
        Measured(state, expected, n, f"{n:,} dead letters {state}; expected {expected:,}, by the recount")
        for state, expected, n in (*by_reason, ("without a time", fresh["untimed"], untimed))
    ]
    state = "mistaken for duplicates, or not known as such"
    sentence = f"{fresh['mistaken']:,} records {state}; expected none"
    return [*measured, Measured(state, 0, fresh["mistaken"], sentence)]


def rules_at(workspace: Workspace, items: DataFrame, position: Position, waits: Waits) -> RecountRules:
    """Return the rules of a spec that the recount needs, and its expressions, guarded over some records.

    Args:
        workspace: The pipeline.
        items: The records.
        position: Where the pipeline was before them.
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
        idle=None if idle == "arrival_clock" else idle,  # that one is in clock_tolerance_us
        idle_timeout_us=time.idle_timeout_us,
        windows=tuple(ends_of_window(window, time.unit_us, columns) for window in rules.windows_to_close),
        first_clock_us=first_clock_asked_for(workspace),
        start_clock_us=position.clock_us,
        start_ended_us=position.clock_before_period_us,
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


def ends_of_window(window: WindowSpec, unit_us: int, columns: Columns | None = None) -> EndsOfWindow:
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
