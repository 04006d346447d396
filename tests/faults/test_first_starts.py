"""Processes that start Spark for the first time on a machine, at the same moment.

Here: real downloads, into a folder of the test. Not here: runs of one pipeline at once (see test_killed_runs.py).
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, ROOT

_START = """
import sys
from tidemark.resources.spark.session import local_session, session_config
session = local_session(session_config(small=True) | {"spark.jars.ivy": sys.argv[1]})
print(session.range(3).count())
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
