"""Running a pipeline in this process: micro-batches until nothing is waiting.

Here: the loop, and what a run did in plain values. Not here: one run of Dagster, and recomputing of days and tables
(pipelines/running/execution.py), the command line's words (pipelines/cli.py, pipelines/commands/), the functions for
programs (pipelines/library.py), what a batch does (assets/).

A look that finds nothing to do is most of what a cron job asks for, and Dagster and PySpark take longer to import
than the look takes. So they are imported here where there is a batch to run, or something to report.
"""
# ruff: noqa: PLC0415 - the reason is above

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from tidemark.assets.ingestion.pending_work import all_that_is_reported, clock_of_tick, has_unprocessed, why_never
from tidemark.assets.ingestion.waiting_input import Waiting, first_met, waiting_input
from tidemark.assets.log.control import corrections_after
from tidemark.assets.log.spec_changes import ensure_taken
from tidemark.assets.planning import not_flushed
from tidemark.assets.state.files import copies_after
from tidemark.pipelines.code_location.watches import alert_look, batch_watch
from tidemark.pipelines.running.instance import InstanceAtNeed
from tidemark.resources.batches.plans import BatchInput, Counts
from tidemark.resources.machine import ensure_not_stopped
from tidemark.resources.memory import release_memory
from tidemark.resources.places.checks import ensure_put_if_absent
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Acceptance, SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from tidemark.resources.spark.choice import SparkChoice

_LONGEST_WAIT_SECONDS = 60  # for files to settle; where it takes longer, a later run takes them
_SHORT_BYTES, _SHORT_RECORDS = 16_000_000, 200_000  # Java's second compiler gains nothing on twice as many


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
    instance: "DagsterInstance | InstanceAtNeed",
    tell: Callable[[str], None] = silent,
) -> RunReport:
    """Ingest and process all that is waiting; a live run ends with a tick.

    The instance of Dagster shows the runs. One that is opened at need stays closed where there is no work and the
    same look was reported before.

    Raises:
        TidemarkError: Anything prevents it, see its subclasses.
    """
    at_need = instance if isinstance(instance, InstanceAtNeed) else InstanceAtNeed(lambda: instance)
    watch = batch_watch(lambda: _job_name(file))
    workspace = Workspace(file, settings.warehouse, watch=watch)
    report = RunReport()
    workspace.ensure_whole()
    ensure_taken(workspace)
    ensure_put_if_absent(settings.warehouse)
    if options.reopen is not None and not _is_flushed(workspace):
        raise not_flushed(workspace)
    # One that the operator names is looked at in any case: a wrong name is an error also where there is no work.
    choice = _chosen_spark(file, settings) if settings.spark is not None or settings.spark_ui else None
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
            _report_look(at_need, workspace, waiting)
            alert_look(workspace)
            return report
        choice = choice or _chosen_spark(file, settings)
        is_short = _is_short(workspace, waiting, options)
        _start_spark(choice.for_short_run() if is_short else choice, at_need, tell)
        earlier_batch = _last_batch(workspace)
        alerts = _run_once(workspace, settings, options, choice=choice, instance=at_need(), tell=tell)
        release_memory()  # a process that makes many runs would otherwise keep the most that one has taken
        report = replace(report, alerts=report.alerts + alerts)
        if _last_batch(workspace) == earlier_batch:
            return report
        report = _with_batches(report, workspace, -1 if earlier_batch is None else earlier_batch)
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


def _report_look(instance: InstanceAtNeed, workspace: Workspace, waiting: Waiting) -> None:
    """Report what a look without work has found: input that is held back, days that Dagster does not show."""
    look, now = all_that_is_reported(workspace, waiting.held_back), workspace.clock.now()
    if instance.knows(look, now):
        return
    from tidemark.assets.catalog.days.partitions import show_days_first
    from tidemark.assets.catalog.held_back import tell_dagster

    opened = instance()
    tell_dagster(opened, workspace.file, waiting.held_back)
    are_days_left = show_days_first(opened, workspace)
    if instance.last_look is not None and not are_days_left:
        instance.last_look.note(look, now)


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
        read = workspace.batches.history("ingest", after_batch=after)
        # Batches that a rebuild made judged records that had been judged before.
        commits = workspace.batches.history("process", after_batch=after)
        judged = [commit for commit in commits if not commit.plan.is_replayed]
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
    choice: "SparkChoice",
    instance: "DagsterInstance",
    tell: Callable[[str], None],
) -> tuple[str, ...]:
    """Run one micro-batch as one Dagster run; return the findings of its checks that hold nothing back."""
    from tidemark.pipelines.running.execution import run_batch

    run_options = replace(options, accepted=None, reopen=_reopen(workspace, options))
    config = {name: value for name, value in asdict(run_options).items() if value}  # keys of `live.BatchSettings`
    return run_batch(workspace, settings, choice, config, accepted=options.accepted, instance=instance, tell=tell)


def _job_name(file: SpecFile) -> str:
    from tidemark.pipelines.definitions import job_name

    return job_name(file)


def _chosen_spark(file: SpecFile, settings: Settings) -> "SparkChoice":
    from tidemark.resources.spark.choice import choose_spark

    return choose_spark(settings, file.inputs)


def _start_spark(choice: "SparkChoice", instance: InstanceAtNeed, tell: Callable[[str], None]) -> None:
    """Start Spark; most of that is Java's work, during which a thread imports Dagster and opens its instance."""
    # PySpark comes first: of two threads that import, one may see half a module.
    from tidemark.resources.spark.choice import open_session

    with ThreadPoolExecutor(1) as thread:
        opened = thread.submit(_open, instance)
        open_session(choice, tell)
        opened.result()


def _open(instance: InstanceAtNeed) -> None:
    for name in ("tidemark.pipelines.running.execution", "tidemark.assets.catalog.display.pictures"):
        import_module(name)
    from tidemark.resources.quality.checks import import_ahead

    instance()
    import_ahead()
