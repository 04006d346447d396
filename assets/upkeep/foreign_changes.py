"""Changes of rows by other programs, such as a DELETE that was asked for: kept or taken back, in one commit.

Here: the decision of an operator as a batch of its own, and such a batch after files were mended. Not here: how such
changes are found (resources/delta/undoing.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from dagster import DagsterInstance

from tidemark.assets.catalog.days.checks import view_of
from tidemark.assets.catalog.days.counts import rows_by_day
from tidemark.assets.catalog.days.partitions import show_days_held, tell_days, without_run
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.planning import at_work, begin
from tidemark.resources import tables
from tidemark.resources.batches.plans import MENDED, Plan
from tidemark.resources.delta.undoing import ForeignChange, keep_foreign, take_back
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import LakeError


def decide_on_changes(
    workspace: Workspace, reason: str, run_id: str, *, keep: bool, instance: DagsterInstance
) -> list[ForeignChange]:
    """Keep the changes of others, or take them back, and note that in `batches`.

    Also takes back what an unfinished batch has written; the next run repeats that batch. Unless `keep`, tables are
    restored to the last commit. `batches` keeps the reason. Days with another number of rows are reported to Dagster
    now. Return the changes that were decided on.

    Raises:
        LakeError: There is nothing to decide on, or a change cannot be kept as it is.
        BusyError: A run is at work.
    """
    changes = workspace.changes_by_others
    if not changes:
        raise LakeError(
            f"Only Tidemark has changed rows of {workspace.spec.name} since its last commit. Nothing was done.",
            expected="a change such as a DELETE",
            remedy="Make the change first, while no run is at work.",
        )
    changed = {change.table for change in changes} if keep else set()
    rows_before = {name: rows_by_day(workspace, of) for name, of in workspace.window_tables.items() if of in changed}
    plan = _begin(workspace, run_id, "kept" if keep else "taken back", changes)
    with at_work(workspace, plan):
        versions = {
            table: keep_foreign(workspace.lake, table, version, plan.attempt)
            if keep
            else take_back(workspace.lake, table, version, plan.attempt, foreign=True)
            for table, version in workspace.base_of_existing.items()
        }
        workspace.batches.commit(plan, {"changes": len(changes)}, versions, workspace.clock.now(), reason=reason)
    _tell(instance, workspace, plan, rows_before)
    return changes


def commit_mended(workspace: Workspace, reason: str, run_id: str) -> None:
    """Let a commit name the version of the log in which lost files were read again, unless one does.

    Until then readers of commits cannot open it.

    Raises:
        BusyError: A run is at work.
    """
    versions = workspace.batches.base_versions([tables.RAW_EVENTS])
    if versions == {tables.RAW_EVENTS: workspace.base_of(tables.RAW_EVENTS)}:
        return
    plan = _begin(workspace, run_id, MENDED, ())
    with at_work(workspace, plan):
        versions = {
            table: take_back(workspace.lake, table, version, plan.attempt)
            for table, version in workspace.base_of_existing.items()
        }
        workspace.batches.commit(plan, {"changes": 0}, versions, workspace.clock.now(), reason=reason)


def _begin(workspace: Workspace, run_id: str, decision: str, changes: Sequence[ForeignChange]) -> Plan:
    last, end = workspace.batches.last_commit(), workspace.progress.processed_end()
    batch_input = {"decision": decision, "changes": [*map(_as_json, changes)]}
    fingerprint = last.plan.fingerprint if last else None
    return begin(workspace, run_id, "change", batch_input, after=last, seqs=(end, end), fingerprint=fingerprint)


def _tell(
    instance: DagsterInstance, workspace: Workspace, plan: Plan, rows_before: Mapping[str, Counter[str]]
) -> None:
    """Report the days of windows that lost or gained rows to Dagster, without a run."""
    show_days_held(instance, workspace, rows_before)
    report = without_run(instance, workspace)
    for window in (window for window in workspace.spec.windows if window.name in rows_before):
        now, rows = rows_by_day(workspace, workspace.window_tables[window.name]), rows_before[window.name]
        days = {day: max(now[day] - rows[day], 0) for day in now.keys() | rows if now[day] != rows[day]}
        about = {"batch": show.number_of(plan)}
        tell_days(instance, report, workspace, view_of(workspace, window), days, about=about)


def _as_json(change: ForeignChange) -> dict[str, object]:
    entry = change.entry
    return {
        "table": change.table,
        "version": entry.version,
        "operation": entry.operation,
        "rows_deleted": entry.deleted,
    }
