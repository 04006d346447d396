"""The live stages as Dagster assets: one run of them is one micro-batch.

Here: names, dependencies, metadata, settings of a run; each asset calls one stage. Not here: what a stage does
(assets/ingestion/raw_events.py, assets/time_adjustment.py, assets/windows.py), the checks
(assets/catalog/asset_checks.py), what assets share (assets/catalog/runs.py).

A batch is planned by `ordered_events` and committed by `batches`, last. A blocking check that fails stops Dagster
from running `batches`: the batch stays uncommitted, readers still see the last commit, the next run retries it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from tidemark.assets.batch import Batch
from tidemark.assets.catalog.databases import databases_open
from tidemark.assets.catalog.days.partitions import are_told, show_days_first, tell_changes
from tidemark.assets.catalog.days.versions import stage_version
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.held_back import forget_last_look, held_back_check, held_back_result
from tidemark.assets.catalog.runs import (
    RETRIES,
    LiveRun,
    key,
    pool_of,
    run_tags,
    say_who_runs,
    step_name,
    told_to_dagster,
    under_run,
)
from tidemark.assets.ingestion.pending_work import clock_of_tick, why_never
from tidemark.assets.ingestion.raw_events import Ingested, ingest
from tidemark.assets.ingestion.waiting_input import Waiting, held_back_now, must_process_first, waiting_input
from tidemark.assets.joins import answer_join
from tidemark.assets.log.control import due
from tidemark.assets.log.spec_changes import ensure_taken
from tidemark.assets.planning import LogSegment, next_segment
from tidemark.assets.rebuild.plan import plan_rebuild
from tidemark.assets.rebuild.report import Telling
from tidemark.assets.rebuild.switch import rebuild, take_new_names
from tidemark.assets.schemas import create_tables
from tidemark.assets.time_adjustment import adjust_time, write_dead_letters
from tidemark.assets.windows import aggregate_windows
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.catalog import keep_names
from tidemark.resources.quality.checks import import_ahead
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import BusyError, TidemarkError
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.scope import Scope

BATCH = "tidemark_batch"
"""Key of the settings of a run, by which assets name them."""


class BatchSettings(dg.ConfigurableResource[None]):
    """The settings of one run, made once for all of its assets; the plan of the batch records the outcome."""

    max_events_per_batch: int | None = Field(default=None, description="At most so many records of the log.", ge=1)
    end_of_input: str | None = Field(default=None, description="`flush` or `hold`; by default as the spec says.")
    reread: bool = Field(default=False, description="Read files with the same bytes as others that were read, too.")
    live: bool = Field(default=False, description="After the last record write a tick: all input has been read.")
    reopen: str | None = Field(
        default=None, description="Why a flushed pipeline takes new input; it continues as before."
    )

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Any]:  # noqa: ARG002 - Dagster's
        """Yield the settings during a run, whose events are written faster meanwhile."""
        with databases_open():
            yield self


_MOST_NAMED = 3  # corrections in the reason of a rebuild; `log_control` has all
StageResult = dg.MaterializeResult[None] | dg.AssetCheckResult
Decorate = Callable[[Callable[..., Iterator[StageResult]]], dg.AssetsDefinition]

NOTHING_ASKED = BatchSettings()
"""One object for all pipelines: Dagster merges two definitions of a resource only if they are the same object."""


def live_assets(file: SpecFile, assets: Mapping[str, dg.AssetSpec], run: LiveRun) -> list[dg.AssetsDefinition]:
    """Return what materializes the tables of a pipeline's live run, in order; `assets` has them by their names."""
    spec, of_batch = file.spec, partial(_of_batch, file, assets, run)
    return [
        _raw_events(file, assets, run),
        _ordered_events(file, assets, run),
        *([of_batch("window_results", doing="closing windows", work=_close_windows)] if spec.windows else []),
        *[
            of_batch(tables.join_table(join.name), doing="joining", work=partial(_join, join.name))
            for join in spec.joins
        ],
        of_batch(tables.DEAD_LETTERS, doing="writing dead letters", work=partial(_refuse, run)),
        of_batch(tables.BATCHES, doing="committing", work=partial(_commit, run)),
    ]


def _stage(
    spec: Spec, assets: Mapping[str, dg.AssetSpec], name: str, checks: Sequence[dg.AssetCheckSpec] = ()
) -> Decorate:
    """Return the decorator of what materializes a table in a live run."""
    described = dg.multi_asset(
        name=step_name(spec, name),
        specs=[assets[name]],
        check_specs=checks,
        config_schema={},  # none, and an error: without it Dagster takes any config and ignores it
        pool=pool_of(spec),
        retry_policy=RETRIES,
    )
    return lambda stage: described(told_to_dagster(stage))


