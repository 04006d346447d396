"""Rows that are wrong and events that are lost, of each system in three runs: `python -m benchmarks.right_answers`.

Here: the systems, and how their runs differ, as two pick-ups of the same files may. Not here: what is right
(truth.py), how long it takes (end_to_end.py).
"""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import click
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.cold import TIDEMARK, WINDOW, run_cold, tidemark_run, write_spec
from benchmarks.logs import files_of
from benchmarks.peers import DUCKDB, FLINK, POLARS, SPARK, Peer
from benchmarks.timing import INTO, LOGS, Figure, Report
from benchmarks.truth import Rule, Truth, compare, read_events, truth_of

FILES = 20
_VALUES = ["k", "n", "total", "lowest", "highest", "mean"]


@dataclass(frozen=True)
class PickUp:
    """How a run takes the files up.

    Attributes:
        name: In words.
        files: Their folder.
        for_flink: The same for Flink, which reads the files of a folder in no order that one could choose.
        at_once: Files of a micro-batch of Structured Streaming.
        parallel: Readers of Flink; threads of DuckDB and Polars.
        most: Events of a batch of Tidemark; None for all.
    """

    name: str
    files: Path
    for_flink: Path
    at_once: int
    parallel: int
    most: int | None


@dataclass(frozen=True)
class Answer:
    """Answer of a system: its rows, and the events that it says it refused, if it says so."""

    rows: pd.DataFrame
    refused: frozenset[int] | None = None


@dataclass(frozen=True)
class System:
    """One system under one rule, and how far its runs were from the truth."""

    name: str
    rule: Rule
    answers: Sequence[Answer]
    ours: bool = False


