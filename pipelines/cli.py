"""The command line `tidemark`: its commands.

Here: what a person types and reads. Not here: what commands share (pipelines/command_line.py), the commands of files
of their own (pipelines/commands/), running (pipelines/running/runner.py), layout (pipelines/views/terminal.py).

Dagster and Spark take seconds to import, so each command imports what it needs, and `--help` needs neither.
"""
# ruff: noqa: PLC0415 - the reason is above

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    FAILED,
    first_lines,
    for_each,
    known_settings,
    overrides_option,
    put,
    read_all,
    read_specs,
    say,
    says_errors,
    sentence,
    settings_of,
    spark_ui_option,
    spec_path,
    spec_paths,
    warehouse_option,
)
from tidemark.pipelines.commands import advising, auditing, changing, deciding, explaining, looking, operating
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.errors.problems import SpecFileError, spec_error

if TYPE_CHECKING:
    from tidemark.pipelines.running.runner import RunOptions, RunReport
    from tidemark.resources.places.place import Place
    from tidemark.resources.settings import Settings
    from tidemark.resources.workspace import SpecFile, Workspace
    from tidemark.timeops.cases import CasesFile


@click.group()
@click.version_option(package_name="tidemark", message="%(prog)s %(version)s")
def main() -> None:
    """Event-time pipelines: from the same arrival log come the same tables.

    A pipeline is a YAML file, SPEC; `tidemark schema` prints the keys that it may have.
    """


@main.command()
@spec_paths
@warehouse_option
@click.option(
    "--max-events-per-batch", metavar="N", type=click.IntRange(min=1), help="Maximum number of records in one batch."
)
@click.option(
    "--end-of-input",
    type=click.Choice(["flush", "hold"]),
    help="flush: release and close everything at the end; hold: keep it open. [default: as the spec says]",
)
@click.option("--live", is_flag=True, help="End with a tick: all input has been read, and the clock keeps running.")
@click.option("--reopen", metavar="TEXT", help="Why a flushed pipeline takes new input; recorded in `log_control`.")
@click.option("--reread", is_flag=True, help="Also read files whose bytes were read under another name.")
@overrides_option
@spark_ui_option
@says_errors
def run(
    *,
    specs: tuple[Path, ...],
    warehouse: "Place | None",
    max_events_per_batch: int | None,
    end_of_input: str | None,
    live: bool,
    reopen: str | None,
    reread: bool,
    overrides: tuple[str, ...],
    spark_ui: bool,
) -> None:
    """Ingest and process what is waiting, one pipeline after another.

    All specs are read before anything runs. A pipeline that fails does not keep the others from running.

    Exit status: 0 done, also when nothing is new; 2 bad spec or usage; 1 a failure, a failed blocking check, or files
    that were held back; 130 stopped with Ctrl-C; 143 stopped by SIGTERM.
    """
    if live and end_of_input == "flush":
        raise click.UsageError("Use either --live or --end-of-input flush, not both.")
    if reopen is not None:
        reopen = sentence(reopen, "--reopen")
    from tidemark.pipelines.running.runner import RunOptions, check_live

    files = read_specs(specs, overrides)
    for file in files if live else ():
        check_live(file, end_of_input, say)
    options = RunOptions(max_events_per_batch, end_of_input, live=live, reopen=reopen, reread=reread)
    sys.exit(run_all(files, settings_of(warehouse, spark_ui=spark_ui), options))


@main.command()
@spec_paths
@warehouse_option
@overrides_option
@says_errors
def validate(*, specs: tuple[Path, ...], warehouse: "Place | None", overrides: tuple[str, ...]) -> None:
    """Check specs: their keys, and every expression.

    Also check whether the tables that pipelines of these names have in the warehouse can continue with the specs. It
    needs Java, reads no data and writes nothing.

    Exit status: 0 all are right; 2 one is wrong, or bad usage; 1 a failure.
    """
    from tidemark.pipelines.spec_files import check_names, read_spec

    files: list[SpecFile] = []

    def check(path: Path) -> None:
        try:
            file = read_spec(path, overrides)
        except SpecFileError as error:
            raise _with_expressions(error, path, overrides) from None
        files.append(file)
        _check_tables(file, known_settings(warehouse))
        _check_expressions(file)
        put(f"{file.spec.name}: ok")

    failed = for_each(specs, check, name_of=str)
    check_names(files)
    sys.exit(failed)


