"""Running a pipeline in this process: micro-batches until nothing is waiting, days of its windows, a rebuild.

Here: the loop, what a run did in plain values, days and tables recomputed by one run of what the UI launches, and how
Dagster's timeline comes to show a run as one of the code location. The timeline leaves out a run that names no code
location, and a job that is executed in this process names none. Not here: the command line's words (cli.py,
commands/), the functions for programs (library.py), what a batch does, the computation of days and of rebuilds
(assets/).
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
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

from tidemark.assets.backfill.days import days_of_zone
from tidemark.assets.corrections import corrections_after
from tidemark.assets.day_partitions import days_held, show_days, show_days_first, show_days_held
from tidemark.assets.held_back import tell_dagster
from tidemark.assets.judging import clock_of_tick, why_never
from tidemark.assets.live import BATCH
from tidemark.assets.pending_work import has_unprocessed
from tidemark.assets.planning import batch_of, not_flushed
from tidemark.assets.runs import ATTENDED_TAG, key
from tidemark.assets.spec_changes import ensure_taken
from tidemark.assets.state.files import copies_after
from tidemark.assets.unknown_columns import first_met
from tidemark.assets.waiting_input import HELD_BACK, Waiting, waiting_input
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.pipelines.rebuilding import Asked, RebuildSettings, Rebuilt, chosen_windows, rebuild_jobs
from tidemark.pipelines.watches import alert_look, batch_watch
from tidemark.resources.batches.plans import BatchInput, Counts, Plan
from tidemark.resources.machine import ensure_not_stopped, machine_failure
from tidemark.resources.places.checks import ensure_put_if_absent
from tidemark.resources.quality.checks import import_ahead
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.tables import window_table
from tidemark.resources.workspace import Acceptance, SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError, TidemarkError, UnexpectedError
from tidemark.timeops.spec import Spec

QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}
"""Loggers of a run that a person waits for: Dagster's lines are for its UI, which has them from the event log."""


_LONGEST_WAIT_SECONDS = 60  # for files to settle; where it takes longer, a later run takes them
_SHORT_BYTES, _SHORT_RECORDS = 16_000_000, 200_000  # Java's second compiler gains nothing on twice as many
LOCATION = "tidemark"
"""Name of the code location, as `workspace.yaml` has it."""
_REPOSITORY = "__repository__"  # what Dagster calls the only one of a location
_LABEL_TAG = ".dagster/repository"  # by which the page of a job finds its runs


@dataclass(frozen=True)
class RunOptions:
    """How a pipeline is run.

    Attributes:
        max_events_per_batch: Most records in one batch.
        end_of_input: `flush` or `hold` instead of what the spec says.
        live: When all that waits is processed, end with a tick.
        accepted: A batch to commit although a blocking check fails.
        reopen: Why a flushed pipeline takes new input; None where it is not to.
        reread: Read files with the same bytes as others that were read, too.
    """

    max_events_per_batch: int | None = None
    end_of_input: str | None = None
    live: bool = False
    accepted: Acceptance | None = None
    reopen: str | None = None
    reread: bool = False


@dataclass(frozen=True)
class RunReport:
    """The result of a run.

    Attributes:
        batches: How many batches that judged records it committed.
        batch: Number of the last committed batch of the pipeline, of any kind, for `tm.read`; None if it has none.
        counts: Sums of the counts of these batches, by their names in `batches`, such as `records`, `refused.early`.
        waiting: Files that were younger than `settle`.
        held_back: One sentence for each file, or version of a table, that could not be taken.
        passed_over: One sentence for each version of a table whose changes were not read.
        read_before: One sentence for each file that was not read because another one with the same bytes was.
        alerts: A sentence for each finding of the checks that hold nothing back.
        corrections: A sentence for each version of a table that has corrected the log.
        new_columns: A sentence for each source with columns that no `schema` names, if it had none of them before.
    """

    batches: int = 0
    batch: int | None = None
    counts: Counts = field(default_factory=Counts)
    waiting: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    read_before: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()
    new_columns: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()


def run_pipeline(
    file: SpecFile,
    settings: Settings,
    options: RunOptions,
    *,
    instance: DagsterInstance,
    tell: Callable[[str], None] = silent,
) -> RunReport:
    """Ingest and process all that is waiting; a live run ends with a tick.

    Raises:
        TidemarkError: Anything prevents it, see its subclasses.
    """
    watch = batch_watch(lambda: job_name(file))
    workspace = Workspace(file, settings.warehouse, watch=watch)
    report = RunReport()
    workspace.ensure_whole()
    ensure_taken(workspace)
    ensure_put_if_absent(settings.warehouse)
    if options.reopen is not None and not _is_flushed(workspace):
        raise not_flushed(workspace)
    choice = choose_spark(settings, file.inputs)
    ends: Mapping[str, int] | None = None
    while True:
        ensure_not_stopped()
        waiting = _settled_input(workspace, tell, options)
        ends = waiting.ends if ends is None else ends  # what comes to Kafka from now on is for the next run
        report = replace(
            report,
            batch=_last_batch(workspace),
            waiting=waiting.settling_files,
            held_back=waiting.held_back,
            passed_over=tuple(dict.fromkeys([*report.passed_over, *waiting.passed_over])),
        )
        if not _has_work(workspace, waiting, options, ends):
            tell_dagster(instance, file, waiting.held_back)
            show_days_first(instance, workspace)
            alert_look(workspace)
            return report
        import_ahead()  # while Spark starts, which leaves a core free
        open_session(choice.for_short_run() if _is_short(workspace, waiting, options) else choice, tell)
        before = _last_batch(workspace)
        alerts = _run_once(workspace, settings, options, choice=choice, instance=instance, tell=tell)
        report = replace(report, alerts=report.alerts + alerts)
        if _last_batch(workspace) == before:
            return report
        report = _with_batches(report, workspace, -1 if before is None else before)
        if options.live and _ended_with_tick(workspace):  # by now the wall clock has moved
            return report


