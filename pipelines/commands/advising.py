"""Commands that ask the log what would be: `tidemark advise`, `tidemark simulate`.

Here: what a person types and reads. Not here: the answers (assets/questions/), `tm.advise` and `tm.simulate`
(pipelines/library.py).
"""
# ruff: noqa: PLC0415 - Spark takes seconds to import, so each command imports what it needs

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    known_settings,
    overrides_option,
    pipeline_of,
    put,
    read_specs,
    say,
    says_errors,
    spec_path,
    warehouse_option,
)
from tidemark.timeops.errors.printable import json_line

if TYPE_CHECKING:
    from tidemark.assets.questions.advice_answer import Advice
    from tidemark.resources.places.place import Place

_OR = "--or"


@click.command()
@spec_path
@warehouse_option
@click.option("--json", "as_json", is_flag=True, help="A JSON object on its own line.")
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a picture: what is lost against the delay; a name that ends in .png or .svg.",
)
@overrides_option
@says_errors
def advise(
    *, spec: Path, warehouse: "Place | None", as_json: bool, picture: Path | None, overrides: tuple[str, ...]
) -> None:
    """Show how late events of SPEC are, and how long to wait.

    The whole log is judged by the spec as it is. For each tolerance: how many records rule 3 would refuse, how much
    later results would come, how many events would be held. Tolerances for a loss of 1 %, 0.1 % and 0.01 %, found
    on the first 70 % of the log and verified on the rest. Who loses most, and why. It writes nothing.

    Exit status: 0 done; 2 bad spec or usage, or a spec without an event time; 1 a failure, or nothing was processed.
    """
    if picture is not None and picture.suffix.lower() not in (".png", ".svg"):
        raise click.BadParameter(f"found {picture.name}; a name that ends in .png or .svg", param_hint="--picture")
    from tidemark.assets.questions.advice import advice_of
    from tidemark.pipelines.views.terminal import telling

    [file] = read_specs([spec], overrides)
    with telling(file.spec.name) as tell:
        advice = advice_of(pipeline_of(file, known_settings(warehouse), tell))
    if picture is not None:
        _write_picture(advice, picture)
    if as_json:
        click.echo(json_line(advice.to_dict()))
    else:
        put(advice.text)


def _write_picture(advice: "Advice", picture: Path) -> None:
    from tidemark.assets.catalog.display.pictures import png, svg
    from tidemark.resources.places.checks import ensure_folder

    figure = advice.picture()
    if figure is None:
        say(f"{advice.name}: no tolerance would lose a record, so there is nothing to draw")
        return
    ensure_folder(picture.parent, "--picture is in", "name a file in a writable folder")
    picture.write_bytes((png if picture.suffix.lower() == ".png" else svg)(figure))


class _Settings(click.Command):
    """A command whose `--set` options are divided by `--or`, which click would not keep in order."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let `--or` be one more value of `--set`."""
        return super().parse_args(
            ctx, [word for argument in args for word in (("--set", _OR) if argument == _OR else (argument,))]
        )


@click.command(cls=_Settings)
@spec_path
@warehouse_option
@click.option(
    "--set",
    "words",
    metavar="KEY=VALUE",
    multiple=True,
    required=True,
    help="Set a key of the spec, such as time.out_of_orderness=10s; can be repeated. `--or --set …` begins another "
    "setting, next to the first.",
)
@click.option("--from", "begin", metavar="TIME", help="Compare windows that start, and events, from here on.")
@click.option("--to", "end", metavar="TIME", help="Compare windows that start, and events, before this.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array on its own line.")
@says_errors
def simulate(
    *,
    spec: Path,
    warehouse: "Place | None",
    words: tuple[str, ...],
    begin: str | None,
    end: str | None,
    as_json: bool,
) -> None:
    """Show what other settings would make of the log of SPEC.

    The log is judged from its beginning with each setting, in memory: how many dead letters of each reason, how many
    rows of each window would be new, gone or changed, the largest differences first. It is what a run with that
    setting makes of the same log. `--or` begins another setting, next to the first. Nothing is written. TIME is ISO
    8601, in UTC where it has no offset.

    Exit status: 0 done; 2 bad spec, setting or usage; 1 a failure, or nothing was processed.
    """
    from tidemark.assets.questions.what_if.simulation import simulation_of
    from tidemark.pipelines.code_location.questions import settings_with, stretch_of
    from tidemark.pipelines.views.terminal import telling

    [file] = read_specs([spec], ())
    stretch, alternatives = stretch_of(begin, end), settings_with(spec, _divided(words))
    with telling(file.spec.name) as tell:
        simulation = simulation_of(pipeline_of(file, known_settings(warehouse), tell), alternatives, stretch)
    if as_json:
        click.echo(json_line(simulation.to_dict()))
    else:
        put(simulation.text)


def _divided(words: Sequence[str]) -> list[list[str]]:
    """Return the values of `--set` by setting.

    Raises:
        click.UsageError: A setting is empty.
    """
    settings: list[list[str]] = [[]]
    for word in words:
        if word == _OR:
            settings.append([])
        else:
            settings[-1].append(word)
    if not all(settings):
        raise click.UsageError("`--or` needs a --set before and after it.")
    return settings


COMMANDS = (advise, simulate)
