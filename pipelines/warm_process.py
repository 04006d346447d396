"""The process that has everything imported, and forks: for runs that Dagster launches, and for commands.

Here: that process and its forks. Not here: who asks it (pipelines/warm/asking.py), who keeps it
(pipelines/warm/serving.py, pipelines/demos/ui.py), what a run does (pipelines/running/runner.py).
"""

import atexit
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from tidemark.pipelines.warm.asking import (
    GO,
    NOTE,
    PATIENCE_S,
    SIGNALS,
    STREAMS,
    given_at_start,
    namespaces,
    python_of,
    received_line,
    user_of,
)
from tidemark.pipelines.warm.process_end import code_after, finish
from tidemark.resources.scratch import new_scratch

_LOOK_EVERY_S = 1.0
_VERSION = version("tidemark")  # of what is imported, whatever is installed later
_IMPORTS = (
    "dagster._cli.api",
    "dagster._core.execution.api",
    "dagster._core.instance.factory",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.sqlite_storage",
    "duckdb",
    "great_expectations",
    "pyspark.sql.connect.session",
    "tidemark.assets.catalog.display.pictures",
    "tidemark.pipelines.cli",
    "tidemark.pipelines.definitions",
    "tidemark.pipelines.running.execution",
    "tidemark.pipelines.running.runner",
    "tidemark.resources.sources.file_records",
    "upath.implementations.local",
)


def main(home: Path) -> None:
    """Import what runs need, then fork for each that is asked for, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who keeps it, and for the runs
    gc.disable()
    for name in _IMPORTS:
        if select.select([sys.stdin], [], [], 0)[0]:  # who keeps it has ended already
            return
        importlib.import_module(name)
    gc.collect()
    gc.enable()
    gc.freeze()  # so that a collection in a fork leaves the memory of all that was imported shared
    path = new_scratch() / "socket"  # in a home its name could be too long for one
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))  # the folder is this user's alone
        listener.listen()
        note, text = home / NOTE, json.dumps({"path": str(path), "pid": os.getpid()})
        note.write_text(text, encoding="utf-8")
        _serve(listener, note, text)
        with suppress(OSError):
            if note.read_text(encoding="utf-8") == text:
                note.unlink()


def _serve(listener: socket.socket, note: Path, text: str) -> None:
    """Answer until standard input ends; the note names this process, while no other one has written it."""
    pids = dict[str, int]()  # of the forks, by the run of Dagster or by the time of a command
    while True:
        ready, _, _ = select.select([listener, sys.stdin.fileno()], [], [], _LOOK_EVERY_S)
        pids = {run: pid for run, pid in pids.items() if not os.waitpid(pid, os.WNOHANG)[0]}
        if sys.stdin.fileno() in ready:
            return
        with suppress(OSError):
            if not note.exists():  # another process of this home has ended, as of `make ui`
                note.write_text(text, encoding="utf-8")
        if listener in ready:
            with suppress(OSError, ValueError, TypeError, KeyError), listener.accept()[0] as connection:
                connection.settimeout(PATIENCE_S)
                if user_of(connection) == os.getuid():
                    _reply(connection, listener, pids)


def _reply(connection: socket.socket, listener: socket.socket, pids: dict[str, int]) -> None:
    """Do what a caller asks for, and answer."""
    answer = _answer(dict(json.loads(received_line(connection))), connection, listener, pids)
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _answer(
    request: Mapping[str, Any], connection: socket.socket, listener: socket.socket, pids: dict[str, int]
) -> int:
    """Return the process that was forked, 0 if none was; of a run that was forked before, whether it still runs."""
    if "has" in request:
        return request["has"] in pids
    if "interrupt" in request:
        is_there = request["interrupt"] in pids
        if is_there:
            os.kill(pids[request["interrupt"]], signal.SIGINT)
        return is_there
    same = {**python_of(sys.executable), "namespaces": namespaces()}
    if "command" in request:
        same |= {"version": _VERSION, **given_at_start()}
    if any(request.get(key) != value for key, value in same.items()):
        return False
    pid = os.fork()
    if pid == 0:
        listener.close()  # a caller would wait for an answer of this process, once the other one has ended
        _end_with(lambda: _begin(request, connection), connection)
    pids[request.get("fork") or str(time.time_ns())] = pid
    return pid


def _end_with(begin: Callable[[], None], connection: socket.socket) -> NoReturn:
    """Do the work of a fork, then end it as Python ends, without what was registered before the fork."""
    code = 1
    try:
        atexit._clear()
        code = finish(code_after(begin))
        with suppress(OSError):  # the launcher of a run does not wait for it
            connection.sendall(json.dumps(code).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _begin(request: Mapping[str, Any], connection: socket.socket) -> None:
    """Do the work of a fork, unless the caller has gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fds = _taken_streams(connection)
    if fds is None:
        return
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    time.tzset()
    tempfile.tempdir = None  # of the variables of the warm process
    if "command" in request:
        _run_command(request, connection, fds)
    else:
        _run_for_dagster(request)


