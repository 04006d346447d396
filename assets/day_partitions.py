"""Days of window tables as Dagster's partitions: only the days that hold results, each with its materialization.

Here: which days Dagster shows, adding and removing them, and what it is told of them. Not here: computing days
(backfill/), which days a run wrote (windows.py, rebuild/report.py).

Dagster keeps list and materializations in its instance. Runs add the days that they write. An instance may have no
days of a window because it is new or of an older version. The next run, or look for work, adds the days of the table.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

from dagster import AssetMaterialization, DagsterInstance, DynamicPartitionsDefinition

from tidemark.assets.display import metadata as show
from tidemark.assets.runs import Report, key
from tidemark.assets.windows import is_plain_day, rows_by_day, rows_of_days
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import Spec

_AT_ONCE = 1_000
_LONGEST_S = 20
"""How long a run or look takes to report days that it did not write: Dagster ends a look after a minute."""


def days_of(spec: Spec, window: str) -> DynamicPartitionsDefinition:
    """Return the partitions of a window: each has its own, as one may have results of a day and another none."""
    return DynamicPartitionsDefinition(name=_name(spec, window))


def shown_days(instance: DagsterInstance, spec: Spec, window: str) -> Sequence[str]:
    """Return the days of a window that Dagster shows."""
    return instance.get_dynamic_partitions(_name(spec, window))


def show_days(instance: DagsterInstance, spec: Spec, window: str, days: Iterable[str]) -> None:
    """Add days of a window, in the order of the calendar: by this order Dagster takes a range of partitions."""
    name, shown = _name(spec, window), shown_days(instance, spec, window)
    new = sorted({day for day in days if _may_be_shown(spec, day)}.difference(shown))
    if not new:
        return
    after = [day for day in shown if day > new[0]]
    try:
        _remove(instance, name, after)  # to come again after the new ones
    finally:
        again = sorted([*new, *after])
        for at in range(0, len(again), _AT_ONCE):
            instance.add_dynamic_partitions(name, again[at : at + _AT_ONCE])


def tell_days(
    report: Report, workspace: Workspace, window: str, days: Mapping[str, int], about: show.Metadata
) -> None:
    """Report days that a batch wrote to Dagster, with the rows that it wrote and all rows that the day has."""
    in_all = rows_of_days(workspace, tables.window_table(window), days)
    shown = {**show.table_rows(workspace.lake, tables.window_table(window)), **about}
    for day, rows in sorted(days.items()):
        _tell(
            report, workspace, window, day, {**shown, **show.partition_rows(in_all[day]), **show.rows_written(rows)}
        )


def _tell(report: Report, workspace: Workspace, window: str, day: str, about: show.Metadata) -> None:
    asset = key(workspace.file, tables.window_table(window))
    report(AssetMaterialization(asset, partition=day, metadata=about))


def days_held(workspace: Workspace, windows: Iterable[str]) -> dict[str, set[str]]:
    """Return the days with results as of the last commit, by window, except days that Dagster does not show."""
    found = dict[str, set[str]]()
    for window in windows:
        table = tables.window_table(window)
        days = rows_by_day(workspace, table) if workspace.exists and workspace.lake.exists(table) else ()
        found[window] = {day for day in days if _may_be_shown(workspace.spec, day)}
    return found


def show_days_held(
    instance: DagsterInstance, workspace: Workspace, before: Mapping[str, Collection[str]] | None = None
) -> None:
    """Let Dagster show the days with results as of the last commit, and no other; by default of all windows.

    `before` has the days with results before a batch, by the windows that it wrote. Shown ones stay until the next
    call: a condition of an asset downstream sees what is reported of a day only while the day is shown.
    """
    for window in (one for one in workspace.spec.windows if before is None or one.name in before):
        held = days_held(workspace, [window.name])[window.name]
        shown = shown_days(instance, workspace.spec, window.name)
        stay = held.union(before[window.name]) if before is not None else held
        _remove(instance, _name(workspace.spec, window.name), [day for day in shown if day not in stay])
        show_days(instance, workspace.spec, window.name, held)


def show_days_first(instance: DagsterInstance, workspace: Workspace) -> bool:
    """Add the days of the tables where an instance has none yet, and report shown days that it never saw made.

    The instance is new, or of a version that kept no list or reported no such days. While a day is shown and not
    materialized, conditions of assets downstream wait for it. Return whether some are left: of many days, those are
    reported that a run or look has time for, the newest first.
    """
    end = time.monotonic() + _LONGEST_S
    for window in workspace.spec.windows:
        table = tables.window_table(window.name)
        if not shown_days(instance, workspace.spec, window.name):
            show_days(instance, workspace.spec, window.name, days_held(workspace, [window.name])[window.name])
        told = instance.get_materialized_partitions(key(workspace.file, table))
        untold = [day for day in shown_days(instance, workspace.spec, window.name) if day not in told]
        rows = rows_of_days(workspace, table, filter(_is_day, untold)) if untold and workspace.exists else {}
        shown = show.table_rows(workspace.lake, table) if rows else {}
        for day, n in sorted(rows.items(), reverse=True):  # a day that a person has added has no rows yet
            if time.monotonic() > end:
                return True
            about = {**shown, **show.partition_rows(n)}
            _tell(instance.report_runless_asset_event, workspace, window.name, day, about)
    return False


def ensure_day(key: str) -> None:
    """Check that a partition is a day: Dagster's dialog takes any text for a new one.

    Raises:
        SpecError: It is not a day.
    """
    if not _is_day(key):
        raise SpecError(
            f"The partition `{key}` is no day",
            expected="a day such as 2026-01-31",
            remedy="delete this partition in Dagster, and choose days",
        )


def _is_day(key: str) -> bool:
    try:
        date.fromisoformat(key)
    except ValueError:
        return False
    return is_plain_day(key)


def _name(spec: Spec, window: str) -> str:
    return f"{spec.name}/{tables.window_table(window)}"


def _may_be_shown(spec: Spec, day: str) -> bool:
    """Return whether a day can be computed anew, and is not left out by the spec."""
    start = spec.partitions.start
    return is_plain_day(day) and (start is None or date.fromisoformat(day) >= start)


def _remove(instance: DagsterInstance, name: str, days: Iterable[str]) -> None:
    for day in days:
        instance.delete_dynamic_partition(name, day)
