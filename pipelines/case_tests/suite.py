"""`tidemark test`: a spec against the cases of a file, and what is shown of it.

Here: from files to a verdict on each case: a line, and for one that fails the rows that differ, side by side. Not
here: running (pipelines/case_tests/runs.py), what differs (pipelines/case_tests/differences.py), exit codes
(pipelines/cli.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemark.assets.schemas import payload_of, table_schemas
from tidemark.assets.state.right_tables import rows_now
from tidemark.pipelines.case_tests.differences import (
    CaseOutcomes,
    Difference,
    Outcome,
    Pair,
    Row,
    cut_differences,
    differences,
)
from tidemark.pipelines.case_tests.runs import Records, read_records, run_cases
from tidemark.pipelines.spec_files import read_text
from tidemark.resources import tables
from tidemark.resources.spark.amount import FEW
from tidemark.resources.workspace import SpecFile, Workspace, without_tables
from tidemark.timeops.cases import (
    DEAD_LETTERS,
    HELD,
    JOINS,
    ORDERED,
    WINDOWS,
    Case,
    CasesFile,
    Expected,
    parse_cases,
    read_value,
    text_of,
)
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.errors.problems import Problem, ProblemsError, did_you_mean
from tidemark.timeops.spec import Spec

_NOT_COMPARED = ("_batch_id", "replayed_at")
MOST_ROWS = 20
_NARROWEST = 120  # columns of a page that no terminal shows


@dataclass(frozen=True)
class Verdict:
    """The result of a case.

    Attributes:
        differences: The differences from what is expected.
        cuts: The differences from itself, cut into other segments.
        failure: The message of Spark if it could not be run.
    """

    case: Case
    differences: tuple[Difference, ...] = ()
    cuts: tuple[Difference, ...] = ()
    failure: str = ""

    @property
    def findings(self) -> str:
        """All that speaks against the case, as plain text."""
        return "\n".join(
            [*(difference.text for difference in (*self.differences, *self.cuts)), *filter(None, [self.failure])]
        )

    @property
    def holds(self) -> bool:
        """Return whether all is as it should be: also when a case that must fail does, and says what it should."""
        return self.case.error in self.findings and not self.cuts if self.case.error else not self.findings


@dataclass(frozen=True)
class CasesReport:
    """The verdicts on the cases of some files.

    Attributes:
        verdicts: By file, as it was named.
    """

    verdicts: Mapping[str, tuple[Verdict, ...]]

    @property
    def holds(self) -> bool:
        """True if every case holds."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """A few lines for each case that does not hold: file, name and all that speaks against it."""
        all_verdicts = ((file, verdict) for file, verdicts in self.verdicts.items() for verdict in verdicts)
        return tuple(
            f"{file}: {verdict.case.name}\n{verdict.findings or 'nothing differs'}"
            for file, verdict in all_verdicts
            if not verdict.holds
        )


def read_cases(spec: Spec, path: Path) -> CasesFile:
    """Read a file of cases; needs no Spark.

    Raises:
        SpecError: There is no such file, or it holds no valid cases of the spec.
    """
    text = read_text(path, "the file of cases", remedy="check the path; docs/how-to/test-a-spec.md shows one")
    return parse_cases(text, spec, file=str(path))


def judge(spec_file: SpecFile, file: CasesFile, spark: SparkSession) -> list[Verdict]:
    """Run the cases of a file.

    Raises:
        SpecError: An expression of the spec does not fit the columns, or a value of a case its column.
    """
    with FEW.tuned(lambda: spark):
        workspace = without_tables(spec_file, lambda: spark)
        schemas = _schemas(workspace)
        read = replace(file, cases=_with_values(file, schemas))
        return list(_verdicts(workspace, read, schemas))


def outcome_of(spec_file: SpecFile, file: CasesFile, spark: SparkSession) -> Outcome:
    """Return what the tables hold at the end of the only case of a file; errors as of `judge`."""
    spec = spec_file.spec
    with FEW.tuned(lambda: spark):
        workspace = without_tables(spec_file, lambda: spark)
        schemas = _schemas(workspace)
        records = _records(workspace, file)
        [outcomes] = run_cases(spark, spec, file.cases, records, schemas)
        return outcomes.steps[-1]


def _schemas(workspace: Workspace) -> dict[str, StructType]:
    """Return the columns of the tables that can be compared; a wrong expression of the spec fails here."""
    names = {tables.ORDERED_EVENTS: ORDERED, tables.HELD_EVENTS: HELD, tables.DEAD_LETTERS: DEAD_LETTERS}
    names |= {table: WINDOWS + name for name, table in workspace.window_tables.items()}
    names |= {tables.join_table(join.name): JOINS + join.name for join in workspace.spec.joins}
    return {
        names[table]: StructType([field for field in schema if field.name not in _NOT_COMPARED])
        for table, schema in table_schemas(workspace).items()
        if table in names
    }


def _with_values(file: CasesFile, schemas: Mapping[str, StructType]) -> tuple[Case, ...]:
    """Return the cases, their expected values read by the types of the columns."""
    problems: list[Problem] = []

    def read(expected: Expected | None, at: tuple[str | int, ...]) -> Expected | None:
        if expected is None:
            return None
        rows = {
            table: [_row(row, schemas[table], (*at, table, i), problems) for i, row in enumerate(rows)]
            for table, rows in expected.tables.items()
        }
        return replace(expected, tables=rows)

    cases = []
    for number, case in enumerate(file.cases):
        at = ("cases", number)
        steps = (
            None
            if case.steps is None
            else tuple(
                step.model_copy(update={"expect": read(step.expect, (*at, "steps", s, "expect"))})
                for s, step in enumerate(case.steps)
            )
        )
        cases.append(case.model_copy(update={"steps": steps, "expect": read(case.expect, (*at, "expect"))}))
    file.complain(problems)
    return tuple(cases)


def _row(
    row: Mapping[str, Any], columns: StructType, at: tuple[str | int, ...], problems: list[Problem]
) -> dict[str, Any]:
    values = {}
    for name, value in row.items():
        if name not in columns.names:
            expected = f"one of {', '.join(columns.names)}"
            problems.append(
                Problem(
                    f"unknown column `{name}`",
                    expected=expected,
                    remedy=did_you_mean(name, columns.names),
                    at=(*at, name),
                )
            )
            continue
        try:
            values[name] = read_value(value, columns[name].dataType)
        except ProblemsError as error:
            problems += [
                Problem(p.found, expected=p.expected, remedy=p.remedy, at=(*at, name, *p.at)) for p in error.problems
            ]
    return values


def _records(workspace: Workspace, file: CasesFile) -> Records:
    """Return the records of cases, and the tables on the right side of joins as they are."""
    records = read_records(workspace.spark, workspace.spec, file, payload_of(workspace))
    return replace(records, right_rows=rows_now(workspace))


def _verdicts(workspace: Workspace, file: CasesFile, schemas: Mapping[str, StructType]) -> Iterator[Verdict]:
    records = _records(workspace, file)
    try:
        outcomes = run_cases(workspace.spark, workspace.spec, file.cases, records, schemas)
    except AnalysisException:
        raise  # no case is the cause
    except (PySparkException, Py4JJavaError) as error:  # the latter where PySpark knows no class for it
        if len(file.cases) == 1:
            yield Verdict(file.cases[0], failure=f"Spark fails: {_reason(error)}")
            return
        for case in file.cases:  # one by one, to find the wrong one
            yield from _verdicts(workspace, replace(file, cases=(case,)), schemas)
        return
    for case, outcome in zip(file.cases, outcomes, strict=True):
        yield Verdict(case, tuple(_against_expected(case, outcome)), tuple(cut_differences(outcome)))


def _against_expected(case: Case, outcome: CaseOutcomes) -> Iterator[Difference]:
    for number, (step, actual) in enumerate(zip(case.segments, outcome.steps, strict=True), start=1):
        if step.expect is not None:
            yield from differences(step.expect, actual, f"after step {number}" if case.steps else "in the end")


def _reason(error: Exception) -> str:
    """Return the innermost cause that Java names, else the first line."""
    lines = str(error).split("\n")
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return [*lines[:1], *causes][-1]


def show_verdicts(title: str, verdicts: Sequence[Verdict]) -> None:
    """Print the results of the cases to stdout."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=max(console.width, _NARROWEST))
    console.print(printable(title))
    for verdict in verdicts:
        _show(verdict, console)
    failed = sum(not verdict.holds for verdict in verdicts)
    passed = len(verdicts) - failed
    console.print(f"{passed} of {len(verdicts)} hold" + (f", {failed} FAIL" if failed else ""))


