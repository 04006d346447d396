"""A rebuild against the first run over the same records: `python -m benchmarks.rebuilds`.

Counted are CPU seconds and bytes read, of this process and its JVM: a busy machine changes neither.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from dagster import DagsterInstance

from benchmarks.logs import land_busy_keys
from benchmarks.machine import family
from benchmarks.micro_batches import SPEC
from benchmarks.timing import INTO, Figure, Report
from tidemark.pipelines.code_location.rebuilding import RebuildSettings
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace


@dataclass(frozen=True)
class Used:
    """CPU seconds and bytes read, of this process and of its children that are still alive."""

    cpu_s: float
    read: int

    @classmethod
    def now(cls) -> "Used":
        """Return what was used so far."""
        each = [(process.cpu_times(), process.io_counters()) for process in family()]
        return cls(sum(cpu.user + cpu.system for cpu, _ in each), sum(io.read_chars for _, io in each))


def used_by(work: Callable[[], object]) -> Used:
    """Return what a piece of work uses."""
    before = Used.now()
    work()
    after = Used.now()
    return Used(after.cpu_s - before.cpu_s, after.read - before.read)


def pieces(root: Path, events: int, instance: DagsterInstance) -> tuple[list[Used], int]:
    """First run, rebuild of all tables, rebuild of a window; bytes of the log."""
    land_busy_keys(root / "in", 0, events, "0.parquet")
    (root / "micro.yaml").write_text(SPEC)
    file, settings = read_spec(root / "micro.yaml"), Settings(root / "warehouse", root, root / "home")
    used = [
        used_by(lambda: run_pipeline(file, settings, RunOptions(), instance=instance)),
        used_by(lambda: rebuild_pipeline(file, settings, RebuildSettings(), instance=instance)),
        used_by(lambda: rebuild_pipeline(file, settings, RebuildSettings(windows=["by_minute"]), instance=instance)),
    ]
    return used, _bytes_of_log(file, settings)


def _bytes_of_log(file: SpecFile, settings: Settings) -> int:
    workspace = Workspace(file, settings.warehouse)
    version = workspace.lake.opened.version_at("raw_events", workspace.base_of("raw_events"))
    return sum(size or 0 for size in version.sizes.values())


@click.command()
@click.option("--events", default=2_000_000, help="How many records the log has.")
@INTO
def main(events: int, into: Path | None) -> None:
    """Runs a small rehearsal of all pieces, then these."""
    with tempfile.TemporaryDirectory() as folder:
        with DagsterInstance.ephemeral() as instance:
            pieces(Path(folder, "rehearsal"), 50_000, instance)
        with DagsterInstance.ephemeral() as instance:
            (first, whole, window), log = pieces(Path(folder, "rebuilt"), events, instance)
    figures = [
        Figure("first run", [first.cpu_s], "CPU s"),
        Figure("rebuild", [whole.cpu_s], "CPU s", against="first run", aim=1.2),
        Figure("rebuild --window by_minute", [window.cpu_s], "CPU s", against="first run", aim=1.2),
        Figure("the log", [log / 1e6], "MB"),
        Figure("first run", [first.read / 1e6], "MB"),
        Figure("rebuild", [whole.read / 1e6], "MB", against="the log"),
        Figure("rebuild --window by_minute", [window.read / 1e6], "MB", against="the log"),
    ]
    Report(f"{events:,} records, made anew", figures).save(into)


if __name__ == "__main__":
    main()
