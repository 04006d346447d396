"""Micro-batches of a process that stays: seconds, Spark jobs and Delta commits: `python -m benchmarks.micro_batches`.

Here: making the input, running it, with few and with millions of events held. Not here: the pipeline.
"""

import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dagster import DagsterInstance
from rich.console import Console
from rich.table import Table

from tidemark.pipelines.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.spark.session import local_session, session_config

SPEC = """
name: micro
sources:
  - {name: rows, kind: files, path: in/*.parquet, format: parquet, schema: "at TIMESTAMP, k STRING, v BIGINT",
     arrival_time: at, settle: 0 s, order: position}
time: {timestamp_by: at, out_of_orderness: 30 days, out_of_order: keep}
windows:
  - {name: by_minute, kind: tumbling, size: 1 minute, group_by: [k],
     aggregates: {n: count(*), total: sum(v), least: min(v), most: max(v)}}
  - {name: hops, kind: hopping, size: 10 minutes, hop: 1 minute, aggregates: {n: count(*)}}
  - {name: by_session, kind: session, gap: 20 s, group_by: [k], aggregates: {n: count(*)}}
"""
LITTLE = "out_of_orderness: 5 s"
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Seen:
    """What stood when a batch was about to commit."""

    at_s: float
    jobs: int
    commits: int


def land(folder: Path, first: int, events: int, name: str) -> None:
    """Writes events ten milliseconds apart, of a hundred keys, each busy for five seconds; a file appears whole."""
    number = np.arange(first, first + events)
    start_us = int(START.timestamp()) * 1_000_000
    rows = pa.table(
        {
            "at": pa.array(start_us + number * 10_000, pa.timestamp("us", "UTC")),
            "k": pa.array(np.char.add("k", (number // 500 % 100).astype(str))),
            "v": pa.array(number % 997),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def run(root: Path, spec: str, held: int, batches: int, events: int) -> list[Seen]:
    """Runs the held events, then micro-batches one after the other; what stood before each commit of the latter."""
    (root / "micro.yaml").write_text(spec)
    file, settings = read_spec(root / "micro.yaml"), Settings(root / "warehouse", root, root / "home")
    seen: list[Seen] = []
    spark = local_session(session_config() | {"spark.master": "local[2]", "spark.driver.memory": "6g"})

    def tell(doing: str) -> None:
        if doing.endswith("committing"):
            jobs = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=0)
            commits = sum(1 for _ in settings.warehouse.glob("**/_delta_log/*.json"))
            seen.append(Seen(time.perf_counter(), jobs, commits))

    with DagsterInstance.ephemeral() as instance:
        if held:
            land(root / "in", 0, held, "held.parquet")
            run_pipeline(file, settings, RunOptions(), instance=instance)
        for number in range(batches):
            land(root / "in", held + number * events, events, f"{number:04}.parquet")
            run_pipeline(file, settings, RunOptions(), instance=instance, tell=tell)
    return seen


def row(name: str, seen: list[Seen]) -> tuple[str, ...]:
    """Medians of the steps from one commit to the next; the first batches warm up."""
    steps = [
        (after.at_s - before.at_s, after.jobs - before.jobs, after.commits - before.commits)
        for before, after in pairwise(seen)
    ][len(seen) // 3 :]
    seconds, jobs, commits = (median(column) for column in zip(*steps, strict=True))
    return name, f"{seconds:.2f}", f"{jobs:.0f}", f"{commits:.0f}"


@click.command()
@click.option("--batches", default=15, help="Micro-batches of each piece; the first third warms up.")
@click.option("--events", default=10_000, help="Events of a micro-batch.")
@click.option("--held", default=10_000_000, help="Events that are held all the while in the second piece.")
def main(batches: int, events: int, held: int) -> None:
    """Times both pieces, and prints the ratio."""
    table = Table("piece", "median s", "Spark jobs", "Delta commits", title=f"batches of {events:,} events")
    started = datetime.now(UTC)
    for name, spec, first in (
        ("few events held", SPEC.replace("out_of_orderness: 30 days", LITTLE), 0),
        ("few events held, 30 days behind", SPEC, 0),
        (f"{held:,} events held", SPEC, held),
    ):
        with tempfile.TemporaryDirectory() as folder:
            table.add_row(*row(name, run(Path(folder), spec, first, batches, events)))
    Console().print(table)
    click.echo(f"{(datetime.now(UTC) - started) // timedelta(seconds=1)} s in all")


if __name__ == "__main__":
    main()
