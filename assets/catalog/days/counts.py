"""Rows of windows counted by day: the days that batches have written, and what a table has of each.

Here: the day of a row, in the time zone of the partitions, and counts by it. Not here: what Dagster shows of a day
(assets/catalog/days/partitions.py), its checks (assets/catalog/days/checks.py), writing results (assets/windows.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.assets.batch import BatchWriter
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import EPOCH, Instant, begin_of, us_of

_DAY_US = 86_400_000_000
_MOST_RANGES = 20  # of days, before reading each by itself costs more than reading the days between them
_MOST_DAYS = timedelta(days=31)  # that are read at once
_FIRST, _LAST = date(1, 1, 3), date(9999, 12, 28)
_FIRST_DAY, _LAST_DAY = ((day - EPOCH.date()).days for day in (_FIRST, _LAST))


def days_of_batch(batch: BatchWriter) -> Mapping[str, Mapping[str, int]]:
    """Count a committed batch's rows by window and the day of `window_start`, its partition: `2026-01-31`."""
    return _days_written(batch.workspace, [batch.plan.batch_id])


def days_of_batches(workspace: Workspace, *, after: int) -> Mapping[str, Mapping[str, int]]:
    """Do the same with the rows that all live batches after one have left; backfills report their days themselves.

    A day that has lost results and got none has 0: a late event can join a session to that of the day before.
    """
    batches = [commit.batch_id for commit in workspace.batches.history("process", after_batch=after)]
    days_written = {**_days_written(workspace, batches)}
    since = workspace.batches.commit_of(after) if batches else None
    if since is None:
        return days_written
    for window in workspace.spec.windows:
        if not window.may_lose_rows:  # else the whole table would be read for each batch
            continue
        written = days_written.get(window.name, {})
        if lost := {day: 0 for day in _days_lost(workspace, window, since) if day not in written}:
            days_written[window.name] = dict(sorted({**written, **lost}.items()))
    return days_written


def _days_lost(workspace: Workspace, window: WindowSpec, since: Commit) -> Iterable[str]:
    """Return the days that have fewer results than as of a commit; none if VACUUM has deleted its files."""
    table = tables.window_table(window.name)
    version = since.table_versions.get(table)
    if version is None or workspace.lake.opened.still_readable(table, version) is None:
        return ()
    now, old = rows_by_day(workspace, table), rows_by_day(workspace, table, version=version)
    return [day for day, n in old.items() if now[day] < n]


def _days_written(workspace: Workspace, batches: Sequence[int]) -> Mapping[str, Mapping[str, int]]:
    by_window: dict[str, Mapping[str, int]] = {}
    if not batches:
        return by_window
    which: Filters = [(c.BATCH, ">=", min(batches)), (c.BATCH, "in", batches)]
    for window in workspace.spec.windows:
        days = rows_by_day(workspace, tables.window_table(window.name), which)
        if days:
            by_window[window.name] = dict(sorted(days.items()))
    return by_window


@dataclass(frozen=True)
class DayCounts:
    """The rows that a table of a window has of a day.

    Attributes:
        rows: How many there are.
        final: How many of them are final.
        doubled: How many are there although there is another one of the same window and group; None where the
            columns of the groups cannot be compared without Spark.
    """

    rows: int = 0
    final: int = 0
    doubled: int | None = 0


def counts_of_days(workspace: Workspace, window: WindowSpec, days: Iterable[str]) -> Mapping[str, DayCounts]:
    """Count the rows that the table of a window has of some days, as of the last commit; all days are returned."""
    wanted_days, table = sorted({*days}), tables.window_table(window.name)
    by_day = {day: DayCounts() for day in wanted_days}
    if not wanted_days or not workspace.exists or not workspace.lake.exists(table):
        return by_day
    zone = workspace.spec.partitions.time_zone
    plain = [date.fromisoformat(day) for day in wanted_days if is_plain_day(day)]
    parts: list[Filters] = [
        [
            ("window_start", ">=", begin_of(first, zone)),
            ("window_start", "<", begin_of(last + timedelta(days=1), zone)),
        ]
        for first, last in together(plain)
    ]
    if len(plain) < len(wanted_days):  # days of years that Python's dates do not have
        parts = [[]]
    for part in parts:
        counted = _counts_by_day(workspace, window, part)
        by_day |= {day: counts for day, counts in counted.items() if day in by_day}
    return by_day


