"""`python -m examples.kafka.demo`: the flights of the demo through Kafka, and what partitions change.

Here: the topic and its records, two pipelines over it, and the comparison with the demo from files. Not here: the
broker (broker.py), the demo from files (pipelines/demos/flights.py), the run (pipelines/cli.py,
pipelines/running/runner.py).
"""
# ruff: noqa: PLC0415 - words before the seconds that Dagster and Spark take to import

import csv
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from examples.kafka.broker import running
from tidemark.pipelines.cli import run_all
from tidemark.pipelines.command_line import in_words, settings_of
from tidemark.pipelines.demos.flights import LANDING, SPEC, flight_lines, land_flights
from tidemark.resources.places.place import remove_tree
from tidemark.resources.tables import DEAD_LETTERS
from tidemark.resources.workspace import Workspace

TOPIC = "departures"
PARTITIONS = 4
_BUSY = ("UA", "B6", "EV", "DL")
_WINDOW = "windows/departures_1h"
_ZONE = ZoneInfo("America/New_York")
_INTRODUCTION = """\
The flights of the demo, each as a record of Kafka that is stamped when it really took off. The topic has four
partitions: four airlines, with two thirds of all flights, share partition 0, the others are spread over 1 and 2, and
nothing ever comes to 3. Two pipelines read it: one takes all partitions for one stream, as the files of `make demo`
are, the other takes each partition for a split, which is what a source of Kafka does by itself.
"""
_SPEC = """\
name: {name}
sources:
  - name: departures
    kind: kafka
    bootstrap_servers: {address}
    topics: [{topic}]
    format: json
    schema: "scheduled STRING, dep_delay INT, carrier STRING, flight INT, origin STRING, dest STRING"
    {split}
time:
  timestamp_by: scheduled
  time_zone: America/New_York
  out_of_orderness: 3 hours
  {idle}
windows:
  - name: departures_1h
    kind: tumbling
    size: 1 hour
    group_by: [origin]
    aggregates: {{departures: count(*), mean_delay: avg(dep_delay), p95_delay: "percentile(dep_delay, 0.95)"}}
partitions: {{start: 2013-01-01, time_zone: America/New_York}}
"""


@dataclass(frozen=True)
class Departure:
    """A flight that took off.

    Attributes:
        at_ms: The time, milliseconds since the epoch; flights of one minute differ in their milliseconds, in the
            order of the files.
        partition: The partition of its airline.
        value: The value of the record.
    """

    at_ms: int
    partition: int
    value: bytes


def main() -> None:
    """Start a broker, play the flights, run both pipelines and print what came out."""
    with in_words():
        from tidemark.pipelines.running.runner import RunOptions
        from tidemark.pipelines.spec_files import read_spec

        click.echo(_INTRODUCTION)
        land_flights(LANDING)
        settings = settings_of()
        files = read_spec(SPEC)
        if not _is_done(Workspace(files, settings.warehouse)):
            click.echo("First the demo from files, to compare with.")
            _stop_if_failed(run_all([files], settings, RunOptions()))
        folder = Path(tempfile.mkdtemp(prefix="tidemark-kafka-"))
        try:
            click.echo("starting a broker of Kafka on this machine (the first time it is downloaded)")
            with running(folder) as broker:
                specs = {name: read_spec(path) for name, path in _write_specs(folder, broker.address).items()}
                for file in specs.values():
                    remove_tree(settings.warehouse / file.spec.name)  # of another broker
                departures = sorted(_departures(), key=lambda one: one.at_ms)
                half = len(departures) // 2
                for part in (departures[:half], departures[half:]):
                    _play(broker.address, part)
                    _stop_if_failed(run_all([specs["flights_by_partition"]], settings, RunOptions(live=True)))
                _stop_if_failed(run_all([specs["flights_as_one"]], settings, RunOptions()))
                _compare([Workspace(file, settings.warehouse) for file in (files, *specs.values())])
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_done(workspace: Workspace) -> bool:
    return workspace.exists and workspace.progress.processed_end() > 0


def _stop_if_failed(status: int) -> None:
    if status:
        sys.exit(status)  # the failure is shown above


def _write_specs(folder: Path, address: str) -> dict[str, Path]:
    """Write the specs of both pipelines; return them by name."""
    idle = "idle: {advance: exclude_split, timeout: 6 hours}   # else the silent partition would hold back everything"
    given = {"flights_as_one": ("split: \"'all'\"", ""), "flights_by_partition": ("", idle)}
    paths = {}
    for name, (split, rule) in given.items():
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_text(_SPEC.format(name=name, address=address, topic=TOPIC, split=split, idle=rule))
    return paths


