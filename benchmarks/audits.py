"""An audit of a whole pipeline from cold, against its first run: `python -m benchmarks.audits`.

Here: both commands over the same files. Not here: how they are watched (cold.py), what an audit finds (its tests).
"""

import shutil
from pathlib import Path

import click

from benchmarks.cold import TIDEMARK, Cold, run_cold, tidemark_run, write_spec
from benchmarks.logs import files_of
from benchmarks.timing import BUDGET, INTO, LOGS, Figure, Report, within

RUN, AUDIT = "`tidemark run`, the first, all tables and checks", "`tidemark audit`, the whole history"
SECONDS_AIM, MEMORY_AIM = 1.5, 0.2


def measured(files: Path, folder: Path, rounds: int, budget_s: float) -> dict[str, list[Cold]]:
    """Runs both commands in turns, the run in a folder that it finds empty."""
    work = folder / "audits"
    taken: dict[str, list[Cold]] = {RUN: [], AUDIT: []}
    for _ in within(budget_s, rounds):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        spec = write_spec(work, files, "parquet", ordered=True)
        taken[RUN].append(run_cold(tidemark_run(TIDEMARK, spec), work))
        taken[AUDIT].append(run_cold([str(TIDEMARK), "audit", spec, "--warehouse", "warehouse"], work))
    shutil.rmtree(work)
    return taken


@click.command()
@click.option("--events", default=10_000_000, help="How many events.")
@click.option("--rounds", default=3, help="How often both commands run.")
@LOGS
@BUDGET
@INTO
def main(*, events: int, rounds: int, logs: Path, budget: float, into: Path | None) -> None:
    """Runs a pipeline from cold and audits it, and prints the ratios to the run's."""
    folder = logs.absolute()
    taken = measured(files_of(folder, events, "parquet"), folder, rounds, budget)
    report = Report(f"an audit of {events:,} events, cold commands", about={"events": events})
    for name, runs in taken.items():
        against, aim = (RUN, SECONDS_AIM) if name == AUDIT else (None, None)
        report.figures.append(Figure(name, [run.seconds for run in runs], against=against, aim=aim))
    for name, runs in taken.items():
        against, aim = (RUN, MEMORY_AIM) if name == AUDIT else (None, None)
        peaks = [run.peak_gb for run in runs]
        report.figures.append(Figure(name, peaks, unit="GB at its peak", against=against, aim=aim))
    report.save(into)


if __name__ == "__main__":
    main()