def _materialized(
    context: dg.AssetExecutionContext, about: show.Metadata, data_version: str
) -> dg.MaterializeResult[None]:
    """Return the result of a stage, and what Dagster shows of it.

    As an argument of the result Dagster would store all of that twice: with the materialization, where it is shown,
    and with the output of the step, whose value is nothing.
    """
    context.add_asset_metadata(about)
    return dg.MaterializeResult(data_version=dg.DataVersion(data_version))


def _ensure_upstream(context: dg.AssetExecutionContext, asset: dg.AssetSpec) -> None:
    """Check that a project has left an asset its upstream assets, which post-processing of Dagster can take away.

    They are the order of the stages, and what lets a blocking check hold the commit back.
    """
    lost = {dep.asset_key for dep in asset.deps} - context.assets_def.asset_deps[asset.key]
    if lost:
        raise TidemarkError(
            f"{asset.key.to_user_string()} has lost upstream assets, which are the order of a run: "
            f"{', '.join(sorted(asset.to_user_string() for asset in lost))}.",
            expected="all that it had, and maybe others",
            remedy="leave `deps` out of `post_processing`; `deps` of `translation` are added to the ones it has",
        )


def _raw_events(file: SpecFile, assets: Mapping[str, dg.AssetSpec], run: LiveRun) -> dg.AssetsDefinition:
    @_stage(file.spec, assets, tables.RAW_EVENTS, [held_back_check(file)])
    def raw_events(
        context: dg.AssetExecutionContext, tidemark_spark: LazyPySparkResource, tidemark_batch: BatchSettings
    ) -> Iterator[StageResult]:
        _ensure_upstream(context, assets[tables.RAW_EVENTS])
        say_who_runs(context)
        workspace = run.workspace(context, tidemark_spark)
        workspace.tell("looking for new input")
        workspace.ensure_whole()
        with workspace.batches.as_of_now():
            ensure_taken(workspace)
            create_tables(workspace)
            take_new_names(workspace, context.run.run_id)
            if not are_told(context.instance, workspace):
                show_days_first(context.instance, workspace)
            keep_names(workspace)  # of a commit that a dead run left; if they cannot be kept, nothing is begun
        _settle(context, workspace)  # what a dead run has left: nothing is read before
        ingested = _read_all_input(context, workspace, tidemark_batch)
        _settle(context, workspace)
        if tidemark_batch.live and (why := why_never(file.spec)):
            context.log.info("live has no effect: %s", why)
        forget_last_look(context.instance, file)
        yield held_back_result(file, ingested.input_seen.held_back if ingested else held_back_now(workspace))
        read = ingested or Ingested(Waiting())
        input_seen = read.input_seen
        if not (read.records or input_seen.copies or read.corrections) and _next(workspace, tidemark_batch).is_empty:
            context.log.info("nothing new")
            return
        about = _about_input(workspace, read, has_read=ingested is not None)
        yield _materialized(context, about, context.run.run_id)  # new records always mean a new data version

    return raw_events


def _about_input(workspace: Workspace, read: Ingested, *, has_read: bool) -> show.Metadata:
    """Return what `raw_events` shows of a run; without `has_read` something had to be processed first."""
    spec, input_seen = workspace.spec, read.input_seen
    numbers = {
        "new_records": read.records,
        **({"before_start_at": read.before_start} if has_read and spec.time.start_at else {}),
        "files_read": read.files,
        **({"versions_read": read.versions} if spec.reads_tables else {}),
        **({"offsets_read": read.offsets} if spec.reads_kafka else {}),
        "files_waiting": len(input_seen.settling_files),
        **({"files_ahead": input_seen.ahead} if has_read and spec.is_aligned else {}),
        "files_held_back": len(input_seen.errors),
        "files_read_before": len(input_seen.copies),
    }
    sentences = {
        "read_before": (input_seen.read_before, "file"),
        "corrections": (read.corrections, "version"),
        "new_columns": (read.first_met, "source"),
    }
    return {
        **show.rows_written(read.records),
        **show.table_rows(workspace.lake, tables.RAW_EVENTS),
        **show.numbers(numbers),
        **{name: show.sentences(lines, of=of) for name, (lines, of) in sentences.items() if lines},
    }