def pick_ups(files: Path, events: int, folder: Path) -> Iterator[PickUp]:
    """Three; the files of the last have other names and times of change, as copies have."""
    originals = sorted(files.iterdir())
    whole, shuffled = folder / "whole", folder / "shuffled"
    for made in (whole, shuffled):
        made.mkdir(parents=True)
    pq.write_table(ds.dataset(originals).to_table(), whole / "all.parquet")
    yield PickUp("one file after another", files, whole, at_once=1, parallel=1, most=None)
    yield PickUp("several files at once, in small batches", files, files, at_once=7, parallel=2, most=events // 3)
    random.Random(0).shuffle(originals)
    for number, original in enumerate(originals):
        shutil.copyfile(original, shuffled / f"{number:04}{original.suffix}")
    yield PickUp("files in another order", shuffled, shuffled, at_once=1, parallel=1, most=None)


def tidemark(pick_up: PickUp, work: Path) -> tuple[Answer, Answer]:
    """Both policies, in one run of two pipelines."""
    policies = ("drop", "keep")
    specs = [
        write_spec(work, pick_up.files, "parquet", name=policy, policy=policy, ordered=False) for policy in policies
    ]
    options = [] if pick_up.most is None else ["--max-events-per-batch", str(pick_up.most)]
    run_cold(tidemark_run(TIDEMARK, *specs, options=options), work)
    dropped, kept = (_of_tidemark(work / "warehouse" / policy) for policy in policies)
    return dropped, kept


def _of_tidemark(tables: Path) -> Answer:
    rows = DeltaTable(tables / "windows" / WINDOW).to_pyarrow_table()
    letters = DeltaTable(tables / "dead_letters").to_pyarrow_table(columns=["_arrival_seq"])
    return Answer(_frame(rows, rows["window_start"]), frozenset(letters["_arrival_seq"].to_pylist()))


def streaming(pick_up: PickUp, work: Path) -> Answer:
    """Structured Streaming."""
    run_cold(SPARK.command(pick_up.files, "parquet", work / "out", "--files-at-once", str(pick_up.at_once)), work)
    rows = DeltaTable(work / "out" / "windows").to_pyarrow_table()
    return Answer(_frame(rows, pc.struct_field(rows["window"], "start")))


def other(peer: Peer, option: str) -> Callable[[PickUp, Path], Answer]:
    """Return a peer that writes Parquet; the option says how many readers or threads it has."""

    def run(pick_up: PickUp, work: Path) -> Answer:
        files = pick_up.for_flink if peer is FLINK else pick_up.files
        run_cold(peer.command(files, "parquet", work / "out", option, str(pick_up.parallel)), work)
        rows = ds.dataset(work / "out", format="parquet").to_table()
        return Answer(_frame(rows, rows["window_start"]))

    return run


def _frame(rows: pa.Table, start: pa.ChunkedArray) -> pd.DataFrame:
    start_us = start.cast(pa.timestamp("us", start.type.tz)).cast(pa.int64())
    frame: pd.DataFrame = rows.select(_VALUES).append_column("start_us", start_us).to_pandas()
    return frame


def answers_of(files: Path, events: int, folder: Path) -> list[System]:
    """Lets each system take up the files three times."""
    others = {
        SPARK: (Rule.WINDOW_OPEN, streaming),
        FLINK: (Rule.WINDOW_OPEN_IN_MS, other(FLINK, "--parallelism")),
        DUCKDB: (Rule.BEHIND_IS_DROPPED, other(DUCKDB, "--threads")),
        POLARS: (Rule.BEHIND_IS_DROPPED, other(POLARS, "--threads")),
    }
    ways = list(pick_ups(files, events, folder))

    def empty(name: str) -> Path:
        work = folder / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return work

    dropped, kept = zip(*(tidemark(way, empty("tidemark")) for way in ways), strict=True)
    systems = [
        System("Tidemark, `out_of_order: drop`", Rule.BEHIND_IS_DROPPED, dropped, ours=True),
        System("Tidemark, `out_of_order: keep`", Rule.WINDOW_OPEN, kept, ours=True),
    ]
    for peer, (rule, run) in others.items():
        answers = [run(way, empty("peer")) for way in ways] if peer.installed else []
        systems.append(System(peer.title, rule, answers))
    return systems


def figures_of(system: System, truth: Truth) -> list[Figure]:
    """Of each run the rows wrong and the events lost; and how far runs are from one another."""
    if not system.answers:
        return [Figure(system.name, [], note="not installed: make bench-peers")]
    closed = [truth.of_closed(answer.rows) for answer in system.answers]
    found = [compare(rows, truth.rows) for rows in closed]
    apart = [compare(one, another).wrong for one, another in combinations(closed, 2)]
    aim = 0 if system.ours else None

    def figure(unit: str, values: Sequence[int]) -> Figure:
        return Figure(system.name, values, unit=unit, aim=aim, worst=True)

    figures = [
        figure(f"of {len(truth.rows):,} rows wrong", [one.wrong for one in found]),
        figure("events lost", [one.lost for one in found]),
        figure("events too many", [one.more for one in found]),
        figure("rows differ between two runs", apart),
    ]
    refused = [answer.refused ^ truth.dropped for answer in system.answers if answer.refused is not None]
    if refused:
        figures.append(figure(f"of {len(truth.dropped):,} dead letters wrong", [len(one) for one in refused]))
    return figures


@click.command()
@click.option("--events", default=1_000_000, help="How many events.")
@LOGS
@INTO
def main(events: int, logs: Path, into: Path | None) -> None:
    """Lets each system take up the same files three times, and compares its results with the truth of its rule."""
    folder = logs.absolute() / "right_answers"
    shutil.rmtree(folder, ignore_errors=True)
    files = files_of(logs.absolute(), events, "parquet", files=FILES)
    arrived = read_events(files)
    truths = {rule: truth_of(arrived, rule) for rule in Rule}
    report = Report(f"right answers, {events:,} events in {FILES} files, three runs of each system")
    report.about = {
        "events": events,
        "rules": {rule.name: rule.value for rule in Rule},
        "dropped_by_rule": {rule.name: len(truth.dropped) for rule, truth in truths.items()},
    }
    for system in answers_of(files, events, folder):
        report.figures += figures_of(system, truths[system.rule])
    shutil.rmtree(folder)
    report.save(into)


if __name__ == "__main__":
    main()
