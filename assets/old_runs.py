"""Old runs of a pipeline in Dagster: forgotten with their events, but for those that still say how things are.

Here: which runs, and their deletion. Not here: the tables of the pipeline (upkeep.py).
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus, EventRecordsFilter, RunsFilter

from tidemark.assets.live import key
from tidemark.timeops.spec import Spec

_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
_AT_ONCE = 200


def forget_runs(spec: Spec, instance: DagsterInstance, jobs: Iterable[str], before: datetime, home: Path) -> int:
    """Deletes the runs that ended and were made before an instant, with their events, pictures and logs.

    What stays: of each asset the run of its newest materialization, of windows that of each day, so that no day is
    shown as missing.

    Args:
        spec: The pipeline.
        instance: Where Dagster records runs.
        jobs: Names of the pipeline's jobs.
        before: The instant.
        home: Folder of Dagster.

    Returns:
        How many runs were deleted.
    """
    stays = _newest(spec, instance)
    forgotten = 0
    for job in jobs:
        for run in instance.get_runs(RunsFilter(job_name=job, statuses=_ENDED, created_before=before)):
            of_others = [one for one in run.asset_selection or () if one.path[0] != spec.name]
            if run.run_id not in stays and not of_others:
                _forget(instance, run.run_id, home)
                forgotten += 1
    return forgotten


def _forget(instance: DagsterInstance, run_id: str, home: Path) -> None:
    instance.delete_run(run_id)
    with suppress(NotImplementedError, OSError):
        instance.compute_log_manager.delete_logs(prefix=[run_id])
    # Dagster's storage in SQLite has a file for each run, and leaves it there without rows.
    for file in (home / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink(missing_ok=True)


def _newest(spec: Spec, instance: DagsterInstance) -> set[str]:
    """The runs that made the newest materialization of an asset, or of a day of one."""
    stays: set[str] = set()
    kind = DagsterEventType.ASSET_MATERIALIZATION
    for name in ("raw_events", "ordered_events", "window_results", "dead_letters", "batches"):
        event = instance.get_latest_materialization_event(key(spec, name))
        if event is not None:
            stays.add(event.run_id)
    for window in spec.windows:
        asset = key(spec, f"windows/{window.name}")
        numbers = sorted(instance.get_latest_storage_id_by_partition(asset, kind).values())
        for at in range(0, len(numbers), _AT_ONCE):
            some = numbers[at : at + _AT_ONCE]
            found = instance.get_event_records(EventRecordsFilter(kind, asset_key=asset, storage_ids=some))
            stays |= {record.run_id for record in found}
    return stays
