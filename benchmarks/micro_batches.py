"""Micro-batches of a process that stays: seconds, jobs, commits, bytes: `python -m benchmarks.micro_batches`."""

import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from dagster import DagsterInstance

from benchmarks.logs import land_busy_keys, spark_of_two_cores
from benchmarks.timing import INTO, Figure, Report
from tidemark.pipelines.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings

HOLDING = """
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
SPEC = HOLDING.replace("30 days", "5 s")


@dataclass(frozen=True)
class Seen:
    """Counts at the moment before a batch commits."""

    at_s: float
    jobs: int
    commits: int
    bytes: int


def run(root: Path, spec: str, held: int, batches: int, events: int) -> list[Seen]:
    """Runs the held events, then micro-batches one after the other; what stood before each commit of the latter."""
    (root / "micro.yaml").write_text(spec)
    file, settings = read_spec(root / "micro.yaml"), Settings(root / "warehouse", root, root / "home")
    seen: list[Seen] = []
    spark = spark_of_two_cores("6g")

    def tell(doing: str) -> None:
        if doing.endswith("committing"):
            jobs = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=0)
            commits = sum(1 for _ in settings.warehouse.glob("**/_delta_log/*.json"))
            stored = sum(path.stat().st_size for path in (root / "warehouse").rglob("*") if path.is_file())
            seen.append(Seen(time.perf_counter(), jobs, commits, stored))

    with DagsterInstance.ephemeral() as instance:
        if held:
            land_busy_keys(root / "in", 0, held, "held.parquet")
            run_pipeline(file, settings, RunOptions(), instance=instance)
        for number in range(batches):
            land_busy_keys(root / "in", held + number * events, events, f"{number:04}.parquet")
            run_pipeline(file, settings, RunOptions(), instance=instance, tell=tell)
    return seen


def figures(name: str, seen: list[Seen], *, aimed: bool) -> list[Figure]:
    """Steps from one commit to the next; the first half warms up, in which Java compiles what it runs most."""
    steps = list(pairwise(seen))[len(seen) // 2 :]
    aim_s, aim_jobs = (3.0, 14.0) if aimed else (None, None)
    return [
        Figure(name, [after.at_s - before.at_s for before, after in steps], aim=aim_s),
        Figure(name, [after.jobs - before.jobs for before, after in steps], unit="Spark jobs", aim=aim_jobs),
        Figure(name, [after.commits - before.commits for before, after in steps], unit="Delta commits"),
        Figure(name, [(after.bytes - before.bytes) / 1e3 for before, after in steps], unit="kB"),
    ]


@click.command()
@click.option("--batches", default=30, help="Micro-batches of each piece; the first half warms up.")
@click.option("--events", default=10_000, help="Events of a micro-batch.")
@click.option("--held", default=0, help="Also time batches while so many events are held, 30 days behind: 10000000.")
@INTO
def main(batches: int, events: int, held: int, into: Path | None) -> None:
    """Times the batches of each piece."""
    pieces = [("few events held", SPEC, 0)]
    if held:
        pieces += [("few events held, 30 days behind", HOLDING, 0), (f"{held:,} events held", HOLDING, held)]
    title = f"micro-batches of {events:,} events, three windows, warm Spark"
    report = Report(title, about={"batches": batches, "events": events})
    for name, spec, first in pieces:
        with tempfile.TemporaryDirectory() as folder:
            seen = run(Path(folder), spec, first, batches, events)
        report.figures += figures(name, seen, aimed=spec == SPEC)
    report.save(into)


if __name__ == "__main__":
    main()
