"""The cold job over ever more events, on one core and on two: `python -m benchmarks.curve`.

Here: lengths and cores. Not here: the commands (end_to_end.py).
"""

from pathlib import Path

import click

from benchmarks.cold import TIDEMARK
from benchmarks.end_to_end import WITH, WITHOUT, Command, Commands, commands_of, measured
from benchmarks.logs import files_of
from benchmarks.peers import DUCKDB, SPARK
from benchmarks.timing import INTO, LOGS, Figure, Report

MILLIONS = (1, 3, 10, 30)
CORES = (1, 2)
SHOWN = (SPARK.title, WITHOUT, WITH, DUCKDB.title)


@click.command()
@click.option("--millions", default=",".join(map(str, MILLIONS)), help="Millions of events, with commas between.")
@click.option("--cores", default=",".join(map(str, CORES)), help="How many cores, with commas between.")
@click.option("--rounds", default=1, help="How often each command runs.")
@LOGS
@INTO
def main(millions: str, cores: str, rounds: int, logs: Path, into: Path | None) -> None:
    """Runs each command for each length and number of cores: those that `taskset` leaves it, the machine's first."""
    report = Report("cold job by events and cores")
    for many in millions.split(","):
        events = round(float(many) * 1_000_000)
        files = files_of(logs.absolute(), events, "parquet")
        for count in map(int, cores.split(",")):
            commands = _on_cores(commands_of(files, "parquet", str(TIDEMARK)), count)
            taken = measured(commands, logs.absolute(), rounds, budget_s=0)
            on = f"{many} million, {count} core{'s' * (count > 1)}"
            peer = f"{on}: {SPARK.title}"
            for name, runs in taken.items():
                work = f"{on}: {name}"
                against = None if name == SPARK.title else peer
                report.figures += [
                    Figure(work, [run.seconds for run in runs], against=against),
                    Figure(work, [run.peak_gb for run in runs], unit="GB at its peak", against=against),
                ]
    report.save(into)


def _on_cores(commands: Commands, count: int) -> Commands:
    def bound(command: Command) -> Command:
        return lambda work: ["taskset", "--cpu-list", f"0-{count - 1}", *command(work)]

    return {name: bound(command) for name, command in commands.items() if name in SHOWN}


if __name__ == "__main__":
    main()
