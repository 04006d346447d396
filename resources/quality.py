"""Great Expectations over Spark frames: what holds of every row, said in SQL, with the rows that break it.

Here: the small adapter (dagster-ge wants an older Great Expectations). Not here: which checks there are, see
assets/checks.py.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark.sql import DataFrame

_SAMPLE_ROWS = 5


@dataclass(frozen=True)
class Expectation:
    """No row of a frame may be found by a query.

    Attributes:
        name: Name of the check.
        holds: What holds when it passes, a sentence.
        unexpected: SQL that finds rows that break it; `{batch}` stands for the frame.
        remedy: What to do when it fails.
        blocking: A failure keeps the batch from being committed.
    """

    name: str
    holds: str
    unexpected: str
    remedy: str
    blocking: bool = False


@dataclass(frozen=True)
class Checked:
    """The result of an expectation.

    Attributes:
        expectation: What was expected.
        passed: Whether no row broke it.
        unexpected_rows: How many rows did.
        sample: Some of them.
    """

    expectation: Expectation
    passed: bool
    unexpected_rows: int
    sample: tuple[dict[str, Any], ...]

    @property
    def message(self) -> str:
        """What was found, and what to do."""
        if self.passed:
            return f"{self.expectation.holds}."
        shown = "; ".join(", ".join(f"{k}={v}" for k, v in row.items()) for row in self.sample)
        return (
            f"Expected: {self.expectation.holds}. Found {self.unexpected_rows} row(s) that break it: {shown}. "
            f"To do: {self.expectation.remedy}."
        )


def check(frame: DataFrame, expectations: Sequence[Expectation]) -> list[Checked]:
    """Validates a frame.

    Args:
        frame: The rows.
        expectations: What to check, in order.
    """
    gx, source = _great_expectations()
    asset = source.add_dataframe_asset(f"frame_{id(frame)}")
    try:
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
        return [_check_one(gx, batch, frame, expectation) for expectation in expectations]
    finally:
        source.delete_asset(asset.name)


def _check_one(gx: Any, batch: Any, frame: DataFrame, expectation: Expectation) -> Checked:
    wanted = gx.expectations.UnexpectedRowsExpectation(
        unexpected_rows_query=expectation.unexpected, description=expectation.holds
    )
    result = batch.validate(wanted, result_format="SUMMARY")
    if result.success:
        return Checked(expectation, True, 0, ())
    if result.exception_info and "observed_value" not in (result.result or {}):
        raise RuntimeError(f"check {expectation.name} could not run: {result.exception_info}")
    rows = frame.sparkSession.sql(expectation.unexpected, batch=frame).limit(_SAMPLE_ROWS).collect()
    found = int(result.result["observed_value"])
    return Checked(expectation, False, found, tuple(row.asDict(recursive=True) for row in rows))


@cache
def _great_expectations() -> tuple[Any, Any]:
    """The library and a Spark source; imported at the first check, as the import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations as gx  # noqa: PLC0415

        context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return gx, context.data_sources.add_or_update_spark("tidemark")
