"""Commands that look at pipelines and start no Spark: `tidemark status`, `metrics`, `notify`, `show`, `report`.

Here: what a person types and reads, which table is meant, where a page is written. Not here: the facts
(pipelines/views/status.py), the query (resources/delta/queries.py), layouts (pipelines/views/terminal.py), the page
(pipelines/views/report/).
"""
# ruff: noqa: PLC0415 - Delta and matplotlib take a second to import, so each command imports what it needs

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
    put,
    read_specs,
    say,
    says_errors,
    spec_path,
    spec_paths,
    warehouse_option,
)
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.errors.printable import json_line, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.pipelines.views.metrics import Look
    from tidemark.pipelines.views.status import Status
    from tidemark.resources.delta.queries import SortKey
    from tidemark.resources.places.place import Place
    from tidemark.resources.workspace import SpecFile, Workspace


@click.command()
@spec_paths
@warehouse_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per pipeline, each on its own line.")
@click.option("--check", is_flag=True, help="Exit with 1 if something is wrong with a pipeline.")
@says_errors
def status(*, specs: tuple[Path, ...], warehouse: "Place | None", as_json: bool, check: bool) -> None:
    """Show the state of each pipeline, and what is wrong.

    Records, watermark and its delay, the last batch, and what waits. It only reads, as of the last commit, and starts
    no Spark.

    Exit status: 0 done, without --check also when something is wrong with a pipeline; 2 bad spec or usage; 1 a
    failure, with --check also when something is wrong: what `wrong` lists, such as input that is held back, a
    failed check of the last batch, or a batch that is not committed.
    """
    from tidemark.pipelines.views.status import status as state_of

    def look(path: Path) -> None:
        state = state_of(path, warehouse=warehouse)
        if as_json:
            click.echo(json_line(state.to_json()))
        else:
            _show_status(state)
        wrong.extend(state.wrong)

    wrong: list[str] = []
    failed = for_each(specs, look, name_of=str)
    sys.exit(FAILED if check and wrong else failed)


@click.command()
@spec_paths
@warehouse_option
@click.option("--test", is_flag=True, help="Send a test message to every channel, whatever the state is.")
@says_errors
def notify(*, specs: tuple[Path, ...], warehouse: "Place | None", test: bool) -> None:
    """Send the messages about alerts that are due.

    The spec's `alerts.notify` names who gets them. Runs, and Dagster's sensor or schedule, send them by themselves;
    this is for pipelines that cron runs, because results also get old when no run starts. It starts no Spark.

    Exit status: 0 all were accepted; 2 bad spec or usage; 1 a failure, or a channel that did not accept its message.
    """
    from tidemark.assets.alarms.messages import notify_channels, send_test_messages
    from tidemark.resources.notifying import deliver
    from tidemark.resources.workspace import Workspace

    settings = known_settings(warehouse)

    def send(file: "SpecFile") -> None:
        name, channels = file.spec.name, file.spec.alerts.notify
        if not channels:
            raise SpecError(
                f"{file.name}: {name} has no `alerts.notify`",
                expected="who gets messages",
                remedy='write `alerts: {notify: [{to: "${ALERTS_SLACK}"}]}`, with the URL in that variable',
            )
        workspace = Workspace(file, settings.warehouse)
        if test:
            answers = send_test_messages(file.spec, workspace.folder, deliver)
            for variable, why in answers.items():
                put(
                    f"{name}: ${{{variable}}} "
                    f"{f'did not accept the message: {why}' if why else 'accepted the message'}"
                )
            failed.extend(why for why in answers.values() if why)
            return
        workspace.ensure_whole()
        sentences = notify_channels(workspace, deliver)
        for sentence in sentences:
            say(f"{name}: {sentence}")
        if not sentences:
            put(f"{name}: every channel is up to date")
        failed.extend(sentences)

    failed: list[str] = []
    status_of_specs = for_each(read_specs(specs, []), send, name_of=lambda file: file.spec.name)
    sys.exit(FAILED if failed else status_of_specs)


