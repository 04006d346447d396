"""The checks of a batch as Dagster asset checks: what was expected, what was found, what to do.

Here: their names, and results as Dagster shows them. Not here: what they look at (checks.py).
"""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from tidemark.assets.checks import expectations, run_checks
from tidemark.assets.display import metadata as show
from tidemark.assets.runs import RETRIES, LiveRun, key, pool_of, told_to_dagster
from tidemark.resources.places.place import Place, relative
from tidemark.resources.quality.checks import Checked, Expectation
from tidemark.resources.quality.data_docs import docs_folder, write_page
from tidemark.timeops.printable import printable
from tidemark.timeops.spec import Spec


def live_checks(spec: Spec, run: LiveRun, data_docs: str) -> list[dg.AssetChecksDefinition]:
    """Return the checks of a pipeline's live assets; `data_docs` is the address of all checks' pages, or empty."""
    asked = [(name, all_of) for name, all_of in expectations(spec).items() if all_of]
    return [_checks_of(spec, run, data_docs, name, all_of) for name, all_of in asked]


def _checks_of(
    spec: Spec, run: LiveRun, data_docs: str, name: str, all_of: Sequence[Expectation]
) -> dg.AssetChecksDefinition:
    asset = key(spec, name)
    specs = [dg.AssetCheckSpec(one.name, asset=asset, description=one.holds, blocking=one.blocking) for one in all_of]

    @dg.multi_asset_check(specs=specs, name=f"{spec.name}__{name}_checks", pool=pool_of(spec), retry_policy=RETRIES)
    @told_to_dagster
    def checks(
        context: dg.AssetCheckExecutionContext, tidemark_spark: LazyPySparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        batch = run.batch(tidemark_spark, context.run.run_id)
        if batch is None:
            idle = "This run had no batch to check."
            for one in all_of:
                yield dg.AssetCheckResult(asset_key=asset, check_name=one.name, passed=True, description=idle)
            return
        workspace, plan = batch.workspace, batch.plan
        workspace.tell(f"batch {plan.batch_id}: checking {name}")
        with batch.stage():
            done = run_checks(batch, name)
        page = write_page(workspace.folder, name, plan.batch_id, done, workspace.clock.now())
        about: show.Metadata = {"batch": show.number_of(plan)}
        if page is not None:
            about["data_docs"] = _link(page, workspace.folder, data_docs)
        for checked in done:
            if not checked.passed:
                context.log.error(printable(checked.message, keep="\n"))
            blocks = checked.expectation.blocking and batch.accepted_because is None
            yield dg.AssetCheckResult(
                asset_key=asset,
                check_name=checked.expectation.name,
                passed=checked.passed,
                severity=dg.AssetCheckSeverity.ERROR if blocks or checked.is_error else dg.AssetCheckSeverity.WARN,
                description=checked.message,
                metadata=about | _details(checked),
            )

    return checks


def _details(checked: Checked) -> show.Metadata:
    found: show.Metadata = {name: dg.MetadataValue.float(float(n)) for name, n in checked.numbers.items()}
    if checked.measured:
        apart = sum(abs(one.found - one.expected) for one in checked.measured)
        found["difference"] = dg.MetadataValue.int(apart)  # a number, so that Dagster plots it
        counts = [{"subject": one.subject, "expected": one.expected, "found": one.found} for one in checked.measured]
        found["counts"] = show.rows_as_table(counts)
    if checked.sample:
        found["sample"] = show.rows_as_table(checked.sample)
    return found


def _link(page: Place, pipeline: Place, address: str) -> dg.MetadataValue[str]:
    """Return the place where the page of the checks can be read; a browser opens no file from Dagster's pages."""
    if not address:
        return dg.MetadataValue.path(str(page))
    within = relative(page, docs_folder(pipeline))
    return dg.MetadataValue.url(f"{address}/{pipeline.name}/{within}")
