"""Files to tables, the whole command from cold, against other systems: `python -m benchmarks.end_to_end`.

Here: the commands, in turns. Not here: how they are watched (cold.py), the other systems (peers), the work of a warm
process (windows.py).
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.cold import TIDEMARK, Cold, run_cold, tidemark_run, write_spec
from benchmarks.logs import KEYS, files_of
from benchmarks.peers import FLINK, OTHERS, SPARK, Peer
from benchmarks.timing import BUDGET, INTO, LOGS, Figure, Report, within

PLAIN = "Structured Streaming with Spark's own settings"
WITHOUT = "`tidemark run`, without ordered_events"
WITH = "`tidemark run`, all tables and checks"
SECONDS_AIMS = {"parquet": {WITHOUT: 1.4, WITH: 1.9}, "json": {WITHOUT: 1.5, WITH: 2.0}}
MEMORY_AIM = 1.5

Command = Callable[[Path], list[str]]
"""Takes a folder and returns the command to run in it."""
Commands = dict[str, Command]


def commands_of(files: Path, kind: str, tidemark: str, keys: str = "text") -> Commands:
    """Structured Streaming first, as all are compared with it; then Tidemark, then the others that are installed.

    It has the settings of Tidemark's sessions, which make it three times as fast, and once more Spark's own.
    """
    # DuckDB and Polars read the type of the keys from the files.
    typed = dict.fromkeys((SPARK, FLINK), ("--key-type", KEYS[keys]))

    def ours(*, ordered: bool) -> Command:
        return lambda work: tidemark_run(tidemark, write_spec(work, files, kind, ordered=ordered, keys=keys))

    def its(peer: Peer, *options: str) -> Command:
        return lambda work: peer.command(files, kind, work / "out", *typed.get(peer, ()), *options)

    return {
        SPARK.title: its(SPARK),
        PLAIN: its(SPARK, "--plain"),
        WITHOUT: ours(ordered=False),
        WITH: ours(ordered=True),
        **{peer.title: its(peer) for peer in OTHERS if peer.installed},
    }


def measured(commands: Commands, folder: Path, rounds: int, budget_s: float) -> dict[str, list[Cold]]:
    """Runs each command in turns, in a folder that it finds empty."""
    work = folder / "end_to_end"
    taken: dict[str, list[Cold]] = {name: [] for name in commands}
    for _ in within(budget_s, rounds):
        for name, command in commands.items():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            taken[name].append(run_cold(command(work), work))
    shutil.rmtree(work)
    return taken


def report_of(taken: dict[str, list[Cold]], kind: str, events: int, keys: str) -> Report:
    """Seconds and peak memory of each, against Structured Streaming's; systems that are not there say so."""
    said = {"parquet": "parquet", "json": "JSON lines"}[kind]
    title = f"{events:,} events from {said}, {keys} keys, to all tables, cold commands"
    report, aims = Report(title), SECONDS_AIMS[kind]
    peer = SPARK.title
    for name, runs in taken.items():
        against = None if name == peer else peer
        values = [run.seconds for run in runs]
        report.figures.append(Figure(name, values, against=against, aim=aims.get(name)))
    missing = [one.title for one in OTHERS if not one.installed]
    report.figures += [Figure(name, [], note="not installed: make bench-peers") for name in missing]
    for name, runs in taken.items():
        against, aim = (None, None) if name == peer else (peer, MEMORY_AIM if name in aims else None)
        values = [run.peak_gb for run in runs]
        report.figures.append(Figure(name, values, unit="GB at its peak", against=against, aim=aim))
    return report


@click.command()
@click.option("--events", default=10_000_000, help="How many events.")
@click.option("--rounds", default=3, help="How often each command runs.")
@click.option("--format", "kind", type=click.Choice(["parquet", "json"]), default="parquet", help="Of the files.")
@click.option("--keys", type=click.Choice([*KEYS]), default="text", help="Of the events; integers are from parquet.")
@click.option("--tidemark", default=str(TIDEMARK), help="The command to measure.")
@LOGS
@BUDGET
@INTO
def main(
    *, events: int, rounds: int, kind: str, keys: str, tidemark: str, logs: Path, budget: float, into: Path | None
) -> None:
    """Runs each command from cold in turns, and prints the ratios to the peer's."""
    if keys != "text" and kind != "parquet":
        raise click.UsageError(f"{keys} keys are not measured from {kind}: use `--format parquet`")
    folder = logs.absolute()
    files = files_of(folder, events, kind, keys=keys)
    taken = measured(commands_of(files, kind, tidemark, keys), folder, rounds, budget)
    report = report_of(taken, kind, events, keys)
    report.about = {"events": events, "format": kind, "keys": keys}
    report.save(into)


if __name__ == "__main__":
    main()
