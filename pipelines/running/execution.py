"""Runs of Dagster in this process, for a person or program that waits: of a micro-batch, of days, of a rebuild.

Here: each of them by one run of what the UI launches, why one failed, and how Dagster's timeline comes to show it as
one of the code location. The timeline leaves out a run that names no code location, and a job that is executed in
this process names none. Not here: the loop over micro-batches (pipelines/running/runner.py), the computation of days
and of rebuilds (assets/).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

from dagster import (
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    ExecuteInProcessResult,
    JobDefinition,
    deserialize_value,
)

from tidemark.assets.catalog.databases import databases_open
from tidemark.assets.catalog.days.partitions import days_held, show_days, show_days_first, show_days_held
from tidemark.assets.catalog.runs import ATTENDED_TAG, key
from tidemark.assets.ingestion.waiting_input import HELD_BACK
from tidemark.assets.live import BATCH
from tidemark.assets.planning import batch_of
from tidemark.assets.rebuild.days import days_of_zone
from tidemark.pipelines.code_location.rebuilding import Asked, RebuildSettings, Rebuilt, chosen_windows, rebuild_jobs
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.resources.batches.plans import Plan
from tidemark.resources.machine import ensure_not_stopped, machine_failure
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.tables import window_table
from tidemark.resources.workspace import Acceptance, SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError, TidemarkError, UnexpectedError
from tidemark.timeops.spec import Spec

QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}
"""Loggers of a run that a person waits for: Dagster's lines are for its UI, which has them from the event log."""
LOCATION = "tidemark"
"""Name of the code location, as `workspace.yaml` has it."""
_REPOSITORY = "__repository__"  # what Dagster calls the only one of a location
_LABEL_TAG = ".dagster/repository"  # by which the page of a job finds its runs


def run_batch(
    workspace: Workspace,
    settings: Settings,
    choice: SparkChoice,
    config: Mapping[str, Any],
    *,
    accepted: Acceptance | None,
    instance: DagsterInstance,
    tell: Callable[[str], None],
) -> tuple[str, ...]:
    """Run one micro-batch as one Dagster run; return the findings of its checks that hold nothing back.

    `config` has keys of `live.BatchSettings`.

    Raises:
        TidemarkError: The run failed; the next one takes over the batch that it had begun.
    """
    file, memory = workspace.file, workspace.memory
    definitions = build_definitions(settings, [file], choice, accepted=accepted, tell=tell, memory=memory)
    run_id = str(uuid4())
    try:
        result = execute(definitions.resolve_job_def(job_name(file)), instance, run_id, resources={BATCH: config})
        plan = None if result.success else _begun_by(workspace, run_id)
        failure = None if result.success else failure_of(result, plan.batch_id if plan else None)
    except BaseException as error:  # a stop, or Dagster's database failed under the run; this process may live on
        _give_up(workspace, run_id, str(error) if isinstance(error, Exception) else "")
        raise
    if failure is not None:
        _give_up(workspace, run_id, str(failure))
        raise failure
    # What a rebuild within the run told is told again by the batch after it.
    newest = {evaluation.asset_check_key: evaluation for evaluation in result.get_asset_check_evaluations()}.values()
    # The report names the inputs that are held back.
    failed = [evaluation for evaluation in newest if not evaluation.passed and evaluation.check_name != HELD_BACK]
    return tuple(f"check {evaluation.check_name}: {evaluation.description}" for evaluation in failed)


def _begun_by(workspace: Workspace, run_id: str) -> Plan | None:
    return batch_of(workspace, run_id) if workspace.exists else None


def _give_up(workspace: Workspace, run_id: str, why: str = "") -> None:
    """Let the next run take over the batch that a run had begun, if there is one."""
    with suppress(TidemarkError):  # a full disk that refused a table refuses this row too
        plan = _begun_by(workspace, run_id)
        if plan is not None:
            workspace.batches.give_up(plan, workspace.clock.now(), why)


