"""What `tidemark test` shows: a line for each case, and for one that fails the rows that differ, side by side.

Here: words and layout. Not here: what differs (differences.py), exit codes (cli.py).
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemark.pipelines.case_tests.differences import Difference, Pair, Row
from tidemark.pipelines.case_tests.suite import Verdict
from tidemark.timeops.cases.values import text_of

MOST_ROWS = 20
_NARROWEST = 120  # columns of a page that no terminal shows


def show_verdicts(title: str, verdicts: Sequence[Verdict]) -> None:
    """Prints what came of the cases to stdout.

    Args:
        title: Name of the pipeline and file of the cases.
        verdicts: One per case.
    """
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=max(console.width, _NARROWEST))
    console.print(title)
    for verdict in verdicts:
        _show(verdict, console)
    failed = sum(not verdict.holds for verdict in verdicts)
    kept = len(verdicts) - failed
    console.print(f"{kept} of {len(verdicts)} hold" + (f", {failed} FAIL" if failed else ""))


def _show(verdict: Verdict, console: Console) -> None:
    case = verdict.case
    if verdict.holds:
        console.print(Text("  ok    ", "green") + Text(case.name + (", and fails as it must" if case.error else "")))
        return
    console.print(Text("  FAIL  ", "bold red") + Text(case.name))
    if case.error:
        found = "what is said is this" if verdict.said else "nothing differs"
        console.print(f"        it must fail with «{case.error}»; {found}")
    for difference in (*verdict.differences, *verdict.cuts):
        _show_difference(difference, console)
    if verdict.cuts:
        console.print(
            "        The result depends on how the log is cut: this is a defect of Tidemark. Please report it."
        )
    if verdict.failure:
        console.print(f"        {verdict.failure}")


def _show_difference(difference: Difference, console: Console) -> None:
    console.print(f"        {difference.place}: {difference.sentence}")
    if not difference.pairs:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in difference.columns:
        table.add_column(name, overflow="fold")
    for pair in difference.pairs[:MOST_ROWS]:
        if pair.expected is not None:
            table.add_row(Text("- expected", "green"), *_cells(pair.expected, pair, difference.columns, "green"))
        if pair.found is not None:
            table.add_row(Text("+ found", "red"), *_cells(pair.found, pair, difference.columns, "red"))
    console.print(table)
    if (more := len(difference.pairs) - MOST_ROWS) > 0:
        console.print(f"        and {more} more")


def _cells(row: Row, pair: Pair, columns: Sequence[str], style: str) -> list[Text]:
    """The values of a row; those of a found one that differ from what was expected are marked."""
    cells = []
    for name in columns:
        text = text_of(row[name]) if name in row else ""
        differs = pair.differs_in(name)
        mark = "≠ " if differs and row is pair.found else ""
        is_alone = pair.expected is None or pair.found is None
        cells.append(Text(mark + text, style if differs or is_alone else ""))
    return cells
