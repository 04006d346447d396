"""Micro-batches that Dagster's daemon launches for new files: `python -m benchmarks.queued`.

Here: seconds from launch to commit and to the end of the run, by the queue, with and without `tidemark serve`. Not
here: the pipeline and its input (micro_batches.py).
"""

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click
from dagster import DagsterInstance, DagsterRunStatus, RunRecord

from benchmarks.logs import land_busy_keys
from benchmarks.micro_batches import SPEC
from benchmarks.timing import INTO, Figure, Report
from tests.processes import daemon, warm_spark
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import use_dagster_home
from tidemark.resources.workspace import Workspace

SCHEDULED = "schedule: {on_new_input: 5 s}" + SPEC
PATIENCE_S = 300


def run(root: Path, batches: int, events: int, *, warm: bool) -> list[tuple[float, float]]:
    """Lets the daemon run micro-batches one after the other: seconds from launch to commit, and to the end."""
    (root / "micro.yaml").write_text(SCHEDULED)
    home, warehouse = root / "home", root / "warehouse"
    os.environ["DAGSTER_HOME"] = str(home)
    use_dagster_home(home)
    workspace = Workspace(read_spec(root / "micro.yaml"), warehouse)
    with ExitStack() as stack:
        instance = stack.enter_context(DagsterInstance.get())  # before the daemon: only one may make its databases
        if warm:
            stack.enter_context(warm_spark(home, root))
        stack.enter_context(daemon(home, root, warehouse))
        taken = []
        for number in range(batches):
            land_busy_keys(root / "in", number * events, events, f"{number:04}.parquet")
            done = _ended(instance, number + 1)
            launched, ended = done.create_timestamp.timestamp(), done.end_time or 0
            commit = workspace.batches.last_commit("process")
            if commit is None or commit.plan.end_seq != (number + 1) * events:
                raise click.ClickException(f"Batch {number} is not what was committed: {commit}")
            taken.append((commit.committed_at.timestamp() - launched, ended - launched))
    return taken


def _ended(instance: DagsterInstance, runs: int) -> RunRecord:
    """Return the newest of so many runs, when it has ended well."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = list(instance.get_run_records())
        if len(found) == runs and all(run.end_time for run in found):
            newest = found[0]
            if newest.dagster_run.status != DagsterRunStatus.SUCCESS:
                raise click.ClickException(f"Run {newest.dagster_run.run_id} ended as {newest.dagster_run.status}")
            return newest
        time.sleep(0.2)
    raise click.ClickException(f"Run {runs} did not end in {PATIENCE_S} s")


@click.command()
@click.option("--batches", default=9, help="Micro-batches of each piece; the first third warms up.")
@click.option("--events", default=10_000, help="Events of a micro-batch.")
@click.option("--cold", is_flag=True, help="Also time runs that each start a Spark of their own: a minute each.")
@INTO
def main(*, batches: int, events: int, cold: bool, into: Path | None) -> None:
    """Times the batches of each piece."""
    report = Report(
        f"launched by Dagster's queue, {events:,} events each", about={"batches": batches, "events": events}
    )
    pieces: list[tuple[str, bool, float | None]] = [("with `tidemark serve`", True, 7.0)]
    if cold:
        pieces.append(("a Spark of its own for each run", False, None))
    for name, warm, aim in pieces:
        with tempfile.TemporaryDirectory() as folder:
            taken = run(Path(folder), batches, events, warm=warm)[batches // 3 :]
        to_commit, to_end = zip(*taken, strict=True)
        report.figures += [
            Figure(f"{name}: launch to commit", to_commit, aim=aim),
            Figure(f"{name}: launch to the end of the run", to_end),
        ]
    report.save(into)


if __name__ == "__main__":
    main()