def _departures() -> Iterator[Departure]:
    """Return the flights that took off, in the order of the files."""
    in_minute: Counter[int] = Counter()
    found: list[tuple[datetime, int, int, Mapping[str, str]]] = []
    for line, row in enumerate(csv.DictReader(flight_lines())):
        if row["dep_delay"] != "NA":
            scheduled = _scheduled(row)
            found.append((scheduled + timedelta(minutes=int(row["dep_delay"])), int(row["month"]), line, row))
    for at, _, _, flight in sorted(found, key=lambda one: one[:3]):
        at_ms = int(at.timestamp()) * 1_000
        value = {
            "scheduled": f"{_local(flight):%Y-%m-%dT%H:%M:%S}",
            **{name: int(flight[name]) for name in ("dep_delay", "flight")},
            **{name: flight[name] for name in ("carrier", "origin", "dest")},
        }
        partition = 0 if flight["carrier"] in _BUSY else 1 + sum(flight["carrier"].encode()) % 2
        yield Departure(at_ms + in_minute[at_ms], partition, json.dumps(value).encode())
        in_minute[at_ms] += 1


def _local(row: Mapping[str, str]) -> datetime:
    """Return the schedule by the clocks of New York."""
    time = int(row["sched_dep_time"])
    year, month, day = int(row["year"]), int(row["month"]), int(row["day"])
    return datetime(year, month, day, time // 100, time % 100)  # noqa: DTZ001 - a reading of clocks, as in the files


def _scheduled(row: Mapping[str, str]) -> datetime:
    return _local(row).replace(tzinfo=_ZONE).astimezone(UTC)


def _play(address: str, departures: Sequence[Departure]) -> None:
    """Write records to the topic, which is made if need be."""
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    made = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        made.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "log_level": 0})
    for one in departures:
        while True:
            try:
                producer.produce(TOPIC, value=one.value, partition=one.partition, timestamp=one.at_ms)
                break
            except BufferError:  # it is faster than the broker
                producer.poll(0.5)
    producer.flush()
    counts = Counter(one.partition for one in departures)
    said = ", ".join(f"{counts[number]:,} to partition {number}" for number in range(PARTITIONS))
    click.echo(f"played {len(departures):,} departures: {said}")


def _compare(workspaces: Sequence[Workspace]) -> None:
    """Compare the results of the three pipelines for the same flights."""
    files, as_one, by_partition = map(_results, workspaces)
    click.echo("\n                                     from files    Kafka, one stream    Kafka, by partition")
    for what, name in (("taken off", "taken"), ("out of order, refused", "late"), ("rows of departures_1h", "rows")):
        numbers = [getattr(one, name) for one in (files, as_one, by_partition)]
        click.echo(f"{what:<32}{numbers[0]:>15,}{numbers[1]:>21,}{numbers[2]:>23,}")
    same = "equal" if as_one == files else "NOT equal"
    click.echo(f"\nOne stream: refused flights and windows are {same} to those of the files, row by row.")
    both = files.windows.keys() & by_partition.windows.keys()
    differ = sum(files.windows[key] != by_partition.windows[key] for key in both)
    click.echo(
        f"By partition: {files.late - by_partition.late:,} fewer flights are out of order, as the watermark follows "
        f"the slowest partition; so {differ:,} of the {len(both):,} windows that both have differ. Partition 3 is "
        "left out once it was silent for 6 hours."
    )
    if as_one != files:
        sys.exit(1)


@dataclass(frozen=True)
class _Results:
    """The results of a pipeline for the flights that took off.

    Attributes:
        taken: How many of them are in the log.
        late: How many are out of order.
        windows: The rows of windows, by start and airport.
    """

    taken: int
    late: int
    windows: Mapping[tuple[object, str], tuple[Any, ...]]

    @property
    def rows(self) -> int:
        """How many rows of windows there are."""
        return len(self.windows)


def _results(workspace: Workspace) -> _Results:
    lake = workspace.lake
    refused = lake.rows(DEAD_LETTERS, workspace.base_of(DEAD_LETTERS), columns=["reason"])
    letters = Counter(refused["reason"].to_pylist())
    rows = lake.rows(_WINDOW, workspace.base_of(_WINDOW)).to_pylist()
    return _Results(
        workspace.progress.processed_end() - letters["no_arrival_time"],
        letters["out_of_order"],
        {(row["window_start"], row["origin"]): _numbers(row) for row in rows},
    )


def _numbers(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a window holds; an average depends on the order of adding in its last digits."""
    return row["departures"], round(row["mean_delay"], 9), round(row["p95_delay"], 9)


if __name__ == "__main__":
    main()
