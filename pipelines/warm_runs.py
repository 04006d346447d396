"""Runs that Dagster launches begin in a process that has imported everything: it forks for each of them.

Here: the launcher that `dagster.yaml` names, and the process that forks. Not here: who keeps that process
(serving.py, ui.py), what a run does (runner.py).

Without the process the launcher does as Dagster's default one: a new Python imports Dagster, Spark's client and the
checks before the first stage of each run, which takes seconds.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from dagster import DagsterInstance, DagsterRun, DefaultRunLauncher
from dagster._core.launcher import LaunchRunContext

_NOTE = "warm_runs.json"
_PATIENCE_S = 30.0
_LOOK_EVERY_S = 1.0
_GO = b"go\n"
_STDIN = 0
_IMPORTS = (
    "dagster._cli.api",
    "dagster._core.execution.api",
    "great_expectations",
    "pyspark.sql.connect.session",
    "tidemark.assets.display.pictures",
    "tidemark.pipelines.definitions",
    "tidemark.pipelines.runner",
)


class WarmRunLauncher(DefaultRunLauncher):
    """Launches a run in a fork of the process that `tidemark serve` and `make ui` keep; else as Dagster does.

    The run has the environment and the working directory of the process that launches it, Dagster's daemon, as runs
    of `dg dev` have. A code location of another Python, or in a container, is launched as Dagster does.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run; errors as of Dagster's default launcher."""
        if not _is_forked(self._instance, context.dagster_run):
            super().launch_run(context)

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, so that its batch is undone; return whether it was there."""
        run = self._instance.get_run_by_id(run_id)
        home = _home(self._instance)
        if run is None or run.is_finished or not _ask(home, {"has": run_id}):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]  # of Dagster
        self._instance.report_run_canceling(run)  # before the interrupt: the run says itself that it is canceled
        return _ask(home, {"interrupt": run_id})


def _is_forked(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Return whether a process was forked for a run; else it has to be launched in another way."""
    origin = run.job_code_origin
    if origin is None or origin.repository_origin.container_image is not None:
        return False
    from dagster._grpc.types import ExecuteRunArgs  # noqa: PLC0415 - all who open the instance import this module
    from dagster._serdes import serialize_value  # noqa: PLC0415

    arguments = ExecuteRunArgs(origin, run.run_id, instance.get_ref(), set_exit_code_on_failure=True)
    request = {
        "fork": run.run_id,
        "python": _python(origin.repository_origin.executable_path),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "arguments": serialize_value(arguments),
    }
    return _ask(_home(instance), request)


def _python(executable: str) -> list[str]:
    """Return what names an environment of Python: `bin/python3` of one is its `bin/python`."""
    return [os.path.dirname(os.path.abspath(executable)), os.path.realpath(executable)]


def _home(instance: DagsterInstance) -> Path:
    return Path(instance.root_directory)


@dataclass(frozen=True)
class _Note:
    """Where the process that forks listens."""

    path: str
    pid: int


def _ask(home: Path, request: Mapping[str, Any]) -> bool:
    """Return the answer of the process that forks, in a home; False if none of this user answers.

    A fork waits for a second line, so that a run whose answer was lost is not launched twice. Nobody else waits for
    one: the connection may be closed by then.
    """
    try:
        note = _Note(**json.loads((home / _NOTE).read_text(encoding="utf-8")))
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as lines:
            connection.settimeout(_PATIENCE_S)
            connection.connect(note.path)
            if _user_of(connection) != os.getuid():  # it would be sent the environment
                return False
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = bool(json.loads(lines.readline()))
            if answer and "fork" in request:
                connection.sendall(_GO)
            return answer
    except (OSError, ValueError, TypeError):
        return False


def _user_of(connection: socket.socket) -> int:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


@contextmanager
def warm_runs(home: Path) -> Iterator[None]:
    """Keep a process that forks for the runs of a Dagster home, during the block; runs outlive it."""
    command = [sys.executable, "-m", "tidemark.pipelines.warm_runs", str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # it ends when the pipe is closed
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


def main(home: Path) -> None:
    """Import what runs need, then fork for each run that is asked for, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who keeps it, and for the runs
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a collection in a fork leaves the memory of all that was imported shared
    with tempfile.TemporaryDirectory(prefix="tidemark-runs-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "socket"))  # in a home its name could be too long for a socket
        listener.bind(path)  # the folder is this user's alone
        listener.listen()
        (home / _NOTE).write_text(json.dumps(asdict(_Note(path, os.getpid()))), encoding="utf-8")
        _serve(listener)


def _serve(listener: socket.socket) -> None:
    pids = dict[str, int]()
    while True:
        ready, _, _ = select.select([listener.fileno(), _STDIN], [], [], _LOOK_EVERY_S)
        pids = {run: pid for run, pid in pids.items() if not os.waitpid(pid, os.WNOHANG)[0]}
        if _STDIN in ready:
            return
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            connection.settimeout(_PATIENCE_S)
            with suppress(OSError, ValueError, KeyError), connection, connection.makefile("rb") as lines:
                if _user_of(connection) == os.getuid():
                    answer = _answer(json.loads(lines.readline()), connection, lines, listener, pids)
                    connection.sendall(json.dumps(answer).encode() + b"\n")


def _answer(
    request: Mapping[str, Any],
    connection: socket.socket,
    lines: BinaryIO,
    listener: socket.socket,
    pids: dict[str, int],
) -> bool:
    """Return whether a run was forked or, of one that was, whether it still runs; `pids` has them by their run."""
    if "has" in request:
        return request["has"] in pids
    if "interrupt" in request:
        is_there = request["interrupt"] in pids
        if is_there:
            os.kill(pids[request["interrupt"]], signal.SIGINT)
        return is_there
    if request["python"] != _python(sys.executable):
        return False
    pid = os.fork()
    if pid == 0:
        listener.close()
        _run(request, connection, lines)
    pids[request["fork"]] = pid
    return True


def _run(request: Mapping[str, Any], connection: socket.socket, lines: BinaryIO) -> NoReturn:
    """Execute a run in a fork, unless who asked has gone, and launches it in another way."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        is_wanted = lines.readline() == _GO
        lines.close()
        connection.close()
        if is_wanted:
            _execute(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what was registered for an exit is of the process that forks


def _execute(request: Mapping[str, Any]) -> None:
    """Execute a run, as `dagster api execute_run` does in a process of its own."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), _STDIN)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    from dagster._cli.api import execute_run_command  # noqa: PLC0415 - `main` has imported it

    execute_run_command.main([request["arguments"]], standalone_mode=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
