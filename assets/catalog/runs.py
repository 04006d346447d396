"""A run of a pipeline in Dagster: what its assets and checks share.

Here: keys, pool and tags, the batch that the run has taken on, and which failures pass by themselves. Not here: the
assets (assets/live.py, assets/rebuild/day_assets.py), the checks (assets/catalog/asset_checks.py), Dagster's
databases while a run lasts (assets/catalog/databases.py), the errors themselves (timeops/errors/), and when a failed
run is launched again (pipelines/code_location/launching.py).
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import Batch
from tidemark.assets.judging.segment import judge
from tidemark.assets.planning import LogSegment, at_work, batch_of, take_on
from tidemark.assets.schemas import fit_tables
from tidemark.resources.batches.plans import BatchOwner, Plan, process_of
from tidemark.resources.batches.position import records_in
from tidemark.resources.delta.lake import ConflictError
from tidemark.resources.machine import ensure_not_stopped, stop_signal
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import BusyError, MachineError, TidemarkError
from tidemark.timeops.spec import Spec

Report = Callable[[dg.AssetMaterialization | dg.AssetCheckEvaluation], None]
"""Reports a materialization or a check to Dagster, under the run at work or under none."""
StageContext = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext
OpenWorkspace = Callable[[StageContext, LazyPySparkResource], Workspace]

SPARK = "tidemark_spark"
"""Key of the Spark resource, by which assets and checks name it: unlike `spark`, no other project has it."""
RETRIES = dg.RetryPolicy(max_retries=3, delay=5, backoff=dg.Backoff.EXPONENTIAL)
"""A stage is tried again after 5, 15 and 35 seconds: for a machine that was short of something, or another run."""

FAILURE_TAG = "tidemark/failure"
LASTING = "lasting"
ATTENDED_TAG = "tidemark/attended"
"""The tag of a run that a person waits for: they see at once what is wrong and decide what to try again."""
PROCESS_TAG = "tidemark/process"
"""The tag of a run with the process that works on it, so that others can see whether it still does."""

Given = ParamSpec("Given")
Result = TypeVar("Result")


def key(file: SpecFile, name: str) -> dg.AssetKey:
    """Return the key of an asset, such as `earthquakes/raw_events`, unless its project shows it under another."""
    return dg.AssetKey(file.asset_keys.get(name) or [file.spec.name, *name.split("/")])


def step_name(spec: Spec, table: str) -> str:
    """Return the name of the step that materializes a table, whatever its key is."""
    return "__".join([spec.name, *table.split("/")])


def job_of(
    only: dg.OpDefinition, name: str, about: str, *, config: Mapping[str, Any] | None = None
) -> dg.JobDefinition:
    """Return a job of one op, in the process of its run; `config` is the run config that the UI begins with."""
    graph = dg.GraphDefinition(name, description=about, node_defs=[only])
    return graph.to_job(config=config, executor_def=dg.in_process_executor)


def pool_of(spec: Spec) -> str:
    """Return the pool that all runs of a pipeline share: with a limit of one, queued runs wait for each other."""
    return f"tidemark/{spec.name}"


def run_tags(plan: Plan) -> dict[str, str]:
    """Return the tags of a run, for the lists of runs."""
    return {"tidemark/batch": str(plan.batch_id), "tidemark/records": f"{records_in(plan):,}"}


class LiveRun:
    """A pipeline as the stages of a run see it: its tables, and the batch that the run has taken on.

    The stages share the batch, so that its records are judged once. Spark frees what is kept of it with the object.
    """

    def __init__(self, open_workspace: OpenWorkspace) -> None:
        self.workspace = open_workspace
        self._batch: Batch | None = None
        self._losses: BatchLosses | None = None

    @property
    def losses(self) -> BatchLosses:
        """The losses of the batch that `take_on` or `batch` has returned."""
        if self._batch is None:
            raise RuntimeError("The run has no batch.")
        if self._losses is None or self._losses.batch is not self._batch:
            self._losses = BatchLosses(self._batch)
        return self._losses

    def take_on(self, workspace: Workspace, segment: LogSegment, run_id: str) -> Batch:
        """Plan the next batch; errors as of `planning.take_on`."""
        plan = take_on(workspace, segment, run_id)
        with at_work(workspace, plan):
            fit_tables(workspace)
        self._batch = Batch(workspace, plan, judge)
        return self._batch

    def batch(self, context: StageContext, spark: LazyPySparkResource) -> Batch | None:
        """Return the batch that a run has taken on; None if it has none.

        A run that continues where another one failed has the batch of that one.
        """
        workspace = self.workspace(context, spark)
        plan = batch_of(workspace, context.run.run_id) or _inherited(context, workspace)
        if plan is None:
            return None
        if self._batch is None or self._batch.plan.attempt != plan.attempt:
            self._batch = Batch(workspace, plan, judge)
        return self._batch

    def committed(self) -> None:
        """Release the batch."""
        self._batch = self._losses = None


def lasts(error: Exception) -> bool:
    """Return whether trying again without a change of the spec, the input or the lake ends the same way."""
    return isinstance(error, TidemarkError) and not isinstance(error, BusyError | ConflictError | MachineError)


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether a stop of the run caused an error: what is put in order after it may fail of it as well."""
    if error is None:
        return False
    stopped = isinstance(error, KeyboardInterrupt | dg.DagsterExecutionInterruptedError)
    return stopped or was_interrupted(error.__cause__ or error.__context__)


