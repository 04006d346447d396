"""`tidemark maintain`: joins small files, and deletes what nobody needs any more.

Here: what a person types and reads. Not here: what is done (upkeep.py).
"""
# ruff: noqa: PLC0415 - Dagster and Delta take seconds to import, so each command imports what it needs

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    in_words,
    overrides_option,
    read_specs,
    settings_of,
    spec_paths,
    verbose_option,
    warehouse_option,
)
from tidemark.timeops.durations import format_duration, parse_duration
from tidemark.timeops.errors import SpecError

if TYPE_CHECKING:
    from tidemark.pipelines.upkeep import Done


@click.command()
@spec_paths
@warehouse_option
@click.option(
    "--retain",
    metavar="DURATION",
    default="7 days",
    show_default=True,
    help="For how long commits stay readable, and Dagster's runs and pages of checks are kept; at least 1 hour.",
)
@overrides_option
@verbose_option
def maintain(
    *, specs: tuple[Path, ...], warehouse: Path | None, retain: str, overrides: tuple[str, ...], verbose: bool
) -> None:
    """Tidy up pipelines, also while they run: join small files, delete what is no longer needed.

    It changes no rows and needs no Spark. Deleted are files of old versions of tables, pages of checks, and Dagster's
    runs. The last commit stays readable, and each that is younger than --retain.

    Exit status: 0 done; 1 a failure; 2 bad spec or usage.
    """
    try:
        kept = parse_duration(retain)
    except SpecError as error:
        raise click.BadParameter(str(error), param_hint="--retain") from error
    with in_words(verbose=verbose):
        from dagster import DagsterInstance

        from tidemark.pipelines.report_text import telling
        from tidemark.pipelines.upkeep import maintain as look_after

        files = read_specs(specs, overrides)
        settings = settings_of(warehouse)
        for file in files:
            with DagsterInstance.get() as instance, telling(file.spec.name) as tell:
                done = look_after(file, settings, kept, instance=instance, tell=tell)
            _show(file.spec.name, format_duration(kept), done)


def _show(name: str, retained: str, done: "Done") -> None:
    """What was done, table by table where there was anything to do."""
    if not done.lake.tables:
        click.echo(f"{name}: has no tables yet.")
        return
    before, after = done.files
    click.echo(f"{name}: {before:,} files of {len(done.lake.tables)} tables are {after:,} now")
    width = max(len(one.table) for one in done.lake.tables)
    for one in done.lake.tables:
        if one.before.files != one.after.files or one.freed:
            freed = f"{one.freed:>14,} bytes freed" if one.freed else ""
            click.echo(f"  {one.table:<{width}}  {one.before.files:>7,} -> {one.after.files:<7,}{freed}".rstrip())
    click.echo(
        f"older than {retained}: {done.freed:,} bytes of files, {done.lake.pages} page(s) of checks and "
        f"{done.runs} run(s) of Dagster deleted"
    )
