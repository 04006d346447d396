"""Checks of the windows that a batch wrote: one final row each, revisions without gaps, sums that fit.

Here: the expectations, and what each counts. Not here: recomputing results, which no batch does
(assets/recount/windows.py), checks of other tables (assets/checks.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch
from tidemark.assets.recount.windows import WINDOW_END, WINDOW_START, by_window, can_recompute, events_in
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import pieces
from tidemark.resources.quality.checks import SAMPLE_ROWS, Counted, Expectation, Measured, SampleRows
from tidemark.resources.spark.frames import readable
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.expressions.aggregate_calls import calls_of
from tidemark.timeops.expressions.aggregates import MEANS, SUMS, overflow_in
from tidemark.timeops.expressions.tokens import calls, literal, quoted, tokenize
from tidemark.timeops.expressions.try_expression import Columns, as_json
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.values.utc import Instant
from tidemark.timeops.windows.revisions import CHANGE, DELETE, PREIMAGE

_MOST_SHOWN = 100  # differing windows are counted up to here
_MOST_LACKING = 1_000  # windows of a definition whose sums are looked at
_MOST_ROWS = 4_000_000  # whose keys are held together: some 100 MB

_PASSING_NULL = {*SUMS, *MEANS, "count", "min", "max"}
"""Functions that a sum may be combined with and still show that it is null."""

ONE_FINAL_ROW = Expectation(
    name="one_final_row",
    holds="a window and group has one final row",
    remedy="do not use the window table of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
DENSE_REVISIONS = Expectation(
    name="dense_revisions",
    holds="with `history`, the revisions of a window and group are 0, 1, 2, … up to the one in the window table "
    "(with `having`, the ones that pass; with `top`, of each rank)",
    remedy="do not use the history of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
HAVING = Expectation(
    name="having_decides",
    holds="`having` can be computed on every result; where it fails, the result is shown",
    remedy="read the rows, which `having` might leave out; write it so that it has a value for them",
)

SUM_OVERFLOW = Expectation(
    name="sum_overflow",
    holds="sums, and averages of decimals and intervals, fit",
    remedy="such a sum is null: add up larger units; of BIGINT also `sum(CAST(n AS DECIMAL(20, 0)))`",
)


WindowBounds = tuple[int, int]
"""Start and end, microseconds."""


@dataclass(frozen=True)
class WrittenResults:
    """The results that a batch wrote of a window.

    Attributes:
        first_us: Start of the first of its windows, microseconds.
        lacking: Final windows that may lack a sum, up to _MOST_LACKING of them.
    """

    first_us: int
    lacking: tuple[WindowBounds, ...] = ()


def asked_of(spec: Spec) -> tuple[Expectation, ...]:
    """Return the checks of a spec's windows whose tables it has."""
    dense = (DENSE_REVISIONS,) if any(window.history for window in spec.windows) else ()
    adds = any(calls_of(text, (*SUMS, *MEANS)) for window in spec.windows for text in window.aggregates.values())
    overflow = (SUM_OVERFLOW,) if spec.outputs.ordered_events and adds else ()
    having = (HAVING,) if any(window.having for window in spec.windows) else ()
    return (ONE_FINAL_ROW, *dense, *overflow, *having) if spec.windows else ()


def count_windows(batch: Batch) -> list[Counted]:
    """Count what is wrong with the results that a batch wrote; windows without a new result cost nothing."""
    workspace, plan = batch.workspace, batch.plan
    checks = asked_of(workspace.spec)
    results = results_by_window(batch)
    written = [(window, results[window.name]) for window in workspace.spec.windows if window.name in results]
    doubled = [
        _doubled(workspace, window, of_window)
        for window, of_window in written
        if not stand_once(workspace.lake, window, of_window)
    ]
    counted = [_none_of(doubled, ONE_FINAL_ROW, "windows and groups with several final rows")]
    if DENSE_REVISIONS in checks:
        gaps = [_with_gaps(workspace, plan, window, of_window) for window, of_window in written if window.history]
        counted.append(_none_of(gaps, DENSE_REVISIONS, "windows and groups whose revisions have gaps"))
    if SUM_OVERFLOW in checks:
        counted.append(_overflow(workspace, written))
    if HAVING in checks:
        undecided = [_undecided(batch, window) for window, _ in written if window.having]
        rows = [frame for frame in undecided if frame is not None]
        counted.append(_none_of(rows, HAVING, "results on which `having` fails"))
    return counted