def _counts_by_day(workspace: Workspace, window: WindowSpec, which: Filters) -> dict[str, DayCounts]:
    """Count the rows of a table that match, by day."""
    table, zone = tables.window_table(window.name), workspace.spec.partitions.time_zone
    keys = [*dict.fromkeys(window.key_columns)]
    rows, final, key_tables = Counter[str](), Counter[str](), list[pa.Table]()
    for piece in pieces(workspace.lake, table, workspace.base_of(table), [*keys, "_is_final"], which):
        places, labels = days_of(piece["window_start"].cast(pa.int64()).to_numpy(), zone)
        is_final = pc.fill_null(piece["_is_final"], True).to_numpy(zero_copy_only=False)
        for counter, days_of_rows in ((rows, places), (final, places[is_final])):
            counts = np.bincount(days_of_rows, minlength=len(labels))
            counter.update({label: int(n) for label, n in zip(labels, counts, strict=True) if n})
        key_tables.append(pa.Table.from_batches([piece]).select(keys))
    doubled = doubled_by_day(pa.concat_tables(key_tables), zone) if key_tables else {}
    return {
        day: DayCounts(n, final[day], None if doubled is None else doubled.get(day, 0)) for day, n in rows.items()
    }


def doubled_by_day(keys: pa.Table, zone: str) -> dict[str, int] | None:
    """Count by day the rows whose window and group another row has; None if Arrow does not compare them."""
    try:
        numbers = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    except pa.ArrowNotImplementedError:  # of structs and arrays
        return None
    doubled = numbers.filter(pc.greater(numbers["count_all"], 1))
    counts = Counter[str]()
    places, labels = days_of(doubled["window_start"].cast(pa.int64()).to_numpy(), zone)
    for place, n in zip(places.tolist(), doubled["count_all"].to_pylist(), strict=True):
        counts[labels[place]] += n - 1
    return counts


def together(days: Sequence[date]) -> list[tuple[date, date]]:
    """Return ranges that hold days, none longer than a month, so that what is read at once has a bound.

    Only consecutive days are read together, unless that makes many ranges.
    """
    alone = _ranges(days, timedelta(days=1))
    return alone if len(alone) <= _MOST_RANGES else _ranges(days, _MOST_DAYS)


def _ranges(days: Sequence[date], apart: timedelta) -> list[tuple[date, date]]:
    ranges = list[tuple[date, date]]()
    for day in days:
        if ranges and day - ranges[-1][1] <= apart and day - ranges[-1][0] < _MOST_DAYS:
            ranges[-1] = (ranges[-1][0], day)
        else:
            ranges.append((day, day))
    return ranges


def rows_by_day(workspace: Workspace, table: str, which: Filters = (), *, version: int | None = None) -> Counter[str]:
    """Count the rows of a window's table by the day of `window_start`, by default as of the last commit."""
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
    places, labels = days_of(instants_us, zone)
    counts = np.bincount(places, minlength=len(labels))
    return {label: int(n) for label, n in zip(labels, counts, strict=True) if n}


def days_of(instants_us: NDArray[np.int64], zone: str) -> tuple[NDArray[np.int64], list[str]]:
    """Return the day of each instant as a place in a list of days, as `counts_by_day` names them, and this list."""
    days_seen = np.unique(instants_us // _DAY_US)
    plain_days = [int(day) for day in days_seen if _FIRST_DAY < day < _LAST_DAY]
    days = sorted({EPOCH.date() + timedelta(days=day + offset) for day in plain_days for offset in (-1, 0, 1, 2)})
    begins = np.array([us_of(begin_of(day, zone)) for day in days], dtype=np.int64)
    places = np.searchsorted(begins, instants_us, side="right") - 1
    labels = [day.isoformat() for day in days]
    for day in (int(number) for number in days_seen if not _FIRST_DAY < number < _LAST_DAY):
        places[instants_us // _DAY_US == day] = len(labels)
        labels.append(str(Instant(day * _DAY_US)).split(" ", maxsplit=1)[0])
    return places, labels
