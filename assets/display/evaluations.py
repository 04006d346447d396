"""The results of checks as Dagster shows them: a verdict, its severity, what was counted, a link to the page.

Not here: the checks (../checks.py), the pages (resources/quality/data_docs.py).
"""

from collections.abc import Sequence

import dagster as dg

from tidemark.assets.display import metadata as show
from tidemark.resources.batches.plans import Plan
from tidemark.resources.places.place import Place
from tidemark.resources.quality.checks import Checked
from tidemark.resources.quality.data_docs import address_of, write_page
from tidemark.resources.workspace import Workspace


def page_of(workspace: Workspace, name: str, plan: Plan, done: Sequence[Checked], docs: str) -> show.Metadata:
    """Write the page of an asset's checks; return what leads from their results to the batch and the page.

    `docs` is the address at which the pages are served, or empty.
    """
    page = write_page(workspace.folder, name, plan.batch_id, done, workspace.clock.now())
    found: show.Metadata = {"batch": show.number_of(plan)}
    if page is not None:
        found["data_docs"] = _link(page, workspace.folder, docs)
    return found


def evaluation_of(
    asset: dg.AssetKey, checked: Checked, about: show.Metadata, *, blocks: bool
) -> dg.AssetCheckEvaluation:
    """Return the result of a check of an asset; one that blocks or is an error is more than a warning."""
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=checked.expectation.name,
        passed=checked.passed,
        severity=dg.AssetCheckSeverity.ERROR if blocks or checked.is_error else dg.AssetCheckSeverity.WARN,
        description=checked.message,
        metadata=about | _details(checked),
        blocking=checked.expectation.blocking,
    )


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
    found = address_of(page, pipeline, address)
    return dg.MetadataValue.url(found) if address else dg.MetadataValue.path(found)
