"""Rows of a table for a terminal, a pipe or another program.

Here: layouts and the text of a value. Not here: which rows (commands/show.py).
"""

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import click
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemark.resources.lake.queries import python_rows
from tidemark.timeops.utc import Instant

_WIDE = 1_000_000  # letters: nothing is folded
_LONGEST = 400
"""Letters of a value in a table; as JSON and CSV it is whole."""

Row = Mapping[str, Any]


def write_rows(rows: pa.Table, form: str | None) -> None:
    """Prints rows to stdout.

    Args:
        rows: The rows.
        form: `table`, `rows`, `json` or `csv`; None for what fits: a table, or blocks where a terminal is too narrow.
    """
    names, values = rows.column_names, python_rows(rows, maps="lossy")
    if form == "json":
        for row in values:
            click.echo(json.dumps({name: plain(value) for name, value in row.items()}, ensure_ascii=False))
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_field(row[name]) for name in names] for row in values)
    elif values:
        _draw(names, values, form)


def _draw(names: Sequence[str], rows: Sequence[Row], form: str | None) -> None:
    """A table, or a block for each row. Only a terminal has an edge."""
    here = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        of_numbers = all(_is_number(row[name]) for row in rows)
        table.add_column(Text(name), justify="right" if of_numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(text(row[name])) for name in names])
    width = console(_WIDE).measure(table).maximum
    if form == "rows" or (form is None and width > here.width):
        _draw_blocks(here, names, rows)
    else:
        console(width).print(table)


def _draw_blocks(on: Console, names: Sequence[str], rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows, start=1):
        block = Table.grid(padding=(0, 2))
        for name in names:
            block.add_row(Text(f"  {name}"), Text(text(row[name]), overflow="fold"))
        on.print(f"row {number}")
        on.print(block)


def console(width: int | None = None) -> Console:
    """Where text is printed as it is; without a width as wide as the terminal, or without an edge in a pipe."""
    made = Console(highlight=False, markup=False, emoji=False, width=width)
    return made if width is not None or made.is_terminal else console(_WIDE)


def text(value: Any) -> str:
    """A value in one line that no terminal takes for a command; a long one is cut."""
    if value is None:
        return "null"
    said = plain(value)
    if isinstance(value, datetime | Instant):
        said = said.replace("T", " ").removesuffix("Z")
    elif not isinstance(said, str):
        said = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    visible = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in said)
    return visible if len(visible) <= _LONGEST else f"{visible[:_LONGEST]}…"


def plain(value: Any) -> Any:
    """A value of any type that a table may hold, as JSON has it; instants are ISO 8601 with a Z."""
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


def _field(value: Any) -> str:
    """A value as a field of CSV; null is empty."""
    if value is None:
        return ""
    simple = plain(value)
    return simple if isinstance(simple, str) else json.dumps(simple, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool))
