"""The command that lets dead letters in again: `tidemark replay`.

Here: what a person types and reads. Not here: what is done (../replaying.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    overrides_option,
    put,
    read_specs,
    says_errors,
    sentence,
    settings_of,
    spark_ui_option,
    spec_path,
    warehouse_option,
)
from tidemark.timeops.printable import json_line

if TYPE_CHECKING:
    from tidemark.resources.places.place import Place


@click.command()
@spec_path
@click.option(
    "--where", metavar="SQL", required=True, help="The dead letters that meet a condition, as in `tidemark show`."
)
@click.option(
    "--with",
    "fixes",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Records as they should have been: JSON objects, one a line, with `_arrival_seq`.",
)
@click.option("--reason", metavar="TEXT", required=True, help="Why; recorded in `log_control` and `batches`.")
@click.option("--dry-run", is_flag=True, help="Only show which results would differ.")
@click.option("--undo", is_flag=True, help="Refuse again what was let in.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object on its own line.")
@warehouse_option
@overrides_option
@spark_ui_option
@says_errors
def replay(
    *,
    spec: Path,
    where: str,
    fixes: Path | None,
    reason: str,
    dry_run: bool,
    undo: bool,
    as_json: bool,
    warehouse: "Place | None",
    overrides: tuple[str, ...],
    spark_ui: bool,
) -> None:
    """Let dead letters of SPEC in again.

    Their events are in their windows as if they had come in time. Only results of these windows change, in new
    revisions; watermarks and all other verdicts stay. It lasts: later rebuilds and backfills know of it. --undo
    takes it back.

    Exit status: 0 done, or nothing to do; 2 bad spec, condition or usage; 1 a failure, or a failed blocking check.
    """
    why = sentence(reason, "--reason")
    from tidemark.pipelines.instance import dagster_instance
    from tidemark.pipelines.rebuilding import ReplaySettings
    from tidemark.pipelines.replaying import corrected_lines, replay_letters
    from tidemark.pipelines.terminal import telling

    [file] = read_specs([spec], overrides)
    settings, name = settings_of(warehouse, spark_ui=spark_ui), file.spec.name
    corrected = [] if fixes is None else corrected_lines(fixes)
    asked = ReplaySettings(where=where, undo=undo, corrected=corrected, reason=why)
    with ExitStack() as stack, telling(name) as tell:
        done = replay_letters(
            file,
            settings,
            asked,
            instance=lambda: stack.enter_context(dagster_instance(settings, name, tell=tell)),
            dry_run=dry_run,
            tell=tell,
        )
    if as_json:
        click.echo(json_line(done.to_dict()))
    else:
        put(str(done))


COMMANDS = (replay,)
