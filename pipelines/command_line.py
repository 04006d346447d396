"""The parts that all commands share: options, settings, errors as sentences, exit codes.

Here: the pieces. Not here: the commands (pipelines/cli.py and the files that it names).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemark.resources.machine import ensure_not_stopped, listening, stop_signal
from tidemark.timeops.errors import MachineError, SpecError, TidemarkError, UnexpectedError, first_line
from tidemark.timeops.errors.printable import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.resources.places.place import Place
    from tidemark.resources.settings import Settings
    from tidemark.resources.workspace import SpecFile, Workspace

FAILED, BAD_SPEC, UNDECIDED = 1, 2, 3
Item = TypeVar("Item")
Read = TypeVar("Read")
_MOST_NAMED = 10

SPECS = Path(__file__).parent / "specs"
"""The specs that come with Tidemark: the default of a process."""
spec_path = click.argument("spec", type=click.Path(path_type=Path))
spec_paths = click.argument("specs", metavar="SPEC...", nargs=-1, required=True, type=click.Path(path_type=Path))
spark_ui_option = click.option(
    "--spark-ui", is_flag=True, help="Open Spark's UI while it computes, for this machine only; it has no login."
)
overrides_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of the spec for this run, such as time.out_of_orderness=30s; can be repeated.",
)


class Warehouse(click.Path):
    """A folder of the file system, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path or the place; a wrong URL is a wrong usage."""
        from tidemark.resources.places.place import is_url, place_of

        if not is_url(str(value)):
            return super().convert(value, param, ctx)
        try:
            return place_of(value)
        except SpecError as error:
            self.fail(str(error), param, ctx)


warehouse_option = click.option(
    "--warehouse",
    metavar="DIR",
    type=Warehouse(file_okay=False, path_type=Path),
    help="Folder of the tables, or its URL. [default: $TIDEMARK_WAREHOUSE, else ./warehouse]",
)


def settings_of(warehouse: "Place | None" = None, *, spark_ui: bool = False) -> "Settings":
    """Return the settings of this process; create DAGSTER_HOME if it is not there."""
    from tidemark.resources.settings import use_dagster_home

    settings = known_settings(warehouse, spark_ui=spark_ui)
    use_dagster_home(settings.dagster_home)
    return settings


def known_settings(warehouse: "Place | None" = None, *, spark_ui: bool = False) -> "Settings":
    """Return the settings of this process, for a command that needs no Dagster: nothing is made."""
    from tidemark.resources.settings import from_environment

    return from_environment(SPECS, warehouse=warehouse, spark_ui=spark_ui)


def says_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Add --verbose, and turn errors of the command into sentences, see `in_words`."""

    @click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an unexpected error.")
    @wraps(command)
    def in_sentences(*args: Any, **kwargs: Any) -> None:
        del kwargs["verbose"]  # `say_error` finds it in click's context
        with in_words():
            command(*args, **kwargs)

    return in_sentences


@contextmanager
def in_words() -> Iterator[None]:
    """Turn errors inside, and a wish to stop, into sentences on stderr and an exit code; silence libraries."""
    warnings.simplefilter("ignore")
    _print_errors_of_libraries()
    _drop_tracebacks_once_stopped()
    with listening():
        try:
            yield
            ensure_not_stopped()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or stop_signal() is not None:
                sys.exit(_say_stopped())
            if isinstance(error, click.ClickException) or not isinstance(error, Exception):
                raise  # click says it by itself
            sys.exit(say_error(error))


def _say_stopped() -> int:
    """Say that the process was asked to stop; return the exit code of one that ends by such a signal."""
    by = stop_signal() or signal.SIGINT
    signal.signal(by, signal.SIG_IGN)  # another one has no effect
    how = "" if by == signal.SIGINT else f" by {by.name}"
    say(f"Stopped{how}. Nothing is lost: what was committed stays, and the next run does the rest.")
    return 128 + by


def as_ours(error: Exception) -> TidemarkError:
    """Return an error in our words: that of the machine, or an unexpected one, for an error that is not ours."""
    from tidemark.resources.machine import machine_failure

    if isinstance(error, TidemarkError):
        return error
    name, stack = type(error).__name__, "".join(traceback.format_exception(error))
    return machine_failure(str(error), name) or UnexpectedError(name, first_line(error), stack)


def say_error(error: Exception, *, of: str = "") -> int:
    """Say an error in a sentence, after the name of its pipeline if there are several; return the exit code.

    With --verbose, the traceback of an unexpected one comes before it.
    """
    error = as_ours(error)
    context = click.get_current_context(silent=True)
    if isinstance(error, UnexpectedError) and context is not None and context.params.get("verbose"):
        say(error.stack)
    is_named = not of or str(error).startswith((f"{of}:", f"{of},", f"{of} "))  # most begin with their file
    say(str(error) if is_named else f"{of}: {error}")
    return BAD_SPEC if isinstance(error, SpecError) else FAILED


