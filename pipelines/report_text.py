"""What the command line shows of a run: a line on what is being done, and what came out as a table.

Here: sums over the counts of committed batches by what became of records, and their layout. Not here: the page for
the browser (report/).
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from tidemark.resources.batches.plans import Commit
from tidemark.resources.tables import window_table
from tidemark.resources.workspace import Position, Workspace
from tidemark.timeops.spec import Spec
from tidemark.timeops.utc import instant_of

Counts = Mapping[str, int]


def sums(commits: Iterable[Commit]) -> dict[str, int]:
    """Each count, summed over commits."""
    found: dict[str, int] = {}
    for commit in commits:
        for name, count in commit.counts.items():
            found[name] = found.get(name, 0) + count
    return found


def ordered(counts: Counts) -> int:
    """Rows of `ordered_events`: released in order, or kept out of order."""
    return counts.get("released", 0) + counts.get("kept_out_of_order", 0)


def refused(counts: Counts) -> dict[str, int]:
    """Dead letters of the stages `ingest` and `time`, by reason."""
    return {
        name.removeprefix("refused."): count
        for name, count in counts.items()
        if name.startswith("refused.") and count
    }


def window_closed(counts: Counts, windows: Iterable[str]) -> dict[str, int]:
    """Events that came too late, by window."""
    return _of_windows("window_closed", counts, windows)


def unfit(counts: Counts, windows: Iterable[str]) -> dict[str, int]:
    """Events on which an aggregate fails, by window."""
    return _of_windows("bad_expression", counts, windows)


def _of_windows(outcome: str, counts: Counts, windows: Iterable[str]) -> dict[str, int]:
    """Dead letters of the stage `window` for a reason, by window."""
    found = {name: counts.get(f"{name}.{outcome}", 0) for name in windows}
    return {name: count for name, count in found.items() if count}


if TYPE_CHECKING:  # `report` shares this file, and needs no Dagster
    from tidemark.pipelines.runner import RunReport


@dataclass(frozen=True)
class Line:
    """A line of the table: what this run added, and what the tables hold in all; None leaves the place empty."""

    label: str
    added: int | None
    in_all: int | None


@contextmanager
def telling(name: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows what a pipeline's run is doing, on stderr.

    On a terminal it is one line that changes; elsewhere each message is a line.
    """
    if not sys.stderr.isatty():
        yield lambda doing: print(f"{name}: {doing}", file=sys.stderr, flush=True)  # noqa: T201 - the command line
        return
    # A descriptor of its own: while Spark starts, stderr itself is turned away from the terminal.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        console = Console(file=terminal, highlight=False, markup=False)
        with console.status(name) as status:
            yield lambda doing: status.update(f"{name}: {doing}")


def show_report(workspace: Workspace, report: "RunReport") -> None:
    """Prints what a run did to stdout.

    Args:
        workspace: The pipeline; its tables are read without Spark.
        report: What the runner says.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    name = workspace.spec.name
    if report.batches == 0:
        console.print(f"{name}: nothing new.")
        return
    console.print(f"{name}: {report.batches} batch{'es' if report.batches > 1 else ''}")
    commits = [commit for commit in workspace.batches.history() if commit.plan.kind == "process"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("this run", justify="right")
    table.add_column("in all", justify="right")
    for line in lines_of(workspace, commits, report.batches):
        table.add_row(line.label, _number(line.added), _number(line.in_all))
    console.print(table)
    console.print(f"watermark  {watermark_text(workspace.position())}")
    console.print(f"tables     {workspace.lake.root}")


def lines_of(workspace: Workspace, commits: list[Commit], latest: int) -> list[Line]:
    """The lines of the table. Ordered, held and refused add up to the records in.

    Args:
        workspace: The pipeline.
        commits: Its committed processing batches, in order.
        latest: How many of them, from the end, are of this run.
    """
    added, in_all = sums(commits[-latest:]), sums(commits)
    lines = [Line("records in", added.get("records", 0), in_all.get("records", 0))]
    if workspace.spec.outputs.ordered_events:
        lines.append(Line("ordered", ordered(added), ordered(in_all)))
        held = in_all.get("accepted", 0) - ordered(in_all)
        lines.append(Line("held, the watermark has not passed them", None, held))
    else:
        lines.append(Line("accepted", added.get("accepted", 0), in_all.get("accepted", 0)))
    before, reasons = refused(added), refused(in_all)
    lines.append(Line("refused, in dead_letters", sum(before.values()), sum(reasons.values())))
    lines += [
        Line(f"  {reason}", before.get(reason, 0), n) for reason, n in sorted(reasons.items(), key=lambda x: -x[1])
    ]
    lines += _missed(workspace.spec, added, in_all)
    for window in workspace.spec.windows:
        table = window_table(window.name)
        batches = workspace.lake.rows(table, workspace.base_of(table), columns=["_batch_id"])["_batch_id"].to_pylist()
        first = commits[-latest].batch_id
        lines.append(Line(f"rows of {table}", sum(batch >= first for batch in batches), len(batches)))
    return lines


def watermark_text(position: Position) -> str:
    """The watermark as an instant, or in words when it is none."""
    if position.final:
        return "past every event: the end of input was flushed"
    if position.watermark_us is None:
        return "none yet: no event has come"
    instant = instant_of(position.watermark_us)
    return f"{instant.replace(tzinfo=None).isoformat(sep=' ')} UTC"


def _missed(spec: Spec, added: Counts, in_all: Counts) -> list[Line]:
    """What a window refused: it was accepted, so it is counted above, and has a dead letter too."""
    inputs = {window.name: window.input for window in spec.windows}
    found, before = window_closed(in_all, inputs), window_closed(added, inputs)
    whats = {name: "accepted" if source is None else f"results of {source}" for name, source in inputs.items()}
    lines = [Line(f"{whats[name]}, too late for {name}", before.get(name, 0), n) for name, n in found.items()]
    found, before = unfit(in_all, inputs), unfit(added, inputs)
    return lines + [
        Line(f"{whats[name]}, an aggregate of {name} fails", before.get(name, 0), n) for name, n in found.items()
    ]


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