def _read_all_input(
    context: dg.AssetExecutionContext, workspace: Workspace, settings: BatchSettings
) -> Ingested | None:
    """Read input as long as there is some, a batch of kind `ingest` each time; None if there was none."""
    ingested = next_ingested = _read_input(context, workspace, settings)
    while ingested is not None and next_ingested is not None and _may_settle_later(workspace):
        next_ingested = _read_input(context, workspace, settings)
        ingested = ingested if next_ingested is None else ingested.then(next_ingested)
    return ingested


def _read_input(context: dg.AssetExecutionContext, workspace: Workspace, settings: BatchSettings) -> Ingested | None:
    """Read what is waiting; return None if something has to be processed first."""
    pending = workspace.batches.pending("process")
    if pending is not None:
        context.log.info("batch %s was not committed: it is finished before new input is read", pending.batch_id)
        return None
    if must_process_first(workspace):
        context.log.info("aligned sources are judged by what was processed: that comes before new input is read")
        return None
    ingested = ingest(workspace, context.run.run_id, reread=settings.reread, end_of_input=settings.end_of_input)
    input_seen, errors = ingested.input_seen, (error.found for error in ingested.input_seen.errors)
    for sentence in (
        *errors,
        *input_seen.read_before,
        *input_seen.passed_over,
        *ingested.first_met,
        *ingested.corrections,
    ):
        context.log.warning(printable(sentence))
    return ingested


def _may_settle_later(workspace: Workspace) -> bool:
    """Return whether waiting versions may correct more of the log: if so, all is recomputed once."""
    corrected = due(workspace)
    if not corrected.sentences or corrected.moves_clock or must_process_first(workspace):
        return False
    return bool(waiting_input(workspace).counts["version"])


def _settle(context: dg.AssetExecutionContext, workspace: Workspace) -> None:
    """Rebuild the derived tables where records were corrected from which they were computed."""
    corrected = due(workspace)
    if not corrected.sentences:
        return
    for sentence in corrected.sentences:
        workspace.tell(sentence)
    try:
        plan = plan_rebuild(workspace, Scope.ALL, "; ".join(corrected.sentences[:_MOST_NAMED]))
        rebuild(workspace, context.run.run_id, plan, telling=Telling(context.instance, under_run(context)))
    except BusyError as error:
        if corrected.moves_clock:  # what is read now would get a wrong one
            raise
        workspace.tell(f"{error.found} It will see the corrections: at its end it begins again.")


def _ordered_events(file: SpecFile, assets: Mapping[str, dg.AssetSpec], run: LiveRun) -> dg.AssetsDefinition:
    @_stage(file.spec, assets, tables.ORDERED_EVENTS)
    def ordered_events(
        context: dg.AssetExecutionContext, tidemark_spark: LazyPySparkResource, tidemark_batch: BatchSettings
    ) -> Iterator[dg.MaterializeResult[None]]:
        _ensure_upstream(context, assets[tables.ORDERED_EVENTS])
        _ensure_all_stages(context, file)
        workspace = run.workspace(context, tidemark_spark)
        segment = _next(workspace, tidemark_batch)
        if segment.is_empty:
            context.log.info("nothing new")
            return
        batch = run.take_on(workspace, segment, context.run.run_id)
        plan = batch.plan
        context.instance.add_run_tags(context.run.run_id, run_tags(plan))
        import_ahead()
        workspace.tell(f"batch {plan.batch_id}: judging {segment.end_seq - segment.first_seq:,} records")
        with batch.stage():  # its segment is judged now, by assets/judging/segment.py: this stage is the first to ask
            about = show.of_time_adjustment(batch, adjust_time(batch))
        yield _materialized(context, about, str(plan.batch_id))

    return ordered_events