def _print_errors_of_libraries() -> None:
    """Print what libraries log as an error, except py4j, unless logging is set up for them.

    When the JVM goes away py4j logs a traceback, to the logger without a name. It also raises an exception, which we
    report in our own words. Once the process was asked to stop, the work of a library ends anywhere, and what it logs
    of that, such as a connection that SQLAlchemy could not reset, is not an error.
    """
    nameless, last_resort = logging.getLogger(), logging.lastResort
    if nameless.handlers or last_resort is None:
        return

    def is_told(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in (nameless.name, "py4j") and stop_signal() is None

    last_resort.setLevel(logging.ERROR)
    last_resort.addFilter(is_told)
    nameless.addHandler(last_resort)  # a logger without a handler gets one from the first that writes to it


def _drop_tracebacks_once_stopped() -> None:
    """Let Python print no traceback of a thread or a finalizer that a wish to stop has ended; others it prints."""
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = lambda dropped: None if stop_signal() is not None else sys.__unraisablehook__(dropped)
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda ended: None if stop_signal() is not None else threading.__excepthook__(ended)


def say(text: str) -> None:
    """Print a message on stderr; what a terminal would obey in it is written out."""
    click.echo(printable(text, keep="\n\t"), err=True)


def put(text: str) -> None:
    """Print a result to stdout; what a terminal would obey in it is written out."""
    click.echo(printable(text, keep="\n\t"))


def first_lines(lines: Sequence[str]) -> str:
    """Return the first of some lines, and a line on how many more there are."""
    n_more = len(lines) - _MOST_NAMED
    return "\n".join([*lines[:_MOST_NAMED], *([f"... and {n_more} more"] if n_more > 0 else [])])


def read_specs(paths: Sequence[Path], overrides: Sequence[str]) -> list["SpecFile"]:
    """Read specs, all of them before anything runs; runs report under the keys that the code location shows.

    Raises:
        SpecError: Some are not valid specs, and all of these are named; or two are of one pipeline.
        click.UsageError: One is named twice.
    """
    from tidemark.pipelines.spec_files import as_shown, check_names, read_spec

    files = read_all(paths, lambda path: read_spec(path, overrides), noun="specs")
    check_names(files)
    if len({file.path for file in files}) < len(files):
        raise click.UsageError("A spec is named twice: name each one once.")
    home = known_settings().dagster_home
    return [as_shown(file, home) for file in files]


def pipeline_of(
    file: "SpecFile", settings: "Settings", tell: Callable[[str], None], *, takes_little: bool = False
) -> "Workspace":
    """Return the pipeline of a spec, for questions and plans: Spark is chosen and started only if it is asked for.

    `takes_little` is for a command that runs next to others, for long: its Spark takes less memory.
    """
    from tidemark.resources.spark.choice import choose_spark, open_session
    from tidemark.resources.workspace import Workspace

    def session() -> "SparkSession":
        choice = choose_spark(settings, file.inputs)
        return open_session(choice.with_little_memory() if takes_little else choice, tell)

    return Workspace(file, settings.warehouse, session, tell=tell)


def read_all(paths: Sequence[Path], read: Callable[[Path], Read], *, noun: str) -> list[Read]:
    """Read several files, all of them before anything is done.

    Raises:
        SpecError: Some are wrong, and all of these are named.
        TidemarkError: One of them met an unexpected error.
    """
    files_read: list[Read] = []
    wrong: dict[Path, TidemarkError] = {}
    for path in paths:
        try:
            files_read.append(read(path))
        except Exception as error:  # an unexpected one must not hide what is wrong with the others
            wrong[path] = as_ours(error)
    if wrong and len(paths) > 1:
        is_spec = all(isinstance(failure, SpecError) for failure in wrong.values())
        faults = "\n".join(
            str(failure) if isinstance(failure, SpecError) else f"{path}: {failure}"
            for path, failure in wrong.items()
        )
        counts = f"{len(wrong)} of {len(paths)} are wrong"
        kind = SpecError if is_spec else TidemarkError
        raise kind(f"{faults}\nNothing was done: all {noun} are read first, and {counts}.")
    for failure in wrong.values():
        raise failure
    return files_read


def for_each(items: Sequence[Item], act: Callable[[Item], object], *, name_of: Callable[[Item], str]) -> int:
    """Act on one after the other; report what is wrong with one, and continue with the rest.

    Returns:
        The exit status: of several failures 1, unless all of them are bad specs; 0 for none.

    Raises:
        MachineError: The cause would stop the rest as well: they were not tried.
    """
    failures = set()
    for position, item in enumerate(items):
        try:
            act(item)
        except Exception as error:  # whatever it is, it hides nothing of the others
            failure, name = as_ours(error), name_of(item)
            if isinstance(failure, MachineError):
                if names_left := [name_of(other) for other in items[position + 1 :]]:
                    say(f"Not done: {', '.join(names_left)}. What stops {name} would stop them as well:")
                raise failure from error
            failures.add(say_error(failure, of=name if len(items) > 1 else ""))
    return min(failures, default=0)


def sentence(text: str, option: str) -> str:
    """Return the text of an option that says why.

    Raises:
        click.BadParameter: It is empty.
    """
    if not text.strip():
        raise click.BadParameter("found only blanks; a sentence is expected", param_hint=option)
    return text.strip()
