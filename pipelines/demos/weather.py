"""`python -m tidemark.pipelines.demos.weather`: flights with the weather in which they left, each row proved.

Here: the words around one run of specs/joins/departures_weather.yaml, its second input, and the same join by a loop
of its own. Not here: the flights (pipelines/demos/flights.py), the run (pipelines/cli.py,
pipelines/running/runner.py).
"""
# ruff: noqa: PLC0415 - words before the seconds that Dagster and Spark take to import

import csv
import os
import shutil
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from tidemark.pipelines.cli import run_all
from tidemark.pipelines.command_line import SPECS, in_words, settings_of
from tidemark.pipelines.demos.flights import LANDING, land_flights, packaged_flights
from tidemark.resources.workspace import Workspace

SPEC = SPECS / "joins" / "departures_weather.yaml"
WEATHER = LANDING.with_name("weather")
TABLE = "joins/with_weather"

_INTRODUCTION = """\
328,521 flights left New York's three airports in 2013. The weather at each was observed every hour. Which observation
held when a flight took off? The last one of its airport at or before that, at most two hours old: an as-of join. A
flight is answered when the watermark has passed it, which is the slower one of both sources.
"""
_NEW_YORK = ZoneInfo("America/New_York")
_REACH = timedelta(hours=2)
_MEASURES = ("temp", "wind_speed", "precip", "visib")
_BANDS = ((0.0, 1.0), (1.0, 3.0), (3.0, 10.0), (10.0, None))

Row = tuple[Any, ...]
"""Take-off, carrier, flight, origin, destination, delay; the time of the observation or None, and its _MEASURES."""


def main() -> None:
    """Write the landing files, run the pipeline, compare its rows with a loop of its own, and print what came out."""
    with in_words():
        from tidemark.pipelines.running.runner import RunOptions
        from tidemark.pipelines.spec_files import read_spec

        click.echo(_INTRODUCTION)
        land_flights(LANDING)
        land_weather(WEATHER)
        settings, file = settings_of(), read_spec(SPEC)
        status = run_all([file], settings, RunOptions())
        workspace = Workspace(file, settings.warehouse)
        if not workspace.exists or not workspace.progress.processed_end():
            sys.exit(status)  # the failure is shown above
        rows = [_row_of(row) for row in workspace.lake.rows(TABLE, workspace.base_of(TABLE)).to_pylist()]
        wrong = difference(rows, joined(LANDING, WEATHER))
        _show_delays(rows)
        if wrong:
            click.echo(f"\n{wrong}")
            sys.exit(1)
        click.echo(f"\nAll {len(rows):,} rows of {TABLE} are the ones that a loop over the files finds.")
        sys.exit(status)


def land_weather(folder: Path) -> None:
    """Write the observations as `weather-2013.csv`, unless they are there.

    Raises:
        TidemarkError: The data set is not installed.
    """
    place = folder / "weather-2013.csv"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packaged_flights().with_name("weather.csv"), place.with_suffix(".tmp"))
        os.replace(place.with_suffix(".tmp"), place)


def joined(flights: Path, weather: Path) -> Iterator[Row]:
    """Find the observation of each flight that took off, one flight after the other."""
    observed: dict[str, list[tuple[datetime, Row]]] = defaultdict(list)
    for line in _lines(weather):
        at = datetime.fromisoformat(line["time_hour"])
        observed[line["origin"]].append((at, (at, *(_number(line[name]) for name in _MEASURES))))
    times = {}
    for origin, observations in observed.items():
        observations.sort(key=lambda observation: observation[0])
        times[origin] = [at for at, _ in observations]
    for line in _lines(flights):
        if line["dep_delay"] == "NA":
            continue
        delay, clock = int(line["dep_delay"]), int(line["sched_dep_time"])
        day = datetime(int(line["year"]), int(line["month"]), int(line["day"]), tzinfo=_NEW_YORK)
        scheduled = day.replace(hour=clock // 100, minute=clock % 100).astimezone(UTC)
        take_off, origin = scheduled + timedelta(minutes=delay), line["origin"]
        place = bisect_right(times[origin], take_off) - 1
        answer: Row = (None,) * (1 + len(_MEASURES))
        if place >= 0 and take_off - times[origin][place] <= _REACH:
            answer = observed[origin][place][1]
        yield (take_off, line["carrier"], int(line["flight"]), origin, line["dest"], delay, *answer)


def difference(rows: Iterable[Row], expected: Iterable[Row]) -> str:
    """Return how rows differ from expected ones, each as often as it is there; empty if they do not."""
    counted, expected_rows = Counter(rows), Counter(expected)
    lacking, extra = expected_rows - counted, counted - expected_rows
    if not lacking and not extra:
        return ""
    first = next(iter(lacking or extra))
    return (
        f"{lacking.total():,} rows are missing from {TABLE}, and {extra.total():,} are there that should not be; the "
        f"first one: {first}"
    )


def _lines(folder: Path) -> Iterator[dict[str, str]]:
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


def _number(text: str) -> float | None:
    return None if text == "NA" else float(text)


def _row_of(row: Mapping[str, Any]) -> Row:
    of_flight = (row[name] for name in ("_timestamp", "carrier", "flight", "origin", "dest", "dep_delay"))
    return (*of_flight, row["time_hour"], *(row[name] for name in _MEASURES))


def _show_delays(rows: list[Row]) -> None:
    """Print how late flights left by how far one could see."""
    click.echo(f"\nDelays by how far one could see at the airport ({TABLE}):")
    click.echo("  miles          departures  mean_delay")
    for least, most in _BANDS:
        in_band = [
            row for row in rows if row[-1] is not None and least <= row[-1] and (most is None or row[-1] < most)
        ]
        name = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
        _show_band(name, in_band)
    _show_band("not observed", [row for row in rows if row[-1] is None])


def _show_band(name: str, rows: list[Row]) -> None:
    mean = sum(row[5] for row in rows) / len(rows) if rows else 0.0
    click.echo(f"  {name:<14} {len(rows):>10,}  {mean:>10.1f}")


if __name__ == "__main__":
    main()
