"""Micro-batches of a process that stays: seconds, jobs, commits, bytes: `python -m benchmarks.micro_batches`.

Then the same files in Structured Streaming, in the same session: a query for the raw table and one for each window,
which run until all files are read. Its seconds are from a file to the commit of the last query, and Tidemark's from
one commit to the next.
"""

import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from dagster import DagsterInstance
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.logs import land_busy_keys, spark_of_two_cores
from benchmarks.timing import INTO, Figure, Report
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
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
SCHEMA = "at TIMESTAMP, k STRING, v BIGINT"
STREAMED = "Structured Streaming, file to commit"


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


def stream(root: Path, batches: int, events: int) -> list[float]:
    """Runs micro-batches one after the other in Structured Streaming; the seconds of each."""
    land_busy_keys(root / "in", 0, events, "0000.parquet")
    spark = spark_of_two_cores("6g")
    rows = spark.readStream.schema(SCHEMA).parquet(str(root / "in"))
    timed, n = rows.withWatermark("at", "5 seconds"), F.count("*").alias("n")

    def written(name: str, table: DataFrame) -> StreamingQuery:
        options = {"checkpointLocation": str(root / "checkpoints" / name)}
        return table.writeStream.format("delta").options(**options).start(str(root / "tables" / name))

    def grouped(window: Column, *aggregates: Column, by_key: bool = True) -> DataFrame:
        return timed.groupBy(window, *(["k"] if by_key else [])).agg(n, *aggregates)

    v = F.sum("v").alias("total"), F.min("v").alias("least"), F.max("v").alias("most")
    queries = [
        written("rows", rows),
        written("by_minute", grouped(F.window("at", "1 minute"), *v)),
        written("hops", grouped(F.window("at", "10 minutes", "1 minute"), by_key=False)),
        written("by_session", grouped(F.session_window("at", "20 seconds"))),
    ]
    taken = []
    for number in range(batches):
        if number:
            land_busy_keys(root / "in", number * events, events, f"{number:04}.parquet")
        start = time.perf_counter()
        for query in queries:
            query.processAllAvailable()
        taken.append(time.perf_counter() - start)
    for query in queries:
        query.stop()
    return taken


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
@click.option("--peer/--no-peer", default=True, help="Also time Structured Streaming.")
@INTO
def main(*, batches: int, events: int, held: int, peer: bool, into: Path | None) -> None:
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
    if peer:
        with tempfile.TemporaryDirectory() as folder:
            taken = stream(Path(folder), batches, events)
        [ours, *_] = report.figures
        report.figures.append(Figure(STREAMED, taken[batches // 2 :]))
        report.figures.append(Figure(ours.work, ours.values, against=STREAMED, note="against Structured Streaming"))
    report.save(into)


if __name__ == "__main__":
    main()
