"""The cold job over ever more events, on one core and on two: `python -m benchmarks.curve`.

Here: lengths and cores, and which points a budget leaves time for. Not here: the commands (end_to_end.py).
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import click

from benchmarks.cold import TIDEMARK, Cold
from benchmarks.end_to_end import WITH, WITHOUT, Command, Commands, commands_of, measured
from benchmarks.logs import files_of
from benchmarks.peers import DUCKDB, SPARK
from benchmarks.timing import INTO, LOGS, Figure, Report

MILLIONS = (1, 3, 10, 30)
CORES = (1, 2)
SHOWN = (SPARK.title, WITHOUT, WITH, DUCKDB.title)
BUDGET_S = 45 * 60.0
_LEFT_OUT = "left out: it would have ended after the budget"
_FAILED = "failed"


@dataclass
class Budget:
    """Seconds for all runs: none begins that would end later, if it takes as long an event as the one before it.

    Attributes:
        seconds: How many there are; 0 for no end.
        started: When the first run began.
    """

    seconds: float
    started: float = field(default_factory=time.perf_counter)
    _taken: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)

    def allows(self, name: str, cores: int, events: int) -> bool:
        """Return whether a run of a command may begin; the first of each always may."""
        known = self._taken.get((name, cores))
        if not self.seconds or known is None:
            return True
        before, took = known
        return time.perf_counter() - self.started + took * events / before <= self.seconds

    def took(self, name: str, cores: int, events: int, seconds: float) -> None:
        """Note what a run took."""
        self._taken[name, cores] = events, seconds


@click.command()
@click.option("--millions", default=",".join(map(str, MILLIONS)), help="Millions of events, with commas between.")
@click.option("--cores", default=",".join(map(str, CORES)), help="How many cores, with commas between.")
@click.option("--rounds", default=1, help="How often each command runs.")
@click.option("--budget", default=BUDGET_S, help="Begin no run that would end after so many seconds; 0: no end.")
@LOGS
@INTO
def main(*, millions: str, cores: str, rounds: int, budget: float, logs: Path, into: Path | None) -> None:
    """Run each command for each length and number of cores: `taskset` leaves it the first cores of the machine.

    The file has all points up to the last that was measured, also if the run is cut off.
    """
    lengths = [float(many) for many in millions.split(",")]
    files = {many: files_of(logs.absolute(), round(many * 1_000_000), "parquet") for many in lengths}
    report, left = Report("cold job by events and cores"), Budget(budget)
    for many in sorted(lengths):
        for count in map(int, cores.split(",")):
            on = f"{many:g} million, {count} core{'s' * (count > 1)}"
            events = round(many * 1_000_000)
            commands = _on_cores(commands_of(files[many], "parquet", str(TIDEMARK)), count)
            for name, command in commands.items():
                may_run = left.allows(name, count, events)
                runs, why = _tried(name, command, logs.absolute(), rounds) if may_run else ([], _LEFT_OUT)
                if runs:
                    left.took(name, count, events, max(run.seconds for run in runs))
                click.echo(f"{on}: {name}: " + (", ".join(f"{run.seconds:.1f} s" for run in runs) or why))
                report.figures += _figures(on, name, runs, why)
            report.write(into)
    report.save(into)


def _tried(name: str, command: Command, folder: Path, rounds: int) -> tuple[list[Cold], str]:
    """Measure one command, or say why there is no figure: a system that fails at a length is a point as well."""
    try:
        return measured({name: command}, folder, rounds, budget_s=0)[name], ""
    except click.ClickException as error:
        error.show()
        return [], _FAILED


def _figures(on: str, name: str, runs: list[Cold], note: str) -> list[Figure]:
    work = f"{on}: {name}"
    against = None if name == SPARK.title else f"{on}: {SPARK.title}"
    return [
        Figure(work, [run.seconds for run in runs], against=against, note=note),
        Figure(work, [run.peak_gb for run in runs], unit="GB at its peak", against=against, note=note),
    ]


def _on_cores(commands: Commands, count: int) -> Commands:
    def bound(command: Command) -> Command:
        return lambda work: ["taskset", "--cpu-list", f"0-{count - 1}", *command(work)]

    return {name: bound(command) for name, command in commands.items() if name in SHOWN}


if __name__ == "__main__":
    main()
