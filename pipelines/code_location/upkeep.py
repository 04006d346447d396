"""Upkeep of a pipeline, between its runs: few files, none that is obsolete, no old rows, checks or runs.

Here: which tables, by what they are read, what has to stay, which of Dagster's runs still describe the present, and
the job. Not here: a table (resources/delta/files.py), old rows (assets/upkeep/removal.py), the command's words
(pipelines/commands/operating.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import dagster as dg
import sqlalchemy
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from pydantic import Field

from tidemark.assets.catalog.days.partitions import show_days_first, show_days_held
from tidemark.assets.catalog.runs import job_of, key
from tidemark.assets.rebuild.decisions.erasing import unfinished
from tidemark.assets.rebuild.shadow import discard_left_over
from tidemark.assets.upkeep.removal import Removal, old_rows, remove_old
from tidemark.resources import tables
from tidemark.resources.delta.undoing import same_rows
from tidemark.resources.delta.upkeep import Size, compact, keep_readable, mend_bounds, size_of, trim_log, vacuum
from tidemark.resources.quality.failures import forget_failures
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace, silent
from tidemark.timeops.columns import TIMESTAMP
from tidemark.timeops.errors import BusyError, SpecError
from tidemark.timeops.values.durations import parse_duration

LEAST = timedelta(hours=1)
"""Files that a run or a reader has opened must stay until it is done."""

BY_HAND = "__ASSET_JOB"
"""Dagster's own job, in which assets are materialized by hand: of all pipelines, and others."""

_BY_TIME = (tables.HELD_EVENTS, *tables.BY_TIME)
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 200
_T = TypeVar("_T")


@dataclass(frozen=True)
class Kept:
    """The result of the upkeep of a table: its sizes, and bytes of the files that were deleted."""

    table: str
    before: Size
    after: Size
    freed: int


