"""Runs that are killed between two commits of a batch, and go on as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from resources.workspace import Workspace
from tests.orchestration.landing import assert_tables_equal_the_oracle, land
from tests.orchestration.test_live_runs import pipeline

DEADLINE_S = 300
TIDEMARK = Path(sys.executable).with_name("tidemark")


def start(tmp_path: Path, spec: Path) -> subprocess.Popen[bytes]:
    """The command line in a process group of its own."""
    command = [str(TIDEMARK), "run", str(spec), "--warehouse", str(tmp_path / "warehouse")]
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path / "home")}
    with (tmp_path / "said.txt").open("ab") as said:
        return subprocess.Popen(command, start_new_session=True, env=environment, stdout=said, stderr=said)


def kill_after(process: subprocess.Popen[bytes], table: Path, version: int, *, group: bool) -> None:
    """Kills the process, or it and its JVM, as soon as a table has got a version."""
    commit = table / "_delta_log" / f"{version:020d}.json"
    until = time.monotonic() + DEADLINE_S
    while not commit.exists():
        assert process.poll() is None, "the run ended before the commit that it was to be killed after"
        assert time.monotonic() < until, f"{commit} was not written in time"
        time.sleep(0.02)
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def test_runs_killed_after_a_tables_commit_are_finished_by_the_next_with_the_oracles_tables(tmp_path: Path) -> None:
    file, settings = pipeline(tmp_path, "killed", "keep")
    land(tmp_path / "in_killed", 300, seed=5)
    tables = settings.warehouse / "killed"

    kill_after(start(tmp_path, file.path), tables / "ordered_events", 1, group=True)
    workspace = Workspace(file, settings.warehouse)
    pending = workspace.batches.pending()
    assert pending is not None
    assert (pending.kind, workspace.processed_end()) == ("process", 0), "the batch stands uncommitted"

    # The version after the one that the killed run wrote undoes it; the one after that is the second try.
    kill_after(start(tmp_path, file.path), tables / "ordered_events", 3, group=False)
    assert workspace.processed_end() == 0

    assert start(tmp_path, file.path).wait(DEADLINE_S) == 0, (tmp_path / "said.txt").read_text()
    assert workspace.processed_end() == 300
    assert workspace.batches.pending() is None
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
