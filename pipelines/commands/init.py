"""`tidemark init`: a home for pipelines outside the checkout, with an example that runs.

Here: what a person types and reads, and what is laid out where. Not here: what `dagster.yaml` says
(resources/settings.py), the example itself (templates/).
"""

import shlex
from pathlib import Path

import click

from tidemark.pipelines.command_line import in_words, say, verbose_option
from tidemark.resources.settings import make_dagster_home
from tidemark.timeops.errors import TidemarkError

SPECS, WAREHOUSE, DAGSTER = "specs", "warehouse", "dagster"
_TEMPLATES = Path(__file__).parents[1] / "templates"
_EXAMPLE = {"example.yaml": f"{SPECS}/example.yaml", "example.jsonl": "landing/example/first.jsonl"}
"""Where the files of the example go."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@verbose_option
def init(folder: Path, *, verbose: bool) -> None:
    """Prepare FOLDER for pipelines: specs with an example, its input, tables, and Dagster's home.

    It leaves alone what is there, so it may be called again. Without FOLDER it is the current one.

    Exit status: 0 done; 1 a failure.
    """
    with in_words(verbose=verbose):
        home = folder.absolute()
        for path in lay_out(home):
            say(f"init: {path}")
        click.echo(_next_steps(home))


def lay_out(home: Path) -> list[Path]:
    """Makes what is missing of a home; the paths that were made, folders before what is in them.

    Raises:
        TidemarkError: A file stands where a folder belongs, or the place cannot be written.
    """
    made: list[Path] = []
    try:
        for name in (SPECS, WAREHOUSE):
            made += _make_folder(home / name)
        if not any((home / SPECS).glob("*.yaml")):  # who has specs needs no example
            for template, place in _EXAMPLE.items():
                made += _make_file(home / place, (_TEMPLATES / template).read_text(encoding="utf-8"))
        made += make_dagster_home(home / DAGSTER)
    except OSError as error:
        raise TidemarkError(
            f"{error.filename or home} cannot be made: {error.strerror}.",
            expected="a folder that can be written, or none yet",
            remedy="name another one: `tidemark init FOLDER`",
        ) from error
    return made


def _make_folder(folder: Path) -> list[Path]:
    is_new = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    return [folder] if is_new else []


def _make_file(file: Path, text: str) -> list[Path]:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists():
        return []
    file.write_text(text, encoding="utf-8")
    return [file]


def _next_steps(home: Path) -> str:
    places = {"TIDEMARK_SPECS": SPECS, "TIDEMARK_WAREHOUSE": WAREHOUSE, "DAGSTER_HOME": DAGSTER}
    exports = " ".join(f"{name}={shlex.quote(str(home / place))}" for name, place in places.items())
    return (
        f"Next:\n"
        f"  export {exports}\n"
        f'  tidemark run "$TIDEMARK_SPECS"/*.yaml      what waits, once\n'
        f"  dagster dev -m tidemark.pipelines.definitions     the same by itself as files come in: http://localhost:3000"
    )