@dataclass(frozen=True)
class Upkeep:
    """The result of the upkeep of a pipeline: of each table, files of failed checks and runs that went, old rows."""

    tables: tuple[Kept, ...]
    failures: int
    runs: int
    removal: Removal

    @property
    def files(self) -> tuple[int, int]:
        """Data files of the latest versions, before and after."""
        return sum(table.before.files for table in self.tables), sum(table.after.files for table in self.tables)

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of all files of the tables, old versions and logs among them, before and after."""
        return sum(table.before.in_all for table in self.tables), sum(table.after.in_all for table in self.tables)

    @property
    def freed(self) -> int:
        """Bytes of the files that were deleted."""
        return sum(table.freed for table in self.tables)


def maintain(
    file: SpecFile,
    settings: Settings,
    retain: timedelta,
    *,
    instance: dg.DagsterInstance,
    tell: Callable[[str], None] = silent,
) -> Upkeep:
    """Remove the rows that `retention` says; join small files; delete obsolete ones, and old failed checks and runs.

    The last commit stays readable, so does every commit that is younger than `retain`, and the state from which
    backfills begin.

    Raises:
        SpecError: `retain` is too short.
        TidemarkError: Anything else prevents it.
    """
    workspace = Workspace(file, settings.warehouse, tell=tell)
    ensure_may_keep_up(workspace, retain)
    removal = remove_old(workspace, str(uuid4()))
    maintained = keep_up(workspace, retain)
    limit = workspace.clock.now() - retain
    failures = forget_failures(workspace.folder, limit) if workspace.exists else 0
    tell("looking after Dagster's runs")
    show_days_held(instance, workspace)
    show_days_first(instance, workspace)
    runs = forget_runs(file, instance, jobs_of(file), limit, settings.dagster_home)
    return Upkeep(maintained, failures, runs, removal)


def look_for_old_rows(file: SpecFile, settings: Settings) -> Removal:
    """Return the rows that `maintain` would remove; nothing is written.

    Raises:
        LakeError: A table is lost or damaged.
    """
    workspace = Workspace(file, settings.warehouse)
    workspace.ensure_whole()
    return old_rows(workspace)


def jobs_of(file: SpecFile) -> tuple[str, ...]:
    """Return the jobs whose runs may be of a pipeline; BY_HAND is of all of them."""
    work = ("live", "rebuild", "rejudge", "replay", "forget", "ask", "maintain", "audit")
    return (*(f"{file.spec.name}_{work_name}" for work_name in work), BY_HAND)


def ensure_may_keep_up(workspace: Workspace, retain: timedelta) -> None:
    """Check that files of old versions may be deleted.

    Raises:
        SpecError: `retain` is too short.
        BusyError: Forgetting has not come to its end.
    """
    if retain < LEAST:
        raise SpecError(
            f"{workspace.spec.name}: {retain} is too short: a run or a reader would lose files that it has opened",
            expected="an hour or more",
            remedy="wait, or choose 1 hour",
        )
    if unfinished(workspace):
        raise BusyError(
            f"`tidemark forget` has blanked records of {workspace.spec.name} and has not looked for them yet.",
            expected="that it comes to its end first: old files say what it looks for",
            remedy="Run it again with the same condition.",
        )


def keep_up(workspace: Workspace, retain: timedelta) -> tuple[Kept, ...]:
    """Do the part of `maintain` that looks after tables, where `ensure_may_keep_up` allows it."""
    if not workspace.exists:
        return ()
    discard_left_over(workspace)
    names = (*workspace.tables, tables.BATCHES)
    return tuple(_keep_up(workspace, table, retain) for table in names if workspace.lake.exists(table))


def _keep_up(workspace: Workspace, table: str, retain: timedelta) -> Kept:
    workspace.tell(f"maintaining {table}")
    lake, freed = workspace.lake, 0
    size_before = size_of(lake, table)
    if table != tables.BATCHES:  # every look opens it, so the runs compact it themselves
        compact(lake, table, _read_by(workspace, table))
    lake.state_bounds(table)
    mend_bounds(lake, table)
    if table != tables.TIMELINES:  # backfills begin with any version of it that a commit names
        committed = 0 if table == tables.BATCHES else workspace.batches.base_versions([table])[table]
        versions = same_rows(lake, table, committed) if committed else []
        keep_readable(lake, table, committed or lake.version(table), retain)
        freed = vacuum(lake, table, retain, versions) + trim_log(lake, table, retain, versions)
    return Kept(table, size_before, size_of(lake, table), freed)


def _read_by(workspace: Workspace, table: str) -> str | None:
    """Return the column by which a table is read; None if that is the order in which it was written.

    It is None for the log, for what is released from it, and for all that is numbered by batches.
    """
    if table in _BY_TIME:
        return TIMESTAMP
    if table == tables.FIRST_TIMES:
        return "event_us"
    if table.startswith((tables.join_table(""), tables.joining_table(""))):
        return TIMESTAMP
    return "window_start" if table in workspace.result_tables else None


class UpkeepSettings(dg.Config):
    """Run config of the job."""

    retain: str = Field("7 days", description="How long commits stay readable, and runs and failed checks stay.")


def upkeep_job(file: SpecFile, settings: Settings) -> dg.JobDefinition:
    """Build the job that looks after a pipeline. It is in no pool, as it works while runs do."""
    name = file.spec.name

    @dg.op(name=f"{name}__maintain", description="Maintains the tables, the failed checks and the runs.")
    def look_after(context: dg.OpExecutionContext, config: UpkeepSettings) -> None:
        retain = parse_duration(config.retain)
        upkeep = maintain(file, settings, retain, instance=context.instance, tell=context.log.info)
        files_before, files_after = upkeep.files
        numbers = {"files_before": files_before, "files": files_after, "bytes_freed": upkeep.freed}
        numbers["rows_removed"] = upkeep.removal.rows
        for old in upkeep.removal.old:
            context.log.info(f"{old.table}: {old.rows:,} old rows removed, kept from {old.gone.first_day} on")
        if upkeep.removal.waits:
            context.log.warning(f"no old rows were removed: {upkeep.removal.waits}")
        context.add_output_metadata({**numbers, "failures_deleted": upkeep.failures, "runs_deleted": upkeep.runs})

    about = f"Maintains {name}: removes the rows that `retention` says, joins small files, deletes old files, failed "
    about += "checks and runs. Works alongside runs."
    return job_of(look_after, f"{name}_maintain", about)


def forget_runs(
    file: SpecFile, instance: dg.DagsterInstance, jobs: Iterable[str], before: datetime, home: Path
) -> int:
    """Delete the runs that ended and were made before an instant, with their events, pictures and logs.

    What stays: of each asset the run of its newest materialization, of windows that of each day, so that no day is
    shown as missing.

    Returns:
        How many runs were deleted.
    """
    stays = _newest(file, instance)
    forgotten = 0
    for name in jobs:
        for run in instance.get_runs(dg.RunsFilter(job_name=name, statuses=ENDED, created_before=before)):
            if run.run_id not in stays and is_run_of(file, run):
                forget_run(instance, run.run_id, home)
                forgotten += 1
    _forget_checks(file, instance)
    return forgotten


def _forget_checks(file: SpecFile, instance: dg.DagsterInstance) -> None:
    """Delete the results of checks whose runs are gone, but the newest of each check and day.

    Dagster leaves them when it deletes a run (1.13.27), with all that they say: most of what a batch stores.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):  # a storage of others has ways of its own
        return
    results, of_check = AssetCheckExecutionsTable, AssetCheckExecutionsTable.c
    newest = sqlalchemy.func.max(of_check.id)
    with storage.index_connection() as connection:
        texts = connection.execute(sqlalchemy.select(of_check.asset_key).distinct()).scalars()
        asset_keys = {text: dg.AssetKey.from_db_string(text) for text in texts}
        is_ours = of_check.asset_key.in_([text for text, asset in asset_keys.items() if asset and _has(file, asset)])
        newest_ids = sqlalchemy.select(newest).where(is_ours)
        newest_ids = newest_ids.group_by(of_check.asset_key, of_check.check_name, of_check.partition)
        kept_ids = {number for (number,) in connection.execute(newest_ids)}
        rows = connection.execute(sqlalchemy.select(of_check.id, of_check.run_id).where(is_ours)).all()
    by_run: dict[str, list[int]] = {}
    for number, run_id in rows:
        if run_id and number not in kept_ids:
            by_run.setdefault(run_id, []).append(number)
    for run_ids in _in_parts([*by_run]):
        stored_run_ids = {*instance.get_run_ids(dg.RunsFilter(run_ids=run_ids))}
        for numbers in _in_parts(
            [number for run_id in run_ids if run_id not in stored_run_ids for number in by_run[run_id]]
        ):
            with storage.index_connection() as connection:
                connection.execute(results.delete().where(of_check.id.in_(numbers)))