def check_live(file: SpecFile, end_of_input: str | None, tell: Callable[[str], None]) -> None:
    """Refuse ticks after a flush, and say where they have no effect.

    Raises:
        SpecError: The pipeline is flushed at the end of its input.
    """
    if file.spec.time.flushes(end_of_input):
        raise SpecError(
            f"{file.path.name}: `live` has no effect: at the end of its input {file.spec.name} is flushed.",
            expected="`end_of_input: hold`, in the spec or for this run",
            remedy="leave `live` out, or hold the end of input",
        )
    if why := why_never(file.spec):
        tell(f"{file.spec.name}: `live` has no effect: {why}.")


def _settled_input(workspace: Workspace, tell: Callable[[str], None], options: RunOptions) -> Waiting:
    """Return what is waiting; wait once for files that are just too young, if that is no more than a moment."""
    waiting = waiting_input(workspace, reread=options.reread, end_of_input=options.end_of_input)
    if waiting.settling_files and not waiting.is_ready:
        settle = max(source.settles_in.total_seconds() for source in workspace.spec.sources)
        if settle > _LONGEST_WAIT_SECONDS:
            return waiting
        tell(f"{len(waiting.settling_files)} file(s) younger than {settle:g} s: waiting for them to settle")
        time.sleep(settle + 0.05)
        return waiting_input(workspace, reread=options.reread, end_of_input=options.end_of_input)
    return waiting


def _has_work(workspace: Workspace, waiting: Waiting, options: RunOptions, ends: Mapping[str, int]) -> bool:
    flush = workspace.spec.time.flushes(options.end_of_input)
    if waiting.has_news and not waiting.came_after(ends):
        return True
    tick_us = clock_of_tick(workspace) if options.live else None
    return has_unprocessed(workspace, flush=flush, tick_us=tick_us, reopen=_reopen(workspace, options))


def _is_short(workspace: Workspace, waiting: Waiting, options: RunOptions) -> bool:
    """Return whether a run reads and judges little, in a batch or two."""
    if options.max_events_per_batch is not None or waiting.left or waiting.size > _SHORT_BYTES:
        return False
    progress = workspace.progress
    return not workspace.exists or progress.log_end() - progress.processed_end() <= _SHORT_RECORDS


def _ended_with_tick(workspace: Workspace) -> bool:
    last = workspace.batches.last_commit()
    return last is not None and BatchInput.of(last.plan).tick_us is not None


def _reopen(workspace: Workspace, options: RunOptions) -> str | None:
    """Return why the next batch reopens the pipeline: the first of a run does, the others find it open."""
    return options.reopen if options.reopen is not None and _is_flushed(workspace) else None


def _is_flushed(workspace: Workspace) -> bool:
    return workspace.exists and workspace.progress.position().final


def _last_batch(workspace: Workspace) -> int | None:
    last = workspace.batches.last_commit() if workspace.exists else None
    return last.batch_id if last else None


def _with_batches(report: RunReport, workspace: Workspace, after: int) -> RunReport:
    """Return a report with the batches that were committed after one."""
    with workspace.batches.as_of_now():
        read = workspace.batches.history("ingest", after=after)
        # Batches that a rebuild made judged records that had been judged before.
        judged = [
            commit for commit in workspace.batches.history("process", after=after) if not commit.plan.is_replayed
        ]
        return replace(
            report,
            batches=report.batches + len(judged),
            batch=_last_batch(workspace),
            counts=Counts.sum([report.counts, *(commit.counts for commit in judged)]),
            # By what was remembered: files may have come since the look.
            read_before=report.read_before + tuple(copy.copy_sentence for copy in copies_after(workspace, after)),
            new_columns=report.new_columns
            + tuple(sentence for commit in read for sentence in first_met(workspace.spec, commit.plan)),
            corrections=report.corrections + tuple(corrections_after(workspace, after)),
        )


def _run_once(
    workspace: Workspace,
    settings: Settings,
    options: RunOptions,
    *,
    choice: SparkChoice,
    instance: DagsterInstance,
    tell: Callable[[str], None],
) -> tuple[str, ...]:
    """Run one micro-batch as one Dagster run; return the findings of its checks that hold nothing back."""
    file, memory = workspace.file, workspace.memory
    definitions = build_definitions(settings, [file], choice, accepted=options.accepted, tell=tell, memory=memory)
    run_options = replace(options, accepted=None, reopen=_reopen(workspace, options))
    config = {name: value for name, value in asdict(run_options).items() if value}  # keys of `live.BatchSettings`
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
    each = {"resources": resources, "ops": ops}
    config = {
        of: {name: {"config": values} for name, values in by_name.items()} for of, by_name in each.items() if by_name
    }
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
    before, (first, last) = _last_batch(workspace), days
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
    made = workspace.batches.history("backfill", after=-1 if before is None else before)
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
    choice, what = choose_spark(settings, file.inputs), rebuild_settings.job
    kinds = (type(rebuild_settings),)
    [job] = rebuild_jobs(file, settings, choice, tell=tell, keep=rebuilt.append, kinds=kinds)
    config = {name: value for name, value in rebuild_settings.model_dump().items() if value}
    result = execute(job, instance, str(uuid4()), ops={f"{file.spec.name}__{what}": config})
    if not result.success:
        raise failure_of(result, None)
    return rebuilt[0] if rebuilt else None