@main.command("test")
@spec_path
@click.argument("cases", metavar="CASES...", nargs=-1, required=True, type=click.Path(path_type=Path))
@overrides_option
@says_errors
def run_cases(spec: Path, cases: tuple[Path, ...], overrides: tuple[str, ...]) -> None:
    """Run cases against SPEC: records in, expected rows out.

    A case is a transcript in YAML: records in the order in which they arrive, and the rows and watermarks that are
    expected of them. Everything runs in memory; no source is read and no table is written. Each case is also cut into
    segments at every record, which must change nothing.

    Exit status: 0 all cases hold; 1 one of them does not; 2 bad spec, bad cases or usage.
    """
    [file] = read_specs([spec], overrides)
    sys.exit(_run_cases(file, cases))


@main.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from tidemark.timeops.spec.text import spec_json_schema

    click.echo(json.dumps(spec_json_schema(), indent=2))


@main.command()
@spec_path
@click.argument("batch", type=click.IntRange(min=0))
@click.option("--reason", metavar="TEXT", required=True, help="Why it is right as it is; recorded in `batches`.")
@warehouse_option
@overrides_option
@says_errors
def accept(*, spec: Path, batch: int, reason: str, warehouse: "Place | None", overrides: tuple[str, ...]) -> None:
    """Commit BATCH of SPEC although a blocking check fails.

    The batch is processed again. Its checks are recorded, but stop nothing. Then what is waiting is processed.

    Exit status: as for `tidemark run`.
    """
    reason = sentence(reason, "--reason")
    from tidemark.pipelines.running.runner import RunOptions
    from tidemark.resources.workspace import Acceptance

    [file] = read_specs([spec], overrides)
    settings = settings_of(warehouse)
    _check_pending(file, settings, batch)
    sys.exit(run_all([file], settings, RunOptions(accepted=Acceptance(batch, reason))))


def run_all(files: Sequence["SpecFile"], settings: "Settings", options: "RunOptions") -> int:
    """Run pipelines one after the other and show what each did, or why it failed.

    Returns:
        The exit status: of several failures 1, unless all of them are bad specs.

    Raises:
        MachineError: The cause would stop the others as well: they were not tried.
    """
    held_back = []

    def run_it(file: "SpecFile") -> None:
        if not _run_one(file, settings, options):
            held_back.append(file)

    failed = for_each(files, run_it, name_of=lambda file: file.spec.name)
    return FAILED if held_back else failed


def _run_one(file: "SpecFile", settings: "Settings", options: "RunOptions") -> bool:
    """Run a pipeline and show what it did; return False if files were held back."""
    from tidemark.pipelines.running.instance import instance_at_need
    from tidemark.pipelines.running.runner import run_pipeline
    from tidemark.pipelines.views.terminal import show_report, telling
    from tidemark.resources.workspace import Workspace

    name = file.spec.name
    with instance_at_need(settings, name, tell=say) as instance, telling(name) as tell:
        report = run_pipeline(file, settings, options, instance=instance, tell=tell)
    show_report(Workspace(file, settings.warehouse), report)
    if options.reopen is not None and not report.batches:
        say(f"{name}: it stays flushed because there is no new input; --reopen had no effect.")
    for message in _losses_without_alert(Workspace(file, settings.warehouse), report):
        say(f"{name}: {message}")
    for message in (*report.alerts, *report.passed_over, *report.new_columns, *report.corrections):
        say(f"{name}: {message}")
    if report.waiting:
        say(f"{name}: {len(report.waiting)} file(s) are younger than `settle`: run again to read them.")
    if copies := report.read_before:  # they are remembered, so this is said once
        say(f"{name}: {len(copies)} file(s) not read: their bytes were read under another name. --reread reads them.")
        say(first_lines(copies))
    if report.held_back:
        noun = "file(s)" if file.spec.reads_files_only else "input(s)"
        say(f"{name}: {len(report.held_back)} {noun} held back; everything else was processed.")
        say("\n".join(report.held_back))
    return not report.held_back


