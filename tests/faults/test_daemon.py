"""A pipeline that runs by itself: Dagster's real daemon, files that keep coming, and no further command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunRecord

from resources.settings import use_dagster_home
from resources.workspace import Workspace
from tests.orchestration.landing import table
from tests.orchestration.test_launching import scheduled

ROOT = Path(__file__).parents[2]
FILES, EVERY_S, DEADLINE_S = 10, 4, 600


@contextmanager
def daemon(home: Path, specs: Path, warehouse: Path) -> Iterator[None]:
    """Dagster's daemon over a folder of specs."""
    places = {"DAGSTER_HOME": home, "TIDEMARK_SPECS": specs, "TIDEMARK_WAREHOUSE": warehouse}
    process = subprocess.Popen(
        [sys.executable, "-m", "dagster._daemon", "run", "-w", str(ROOT / "workspace.yaml")],
        cwd=ROOT,
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):  # its code server and a run may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.every_fault
def test_files_that_keep_coming_become_windows_with_no_further_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file, settings = scheduled(tmp_path, "steady", "schedule: {on_new_input: 5 s}\n")
    use_dagster_home(settings.dagster_home)
    workspace = Workspace(file, settings.warehouse)
    with daemon(settings.dagster_home, tmp_path, settings.warehouse), DagsterInstance.get() as instance:
        for number in range(FILES):
            drop(tmp_path / "in_steady", number)
            time.sleep(EVERY_S)
        wait_until_processed(workspace, FILES * 100)
        runs = wait_until_ended(instance)
    assert {run.dagster_run.status for run in runs} == {DagsterRunStatus.SUCCESS}
    assert 1 <= len(runs) <= FILES, "files that come while a run is at work are taken together"
    spans = sorted((run.start_time or 0, run.end_time or 0) for run in runs)
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), "runs of a pipeline never overlap"
    assert table(settings.warehouse, file.spec, "windows/per_minute")


def drop(folder: Path, number: int) -> None:
    """A file of a hundred events, two minutes further on; it appears whole."""
    lines = []
    for second in range(100):
        at = datetime.fromtimestamp(1_767_225_600 + 120 * number + second, UTC).isoformat()
        lines.append(json.dumps({"id": f"{number}-{second}", "at": at, "got": at, "k": "a", "v": second}))
    unfinished = folder / f"{number:03}.tmp"
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.rename(folder / f"{number:03}.jsonl")


def wait_until_processed(workspace: Workspace, records: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not workspace.exists or workspace.processed_end() < records:
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
