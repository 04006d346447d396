"""Failures of machines in the operator's words: a full disk, a Spark that went away.

Here: recognizing them among all failures. Not here: where files are written, tables that cannot be read
(delta/versions.py), starting another Spark (spark/choice.py).
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.resources.places.checks import failure_of_store
from tidemark.resources.places.place import Place
from tidemark.timeops.errors import MachineError, TidemarkError

_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_READ_ONLY = ("Read-only file system", "attempt to write a readonly database")
_NOT_OURS = ("Permission denied", "Operation not permitted")
_SERVER_GONE = ("RETRIES_EXCEEDED", "failed to connect to all addresses", "Socket closed")
_ROWS_GONE = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_JAVA_GONE = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")  # of errors
_REST = "Nothing of the batch was committed and nothing is lost: readers stay at the last commit"


class FullDiskError(MachineError):
    """There is no room to write; nothing of the batch was committed."""


class ReadOnlyError(MachineError):
    """This process may not write to its target; nothing of the batch was committed."""


def machine_failure(said: str, kind: str) -> MachineError | None:
    """Return the error to raise if a failure is one of the machine; None for every other.

    Args:
        said: The message of the failure.
        kind: Name of its class.
    """
    spark = server_gone(said) or executors_gone(said) or out_of_memory(said)
    return full_disk(said) or spark or failure_of_store(said) or java_gone(kind)


def full_disk(said: str, where: Path | None = None) -> FullDiskError | ReadOnlyError | None:
    """Return the error to raise if a failure says that nothing can be written; None if it says something else.

    Args:
        said: The message of the failure.
        where: The folder of the write, if it is known. Only then a missing right is one of these errors: for a file
            that is read it is not.
    """
    if reason := _first(_FULL, said):
        return FullDiskError(
            f"The disk is full: {reason}{_place(where or _file_in(said, reason))}.",
            expected="room for the batch's tables in the warehouse, and for Spark's temporary files",
            remedy=f"free some space and run again. {_REST}",
        )
    reason = _first(_READ_ONLY, said) or (_first(_NOT_OURS, said) if where is not None else None)
    return None if reason is None else _read_only(reason, where or _file_in(said, reason))


def server_gone(message: str) -> MachineError | None:
    """Return the error to raise if a Spark Connect server went away in the middle of the work."""
    if not any(sign in message for sign in _SERVER_GONE):
        return None
    return MachineError(
        "The Spark Connect server stopped answering.",
        remedy="run again: what was committed stays. Without the server a run computes in its own process.",
    )


def executors_gone(said: str) -> MachineError | None:
    """Return the error to raise if executors were lost with rows that no other executor has."""
    if _ROWS_GONE not in said:
        return None
    return MachineError(
        "Executors of the cluster went away with rows of the batch that no other executor had.",
        expected="one of the two executors that keep each row to live on",
        remedy=f"run again, which repeats the batch. {_REST}",
    )


def out_of_memory(said: str) -> MachineError | None:
    """Return the error to raise if a task of Spark ran out of memory, which ends that task alone."""
    reason = re.search(r"(?:OutOfMemoryError: *|UNABLE_TO_ACQUIRE_MEMORY[^A-Za-z]*)([^\n]*)", said)
    if reason is None:
        return None
    return MachineError(
        f"Spark ran out of memory: {reason[1].rstrip('.')}.",
        expected="values, and lists that aggregates such as `collect_list` make of a group, that fit into its memory",
        remedy="make less of a record or of a group (`left(text, 1000)`, smaller windows), take fewer records at "
        "once (`--max-events-per-batch`), or name a Spark with more memory in TIDEMARK_SPARK; then run again. "
        f"{_REST}",
    )


def java_gone(kind: str) -> MachineError | None:
    """Return the error to raise if a failure of this kind says that the Java process of Spark went away.

    Args:
        kind: Name of the exception's class.
    """
    if kind not in _JAVA_GONE:
        return None
    return MachineError(
        "The Java process of Spark ended in the middle of the work.",
        expected="a process that lives as long as the run",
        remedy="run again: what was committed is kept. If it goes away again, find the cause: the system's log "
        "names a process that was ended for want of memory, and an hs_err file holds Java's own failures",
    )


def _read_only(reason: str, where: Path | None) -> ReadOnlyError:
    return ReadOnlyError(
        f"The disk cannot be written: {reason}{_place(where)}.",
        expected="a warehouse, a DAGSTER_HOME and a folder for temporary files that this user may write to",
        remedy=f"mount the disk for writing, or grant this user write permission, and run again. {_REST}",
    )


def _file_in(said: str, reason: str) -> Path | None:
    """Return the file that Python names after its reason, in quotes."""
    named = re.search(rf"{re.escape(reason)}: '([^']+)'", said)
    return Path(named[1]) if named else None


def _place(where: Path | None) -> str:
    return f": {where} was not written" if where is not None else ""


@contextmanager
def writing(folder: Place) -> Iterator[None]:
    """Name a table in the error if a disk or a store refuses a write to it.

    Raises:
        MachineError: The disk is full or read-only, or the store denies the write.
    """
    path = folder if isinstance(folder, Path) else None
    if path is not None and path.exists() and not os.access(path, os.W_OK):  # delta-rs panics as well as raising
        raise _read_only("no right to write", path)
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:
        known = full_disk(str(error), path) if path is not None else failure_of_store(str(error))
        if known is not None:
            raise known from error
        raise


def _first(signs: tuple[str, ...], said: str) -> str | None:
    return next((sign for sign in signs if sign in said), None)