def _of_batch(
    file: SpecFile,
    assets: Mapping[str, dg.AssetSpec],
    run: LiveRun,
    name: str,
    *,
    doing: str,
    work: Callable[[dg.AssetExecutionContext, Batch], show.Metadata],
) -> dg.AssetsDefinition:
    """Build an asset of the batch that `ordered_events` has planned; `work` does its stage, and says what it did."""

    @_stage(file.spec, assets, name)
    def of_batch(
        context: dg.AssetExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        _ensure_upstream(context, assets[name])
        _ensure_all_stages(context, file)
        batch = run.batch(context, tidemark_spark)
        if batch is None:
            raise _not_whole(file.spec, "This run has no batch: it was begun in the midst of another one.")
        batch.workspace.tell(f"batch {batch.plan.batch_id}: {doing}")
        about = {**work(context, batch), "batch": show.number_of(batch.plan)}
        yield _materialized(context, about, stage_version(file.spec, name, batch.plan))

    return of_batch


def _ensure_all_stages(context: dg.AssetExecutionContext, file: SpecFile) -> None:
    """Check that the stages of a batch are materialized together, where a person has chosen assets."""
    spec, chosen = file.spec, context.run.asset_selection
    results = [*(["window_results"] if spec.windows else []), *(tables.join_table(join.name) for join in spec.joins)]
    needed = ("ordered_events", *results, "dead_letters", "batches")
    missing = [name for name in needed if chosen and key(file, name) not in chosen]
    if missing:
        raise _not_whole(spec, f"{', '.join(missing)} would not be materialized, so nothing could be committed.")


def _not_whole(spec: Spec, sentence: str) -> TidemarkError:
    return TidemarkError(
        sentence,
        expected="all stages of a batch in one run: ordered_events to batches",
        remedy=f"launch the job {spec.name}_live, or materialize all of them together",
    )


def _close_windows(_context: dg.AssetExecutionContext, batch: Batch) -> show.Metadata:
    with batch.stage():
        results = aggregate_windows(batch)
    counts = batch.workspace.progress.counts_of(batch.plan.batch_id)
    outcomes = {name.replace(".", "_"): n for name, n in counts.items() if "." in name and "refused" not in name}
    return {
        **show.rows_written(sum(results.values())),
        **show.numbers({f"{name}_rows": n for name, n in results.items()}),
        **show.numbers(outcomes),
    }


def _join(name: str, _context: dg.AssetExecutionContext, batch: Batch) -> show.Metadata:
    # The pipeline's own: a spec that was read before a table on the right side was there lacks its columns.
    join = next(join for join in batch.workspace.spec.joins if join.name == name)
    with batch.stage():
        rows = answer_join(batch, join)
    counts, of_join = batch.workspace.progress.counts_of(batch.plan.batch_id), f"{join.name}."
    return {
        **show.rows_written(rows),
        **show.numbers({name.removeprefix(of_join): n for name, n in counts.items() if name.startswith(of_join)}),
        **show.table_rows(batch.workspace.lake, tables.join_table(join.name)),
    }


def _refuse(run: LiveRun, _context: dg.AssetExecutionContext, batch: Batch) -> show.Metadata:
    with batch.stage():
        reasons = write_dead_letters(batch)
    return {
        **show.rows_written(sum(reasons.values())),
        **show.numbers(reasons),
        **show.table_rows(batch.workspace.lake, tables.DEAD_LETTERS),
        "reasons": show.counted(reasons, of="reason"),
        **show.losses(run.losses),
    }


def _commit(run: LiveRun, context: dg.AssetExecutionContext, batch: Batch) -> show.Metadata:
    workspace, plan = batch.workspace, batch.plan
    counts, versions = workspace.progress.counts_of(plan.batch_id), workspace.outputs(plan)
    run.committed()
    now = workspace.clock.now()
    workspace.batches.commit(plan, counts, versions, now, reason=batch.accepted_because)
    workspace.tell(_progress(workspace, plan, now))
    tell_changes(context.instance, under_run(context), workspace, first=plan.batch_id)
    keep_names(workspace)
    return {
        **show.numbers({"first_seq": plan.first_seq, "end_seq": plan_end(plan)}),
        **show.table_rows(workspace.lake, tables.BATCHES),
    }


def _next(workspace: Workspace, settings: BatchSettings) -> LogSegment:
    """Choose the next batch; it flushes the end of input only if no files are left for later ingestions."""
    return next_segment(
        workspace,
        settings.max_events_per_batch,
        flush=workspace.spec.time.flushes(settings.end_of_input)
        and not waiting_input(workspace, end_of_input=settings.end_of_input).is_ready,
        tick_us=clock_of_tick(workspace) if settings.live else None,
        reopen=settings.reopen,
    )


def _progress(workspace: Workspace, plan: Plan, now: datetime) -> str:
    """Describe the duration of a committed batch, and how much of the log is left."""
    records, end = records_in(plan), plan_end(plan)
    rate = records / max((now - plan.planned_at).total_seconds(), 0.001)
    per_second = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1g}"  # a small batch is not «0 a second»
    left = workspace.progress.log_end() - end
    state = f"{left:,} of {end + left:,} records are left" if left else "no records are left"
    return f"batch {plan.batch_id}: committed, {records:,} records, {per_second} a second; {state}"