def _show_status(state: "Status") -> None:
    """Print a pipeline as a block of lines."""
    from tidemark.pipelines.views.terminal import print_block

    style = "red" if state.wrong else ""
    wrong = [("" if number else "wrong", text, style) for number, text in enumerate(state.wrong or ["nothing"])]
    print_block(state.name, [*((name, text, "") for name, text in _status_lines(state)), *wrong])


def _status_lines(state: "Status") -> "Iterator[tuple[str, str]]":
    from tidemark.pipelines.views.terminal import second

    if state.last is None:
        yield "records", "none: no batch has been committed yet"
    else:
        left = state.records - state.processed
        progress = f"{plural(left, 'is', 'are')} not processed yet" if left else "all processed"
        yield "records", f"{state.records:,}, {progress}"
        yield "watermark", _watermark(state)
        if state.held is not None:
            yield "held", f"{plural(state.held, 'event')}, which the watermark has not passed"
        yield "dead letters", f"{state.dead_letters:,}"
        if state.lost:
            yield "lost", "\n".join(state.lost)
        taken = f"{plural(state.excluded, 'record')}, which `tidemark rejudge` took out of the log"
        ended = f"{', '.join(state.ended)}: no longer in the spec"
        lines = {"by hand": ", ".join(state.by_hand), "excluded": taken if state.excluded else ""}
        still = ". Old files still have them: the same `tidemark forget` deletes these" if state.forgetting else ""
        forgotten = f"{plural(state.forgotten, 'record')}, blanked by `tidemark forget`{still}"
        lines |= {"forgotten": forgotten if state.forgotten else ""}
        days = ", ".join(f"{key} from {day} on" for key, day in state.kept_from.items())
        lines |= {"kept": f"{days}; `retention` has removed older rows" if days else ""}
        lines |= {"corrected": state.corrected, "ended": ended if state.ended else ""}
        yield from ((label, text) for label, text in lines.items() if text)
        yield "last batch", _last_batch(state)
        if state.rebuild_begun:
            yield "rebuild", f"{state.rebuild_begun}; the same `tidemark rebuild` continues it"
    if state.at_work is not None:
        plan = state.at_work
        yield "at work", f"batch {plan.batch_id} ({plan.kind}), {plan.owner}, since {second(plan.planned_at)} UTC"
    waiting = state.waiting
    young = f", {plural(len(waiting.settling_files), 'file')} younger than `settle`" if waiting.settling_files else ""
    back = f", {len(waiting.errors):,} held back" if waiting.errors else ""
    noun = "file" if state.reads_files_only else "input"
    yield "waits", f"{plural(waiting.new, f'new {noun}') if waiting.new else f'no new {noun}'}{young}{back}"
    if waiting.notes:
        yield "files", first_lines(waiting.notes)
    if waiting.read_before:
        yield "copies", first_lines(waiting.read_before)
    yield "tables", str(state.folder)


def _watermark(state: "Status") -> str:
    from tidemark.pipelines.views.terminal import watermark_text
    from tidemark.timeops.values.durations import roughly

    text = watermark_text(state.position)
    if state.delay is None:
        return text
    return f"{text}, {roughly(abs(state.delay))} {'ahead of' if state.delay.days < 0 else 'behind'} the clock"


def _last_batch(state: "Status") -> str:
    from tidemark.pipelines.views.terminal import second
    from tidemark.resources.batches.position import records_in

    assert state.last is not None  # the caller has looked
    plan, at = state.last.plan, state.last.committed_at
    took = f"in {state.last.took.total_seconds():.0f} s"
    work = plural(records_in(plan), "record") if plan.kind == "process" else plan.kind
    why = "accepted although a check failed: " if plan.kind == "process" else ""
    reason = f", {why}{state.last.reason}" if state.last.reason is not None else ""
    return f"{state.last.batch_id}, committed {second(at)} UTC: {work} {took}{reason}"


