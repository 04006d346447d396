"""The folder for what Spark keeps while it works: private, and removed, also after processes that were killed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import ROOT
from tidemark.resources.spark.session import new_scratch

_PROCESS = """
import sys
from tidemark.resources.spark.session import new_scratch
folder = new_scratch()
(folder / "blockmgr").mkdir()
print(folder, flush=True)
sys.stdin.read()
"""


@contextmanager
def another(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a process that has a folder, until its input ends."""
    command = [sys.executable, "-c", _PROCESS]
    known = {**os.environ, "TMPDIR": str(parent)}
    with subprocess.Popen(
        command, cwd=ROOT, env=known, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        yield started, Path(started.stdout.readline().strip())


def test_the_folder_is_its_owners_alone_and_goes_with_its_process_also_with_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "spark-of-somebody-else").mkdir()
    with another(tmp_path) as (ends, first), another(tmp_path) as (killed, second):
        assert first.parent == tmp_path
        assert first.stat().st_mode & 0o777 == 0o700
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (second / "blockmgr").is_dir(), "nobody was there to remove it"
        own = new_scratch()
        assert (first / "blockmgr").is_dir(), "its process lives"
        assert not second.exists()
        ends.communicate("")
        assert ends.returncode == 0
        assert not first.exists()
    assert {path.name for path in tmp_path.iterdir()} == {own.name, "spark-of-somebody-else"}
