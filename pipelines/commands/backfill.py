"""`tidemark backfill`: days of window tables, computed anew from the arrival log.

Here: what a person types and reads. Not here: the run (days.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    in_words,
    overrides_option,
    read_specs,
    settings_of,
    spark_ui_option,
    verbose_option,
    warehouse_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--from", "first", metavar="DAY", type=_DAY, required=True, help="First day, such as 2026-01-31.")
@click.option("--to", "last", metavar="DAY", type=_DAY, required=True, help="Last day; it is computed too.")
@click.option(
    "--window", "windows", metavar="NAME", multiple=True, help="Only this window; may be given several times."
)
@warehouse_option
@overrides_option
@spark_ui_option
@verbose_option
def backfill(
    *,
    spec: Path,
    first: datetime,
    last: datetime,
    windows: tuple[str, ...],
    warehouse: Path | None,
    overrides: tuple[str, ...],
    spark_ui: bool,
    verbose: bool,
) -> None:
    """Compute days of SPEC's window tables anew from the arrival log.

    The rows of all windows that start on these days (of `partitions.time_zone`, else UTC) are replaced, in one commit
    per window, by what the spec gives as it is now: also when its aggregates changed. It is what Materialize does in
    Dagster with a range of partitions.

    Exit status: 0 done; 2 bad spec, days or usage; 1 a failure.
    """
    with in_words(verbose=verbose):
        from dagster import DagsterInstance

        from tidemark.pipelines.days import chosen_windows, rebuild
        from tidemark.pipelines.report_text import telling

        [file] = read_specs([spec], overrides)
        chosen_windows(file.spec, windows)
        settings = settings_of(warehouse, spark_ui=spark_ui)
        days = first.date(), last.date()
        with DagsterInstance.get() as instance, telling(file.spec.name) as tell:
            rows = rebuild(file, settings, windows, *days, instance=instance, tell=tell)
        _show(file.spec.name, *days, rows)


def _show(name: str, first: date, last: date, rows: "Mapping[str, int]") -> None:
    days = (last - first).days + 1
    click.echo(f"{name}: {first} to {last}, {days} day{'' if days == 1 else 's'} computed anew")
    width = max(len(window) for window in rows)
    for window, n in rows.items():
        click.echo(f"  windows/{window:<{width}}  {n:>12,} rows")
