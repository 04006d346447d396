"""Great Expectations over what was measured of a batch: numbers that must be equal, with rows that show where not.

Here: the small adapter (dagster-ge wants an older Great Expectations). Not here: which checks there are and how they
measure, see assets/checks.py.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from threading import Lock, Thread
from typing import Any

import pandas as pd

SAMPLE_ROWS = 5

_importing = Lock()

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Expectation:
    """What holds of every batch.

    Attributes:
        name: Name of the check.
        holds: What holds when it passes, a sentence.
        remedy: What to do when it fails.
        blocking: A failure keeps the batch from being committed.
    """

    name: str
    holds: str
    remedy: str
    blocking: bool = False


@dataclass(frozen=True)
class Measured:
    """A count of one subject, as it has to be and as the tables have it.

    Attributes:
        subject: What is counted.
        expected: As it has to be.
        found: As the tables have it.
        said: What a person is told where they differ; else it is made of the other three.
    """

    subject: str
    expected: int
    found: int
    said: str = ""

    @property
    def in_words(self) -> str:
        """What is wrong with it."""
        return (
            self.said
            or f"{self.subject}: {self.found:,}; expected {f'{self.expected:,}' if self.expected else 'none'}"
        )


def some_of(total: int, wrong: int, subject: str, *, are: str) -> Measured:
    """Count what is wrong among several: `3 of 12,000 results differ`."""
    return Measured(f"{subject} that {are}", 0, wrong, f"{wrong:,} of {total:,} {subject} that {are}; expected none")


@dataclass(frozen=True)
class Checked:
    """The result of an expectation.

    Attributes:
        expectation: What was expected.
        broken: What differs; empty when it passed.
        sample: Some of the rows that break it, where rows can show it.
        is_error: A failure is more than a warning, although it holds nothing back.
        note: What was compared, in words; may be empty.
        measured: All that was compared.
        numbers: What Dagster plots over runs, by name.
        result: What Great Expectations found, for its Data Docs; None where there was nothing to compare.
    """

    expectation: Expectation
    broken: tuple[Measured, ...]
    sample: tuple[Mapping[str, Any], ...] = ()
    is_error: bool = False
    note: str = ""
    measured: tuple[Measured, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    result: Any = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.broken

    @property
    def message(self) -> str:
        """What was found, and what to do."""
        note = f" {self.note}." if self.note else ""
        if self.passed:
            return f"{self.expectation.holds}.{note}"
        found = "; ".join(one.in_words for one in self.broken)
        rows = "; ".join(", ".join(f"{k}={v}" for k, v in row.items()) for row in self.sample)
        return (
            f"Expected: {self.expectation.holds}. Found {found}{f' (such as {rows})' if rows else ''}. "
            f"To do: {self.expectation.remedy}.{note}"
        )


def check(
    expectation: Expectation,
    measured: Sequence[Measured],
    sample: Callable[[], Rows] = lambda: (),
    *,
    note: str = "",
) -> Checked:
    """Validates that every count is as expected.

    Args:
        expectation: What must hold.
        measured: The counts.
        sample: Gives rows that break it; called only when something does.
        note: What was compared, in words.
    """
    wanted = great_expectations().expectations.ExpectColumnPairValuesToBeEqual(
        column_A="expected",
        column_B="found",
        description=f"{expectation.name}: {expectation.holds}.",
        notes=f"To do where it fails: {expectation.remedy}.",
    )
    frame = pd.DataFrame([asdict(one) for one in measured], columns=["subject", "expected", "found"])  # no words
    result = (
        _counts()
        .get_batch({"dataframe": frame})
        .validate(wanted, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["subject"]})
    )
    if result.success:
        return Checked(expectation, (), note=note, measured=tuple(measured), result=result)
    if "unexpected_index_list" not in (result.result or {}):
        raise RuntimeError(f"check {expectation.name} could not run: {result.exception_info}")
    differing = {row["subject"] for row in result.result["unexpected_index_list"]}
    broken = tuple(one for one in measured if one.subject in differing)
    return Checked(expectation, broken, tuple(sample()), note=note, measured=tuple(measured), result=result)


def great_expectations() -> Any:
    """The library; imported when it is first asked for, as the import takes seconds."""
    with _importing, warnings.catch_warnings(), _main_module_with_a_file():
        warnings.simplefilter("ignore")
        import great_expectations as gx  # noqa: PLC0415
    return gx


def import_ahead() -> None:
    """Begins to import the library beside other work: checks come last in a run, and its Spark may be elsewhere."""
    if "great_expectations" not in sys.modules:
        Thread(target=great_expectations, name="import of great_expectations", daemon=True).start()


@cache
def _counts() -> Any:
    """What a frame of counts is handed to as a batch; nothing keeps it.

    One for all checks: to name another, the library writes its whole configuration once more.
    """
    library = great_expectations()
    with warnings.catch_warnings(), _main_module_with_a_file():
        warnings.simplefilter("ignore")
        context = library.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("tidemark").add_dataframe_asset("counts")
    return asset.add_batch_definition_whole_dataframe("all")


@contextmanager
def _main_module_with_a_file() -> Iterator[None]:
    """While modules of PySpark are imported, makes this process look like one that runs a file.

    It takes a process whose main module is no file, as the runs that Dagster launches are, for a run of its own
    doctests, and ends it.
    """
    main = vars(sys.modules["__main__"])
    if "__file__" in main:
        yield
        return
    main["__file__"] = __file__
    try:
        yield
    finally:
        del main["__file__"]