def _show(verdict: Verdict, console: Console) -> None:
    case, name = verdict.case, printable(verdict.case.name)
    if verdict.holds:
        console.print(Text("  ok    ", "green") + Text(name + (", and fails as it must" if case.error else "")))
        return
    console.print(Text("  FAIL  ", "bold red") + Text(name))
    if case.error:
        finding = "what is said is this" if verdict.findings else "nothing differs"
        console.print(printable(f"        it must fail with «{case.error}»; {finding}"))
    for difference in (*verdict.differences, *verdict.cuts):
        _show_difference(difference, console)
    if verdict.cuts:
        console.print(
            "        The result depends on how the log is cut: this is a defect of Tidemark. Please report it."
        )
    if verdict.failure:
        console.print(printable(f"        {verdict.failure}", keep="\n"))


def _show_difference(difference: Difference, console: Console) -> None:
    console.print(printable(f"        {difference.place}: {difference.sentence}"))
    if not difference.pairs:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in difference.columns:
        table.add_column(printable(name), overflow="fold")
    for pair in difference.pairs[:MOST_ROWS]:
        if pair.expected is not None:
            table.add_row(Text("- expected", "green"), *_cells(pair.expected, pair, difference.columns, "green"))
        if pair.found is not None:
            table.add_row(Text("+ found", "red"), *_cells(pair.found, pair, difference.columns, "red"))
    console.print(table)
    if (n_more := len(difference.pairs) - MOST_ROWS) > 0:
        console.print(f"        and {n_more} more")


def _cells(row: Row, pair: Pair, columns: Sequence[str], style: str) -> list[Text]:
    """Return the values of a row; in a found row, values that differ from the expected ones are marked."""
    cells = []
    for name in columns:
        text = text_of(row[name]) if name in row else ""
        differs = pair.differs_in(name)
        mark = "≠ " if differs and row is pair.found else ""
        is_alone = pair.expected is None or pair.found is None
        cells.append(Text(mark + printable(text), style if differs or is_alone else ""))
    return cells
