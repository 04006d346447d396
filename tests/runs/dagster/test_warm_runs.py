"""Runs that Dagster launches begin in forks of a process that has imported everything, where one is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from tests.processes import wait_until
from tidemark.assets.catalog.runs import PROCESS_TAG
from tidemark.pipelines.warm.asking import warm_process

JOBS = """
import os, time
from dagster import Definitions, in_process_executor, job, op
from tidemark.assets.catalog.runs import say_who_runs

@op
def note() -> None:
    with open(os.environ["NOTE"], "w") as file:
        file.write(f"{os.getppid()} {os.getcwd()}")

@op
def wait(context) -> None:
    say_who_runs(context)
    time.sleep(600)

@job(executor_def=in_process_executor)
def noting():
    note()

@job(executor_def=in_process_executor)
def waiting():
    wait()

defs = Definitions(jobs=[noting, waiting])
"""


INSTANCE = """
telemetry: {enabled: false}
run_launcher: {module: tidemark.pipelines.warm_runs, class: WarmRunLauncher}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
"""
"""As `make ui` writes it, but for the queue: a daemon would have to empty it."""


@pytest.mark.long
def test_a_launched_run_is_a_fork_of_the_warm_process_can_be_stopped_and_without_it_is_launched_as_ever(
    tmp_path: Path,
) -> None:
    home, jobs, note, log = (tmp_path / name for name in ("home", "jobs.py", "note", "log"))
    home.mkdir()
    (home / "dagster.yaml").write_text(INSTANCE)
    jobs.write_text(JOBS)
    log.touch()
    dagster = [str(Path(sys.executable).with_name("dagster")), "job", "launch", "-f", str(jobs), "-j"]

    def launch(job: str) -> str:
        words = os.environ | {"DAGSTER_HOME": str(home), "NOTE": str(note)}
        done = subprocess.run([*dagster, job], env=words, cwd=tmp_path, capture_output=True, text=True, check=False)
        log.write_text(log.read_text() + done.stderr)
        assert done.returncode == 0, done.stderr
        return instance.get_run_records(limit=1)[0].dagster_run.run_id

    def is_at(run: str, status: DagsterRunStatus) -> bool:
        found = instance.get_run_by_id(run)
        return found is not None and found.status == status

    def names_its_process(run: str) -> bool:
        found = instance.get_run_by_id(run)
        return found is not None and PROCESS_TAG in found.tags

    with DagsterInstance.from_config(str(home)) as instance:
        with warm_process(home):
            wait_until((home / "warm_runs.json").exists, log)
            forked = launch("noting")
            wait_until(lambda: is_at(forked, DagsterRunStatus.SUCCESS), log)
            parent, folder = note.read_text().split(" ", 1)
            assert f'"pid": {parent}}}' in (home / "warm_runs.json").read_text()
            assert Path(folder) == tmp_path
            stopped = launch("waiting")
            wait_until(lambda: is_at(stopped, DagsterRunStatus.STARTED), log)
            assert instance.run_launcher.terminate(stopped)
            wait_until(lambda: is_at(stopped, DagsterRunStatus.CANCELED), log)
            left = launch("waiting")
            wait_until(lambda: names_its_process(left), log)
        assert instance.run_launcher.terminate(left), "as when `tidemark serve` was started again"
        wait_until(lambda: is_at(left, DagsterRunStatus.CANCELED), log)
        note.unlink()
        alone = launch("noting")
        wait_until(lambda: is_at(alone, DagsterRunStatus.SUCCESS), log)
        assert note.read_text().split(" ", 1)[0] != parent
