"""Great Expectations over the counts of a batch: numbers that must be equal, and rows that show where they are not.

Here: the small adapter (dagster-ge wants an older Great Expectations). Not here: the checks and their measurements,
see assets/checks.py.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from threading import Lock, Thread
from types import ModuleType
from typing import Any

import pandas as pd

SAMPLE_ROWS = 5

_importing = Lock()

SampleRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Expectation:
    """A sentence that holds for every batch, and the remedy if it does not.

    A failure of a blocking one prevents the commit of the batch.
    """

    name: str
    holds: str
    remedy: str
    blocking: bool = False

    @property
    def sentence(self) -> str:
        """The statement that holds, as a sentence of its own."""
        return f"{self.holds[0].upper()}{self.holds[1:]}."


@dataclass(frozen=True)
class Measured:
    """A count of one subject, as expected and as it is in the tables.

    The sentence for a difference, `sentence`, is made from the other three if it is empty.
    """

    subject: str
    expected: int
    actual: int
    sentence: str = ""

    @property
    def in_words(self) -> str:
        """The difference, in words."""
        return (
            self.sentence
            or f"{self.subject}: {self.actual:,}; expected {f'{self.expected:,}' if self.expected else 'none'}"
        )


def some_of(total: int, wrong: int, subject: str, *, are: str) -> Measured:
    """Count the faults among several: `3 of 12,000 results differ`."""
    return Measured(f"{subject} that {are}", 0, wrong, f"{wrong:,} of {total:,} {subject} that {are}; expected none")


@dataclass(frozen=True)
class Counted:
    """The counts of an expectation, not yet validated.

    Attributes:
        expectation: The expectation.
        measured: All counts to compare.
        sample: Returns some of the rows that break it; it is called only if a count differs.
        note: The comparison, in words; may be empty.
        is_error: Whether a failure is more than a warning, although it does not block.
        numbers: The numbers that Dagster plots over runs, by name.
    """

    expectation: Expectation
    measured: Sequence[Measured] = ()
    sample: Callable[[], SampleRows] = lambda: ()
    note: str = ""
    is_error: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """The result of an expectation.

    Attributes:
        expectation: The expectation.
        broken: The counts that differ; empty if it passed.
        sample: Some of the rows that break it, if rows can show it.
        is_error: Whether a failure is more than a warning, although it does not block.
        note: The comparison, in words; may be empty.
        measured: All compared counts.
        numbers: The numbers that Dagster plots over runs, by name.
    """

    expectation: Expectation
    broken: tuple[Measured, ...]
    sample: tuple[Mapping[str, Any], ...] = ()
    is_error: bool = False
    note: str = ""
    measured: tuple[Measured, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return whether nothing differs."""
        return not self.broken

    @property
    def is_an_error(self) -> bool:
        """Return whether a failure is more than a warning."""
        return self.is_error or self.expectation.blocking

    @property
    def message(self) -> str:
        """The differences and the remedy."""
        note = f" {self.note}." if self.note else ""
        if self.passed:
            return f"{self.expectation.holds}.{note}"
        differences = "; ".join(count.in_words for count in self.broken)
        rows = "; ".join(", ".join(f"{k}={v}" for k, v in row.items()) for row in self.sample)
        return (
            f"Expected: {self.expectation.holds}. Found {differences}{f' (such as {rows})' if rows else ''}. "
            f"To do: {self.expectation.remedy}.{note}"
        )


def validated(counted: Sequence[Counted]) -> list[Checked]:
    """Validate that every count of some expectations is as expected, in one call: each takes as long, however many.

    Their names differ, and so do the subjects of each.
    """
    rows = [{"check": check.expectation.name, **asdict(count)} for check in counted for count in check.measured]
    differing = _differing(pd.DataFrame(rows, columns=["check", "subject", "expected", "actual"])) if rows else set()
    return [_checked(check, differing) for check in counted]


def _checked(counted: Counted, differing: Collection[tuple[str, str]]) -> Checked:
    name = counted.expectation.name
    broken = tuple(count for count in counted.measured if (name, count.subject) in differing)
    return Checked(
        counted.expectation,
        broken,
        tuple(counted.sample()) if broken else (),
        is_error=counted.is_error,
        note=counted.note,
        measured=tuple(counted.measured),
        numbers=counted.numbers,
    )


def _differing(counts: pd.DataFrame) -> set[tuple[str, str]]:
    """Return check and subject of the counts that differ from what was expected."""
    equal = great_expectations().expectations.ExpectColumnPairValuesToBeEqual(column_A="expected", column_B="actual")
    batch = _counts().get_batch({"dataframe": counts})
    if batch.validate(equal, result_format="BASIC").success:
        return set()
    result = batch.validate(  # which of them differ: it takes half as long again
        equal, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["check", "subject"]}
    )
    if "unexpected_index_list" not in (result.result or {}):
        raise RuntimeError(f"the counts could not be compared: {result.exception_info}")
    return {(row["check"], row["subject"]) for row in result.result["unexpected_index_list"]}


@cache
def great_expectations() -> Any:
    """Return the library; it is imported when it is first needed, as the import takes seconds."""
    with _importing, warnings.catch_warnings(), _main_module_with_a_file(), _on_demand("altair", "scipy.stats"):
        warnings.simplefilter("ignore")
        import great_expectations as gx  # noqa: PLC0415
    return gx


def import_ahead() -> None:
    """Begin to import the library during other work: checks come last in a run, and its Spark may be elsewhere."""
    if "great_expectations" not in sys.modules:
        # Dagster's storage has SQLAlchemy look at classes, which fails while another thread is importing its `orm`.
        import_module("sqlalchemy.orm")
        Thread(target=great_expectations, name="import of great_expectations", daemon=True).start()


@cache
def _counts() -> Any:
    """Return the definition that takes a frame of counts as a batch; it is not stored.

    It serves all checks: for each further one, the library would write its whole configuration again.
    """
    library = great_expectations()
    with warnings.catch_warnings(), _main_module_with_a_file():
        warnings.simplefilter("ignore")
        context = library.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("tidemark").add_dataframe_asset("counts")
    return asset.add_batch_definition_whole_dataframe("all")


class _OnDemand(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def _on_demand(*names: str) -> Iterator[None]:
    """Let imports in the block put off some modules, unless these are there already.

    Great Expectations imports what draws charts and compares distributions: a third of its import, and 70 MB. No
    check here needs it; expectations of others find it when they use it.
    """
    deferred = {name: _OnDemand(name) for name in names if name not in sys.modules}
    sys.modules.update(deferred)
    try:
        yield
    finally:
        for name, module in deferred.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@contextmanager
def _main_module_with_a_file() -> Iterator[None]:
    """Make this process look like one that runs a file, while modules of PySpark are imported.

    PySpark mistakes a process whose main module is not a file, such as a run that Dagster launches, for a run of its
    own doctests, and ends it.
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