def execute(
    job: JobDefinition,
    instance: DagsterInstance,
    run_id: str,
    *,
    assets: Sequence[AssetKey] | None = None,
    resources: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ops: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> ExecuteInProcessResult:
    """Run a job in this process for a person who waits for it; whatever becomes of it, its run ends.

    Raises:
        KeyboardInterrupt: The operator stopped it between two stages. Inside of one it is the failure of the stage.
    """
    config_by_kind = {"resources": resources, "ops": ops}
    config = {
        of: {name: {"config": values} for name, values in by_name.items()}
        for of, by_name in config_by_kind.items()
        if by_name
    }
    with databases_open():
        try:
            return job.execute_in_process(
                instance=instance,
                run_id=run_id,
                raise_on_error=False,
                asset_selection=assets,
                run_config=config | {"loggers": QUIET},
                tags={ATTENDED_TAG: "true", **tags},
            )
        finally:
            run = instance.get_run_by_id(run_id)
            if run is not None and not run.is_finished:
                instance.report_run_failed(run, "The run was stopped.")
            show_on_timeline(instance, run_id)


def failure_of(result: Any, batch_id: int | None) -> TidemarkError:
    """Return the error of a failed run, in its own words when it is one of ours.

    Raises:
        KeyboardInterrupt: The run was stopped.
    """
    ensure_not_stopped()
    failed = [
        evaluation
        for evaluation in result.get_asset_check_evaluations()
        if evaluation.blocking and not evaluation.passed and evaluation.severity == AssetCheckSeverity.ERROR
    ]
    if failed:
        failures = "\n".join(
            f"check {evaluation.check_name} failed. {evaluation.description}" for evaluation in failed
        )
        return TidemarkError(
            failures,
            expected="all blocking checks of a batch to pass before it is committed",
            remedy=f"nothing of batch {batch_id} was committed. Run again to retry it, or accept it as it is with "
            f'`tidemark accept SPEC {batch_id} --reason "…"`',
        )
    for event in result.all_events:
        if event.is_step_failure:
            if _was_interrupted(event.step_failure_data.error):
                raise KeyboardInterrupt
            return _as_ours(event.step_failure_data.error)
    return TidemarkError("The run failed.", remedy="See the run in the Dagster UI (`make ui`).")


def _was_interrupted(error: Any) -> bool:
    """Return whether a signal stopped the run: Dagster turns that into the failure of a step."""
    if error is None:
        return False
    stopped = error.cls_name in ("KeyboardInterrupt", "DagsterExecutionInterruptedError")
    return stopped or _was_interrupted(error.cause) or _was_interrupted(error.context)


def _as_ours(error: Any) -> TidemarkError:
    """Return the error of ours among an error and its causes; else the last of them as unexpected: it says most."""
    causes = [error]
    while causes[-1].cause is not None:
        causes.append(causes[-1].cause)
    for cause in causes:
        if failure := machine_failure(cause.message, cause.cls_name):
            return failure
    ours = {cls.__name__: cls for cls in _all_errors(TidemarkError)}
    cause = next((cause for cause in causes if cause.cls_name in ours), causes[-1])
    text = cause.message.partition(": ")[2].strip()  # after the name of its class
    if cause.cls_name in ours:
        return ours[cause.cls_name](text)
    return UnexpectedError(cause.cls_name, text, error.to_string())


def _all_errors(cls: type[TidemarkError]) -> list[type[TidemarkError]]:
    return [cls, *[deeper for subclass in cls.__subclasses__() for deeper in _all_errors(subclass)]]


def show_on_timeline(instance: DagsterInstance, run_id: str) -> None:
    """Assign a run that ended to the code location, as `dagster run migrate-repository` does."""
    if instance.get_run_by_id(run_id) is None:
        return
    instance.add_run_tags(run_id, {_LABEL_TAG: f"{_REPOSITORY}@{LOCATION}"})
    run = instance.get_run_by_id(run_id)
    if run is not None:
        origin: Any = deserialize_value(_stored_origin(run.job_name))
        # No documented function does it: `execute_in_process` takes no origin, and the command works on a whole job.
        instance.run_storage.replace_job_origin(run, origin)


def _stored_origin(job: str) -> str:
    """Return the origin of a job of the code location, in the form that Dagster stores with a run.

    Dagster has no public class for it. It reads the stored form as long as it reads the runs of today.
    """
    location = {"__class__": "RegisteredRepositoryLocationOrigin", "location_name": LOCATION}
    repository = {"__class__": "ExternalRepositoryOrigin", "repository_location_origin": location}
    return json.dumps(
        {
            "__class__": "ExternalPipelineOrigin",
            "external_repository_origin": {**repository, "repository_name": _REPOSITORY},
            "pipeline_name": job,
        }
    )


EARLIEST = date(1900, 1, 1)
"""The first day that may be asked for, unless the spec says another."""


@dataclass(frozen=True)
class BackfillReport:
    """The result of a backfill.

    Attributes:
        first: The first day that was recomputed.
        last: The last one.
        batches: Numbers of the batches that it committed, one for each window.
        rows: Rows that it wrote, by table, such as `windows/by_hour`.
    """

    first: date
    last: date
    batches: tuple[int, ...]
    rows: Mapping[str, int]


def backfill_days(
    file: SpecFile,
    settings: Settings,
    windows: Sequence[str],
    days: tuple[date, date],
    *,
    instance: DagsterInstance,
    tell: Callable[[str], None] = silent,
) -> BackfillReport:
    """Recompute days of windows from the arrival log, in one run.

    The days are as `chosen_days` returned them, and the windows as `chosen_windows` did.

    Raises:
        TidemarkError: Anything prevents it.
    """
    workspace = Workspace(file, settings.warehouse)
    choice = choose_spark(settings, file.inputs)
    open_session(choice, tell)
    commit_before, (first, last) = (workspace.batches.last_commit() if workspace.exists else None), days
    held = days_held(workspace, [window.name for window in file.spec.windows])
    job = build_definitions(settings, [file], choice, tell=tell).resolve_implicit_global_asset_job_def()
    try:
        for name in windows:  # Dagster takes a range by its first and its last partition
            show_days(instance, file.spec, name, [first.isoformat(), last.isoformat()])
        result = execute(
            job,
            instance,
            str(uuid4()),
            assets=[key(file, window_table(name)) for name in windows],
            tags={
                "dagster/asset_partition_range_start": first.isoformat(),
                "dagster/asset_partition_range_end": last.isoformat(),
            },
        )
    finally:
        show_days_held(instance, workspace, held)
    if not result.success:
        raise failure_of(result, None)
    show_days_first(instance, workspace)
    made = workspace.batches.history("backfill", after_batch=-1 if commit_before is None else commit_before.batch_id)
    rows = {window_table(name): sum(commit.counts.get(f"{name}.rows", 0) for commit in made) for name in windows}
    return BackfillReport(first, last, tuple(commit.batch_id for commit in made), rows)


def chosen_days(spec: Spec, first: date, last: date, *, now: datetime) -> tuple[date, date]:
    """Return the first and the last day of a range that can be recomputed, without days the time zone never had.

    Raises:
        SpecError: It is reversed, or a part of it is not a partition.
    """
    start, zone = spec.partitions.start or EARLIEST, spec.partitions.time_zone
    today = now.astimezone(ZoneInfo(zone)).date()
    if first > last:
        raise SpecError(
            f"The first day, {first}, is after the last one, {last}",
            expected="a first day that is not after the last one",
            remedy="exchange them",
        )
    if first < start:
        raise SpecError(
            f"The first day, {first}, is before the first partition of {spec.name}, {start}",
            expected=f"a day from {start} on",
            remedy=f"set `partitions: {{start: {first}}}` in the spec, or start later",
        )
    if last > today:
        raise SpecError(f"The last day, {last}, is in the future", expected=f"a day up to today, {today} ({zone})")
    return days_of_zone(first, last, zone)


def rebuild_pipeline(
    file: SpecFile,
    settings: Settings,
    rebuild_settings: Asked,
    *,
    instance: DagsterInstance,
    tell: Callable[[str], None] = silent,
) -> Rebuilt | None:
    """Rebuild tables of a pipeline from its log, in one run; return None if there was nothing to do.

    Raises:
        TidemarkError: Anything prevents it, see `assets.rebuild.switch.rebuild`.
    """
    if isinstance(rebuild_settings, RebuildSettings) and rebuild_settings.windows:
        chosen_windows(file.spec, rebuild_settings.windows)  # a wrong name does not become a run
    rebuilt: list[Rebuilt] = []
    choice, job_name = choose_spark(settings, file.inputs), rebuild_settings.job
    kinds = (type(rebuild_settings),)
    [job] = rebuild_jobs(file, settings, choice, tell=tell, keep=rebuilt.append, kinds=kinds)
    config = {name: value for name, value in rebuild_settings.model_dump().items() if value}
    result = execute(job, instance, str(uuid4()), ops={f"{file.spec.name}__{job_name}": config})
    if not result.success:
        raise failure_of(result, None)
    return rebuilt[0] if rebuilt else None
