"""The commands that decide on records: `tidemark replay`, `tidemark rejudge` and `tidemark forget`.

Here: what a person types and reads. Not here: what is done (pipelines/operators/deciding.py,
pipelines/operators/forgetting.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    FAILED,
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
from tidemark.timeops.errors.printable import json_line

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from tidemark.pipelines.code_location.rebuilding import RejudgeSettings, ReplaySettings
    from tidemark.resources.places.place import Place
    from tidemark.resources.settings import Settings

_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show which results would differ.")
_json_option = click.option("--json", "as_json", is_flag=True, help="A JSON object on its own line.")
_reason_option = click.option(
    "--reason", metavar="TEXT", required=True, help="Why; recorded in `log_control` and `batches`."
)


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
@_reason_option
@_dry_run_option
@click.option("--undo", is_flag=True, help="Refuse again what was let in.")
@_json_option
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
    from tidemark.pipelines.code_location.rebuilding import ReplaySettings
    from tidemark.pipelines.operators.deciding import corrected_lines

    corrected = [] if fixes is None else corrected_lines(fixes)
    request = ReplaySettings(where=where, undo=undo, corrected=corrected, reason=why, dry_run=dry_run)
    _decide(spec, overrides, settings_of(warehouse, spark_ui=spark_ui), request, as_json=as_json)


@click.command()
@spec_path
@click.option(
    "--exclude", metavar="SEQ", multiple=True, help="Take out records by `_arrival_seq`: 12, or 12,15; repeatable."
)
@click.option("--where", metavar="SQL", help="Take out the records that meet a condition, as in `tidemark show`.")
@click.option("--include", metavar="SEQ", multiple=True, help="Take back records that were taken out.")
@_reason_option
@_dry_run_option
@_json_option
@warehouse_option
@overrides_option
@spark_ui_option
@says_errors
def rejudge(
    *,
    spec: Path,
    exclude: tuple[str, ...],
    where: str | None,
    include: tuple[str, ...],
    reason: str,
    dry_run: bool,
    as_json: bool,
    warehouse: "Place | None",
    overrides: tuple[str, ...],
    spark_ui: bool,
) -> None:
    """Judge the log of SPEC again without some records.

    For example records with a wrong clock, or from a test device. They stay in `raw_events`, but are no longer part
    of the log: no table holds them, no watermark and no clock follows them. All derived tables are rebuilt, as by
    `tidemark rebuild`. --include takes records back.

    Exit status: 0 done; 2 bad spec, record, condition or usage; 1 a failure, or a failed blocking check.
    """
    why, out, back = sentence(reason, "--reason"), _numbers(exclude, "--exclude"), _numbers(include, "--include")
    if sum(map(bool, (out, where, back))) != 1:
        raise click.UsageError("Use exactly one of --exclude, --where and --include.")
    from tidemark.pipelines.code_location.rebuilding import RejudgeSettings

    request = RejudgeSettings(exclude=out, where=where, include=back, reason=why, dry_run=dry_run)
    _decide(spec, overrides, settings_of(warehouse, spark_ui=spark_ui), request, as_json=as_json)


@click.command()
@spec_path
@click.option(
    "--where", metavar="SQL", required=True, help="The records of the log that meet a condition, as in `show`."
)
@_reason_option
@click.option("--dry-run", is_flag=True, help="Only show what would go: files, and results that would differ.")
@_json_option
@warehouse_option
@overrides_option
@spark_ui_option
@says_errors
def forget(
    *,
    spec: Path,
    where: str,
    reason: str,
    dry_run: bool,
    as_json: bool,
    warehouse: "Place | None",
    overrides: tuple[str, ...],
    spark_ui: bool,
) -> None:
    """Forget records of SPEC for good, and prove it.

    For a person who asks for the erasure of their data. The payload of the records is blanked in the log, and all
    derived tables are rebuilt without them. Older versions of tables and other copies are deleted, also runs in
    Dagster that quote a value. At the end all files of the warehouse and of DAGSTER_HOME are searched for the values,
    and files that still hold one are named. Killed or told to wait, the same command continues. It cannot be undone.

    Exit status: 0 nothing is left; 1 something is left or has to be read first, or a failure; 2 bad spec, condition
    or usage.
    """
    why = sentence(reason, "--reason")
    from tidemark.pipelines.operators.forgetting import forget as forget_records
    from tidemark.pipelines.running.instance import dagster_instance
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.workspace import silent

    [file] = read_specs([spec], overrides)
    settings, name = settings_of(warehouse, spark_ui=spark_ui), file.spec.name
    with ExitStack() as stack, telling(name) as tell:

        def instance(captures: bool) -> "DagsterInstance":
            # What it says of a trial run is said once.
            said_by = silent if captures else tell
            return stack.enter_context(dagster_instance(settings, name, tell=said_by, captures_output=captures))

        forgotten = forget_records(file, settings, where, why, dry_run=dry_run, instance=instance, tell=tell)
    if as_json:
        click.echo(json_line(forgotten.to_dict()))
    else:
        put(str(forgotten))
    if not forgotten.is_done:
        sys.exit(FAILED)


def _numbers(values: tuple[str, ...], option: str) -> list[int]:
    """Return the numbers of records that an option names."""
    texts = [text.strip() for value in values for text in value.split(",")]
    wrong = [text for text in texts if not text.isdecimal()]
    if wrong:
        raise click.BadParameter(f"found {wrong[0]!r}; values of `_arrival_seq` are expected", param_hint=option)
    return [int(text) for text in texts]


def _decide(
    spec: Path,
    overrides: tuple[str, ...],
    settings: "Settings",
    request: "ReplaySettings | RejudgeSettings",
    *,
    as_json: bool,
) -> None:
    from tidemark.pipelines.operators.deciding import decide
    from tidemark.pipelines.running.instance import dagster_instance
    from tidemark.pipelines.views.terminal import telling

    [file] = read_specs([spec], overrides)
    name = file.spec.name
    with ExitStack() as stack, telling(name) as tell:
        decided = decide(
            file,
            settings,
            request,
            instance=lambda: stack.enter_context(dagster_instance(settings, name, tell=tell)),
            tell=tell,
        )
    if as_json:
        click.echo(json_line(decided.to_dict()))
    else:
        put(str(decided))


COMMANDS = (rejudge, replay, forget)