@click.command()
@spec_paths
@warehouse_option
@click.option(
    "--to",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replace this file instead of printing: NAME.prom in the folder of node_exporter's textfile collector.",
)
@says_errors
def metrics(*, specs: tuple[Path, ...], warehouse: "Place | None", to: Path | None) -> None:
    """Print metrics of pipelines for Prometheus, as text of OpenMetrics.

    Records, watermark and its delay, held events, dead letters by reason, inputs that wait or are held back, the last
    batch and its age, the sizes of tables. It only reads, as of the last commit, and starts no Spark. A pipeline that
    cannot be looked at has `tidemark_up` 0, and hides no other.

    Exit status: 0 done; 1 a pipeline could not be looked at; 2 bad spec or usage. The metrics of the others are there
    all the same.
    """
    if to is not None and to.suffix != ".prom":
        raise click.BadParameter(
            f"found {to.name}; node_exporter reads only names that end in .prom", param_hint="--to"
        )
    from tidemark.pipelines.views.metrics import look, text_of
    from tidemark.resources.places.checks import ensure_folder
    from tidemark.resources.places.place import write_whole

    place = known_settings(warehouse).warehouse
    results = [look(path, place) for path in specs]
    if len({result.pipeline for result in results}) < len(results):
        raise click.UsageError("Two specs have the same name, so their metrics would have the same name too.")
    text = text_of(results, for_collector=to is not None)
    if to is None:
        click.echo(text, nl=False)
    else:
        ensure_folder(to.parent, "--to is in", "name a file in a writable folder")
        write_whole(to, text)

    def complain(result: "Look") -> None:
        if result.error is not None:
            raise result.error

    sys.exit(for_each(results, complain, name_of=lambda result: result.pipeline))


@click.command()
@spec_path
@click.argument("table")
@click.option("--where", metavar="SQL", help="Only rows that meet a condition, such as \"reason = 'early'\".")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of rows to show.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "rows", "json", "csv")),
    help="table; rows: a block for each row; json: one object per line; csv. [default: table; rows if the terminal "
    "is too narrow for it]",
)
@warehouse_option
@says_errors
def show(
    *, spec: Path, table: str, where: str | None, limit: int, form: str | None, warehouse: "Place | None"
) -> None:
    """Show rows from a TABLE of SPEC as of the last commit.

    The newest come first. TABLE is raw_events, ordered_events, held_events, dead_letters, watermarks, log_control,
    batches or the name of a window or join. No Spark is started. Conditions are SQL as DuckDB reads it: names of
    columns as they are, texts and instants (UTC) in single quotes, such as "window_start >= '2026-01-31'". A field
    of a dead letter's payload is "payload ->> 'device' = 'a'".

    Exit status: 0 done, also when there are no such rows; 2 bad spec, table, condition or usage; 1 a failure, or
    nothing is committed yet.
    """
    from tidemark.pipelines.views.terminal import since_boot, write_rows
    from tidemark.resources.delta.queries import select
    from tidemark.resources.tables import BATCHES, DEAD_LETTERS
    from tidemark.resources.workspace import Workspace

    [file] = read_specs([spec], ())
    workspace = Workspace(file, known_settings(warehouse).warehouse)
    batch, versions = _committed(workspace)
    name = _table_of(workspace, table, versions)
    order = _order(workspace.lake.columns(name))
    selection = select(workspace.lake, name, versions[name], where=where, order=order, most=limit)
    write_rows(selection.rows, form, {"started": since_boot} if name == BATCHES else {})
    shown = f"{selection.rows.num_rows:,} of {plural(selection.in_all, 'row')}"
    newest = ", the newest first" if order and selection.rows.num_rows < selection.in_all else ""
    say(f"{file.spec.name}: {shown} of {name} as of batch {batch}{newest}; instants are UTC")
    seqs = selection.rows["_arrival_seq"].drop_null().to_pylist() if name == DEAD_LETTERS else []
    for seq in seqs[:1]:
        say(f"{file.spec.name}: `tidemark explain {file.in_command} --seq {seq}` explains the first of them")


