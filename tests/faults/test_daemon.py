"""A pipeline that runs by itself: Dagster's real daemon, files that keep coming, and no further command."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunRecord

from tests.processes import daemon, warm_spark
from tests.runs.landing import table
from tests.runs.running import scheduled
from tidemark.resources.settings import use_dagster_home
from tidemark.resources.workspace import Workspace

EVERY_S, DEADLINE_S = 3, 600
RECORDS = 100


@pytest.mark.long
@pytest.mark.parametrize(("files", "warm"), [(24, True), (10, False)], ids=["warm", "cold"])
def test_files_that_keep_coming_become_windows_with_no_further_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, files: int, warm: bool
) -> None:
    """No time is compared here: `benchmarks.growth` measures whether a batch takes longer the more came before it."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file, settings = scheduled(tmp_path, "steady", "schedule: {on_new_input: 5 s}\n")
    use_dagster_home(settings.dagster_home)
    workspace = Workspace(file, settings.warehouse)
    with ExitStack() as stack:
        instance = stack.enter_context(DagsterInstance.get())  # before the daemon: only one may make its databases
        if warm:
            stack.enter_context(warm_spark(settings.dagster_home, tmp_path))
        stack.enter_context(daemon(settings.dagster_home, tmp_path, settings.warehouse))
        dropped = []
        for number in range(files):
            drop(tmp_path / "in_steady", number)
            dropped.append(datetime.now(UTC))
            time.sleep(EVERY_S)
        wait_until_processed(workspace, files * RECORDS)
        runs = wait_until_ended(instance)
    show_curve(seconds_until_committed(workspace, dropped), runs)
    assert {run.dagster_run.status for run in runs} == {DagsterRunStatus.SUCCESS}
    assert 1 <= len(runs) <= files, "files that come while a run is at work are taken together"
    spans = sorted((run.start_time or 0, run.end_time or 0) for run in runs)
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), "runs of a pipeline never overlap"
    assert table(settings.warehouse, file.spec, "windows/per_minute")


def seconds_until_committed(workspace: Workspace, dropped: Sequence[datetime]) -> list[float]:
    """Return how long after each file came its records were in a committed batch."""
    commits = [commit for commit in workspace.batches.history() if commit.plan.kind == "process"]
    waits = []
    for number, came in enumerate(dropped):
        last = RECORDS * (number + 1)
        committed = next(
            one.committed_at for one in commits if one.plan.end_seq is not None and one.plan.end_seq >= last
        )
        waits.append((committed - came).total_seconds())
    return waits


def show_curve(waits: Sequence[float], runs: Sequence[RunRecord]) -> None:
    """Prints seconds from file to commit by the minute, and from launch to end of the runs; `pytest -s` shows it."""
    a_minute = 60 // EVERY_S
    click.echo(f"\n{len(runs)} runs")
    for first in range(0, len(waits), a_minute):
        of_minute = waits[first : first + a_minute]
        click.echo(
            f"minute {first // a_minute + 1:2}: median {median(of_minute):5.1f} s, longest {max(of_minute):5.1f} s"
        )
    spans = sorted((run.end_time or 0) - run.create_timestamp.timestamp() for run in runs)
    click.echo(f"a run from launch to end: median {median(spans):.1f} s, longest {spans[-1]:.1f} s")


def drop(folder: Path, number: int) -> None:
    """Write a file of a hundred events, two minutes further on; it appears whole."""
    lines = []
    for second in range(RECORDS):
        at = datetime.fromtimestamp(1_767_225_600 + 120 * number + second, UTC).isoformat()
        lines.append(json.dumps({"id": f"{number}-{second}", "at": at, "got": at, "k": "a", "v": second}))
    unfinished = folder / f"{number:03}.tmp"
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.rename(folder / f"{number:03}.jsonl")


def wait_until_processed(workspace: Workspace, records: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not workspace.exists or workspace.progress.processed_end() < records:
        assert time.monotonic() < deadline, f"{records} records were not processed in {DEADLINE_S} s"
        time.sleep(2)


def wait_until_ended(instance: DagsterInstance) -> list[RunRecord]:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        runs = list(instance.get_run_records())
        if all(run.end_time for run in runs):
            return runs
        assert time.monotonic() < deadline, f"runs did not end in {DEADLINE_S} s"
        time.sleep(2)
