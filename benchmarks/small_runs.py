"""`tidemark run` of a thousand JSON lines, as a person waits for it: `python -m benchmarks.small_runs`.

Here: seconds from cold, with `tidemark serve`, and where nothing is new; files and kB that a batch adds to the
warehouse and to Dagster's home. With `--tidemark` twice, two builds in turns. Not here: how commands are watched
(cold.py).
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from benchmarks.cold import TIDEMARK, run_cold, tidemark_run
from benchmarks.timing import BUDGET, INTO, Figure, Report, within
from tests.processes import free_port, process, wait_until

RECORDS = 1_000
STEP = timedelta(milliseconds=100)
START = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "small"
SPEC = f"""
name: {NAME}
sources:
  - {{name: lines, kind: files, path: in/*.jsonl, format: json, settle: 0 s, arrival_time: at, order: position,
     schema: "at TIMESTAMP, k STRING, v BIGINT, device STRING"}}
time: {{timestamp_by: at, out_of_orderness: 5 s}}
windows:
  - {{name: by_minute, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
"""
COLD, NOTHING, SERVED = "cold", "with nothing new", "with `tidemark serve`"


@dataclass
class Build:
    """A build of Tidemark, a pipeline of its own in a folder, and what its runs took and left.

    Attributes:
        tidemark: Its command.
        root: The folder.
        batches: How many files have come.
        seconds: Of runs, by the work.
        files: Files that each batch added, by the place.
        kb: The same in kB.
    """

    tidemark: str
    root: Path
    batches: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    files: dict[str, list[int]] = field(default_factory=dict)
    kb: dict[str, list[float]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Its DAGSTER_HOME."""
        return self.root / "home"

    @property
    def places(self) -> dict[str, Path]:
        """Where a batch leaves files."""
        return {"the warehouse": self.root / "warehouse", "Dagster's home": self.home}

    def land(self) -> None:
        """Write the next thousand lines of eighty bytes."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.root / f"{NAME}.yaml").write_text(SPEC)
        first = self.batches * RECORDS
        lines = [
            {"at": f"{START + i * STEP:%FT%T.%fZ}", "k": f"k{i % 20}", "v": i % 997, "device": f"d{i:08}"}
            for i in range(first, first + RECORDS)
        ]
        (self.root / "in").mkdir(exist_ok=True)
        path = self.root / "in" / f"{self.batches:04}.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        self.batches += 1

    def run(self, work: str, *, timed: bool = True) -> None:
        """Run what waits, and note what it took and, where there was something, what it left."""
        before = {name: _stored(path) for name, path in self.places.items()}
        os.environ["DAGSTER_HOME"] = str(self.home)
        took = run_cold(tidemark_run(self.tidemark, f"{NAME}.yaml"), self.root).seconds
        if timed:
            self.seconds.setdefault(work, []).append(took)
        if timed and work != NOTHING:
            for name, path in self.places.items():
                files, size = _stored(path)
                self.files.setdefault(name, []).append(files - before[name][0])
                self.kb.setdefault(name, []).append((size - before[name][1]) / 1e3)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Keep its `tidemark serve` while the block runs."""
        command, log = [self.tidemark, "serve", "--port", str(free_port())], self.root / "serve.log"
        with process(command, {"DAGSTER_HOME": str(self.home)}, log) as server:
            wait_until(lambda: "ready" in log.read_text() or server.poll() is not None, log)
            yield


def _stored(folder: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def measure(builds: list[Build], rounds: int, budget_s: float) -> None:
    """Run all builds in turns: a batch and nothing new, from cold; then batches with `serve`, the first a warm-up."""
    for build in builds:
        build.land()
        build.run(COLD, timed=False)  # it creates the tables and Dagster's databases
    for _ in within(budget_s / 2, rounds):
        for work in (COLD, NOTHING):
            for build in builds:
                if work == COLD:
                    build.land()
                build.run(work)
    with ExitStack() as stack:
        for build in builds:
            stack.enter_context(build.serving())
            build.land()
            build.run(SERVED, timed=False)
        for _ in within(budget_s / 2, rounds):
            for build in builds:
                build.land()
                build.run(SERVED)


def report_of(builds: list[Build]) -> Report:
    """Return the figures of each build; the others are compared with the last."""
    report, last = Report(f"`tidemark run` of {RECORDS:,} JSON lines, {len(builds)} builds in turns"), builds[-1]

    def add(build: Build, what: str, values: list[float] | list[int], unit: str) -> None:
        against = None if build is last else f"{what}, {last.tidemark}"
        report.figures.append(Figure(f"{what}, {build.tidemark}", values, unit=unit, against=against))

    for what in (COLD, NOTHING, SERVED):
        for build in builds:
            add(build, what, build.seconds[what], "s")
    for place in last.places:
        for build in builds:
            add(build, f"a batch in {place}", build.files[place], "files")
            add(build, f"a batch in {place}", build.kb[place], "kB")
    return report


@click.command()
@click.option("--rounds", default=3, help="How often each run is timed.")
@click.option("--tidemark", "commands", multiple=True, default=[str(TIDEMARK)], help="A command to measure.")
@BUDGET
@INTO
def main(*, rounds: int, commands: tuple[str, ...], budget: float, into: Path | None) -> None:
    """Run each command in turns; with two, the ratios are to the last one's."""
    with tempfile.TemporaryDirectory() as folder:
        builds = [Build(command, Path(folder) / str(number)) for number, command in enumerate(commands)]
        measure(builds, rounds, budget)
    report = report_of(builds)
    report.about = {"records": RECORDS, "commands": [*commands]}
    report.save(into)


if __name__ == "__main__":
    main()