def _losses_without_alert(workspace: "Workspace", report: "RunReport") -> Sequence[str]:
    """Return what a run has lost lately, if it refused records and no alert says so."""
    if not report.counts.refused:
        return ()
    from tidemark.assets.alarms.alerts import DEAD_LETTER_RATE
    from tidemark.assets.alarms.losses.of_batch import lost_lately

    is_said = any(DEAD_LETTER_RATE.name in message for message in report.alerts)
    return () if is_said else lost_lately(workspace)


def _run_cases(file: "SpecFile", cases: Sequence[Path]) -> int:
    """Run and show the cases of each file, which are all read before; return the exit status."""
    from tidemark.pipelines.case_tests.suite import judge, read_cases, show_verdicts
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.spark.choice import choose_spark, open_session

    all_hold = []

    def run_them(read: "CasesFile") -> None:
        with telling(file.spec.name) as tell:
            tell(f"running the cases of {read.file}")
            verdicts = judge(file, read, open_session(choose_spark(known_settings(), tables=False)))
        show_verdicts(f"{file.spec.name}: {read.file}", verdicts)
        all_hold.append(all(verdict.holds for verdict in verdicts))

    read = read_all(cases, lambda path: read_cases(file.spec, path), noun="cases")
    failed = for_each(read, run_them, name_of=lambda cases_file: cases_file.file)
    return failed if failed or all(all_hold) else FAILED


def _with_expressions(wrong: SpecFileError, path: Path, overrides: Sequence[str]) -> SpecFileError:
    """Add what is wrong with the expressions of a spec to what is wrong with its keys: all at once."""
    from tidemark.pipelines.spec_files import rest_of

    readable = rest_of(path, overrides)
    if readable is None:
        return wrong
    try:
        _check_expressions(readable.file)
    except SpecFileError as error:
        problems = [readable.in_file(problem) for problem in error.problems]
        return spec_error(readable.file.name, [*wrong.problems, *problems], wrong.lines)
    except Exception:  # such as a machine without Java: the keys are wrong all the same
        return wrong
    return wrong


def _check_expressions(file: "SpecFile") -> None:
    from tidemark.assets.schemas import table_schemas
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.spark.choice import choose_spark, open_session
    from tidemark.resources.workspace import without_tables

    choice = choose_spark(known_settings(), tables=False)
    with telling(file.spec.name) as tell:
        tell("checking expressions with Spark")
        table_schemas(without_tables(file, lambda: open_session(choice)))


def _check_tables(file: "SpecFile", settings: "Settings") -> None:
    """Check that tables can continue with a spec; say what each change means for them."""
    from tidemark.assets.log.spec_changes import changes_of_spec, ensure_taken, line_of
    from tidemark.resources.workspace import Workspace

    workspace = Workspace(file, settings.warehouse)
    ensure_taken(workspace)
    for change in changes_of_spec(workspace):
        put(f"{file.spec.name}: {change.meaning}: {line_of(change, file)}")


def _check_pending(file: "SpecFile", settings: "Settings", batch: int) -> None:
    """Check that the batch that waits for its commit is the one that the operator names."""
    from tidemark.resources.workspace import Workspace

    workspace = Workspace(file, settings.warehouse)
    pending = workspace.batches.pending() if workspace.exists else None
    if pending is not None and pending.kind == "process" and pending.batch_id == batch:
        return
    if pending is None:
        state = "no batch is waiting to be committed"
    elif pending.kind != "process":
        state = f"batch {pending.batch_id} is waiting, but it only reads input: no check stops it"
    else:
        state = f"batch {pending.batch_id} is waiting to be committed, not batch {batch}"
    raise TidemarkError(
        f"{file.spec.name} in {settings.warehouse}: {state}. Nothing was changed.",
        expected=f"batch {batch}, uncommitted because a blocking check failed",
        remedy="read what `tidemark run` says about the failed check: it names the batch",
    )


for module in (operating, auditing, looking, explaining, advising, changing, deciding):
    for command in module.COMMANDS:
        main.add_command(command)

if __name__ == "__main__":
    main()
