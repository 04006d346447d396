"""The results of checks as Dagster shows them: a verdict, its severity, what was counted.

Not here: the checks (assets/checks.py), what is kept of failed ones for messages (resources/quality/failures.py).
"""

from collections.abc import Sequence

import dagster as dg

from tidemark.assets.alarms.alerts import DEAD_LETTER_RATE
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import BatchWriter
from tidemark.assets.catalog.display import metadata as show
from tidemark.resources.quality.checks import Checked
from tidemark.resources.quality.failures import write_failures


def note_failures(batch: BatchWriter, name: str, checks: Sequence[Checked]) -> None:
    """Keep the checks of an asset that failed, for messages."""
    workspace = batch.workspace
    write_failures(workspace.folder, name, batch.plan.batch_id, checks, workspace.clock.now())


def evaluation_of(
    lost: BatchLosses, asset: dg.AssetKey, checked: Checked, *, blocks: bool
) -> dg.AssetCheckEvaluation:
    """Return the result of a check of an asset; one that blocks or is an error is more than a warning."""
    about = {"batch": show.number_of(lost.batch.plan)}
    if not checked.passed and checked.expectation.name == DEAD_LETTER_RATE.name:
        about |= show.questions(lost)
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
    metadata: show.Metadata = {name: dg.MetadataValue.float(float(n)) for name, n in checked.numbers.items()}
    if checked.measured:
        apart = sum(abs(count.actual - count.expected) for count in checked.measured)
        metadata["difference"] = dg.MetadataValue.int(apart)  # a number, so that Dagster plots it
        counts = [
            {"subject": counted.subject, "expected": counted.expected, "found": counted.actual}
            for counted in checked.measured
        ]
        metadata["counts"] = show.rows_as_table(counts)
    if checked.sample:
        metadata["sample"] = show.rows_as_table(checked.sample)
    return metadata
