"""The output of the command line: what is being done, the result of a run, rows of a table, and values as text.

Here: sums over the counts of committed batches by the outcome of records, layouts for a terminal, a pipe or another
program, and one value to one text, which the page for the browser uses too. Not here: which rows are shown
(pipelines/commands/looking.py), the page (pipelines/views/report/).

A run without work prints a line, and draws nothing: what draws is imported where it draws.
"""
# ruff: noqa: PLC0415 - the reason is above

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources.batches.plans import Commit, Counts
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import python_rows
from tidemark.resources.tables import DEAD_LETTERS, HELD_EVENTS, ORDERED_EVENTS, RAW_EVENTS, join_table
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors.printable import json_line, plural, printable
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.utc import Instant, instant_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tidemark.pipelines.running.runner import RunReport


_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
_LONGEST = 2_000  # letters of a value on a page
_LONGEST_LINE = 400  # letters of a value in a table on a terminal


def number(count: int | None) -> str:
    """Return a count with commas; empty for None."""
    return "" if count is None else f"{count:,}"


def share(part: int, total: int) -> str:
    """Return a part in percent, never rounded to nothing or to all if it is not."""
    if not total:
        return ""
    percent = 100 * part / total
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %"


def instant(at: datetime | None) -> str:
    """Return an instant as UTC without its zone, and with no more of a fraction than it has."""
    if at is None:
        return ""
    text = at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if at.microsecond else text


def second(at: datetime) -> str:
    """Return the same as `instant`, cut off to the second."""
    return instant(at.replace(microsecond=0))


def instant_us(us: int | None) -> str:
    """Return the same as `instant`, of microseconds since the epoch."""
    return "" if us is None else instant(instant_of(us))


def length(us: int | None) -> str:
    """Return a duration by its two largest units, cut off; empty for None."""
    return "" if us is None else _in_units(us, 2)


