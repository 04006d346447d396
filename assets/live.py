"""The live stages as Dagster assets: one run of them is one micro-batch.

Here: names, dependencies, metadata; each asset calls one stage. Not here: what a stage does (ingestion.py,
time_adjustment.py, windows.py, dead_letters.py), the checks (asset_checks.py).

A batch is planned by `ordered_events` and committed by `batches`, last. A blocking check that fails stops Dagster
from going on to `batches`: the batch stays uncommitted, readers stay at the last commit, the next run retries it.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    Config,
    FreshnessPolicy,
    MaterializeResult,
    asset,
)
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from tidemark.assets.alignment import is_aligned, must_process_first
from tidemark.assets.batch.batch import Batch
from tidemark.assets.batch.control import ensure_taken
from tidemark.assets.batch.planning import LogSegment, batch_of, is_accepted, next_segment, stage_of, take_on
from tidemark.assets.batch.ticks import clock_of_tick, why_never
from tidemark.assets.dead_letters import write_dead_letters
from tidemark.assets.display import metadata as show
from tidemark.assets.display.time_metadata import of_time_adjustment
from tidemark.assets.failures import RETRIES, say_who_runs, told_to_dagster
from tidemark.assets.ingestion import ingest, waiting_input
from tidemark.assets.schemas import create_tables
from tidemark.assets.time_adjustment import adjust_time
from tidemark.assets.windows import aggregate_windows, days_of_batch
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.quality.checks import import_ahead
from tidemark.resources.workspace import Workspace, plan_end, records_in
from tidemark.timeops.spec import Spec

OpenWorkspace = Callable[[LazyPySparkResource], Workspace]

SPARK = "tidemark_spark"
"""Key of the Spark resource, by which assets and checks name it: unlike `spark`, no other project has it."""


class LiveRun:
    """A pipeline as the stages of a run see it: its tables, and the batch that the run has taken on.

    The stages share the batch, so that its records are judged once. Spark frees what is kept of it with the object.
    """

    def __init__(self, open_workspace: OpenWorkspace) -> None:
        self._open = open_workspace
        self._batch: Batch | None = None

    def workspace(self, spark: LazyPySparkResource) -> Workspace:
        """The pipeline's tables."""
        return self._open(spark)

    def take_on(self, workspace: Workspace, segment: LogSegment, run_id: str) -> Batch:
        """Plans the next batch; errors as of `planning.take_on`."""
        self._batch = Batch(workspace, take_on(workspace, segment, run_id))
        return self._batch

    def batch(self, spark: LazyPySparkResource, run_id: str) -> Batch | None:
        """The batch that a run has taken on; None where it has none."""
        workspace = self.workspace(spark)
        plan = batch_of(workspace, run_id)
        if plan is None:
            return None
        if self._batch is None or self._batch.plan.attempt != plan.attempt:
            self._batch = Batch(workspace, plan)
        return self._batch

    def committed(self) -> None:
        """Lets go of the batch."""
        self._batch = None


class BatchSettings(Config):
    """How much one run processes."""

    max_events_per_batch: int | None = Field(default=None, description="At most so many records of the log.", ge=1)
    end_of_input: str | None = Field(default=None, description="`flush` or `hold`; by default as the spec says.")
    reread: bool = Field(default=False, description="Read files with the same bytes as others that were read, too.")
    live: bool = Field(default=False, description="Behind the last record write a tick: all input has been read.")
    reopen: str | None = Field(
        default=None, description="Why a flushed pipeline takes new input; it goes on as before."
    )


def live_assets(spec: Spec, run: LiveRun) -> list[AssetsDefinition]:
    """The assets of a pipeline's live run, in order."""
    return [
        _raw_events(spec, run),
        _ordered_events(spec, run),
        *([_window_results(spec, run)] if spec.windows else []),
        _dead_letters(spec, run),
        _batches(spec, run),
    ]


def key(spec: Spec, name: str) -> AssetKey:
    """Key of a pipeline's asset, such as `earthquakes/raw_events`."""
    return AssetKey([spec.name, *name.split("/")])


def pool_of(spec: Spec) -> str:
    """The pool that all runs of a pipeline share: with a limit of one, queued runs wait for each other."""
    return f"tidemark/{spec.name}"


def run_tags(plan: Plan) -> dict[str, str]:
    """What a run is about, for the lists of runs."""
    return {"tidemark/batch": str(plan.batch_id), "tidemark/records": f"{records_in(plan):,}"}


