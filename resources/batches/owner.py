"""Who works on a batch, and whether that process still lives.

Here: the identity of a process. Not here: plans, leases and what a take-over does (see batch_log.py).
"""

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

LEASE = timedelta(minutes=10)
"""How long the owner on another host counts as alive after its last heartbeat."""


@dataclass(frozen=True)
class Owner:
    """The process that works on a batch.

    Args:
        id: Random name of the run, so that two runs are never taken for one.
        host: Name of the machine.
        pid: Process number on that machine.
        started: When the process began, in clock ticks since the machine started. It tells a process from a
            later one with the same number. None where the system does not tell.
    """

    id: str
    host: str
    pid: int
    started: int | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def text(self) -> str:
        """All but the id in one line, for `owner_in`."""
        return f"{self.host}:{self.pid}:{'' if self.started is None else self.started}"


def owner_in(text: str, owner_id: str) -> Owner | None:
    """Return the owner that `Owner.text` says, None where it says none."""
    host, _, numbers = text.partition(":")
    pid, _, started = numbers.partition(":")
    if not pid.isdecimal() or not (started.isdecimal() or not started):
        return None
    return Owner(owner_id, host, int(pid), int(started) if started else None)


def this_process(owner_id: str) -> Owner:
    """Return this process as the owner with the given random name."""
    return process_of(os.getpid(), owner_id)


def process_of(pid: int, owner_id: str = "") -> Owner:
    """Return a process of this machine as an owner."""
    return Owner(owner_id, socket.gethostname(), pid, _start_of(pid))


def is_gone(owner: Owner, heartbeat_at: datetime, now: datetime, lease: timedelta = LEASE) -> bool:
    """Tell whether the owner of a batch no longer works on it.

    On this host the process itself is asked: it is gone when there is none, or another one has its number
    now. A live process is never gone, however long it has been silent. Of another host only the heartbeat is
    known.

    Args:
        owner: The owner in question.
        heartbeat_at: When it was last heard of.
        now: The present instant.
        lease: How long an owner elsewhere may be silent.
    """
    if owner.host != socket.gethostname():
        return now - heartbeat_at > lease
    if not _is_alive(owner.pid):
        return True
    return owner.started is not None and owner.started != _start_of(owner.pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, and belongs to somebody else
        return True
    fields = _stat(pid)
    return not fields or fields[0] not in "ZX"  # killed, only its parent has not noticed yet


def _start_of(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on (proc(5), field 3); nothing where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it is in brackets and may hold anything
