"""The report of a rebuild to Dagster: the tables and the days that it wrote, the checks of them, and what differs.

Not here: a live run and a backfill (assets/live.py, assets/rebuild/day_assets.py), the results of checks as Dagster
shows them (assets/catalog/display/evaluations.py).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
import pyarrow.compute as pc

from tidemark.assets.alarms.alerts import check_alert
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import BatchWriter
from tidemark.assets.catalog.days.checks import view_of
from tidemark.assets.catalog.days.counts import rows_by_day
from tidemark.assets.catalog.days.partitions import note_told, show_days_held, tell_days, untold_days
from tidemark.assets.catalog.days.versions import data_version, stage_version, stale_days
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.display.evaluations import evaluation_of, note_failures
from tidemark.assets.catalog.runs import Report, key
from tidemark.assets.checks import checks_of, expectations_by_asset
from tidemark.assets.log.control import due
from tidemark.assets.rebuild.decisions.forgetting import forgets
from tidemark.assets.rebuild.decisions.replaying import decides_on_letters
from tidemark.assets.rebuild.differences import WindowDifference, differences_since
from tidemark.assets.rebuild.plan import RebuildPlan
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.queries import pieces
from tidemark.resources.quality.checks import Checked
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import WindowSpec

_MOST_SHOWN = 20  # results, or days, of a window in a table


@dataclass(frozen=True)
class Telling:
    """How a rebuild is reported to Dagster.

    Attributes:
        instance: Its instance.
        report: Reports under the run that rebuilds.
    """

    instance: dg.DagsterInstance
    report: Report


@dataclass(frozen=True)
class TablesBefore:
    """The tables of windows before a rebuild, and the days that are reported whatever differs.

    Attributes:
        versions: The versions of the tables; of a table that is new or broken there is none.
        days: The rows of each day, by window.
        due: By window, days with rows of an earlier code version, and days that no batch has reported yet. None: all
            days are reported.
    """

    versions: Mapping[str, int]
    days: Mapping[str, Counter[str]]
    due: Mapping[str, set[str]] | None


def before_switch(telling: Telling, shadow: Shadow, broken: Collection[str]) -> TablesBefore:
    """Return what Dagster needs to know after a rebuild of what was before it.

    A rebuild for a person or a changed spec reports all days. A decision on records, or a correction, reports the
    days that differ, as assets downstream are computed again for each day that is reported.
    """
    workspace = shadow.workspace
    last = workspace.batches.last_commit()
    had = {table for table in workspace.window_tables.values() if last and table in last.table_versions}
    versions = {table: workspace.base_of(table) for table in had.difference(broken)}
    days = {
        window.name: rows_by_day(workspace, table, version=versions[table]) if table in versions else Counter[str]()
        for window, table in ((window, tables.window_table(window.name)) for window in shadow.chosen)
    }
    if not (shadow.plan.items or due(workspace).sentences):
        return TablesBefore(versions, days, None)
    untold = untold_days(telling.instance, workspace)
    return TablesBefore(
        versions,
        days,
        {
            window.name: stale_days(workspace, window, days[window.name]).union(untold.get(window.name, {}))
            for window in shadow.chosen
            if tables.window_table(window.name) in versions
        },
    )


def tell_rebuilt(
    telling: Telling, shadow: Shadow, commit: Commit, tables_before: TablesBefore
) -> tuple[WindowDifference, ...]:
    """Report a rebuild as a live run that wrote the same; return what differs, if it is told by what differs."""
    workspace = shadow.workspace
    about = {"batch": show.number_of(commit.plan)}
    last = workspace.batches.last_commit("process")
    assert last is not None  # there is nothing to rebuild otherwise
    lost = BatchLosses(BatchWriter(workspace, last.plan))
    differs = differences_since(workspace, tables_before.versions) if tables_before.due is not None else ()
    differing = {difference.window: difference.days for difference in differs}
    show_days_held(telling.instance, workspace, tables_before.days)
    for window in shadow.chosen:
        days = _written_days(workspace, window, tables_before)
        if tables_before.due is not None and window.name in tables_before.due:
            of_these = tables_before.due[window.name].union(differing[window.name])
            days = {day: n for day, n in days.items() if day in of_these}
        if days:
            tell_days(telling.instance, telling.report, workspace, view_of(workspace, window), days, about=about)
    if shadow.plan.scope.of_all:
        note_told(telling.instance, workspace.spec, commit.batch_id)
    has_forgotten = forgets(shadow.plan)
    if has_forgotten:
        rows = show.table_rows(workspace.lake, tables.RAW_EVENTS)
        telling.report(dg.AssetMaterialization(key(workspace.file, tables.RAW_EVENTS), metadata={**rows, **about}))
    for name in _written_assets(shadow):
        has_rows = name in (*workspace.tables, tables.BATCHES)
        rows = show.table_rows(workspace.lake, name) if has_rows else {}
        rows |= show.losses(lost) if name == tables.DEAD_LETTERS else {}
        tags = data_version(stage_version(workspace.spec, name, commit.plan))
        telling.report(dg.AssetMaterialization(key(workspace.file, name), metadata={**rows, **about}, tags=tags))
        if name != tables.BATCHES:
            _tell_checks(telling, shadow, name, lost, repeats=not has_forgotten)
    return differs


def of_decision(plan: RebuildPlan, differs: Sequence[WindowDifference]) -> show.Metadata:
    """Show what a decision on records changes, or would, by window: how many results, which, and the days."""
    if not plan.items and not differs:
        return {}
    if forgets(plan):  # Dagster keeps no value of a result that a forgotten record was in
        counts = [{"window": window.window, **window.counts, "days": _in_words(window.days)} for window in differs]
        return {"records forgotten": plan.records, "differences": show.rows_as_table(counts)}
    heading = "records let in or refused again" if decides_on_letters(plan) else "records taken out or back"
    counts = [{"window": window.window, **window.counts, "days": _in_words(window.days)} for window in differs]
    shown = [
        {"window": window.window, **row.key, "before": row.before, "after": row.after}
        for window in differs
        for row in window.rows[:_MOST_SHOWN]
    ]
    return {
        **({heading: plan.records} if plan.records else {}),
        "differences": show.rows_as_table(counts),
        **({"results": show.rows_as_table(shown)} if shown else {}),
        "days": dg.MetadataValue.json({window.window: [*window.days] for window in differs}),
    }


def _in_words(days: Sequence[str]) -> str:
    ending = f" and {len(days) - _MOST_SHOWN:,} more" if len(days) > _MOST_SHOWN else ""
    return ", ".join(days[:_MOST_SHOWN]) + ending


def _written_assets(shadow: Shadow) -> list[str]:
    """Return the assets of a live run whose tables the rebuild wrote."""
    results = ["window_results"] if shadow.chosen else []
    ordered = [tables.ORDERED_EVENTS] if tables.ORDERED_EVENTS in shadow.plan.tables else []
    joins = [table for table in shadow.plan.tables if table.startswith(tables.join_table(""))]
    return [*ordered, *results, *joins, tables.DEAD_LETTERS, tables.BATCHES]


def _written_days(workspace: Workspace, window: WindowSpec, tables_before: TablesBefore) -> Mapping[str, int]:
    """Count the rows that the rebuild wrote by day. A day that has lost results and got none has 0."""
    table, old = tables.window_table(window.name), tables_before.days[window.name]
    now, batches = rows_by_day(workspace, table), _batches(workspace, table, workspace.base_of(table))
    if table in tables_before.versions:
        batches -= _batches(workspace, table, tables_before.versions[table])
    written = rows_by_day(workspace, table, [(c.BATCH, "in", sorted(batches))]) if batches else Counter[str]()
    return {day: written[day] for day in now.keys() | old if day in written or now[day] != old[day]}


def _batches(workspace: Workspace, table: str, version: int) -> set[int]:
    batches = set[int]()
    for piece in pieces(workspace.lake, table, version, [c.BATCH]):
        batches.update(pc.unique(piece[c.BATCH]).to_pylist())
    return batches


def _tell_checks(telling: Telling, shadow: Shadow, name: str, lost: BatchLosses, *, repeats: bool) -> None:
    """Report the checks of what a rebuild wrote; one that it did not repeat holds as it did before, and `repeats`.

    Alerts are compared as of the last batch of records: `tidemark status` names the checks of it that fail.
    """
    workspace, asset = shadow.workspace, key(shadow.workspace.file, name)
    checks = list(_checked(shadow, name, lost))
    note_failures(lost.batch, name, checks)
    for checked in checks:
        telling.report(evaluation_of(lost, asset, checked, blocks=checked.expectation.blocking))
    repeated = {checked.expectation for checked in checks}
    for expectation in expectations_by_asset(workspace.spec)[name]:
        if repeats and expectation not in repeated:
            _tell_again(telling, dg.AssetCheckKey(asset, expectation.name))


def _checked(shadow: Shadow, name: str, lost: BatchLosses) -> Iterator[Checked]:
    for expectation in expectations_by_asset(shadow.workspace.spec)[name]:
        if expectation not in checks_of(shadow.workspace.spec)[name]:
            yield check_alert(lost, expectation)
        elif expectation in shadow.checked:
            yield shadow.checked[expectation]


def _tell_again(telling: Telling, check: dg.AssetCheckKey) -> None:
    execution = telling.instance.event_log_storage.get_latest_asset_check_execution_by_key([check]).get(check)
    event = execution.event.dagster_event if execution is not None and execution.event is not None else None
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
