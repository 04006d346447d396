"""Where the command `tidemark` begins: in a fork of the warm process of this Dagster home, or without one here.

Here: which of the two. Not here: the commands (pipelines/cli.py), the warm process (pipelines/warm_process.py).

Nothing that takes long to import is imported before that is known.
"""

import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tidemark.pipelines.warm.asking import run_in_fork
from tidemark.pipelines.warm.process_end import code_after, finish

_STAY_HERE = ("serve",)
_NEW_OBJECTS = 5_000
"""So many more objects than before are made between two collections of garbage; Python's own number is 700."""


def main() -> NoReturn:
    """Run the command line of this process; exit as the command does, or by the signal that has ended it."""
    home = Path(os.environ.get("DAGSTER_HOME") or ".dagster")
    stays_here = len(sys.argv) == 1 or sys.argv[1] in _STAY_HERE
    code = None if stays_here else run_in_fork(home, sys.argv)
    if code is None:
        # The imports of a run make a million objects that stay, and Python goes through them again and again.
        gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
        code = finish(code_after(_run_here))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _run_here() -> None:
    from tidemark.pipelines.cli import main as run_words  # noqa: PLC0415 - takes half a second

    run_words(prog_name="tidemark")


if __name__ == "__main__":
    main()
