"""Many small batches with and without `tidemark maintain`: files, bytes, seconds: `python -m benchmarks.upkeep`.

`--long` is a pipeline that runs for long: a thousand batches with upkeep, the last hundred of them in turns with
batches 50 to 150 of a young one, so that other work on the machine meets both alike.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import click
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from dagster import DagsterInstance

from benchmarks.growth import live_heap_mb
from tidemark.pipelines.code_location import upkeep
from tidemark.pipelines.code_location.upkeep import maintain
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.delta.upkeep import size_of
from tidemark.resources.settings import Settings, use_dagster_home
from tidemark.resources.spark.session import local_session, session_config
from tidemark.resources.tables import BATCHES
from tidemark.resources.workspace import SpecFile, Workspace

SPEC = """
name: {name}
sources:
  - {{name: rows, kind: files, path: in/*.parquet, format: parquet, schema: "at TIMESTAMP, k STRING, v BIGINT",
     arrival_time: at, settle: 0 s, order: position}}
time: {{timestamp_by: at, out_of_orderness: 1 minute, out_of_order: drop}}
windows:
  - {{name: by_minute, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = 100  # of a batch, a second apart


@dataclass
class Side:
    """One of the two pipelines; seconds of its batches and of its upkeep."""

    file: SpecFile
    settings: Settings
    instance: DagsterInstance
    took: list[float] = field(default_factory=list)
    looked_after: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Runs the pipeline once."""
        start = time.perf_counter()
        run_pipeline(self.file, self.settings, RunOptions(), instance=self.instance)
        self.took.append(time.perf_counter() - start)

    def look_after(self) -> None:
        """Joins files, and deletes all that the last commit does not need."""
        start = time.perf_counter()
        maintain(self.file, self.settings, timedelta(0), instance=self.instance)
        self.looked_after.append(time.perf_counter() - start)

    def line(self, last: int) -> str:
        """Return what its tables take, and the median of its last batches."""
        workspace = Workspace(self.file, self.settings.warehouse)
        sizes = [size_of(workspace.lake, table) for table in (*workspace.tables, BATCHES)]
        runs = sum(path.stat().st_size for path in self.settings.dagster_home.rglob("*") if path.is_file())
        spent = f"{median(self.looked_after):6.1f}" if self.looked_after else " " * 6
        return (
            f"{sum(one.files for one in sizes):7,} {sum(one.stored for one in sizes):7,}"
            f" {sum(one.stored_bytes for one in sizes) / 1e6:8.1f} {sum(one.log_bytes for one in sizes) / 1e6:8.1f}"
            f" {runs / 1e6:8.1f} {median(self.took[-last:]):7.2f} {spent}"
            f" {psutil.Process().memory_info().rss / 1e6:9.0f} {live_heap_mb():8.0f}"
        )


def land(folder: Path, number: int) -> None:
    """Writes the events of a batch; the file appears whole."""
    start_us = int(START.timestamp()) * 1_000_000
    at = [start_us + (number * EVENTS + i) * 1_000_000 for i in range(EVENTS)]
    rows = {"at": pa.array(at, pa.timestamp("us", "UTC")), "k": [f"k{i % 5}" for i in range(EVENTS)]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"f{number:05}.parquet"
    pq.write_table(pa.table(rows | {"v": list(range(EVENTS))}), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def sides(root: Path, *names: str) -> Sequence[Side]:
    """Return the same pipeline under each name, over the same input."""
    made = []
    for name in names:
        root.mkdir(exist_ok=True)
        path = root / f"{name}.yaml"
        path.write_text(SPEC.format(name=name))
        home = root / f"home_{name}"
        use_dagster_home(home)
        made.append(
            Side(read_spec(path), Settings(root / "warehouse", root, home), DagsterInstance.from_config(str(home)))
        )
    return made


def compare(root: Path, batches: int, every: int) -> None:
    """Run one side with upkeep and one without, in turns."""
    both = sides(root, "without", "maintained")
    for number in range(batches):
        land(root / "in", number)
        for side in both:
            side.run()
        if (number + 1) % every == 0:
            both[1].look_after()
            for side in both:
                click.echo(f"{number + 1:5} {side.file.spec.name:>11}   {side.line(every)}")


def run_for_long(root: Path, batches: int, every: int) -> None:
    """Run a pipeline with upkeep, and beside its last hundred batches the first ones of a young pipeline."""
    [old] = sides(root, "old")
    for number in range(batches - 100):
        land(root / "in", number)
        _run(old, number, every)
    [young] = sides(root / "young_one", "young")
    for number in range(150):
        land(root / "young_one" / "in", number)
        _run(young, number, every)
        if number >= 50:
            land(root / "in", batches - 150 + number)
            _run(old, batches - 150 + number, every)
    last, first = median(old.took[-100:]), median(young.took[-100:])
    click.echo(f"last hundred {last:.2f} s, batches 50 to 150 of the young one {first:.2f} s: {last / first:.2f}")


def _run(side: Side, number: int, every: int) -> None:
    side.run()
    if (number + 1) % every == 0:
        side.look_after()
        click.echo(f"{number + 1:5} {side.file.spec.name:>11}   {side.line(every)}")


@click.command()
@click.option("--batches", default=300, help="Of each side.")
@click.option("--every", default=25, help="So many batches are between two upkeeps, and two lines.")
@click.option("--long", "is_long", is_flag=True, help="Compare an old pipeline with a young one, both with upkeep.")
def main(batches: int, every: int, is_long: bool) -> None:
    """Run the sides, and print their state every so often."""
    upkeep.LEAST = timedelta(0)  # a benchmark does not wait an hour for files to be old
    local_session(session_config())
    click.echo(
        "               of the latest  stored  data MB   log MB  runs MB  s/batch  s/upkeep python MB  heap MB"
    )
    with tempfile.TemporaryDirectory() as folder:
        (run_for_long if is_long else compare)(Path(folder), batches, every)


if __name__ == "__main__":
    main()
