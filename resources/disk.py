"""A disk that takes no more, in the words of those who write to it: Python, delta-rs, and Java inside Spark.

Here: telling it from every other failure. Not here: where files are written, tables that cannot be read
(versions.py).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.timeops.errors import MachineError, TidemarkError

_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_READ_ONLY = ("Read-only file system", "attempt to write a readonly database")
_NOT_OURS = ("Permission denied", "Operation not permitted")
_REST = "Nothing of the batch was committed and nothing is lost: readers stay at the last commit"


class FullDiskError(MachineError):
    """There is no room to write; nothing of the batch was committed."""


class ReadOnlyError(MachineError):
    """What is to be written stands where this process may not write; nothing of the batch was committed."""


def full_disk(said: str, where: Path | None = None) -> FullDiskError | ReadOnlyError | None:
    """The error to raise where a failure says that nothing can be written; None where it says something else.

    Args:
        said: What the failure says.
        where: The folder that was written to, where it is known. Only then is a missing right one of these errors:
            of a file that is read it is none.
    """
    if reason := _first(_FULL, said):
        return FullDiskError(
            f"The disk is full: {reason}{_place(where)}.",
            expected="room for the batch's tables in the warehouse, and for Spark's temporary files",
            remedy=f"make room and run again. {_REST}",
        )
    reason = _first(_READ_ONLY, said) or (_first(_NOT_OURS, said) if where is not None else None)
    return None if reason is None else _read_only(reason, where)


def _read_only(reason: str, where: Path | None) -> ReadOnlyError:
    return ReadOnlyError(
        f"The disk cannot be written: {reason}{_place(where)}.",
        expected="a warehouse, a DAGSTER_HOME and a folder for temporary files that this user may write to",
        remedy=f"mount the disk for writing, or give this user the right, and run again. {_REST}",
    )


def _place(where: Path | None) -> str:
    return f": {where} was not written" if where is not None else ""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Names a table in the failure of a disk to take it.

    Raises:
        MachineError: The disk is full or takes nothing.
    """
    if folder.exists() and not os.access(folder, os.W_OK):  # asked first, as delta-rs panics beside its error
        raise _read_only("no right to write", folder)
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:
        if known := full_disk(str(error), folder):
            raise known from error
        raise


def _first(signs: tuple[str, ...], said: str) -> str | None:
    return next((sign for sign in signs if sign in said), None)