def _in_parts(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yield some values at a time, no more than a query of Dagster may name."""
    for at in range(0, len(values), _AT_ONCE):
        yield values[at : at + _AT_ONCE]


def is_run_of(file: SpecFile, run: dg.DagsterRun) -> bool:
    """Return whether a run is of this pipeline alone: of a job of its own, or of chosen assets and checks of it."""
    checks = [check.asset_key for check in run.asset_check_selection or ()]
    chosen = [*(run.asset_selection or ()), *checks]
    if not chosen:
        return run.job_name != BY_HAND
    return all(_has(file, asset) for asset in chosen)


def _has(file: SpecFile, asset: dg.AssetKey) -> bool:
    return asset.path[0] == file.spec.name or (*asset.path,) in file.asset_keys.values()


def forget_run(instance: dg.DagsterInstance, run_id: str, home: Path) -> None:
    """Delete a run that has ended, with its events and what its steps have printed."""
    instance.delete_run(run_id)
    with suppress(NotImplementedError, OSError):
        instance.compute_log_manager.delete_logs(prefix=[run_id])
    # Dagster's storage in SQLite has a file for each run, and leaves it there without rows.
    for file in (home / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink(missing_ok=True)


def _newest(file: SpecFile, instance: dg.DagsterInstance) -> set[str]:
    """Return the runs that made the newest materialization of an asset, or of a day of one."""
    stays: set[str] = set()
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    joins = [tables.join_table(join.name) for join in file.spec.joins]
    for name in ("raw_events", "ordered_events", "window_results", *joins, "dead_letters", "batches"):
        event = instance.get_latest_materialization_event(key(file, name))
        if event is not None:
            stays.add(event.run_id)
    for window in file.spec.windows:
        asset = key(file, f"windows/{window.name}")
        for numbers in _in_parts(sorted(instance.get_latest_storage_id_by_partition(asset, kind).values())):
            newest = dg.AssetRecordsFilter(asset, storage_ids=numbers)
            result = instance.fetch_materializations(newest, limit=len(numbers))
            stays |= {record.run_id for record in result.records}
    return stays
