"""Runs that an operator stops with Ctrl-C, or a service manager with SIGTERM: a sentence is said, nothing is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from pyspark.sql import SparkSession

from tests import ROOT
from tests.faults.killed import Death, Gateway, Stop, run_and_die
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import go, pipeline
from tidemark.assets import live
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.resources.workspace import Workspace

STAGES = (
    "looking for new input",
    "reading",
    "raw_events",
    "judging",
    "ordered_events",
    "checking ordered_events",
    "closing windows",
    "windows/per_minute",
    "checking window_results",
    "writing dead letters",
    "checking dead_letters",
    "committing",
)
"""Steps and commits that a run reports, in order."""
SAID = {
    "SIGINT": "Stopped. Nothing is lost: what was committed stays, and the next run does the rest.\n",
    "SIGTERM": "Stopped by SIGTERM. Nothing is lost: what was committed stays, and the next run does the rest.\n",
}
CODES = {"SIGINT": 130, "SIGTERM": 143}


@pytest.mark.long
@pytest.mark.parametrize(
    ("by", "stages"),
    [
        pytest.param("SIGINT", ("committing",), id="one"),
        pytest.param("SIGINT", STAGES[::2], id="SIGINT"),
        pytest.param("SIGTERM", STAGES[1::2], id="SIGTERM"),
    ],
)
def test_a_run_that_is_stopped_commits_nothing_more_says_so_and_the_next_one_goes_on(
    spark: SparkSession, tmp_path: Path, by: Stop, stages: tuple[str, ...]
) -> None:
    """Each run goes on where the one before was stopped."""
    file, settings = pipeline(tmp_path, "stopped", "drop", sparse=False)
    land(tmp_path / "in_stopped", 200, seed=5)
    workspace = Workspace(file, settings.warehouse)
    for stage in stages:
        code = run_and_die(file.path, settings.warehouse, Death(stage, by), Gateway.of(spark))
        said = (tmp_path / "said.txt").read_text()
        assert (stage, code, said) == (stage, CODES[by], SAID[by])
        assert not workspace.exists or workspace.batches.last_commit("process") is None
    assert go((file, settings)).batches == 1
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


def test_a_run_that_is_terminated_in_dagster_is_canceled_and_no_stage_is_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, settings = pipeline(tmp_path, "ended", "drop", sparse=False)
    land(tmp_path / "in_ended", 20, seed=5)

    def terminated(*_given: object) -> None:
        [run] = instance.get_runs()
        instance.report_run_canceling(run)
        os.kill(os.getpid(), signal.SIGTERM)  # as Dagster's launcher does

    monkeypatch.setattr(live, "write_dead_letters", terminated)
    with DagsterInstance.ephemeral() as instance:
        job = build_definitions(settings, [file]).resolve_job_def(job_name(file))
        done = job.execute_in_process(instance=instance, raise_on_error=False)
        [run] = instance.get_runs()
        assert run.status == DagsterRunStatus.CANCELED
        assert not [event for event in done.all_events if event.is_step_up_for_retry]
    assert Workspace(file, settings.warehouse).batches.last_commit("process") is None


def test_nothing_that_a_stop_has_ended_prints_a_traceback_before_the_sentence() -> None:
    program = """
import logging, os, signal, threading
from tidemark.pipelines.command_line import in_words
class Failing:
    def __del__(self):
        raise KeyboardInterrupt
def fail():
    raise ValueError("the connection is closed")
with in_words():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        logging.getLogger("sqlalchemy.pool").error("Exception during reset or similar", exc_info=True)
        Failing()
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        raise
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (CODES["SIGINT"], "", SAID["SIGINT"])


def test_a_ctrl_c_of_a_terminal_reaches_no_process_that_prints_a_traceback(tmp_path: Path) -> None:
    """Send the signal to the whole group of processes, as a terminal does, from inside of an op."""
    program = """
import os, signal, time
import dagster as dg
from tidemark.pipelines.command_line import in_words, say, settings_of
from tidemark.pipelines.running.instance import dagster_instance
@dg.op
def stage():
    time.sleep(1)  # what has been started has come as far as it can be interrupted
    os.killpg(0, signal.SIGINT)
@dg.job
def stages():
    stage()
with in_words(), dagster_instance(settings_of(), "shop", tell=say) as instance:
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    stages.execute_in_process(instance=instance, raise_on_error=False, run_config=quiet)
"""
    here = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home"), "TIDEMARK_WAREHOUSE": str(tmp_path / "warehouse")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=here, start_new_session=True, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (CODES["SIGINT"], "", SAID["SIGINT"])


def test_a_stop_that_python_drops_inside_of_a_finalizer_is_known_all_the_same() -> None:
    program = """
import os, signal, sys
from tidemark.pipelines.command_line import in_words
class Dropping:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
sys.unraisablehook = lambda dropped: print(dropped.exc_type.__name__)
with in_words():
    Dropping()
    print("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "KeyboardInterrupt\nwent on\n"
    assert (done.returncode, done.stderr) == (CODES["SIGTERM"], SAID["SIGTERM"])
