"""The end of work by the machine: a full disk, a Spark that went away, and the wish to stop this process.

Here: recognizing such failures among all failures, in the operator's words; the handlers of Ctrl-C and SIGTERM, and
which of the two came. Not here: where files are written, tables that cannot be read (resources/delta/versions.py),
starting another Spark (resources/spark/choice.py), the tidying up of a stopped run (pipelines/running/execution.py).

An exception from a handler is not enough. Dagster and Spark replace our handlers, Dagster tries an interrupted stage
again, and Python drops errors inside a finalizer. So Python also writes the number of each signal into a socket,
whatever handles it.
"""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

from tidemark.resources.places.checks import failure_of_store
from tidemark.resources.places.place import Place
from tidemark.timeops.errors import MachineError, TidemarkError

_FULL = ("No space left on device", "Disk quota exceeded", "File too large", "database or disk is full")
_OF_DATABASE = (  # SQLite, the first two also where the disk is full
    "disk I/O error",
    "unable to open database file",
    "database disk image is malformed",
    "file is not a database",
)
_READ_ONLY = ("Read-only file system", "attempt to write a readonly database")
_NOT_OURS = ("Permission denied", "Operation not permitted")
_SERVER_GONE = ("RETRIES_EXCEEDED", "failed to connect to all addresses", "Socket closed")
_ROWS_GONE = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_JAVA_GONE = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")  # of errors
_REST = "Nothing of the batch was committed and nothing is lost: readers still see the last commit"


class FullDiskError(MachineError):
    """There is no room to write; nothing of the batch was committed."""


class ReadOnlyError(MachineError):
    """This process may not write to its target; nothing of the batch was committed."""


def machine_failure(message: str, kind: str) -> MachineError | None:
    """Return the error to raise if the message or the class of a failure is of the machine; None for every other."""
    of_disk = full_disk(message) or _failure_of_database(message)
    return of_disk or _failure_of_spark(message) or failure_of_store(message) or java_gone(kind)


def full_disk(message: str, where: Path | None = None) -> FullDiskError | ReadOnlyError | None:
    """Return the error to raise if a failure says that nothing can be written; None if it says something else.

    A missing right is one of them only if the folder of the write is known: for a file that is read it is not.
    """
    if reason := _first(_FULL, message):
        return FullDiskError(
            f"The disk is full: {reason}{_place(where or _file_in(message, reason))}.",
            expected="room for the batch's tables in the warehouse, and for Spark's temporary files",
            remedy=f"free some space and run again. {_REST}",
        )
    reason = _first(_READ_ONLY, message) or (_first(_NOT_OURS, message) if where is not None else None)
    return None if reason is None else _read_only(reason, where or _file_in(message, reason))


def _failure_of_database(message: str) -> MachineError | None:
    """Return the error to raise if SQLite cannot read or write its files: even to read them it needs some room."""
    reason = _first(_OF_DATABASE, message)
    if reason is None:
        return None
    return MachineError(
        f"Dagster's database in DAGSTER_HOME can be neither read nor written: {reason}.",
        expected="room on the disk of DAGSTER_HOME, which SQLite needs for reading too",
        remedy="free some space and run again: what was committed stays, and the next run does the rest. If there is "
        "room, look for errors of this disk in the system log",
    )


def _failure_of_spark(message: str) -> MachineError | None:
    if _first(_SERVER_GONE, message):
        return MachineError(
            "The Spark Connect server stopped answering.",
            remedy="run again: what was committed stays. Without the server a run computes in its own process.",
        )
    if _ROWS_GONE in message:
        return MachineError(
            "Executors of the cluster were lost with rows of the batch that no other executor had.",
            expected="at least one of the two executors that keep each row to survive",
            remedy=f"run again, which repeats the batch. {_REST}",
        )
    reason = re.search(r"(?:OutOfMemoryError: *|UNABLE_TO_ACQUIRE_MEMORY[^A-Za-z]*)([^\n]*)", message)
    if reason is None:
        return None
    return MachineError(
        f"Spark ran out of memory: {reason[1].rstrip('.')}.",
        expected="values, and lists that aggregates such as `collect_list` build for a group, that fit into its "
        "memory",
        remedy="use less of each record or group (`left(text, 1000)`, smaller windows), process fewer records at "
        "once (`--max-events-per-batch`), or name a Spark with more memory in TIDEMARK_SPARK; then run again. "
        f"{_REST}",
    )


def java_gone(kind: str) -> MachineError | None:
    """Return the error to raise if a failure of this class says that the Java process of Spark went away."""
    if kind not in _JAVA_GONE:
        return None
    return MachineError(
        "Spark's Java process ended in the middle of the work.",
        expected="a process that lives as long as the run",
        remedy="run again: no committed row is lost. If it ends again, find the cause: the system log names "
        "processes that were killed for lack of memory, and an hs_err file describes a crash of Java itself",
    )


def _read_only(reason: str, where: Path | None) -> ReadOnlyError:
    return ReadOnlyError(
        f"The disk cannot be written: {reason}{_place(where)}.",
        expected="a warehouse, a DAGSTER_HOME and a folder for temporary files that this user may write to",
        remedy=f"mount the disk for writing, or grant this user write permission, and run again. {_REST}",
    )


def _file_in(message: str, reason: str) -> Path | None:
    """Return the file that Python names after its reason, in quotes."""
    named = re.search(rf"{re.escape(reason)}: '([^']+)'", message)
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
        raise _read_only("no permission to write", path)
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:
        failure = full_disk(str(error), path) if path is not None else failure_of_store(str(error))
        if failure is not None:
            raise failure from error
        raise


def _first(signs: tuple[str, ...], message: str) -> str | None:
    return next((sign for sign in signs if sign in message), None)


_STOPPING = (signal.SIGINT, signal.SIGTERM)
_noted: list[signal.Signals] = []
_sockets: list[socket.socket] = []


def stop_signal() -> signal.Signals | None:
    """Return the first signal that asked this process to stop; None if none has come, or if nothing listens."""
    for numbers in map(_read, _sockets):
        _noted.extend(signal.Signals(number) for number in numbers if number in _STOPPING)
    return _noted[0] if _noted else None


def ensure_not_stopped() -> None:
    """Check that this process was not asked to stop.

    Raises:
        KeyboardInterrupt: It was asked to stop.
    """
    if stop_signal() is not None:
        raise KeyboardInterrupt


@contextmanager
def listening(*, then_ends: bool = True) -> Iterator[None]:
    """Raise KeyboardInterrupt during the block at Ctrl-C and at SIGTERM, and note which one it was.

    Afterwards a process that was asked to stop is ended by the next signal at once, if it is to end then; else the
    handlers are the earlier ones, whatever Spark and Dagster have set. Only the main thread may listen; in another
    one, and inside of a block that listens, nothing changes.
    """
    if current_thread() is not main_thread() or _sockets:
        yield
        return
    handlers = {number: signal.signal(number, _stop) for number in _STOPPING}
    receives, sends = socket.socketpair()
    for end in (receives, sends):
        end.setblocking(False)  # Python wants it so: a full socket must not block a signal handler
    earlier_fd = signal.set_wakeup_fd(sends.fileno(), warn_on_full_buffer=False)
    _sockets.append(receives)
    try:
        yield
    finally:
        is_stopped = then_ends and stop_signal() is not None
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if is_stopped or handler is None else handler)
        signal.set_wakeup_fd(earlier_fd)
        _sockets.remove(receives)
        _noted.clear()
        receives.close()
        sends.close()


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _read(receives: socket.socket) -> bytes:
    try:
        return receives.recv(4096)
    except BlockingIOError:
        return b""
