"""Windowed aggregation of one batch: the results of the windows that close in it, and the revised results.

Here: whether a window may have results, and writing `windows/<name>` and histories. Not here: the rules (timeops/),
what windows need of earlier batches (assets/state/windows.py).
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame

from tidemark.assets.batch import Batch
from tidemark.assets.state.windows import write_window_state
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters
from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import may_close_between
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import Instant
from tidemark.timeops.windows.gap_filling import may_wait, told_in_words
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.results import last_revisions, passing
from tidemark.timeops.windows.revisions import changes


def aggregate_windows(batch: Batch) -> Mapping[str, int]:
    """Write the results of each window that closes in a batch, inputs of others first, then what windows need.

    Return the rows written, by window.
    """
    results = {window.name: 0 for window in batch.outcome.windows}
    for window in batch.outcome.windows:
        if not _may_have_results(batch, window):
            continue
        with told_in_words():
            if window.revises:
                results[window.name] = _write_revisions(batch, window, computed(batch.outcome.results(window)))
            else:
                rows = batch.outcome.results(window)
                results[window.name] = batch.append(tables.window_table(window.name), rows, grows=True).rows
    write_window_state(batch)
    return results


def _may_have_results(batch: Batch, window: WindowSpec) -> bool:
    """Return whether windows may have results in this batch: when they close, or revise earlier results.

    Of several timelines some may close whenever there are records. A row without an event may have waited for one.
    """
    waits = window.empty and may_wait(window, batch.outcome.judged.rules)
    if batch.workspace.spec.keeps_timelines or window.revises or waits:
        return batch.after.clock_us is not None
    return batch.flushes or may_close_between(batch.before.watermark_us, batch.after.watermark_us, window)


def _write_revisions(batch: Batch, window: WindowSpec, results: DataFrame) -> int:
    """Write a batch's last results in the place of the results that they revise, and all of them to the history."""
    table = tables.window_table(window.name)
    last = computed(last_revisions(results, window))
    if last.isEmpty():
        return 0
    fresh = passing(last)
    not_final: Filters = [*_of_open_windows(batch, window), ("_is_final", "=", False)]
    batch.revise(table, fresh, last, window.key_columns, not_final)
    if window.history:
        old = batch.workspace.read_base(table, filters=not_final).drop(c.BATCH)
        batch.append(tables.history_table(window.name), changes(results, old, window), grows=True)
    return fresh.count()


def _of_open_windows(batch: Batch, window: WindowSpec) -> Filters:
    """Return filters for the rows that are not final; with several timelines each has a watermark of its own.

    A session may have begun at any time.
    """
    watermark_us = batch.before.watermark_us
    if batch.workspace.spec.keeps_timelines or watermark_us is None:
        return ()
    first_us = kind_of(window).needed_from(watermark_us) - 1  # an event on the start may be outside
    # A window around an event of the year 1 may begin before it, where no event can be.
    return [("window_start", ">=", Instant(first_us))] if first_us >= c.MIN_US else ()
