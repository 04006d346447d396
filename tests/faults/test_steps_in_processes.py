"""Runs of Dagster's multiprocess executor, with a process for each step: who owns a batch, and what a kill leaves.

The stages are without Spark: they plan a batch, find it again, and wait. The executor, its processes, the log of
batches and the kills are real.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests import ROOT
from tests.runs.landing import land
from tests.runs.running import scheduled
from tidemark.assets.catalog.runs import PROCESS_TAG, LiveRun, process_of_run, say_who_runs
from tidemark.assets.planning import begin
from tidemark.pipelines.code_location.launching import end_dead_runs
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.plans import process_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import BusyError

pytestmark = pytest.mark.long
PATIENCE_S = 240


def base() -> Path:
    return Path(os.environ["DAGSTER_HOME"]).parent


def opened(context: Any = None) -> Workspace:
    """Return the pipeline, as a stage opens it where there is one."""
    process = os.getpid if context is None else lambda: process_of_run(context).pid
    return Workspace(read_spec(base() / "steps.yaml"), base() / "warehouse", process=process)


def begin_for(workspace: Workspace, run_id: str) -> None:
    begin(workspace, run_id, "process", {"flush": False}, after=None, seqs=(0, 3))


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def plans(context: dg.OpExecutionContext) -> None:
    say_who_runs(context)
    begin_for(opened(context), context.run_id)


@dg.op(ins={"start": dg.In(dg.Nothing)}, retry_policy=dg.RetryPolicy(max_retries=1))
def goes_on(context: dg.OpExecutionContext) -> None:
    workspace, unused = opened(context), Any
    batch = LiveRun(lambda *_: workspace).batch(context, unused)  # type: ignore[arg-type]
    assert batch is not None, "the batch that an earlier stage has planned"
    with pytest.raises(BusyError):
        begin_for(workspace, "another run")
    number = len(list(base().glob("step[0-9]")))
    (base() / f"step{number}").write_text(f"{os.getpid()} {batch.plan.attempt} {batch.plan.owner.id}")
    deadline = time.monotonic() + PATIENCE_S
    while (base() / "wait").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if (base() / "fail").exists():
        raise dg.Failure("asked for", allow_retries=False)


@dg.job(executor_def=dg.multiprocess_executor)
def steps() -> None:
    goes_on(plans())


RUN = """
from dagster import DagsterInstance, execute_job, reconstructable
from tests.faults.test_steps_in_processes import steps
if __name__ == "__main__":
    with DagsterInstance.get() as instance:
        execute_job(reconstructable(steps), instance)
"""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    scheduled(tmp_path, "steps")
    land(tmp_path / "in_steps", 3, seed=1, files=1)
    Lake(tmp_path / "warehouse" / "steps").create(BATCHES, BATCHES_SCHEMA)
    with dg.DagsterInstance.get() as made:
        yield made


@contextmanager
def run_worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process of a run whose second step is at work and waits."""
    (folder / "wait").touch()
    (folder / "run.py").write_text(RUN)
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen([sys.executable, "run.py"], cwd=folder, env=given, start_new_session=True)
    try:
        wait_for((folder / "step0").exists)
        yield worker
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def said(folder: Path, number: int = 0) -> tuple[int, int, str]:
    """Return the process of a step that went on, the attempt and the owner of its batch."""
    wait_for(lambda: bool((folder / f"step{number}").exists() and (folder / f"step{number}").read_text()))
    pid, attempt, owner = (folder / f"step{number}").read_text().split()
    return int(pid), int(attempt), owner


def dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Look as the sensor does."""
    return end_dead_runs(opened(), "steps_live", instance)


def test_a_step_that_is_killed_leaves_the_run_and_its_batch_alone_and_is_tried_again(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    with run_worker(tmp_path) as worker:
        pid, attempt, owner = said(tmp_path)
        assert pid != worker.pid
        [run] = instance.get_runs()
        assert run.tags[PROCESS_TAG] == process_of(worker.pid).text
        assert dead_runs(instance) == [], "the process of the first step has ended, that of the run has not"
        os.kill(pid, signal.SIGKILL)
        again, attempt_again, owner_again = said(tmp_path, 1)
        assert (attempt_again, owner_again) == (attempt, owner)
        assert again != pid
        assert dead_runs(instance) == []
        (tmp_path / "wait").unlink()
        assert worker.wait(PATIENCE_S) == 0
    [run] = instance.get_runs()
    assert run.status == dg.DagsterRunStatus.SUCCESS


def test_a_run_that_is_killed_is_over_although_its_step_lives_on_and_another_run_takes_its_batch(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    with run_worker(tmp_path) as worker:
        pid, _, owner = said(tmp_path)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        os.kill(pid, 0)  # its step outlives it
        [sentence] = dead_runs(instance)
        assert sentence.startswith(f"run {owner} is over: process {worker.pid} on ")
        [run] = instance.get_runs()
        assert run.status == dg.DagsterRunStatus.FAILURE
        begin_for(opened(), "another run")
    taken = opened().batches.pending()
    assert taken is not None
    assert (taken.owner.id, taken.attempt) == ("another run", 2)


def test_a_run_repeated_from_where_it_failed_goes_on_with_the_same_attempt_at_its_batch(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Its tags are copies of those of the run that failed, and say nothing of it."""
    (tmp_path / "fail").touch()
    job = dg.reconstructable(steps)
    with dg.execute_job(job, instance) as failed:
        assert not failed.success
    (tmp_path / "fail").unlink()
    options = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    with dg.execute_job(job, instance, reexecution_options=options) as repeated:
        assert repeated.success
    assert said(tmp_path, 0)[1:] == (1, failed.run_id)
    assert said(tmp_path, 1)[1:] == (1, repeated.run_id)
