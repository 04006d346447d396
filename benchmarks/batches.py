"""A hundred equal micro-batches of a pipeline: bytes read and seconds of each: `python -m benchmarks.batches`."""

import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
import psutil
from dagster import DagsterInstance
from rich.console import Console
from rich.table import Table

from benchmarks.logs import land_lines
from benchmarks.machine import family
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings

SPEC = """
name: equal
sources:
  - {name: lines, kind: files, path: in/*.jsonl, format: json, schema: "at STRING, k STRING, v INT", arrival_time: at,
     settle: 0 s, order: position}
time: {timestamp_by: at, out_of_orderness: 5 s, over: [k]}
windows:
  - {name: per_minute, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
"""


def bytes_read() -> int:
    """Return the bytes that this process and its children have read so far, from disk or the kernel's cache."""
    total = 0
    for process in family():
        with suppress(psutil.Error):  # it has ended meanwhile
            total += process.io_counters().read_chars
    return total


@click.command()
@click.option("--batches", default=100, help="How many micro-batches.")
@click.option("--events", default=500, help="Events of each.")
def main(batches: int, events: int) -> None:
    """Runs them one after the other in this process, and prints them by tens."""
    seen: list[tuple[float, int]] = []

    def tell(doing: str) -> None:
        if doing.endswith("committing"):
            seen.append((time.perf_counter(), bytes_read()))

    with tempfile.TemporaryDirectory() as name, DagsterInstance.ephemeral() as instance:
        root = Path(name)
        (root / "equal.yaml").write_text(SPEC)
        start, step = datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=1)
        land_lines(root / "in" / "all.jsonl", start, step, batches * events)
        settings = Settings(root / "warehouse", root, root / "home")
        options = RunOptions(max_events_per_batch=events)
        run_pipeline(read_spec(root / "equal.yaml"), settings, options, instance=instance, tell=tell)
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(seen)]
    table = Table("batches", "median s", "median MB read", title=f"{batches} batches of {events:,} events")
    for first in range(0, len(steps), 10):
        ten = steps[first : first + 10]
        table.add_row(
            f"{first + 2} to {first + 1 + len(ten)}",
            f"{median(taken for taken, _ in ten):.2f}",
            f"{median(read for _, read in ten) / 1e6:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