def _committed(workspace: "Workspace") -> tuple[int, dict[str, int | None]]:
    """Return the last commit, and the version of each table that belongs to it."""
    from tidemark.resources.tables import BATCHES

    last = workspace.batches.last_commit() if workspace.exists else None
    if last is None:
        raise TidemarkError(
            f"{workspace.spec.name} has no committed batch in {workspace.warehouse}.",
            expected="tables of a pipeline that has run",
            remedy="run it first with `tidemark run`, or name another --warehouse",
        )
    return last.batch_id, {**last.table_versions, BATCHES: None}  # the log of batches is what names the versions


def _table_of(workspace: "Workspace", table: str, versions: dict[str, int | None]) -> str:
    """Return the table that is meant.

    Raises:
        SpecError: There is no table of this name.
    """
    from tidemark.resources.tables import join_table, window_table
    from tidemark.timeops.errors.problems import did_you_mean

    for name in (table.strip("/"), window_table(table), join_table(table)):
        if name in versions:
            return name
    names = sorted(name for name in versions if not name.startswith("_"))
    raise SpecError(
        f"{workspace.spec.name} has no table `{table}`",
        expected=f"one of {', '.join(names)}",
        remedy=did_you_mean(table, [*names, *workspace.spec.result_names]),
    )


def _order(columns: "dict[str, str]") -> "list[SortKey]":
    """Return the order that shows the newest rows first, by the columns that a table has for it."""
    from tidemark.resources.delta.queries import SortKey
    from tidemark.timeops.spec.top import TOP_RANK

    for by in (
        ("window_start", "window_end"),
        ("_timestamp", "_arrival_seq"),
        ("_arrival_seq",),
        ("_control_seq",),
        ("_batch_id",),
    ):
        if all(name in columns for name in by):
            newest, names = [SortKey(name, descending=True) for name in by], [*columns]
            # The first events of a window are in their places, group by group.
            places = names[names.index(by[-1]) + 1 : names.index(TOP_RANK) + 1] if TOP_RANK in columns else []
            return [*newest, *map(SortKey, places)]
    return []


@click.command()
@spec_paths
@warehouse_option
@click.option(
    "--out",
    metavar="FILE_OR_DIR",
    type=click.Path(path_type=Path),
    help="The page, a name that ends in .html; or the folder for pages. [default: ./NAME_report.html]",
)
@says_errors
def report(*, specs: tuple[Path, ...], warehouse: "Place | None", out: Path | None) -> None:
    """Write an HTML page about each pipeline.

    What came in, what went where and why, as of the last commit. It is one self-contained file, to open in a browser
    or to send to others. Tables are only read.

    Exit status: 0 done, also when a pipeline has not run yet; 2 bad spec or usage; 1 a failure.
    """
    from tidemark.resources.places.checks import ensure_folder

    files = read_specs(specs, ())
    pages = _pages([file.spec.name for file in files], out)
    for page in pages:
        ensure_folder(page.parent, "--out is", "name another folder or page")
    from tidemark.pipelines.views.report.page import page_of
    from tidemark.pipelines.views.terminal import telling
    from tidemark.resources.places.place import write_whole
    from tidemark.resources.workspace import Workspace

    def write(pair: "tuple[SpecFile, Path]") -> None:
        file, page = pair
        with telling(file.spec.name) as tell:
            text = page_of(Workspace(file, known_settings(warehouse).warehouse, tell=tell))
        write_whole(page, text)
        put(f"{file.spec.name}: {page}")

    sys.exit(for_each([*zip(files, pages, strict=True)], write, name_of=lambda pair: pair[0].spec.name))


def _pages(names: Sequence[str], out: Path | None) -> list[Path]:
    """Return the place of the page of each pipeline."""
    if len(set(names)) < len(names):
        raise click.UsageError("Two specs have the same name, so their pages would have the same name too.")
    if out is None or out.is_dir() or out.suffix.lower() not in {".html", ".htm"}:
        if out is not None and out.exists() and not out.is_dir():
            raise click.BadParameter(f"{out} is a file; a folder or a name that ends in .html is expected.")
        return [(out or Path()) / f"{name}_report.html" for name in names]
    if len(names) > 1:
        raise click.BadParameter(f"{out} is one page; a folder is expected for the pages of {len(names)} pipelines.")
    return [out]


COMMANDS = (status, metrics, notify, show, report)
