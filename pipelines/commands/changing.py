"""Commands on changes of a spec: `tidemark plan`.

Here: what a person types and reads. Not here: what a change means (timeops/spec/changes.py), the facts
(assets/questions/what_if/spec_plan.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    UNDECIDED,
    known_settings,
    overrides_option,
    pipeline_of,
    put,
    read_specs,
    says_errors,
    spec_path,
    warehouse_option,
)
from tidemark.timeops.errors.printable import json_line, plural

if TYPE_CHECKING:
    from tidemark.assets.questions.what_if.preview import TableRows
    from tidemark.assets.questions.what_if.spec_plan import SpecPlan
    from tidemark.assets.rebuild.work import Work
    from tidemark.resources.places.place import Place
    from tidemark.resources.workspace import SpecFile
    from tidemark.timeops.spec.changes import Change

_STYLES = {"nothing": "green", "from here on": "cyan", "needs the past": "yellow", "refused": "red"}


@click.command()
@spec_path
@warehouse_option
@click.option("--json", "as_json", is_flag=True, help="A JSON object on its own line.")
@overrides_option
@says_errors
def plan(*, spec: Path, warehouse: "Place | None", as_json: bool, overrides: tuple[str, ...]) -> None:
    """Show what changed in SPEC since the last commit, and its effect.

    Each change is one of: nothing; from here on; needs the past; refused. It also shows how much a run, or
    recomputing the past, has to do and about how long that takes. Where time or windows changed, the whole log is
    judged in memory, to show which dead letters and rows would change. Nothing is written.

    Exit status: 0 nothing changed, or a run takes all changes; 3 a change needs a decision: it needs the past, or is
    refused; 2 bad spec or usage; 1 a failure.
    """
    [file] = read_specs([spec], overrides)
    spec_plan = _plan(file, warehouse)
    if as_json:
        click.echo(json_line(spec_plan.to_dict()))
    else:
        _show(file, spec_plan)
    if spec_plan.needs_decision:
        sys.exit(UNDECIDED)


def _plan(file: "SpecFile", warehouse: "Place | None") -> "SpecPlan":
    from tidemark.assets.questions.what_if.spec_plan import plan_of
    from tidemark.pipelines.views.terminal import telling

    with telling(file.spec.name) as tell:
        return plan_of(pipeline_of(file, known_settings(warehouse), tell))


def _show(file: "SpecFile", spec_plan: "SpecPlan") -> None:
    from tidemark.pipelines.views.terminal import print_block

    put(f"{spec_plan.name}: {_summary(spec_plan)}")
    if spec_plan.changes:
        _show_changes(file, spec_plan.changes)
    lines = [(heading, sentence, "") for heading, sentence in _work_lines(file, spec_plan)]
    lines += [("" if number else "not taken", sentence, "") for number, sentence in enumerate(spec_plan.never_taken)]
    lines += [("" if number else "corrected", sentence, "") for number, sentence in enumerate(spec_plan.corrections)]
    if lines:
        print_block("", lines)
    if spec_plan.differs is not None:
        _show_differences(spec_plan)
    if spec_plan.corrected:
        _show_corrected(spec_plan)
    for sentence in _what_to_do(file, spec_plan):
        put(sentence)


def _summary(spec_plan: "SpecPlan") -> str:
    from tidemark.pipelines.views.terminal import second

    if spec_plan.batch is None or spec_plan.since is None:
        return f"no tables in {spec_plan.folder} yet; a run creates them"
    since = f"batch {spec_plan.batch}, committed {second(spec_plan.since)} UTC"
    if not spec_plan.changes:
        return f"nothing changed since {since}"
    return f"{plural(len(spec_plan.changes), 'change')} since {since}"


def _show_changes(file: "SpecFile", changes: "Sequence[Change]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from tidemark.pipelines.views.terminal import console
    from tidemark.timeops.errors.printable import printable

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("means", no_wrap=True)
    table.add_column("where", no_wrap=True)
    table.add_column("what", overflow="fold")
    for change in changes:
        style = _STYLES[change.meaning]
        sentence = f"{change.sentence}: {change.effect}" if change.effect else change.sentence
        place = file.place(change.keys(file.spec)).removesuffix(": ")
        table.add_row(Text(change.meaning, style), Text(printable(place)), Text(printable(sentence)))
    console().print(table)


def _work_lines(file: "SpecFile", spec_plan: "SpecPlan") -> "Iterator[tuple[str, str]]":

    if spec_plan.run is None:
        yield "run", spec_plan.input_fault
    elif spec_plan.run.files or spec_plan.run.records:
        new = (
            [f"{plural(spec_plan.run.files, 'new input')} ({_size(spec_plan.run.size)})"]
            if spec_plan.run.files
            else []
        )
        about = "about " if new else ""
        records = [] if spec_plan.run.records is None else [f"{about}{plural(spec_plan.run.records, 'record')}"]
        yield "run", f"{', '.join([*new, *records])}{_took(spec_plan.run)}"
    else:
        yield "run", "nothing waits"
    if spec_plan.past is not None:
        of = f"{plural(spec_plan.past.records or 0, 'record')} of the log"
        files = f"in {plural(spec_plan.past.files, 'file')} ({_size(spec_plan.past.size)})"
        yield "past", f"{of} {files}{_took(spec_plan.past)}"
    if spec_plan.rebuild is not None and spec_plan.earlier:
        keys = ", ".join(change.path for change in spec_plan.earlier)
        to_spec = f"`tidemark rebuild {file.in_command} --to-spec` computes {spec_plan.rebuild.scope} again"
        yield "earlier", f"{keys}: changed since the past was computed; {to_spec}"


def _took(work: "Work") -> str:
    from datetime import timedelta

    from tidemark.timeops.values.durations import roughly

    if work.seconds is None:
        return ""
    return f": about {roughly(timedelta(seconds=max(round(work.seconds), 1)))}, going by earlier batches"


def _size(size: int) -> str:
    for unit, of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size:,} bytes"


def _show_differences(spec_plan: "SpecPlan") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from tidemark.pipelines.views.terminal import console

    assert spec_plan.differs is not None  # the caller has looked
    letters = {reason: pair for reason, pair in spec_plan.differs.letters.items() if pair[0] != pair[1]}
    parts = (("windows", spec_plan.differs.windows), ("joins", spec_plan.differs.joins))
    changed = [(folder, rows) for folder, tables in parts for rows in tables if rows.changed or rows.reopened]
    put("\nIf the whole log were judged by this spec:")
    if not letters and not changed:
        of_join = " or a join" if spec_plan.differs.joins else ""
        put(f"  no row of a window{of_join} and no dead letter would change")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "now", "then", "new", "gone", "other"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for reason, (before, after) in sorted(letters.items(), key=lambda letter: -abs(letter[1][0] - letter[1][1])):
        table.add_row(Text(f"dead letters {reason}"), f"{before:,}", f"{after:,}", "", "", "")
    for folder, rows in changed:
        numbers = (rows.before, rows.after, rows.new, rows.gone, rows.other)
        table.add_row(Text(f"rows of {folder}/{rows.name}"), *[f"{number:,}" for number in numbers])
    console().print(table)
    for folder, rows in changed:
        put(f"  {rows.name}: {_most(rows, 'window' if folder == 'windows' else 'hour')}")
        if rows.reopened:
            were = "was published and would be" if rows.reopened == 1 else "were published and would be"
            until = "the window closes" if folder == "windows" else "the event closes"
            put(f"  {rows.name}: {plural(rows.reopened, 'row')} {were} taken back until {until}")


def _show_corrected(spec_plan: "SpecPlan") -> None:
    from tidemark.pipelines.operators.deciding import difference_in_words

    put("\nThe next run computes the tables again from the corrected records:")
    for window in spec_plan.corrected:
        for line in difference_in_words(window, would=True):
            put(line)


def _most(rows: "TableRows", stretch: str) -> str:
    """Return the windows, or the hours of a join, with the most rows that would change, in words."""
    shown = list(rows.largest.items())[:3]
    return "most in " + ", ".join(f"the {stretch} of {start} UTC ({count:,})" for start, count in shown)


def _what_to_do(file: "SpecFile", spec_plan: "SpecPlan") -> "Iterator[str]":
    from tidemark.assets.log.spec_changes import way_on

    if spec_plan.needs_decision:
        yield f"\nTo do: {way_on(spec_plan.changes, file)}"
    elif spec_plan.changes and spec_plan.batch is not None:
        name = file.in_command
        past = f" `tidemark rebuild {name}` does the same for the past." if spec_plan.past is not None else ""
        yield f"\n`tidemark run {name}` continues with the spec as it is.{past}"


COMMANDS = (plan,)
