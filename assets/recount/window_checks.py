"""Checks of the windows that a batch wrote: one final row each, revisions without gaps, results computed once more.

Here: the expectations, and what each counts. Not here: how results are computed once more (windows.py), checks
of other tables (../checks.py).
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch
from tidemark.assets.recount.windows import Look, can_recount, compared, group_values, looks_at, stand_once
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.quality.checks import SAMPLE_ROWS, Checked, Expectation, Measured, Rows, check, some_of
from tidemark.resources.spark.frames import readable
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.aggregates import MEANS, SUMS, calls_of
from tidemark.timeops.expressions.tokens import literal
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.aggregates import having_fails
from tidemark.timeops.windows.revisions import CHANGE, DELETE, PREIMAGE

_MOST_SHOWN = 100  # differing windows are counted up to here

ONE_FINAL_ROW = Expectation(
    name="one_final_row",
    holds="a window and group has one final row",
    remedy="do not use the window table of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
DENSE_REVISIONS = Expectation(
    name="dense_revisions",
    holds="with `history`, the revisions of a window and group are 0, 1, 2, … up to the one in the window table "
    "(with `having`, those of them that pass)",
    remedy="do not use the history of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
WINDOW_RECOUNT = Expectation(
    name="window_recount",
    holds="final results equal those of the events in the tables, computed once more in another way",
    remedy="results are wrong, or the events are: report the rows; `tidemark accept` takes the batch as it is",
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


def asked_of(spec: Spec) -> tuple[Expectation, ...]:
    """Return the checks of a spec's windows whose tables it has."""
    dense = (DENSE_REVISIONS,) if any(window.history for window in spec.windows) else ()
    recount = (WINDOW_RECOUNT,) if spec.outputs.ordered_events else ()
    adds = any(calls_of(text, (*SUMS, *MEANS)) for window in spec.windows for text in window.aggregates.values())
    overflow = (SUM_OVERFLOW,) if recount and adds else ()
    having = (HAVING,) if any(window.having for window in spec.windows) else ()
    return (ONE_FINAL_ROW, *dense, *recount, *overflow, *having) if spec.windows else ()


def check_windows(batch: Batch) -> list[Checked]:
    """Check the results that a batch wrote; windows without a new result cost nothing."""
    workspace, plan = batch.workspace, batch.plan
    asked = asked_of(workspace.spec)
    looks = looks_at(batch)
    written = [(window, looks[window.name]) for window in workspace.spec.windows if window.name in looks]
    doubled = [_doubled(workspace, *one) for one in written if not stand_once(workspace.lake, *one)]
    found = [_none_of(doubled, ONE_FINAL_ROW, "windows and groups with several final rows")]
    if DENSE_REVISIONS in asked:
        gaps = [_with_gaps(workspace, plan, *one) for one in written if one[0].history]
        found.append(_none_of(gaps, DENSE_REVISIONS, "windows and groups whose revisions have gaps"))
    if WINDOW_RECOUNT in asked:
        found += _recounted(batch, written, overflow=SUM_OVERFLOW in asked)
    if HAVING in asked:
        undecided = [_undecided(batch, window) for window, _ in written if window.having]
        rows = [frame for frame in undecided if frame is not None]
        found.append(_none_of(rows, HAVING, "results on which `having` fails"))
    return found


def _recounted(batch: Batch, written: Sequence[tuple[WindowSpec, Look]], *, overflow: bool) -> list[Checked]:
    """Return the recount, and with `overflow` the sums that it found too large."""
    closed = [one for one in written if one[1].spans]
    frames = [compared(batch, *one) for one in closed if can_recount(one[0])]
    rows = reduce(DataFrame.unionByName, [one.counts() for one in frames]).collect() if frames else []
    in_all = sum(row["compared"] for row in rows)
    wrong = some_of(in_all, sum(row["wrong"] for row in rows), "results", are="differ from the recount")
    left_out = [
        f"`{name}` of {row['window_name']} in {n:,} of {row['compared']:,}"
        for row in rows
        for name, n in row["left_out"].items()
        if n
    ]
    never = [window.name for window, _ in closed if not can_recount(window)]
    said = [
        f"{in_all:,} {'result was' if in_all == 1 else 'results were'} compared",
        *([f"left out, as the order of summation may change it: {', '.join(left_out)}"] if left_out else []),
        *([f"not compared, as `_source` or `_split` is named: {', '.join(never)}"] if never else []),
    ]
    recount = check(WINDOW_RECOUNT, [wrong], lambda: some_rows([one.wrong() for one in frames]), note="; ".join(said))
    if not overflow:
        return [recount]
    nulls = sum(row["too_large"] for row in rows)
    too_large = Measured("sums and averages that are null as they do not fit", 0, nulls)
    return [recount, check(SUM_OVERFLOW, [too_large], lambda: some_rows([one.too_large() for one in frames]))]


