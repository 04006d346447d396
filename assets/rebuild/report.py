"""The report of a rebuild to Dagster: the tables and the days that it wrote, and the checks of what it wrote.

Not here: a live run and a backfill (../live.py, ../backfill/partitions.py), the results of checks as Dagster shows
them (../display/evaluations.py).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import dagster as dg
import pyarrow.compute as pc

from tidemark.assets.alerts import check_alert
from tidemark.assets.batch import BatchWriter
from tidemark.assets.checks import CHECKS, expectations
from tidemark.assets.day_checks import view_of
from tidemark.assets.day_partitions import show_days_held, tell_days
from tidemark.assets.day_versions import data_version, stage_version
from tidemark.assets.display import metadata as show
from tidemark.assets.display.evaluations import evaluation_of, note_failures
from tidemark.assets.rebuild.replaying import decides_on_letters
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.assets.runs import Report, key
from tidemark.assets.windows import rows_by_day
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.queries import pieces
from tidemark.resources.quality.checks import Checked
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec


@dataclass(frozen=True)
class Telling:
    """How Dagster is told of a rebuild.

    Attributes:
        instance: Its instance.
        report: Reports under the run that rebuilds.
    """

    instance: dg.DagsterInstance
    report: Report


def tell_rebuilt(telling: Telling, shadow: Shadow, commit: Commit, before: Mapping[str, int]) -> None:
    """Report a rebuild as a live run that wrote the same; `before` has the versions of windows' tables before it."""
    workspace = shadow.workspace
    about = {"batch": show.number_of(commit.plan)}
    last = workspace.batches.last_commit("process")
    assert last is not None  # there is nothing to rebuild otherwise
    judged = BatchWriter(workspace, last.plan)
    days_before = {
        window.name: rows_by_day(workspace, table, version=before[table]) if table in before else Counter[str]()
        for window, table in ((window, tables.window_table(window.name)) for window in shadow.chosen)
    }
    show_days_held(telling.instance, workspace, days_before)
    for window in shadow.chosen:
        differs = window.change_feed or decides_on_letters(shadow.plan)
        days = _written_days(workspace, window, before, days_before[window.name], differs=differs)
        tell_days(telling.instance, telling.report, workspace, view_of(workspace, window), days, about=about)
    for name in _written(shadow):
        has_rows = name in (*workspace.tables, tables.BATCHES)
        rows = show.table_rows(workspace.lake, name) if has_rows else {}
        rows |= show.losses(judged) if name == tables.DEAD_LETTERS else {}
        tags = data_version(stage_version(workspace.spec, name, commit.plan))
        telling.report(dg.AssetMaterialization(key(workspace.file, name), metadata={**rows, **about}, tags=tags))
        if name != tables.BATCHES:
            _tell_checks(telling, shadow, name, judged)


def _written(shadow: Shadow) -> list[str]:
    """Return the assets of a live run whose tables the rebuild wrote."""
    results = ["window_results"] if shadow.chosen else []
    ordered = [tables.ORDERED_EVENTS] if tables.ORDERED_EVENTS in shadow.plan.tables else []
    return [*ordered, *results, tables.DEAD_LETTERS, tables.BATCHES]


def _written_days(
    workspace: Workspace, window: WindowSpec, before: Mapping[str, int], old: Counter[str], *, differs: bool
) -> Mapping[str, int]:
    """Count the rows that the rebuild wrote by day: all of them, or only the ones that differ.

    `old` has the rows of days before it. A day that has lost all its results has 0.
    """
    table, now = tables.window_table(window.name), rows_by_day(workspace, tables.window_table(window.name))
    if not differs or table not in before:
        return {day: now[day] for day in now.keys() | old}
    batches = _batches(workspace, table, workspace.base_of(table)) - _batches(workspace, table, before[table])
    written = rows_by_day(workspace, table, [(c.BATCH, "in", sorted(batches))]) if batches else {}
    return {day: written.get(day, 0) for day in now.keys() | old if day in written or now[day] != old[day]}


def _batches(workspace: Workspace, table: str, version: int) -> set[int]:
    found = set[int]()
    for piece in pieces(workspace.lake, table, version, [c.BATCH]):
        found.update(pc.unique(piece[c.BATCH]).to_pylist())
    return found


def _tell_checks(telling: Telling, shadow: Shadow, name: str, judged: BatchWriter) -> None:
    """Report the checks of what a rebuild wrote; one that it did not repeat holds as it did before.

    Alerts are compared as of the last batch of records: `tidemark status` names the checks of it that fail.
    """
    workspace, asset = shadow.workspace, key(shadow.workspace.file, name)
    done = list(_checked(shadow, name, judged))
    note_failures(judged, name, done)
    for checked in done:
        telling.report(evaluation_of(judged, asset, checked, blocks=checked.expectation.blocking))
    repeated = {checked.expectation for checked in done}
    for expectation in expectations(workspace.spec)[name]:
        if expectation not in repeated:
            _tell_again(telling, dg.AssetCheckKey(asset, expectation.name))


def _checked(shadow: Shadow, name: str, judged: BatchWriter) -> Iterator[Checked]:
    for expectation in expectations(shadow.workspace.spec)[name]:
        if expectation not in CHECKS[name]:
            yield check_alert(judged, expectation)
        elif expectation in shadow.checked:
            yield shadow.checked[expectation]


def _tell_again(telling: Telling, check: dg.AssetCheckKey) -> None:
    found = telling.instance.event_log_storage.get_latest_asset_check_execution_by_key([check]).get(check)
    event = found.event.dagster_event if found is not None and found.event is not None else None
    if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        old = event.asset_check_evaluation_data
        telling.report(
            dg.AssetCheckEvaluation(
                asset_key=check.asset_key,
                check_name=check.name,
                passed=old.passed,
                severity=old.severity,
                description=old.description,
                metadata=old.metadata,
                blocking=old.blocking,
            )
        )
