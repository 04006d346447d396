"""Real processes of a test: started with a log, waited for, and ended with all that they started."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE_S = 300
"""Until a process has done what is waited for, on a machine that is busy with other tests."""


@contextmanager
def process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the checkout; what it says goes to a file.

    Args:
        command: The program and its arguments.
        environment: Variables beside those of this process.
        log: The file.
    """
    with log.open("wb") as said:
        started = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield started
    finally:
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(30)
        with suppress(ProcessLookupError):  # what it started may outlive it
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def wait_until(holds: Callable[[], bool], log: Path, patience_s: float = PATIENCE_S) -> None:
    """Waits until something holds; without that the test fails, with what the process said."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)
