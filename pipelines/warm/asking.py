"""Asking the warm process of a Dagster home: for a fork that does a run of Dagster, or a command.

Here: who asks, and what both sides know. Not here: that process (pipelines/warm_process.py), Dagster's launcher
(pipelines/warm_runs.py), where a command begins (pipelines/entrance.py).

The caller falls back to a new Python, so each answer says whether there is a fork. A fork waits for a second line
before it begins: a caller that has gone has used another way by then, and the work must not be done twice.

A command imports this before anything else, so nothing here takes long to import.
"""

import io
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that a command passes on to the fork that does its work."""
NOTE = "warm_runs.json"
"""The file of a home that names the socket of its warm process."""
PATIENCE_S = 5.0
"""How long either side waits for the other: it answers in milliseconds, unless it hangs or was stopped."""
GO = b"go\n"
"""The second line, which lets a fork begin; with that of a command go its streams.

They are not sent earlier: who reads from one would wait for a process that hangs, which has not taken them.
"""
STREAMS = 3
"""Input, output and errors."""
_NO_ANSWER = (OSError, ValueError, TypeError, KeyError)  # also of a note that is not one
_PIECE_BYTES = 65_536
_NAMESPACES = ("mnt", "pid", "net", "user")
_OTHER_FILES = ("/dev/fd/", "/proc/self/")
"""Where files are that this process has open, as a shell names them for `<(…)`: a fork has three streams alone."""
_READ_EARLY = ("ARROW_", "LD_", "MALLOC_", "OMP_", "PYTHON")
"""Prefixes of variables that libraries read when they are loaded: a fork has the values of the warm process."""
_LIMITS_OF_MEMORY = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK)
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def ask(home: Path, request: Mapping[str, Any]) -> bool:
    """Return the answer of the warm process of a Dagster home; False if none of this user answers."""
    with suppress(*_NO_ANSWER), _connected(home) as connection:
        answer = bool(_answer_of(connection, request))
        if answer and "fork" in request:  # nothing else waits for a second line: the connection may be closed by then
            connection.sendall(GO)
        return answer
    return False


def run_in_fork(home: Path, words: Sequence[str]) -> int | None:
    """Run a command line in a fork that has the terminal, the folder and the environment of this process.

    Signals reach it, and it ends when this process is killed.

    Returns:
        The exit code of the command; a negative one is the signal that has ended it. None if no process forks for it.
    """
    standard = (sys.stdin, sys.stdout, sys.stderr)
    streams = [stream for stream in standard if isinstance(stream, io.TextIOWrapper)]
    if len(streams) < STREAMS or any(path in word for word in words for path in _OTHER_FILES):
        return None  # a fork would have other files open than this process has
    with suppress(*_NO_ANSWER), _connected(home) as connection:
        ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
        request = {
            "command": list(words),
            "ignored": ignored,
            "umask": _umask(),
            "limits": [[number, resource.getrlimit(number)] for number in _LIMITS],
            "niceness": os.nice(0),
            "cores": list(os.sched_getaffinity(0)),
            "path": sys.path,
            "streams": [
                [stream.encoding, stream.errors, stream.line_buffering or stream.write_through] for stream in streams
            ],
            **given_at_start(),
            "version": version("tidemark"),
            **python_of(sys.executable),
            **environment(),
        }
        fork = _answer_of(connection, request)
        return _attend(connection, fork, set(SIGNALS).difference(ignored)) if fork else None
    return None


def python_of(executable: str) -> Mapping[str, Any]:
    """Return the part of a request that names an environment of Python: `bin/python3` of one is its `bin/python`."""
    return {"python": [os.path.dirname(os.path.abspath(executable)), os.path.realpath(executable)]}


def environment() -> Mapping[str, Any]:
    """Return the part of a request that a fork takes over from this process."""
    return {"environment": dict(os.environ), "folder": os.getcwd()}


def _umask() -> int:
    umask = os.umask(0)  # it can only be read by setting it
    os.umask(umask)
    return umask


def given_at_start() -> Mapping[str, Any]:
    """Return the part of a request that a process has from its start: a fork has what the warm process has.

    Its memory is mapped already, so limits of memory would leave a fork less than a new Python.
    """
    return {
        "early": {name: value for name, value in os.environ.items() if name.startswith(_READ_EARLY)},
        "groups": [os.getegid(), *sorted(os.getgroups())],
        "memory": [resource.getrlimit(number)[0] for number in _LIMITS_OF_MEMORY],
    }


def namespaces() -> list[str]:
    """Return the namespaces of this process: in another container a path or a number of a process is another one's.

    Raises:
        OSError: This system has none.
    """
    return [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]


@contextmanager
def _connected(home: Path) -> Iterator[socket.socket]:
    """Connect to the warm process of a home.

    Raises:
        OSError: There is none, or that of another user, who would be sent the environment.
        ValueError: The note of the home is not one of ours.
    """
    note = (home / NOTE).read_text(encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(json.loads(note)["path"]))
        if user_of(connection) != os.getuid():
            raise PermissionError(f"{home / NOTE} names a process of another user")
        yield connection


def user_of(connection: socket.socket) -> int:
    """Return the user at the other end of a connection on this machine."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def _answer_of(connection: socket.socket, request: Mapping[str, Any]) -> int:
    """Send a request; return the process of the fork that it got, otherwise whether the answer was yes."""
    connection.sendall(json.dumps({"namespaces": namespaces(), **request}).encode() + b"\n")
    return int(json.loads(received_line(connection)))


def received_line(connection: socket.socket) -> bytes:
    """Receive a line; a ConnectionError if the other side has gone before its end."""
    text = b""
    while not text.endswith(b"\n"):
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            raise ConnectionError("the connection was closed")
        text += piece
    return text


def _attend(connection: socket.socket, fork: int, passed_on: set[signal.Signals]) -> int:
    """Let a fork begin, pass signals on to it, and return its exit code, or minus the last signal if it left none."""
    signals = [signal.SIGKILL]

    def pass_on(number: int, _: object) -> None:
        signals.append(signal.Signals(number))
        with suppress(OSError):  # it has ended
            connection.send(bytes([number]))

    def pause(number: int, _: object) -> None:
        with suppress(OSError):
            os.kill(fork, signal.SIGSTOP)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # until it is continued; at once where no shell could do that
        signal.signal(number, pause)
        with suppress(OSError):
            os.kill(fork, signal.SIGCONT)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)  # the line comes first, then what they send
    try:
        socket.send_fds(connection, [GO], range(STREAMS))
        for number in passed_on:
            signal.signal(number, pass_on)
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:  # Ctrl-Z
            signal.signal(signal.SIGTSTP, pause)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    connection.settimeout(None)
    try:
        return int(json.loads(received_line(connection)))
    except (OSError, ValueError):
        return -signals[-1]


@contextmanager
def warm_process(home: Path) -> Iterator[None]:
    """Keep a process that forks for all that have a Dagster home, during the block; its forks outlive it."""
    # -P: as for the command `tidemark`, a file of the folder where it was typed is not a module.
    command = [sys.executable, "-P", "-m", "tidemark.pipelines.warm_process", str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # it ends when the pipe is closed
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
