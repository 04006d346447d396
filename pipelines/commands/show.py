"""`tidemark show`: rows of a table as of the last commit.

Here: what a person types, which table is meant, and the command. Not here: the query (resources/lake/queries.py),
layouts (rows_text.py).
"""
# ruff: noqa: PLC0415 - Delta takes a second to import, so each command imports what it needs

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    in_words,
    known_settings,
    read_specs,
    say,
    verbose_option,
    warehouse_option,
)
from tidemark.timeops.errors import SpecError, TidemarkError

if TYPE_CHECKING:
    from tidemark.resources.lake.queries import Order
    from tidemark.resources.workspace import Workspace

_FORMATS = ("table", "rows", "json", "csv")


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("table")
@click.option("--where", metavar="SQL", help="Only rows that meet a condition, such as \"reason = 'early'\".")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=20, show_default=True, help="Most rows to show."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="table; rows: a block for each row; json: an object in each line; csv. [default: table; rows where "
    "a terminal is too narrow for it]",
)
@warehouse_option
@verbose_option
def show(
    *, spec: Path, table: str, where: str | None, limit: int, form: str | None, warehouse: Path | None, verbose: bool
) -> None:
    """Show rows of a TABLE of SPEC as of the last commit, the newest first: `tidemark show SPEC dead_letters`.

    A window may be named without `windows/`. No Spark is started. Conditions are SQL as DataFusion reads it: names of
    columns as they stand, texts and instants (UTC) in single quotes, such as "window_start >= '2026-01-31'".

    Exit status: 0 done, also when there are no such rows; 2 bad spec, table, condition or usage; 1 a failure, or
    nothing is committed yet.
    """
    with in_words(verbose=verbose):
        from tidemark.pipelines.rows_text import write_rows
        from tidemark.resources.lake.queries import select
        from tidemark.resources.workspace import Workspace

        [file] = read_specs([spec], ())
        workspace = Workspace(file, known_settings(warehouse).warehouse)
        batch, versions = _committed(workspace)
        name = _table_of(workspace, table, versions)
        order = _order(workspace.lake.columns(name))
        found = select(workspace.lake, name, versions[name], where=where, order=order, most=limit)
        write_rows(found.rows, form)
        shown = f"{found.rows.num_rows:,} of {found.in_all:,} row{'' if found.in_all == 1 else 's'}"
        newest = ", the newest first" if order and found.rows.num_rows < found.in_all else ""
        say(f"{file.spec.name}: {shown} of {name} as of batch {batch}{newest}; instants are UTC")


def _committed(workspace: "Workspace") -> tuple[int, dict[str, int | None]]:
    """The last commit, and the version of each table that belongs to it."""
    from tidemark.resources.tables import BATCHES

    last = workspace.batches.last_commit() if workspace.exists else None
    if last is None:
        raise TidemarkError(
            f"{workspace.spec.name} has no committed batch in {workspace.warehouse}.",
            expected="tables of a pipeline that has run",
            remedy="run it first with `tidemark run`, or name another --warehouse",
        )
    return last.batch_id, {**last.table_versions, BATCHES: None}  # the log of batches is what names the versions


def _table_of(workspace: "Workspace", asked: str, versions: dict[str, int | None]) -> str:
    """The table that is meant.

    Raises:
        SpecError: There is none of this name.
    """
    from tidemark.resources.tables import window_table
    from tidemark.timeops.problems import did_you_mean

    for name in (asked.strip("/"), window_table(asked)):
        if name in versions:
            return name
    known = sorted(name for name in versions if not name.startswith("_"))
    raise SpecError(
        f"{workspace.spec.name} has no table `{asked}`",
        expected=f"one of {', '.join(known)}",
        remedy=did_you_mean(asked, [*known, *(window.name for window in workspace.spec.windows)]),
    )


def _order(columns: "dict[str, str]") -> "list[Order]":
    """The newest first, by what a table has to tell it."""
    from tidemark.resources.lake.queries import Order

    for by in (
        ("window_start", "window_end"),
        ("_timestamp", "_arrival_seq"),
        ("_arrival_seq",),
        ("_control_seq",),
        ("_batch_id",),
    ):
        if all(name in columns for name in by):
            return [Order(name, descending=True) for name in by]
    return []