def results_by_window(batch: Batch) -> dict[str, WrittenResults]:
    """Return what a batch wrote of each window; nothing of a window without a new row."""
    workspace, batch_id = batch.workspace, batch.plan.batch_id
    results = {window.name: written_results(workspace.lake, window, batch_id) for window in workspace.spec.windows}
    return {name: of_window for name, of_window in results.items() if of_window is not None}


def written_results(lake: Lake, window: WindowSpec, batch_id: int) -> WrittenResults | None:
    """Return what a batch wrote of a window; None if that is nothing. No Spark is needed."""
    table = tables.window_table(window.name)
    sums = {name: text for name, text in window.aggregates.items() if calls_of(text, (*SUMS, *MEANS))}
    hides = any(_may_hide_null(text) for text in sums.values())
    lacking, first_us = dict[WindowBounds, None](), None
    columns, of_batch = [WINDOW_START, WINDOW_END, "_is_final", *sums], [(c.BATCH, "=", batch_id)]
    for piece in pieces(lake, table, lake.version(table), columns, of_batch):
        if not piece.num_rows:
            continue
        starts, ends = (piece[name].cast(pa.int64()) for name in (WINDOW_START, WINDOW_END))
        lowest = pc.min(starts).as_py()
        first_us = lowest if first_us is None else min(first_us, lowest)
        # Where an aggregate may hide a null, any window may lack a sum.
        lacks = reduce(pc.or_, [piece[name].is_null() for name in sums], pa.repeat(pa.scalar(hides), piece.num_rows))
        some = pa.table({WINDOW_START: starts, WINDOW_END: ends}).filter(
            pc.and_(lacks, pc.fill_null(piece["_is_final"], False))
        )
        some = some.group_by([WINDOW_START, WINDOW_END]).aggregate([]).slice(0, _MOST_LACKING - len(lacking))
        lacking |= dict.fromkeys(zip(some[WINDOW_START].to_pylist(), some[WINDOW_END].to_pylist(), strict=True))
    return None if first_us is None else WrittenResults(first_us, tuple(lacking))


def _may_hide_null(aggregate: str) -> bool:
    """Return whether an aggregate may have a value although a sum in it is null, such as `coalesce(sum(n), 0)`."""
    tokens = tokenize(aggregate)
    return any(token.lower == "case" for token in tokens) or any(
        call.name not in _PASSING_NULL for call in calls(tokens)
    )


