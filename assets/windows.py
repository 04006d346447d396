"""Windowed aggregation of one batch: the results of the windows that close in it, and the revised results.

Here: whether a window may have results, and writing `windows/<name>` and histories. Not here: the rules (timeops/),
what windows need of earlier batches (state/windows.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.assets.batch import Batch, BatchWriter
from tidemark.assets.state.windows import write_window_state
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.grid import may_close_between
from tidemark.timeops.materialize import as_it_is, computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import EPOCH, Instant, begin_of, us_of
from tidemark.timeops.windows.gap_filling import may_wait, told_in_words
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.results import last_revisions, passing
from tidemark.timeops.windows.revisions import changes

_DAY_US = 86_400_000_000
_MOST_RANGES = 20  # of days, before reading each by itself costs more than reading all between them
_FIRST, _LAST = date(1, 1, 3), date(9999, 12, 28)
_FIRST_DAY, _LAST_DAY = ((one - EPOCH.date()).days for one in (_FIRST, _LAST))


def aggregate_windows(batch: Batch) -> Mapping[str, int]:
    """Write the results of each window that closes in a batch, inputs of others first, then what windows need.

    Return the rows written, by window.
    """
    results = {window.name: 0 for window in batch.outcome.windows}
    for window in batch.outcome.windows:
        if _may_give(batch, window):
            write = _write_revisions if window.revises else _write_results
            results[window.name] = write(batch, window)
    write_window_state(batch)
    return results


def _may_give(batch: Batch, window: WindowSpec) -> bool:
    """Return whether windows may have results in this batch: when they close, or revise earlier results.

    Of several timelines some may close whenever there are records. A row without an event may have waited for one.
    """
    waits = window.empty and may_wait(window, batch.outcome.judged.rules)
    if batch.workspace.spec.keeps_timelines or window.revises or waits:
        return batch.after.clock_us is not None
    return batch.flushes or may_close_between(batch.before.watermark_us, batch.after.watermark_us, window)


def _write_results(batch: Batch, window: WindowSpec) -> int:
    materialize = as_it_is if batch.is_small and not window.empty else computed
    with told_in_words():
        rows = batch.outcome.results(window, materialize=materialize)
        return batch.append(tables.window_table(window.name), rows, grows=True).rows


def _write_revisions(batch: Batch, window: WindowSpec) -> int:
    """Write a batch's last results in the place of the results that they revise, and all of them to the history.

    Only results that are not final are ever revised, and they are no more than the open windows: all of them are
    deleted, and the unchanged ones are written again.
    """
    table = tables.window_table(window.name)
    with told_in_words():
        results = computed(batch.outcome.results(window))
    last = computed(last_revisions(results, window))
    if last.isEmpty():
        return 0
    fresh = passing(last)
    not_final: Filters = [*_of_open_windows(batch, window), ("_is_final", "=", False)]
    old = batch.workspace.read_base(table, filters=not_final)
    stamped = fresh.withColumn(c.BATCH, batch.stamp)
    is_revised = c.same_in("old", "new", window.key_columns)
    others = old.alias("old").join(last.alias("new"), is_revised, "left_anti")
    rows = stamped.unionByName(others, allowMissingColumns=True)
    batch.replace(table, rows, where=not_final, grows=True)
    if window.history:
        batch.append(tables.history_table(window.name), changes(results, old.drop(c.BATCH), window), grows=True)
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


def days_of_batch(batch: BatchWriter) -> Mapping[str, Mapping[str, int]]:
    """Count a committed batch's rows by window and the day of `window_start`, its partition: `2026-01-31`."""
    workspace = batch.workspace
    of_batch: Filters = [(c.BATCH, "=", batch.plan.batch_id)]
    found: dict[str, Mapping[str, int]] = {}
    for window in workspace.spec.windows:
        days = rows_by_day(workspace, tables.window_table(window.name), of_batch)
        if days:
            found[window.name] = dict(sorted(days.items()))
    return found


def rows_of_days(workspace: Workspace, table: str, days: Iterable[str]) -> Mapping[str, int]:
    """Count the rows that a table of windows has of some days, as of the last commit."""
    zone, asked = workspace.spec.partitions.time_zone, {*days}
    if not all(map(is_plain_day, asked)):
        return rows_by_day(workspace, table)
    found = Counter[str]()
    for first, last in _together(sorted(map(date.fromisoformat, asked))):
        begin, end = begin_of(first, zone), begin_of(last + timedelta(days=1), zone)
        found.update(rows_by_day(workspace, table, [("window_start", ">=", begin), ("window_start", "<", end)]))
    return Counter({day: n for day, n in found.items() if day in asked})


def _together(days: Sequence[date]) -> list[tuple[date, date]]:
    """Return ranges that hold days: consecutive days are read together, and all days where there are many ranges."""
    ranges = list[tuple[date, date]]()
    for day in days:
        if ranges and day - ranges[-1][1] == timedelta(days=1):
            ranges[-1] = (ranges[-1][0], day)
        else:
            ranges.append((day, day))
    return ranges if len(ranges) <= _MOST_RANGES else [(days[0], days[-1])]


def rows_by_day(workspace: Workspace, table: str, which: Filters = (), *, version: int | None = None) -> Counter[str]:
    """Count the rows of a table of windows by the day of `window_start`, by default as of the last commit."""
    days, as_of = Counter[str](), workspace.base_of(table) if version is None else version
    for piece in pieces(workspace.lake, table, as_of, ["window_start"], which):
        starts_us = piece["window_start"].cast(pa.int64()).to_numpy()
        days.update(counts_by_day(starts_us, workspace.spec.partitions.time_zone))
    return days


def is_plain_day(day: str) -> bool:
    """Return whether every zone can name a day, such as `2026-01-31`."""
    return len(day) == len("2026-01-31") and _FIRST.isoformat() < day < _LAST.isoformat()


def counts_by_day(instants_us: NDArray[np.int64], zone: str) -> dict[str, int]:
    """Count instants by day of a zone, such as `2026-01-31`; years beyond Python's range by day of UTC."""
    seen = np.unique(instants_us // _DAY_US)
    known = [int(day) for day in seen if _FIRST_DAY < day < _LAST_DAY]
    days = sorted({EPOCH.date() + timedelta(days=day + more) for day in known for more in (-1, 0, 1, 2)})
    begins = np.array([us_of(begin_of(day, zone)) for day in days], dtype=np.int64)
    is_known = np.isin(instants_us // _DAY_US, known)
    places, counts = np.unique(np.searchsorted(begins, instants_us[is_known], side="right") - 1, return_counts=True)
    found = {days[place].isoformat(): int(n) for place, n in zip(places, counts, strict=True)}
    for us in instants_us[~is_known]:
        day = str(Instant(int(us))).split(" ", maxsplit=1)[0]
        found[day] = found.get(day, 0) + 1
    return found
