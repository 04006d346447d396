"""Files to tables, the whole command from cold, against Structured Streaming: `python -m benchmarks.end_to_end`.

Here: making the files, the commands, their seconds and memory. Not here: the work of a warm process (windows.py).
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import click
import psutil
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from benchmarks.logs import JITTER_MS, log_of
from tidemark.resources.spark.session import local_session, session_config

FILES = 8
WITHOUT = "tidemark run, without ordered_events"
WITH = "tidemark run, all tables and checks"
PEER = "Structured Streaming"
SPEC = """
name: cold
sources:
  - {{name: s, kind: files, path: {files}/*, format: {format}, settle: 0 s, arrival_time: at,
     schema: "t TIMESTAMP, k STRING, v DOUBLE, at TIMESTAMP"}}
time: {{timestamp_by: t, out_of_orderness: {jitter} ms, out_of_order: drop}}
windows:
  - {{name: w, kind: tumbling, size: 1 minute, group_by: [k],
     aggregates: {{n: count(*), total: sum(v), lowest: min(v), highest: max(v), mean: avg(v)}}}}
outputs: {{ordered_events: {ordered}}}
"""
STREAMING = """
import sys
from pyspark.sql import functions as F
from tidemark.resources.spark.session import local_session, session_config
files, kind, out, jitter = sys.argv[1:]
spark = local_session(session_config() | {"spark.master": "local[2]"})
events = spark.readStream.format(kind).schema("t TIMESTAMP, k STRING, v DOUBLE, at TIMESTAMP").load(files)
found = (events.withWatermark("t", jitter + " milliseconds").groupBy(F.window("t", "1 minute"), "k")
    .agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.min("v").alias("lowest"), F.max("v").alias("highest"),
         F.avg("v").alias("mean")))
(found.writeStream.format("delta").outputMode("append").option("checkpointLocation", out + "/checkpoint")
    .trigger(availableNow=True).start(out + "/windows").awaitTermination())
"""


def make_files(folder: Path, events: int, kind: str) -> Path:
    """The events in files one after another, as their arrivals are; made unless they are there."""
    path = folder / f"files_{events}_{kind}"
    if not path.exists():
        spark = local_session(session_config() | {"spark.master": "local[2]", "spark.driver.memory": "4g"})
        log = log_of(spark, folder, events, 1_000).select(
            "t", "k", "v", F.col("_arrival_time").alias("at"), "_arrival_seq"
        )
        parts = (
            log.repartitionByRange(FILES, "_arrival_seq").sortWithinPartitions("_arrival_seq").drop("_arrival_seq")
        )
        writer = parts.write.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
        writer.format(kind).save(f"{path}.unfinished")
        spark.stop()
        for extra in Path(f"{path}.unfinished").glob("[._]*"):
            extra.unlink()
        Path(f"{path}.unfinished").rename(path)
    return path


def run_cold(command: Sequence[str], cwd: Path) -> tuple[float, float]:
    """Runs a command; returns its seconds, and the most memory that it and its children had at once, GB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks = [0]
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), peaks), daemon=True)
    watcher.start()
    said, _ = process.communicate()
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with exit code {process.returncode}:\n{said}")
    return time.perf_counter() - start, max(peaks) / 1e9


def _watch(process: psutil.Process, peaks: list[int]) -> None:
    while process.is_running():
        with suppress(psutil.NoSuchProcess):  # one of them ended while they were counted
            peaks.append(sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]))
        time.sleep(0.2)


@click.command()
@click.option("--events", default=10_000_000, help="How many events.")
@click.option("--rounds", default=3, help="How often each command runs.")
@click.option("--format", "kind", type=click.Choice(["parquet", "json"]), default="parquet", help="Of the files.")
@click.option("--tidemark", default=str(Path(sys.executable).with_name("tidemark")), help="The command to measure.")
@click.option("--logs", default="benchmarks/.logs", type=click.Path(path_type=Path), help="Where files are kept.")
@click.option("--json", "into", type=click.Path(path_type=Path), help="Also write the figures to this file.")
def main(*, events: int, rounds: int, kind: str, tidemark: str, logs: Path, into: Path | None) -> None:
    """Runs each command from cold in turns, and prints the ratios to the peer's."""
    folder = logs.absolute()
    files, work = make_files(folder, events, kind), folder / "end_to_end"
    taken: dict[str, list[tuple[float, float]]] = {PEER: [], WITHOUT: [], WITH: []}
    for _ in range(rounds):
        for name, measured in taken.items():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            measured.append(run_cold(_command(name, files, kind, tidemark, work), work))
    shutil.rmtree(work)
    table = Table(
        "", "s", "from", "to", "ratio", "peak GB", "ratio", title=f"{events:,} events, {kind}, 2 cores, cold"
    )
    figures = {}
    peer_s, peer_gb = (median(column) for column in zip(*taken[PEER], strict=True))
    for name, measured in taken.items():
        seconds, peaks = zip(*measured, strict=True)
        ratio, peak_ratio = median(seconds) / peer_s, median(peaks) / peer_gb
        figures[name] = {"seconds": seconds, "ratio": ratio, "peak_gb": peaks, "peak_ratio": peak_ratio}
        spread = [f"{one:.1f}" for one in (median(seconds), min(seconds), max(seconds))]
        table.add_row(name, *spread, f"{ratio:.2f}", f"{median(peaks):.2f}", f"{peak_ratio:.2f}")
    Console().print(table)
    if into is not None:
        about = {"events": events, "format": kind, "rounds": rounds, "commands": figures}
        into.write_text(json.dumps(about, indent=2), encoding="utf-8")


def _command(name: str, files: Path, kind: str, tidemark: str, work: Path) -> list[str]:
    if name == PEER:
        return [sys.executable, "-W", "ignore", "-c", STREAMING, str(files), kind, str(work), str(JITTER_MS)]
    ordered = "true" if name == WITH else "false"
    spec = SPEC.format(files=files, format=kind, jitter=JITTER_MS, ordered=ordered)
    (work / "cold.yaml").write_text(spec, encoding="utf-8")
    return [tidemark, "run", "cold.yaml", "--warehouse", "warehouse"]


if __name__ == "__main__":
    main()
