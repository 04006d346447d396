"""`tidemark changes`: changes of rows that somebody else made, and what is to become of them.

Here: what a person types and reads. Not here: the decision itself (assets/changes.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

import sys
from pathlib import Path

import click

from tidemark.pipelines.command_line import (
    FAILED,
    in_words,
    known_settings,
    overrides_option,
    read_specs,
    sentence,
    verbose_option,
    warehouse_option,
)


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--accept", metavar="TEXT", help="Keep them, and why; kept in `batches`.")
@click.option("--take-back", metavar="TEXT", help="Bring back what the last commit had, and why; kept in `batches`.")
@warehouse_option
@overrides_option
@verbose_option
def changes(
    *,
    spec: Path,
    accept: str | None,
    take_back: str | None,
    warehouse: Path | None,
    overrides: tuple[str, ...],
    verbose: bool,
) -> None:
    """Show rows of SPEC's tables that somebody else has changed since the last commit, and decide on them.

    For example a requested DELETE. No run goes on until you have decided. It needs no Spark.

    Exit status: 0 there are none, or it is decided; 1 there are some, or a failure; 2 bad spec or usage.
    """
    if accept is not None and take_back is not None:
        raise click.UsageError("--accept keeps them and --take-back does not: found both, expected one of them.")
    reason = sentence(accept, "--accept") if accept is not None else None
    reason = sentence(take_back, "--take-back") if take_back is not None else reason
    with in_words(verbose=verbose):
        from uuid import uuid4

        from tidemark.assets.changes import changes_of, decide_on_changes
        from tidemark.resources.workspace import Workspace

        [file] = read_specs([spec], overrides)
        workspace = Workspace(file, known_settings(warehouse).warehouse)
        name = file.spec.name
        if reason is None:
            found = changes_of(workspace)
            click.echo(
                f"{name}: {len(found) or 'no'} change{'' if len(found) == 1 else 's'} of rows by somebody else"
            )
        else:
            found = decide_on_changes(workspace, reason, str(uuid4()), keep=accept is not None)
            last = workspace.batches.last_commit()
            done = "kept" if accept is not None else "taken back"
            click.echo(f"{name}: {done}, as batch {last.batch_id if last else 0}")
        for change in found:
            click.echo(f"  {change}")
        if found and reason is None:
            sys.exit(FAILED)