def _stage(
    spec: Spec, name: str, about: str, deps: list[str]
) -> Callable[[Callable[..., Iterator[MaterializeResult[None]]]], AssetsDefinition]:
    """Decorator of a live asset. Without a batch of the run it yields nothing, so that no empty run is shown."""
    described = asset(
        key=key(spec, name),
        group_name=spec.name,
        description=about,
        deps=[key(spec, dep) for dep in deps],
        kinds={"pyspark", "delta"},
        owners=list(spec.owners),
        tags=dict(spec.tags),
        output_required=False,
        pool=pool_of(spec),
        retry_policy=RETRIES,
        freshness_policy=_freshness(spec) if name == "batches" else None,
    )
    return lambda stage: described(told_to_dagster(stage))


def _freshness(spec: Spec) -> FreshnessPolicy | None:
    """How long ago the last batch may be, as Dagster's daemon watches it; it asks for an age that is an error."""
    levels = spec.alerts.freshness
    if levels is None or levels.error is None:
        return None
    return FreshnessPolicy.time_window(fail_window=levels.error, warn_window=levels.warn)


def _raw_events(spec: Spec, run: LiveRun) -> AssetsDefinition:
    about = "The arrival log: every record that came in, in the order that everything downstream is a function of."

    @_stage(spec, "raw_events", about, [])
    def raw_events(
        context: AssetExecutionContext, tidemark_spark: LazyPySparkResource, config: BatchSettings
    ) -> Iterator[MaterializeResult[None]]:
        say_who_runs(context)
        workspace = run.workspace(tidemark_spark)
        workspace.tell("looking for new input")
        ensure_taken(workspace)
        create_tables(workspace)
        pending = workspace.batches.pending()
        if pending is not None and pending.kind == "process":
            context.log.info("batch %s was not committed: it is finished before new input is read", pending.batch_id)
            done = None
        elif must_process_first(workspace):
            context.log.info("aligned sources are judged by what was processed: that comes before new input is read")
            done = None
        else:
            done = ingest(workspace, context.run.run_id, reread=config.reread)
            for sentence in (*done.errors, *done.copies):
                context.log.warning(sentence)
        if config.live and (why := why_never(spec)):
            context.log.info("live has no effect: %s", why)
        if not (done and (done.records or done.copies)) and _next(workspace, config).is_empty:
            context.log.info("nothing new")
            return
        yield MaterializeResult(
            metadata={
                **show.rows(workspace.log_end()),
                **show.table(workspace.lake, tables.RAW_EVENTS),
                **show.numbers(
                    {
                        "new_records": done.records if done else 0,
                        **({"before_start_at": done.before_start} if done and spec.time.start_at else {}),
                        "files_read": done.files if done else 0,
                        "files_waiting": done.waiting if done else 0,
                        **({"files_ahead": done.ahead} if done and is_aligned(spec) else {}),
                        "files_held_back": len(done.errors) if done else 0,
                        "files_read_before": len(done.copies) if done else 0,
                    }
                ),
                **({"read_before": show.sentences(done.copies, of="file")} if done and done.copies else {}),
            }
        )

    return raw_events


def _ordered_events(spec: Spec, run: LiveRun) -> AssetsDefinition:
    about = "Accepted events in event-time order, released once the watermark has passed them."

    @_stage(spec, "ordered_events", about, ["raw_events"])
    def ordered_events(
        context: AssetExecutionContext, tidemark_spark: LazyPySparkResource, config: BatchSettings
    ) -> Iterator[MaterializeResult[None]]:
        workspace = run.workspace(tidemark_spark)
        segment = _next(workspace, config)
        if segment.is_empty:
            context.log.info("nothing new")
            return
        batch = run.take_on(workspace, segment, context.run.run_id)
        plan = batch.plan
        context.instance.add_run_tags(context.run.run_id, run_tags(plan))
        import_ahead()
        workspace.tell(f"batch {plan.batch_id}: judging {segment.end_seq - segment.first_seq:,} records")
        with stage_of(workspace, plan):
            done = adjust_time(batch)
            about = of_time_adjustment(batch, done)
        yield MaterializeResult(metadata=about)

    return ordered_events


