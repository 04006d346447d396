"""Questions to a log against judging it once, as a run does: `python -m benchmarks.questions`.

Here: the works, on a pipeline that has run. Counted are CPU seconds, of this process and its JVM, as a busy machine
changes these little; of explaining a record also seconds, and of the commands from cold their memory.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from dagster import DagsterInstance

from benchmarks.cold import TIDEMARK, WINDOW, run_cold, write_spec
from benchmarks.logs import files_of
from benchmarks.rebuilds import used_by
from benchmarks.timing import BUDGET, INTO, LOGS, Figure, Report, within
from tidemark.assets.judging.replay import replay_all
from tidemark.assets.questions.advice import advice_of
from tidemark.assets.questions.record import RecordQuestions
from tidemark.assets.questions.times import PipelineLog
from tidemark.assets.questions.what_if.simulation import Setting, simulation_of
from tidemark.pipelines.command_line import pipeline_of
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace, silent
from tidemark.timeops.columns import SEQ
from tidemark.timeops.computing.materialize import computed

SET = ("time.out_of_orderness=10 s",)
JUDGED, WITH_WINDOWS = "judging it once", "judging it once, with the window's results"
ADVISE, SIMULATE = "advise", "simulate one setting"
LETTER, EVENT = "explain a dead letter", "explain an accepted event"
COMPARED = {ADVISE: (JUDGED, 1.2), SIMULATE: (WITH_WINDOWS, 1.2), WITH_WINDOWS: (JUDGED, None)}
"""The work that each is compared with, and the most that the ratio may be."""
EXPLAINED_S = 5.0


def judged(workspace: Workspace, *, windows: bool) -> None:
    """Judge the log as a run does; with `windows` its window too, without writing results."""
    for outcome in replay_all(workspace):
        assert outcome.judged.watermarks.behind.num_rows
        if windows:
            computed(outcome.results(workspace.spec.windows[0]))


def works(spec: Path, settings: Settings) -> Mapping[str, Callable[[], object]]:
    """Return the works; each opens the pipeline again."""
    file, other = read_spec(spec), read_spec(spec, SET)

    def opened() -> Workspace:
        return pipeline_of(file, settings, silent)

    def explained(seq: int) -> str:
        return RecordQuestions(PipelineLog(opened())).answer(seq).text

    lake = opened().lake
    letters = lake.rows(tables.DEAD_LETTERS, columns=[SEQ])[SEQ].to_pylist()
    late = sorted(letters)[len(letters) // 2]
    accepted = next(seq for seq in range(late, late + len(letters)) if seq not in {*letters})
    return {
        JUDGED: lambda: judged(opened(), windows=False),
        ADVISE: lambda: advice_of(opened()).text,
        WITH_WINDOWS: lambda: judged(opened(), windows=True),
        SIMULATE: lambda: simulation_of(opened(), [Setting(SET, other)]).text,
        LETTER: lambda: explained(late),
        EVENT: lambda: explained(accepted),
    }


def ran(folder: Path, events: int) -> tuple[Path, Settings]:
    """Return a pipeline that has run over the events of `logs.py`, made unless it is there."""
    work = folder / f"questions_{events}"
    work.mkdir(parents=True, exist_ok=True)
    spec = work / write_spec(work, files_of(folder, events, "parquet"), "parquet", ordered=True)
    settings = Settings(work / "warehouse", work, work / "home")
    if not Workspace(read_spec(spec), settings.warehouse).exists:
        with DagsterInstance.ephemeral() as instance:
            run_pipeline(read_spec(spec), settings, RunOptions(), instance=instance)
    return spec, settings


@click.command()
@click.option("--events", default=10_000_000, help="Length of the log.")
@click.option("--rounds", default=3, help="How often each work is measured.")
@LOGS
@BUDGET
@INTO
def main(*, events: int, rounds: int, logs: Path, budget: float, into: Path | None) -> None:
    """Does each work once to warm up, then in turns, and prints the ratios."""
    start = time.perf_counter()
    spec, settings = ran(logs.absolute(), events)
    pieces = works(spec, settings)
    for work in pieces.values():
        work()
    cpu_s: dict[str, list[float]] = {name: [] for name in pieces}
    taken_s: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in within(budget, rounds, spent_s=time.perf_counter() - start):
        for name, work in pieces.items():
            began = time.perf_counter()
            cpu_s[name].append(used_by(work).cpu_s)
            taken_s[name].append(time.perf_counter() - began)
    report = Report(f"questions to a log of {events:,} records, warm", about={"events": events, "window": WINDOW})
    for name, values in cpu_s.items():
        against, aim = COMPARED.get(name, (None, None))
        report.figures.append(Figure(name, values, "CPU s", against=against, aim=aim))
    report.figures += [Figure(name, taken_s[name], aim=EXPLAINED_S) for name in (LETTER, EVENT)]
    cold = run_cold([str(TIDEMARK), "advise", str(spec), "--warehouse", str(settings.warehouse)], spec.parent)
    report.figures.append(Figure("`tidemark advise`, cold", [cold.seconds]))
    report.figures.append(Figure("`tidemark advise`, cold", [cold.peak_gb], unit="GB at its peak"))
    report.save(into)


if __name__ == "__main__":
    main()