def some_rows(frames: Sequence[DataFrame]) -> Rows:
    """Return some of the rows of frames, as a sample."""
    shown = readable(reduce(DataFrame.unionByName, frames).limit(SAMPLE_ROWS))
    return [row.asDict(recursive=True) for row in shown.collect()]


def _undecided(batch: Batch, window: WindowSpec) -> DataFrame | None:
    """Return the results of a batch on which `having` fails; None if it cannot fail."""
    rows = batch.written(tables.window_table(window.name))
    fails = having_fails(rows, window)
    return None if fails is None else rows.where(fails).selectExpr(*_named(window, "window_start", "window_end"))


def _named(window: WindowSpec, *columns: str) -> list[str]:
    """Return the columns, in SQL, of a window and group that a sample shows."""
    return [f"{literal(window.name)} AS window_name", *columns, group_values(window.group_columns)]


def _none_of(frames: Sequence[DataFrame], expectation: Expectation, what: str) -> Checked:
    found = readable(reduce(DataFrame.unionByName, frames).limit(_MOST_SHOWN + 1)).collect() if frames else []
    sample = [row.asDict(recursive=True) for row in found[:SAMPLE_ROWS]]
    n = f"more than {_MOST_SHOWN:,}" if len(found) > _MOST_SHOWN else f"{len(found):,}"
    return check(expectation, [Measured(what, 0, len(found), f"{what}: {n}; expected none")], lambda: sample)


def _doubled(workspace: Workspace, window: WindowSpec, look: Look) -> DataFrame:
    """Return windows and groups with several rows; of revised windows the table holds the last row alone."""
    rows = _since(workspace, tables.window_table(window.name), look)
    keys = [F.col(f"`{name}`") for name in window.key_columns]  # with the end: sessions may share their start
    doubled = rows.groupBy(*keys).agg(F.count("*").alias("__tm_rows")).where("__tm_rows > 1")
    return doubled.selectExpr(*_named(window, "window_start"), "__tm_rows AS rows")


def _with_gaps(workspace: Workspace, plan: Plan, window: WindowSpec, look: Look) -> DataFrame:
    """Return the batch's windows and groups that lack a revision, in the history or after it."""
    keys = [F.col(f"`{name}`") for name in window.key_columns]
    rows = _since(workspace, tables.window_table(window.name), look).where(F.col(c.BATCH) == plan.batch_id)
    now = rows.select(*keys, F.col("_revision").alias("__tm_last"))
    history = _since(workspace, tables.history_table(window.name), look)
    history = history.where(~F.col(CHANGE).isin(PREIMAGE, DELETE))
    given = history.groupBy(*keys).agg(F.count("*").alias("__tm_n"), F.max("_revision").alias("__tm_highest"))
    both = now.alias("now").join(given.alias("given"), c.same_in("now", "given", window.key_columns), "left")
    # Of revisions that did not pass `having` there are no rows.
    all_there = F.lit(True) if window.having else F.col("__tm_n") == F.col("__tm_last") + 1
    gap = ~F.coalesce(all_there & (F.col("__tm_highest") == F.col("__tm_last")), F.lit(False))
    shown = both.where(gap).select("now.*", "__tm_n")
    return shown.selectExpr(*_named(window, "window_start", "window_end"), "__tm_last AS last", "__tm_n AS n")


def _since(workspace: Workspace, table: str, look: Look) -> DataFrame:
    """Return the rows of a table from the first window on that the batch wrote."""
    return workspace.lake.read(table, filters=[("window_start", ">=", Instant(look.first_us))])