def _taken_streams(connection: socket.socket) -> list[int] | None:
    """Wait for the line that lets this fork begin; return the streams with it, None if the caller has gone."""
    with suppress(OSError):
        text, fds, _, _ = socket.recv_fds(connection, len(GO), STREAMS)  # a signal may follow at once
        if text == GO:
            return fds
    return None


def _run_for_dagster(request: Mapping[str, Any]) -> None:
    """Execute a run, as `dagster api execute_run` does in a process of its own."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    from dagster._cli.api import execute_run_command  # noqa: PLC0415 - `main` has imported it

    from tidemark.assets.catalog.databases import databases_open  # noqa: PLC0415 - the same

    with databases_open():
        execute_run_command.main([request["arguments"]], standalone_mode=False)


def _run_command(request: Mapping[str, Any], connection: socket.socket, fds: list[int]) -> None:
    """Run a command line as a Python of its own would for the process that has typed it."""
    os.setsid()  # Ctrl-C of who keeps the warm process is not for commands
    _take_streams(fds, request["streams"])
    for number in SIGNALS:
        by_default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else by_default)
    threading.Thread(target=_obey, args=[connection], daemon=True).start()  # before the limits: some forbid a thread
    os.umask(request["umask"])
    with suppress(OSError):  # less than the warm process may be had by anybody, more by root
        os.nice(request["niceness"] - os.nice(0))
    with suppress(OSError):
        os.sched_setaffinity(0, request["cores"])
    for number, limit in request["limits"]:
        _limit(number, *limit)
    from tidemark.pipelines.cli import main as run_words  # noqa: PLC0415 - `main` has imported it

    sys.argv, sys.path[:] = list(request["command"]), request["path"]
    run_words(prog_name="tidemark")


def _limit(number: int, soft: int, hard: int) -> None:
    """Set a limit of this process; where it is more than this user may set, the most that is allowed."""
    most = resource.getrlimit(number)[1]
    for limit in ((most, most), (soft, most), (soft, hard)):  # what is not allowed changes nothing
        with suppress(OSError, ValueError):
            resource.setrlimit(number, limit)


def _take_streams(fds: list[int], settings: list[tuple[str, str, bool]]) -> None:
    """Make files the standard streams; settings of each: encoding, handler of errors, whether lines are flushed."""
    for stream, fd in enumerate(fds):
        os.dup2(fd, stream)
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, mode, 1 if by_line else -1, encoding, errors, closefd=False)  # noqa: SIM115 - for good
        for fd, mode, (encoding, errors, by_line) in zip(range(STREAMS), "rww", settings, strict=True)
    )


def _obey(connection: socket.socket) -> None:
    """Take signals that who waits for this fork has got, and end as it does when it is killed."""
    connection.settimeout(None)
    with suppress(OSError):
        while number := connection.recv(1):
            os.kill(os.getpid(), number[0])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
