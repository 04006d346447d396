"""`tidemark status`: how pipelines stand, in a second or two.

Here: what a person types and reads. Not here: the facts (status.py).
"""
# ruff: noqa: PLC0415 - Delta takes a second to import, so each command imports what it needs

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.pipelines.command_line import (
    BAD_SPEC,
    each_spec,
    in_words,
    known_settings,
    spec_paths,
    verbose_option,
    warehouse_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.pipelines.status import Status
    from tidemark.resources.workspace import SpecFile


@click.command()
@spec_paths
@warehouse_option
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each pipeline, in a line of its own.")
@verbose_option
def status(*, specs: tuple[Path, ...], warehouse: Path | None, as_json: bool, verbose: bool) -> None:
    """Show how each pipeline stands: records, watermark, delay, the last batch, what waits, what is wrong.

    It only reads, as of the last commit, and starts no Spark.

    Exit status: 0 done, also when something is wrong with a pipeline; 2 bad spec or usage; 1 a failure.
    """
    with in_words(verbose=verbose):
        from tidemark.pipelines.status import status_of
        from tidemark.resources.workspace import Workspace

        def look(file: "SpecFile") -> None:
            found = status_of(Workspace(file, known_settings(warehouse).warehouse))
            if as_json:
                click.echo(json.dumps(_as_json(found), ensure_ascii=False))
            else:
                _show(found)

        if not each_spec(specs, (), look):
            sys.exit(BAD_SPEC)


def _show(found: "Status") -> None:
    """Prints a pipeline as a block of lines."""
    from rich.table import Table
    from rich.text import Text

    from tidemark.pipelines.rows_text import console

    here = console()
    lines = Table.grid(padding=(0, 2))
    for name, said in _lines(found):
        lines.add_row(f"  {name}", Text(said))
    for number, said in enumerate(found.wrong or ["nothing"]):
        lines.add_row("" if number else "  wrong", Text(said, style="red" if found.wrong else ""))
    here.print(found.name)
    here.print(lines)


def _lines(found: "Status") -> "Iterator[tuple[str, str]]":
    from tidemark.pipelines.report.values import plural, second

    if found.last is None:
        yield "records", "none: no batch has been committed yet"
    else:
        left = found.records - found.processed
        rest = f"{plural(left, 'is', 'are')} not processed yet" if left else "all processed"
        yield "records", f"{found.records:,}, {rest}"
        yield "watermark", _watermark(found)
        if found.held is not None:
            yield "held", f"{plural(found.held, 'event')}, which the watermark has not passed"
        yield "dead letters", f"{found.dead_letters:,}"
        yield "last batch", _last(found)
    if found.at_work is not None:
        plan = found.at_work
        yield "at work", f"batch {plan.batch_id} ({plan.kind}), {plan.owner}, since {second(plan.planned_at)} UTC"
    young = f", {plural(found.waits.young, 'file')} younger than `settle`" if found.waits.young else ""
    back = f", {found.waits.held_back:,} held back" if found.waits.held_back else ""
    yield "waits", f"{plural(found.waits.new, 'new file') if found.waits.new else 'no new file'}{young}{back}"
    yield "tables", str(found.folder)


def _watermark(found: "Status") -> str:
    from tidemark.pipelines.report_text import watermark_text
    from tidemark.timeops.durations import roughly

    text = watermark_text(found.position)
    if found.delay is None:
        return text
    return f"{text}, {roughly(abs(found.delay))} {'ahead of' if found.delay.days < 0 else 'behind'} the clock"


def _last(found: "Status") -> str:
    from tidemark.pipelines.report.values import plural, second
    from tidemark.resources.workspace import records_in

    assert found.last is not None  # the caller has looked
    plan, at = found.last.plan, found.last.committed_at
    took = f"in {(at - plan.planned_at).total_seconds():.0f} s"
    what = plural(records_in(plan), "record") if plan.kind == "process" else plan.kind
    why = "" if plan.kind == "change" else "accepted although a check failed: "
    reason = f", {why}{found.last.reason}" if found.last.reason is not None else ""
    return f"{found.last.batch_id}, committed {second(at)} UTC: {what} {took}{reason}"


def _as_json(found: "Status") -> dict[str, Any]:
    """The same for programs; instants are ISO 8601 in UTC."""
    last, plan = found.last, found.at_work
    return {
        "name": found.name,
        "tables": str(found.folder),
        "records": found.records,
        "processed": found.processed,
        "watermark": _instant(found.position.watermark_us if not found.position.final else None),
        "flushed": found.position.final,
        "watermark_delay_seconds": None if found.delay is None else found.delay.total_seconds(),
        "held": found.held,
        "dead_letters": found.dead_letters,
        "last_batch": last
        and {
            "batch": last.batch_id,
            "kind": last.plan.kind,
            "committed_at": last.committed_at.isoformat(),
            "records": (last.plan.end_seq or 0) - last.plan.first_seq,
            "seconds": (last.committed_at - last.plan.planned_at).total_seconds(),
            "accepted_because": last.reason,
        },
        "at_work": plan
        and {
            "batch": plan.batch_id,
            "kind": plan.kind,
            "owner": str(plan.owner),
            "since": plan.planned_at.isoformat(),
        },
        "files": {"new": found.waits.new, "young": found.waits.young, "held_back": found.waits.held_back},
        "wrong": list(found.wrong),
    }


def _instant(us: int | None) -> str | None:
    from tidemark.timeops.utc import instant_of

    return None if us is None else instant_of(us).isoformat()
