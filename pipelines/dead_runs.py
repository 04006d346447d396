"""Runs that Dagster takes for running although nobody works on them any more: after a power cut, a kill.

Here: which runs those are, and their end. Not here: when another one is launched (launching.py), whether a process
lives (resources/batches/plans.py).
"""

from datetime import datetime

from dagster import DagsterInstance, DagsterRunStatus, RunRecord, RunsFilter

from tidemark.assets.failures import PROCESS_TAG
from tidemark.resources.batches.plans import LEASE, is_gone, owner_in
from tidemark.resources.workspace import Workspace
from tidemark.timeops.durations import format_duration
from tidemark.timeops.utc import instant_of

_AT_WORK = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def end_dead_runs(workspace: Workspace, job: str, instance: DagsterInstance) -> list[str]:
    """Reports runs as failed whose process is gone, so that they keep neither the next run nor the pool.

    Looked at are the runs of the pipeline's job, and runs of any job that name a process of this machine: those that
    compute days anew hold the pool too.

    Args:
        workspace: The pipeline.
        job: Name of its live job.
        instance: Where Dagster records the runs.

    Returns:
        A sentence for each run that was ended.
    """
    said = []
    for record in instance.get_run_records(RunsFilter(statuses=_AT_WORK)):
        why = _why_dead(workspace, record, is_of_job=record.dagster_run.job_name == job)
        if why:
            said.append(f"run {record.dagster_run.run_id} is over: {why}")
            instance.report_run_failed(
                record.dagster_run,
                f"Nobody works on this run any more: {why}. Nothing that was committed is lost, and what was not is "
                "done again by the next run.",
            )
    return said


def _why_dead(workspace: Workspace, record: RunRecord, *, is_of_job: bool) -> str:
    """Why nobody can be at work on a run; empty where somebody may be."""
    run, now = record.dagster_run, workspace.clock.now()
    pending = workspace.batches.pending() if workspace.exists else None
    plan = pending if pending is not None and pending.owner.id == run.run_id else None
    owner = plan.owner if plan else owner_in(run.tags.get(PROCESS_TAG, ""), run.run_id)
    heard = _last_heard_of(workspace, record)
    if owner is not None and is_gone(owner, heard if is_of_job or plan else now, now):
        work = f", which had batch {plan.batch_id}" if plan else ""
        return f"{owner}{work}, is gone" if work else f"{owner} is gone"
    if owner is None and is_of_job and now - heard > LEASE:
        return f"it has been silent for {format_duration(LEASE)}, and no process says that it works on it"
    return ""


def _last_heard_of(workspace: Workspace, record: RunRecord) -> datetime:
    """When a run last gave a sign: it began, its batch had a heartbeat, or it committed one."""
    run_id = record.dagster_run.run_id
    signs = [instant_of(int((record.start_time or record.create_timestamp.timestamp()) * 1e6))]
    if workspace.exists:
        pending, last = workspace.batches.pending(), workspace.batches.last_commit()
        signs += [pending.heartbeat_at] if pending is not None and pending.owner.id == run_id else []
        signs += [last.committed_at] if last is not None and last.plan.owner.id == run_id else []
    return max(signs)
