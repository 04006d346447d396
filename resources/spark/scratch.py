"""The folder of a process for what its Spark keeps on disk while it works: shuffles, jars, native libraries.

Here: making it, and removing it with what processes left that were killed. Not here: what lies in it.
"""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "tidemark-spark-"
_LOCK = "in_use"


def new_scratch() -> Path:
    """Make the folder, for its owner alone whatever the umask; the process removes it when it ends.

    The lock in it is held as long as the process lives, however that ends. Call it one process at a time: another one
    takes a folder whose lock nobody holds yet for left behind.
    """
    parent = Path(tempfile.gettempdir())
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = FileLock(folder / _LOCK)
    lock.acquire()
    atexit.register(_remove, folder, lock, os.getpid())
    return folder


def _sweep(parent: Path) -> None:
    """Removes folders of this user's processes that are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError, Timeout):
            if folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                with FileLock(folder / _LOCK, blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, lock: FileLock, owner: int) -> None:
    """At the end of the process: the JVM, which ends a moment later, needs none of it any more."""
    if os.getpid() == owner:  # a fork of it ends without its exit
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
