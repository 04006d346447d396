"""As-of joins: cold against other systems, warm against no join, and their state: `python -m benchmarks.joins`.

Here: the events of both sides, the two pipelines, what is timed. Not here: how commands are watched (cold.py), the
other systems (peers).

Events of the left side come every 10 ms, the ones of the right side every 100 ms. Both name one of 10,000 keys and
come up to 5 seconds after their time, which is the out-of-orderness. So none is late, and all systems find the same.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from dagster import DagsterInstance
from deltalake import DeltaTable

from benchmarks.cold import TIDEMARK, Cold, run_cold, tidemark_run
from benchmarks.logs import JITTER_MS, STEP_MS, spark_of_two_cores
from benchmarks.micro_batches import SPEC as THREE_WINDOWS
from benchmarks.peers import AS_OF
from benchmarks.timing import BUDGET, INTO, LOGS, Figure, Report, within
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.settings import Settings

KEYS = 10_000
LEFT_PER_RIGHT = 10
FILES = 8
COLD_AIM, WARM_AIM = 1.3, 1.25
WITH, WITHOUT = "with the join", "without it"
FOLDERS = {WITHOUT: "without", WITH: "with"}
STATE_AFTER = (25, 50, 75, 100)
WARM_FROM = 10  # the first batches warm up: Java compiles what it runs most
NAME = "joined"
JOIN = "priced"

_START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_SOURCES = """
name: {name}
sources:
  - {{name: trades, kind: files, path: "{files}/left/*.parquet", format: parquet, settle: 0 s, arrival_time: at,
     schema: "t TIMESTAMP, k STRING, v BIGINT, at TIMESTAMP"}}
  - {{name: quotes, kind: files, path: "{files}/right/*.parquet", format: parquet, settle: 0 s, arrival_time: at,
     schema: "t TIMESTAMP, k STRING, bid BIGINT, at TIMESTAMP"}}
time: {{timestamp_by: t, out_of_orderness: {jitter} ms, out_of_order: drop}}
"""
_JOINS = f"""
joins:
  - {{name: {JOIN}, kind: as_of, left: {{source: trades}}, right: {{source: quotes}}, on: [k], within: 1 hour,
     how: left}}
