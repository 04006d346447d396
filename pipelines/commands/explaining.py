"""Commands that ask a pipeline why: `tidemark explain`, and `capture`, which makes a test of what was found.

Here: what a person types and reads. Not here: the answers and their words (assets/questions).
"""
# ruff: noqa: PLC0415 - Delta and Spark take seconds to import, so each command imports what it needs

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    known_settings,
    pipeline_of,
    put,
    read_specs,
    say,
    says_errors,
    spec_path,
    warehouse_option,
)
from tidemark.timeops.errors.printable import json_line, plural

if TYPE_CHECKING:
    from tidemark.resources.places.place import Place


@click.command()
@spec_path
@click.option("--seq", metavar="N", type=int, help="A record, by its `_arrival_seq`.")
@click.option("--where", metavar="SQL", help="Records of the log that meet a condition, such as \"device = 'a'\".")
@click.option("--window", metavar="NAME", help="A window of the spec; with --start.")
@click.option("--start", metavar="T", help="Where the window begins, such as 2026-01-31T12:00:00Z; UTC by default.")
@click.option(
    "--group", "groups", metavar="COLUMN=VALUE", multiple=True, help="Only this group of the window; can be repeated."
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of records of --where.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="A JSON object on its own line; of --where one for each record."
)
@warehouse_option
@says_errors
def explain(
    *,
    spec: Path,
    seq: int | None,
    where: str | None,
    window: str | None,
    start: str | None,
    groups: tuple[str, ...],
    limit: int,
    as_json: bool,
    warehouse: "Place | None",
) -> None:
    """Explain why a record or a window of SPEC is as it is.

    Of a record: its times, each rule of time with its numbers, the watermark that it met and what had set that, its
    windows, what released it or will, and the least tolerance that would have let it in. Of a window: its events, and
    what closed it or holds it back. Conditions are SQL as DuckDB reads it. It only reads, as of the last commit;
    Spark starts only if an expression of the spec has to be computed.

    Exit status: 0 done, also when there is no such window; 2 bad spec, question or usage; 1 a failure, or nothing
    is committed yet.
    """
    from tidemark.assets.questions.asking import Question, RecordAnswers
    from tidemark.assets.questions.asking import explain as answer_to
    from tidemark.pipelines.views.terminal import telling

    question = Question(seq, where, window, start, _values(groups), limit)
    question.check()
    [file] = read_specs([spec], ())
    with telling(file.spec.name) as tell:
        answer = answer_to(pipeline_of(file, known_settings(warehouse), tell), question)
    if not as_json:
        put(answer.text)
    for part in answer.records if isinstance(answer, RecordAnswers) else (answer,):
        if as_json:
            click.echo(json_line(part.to_dict()))
    if isinstance(answer, RecordAnswers) and answer.in_all > len(answer.records):
        say(f"{file.spec.name}: {len(answer.records):,} of {plural(answer.in_all, 'record')}; --limit shows more")


@click.command()
@spec_path
@click.option("--seq", "stretch", metavar="A..B", required=True, help="The stretch: first and last `_arrival_seq`.")
@click.option(
    "--redact",
    metavar="COLUMN",
    multiple=True,
    help="Replace the values of this column, equal ones by equal ones; can be repeated.",
)
@warehouse_option
@says_errors
def capture(*, spec: Path, stretch: str, redact: tuple[str, ...], warehouse: "Place | None") -> None:
    """Print a stretch of SPEC's log as cases for a test.

    The case has the records as they are in the log, without the columns that no expression of the spec names, and
    expects what comes of judging them alone. Comments name the records that the pipeline judged in another way, as it
    knew what came before. Nothing is written.

    Exit status: 0 done; 2 bad spec, stretch, column or usage; 1 a failure, or nothing is committed yet.
    """
    from tidemark.pipelines.case_tests.capture import capture as captured
    from tidemark.pipelines.views.terminal import telling

    first, last = _stretch(stretch)
    [file] = read_specs([spec], ())
    with telling(file.spec.name) as tell:
        cases = captured(pipeline_of(file, known_settings(warehouse), tell), first, last, redact)
    click.echo(cases.text, nl=False)
    if cases.differing:
        say(
            f"{file.spec.name}: {len(cases.differing):,} of {cases.records:,} records are judged in another way alone"
        )


def _stretch(text: str) -> tuple[int, int]:
    """Return the first and the last record of a stretch such as `12..40`, or of one record."""
    first, sign, last = text.partition("..")
    numbers = [first.strip(), last.strip() if sign else first.strip()]
    if not all(number.isdecimal() for number in numbers):
        raise click.BadParameter(f"found {text}; a stretch such as 12..40 is expected", param_hint="--seq")
    return int(numbers[0]), int(numbers[1])


def _values(groups: tuple[str, ...]) -> dict[str, str | None]:
    """Return the columns and values of --group; `null` means that there is none."""
    values: dict[str, str | None] = {}
    for text in groups:
        column, sign, value = text.partition("=")
        if not sign or not column:
            raise click.BadParameter(
                f"found {text}; a column and its value such as origin=JFK are expected", param_hint="--group"
            )
        values[column] = None if value == "null" else value
    return values


COMMANDS = (explain, capture)
