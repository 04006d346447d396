"""Windowed aggregation of one batch: the results of the windows that close in it, and of those that revise theirs.

Here: whether a window may give anything, and writing `windows/<name>` and histories. Not here: the rules (timeops/),
what windows need of earlier batches (state/windows.py).
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import Batch, BatchWriter
from tidemark.assets.state.windows import write_window_state
from tidemark.resources import tables
from tidemark.resources.lake.filters import Filters
from tidemark.resources.spark.frames import small_frame
from tidemark.timeops import columns as c
from tidemark.timeops.grid import may_close_between
from tidemark.timeops.materialize import as_it_is, computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant, day_of
from tidemark.timeops.windows.gap_filling import may_wait, told_in_words
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.results import last_revisions, passing
from tidemark.timeops.windows.revisions import changes

DAY = "yyyy-MM-dd"


def aggregate_windows(batch: Batch) -> Mapping[str, int]:
    """Writes the results of every window that closes in a batch, inputs of others first, then what windows need.

    Returns:
        Rows written, by window.
    """
    results = {window.name: 0 for window in batch.outcome.windows}
    for window in batch.outcome.windows:
        if _may_give(batch, window):
            write = _write_revisions if window.revises else _write_results
            results[window.name] = write(batch, window)
    write_window_state(batch)
    return results


def _may_give(batch: Batch, window: WindowSpec) -> bool:
    """Whether windows may give results in this batch: when they close, or revise what they gave.

    Of several timelines some may close whenever there are records. A row without an event may have waited for one.
    """
    waits = window.empty and may_wait(window, batch.outcome.judged.rules)
    if batch.workspace.keeps_timelines or window.revises or waits:
        return batch.after.clock_us is not None
    return batch.flushes or may_close_between(batch.before.watermark_us, batch.after.watermark_us, window)


def _write_results(batch: Batch, window: WindowSpec) -> int:
    materialize = as_it_is if batch.is_small and not window.empty else computed
    with told_in_words():
        rows = batch.outcome.results(window, materialize=materialize)
        return batch.append(tables.window_table(window.name), rows, grows=True).rows


def _write_revisions(batch: Batch, window: WindowSpec) -> int:
    """Writes the last results of a batch in the place of those that they revise, and all of them to the history.

    Only results that are not final are ever revised, and of these there are no more than open windows: all of them
    are deleted, and those that stay as they are are written again.
    """
    table = tables.window_table(window.name)
    with told_in_words():
        results = batch.outcome.results(window).localCheckpoint()
    last = last_revisions(results, window).localCheckpoint()
    if last.isEmpty():
        return 0
    fresh = passing(last)
    not_final: Filters = [("_is_final", "=", False)]
    old = batch.workspace.read_base(table, filters=[*_of_open_windows(batch, window), *not_final])
    stamped = fresh.withColumn(c.BATCH, batch.stamp)
    rows = stamped.unionByName(_others(old, last, window), allowMissingColumns=True)
    batch.replace(table, rows, where=not_final, grows=True)
    if window.history:
        batch.append(tables.history_table(window.name), changes(results, old.drop(c.BATCH), window), grows=True)
    return fresh.count()


def _of_open_windows(batch: Batch, window: WindowSpec) -> Filters:
    """Where the rows that are not final lie; of several timelines each has a watermark of its own.

    A session may have begun at any time.
    """
    watermark_us = batch.before.watermark_us
    if batch.workspace.keeps_timelines or watermark_us is None:
        return ()
    first_us = kind_of(window).needed_from(watermark_us) - 1  # an event on the start may be outside
    return [("window_start", ">=", Instant(max(first_us, c.MIN_US)))]


def _others(old: DataFrame, last: DataFrame, window: WindowSpec) -> DataFrame:
    """The old rows of windows that the batch gives no revision of."""
    return old.alias("old").join(last.alias("new"), c.same_in("old", "new", window.key_columns), "left_anti")


def days_of_batch(batch: BatchWriter) -> Mapping[str, Mapping[str, int]]:
    """Rows that a batch wrote, by window and the day of `window_start`, its partition, such as `2026-01-31`."""
    workspace, plan = batch.workspace, batch.plan
    day = F.date_format(day_of(F.col("window_start"), workspace.spec.partitions.time_zone), DAY).alias("day")
    rows = small_frame(workspace.spark, [], "name STRING, day STRING")
    for window in workspace.spec.windows:
        written = workspace.read_base(tables.window_table(window.name), filters=[(c.BATCH, "=", plan.batch_id)])
        rows = rows.unionByName(written.select(F.lit(window.name).alias("name"), day))
    days: dict[str, dict[str, int]] = {}
    with batch.tuned():
        counted = rows.groupBy("name", "day").agg(F.count("*").alias("n")).orderBy("day").collect()
    for row in counted:
        days.setdefault(row["name"], {})[row["day"]] = row["n"]
    return days