"""


def land(folder: Path, name: str, side: str, first: int, events: int) -> None:
    """Writes events of a side, from some number on, to a file of a folder; the file appears whole."""
    number = np.arange(first, first + events, dtype=np.int64)
    chance = np.random.default_rng([first, ("left", "right").index(side)])
    step_us = STEP_MS * 1_000 * (LEFT_PER_RIGHT if side == "right" else 1)
    arrival_us = _START_US + number * step_us
    instant = pa.timestamp("us", "UTC")
    rows = pa.table(
        {
            "t": pa.array(arrival_us - chance.integers(0, JITTER_MS * 1_000, events), instant),
            "k": pa.array(np.char.add("k", chance.integers(0, KEYS, events).astype(str))),
            "v" if side == "left" else "bid": pa.array(chance.integers(0, 100_000, events)),
            "at": pa.array(arrival_us, instant),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def files_of(folder: Path, events: int) -> Path:
    """Return a folder with files of both sides, `left` and `right`; made unless it is there."""
    path = folder / f"joins_{events}"
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for side, many in (("left", events), ("right", events // LEFT_PER_RIGHT)):
            bounds = [many * part // FILES for part in range(FILES + 1)]
            for part, first in enumerate(bounds[:-1]):
                land(unfinished / side, f"{part}.parquet", side, first, bounds[part + 1] - first)
        unfinished.rename(path)
    return path


def write_spec(folder: Path, files: Path | str, *, joined: bool, windows: bool = False) -> Path:
    """Writes the spec of a pipeline over both sides, with the join or without; perhaps with three windows."""
    text = _SOURCES.format(name=NAME, files=files, jitter=JITTER_MS) + (_JOINS if joined else "")
    if windows:
        text += THREE_WINDOWS[THREE_WINDOWS.index("windows:") :]
    path = folder / f"{NAME}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def cold(files: Path, folder: Path, rounds: int, budget_s: float) -> dict[str, list[Cold]]:
    """Runs the peers and both pipelines from cold in turns; the rows of the last round are compared."""
    work, peers = folder / "joins", [peer for peer in AS_OF if peer.installed]
    taken: dict[str, list[Cold]] = {name: [] for name in (*(peer.title for peer in peers), WITHOUT, WITH)}
    for _ in within(budget_s, rounds):
        shutil.rmtree(work, ignore_errors=True)
        for peer in peers:
            out = work / peer.title
            out.mkdir(parents=True)
            taken[peer.title].append(run_cold(peer.command(files, "parquet", out), out))
        for name, folder_name in FOLDERS.items():
            out = work / folder_name
            out.mkdir(parents=True)
            spec = write_spec(out, files, joined=name == WITH)
            taken[name].append(run_cold(tidemark_run(TIDEMARK, spec.name), out))
    ours = _answers(work / FOLDERS[WITH])
    for peer in peers:
        _ensure_equal(ours, ds.dataset(work / peer.title / "joined.parquet").to_table(["t", "bid"]), peer.title)
    shutil.rmtree(work)
    return taken


def _answers(work: Path) -> pa.Table:
    table = work / "warehouse" / NAME / tables.join_table(JOIN)
    return DeltaTable(table).to_pyarrow_table(columns=["t", "bid"])


def _ensure_equal(ours: pa.Table, its: pa.Table, title: str) -> None:
    """Checks the numbers of rows and of partners, and what the partners add up to, as far as answers were due."""
    last = pc.max(ours["t"])
    its = its.filter(pc.less_equal(its["t"], last))
    mine, other = (
        (rows.num_rows, pc.count(rows["bid"]).as_py(), pc.sum(rows["bid"]).as_py()) for rows in (ours, its)
    )
    if mine != other:
        said = f"{title} found {other} (rows, partners, what they add up to); expected {mine}, as Tidemark did"
        raise click.ClickException(said)


def cold_report(taken: dict[str, list[Cold]], events: int) -> Report:
    """Seconds and peak memory of each; the pipeline with the join is compared with both others together."""
    right = events // LEFT_PER_RIGHT
    report = Report(f"an as-of join of {events:,} events with {right:,}, {KEYS:,} keys, cold commands")
    without = [run.seconds for run in taken[WITHOUT]]
    sums = {}
    for peer in AS_OF:
        runs = taken.get(peer.title, [])
        note = "" if runs else "not installed: make bench-peers"
        report.figures.append(Figure(peer.title, [run.seconds for run in runs], note=note))
        if runs:
            both = [mine + run.seconds for mine, run in zip(without, runs, strict=True)]
            sums[f"{WITHOUT}, and {peer.title}"] = both
    report.figures.append(Figure(WITHOUT, without))
    report.figures += [Figure(name, values) for name, values in sums.items()]
    seconds = [run.seconds for run in taken[WITH]]
    for name in sums:
        report.figures.append(Figure(WITH, seconds, against=name, aim=COLD_AIM, note=f"against the pipeline {name}"))
    if not sums:
        report.figures.append(Figure(WITH, seconds, against=WITHOUT))
    for name, runs in taken.items():
        against = WITHOUT if name == WITH else None
        report.figures.append(Figure(name, [run.peak_gb for run in runs], unit="GB at its peak", against=against))
    return report


def warm(batches: int, events: int, *, windows: bool) -> Report:
    """Times micro-batches with the join and without, in turns, in one process that stays; and measures the state."""
    title = f"micro-batches of {events:,} events, {'three windows' if windows else 'no windows'}, warm Spark"
    report = Report(title, about={"batches": batches, "batch_events": events})
    spark_of_two_cores("6g")
    seconds: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    state: list[Figure] = []
    with tempfile.TemporaryDirectory() as name, DagsterInstance.ephemeral() as instance:
        roots = {one: Path(name) / folder for one, folder in FOLDERS.items()}
        for one, root in roots.items():
            root.mkdir()
            write_spec(root, "in", joined=one == WITH, windows=windows)
        for batch in range(batches):
            for one, root in roots.items():
                _land_batch(root / "in", batch, events)
                began = time.perf_counter()
                settings = Settings(root / "warehouse", root, root / "home")
                run_pipeline(read_spec(root / f"{NAME}.yaml"), settings, RunOptions(), instance=instance)
                seconds[one].append(time.perf_counter() - began)
            if batch + 1 in STATE_AFTER:
                state += _state(roots[WITH], batch + 1)
    first = min(WARM_FROM, batches // 2)
    report.figures.append(Figure(WITHOUT, seconds[WITHOUT][first:]))
    report.figures.append(Figure(WITH, seconds[WITH][first:], against=WITHOUT, aim=WARM_AIM))
    report.figures += state
    return report


def _land_batch(folder: Path, batch: int, events: int) -> None:
    """Writes one batch: of eleven events ten are of the left side."""
    right = events // (LEFT_PER_RIGHT + 1)
    for side, many in (("left", right * LEFT_PER_RIGHT), ("right", right)):
        land(folder / side, f"{batch:04}.parquet", side, batch * many, many)


def _state(root: Path, batches: int) -> Iterator[Figure]:
    """Measure what the join keeps after so many batches: rows, and bytes of the files of the newest version."""
    table = root / "warehouse" / NAME / tables.joining_table(JOIN)
    files = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    yield Figure(f"state after {batches} batches", [pc.sum(files["num_records"]).as_py() or 0], unit="rows")
    yield Figure(f"state after {batches} batches", [(pc.sum(files["size_bytes"]).as_py() or 0) / 1e3], unit="kB")


@click.command()
@click.option("--events", default=10_000_000, help="Events of the left side; there are a tenth as many on the right.")
@click.option("--rounds", default=3, help="How often each cold command runs; 0: not at all.")
@click.option("--batches", default=100, help="Micro-batches of both pipelines, with nothing but the join; 0: none.")
@click.option("--windowed", default=30, help="Micro-batches of both pipelines with three windows; 0: none.")
@click.option("--batch-events", default=10_000, help="Events of a micro-batch, of both sides.")
@LOGS
@BUDGET
@INTO
def main(
    *,
    events: int,
    rounds: int,
    batches: int,
    windowed: int,
    batch_events: int,
    logs: Path,
    budget: float,
    into: Path | None,
) -> None:
    """Runs the join from cold and in micro-batches, and prints the ratios."""
    reports = []
    if rounds:
        folder = logs.absolute()
        reports.append(cold_report(cold(files_of(folder, events), folder, rounds, budget), events))
    for many, has_windows in ((batches, False), (windowed, True)):
        if many:
            reports.append(warm(many, batch_events, windows=has_windows))
    if not reports:
        raise click.UsageError("Nothing to measure; expected --rounds, --batches or --windowed above 0")
    for report in reports:
        report.save(None)
    if into is not None:
        shown = [report.as_json() for report in reports]
        into.write_text(json.dumps(shown, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