def process_of_run(context: StageContext) -> BatchOwner:
    """Return the process that a run ends with, as the owner of its batches.

    Dagster's multiprocess executor starts a process for each step, which is gone when the next step begins. The run
    lasts for as long as the process that starts them.
    """
    run_id, here = context.run.run_id, os.getpid()
    parent = multiprocessing.parent_process()  # a server of code starts processes of runs in the same way
    if parent is None or parent.pid is None:
        return process_of(here, run_id)
    started = context.instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED).records
    events = [record.event_log_entry.dagster_event for record in started]
    is_of_step = any(event is not None and event.pid == here for event in events)
    return process_of(parent.pid if is_of_step else here, run_id)


def under_run(context: StageContext) -> Report:
    """Return what reports to Dagster under the run of a stage, as soon as the stage yields or ends."""
    log: Any = context  # `log_event` takes results of checks too, which its annotation leaves out
    report: Report = log.log_event
    return report


def say_who_runs(context: StageContext) -> None:
    """Name the process of a run on it: a machine that goes down says no more, and leaves its run as «started»."""
    context.instance.add_run_tags(context.run.run_id, {PROCESS_TAG: process_of_run(context).text})


def own_tag(instance: dg.DagsterInstance, run: dg.DagsterRun, name: str) -> str | None:
    """Return a tag of a run; Dagster copies the tags of a run that failed to the run that repeats it."""
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    tag = run.tags.get(name)
    return None if parent is not None and tag == parent.tags.get(name) else tag


def _inherited(context: StageContext, workspace: Workspace) -> Plan | None:
    """Take over the batch of the run that this one repeats from where it failed; return None if there is none.

    What earlier stages have written stays, so the attempt is the same, and no process of the other run may write.
    """
    run = context.run
    plan = workspace.batches.pending("process") if workspace.exists else None
    if plan is None or plan.owner.id not in (run.parent_run_id, run.root_run_id):
        return None
    owner = context.instance.get_run_by_id(plan.owner.id)
    if owner is None or not owner.is_finished:
        return None
    here, now = process_of_run(context), workspace.clock.now()
    is_here = (plan.owner.host, plan.owner.pid) == (here.host, here.pid)
    if plan.owner.host == here.host and not is_here and not plan.is_left(now):
        raise BusyError(
            f"Run {plan.owner.id} has failed, and {plan.owner} is still at work on batch {plan.batch_id}.",
            remedy="Wait until that process has ended, or end it; then run again.",
        )
    return workspace.batches.hand_over(plan, here, now)


def told_to_dagster(stage: Callable[Given, Iterator[Result]]) -> Callable[Given, Iterator[Result]]:
    """Make an asset or check fail for good where that is so, and mark its run.

    A stage that was interrupted fails for good, too: Dagster's retry policy would try it again, and the run would
    continue although the operator ended it. The first argument of `stage` is Dagster's context.
    """

    @wraps(stage)
    def telling(*args: Given.args, **kwargs: Given.kwargs) -> Iterator[Result]:
        try:
            ensure_not_stopped()
            yield from stage(*args, **kwargs)
        except GeneratorExit:
            raise
        except BaseException as error:
            if stop_signal() is not None or was_interrupted(error):
                raise dg.Failure("The run was stopped.", allow_retries=False) from error
            if not isinstance(error, Exception):
                raise
            context: Any = args[0]
            if lasts(error):
                context.instance.add_run_tags(context.run.run_id, {FAILURE_TAG: LASTING})
            elif ATTENDED_TAG not in context.run.tags:
                raise
            raise dg.Failure(str(error), allow_retries=False) from error

    return telling
