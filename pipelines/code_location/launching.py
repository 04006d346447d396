"""When a pipeline is run by itself: by the clock, or as new input comes; its nights; and the end of abandoned runs.

Here: the decision, and runs that Dagster takes for running after a power cut or a kill. Not here: what a run would
find to do (assets/ingestion/pending_work.py), whether a process lives (resources/batches/plans.py).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from zlib import crc32

from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    schedule,
    sensor,
)

from tidemark.assets.catalog.days.partitions import show_days_first
from tidemark.assets.catalog.held_back import tell_dagster
from tidemark.assets.catalog.runs import FAILURE_TAG, LASTING, PROCESS_TAG, own_tag, step_name
from tidemark.assets.ingestion.pending_work import PendingWork, input_signature, look, signature
from tidemark.pipelines.code_location.watches import alert_look
from tidemark.resources.batches.plans import LEASE, Plan, is_gone, owner_in
from tidemark.resources.tables import BATCHES
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec.automation import OnNewInput
from tidemark.timeops.values.durations import format_duration
from tidemark.timeops.values.utc import instant_of

WORK_TAG = ".dagster/tidemark_work"  # Dagster shows no tag with this prefix: it is a key, and says nothing to people
INPUT_TAG = ".dagster/tidemark_input"
"""The tag of a launched run with all input that had come by then."""
_NIGHT_MINUTES = range(60, 240)
"""When in the night, UTC, upkeep and audits begin: minutes after midnight."""
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=30), timedelta(hours=1)
_AT_WORK = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_NOT_ENDED = [DagsterRunStatus.QUEUED, *_AT_WORK]


def live_schedule(workspace: Workspace, job: str) -> ScheduleDefinition:
    """Build the schedule of a pipeline with a cron expression: a run at its times, if there is something to do."""
    name, cron = workspace.spec.name, str(workspace.spec.schedule)

    @schedule(
        name=f"{name}_schedule",
        job_name=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=DefaultScheduleStatus.RUNNING,  # the spec asks for it
        description=f"Runs {name} at `{cron}` (UTC), if input is waiting or a batch was not finished.",
    )
    def at_its_times(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        show_days_first(context.instance, workspace)
        alert_look(workspace)
        return _decided(look(workspace), workspace, job, context)

    return at_its_times


def live_sensor(workspace: Workspace, job: str, automation: OnNewInput) -> SensorDefinition:
    """Build the sensor of a pipeline with `on_new_input`: a run as soon as there is something to do."""
    name, every = workspace.spec.name, automation.on_new_input

    @sensor(
        name=f"{name}_on_new_input",
        job_name=job,
        # Dagster looks every 5 seconds and a little: with the full interval it would come one look too late.
        minimum_interval_seconds=int(every.total_seconds()) - 1,
        default_status=DefaultSensorStatus.RUNNING,  # the spec asks for it
        description=f"Looks for input of {name} every {format_duration(every)}, without Spark, and runs it.",
    )
    def on_new_input(context: SensorEvaluationContext) -> RunRequest | SkipReason:
        alert_look(workspace)  # results get old also where nothing comes
        cursor = signature(workspace)
        if workspace.spec.alerts.freshness is not None:  # days become late by the clock alone
            cursor = f"{cursor} {workspace.clock.now():%Y-%m-%dT%H}"
        if context.cursor == cursor:
            return SkipReason("no file and no batch changed since the last look, which found nothing to do")
        work = look(workspace)
        untold = show_days_first(context.instance, workspace)
        # The cursor holds the signature of what needs no second look.
        context.update_cursor(None if work.is_there or work.may_ripen or untold else cursor)
        return _decided(work, workspace, job, context)

    return on_new_input


def night_schedule(workspace: Workspace, job: str, name: str, weekday: str = "*") -> ScheduleDefinition:
    """Build the schedule of a job that keeps a pipeline sound. It is off until a person switches it on.

    Args:
        workspace: The pipeline.
        job: The job, which runs with its default settings.
        name: The name of the schedule.
        weekday: The day of the week as cron has it; by default every one.
    """
    # Pipelines of one code location must not all begin at the same minute.
    hour, minute = divmod(_NIGHT_MINUTES[crc32(job.encode()) % len(_NIGHT_MINUTES)], 60)

    @schedule(
        name=name,
        job_name=job,
        cron_schedule=f"{minute} {hour} * * {weekday}",
        execution_timezone="UTC",
        description=f"Runs {job} in the night (UTC), once there are tables. Off until you switch it on.",
    )
    def at_night() -> RunRequest | SkipReason:
        if not workspace.exists:
            return SkipReason(f"{workspace.spec.name} has no tables yet")
        return RunRequest()

    return at_night


def _decided(
    work: PendingWork, workspace: Workspace, job: str, context: SensorEvaluationContext | ScheduleEvaluationContext
) -> RunRequest | SkipReason:
    """Do as `decide`, after the end of abandoned runs; the tick names these."""
    tell_dagster(context.instance, workspace.file, work.held_back)
    over = end_dead_runs(workspace, job, context.instance) if work.is_there else []
    for sentence in over:
        context.log.warning(sentence)
    decision = decide(work, workspace, job, context.instance)
    if isinstance(decision, SkipReason):
        return SkipReason("; ".join([*over, str(decision.skip_message)]))
    return decision


def decide(work: PendingWork, workspace: Workspace, job: str, instance: DagsterInstance) -> RunRequest | SkipReason:
    """Request a run for the waiting work, unless one is on its way, was canceled, or failed and has to wait."""
    if not work.is_there:
        return SkipReason(work.sentence)
    if at_work := _on_its_way(workspace, job, instance):
        return SkipReason(f"run {at_work} is on its way; {work.sentence}")
    come = input_signature(workspace)
    newest = instance.get_runs(RunsFilter(job_name=job), limit=1)
    if newest and newest[0].status == DagsterRunStatus.CANCELED and newest[0].tags.get(INPUT_TAG) == come:
        return SkipReason(
            f"run {newest[0].run_id} was canceled: another one is launched for new input or another spec, or by hand"
            f"; {work.sentence}"
        )
    runs = instance.get_run_records(RunsFilter(job_name=job, tags={WORK_TAG: work.key}))
    if runs and (reason := _better_wait(runs, instance, workspace.clock.now())):
        return SkipReason(f"{reason}; {work.sentence}")
    return RunRequest(run_key=f"{work.key}/{len(runs)}", tags={WORK_TAG: work.key, INPUT_TAG: come})


def _on_its_way(workspace: Workspace, job: str, instance: DagsterInstance) -> str | None:
    """Return the run that should do the work: of the pipeline's job, or of chosen assets, or of another job.

    Such another run counts from its launch for as long as a silent run may live, and once it is at the pipeline until
    its batch is over: it may have assets before and after, which take hours.
    """
    now = workspace.clock.now()
    for record in instance.get_run_records(RunsFilter(statuses=_NOT_ENDED)):
        run = record.dagster_run
        is_new = now - _began(record) <= LEASE
        if run.job_name == job or (
            (is_new or own_tag(instance, run, PROCESS_TAG) is not None)
            and _has_batch_before_it(workspace, run, instance)
        ):
            return run.run_id
    return None


def _has_batch_before_it(workspace: Workspace, run: DagsterRun, instance: DagsterInstance) -> bool:
    """Return whether a run is to commit a batch of the pipeline, and neither did nor failed at it."""
    commit = step_name(workspace.spec, BATCHES)
    planned = run.execution_plan_snapshot_id
    if planned is None or commit not in instance.get_execution_plan_snapshot(planned).step_keys_to_execute:
        return False
    ends = {DagsterEventType.STEP_SUCCESS, DagsterEventType.STEP_SKIPPED, DagsterEventType.STEP_FAILURE}
    records = instance.get_records_for_run(run.run_id, of_type=ends).records
    events = [event for record in records if (event := record.event_log_entry.dagster_event) is not None]
    of_pipeline = f"{workspace.spec.name}__"  # also its checks, which may hold the batch back
    return not any(
        event.step_key == commit or (event.is_step_failure and str(event.step_key).startswith(of_pipeline))
        for event in events
    )


def _began(record: RunRecord) -> datetime:
    return instant_of(int((record.start_time or record.create_timestamp.timestamp()) * 1e6))


def _better_wait(runs: Sequence[RunRecord], instance: DagsterInstance, now: datetime) -> str:
    """Say why work is not tried again now that earlier runs have left it as it was; empty if it is."""
    last = runs[0].dagster_run  # the newest comes first
    if own_tag(instance, last, FAILURE_TAG) == LASTING:
        return f"run {last.run_id} failed and would fail again: it is retried when the input or the spec changes"
    ended = instant_of(int((runs[0].end_time or 0) * 1e6))
    due = ended + min(_FIRST_WAIT * 2 ** min(len(runs) - 1, 10), _LONGEST_WAIT)
    return f"run {last.run_id} did not finish it: it is retried at {due:%H:%M:%S} UTC" if now < due else ""


def end_dead_runs(workspace: Workspace, job: str, instance: DagsterInstance) -> list[str]:
    """Report runs as failed if their process is gone, so that they hold up neither the next run nor the pool.

    The runs of the pipeline's job are checked, and runs of any job that name a process of this machine: runs that
    recompute days hold the pool too.

    Returns:
        A sentence for each run that was ended.
    """
    sentences = []
    for record in instance.get_run_records(RunsFilter(statuses=_AT_WORK)):
        process = own_tag(instance, record.dagster_run, PROCESS_TAG) or ""
        why = _why_dead(workspace, record, process, is_of_job=record.dagster_run.job_name == job)
        if why:
            sentences.append(f"run {record.dagster_run.run_id} is over: {why}")
            instance.report_run_failed(
                record.dagster_run,
                f"No process is working on this run any more: {why}. Nothing that was committed is lost, and what "
                "was not is done again by the next run.",
            )
    return sentences


def _why_dead(workspace: Workspace, record: RunRecord, process: str, *, is_of_job: bool) -> str:
    """Say why no process can be at work on a run; empty if one may be. `process` is what the run says of its own."""
    run, now = record.dagster_run, workspace.clock.now()
    pending = workspace.batches.pending() if workspace.exists else None
    plan = pending if pending is not None and pending.owner.id == run.run_id else None
    owner = plan.owner if plan else owner_in(process, run.run_id)
    heard = _last_heard_of(workspace, record, plan)
    if owner is not None and is_gone(owner, heard if is_of_job or plan else now, now):
        work = f", which had batch {plan.batch_id}" if plan else ""
        return f"{owner}{work}, is gone" if work else f"{owner} is gone"
    if owner is None and is_of_job and now - heard > LEASE:
        return f"it has been silent for {format_duration(LEASE)}, and no process says that it is working on it"
    return ""


def _last_heard_of(workspace: Workspace, record: RunRecord, plan: Plan | None) -> datetime:
    """Return the time of a run's last sign: it began, its batch had a heartbeat, or it committed one."""
    signs = [_began(record)]
    if plan is not None:
        signs.append(plan.heartbeat_at)
    last = workspace.batches.last_commit() if workspace.exists else None
    if last is not None and last.plan.owner.id == record.dagster_run.run_id:
        signs.append(last.committed_at)
    return max(signs)