def _window_results(spec: Spec, run: LiveRun) -> AssetsDefinition:
    about = "Closes windows: writes the rows of `windows/<name>` whose windows the watermark has passed."

    @_stage(spec, "window_results", about, ["ordered_events"])
    def window_results(
        context: AssetExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[MaterializeResult[None]]:
        batch = run.batch(tidemark_spark, context.run.run_id)
        if batch is None:
            context.log.info("no batch of this run: materialize ordered_events in the same run")
            return
        workspace, plan = batch.workspace, batch.plan
        workspace.tell(f"batch {plan.batch_id}: closing windows")
        with stage_of(workspace, plan):
            done = aggregate_windows(batch)
        counts = workspace.counts_of(plan.batch_id)
        outcomes = {name.replace(".", "_"): n for name, n in counts.items() if "." in name and "refused" not in name}
        yield MaterializeResult(
            metadata={
                **show.rows(sum(done.results.values())),
                **show.numbers({f"{name}_rows": n for name, n in done.results.items()}),
                **show.numbers(outcomes),
                "batch": show.number_of(plan),
            }
        )

    return window_results


def _dead_letters(spec: Spec, run: LiveRun) -> AssetsDefinition:
    about = "Every record that was refused, with the reason, how late it was, and the record itself."
    stages = ["ordered_events", *(["window_results"] if spec.windows else [])]

    @_stage(spec, "dead_letters", about, stages)
    def dead_letters(
        context: AssetExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[MaterializeResult[None]]:
        batch = run.batch(tidemark_spark, context.run.run_id)
        if batch is None:
            context.log.info("no batch of this run: materialize ordered_events in the same run")
            return
        workspace, plan = batch.workspace, batch.plan
        workspace.tell(f"batch {plan.batch_id}: writing dead letters")
        with stage_of(workspace, plan):
            reasons = write_dead_letters(batch)
        yield MaterializeResult(
            metadata={
                **show.rows(sum(reasons.values())),
                **show.numbers(reasons),
                **show.table(workspace.lake, tables.DEAD_LETTERS),
                "reasons": show.counted(reasons, of="reason"),
                "batch": show.number_of(plan),
            }
        )

    return dead_letters


def _batches(spec: Spec, run: LiveRun) -> AssetsDefinition:
    about = "The log of batches. Its newest row is the commit: the version of every table that belongs together."
    before = [*(["window_results"] if spec.windows else []), "ordered_events", "dead_letters"]

    @_stage(spec, "batches", about, before)
    def batches(
        context: AssetExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[MaterializeResult[None]]:
        batch = run.batch(tidemark_spark, context.run.run_id)
        if batch is None:
            context.log.info("no batch of this run: materialize ordered_events in the same run")
            return
        workspace, plan = batch.workspace, batch.plan
        workspace.tell(f"batch {plan.batch_id}: committing")
        counts = workspace.counts_of(plan.batch_id)
        versions = workspace.outputs(plan)
        run.committed()
        reason = is_accepted(workspace, plan)
        now = workspace.clock.now()
        workspace.batches.commit(plan, counts, versions, now, reason=reason)
        workspace.tell(_progress(workspace, plan, now))
        for name, days in (days_of_batch(batch) if spec.windows else {}).items():
            table = tables.window_table(name)
            about = show.table(workspace.lake, table)
            for day, n in days.items():
                written = {**show.rows(n), **about, "batch": show.number_of(plan)}
                context.log_event(AssetMaterialization(key(spec, table), partition=day, metadata=written))
        yield MaterializeResult(
            metadata={
                "batch": show.number_of(plan),
                **show.numbers({"first_seq": plan.first_seq, "end_seq": plan.end_seq or 0}),
                **show.table(workspace.lake, tables.BATCHES),
            }
        )

    return batches


def _next(workspace: Workspace, config: BatchSettings) -> LogSegment:
    tick_us = clock_of_tick(workspace) if config.live else None
    return next_segment(
        workspace,
        config.max_events_per_batch,
        flush=_flush(workspace, config),
        tick_us=tick_us,
        reopen=config.reopen,
    )


def _flush(workspace: Workspace, config: BatchSettings) -> bool:
    """Whether the end of input is flushed behind what was read: not while files are left for later ingestions."""
    return workspace.spec.time.flushes(config.end_of_input) and not waiting_input(workspace).ready


def _progress(workspace: Workspace, plan: Plan, now: datetime) -> str:
    """What a committed batch took, and how much of the log is left."""
    records, end = records_in(plan), plan_end(plan)
    rate = records / max((now - plan.planned_at).total_seconds(), 0.001)
    left = workspace.log_end() - end
    rest = f"{left:,} of {end + left:,} records are left" if left else "no records are left"
    return f"batch {plan.batch_id}: committed, {records:,} records, {rate:,.0f} a second; {rest}"
