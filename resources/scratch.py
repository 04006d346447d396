"""Folders for files that only this process needs, on a disk of this machine, and locks among processes of a user.

Here: making them, and removing folders that a killed process has left. Not here: what is written there.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "tidemark-scratch-"
_OF_EARLIER_VERSIONS = "tidemark-spark-"
_IN_USE = "in_use"


def user_lock(name: str) -> FileLock:
    """Return a lock that every process of this user takes for the same work; one that dies lets it go.

    Its file stays in the folder for temporary files, so there is one for each name.
    """
    return FileLock(Path(tempfile.gettempdir(), f"tidemark-{name}-{os.getuid()}.lock"))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder, which is removed with the block; after a kill by a later process."""
    with tempfile.TemporaryDirectory(dir=_scratch_of(os.getpid())) as folder:
        yield Path(folder)


@cache
def _scratch_of(_process: int) -> Path:
    """Return the folder of a process: a fork gets one of its own."""
    return new_scratch()


def new_scratch() -> Path:
    """Make a folder that only its owner can enter, whatever the umask; the process removes it when it ends.

    The process holds the lock in it as long as it lives, however it ends. A folder whose lock is free has been left,
    so folders are made one at a time.
    """
    parent = Path(tempfile.gettempdir())
    with user_lock("scratch"):
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = FileLock(folder / _IN_USE)
        lock.acquire()
    atexit.register(_remove, folder, lock, os.getpid())
    return folder


def _sweep(parent: Path) -> None:
    """Remove folders of this user's processes that are gone."""
    for prefix in (_PREFIX, _OF_EARLIER_VERSIONS):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError, Timeout):
                if folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                    with FileLock(folder / _IN_USE, blocking=False):
                        shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, lock: FileLock, owner: int) -> None:
    """Remove the folder at the end of the process: the JVM, which ends a moment later, no longer needs it."""
    if os.getpid() == owner:  # a fork of it may have inherited the handler
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
