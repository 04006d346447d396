"""The checks of a batch as Dagster asset checks: what was expected, what was found, what to do.

Here: their names, and results as Dagster shows them. Not here: what they look at (assets/checks.py).
"""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from tidemark.assets.catalog.display.evaluations import evaluation_of, note_failures
from tidemark.assets.catalog.runs import RETRIES, LiveRun, key, pool_of, step_name, told_to_dagster
from tidemark.assets.checks import expectations_by_asset, run_checks
from tidemark.resources.quality.checks import Expectation
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.errors.printable import printable


def live_checks(file: SpecFile, run: LiveRun) -> list[dg.AssetChecksDefinition]:
    """Return the checks of a pipeline's live assets."""
    by_asset = expectations_by_asset(file.spec)
    return [_checks_of(file, run, name, all_of) for name, all_of in by_asset.items() if all_of]


def _checks_of(file: SpecFile, run: LiveRun, name: str, all_of: Sequence[Expectation]) -> dg.AssetChecksDefinition:
    spec, asset = file.spec, key(file, name)
    specs = [
        dg.AssetCheckSpec(check.name, asset=asset, description=check.sentence, blocking=check.blocking)
        for check in all_of
    ]

    @dg.multi_asset_check(
        specs=specs, name=f"{step_name(spec, name)}_checks", pool=pool_of(spec), retry_policy=RETRIES
    )
    @told_to_dagster
    def checks(
        context: dg.AssetCheckExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        batch = run.batch(context, tidemark_spark)
        if batch is None:
            idle = "This run had no batch to check."
            for check in all_of:
                yield dg.AssetCheckResult(asset_key=asset, check_name=check.name, passed=True, description=idle)
            return
        workspace, plan = batch.workspace, batch.plan
        workspace.tell(f"batch {plan.batch_id}: checking {name}")
        with batch.stage():
            checks_run = run_checks(batch, name, run.losses)
        note_failures(batch, name, checks_run)
        stopping = [checked for checked in checks_run if checked.expectation.blocking and not checked.passed]
        # No stage of this run commits it: programs that watch batches see its end now.
        if stopping and batch.accepted_because is None:
            why = "\n".join(f"check {checked.expectation.name} failed. {checked.message}" for checked in stopping)
            workspace.batches.give_up(plan, workspace.clock.now(), why)
        for checked in checks_run:
            if not checked.passed:
                context.log.error(printable(checked.message, keep="\n"))
            blocks = checked.expectation.blocking and batch.accepted_because is None
            evaluation = evaluation_of(run.losses, asset, checked, blocks=blocks)
            yield dg.AssetCheckResult(
                asset_key=asset,
                check_name=evaluation.check_name,
                passed=evaluation.passed,
                severity=evaluation.severity,
                description=evaluation.description,
                metadata=evaluation.metadata,
            )

    return checks
