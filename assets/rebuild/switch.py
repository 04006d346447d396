"""The switch: all tables of a pipeline take what its rebuild has made, and one commit names it.

Here: what is written into the pipeline's tables. Not here: making it (shadow.py), which versions readers see
(resources/batches/).

Each table gets one commit that takes away all of its files and adds those of the rebuild. Until the commit in
`batches` readers stay at the old versions. If the run dies before, the tables have what an attempt without a commit
wrote: the next run takes it back, and the next rebuild switches again, as the tables beside still have their files.
"""

import json
from collections.abc import Collection
from functools import partial

import pyarrow as pa
from pyspark.sql.types import StructType

from tidemark.assets.log_control import REBUILD
from tidemark.assets.planning import at_work
from tidemark.assets.rebuild.shadow import Shadow, when_free
from tidemark.resources import tables
from tidemark.resources.batches.plans import NUMBERS, Commit, Plan, this_process
from tidemark.resources.catalog import keep_names
from tidemark.resources.lake.opened import Version
from tidemark.resources.workspace import LOST_TABLES, Workspace
from tidemark.timeops.errors import LakeError


def rebuild(workspace: Workspace, run_id: str, reason: str | None = None) -> Commit:
    """Make all derived tables anew from the log under the spec as it is, and switch to them in one commit.

    Live runs may go on meanwhile; what they process comes too. A rebuild that was stopped goes on where it was.

    Args:
        workspace: The pipeline.
        run_id: Names who does it.
        reason: Why; kept in `batches` and `log_control`.

    Returns:
        The commit; it counts the records, and the batches that it made.

    Raises:
        LakeError: There is no log to judge, or a check failed.
        SpecError: The spec does not go with the log.
        BusyError: Another rebuild is at work.
    """
    shadow = Shadow(workspace, run_id)
    shadow.begin()
    shadow.catch_up()
    shadow.keep_numbers()
    plan, broken = when_free(workspace, partial(_plan, shadow))
    with at_work(workspace, plan):
        shadow.catch_up(is_last=True)
        committed = _switch(shadow, plan, broken, reason)
    keep_names(workspace)
    shadow.discard()
    return committed


def _plan(shadow: Shadow) -> tuple[Plan, Collection[str]]:
    """Take on the batch that switches the tables; return it, and the tables that are broken.

    Raises:
        BusyError: A run is at work.
        LakeError: The spec that live runs go by has changed since the rebuild began.
    """
    workspace = shadow.workspace
    last, end = workspace.batches.last_commit(), workspace.processed_end()
    if last is None or shadow.is_superseded:
        raise LakeError(
            "Another rebuild has begun, or live runs go by another spec since this one began.",
            expected="one spec until a rebuild ends",
            remedy="Run `tidemark rebuild SPEC` again: it begins anew. The tables are as they were",
        )
    broken = workspace.broken_tables()
    # Those whose log is gone or cannot be read begin in an empty folder.
    given = {NUMBERS: shadow.numbers, LOST_TABLES: [table for table in broken if not _has_log(workspace, table)]}
    plan = workspace.batches.begin(
        "rebuild",
        this_process(shadow.run_id),
        workspace.clock.now(),
        after=last.batch_id,
        first_seq=0,
        end_seq=end,
        input=given,
        fingerprint=workspace.spec.fingerprint(),
    )
    return plan, broken


def _has_log(workspace: Workspace, table: str) -> bool:
    try:
        workspace.lake.open(table)
    except LakeError:
        return False
    return True


def _switch(shadow: Shadow, plan: Plan, broken: Collection[str], reason: str | None) -> Commit:
    """Give all tables what the rebuild has made."""
    workspace, beside = shadow.workspace, shadow.tables
    made = {table: beside.lake.opened.seen(table, beside.base_of(table)) for table in beside.tables}
    del made[tables.LOG_CONTROL]
    feeds = {tables.window_table(window.name) for window in workspace.spec.windows if window.change_feed}
    for table, version in made.items():
        if table in plan.input[LOST_TABLES]:
            workspace.lake.make_anew(table)
        if not workspace.lake.exists(table):
            workspace.lake.create(table, _schema_of(version), change_feed=table in feeds)
    workspace.prepare(plan, but=broken)
    workspace.tell(f"switching {len(made)} tables to what was made anew")
    of_broken = {}
    for table, version in made.items():
        compares = table in feeds and table not in broken
        written = _take_over(shadow, table, version, plan, compares=compares)
        if table in broken:
            of_broken[table] = written
    _write_log_control(shadow, plan, reason)
    versions = workspace.outputs(plan, but=broken) | of_broken | _emptied(workspace, plan, made)
    batches = beside.batches.history("process")
    counts = {"records": plan.end_seq or 0, "batches": len(batches)}
    return workspace.batches.commit(plan, counts, versions, workspace.clock.now(), reason=reason, made=batches)


def _schema_of(version: Version) -> StructType:
    return StructType.fromJson(json.loads(version.schema.to_json()))


def _take_over(shadow: Shadow, table: str, made: Version, plan: Plan, *, compares: bool) -> int:
    """Give a table what the rebuild has made of it; return its version.

    Args:
        shadow: The rebuild.
        table: The table.
        made: What the rebuild has made.
        plan: The batch.
        compares: Change only the rows that differ, where the columns are the same: the change feed tells no others.
    """
    lake = shadow.workspace.lake
    expect = lake.newest(table, 0)
    if compares and lake.opened.seen(table).schema == made.schema:
        rows = shadow.tables.lake.read(table, made.number)
        return lake.replace(table, rows, where=(), attempt=plan.attempt, expect=expect).version
    return lake.take_over(table, made, attempt=plan.attempt, expect=expect).version


def _write_log_control(shadow: Shadow, plan: Plan, reason: str | None) -> None:
    """Add the items of the log as it was judged anew, after one that says so."""
    workspace, beside = shadow.workspace, shadow.tables
    there = workspace.base_rows(tables.LOG_CONTROL).num_rows
    first = {"_after_seq": -1, "kind": REBUILD, "reason": reason or "tidemark rebuild", "_batch_id": plan.batch_id}
    again = beside.lake.rows(tables.LOG_CONTROL, beside.base_of(tables.LOG_CONTROL)).sort_by("_control_seq")
    rows = [first, *again.to_pylist()]
    items = [row | {"_control_seq": there + number} for number, row in enumerate(rows)]
    workspace.lake.append_rows(
        tables.LOG_CONTROL,
        pa.Table.from_pylist(items, schema=tables.LOG_CONTROL_SCHEMA),
        expect=workspace.ready(tables.LOG_CONTROL, plan),
        attempt=plan.attempt,
    )


def _emptied(workspace: Workspace, plan: Plan, made: Collection[str]) -> dict[str, int]:
    """Empty the tables of state that the spec has no more: a later spec must not go on from what is in them."""
    last = workspace.batches.last_commit()
    known = last.table_versions if last else {}
    gone = [name for name in known if name.startswith("_state/") and name not in made and name != tables.FILES]
    lake = workspace.lake
    return {
        table: lake.empty(table, attempt=plan.attempt, expect=lake.newest(table, 0)).version
        for table in gone
        if lake.exists(table) and _has_log(workspace, table)
    }
