"""The end of a process that has imported a lot: as Python ends, but at once.

Here: the exit code of what was run, and what has to be done before a process leaves. Not here: what is run
(pipelines/entrance.py, pipelines/warm_process.py), a wish to stop (resources/machine.py).

Python ends by going three times through all objects, and the imports of a run leave a million: that takes as long as
a look for new input. The files, threads and exit handlers of a process are ended here, and its memory is the system's
to take back.
"""

import atexit
import signal
import sys
import threading
import traceback
from collections.abc import Callable

_OUTPUT_LOST = 120  # as Python's own, where what was written last did not arrive


def code_after(work: Callable[[], None]) -> int:
    """Run something that may exit; return the exit code, or minus the signal that Python would end by."""
    try:
        work()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        if sys.stderr is not None:
            sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:  # what ran has not taken it
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def finish(code: int) -> int:
    """Wait for threads, run the exit handlers and write what is left; return the exit code, of several the last."""
    threading._shutdown()  # type: ignore[attr-defined]  # as Python ends, and forks of `multiprocessing`
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it was closed before the process began
                stream.flush()
    except OSError:
        return code or _OUTPUT_LOST
    return code
