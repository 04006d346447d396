"""Processes that start for the first time on a machine, or in a new home of Dagster, at the same moment.

Here: real downloads and databases, in folders of the test. Not here: runs of one pipeline at once (see
test_killed_runs.py).
"""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests import ROOT
from tests.processes import PATIENCE_S

_START = """
import sys
from tidemark.resources.spark.session import local_session, session_config
session = local_session(session_config(small=True) | {"spark.jars.ivy": sys.argv[1]})
print(session.range(3).count())
"""

_OPEN = """
import sys
import dagster
from tidemark.pipelines.command_line import say, settings_of
from tidemark.pipelines.running.instance import dagster_instance
print("ready", flush=True)
sys.stdin.readline()
with dagster_instance(settings_of(), "quakes", tell=say) as instance:
    print(instance.get_runs_count())
"""


@pytest.mark.long
def test_two_first_starts_at_the_same_moment_download_what_they_need_one_after_the_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _START, str(tmp_path / "packages")]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE_S) for process in started]
    assert [(process.returncode, out.decode().strip()) for process, (out, _) in zip(started, said, strict=True)] == [
        (0, "3"),
        (0, "3"),
    ], [error.decode() for _, error in said]


@pytest.mark.long
def test_processes_open_a_new_home_of_dagster_at_the_same_moment(tmp_path: Path) -> None:
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home")}
    started = [
        subprocess.Popen([sys.executable, "-c", _OPEN], cwd=ROOT, env=environment, text=True, stdin=PIPE, stdout=PIPE)
        for _ in range(4)
    ]
    ready = [process.stdout.readline() if process.stdout else "" for process in started]
    assert ready == ["ready\n"] * 4
    for process in started:
        if process.stdin:
            process.stdin.write("now\n")
            process.stdin.flush()
    said = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
    assert said == ["0\n"] * 4
