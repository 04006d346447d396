"""The checks of a batch as Dagster asset checks: what was expected, what was found, what to do.

Here: their names, and results as Dagster shows them. Not here: what they look at (checks.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    MetadataValue,
    multi_asset_check,
)
from dagster_pyspark import LazyPySparkResource

from assets.checks import expectations, run_checks
from assets.commits import batch_of, is_accepted, stage_of
from assets.failures import RETRIES, told_to_dagster
from assets.live import OpenWorkspace, key, pool_of
from resources.quality import Checked, Expectation
from timeops.spec import Spec


def live_checks(spec: Spec, open_workspace: OpenWorkspace) -> list[AssetChecksDefinition]:
    """The checks of a pipeline's live assets."""
    return [_checks_of(spec, open_workspace, name, all_of) for name, all_of in expectations(spec).items() if all_of]


def _checks_of(
    spec: Spec, open_workspace: OpenWorkspace, name: str, all_of: Sequence[Expectation]
) -> AssetChecksDefinition:
    asset = key(spec, name)
    specs = [_spec_of(expectation, asset.path) for expectation in all_of]

    @multi_asset_check(specs=specs, name=f"{spec.name}__{name}_checks", pool=pool_of(spec), retry_policy=RETRIES)
    @told_to_dagster
    def checks(context: AssetCheckExecutionContext, spark: LazyPySparkResource) -> Iterator[AssetCheckResult]:
        workspace = open_workspace(spark)
        plan = batch_of(workspace, context.run.run_id)
        if plan is None:
            for expectation in all_of:
                yield _passed_idle(expectation, asset.path)
            return
        accepted = is_accepted(workspace, plan) is not None
        workspace.tell(f"batch {plan.batch_id}: checking {name}")
        with stage_of(workspace, plan):
            done = run_checks(workspace, plan, name)
        for checked in done:
            if not checked.passed:
                context.log.error(checked.message)
            yield _result(checked, asset.path, plan.batch_id, accepted=accepted)

    return checks


def _spec_of(expectation: Expectation, asset: Sequence[str]) -> AssetCheckSpec:
    return AssetCheckSpec(
        name=expectation.name, asset=list(asset), description=expectation.holds, blocking=expectation.blocking
    )


def _result(checked: Checked, asset: Sequence[str], batch: int, *, accepted: bool) -> AssetCheckResult:
    blocks = checked.expectation.blocking and not accepted
    return AssetCheckResult(
        asset_key=list(asset),
        check_name=checked.expectation.name,
        passed=checked.passed,
        severity=AssetCheckSeverity.ERROR if blocks or checked.is_error else AssetCheckSeverity.WARN,
        description=checked.message,
        metadata={
            "batch": MetadataValue.int(batch),
            "differences": MetadataValue.json([asdict(one) for one in checked.broken]),
            "sample": MetadataValue.json([{k: str(v) for k, v in row.items()} for row in checked.sample]),
        },
    )


def _passed_idle(expectation: Expectation, asset: Sequence[str]) -> AssetCheckResult:
    return AssetCheckResult(
        asset_key=list(asset), check_name=expectation.name, passed=True, description="This run had no batch to check."
    )