def no_more_than(us: int) -> str:
    """Return a duration that is a bound, by its three largest units: rounded up, so that it stays a bound."""
    for unit in range(len(_UNITS)):
        size = _UNITS[unit][1]
        if abs(us) >= size:
            finest = _UNITS[min(unit + 2, len(_UNITS) - 1)][1]
            return _in_units(-(us // -finest) * finest, 3)
    return _in_units(us, 3)


def _in_units(us: int, most: int) -> str:
    left_us, sign = abs(us), "-" if us < 0 else ""
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left_us = divmod(left_us, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == most:
            break
    return sign + " ".join(part for part in parts if part) if parts else f"{us} µs"


def is_number(value: object) -> bool:
    """Return whether a value is a number, which `bool` is not here."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def any_value(value: Any) -> str:
    """Return a value of any type that a table may hold, in one line; a long one is cut."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | Decimal):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, list | dict | tuple):
        return shortened(json.dumps(value, default=_inside, ensure_ascii=False))
    return shortened(value if isinstance(value, str) else str(_inside(value)))


def shortened(text: str, most: int = _LONGEST) -> str:
    """Return a text, cut if it is longer than a page shows."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters in all)"


def _inside(value: object) -> object:
    """Return a value inside a list, struct or map, as JSON has it."""
    if isinstance(value, Instant):
        return str(value)
    if isinstance(value, datetime):
        return instant(value) if value.tzinfo else value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | timedelta | Decimal):
        return str(value)
    return repr(value)


def in_a_line(value: Any) -> str:
    """Return a value in one line that no terminal takes for a command; a long one is cut."""
    if value is None:
        return "null"
    text = _rounded(plain(value))
    if isinstance(value, datetime | Instant):
        text = text.replace("T", " ").removesuffix("Z")
    elif not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}…"


def _rounded(value: Any) -> Any:
    """Return a value of JSON with its floats to 15 digits: a sum of decimals such as 126.925 has noise after them."""
    if isinstance(value, float):
        return float(f"{value:.15g}")
    if isinstance(value, list):
        return [_rounded(inside) for inside in value]
    return {name: _rounded(inside) for name, inside in value.items()} if isinstance(value, dict) else value


def since_boot(ticks: int | None) -> str:
    """Return in words when a process began, of clock ticks since its machine started."""
    seconds = None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")
    return "null" if seconds is None else f"{length(round(seconds) * 1_000_000)} after its machine"


def plain(value: Any) -> Any:
    """Return a value of any type that a table may hold, as JSON has it; instants are ISO 8601 with a Z."""
    if isinstance(value, Instant):
        return f"{value}Z".replace(" ", "T")
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return (value if not zone else value.astimezone(UTC).replace(tzinfo=None)).isoformat() + zone
    if isinstance(value, Mapping):
        return {str(name): plain(inside) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inside) for inside in value]
    if isinstance(value, bytes):
        return value.hex()
    is_known = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_known else str(value)  # dates, decimals, numbers that JSON has no text for


Row = Mapping[str, Any]
_WIDE = 1_000_000  # letters: nothing is folded
_PAGE = 120
_MOST_LISTED = 5
_NO_WORDS: Mapping[str, Callable[[Any], str]] = {}


def changed_by_hand(
    lake: Lake, versions: Mapping[str, int], spec: Spec, counts: Counts, log_end: int
) -> dict[str, int]:
    """Count rows by which tables of events differ from what batches wrote; tables as written are left out.

    `versions` are of one commit, and `counts` of all records that are processed by then.
    """
    letters = counts.dead_letters(counts.windows).total() + sum(counts.replayed.values()) - counts.removed_letters
    written = {RAW_EVENTS: log_end - counts.removed(RAW_EVENTS), DEAD_LETTERS: letters}
    if spec.outputs.ordered_events:
        ordered = counts.ordered - counts.removed(ORDERED_EVENTS)
        written |= {ORDERED_EVENTS: ordered, HELD_EVENTS: counts.accepted - counts.ordered}
    differences = {table: lake.row_count(table, versions[table]) - n for table, n in written.items()}
    return {table: n for table, n in differences.items() if n}


def by_hand(changed: Mapping[str, int]) -> list[str]:
    """Say in words what `changed_by_hand` found."""
    return [
        f"{plural(abs(n), 'row')} of {table} {'erased' if n < 0 else 'added'} by hand" for table, n in changed.items()
    ]


@dataclass(frozen=True)
class Line:
    """A line of the table: what this run added, and what the tables hold in all; None leaves the place empty."""

    label: str
    added: int | None
    in_all: int | None


@contextmanager
def telling(name: str) -> Iterator[Callable[[str], None]]:
    """Return a function that shows on stderr what a pipeline's run is doing.

    On a terminal it is one line that changes; elsewhere each message is a line.
    """

    def line(doing: str) -> str:
        return printable(f"{name}: {doing}")

    if not sys.stderr.isatty():
        yield lambda doing: print(line(doing), file=sys.stderr, flush=True)  # noqa: T201 - the command line
        return
    from rich.console import Console
    from rich.text import Text

    # A descriptor of its own: while Spark starts, stderr itself is turned away from the terminal.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        console = Console(file=terminal, highlight=False, markup=False)
        with console.status(Text(name)) as status:
            yield lambda doing: status.update(Text(line(doing)))  # in a text of its own brackets are not markup


def show_report(workspace: Workspace, report: "RunReport") -> None:
    """Print what a run did to stdout."""
    name = workspace.spec.name
    if report.batches == 0:
        click.echo(f"{name}: {'corrected' if report.corrections else 'nothing new'}.")
        return
    from rich import box
    from rich.table import Table

    on = console()
    on.print(f"{name}: {_batches_of_run(workspace, report.batches)}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("this run", justify="right")
    table.add_column("in all", justify="right")
    for line in lines_of(workspace, report.batches):
        table.add_row(line.label, number(line.added), number(line.in_all))
    _print_unpadded(on, table)
    on.print(f"watermark  {watermark_text(workspace.progress.position())}")
    on.print(printable(f"tables     {workspace.lake.root}"), soft_wrap=True)


def lines_of(workspace: Workspace, latest: int) -> list[Line]:
    """Return the lines of the table. Ordered, held and refused add up to the records in.

    The last `latest` batches that judged records are of this run; batches that a rebuild made are not counted.
    """
    newest = _newest_judged(workspace, latest)
    added, in_all = (Counts.sum(commit.counts for commit in some) for some in (newest, workspace.batches.counted()))
    lines = [Line("records in", added.records, in_all.records)]
    if workspace.spec.outputs.ordered_events:
        lines.append(Line("ordered", added.ordered, in_all.ordered))
        held = in_all.accepted - in_all.ordered
        lines.append(Line("held, the watermark has not passed them", None, held))
    else:
        lines.append(Line("accepted", added.accepted, in_all.accepted))
    refused, reasons = added.refused, in_all.refused
    lines.append(Line("refused, in dead_letters", sum(refused.values()), sum(reasons.values())))
    lines += [
        Line(f"  {reason}", refused.get(reason, 0), n) for reason, n in sorted(reasons.items(), key=lambda x: -x[1])
    ]
    lines += _missed(workspace.spec, added, in_all)
    if in_all.replayed:
        lines.append(Line("let in again, of dead_letters", None, sum(in_all.replayed.values())))
    changed = changed_by_hand(workspace.lake, workspace.base(), workspace.spec, in_all, workspace.progress.log_end())
    lines += [Line(f"rows of {table}, changed by hand", None, n) for table, n in changed.items()]
    joins = [join_table(join.name) for join in workspace.spec.joins]
    for table in (*workspace.window_tables.values(), *joins):
        batches = workspace.lake.rows(table, workspace.base_of(table), columns=["_batch_id"])["_batch_id"]
        written = pc.sum(pc.greater_equal(batches, newest[0].batch_id)).as_py() or 0 if newest else 0
        lines.append(Line(f"rows of {table}", written, len(batches)))
    return lines


def _newest_judged(workspace: Workspace, latest: int) -> list[Commit]:
    return [commit for commit in workspace.batches.history("process") if not commit.plan.is_replayed][-latest:]


def _batches_of_run(workspace: Workspace, latest: int) -> str:
    """Name the batches of a run; what they judged was read by batches with numbers between theirs."""
    judged = [commit.batch_id for commit in _newest_judged(workspace, latest)]
    if not judged:  # a later version of a table corrected the log, and all tables were rebuilt in the same run
        return f"{latest} batch{'es' if latest > 1 else ''}, recomputed by a rebuild in the same run"
    earlier = [commit.batch_id for commit in workspace.batches.history("process") if commit.batch_id < judged[0]]
    ids = [commit.batch_id for commit in workspace.batches.history("ingest", after_batch=max(earlier, default=-1))]
    read = [number for number in ids if number < judged[-1]]
    reading = f", after batch{'es' if len(read) > 1 else ''} {listed(read)} had read the input" if read else ""
    batches = f"batch {judged[0]}" if len(judged) == 1 else f"{len(judged)} batches ({listed(judged)})"
    return f"{batches}{reading}"


def listed(numbers: Sequence[int]) -> str:
    """Write numbers as `1`, `1 and 3` or `1, 3, 5, 7 … 25`."""
    shown = [f"{number}" for number in numbers]
    if len(shown) > _MOST_LISTED:
        return f"{', '.join(shown[: _MOST_LISTED - 1])} … {shown[-1]}"
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def watermark_text(position: Position) -> str:
    """Return the watermark as an instant, or in words if it is none."""
    if position.final:
        return "past every event: the end of input was flushed"
    if position.watermark_us is None:
        return "none yet: no event has arrived"
    instant = instant_of(position.watermark_us)
    return f"{instant.replace(tzinfo=None).isoformat(sep=' ')} UTC"


def _missed(spec: Spec, added: Counts, in_all: Counts) -> list[Line]:
    """Return what a window or join refused: it was accepted, so it is counted above, and has a dead letter too."""
    inputs = {window.name: window.input for window in spec.windows} | {join.name: None for join in spec.joins}
    whats = {name: "accepted" if source is None else f"results of {source}" for name, source in inputs.items()}
    evaluated = {window.name: "an aggregate" if window.top is None else "an expression" for window in spec.windows}
    lines = []
    for outcome in (Reason.WINDOW_CLOSED, Reason.JOIN_CLOSED, Reason.BAD_EXPRESSION):
        before = added.of_windows(outcome, inputs)
        for name, n in in_all.of_windows(outcome, inputs).items():
            why = f"{evaluated[name]} of {name} fails" if outcome is Reason.BAD_EXPRESSION else f"too late for {name}"
            lines.append(Line(f"{whats[name]}, {why}", before.get(name, 0), n))
    return lines


def write_rows(rows: pa.Table, form: str | None, words: Mapping[str, Callable[[Any], str]] = _NO_WORDS) -> None:
    """Print rows to stdout as `table`, `rows`, `json` or `csv`.

    Args:
        rows: The rows.
        form: None is `table`, or `rows` where that is wider than the terminal.
        words: What a person reads about the values of a column, by its name; programs get the values.
    """
    names, values = rows.column_names, python_rows(rows, maps="lossy")
    if form == "json":
        for row in values:
            click.echo(json_line({name: plain(value) for name, value in row.items()}))
    elif form == "csv":
        shown = printable if sys.stdout.isatty() else str  # a program gets the values as they are
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(shown, names))
        writer.writerows([shown(_field(row[name])) for name in names] for row in values)
    elif values:
        cells = [{name: words[name](row[name]) if name in words else row[name] for name in names} for row in values]
        _draw(names, cells, form)


def _draw(names: Sequence[str], rows: Sequence[Row], form: str | None) -> None:
    """Print a table, or a block for each row. Only a terminal has an edge."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    here = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        of_numbers = all(row[name] is None or is_number(row[name]) for row in rows)
        table.add_column(Text(in_a_line(name)), justify="right" if of_numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(in_a_line(row[name])) for name in names])
    width = console(_WIDE).measure(table).maximum
    if form == "rows" or (form is None and width > here.width):
        _draw_blocks(here, names, rows)
    else:
        _print_unpadded(console(width), table)


def _draw_blocks(on: "Console", names: Sequence[str], rows: Sequence[Row]) -> None:
    from rich.table import Table
    from rich.text import Text

    for place, row in enumerate(rows, start=1):
        block = Table.grid(padding=(0, 2))
        for name in names:
            block.add_row(Text(f"  {in_a_line(name)}"), Text(in_a_line(row[name]), overflow="fold"))
        on.print(f"row {place}")
        _print_unpadded(on, block)


def _print_unpadded(on: "Console", table: "Table") -> None:
    """Print a table without the blanks that fill its last column."""
    with on.capture() as printed:
        on.print(table)
    for line in printed.get().removesuffix("\n").split("\n"):
        click.echo(line.rstrip())


def print_block(title: str, lines: Iterable[tuple[str, str, str]]) -> None:
    """Print a title, and texts with a word before each, no wider than the terminal or, in a pipe, than a page.

    A line is word, text, style. A text may have several lines; words as long as a path are never cut.
    """
    from rich.text import Text

    on, rows = console(), list(lines)
    indent = max(len(word) for word, _, _ in rows) + 4
    width = max((on.width if on.is_terminal else _PAGE) - indent, _PAGE // 4)
    on.print(title)
    for word, text, style in rows:
        parts = [
            part
            for line in printable(text, keep="\n").split("\n")
            for part in wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        ]
        for place, part in enumerate(parts):
            label = ("" if place else f"  {word}").ljust(indent)
            on.print(Text(label) + Text(part, style), soft_wrap=True)


def console(width: int | None = None) -> "Console":
    """Return a console that prints text as it is: by default as wide as the terminal, without an edge in a pipe."""
    from rich.console import Console

    made = Console(highlight=False, markup=False, emoji=False, width=width)
    return made if width is not None or made.is_terminal else console(_WIDE)


def _field(value: Any) -> str:
    """Return a value as a field of CSV; null is empty."""
    if value is None:
        return ""
    simple = plain(value)
    return simple if isinstance(simple, str) else json.dumps(simple, ensure_ascii=False)