def stand_once(lake: Lake, window: WindowSpec, results: WrittenResults) -> bool:
    """Return whether every window and group is in a table once, from the first one on that a batch wrote.

    Returns:
        True only if it is so. False also if there are too many rows, or keys of types that it cannot compare.
    """
    table, keys = tables.window_table(window.name), list(window.key_columns)
    since = [(WINDOW_START, ">=", Instant(results.first_us))]
    key_rows: list[pa.RecordBatch] = []
    rows = 0
    for piece in pieces(lake, table, lake.version(table), keys, since):
        rows += piece.num_rows
        if rows > _MOST_ROWS or not all(_is_plain(field.type) for field in piece.schema):
            return False
        key_rows.append(piece)
    if not rows:
        return True
    return bool(pa.Table.from_batches(key_rows).group_by(keys).aggregate([]).num_rows == rows)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether equal bytes mean equal values of a type: not for floating point, nor for types that hold it."""
    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_string, pa.types.is_decimal)
    return any(is_one(kind) for is_one in kinds)


def _overflow(workspace: Workspace, written: Sequence[tuple[WindowSpec, WrittenResults]]) -> Counted:
    """Look for sums and averages that do not fit, in the windows that lack one."""
    optional = [
        _too_large(workspace, window, results)
        for window, results in written
        if results.lacking and can_recompute(window)
    ]
    frames = [frame for frame in optional if frame is not None]
    n = reduce(DataFrame.unionByName, frames).count() if frames else 0
    too_large = Measured("sums and averages that are null as they do not fit", 0, n)
    return Counted(SUM_OVERFLOW, [too_large], lambda: some_rows(frames))


def _too_large(workspace: Workspace, window: WindowSpec, results: WrittenResults) -> DataFrame | None:
    """Return window, group and aggregate of the sums that do not fit; None where all do."""
    lacking = pa.table(
        {name: [span[n] for span in results.lacking] for n, name in enumerate((WINDOW_START, WINDOW_END))}
    )
    spans = from_driver(workspace.spark, lacking).withColumns(
        {name: c.to_instant(name) for name in (WINDOW_START, WINDOW_END)}
    )
    events = events_in(workspace, spans, window)
    columns = Columns.of(events)
    overflows = {name: overflow_in(text, columns) for name, text in window.aggregates.items()}
    which = [f"IF({text}\n, {literal(name)}, NULL)" for name, text in overflows.items() if text is not None]
    if not which:
        return None
    sums = by_window(events, window).agg(F.expr(f"array_compact(array({', '.join(which)})) AS __tm_which"))
    shown = [
        literal(window.name) + " AS window_name",
        WINDOW_START,
        WINDOW_END,
        group_values(window.group_columns),
        "__tm_aggregate AS aggregate",
    ]
    return sums.selectExpr("*", "explode(__tm_which) AS __tm_aggregate").selectExpr(*shown)


def group_values(names: Sequence[str]) -> str:
    """Return SQL of `group_values`: group columns as JSON, so that definitions with other groups have one shape.

    It is for people to read: other values may have the same text.
    """
    return f"{as_json(*map(quoted, names)) if names else literal('{}')} AS group_values"


def some_rows(frames: Sequence[DataFrame]) -> SampleRows:
    """Return some of the rows of frames, as a sample."""
    shown = readable(reduce(DataFrame.unionByName, frames).limit(SAMPLE_ROWS))
    return [row.asDict(recursive=True) for row in shown.collect()]


def _undecided(batch: Batch, window: WindowSpec) -> DataFrame | None:
    """Return the results of a batch on which `having` fails; None if it cannot fail."""
    rows = batch.written(tables.window_table(window.name))
    fails = Columns.of(rows).any_fails(filter(None, [window.having]))
    return None if fails is None else rows.where(fails).selectExpr(*_sql_names(window, "window_start", "window_end"))


def _sql_names(window: WindowSpec, *columns: str) -> list[str]:
    """Return the columns, in SQL, of a window and group that a sample shows."""
    return [f"{literal(window.name)} AS window_name", *columns, group_values(window.group_columns)]


def _none_of(frames: Sequence[DataFrame], expectation: Expectation, rows_named: str) -> Counted:
    rows = readable(reduce(DataFrame.unionByName, frames).limit(_MOST_SHOWN + 1)).collect() if frames else []
    sample = [row.asDict(recursive=True) for row in rows[:SAMPLE_ROWS]]
    n = f"more than {_MOST_SHOWN:,}" if len(rows) > _MOST_SHOWN else f"{len(rows):,}"
    return Counted(
        expectation, [Measured(rows_named, 0, len(rows), f"{rows_named}: {n}; expected none")], lambda: sample
    )


def _doubled(workspace: Workspace, window: WindowSpec, results: WrittenResults) -> DataFrame:
    """Return windows and groups with several rows; of revised windows the table holds the last row alone."""
    rows = _since(workspace, tables.window_table(window.name), results)
    keys = [F.col(f"`{name}`") for name in window.key_columns]  # with the end: sessions may share their start
    doubled = rows.groupBy(*keys).agg(F.count("*").alias("__tm_rows")).where("__tm_rows > 1")
    return doubled.selectExpr(*_sql_names(window, "window_start"), "__tm_rows AS rows")


def _with_gaps(workspace: Workspace, plan: Plan, window: WindowSpec, results: WrittenResults) -> DataFrame:
    """Return the batch's windows and groups that lack a revision, in the history or after it."""
    keys = [F.col(f"`{name}`") for name in window.key_columns]
    rows = _since(workspace, tables.window_table(window.name), results).where(F.col(c.BATCH) == plan.batch_id)
    now = rows.select(*keys, F.col("_revision").alias("__tm_last"))
    history = _since(workspace, tables.history_table(window.name), results)
    history = history.where(~F.col(CHANGE).isin(PREIMAGE, DELETE))
    lowest = F.min("_revision").alias("__tm_lowest")
    stored = history.groupBy(*keys).agg(
        F.count("*").alias("__tm_n"), F.max("_revision").alias("__tm_highest"), lowest
    )
    both = now.alias("now").join(stored.alias("stored"), c.same_in("now", "stored", window.key_columns), "left")
    # Of revisions that did not pass `having` there are no rows.
    first = F.lit(0) if window.top is None else F.col("__tm_lowest")  # a rank comes with the revision that fills it
    all_there = F.lit(True) if window.having else F.col("__tm_n") == F.col("__tm_last") - first + 1
    gap = ~F.coalesce(all_there & (F.col("__tm_highest") == F.col("__tm_last")), F.lit(False))
    shown = both.where(gap).select("now.*", "__tm_n")
    return shown.selectExpr(*_sql_names(window, "window_start", "window_end"), "__tm_last AS last", "__tm_n AS n")


def _since(workspace: Workspace, table: str, results: WrittenResults) -> DataFrame:
    """Return the rows of a table from the first window on that the batch wrote."""
    return workspace.lake.read(table, filters=[("window_start", ">=", Instant(results.first_us))])
