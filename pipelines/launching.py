"""When a pipeline is run by itself: by the clock, or as new input comes.

Here: schedules and sensors, and what keeps them from launching in vain. Not here: what is there to do
(assets/pending_work.py), how runs wait for each other (the pool of the assets, and dagster.yaml in
resources/settings.py).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from dagster import (
    DagsterInstance,
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

from tidemark.assets.failures import FAILURE_TAG, LASTING
from tidemark.assets.pending_work import Due, look, signature
from tidemark.pipelines.dead_runs import end_dead_runs
from tidemark.resources.workspace import Workspace
from tidemark.timeops.durations import format_duration
from tidemark.timeops.spec.automation import OnNewInput
from tidemark.timeops.utc import instant_of

WORK_TAG = ".dagster/tidemark_work"  # Dagster shows no tag with this prefix: it is a key, and says nothing to people
_NOT_ENDED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=30), timedelta(hours=1)


def live_schedule(workspace: Workspace, job: str) -> ScheduleDefinition:
    """The schedule of a pipeline whose spec names a cron text: a run at its times, when there is something to do."""
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
        return _decided(look(workspace), workspace, job, context)

    return at_its_times


def live_sensor(workspace: Workspace, job: str, given: OnNewInput) -> SensorDefinition:
    """The sensor of a pipeline whose spec says `on_new_input`: a run as soon as there is something to do."""
    name, every = workspace.spec.name, given.on_new_input

    @sensor(
        name=f"{name}_on_new_input",
        job_name=job,
        # Dagster looks every 5 seconds and a little: with the full interval it would come one look too late.
        minimum_interval_seconds=int(every.total_seconds()) - 1,
        default_status=DefaultSensorStatus.RUNNING,  # the spec asks for it
        description=f"Looks for input of {name} every {format_duration(every)}, without Spark, and runs it.",
    )
    def on_new_input(context: SensorEvaluationContext) -> RunRequest | SkipReason:
        seen = signature(workspace)
        if context.cursor == seen:
            return SkipReason("no file and no batch changed since the last look, which found nothing to do")
        due = look(workspace)
        # The cursor names what needs no second look.
        context.update_cursor(None if due.is_there or due.may_ripen else seen)
        return _decided(due, workspace, job, context)

    return on_new_input


def _decided(
    due: Due, workspace: Workspace, job: str, context: SensorEvaluationContext | ScheduleEvaluationContext
) -> RunRequest | SkipReason:
    """As `decide`, once runs that nobody works on are over; the tick says which those were."""
    over = end_dead_runs(workspace, job, context.instance) if due.is_there else []
    for sentence in over:
        context.log.warning(sentence)
    asked = decide(due, workspace, job, context.instance)
    if isinstance(asked, SkipReason):
        return SkipReason("; ".join([*over, str(asked.skip_message)]))
    return asked


def decide(due: Due, workspace: Workspace, job: str, instance: DagsterInstance) -> RunRequest | SkipReason:
    """A run for what is due, unless one is on its way, or has failed at this very work and had better wait."""
    if not due.is_there:
        return SkipReason(due.sentence)
    if at_work := instance.get_runs(RunsFilter(job_name=job, statuses=_NOT_ENDED), limit=1):
        return SkipReason(f"run {at_work[0].run_id} is on its way; {due.sentence}")
    before = instance.get_run_records(RunsFilter(job_name=job, tags={WORK_TAG: due.key}))
    if before and (reason := _better_wait(before, workspace.clock.now())):
        return SkipReason(f"{reason}; {due.sentence}")
    return RunRequest(run_key=f"{due.key}/{len(before)}", tags={WORK_TAG: due.key})


def _better_wait(before: Sequence[RunRecord], now: datetime) -> str:
    """Why work is not tried again now that runs were launched for before and left it as it was; empty if it is."""
    last = before[0].dagster_run  # the newest comes first
    if last.tags.get(FAILURE_TAG) == LASTING:
        return f"run {last.run_id} failed and would again: it is tried anew when the input or the spec changes"
    ended = instant_of(int((before[0].end_time or 0) * 1e6))
    due = ended + min(_FIRST_WAIT * 2 ** min(len(before) - 1, 10), _LONGEST_WAIT)
    return f"run {last.run_id} did not finish it: it is tried anew at {due:%H:%M:%S} UTC" if now < due else ""
