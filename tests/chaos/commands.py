"""Commands of Tidemark, each in a process of its own that can be killed, and the Spark that they share.

Here: starting them, what they say, killing them or a part of them. Not here: which ones, and when (acts.py).
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from tests.faults import killed
from tests.faults.killed import PROCESSES
from tests.processes import daemon, warm_spark
from tidemark.pipelines.cli import main
from tidemark.resources.settings import Clock
from tidemark.resources.spark.server import find_note

PROCESSES.set_forkserver_preload(
    [
        __name__,
        killed.__name__,
        "great_expectations",
        "pyspark.sql.connect.session",
        "tidemark.pipelines.running.execution",
        "tidemark.pipelines.running.runner",
    ]
)
LONGEST_S = 900
"""A command that has not ended by then hangs; the machine may be busy with other things."""
OWN_SPARK = "local[2]"
Victim = Literal["python", "jvm", "group"]
Server = Literal["daemon", "serve"]
SERVERS: tuple[Server, ...] = ("daemon", "serve")


@dataclass(frozen=True)
class Jump:
    """A wall clock that jumps.

    Attributes:
        after_s: Seconds after the start of the process at which it jumps.
        by: How far, forwards or backwards.
    """

    after_s: float
    by: timedelta

    def __str__(self) -> str:
        return f"its clock jumps by {self.by.total_seconds() / 3600:+.1f} h after {self.after_s:.1f} s"


@dataclass(frozen=True)
class Home:
    """The places of a chaos.

    Attributes:
        folder: All of it: specs and input.
        disk: Warehouses and Dagster's home, on a disk that can be made small.
        said: What commands have said, a file each.
    """

    folder: Path
    disk: Path
    said: Path

    @property
    def warehouse(self) -> Path:
        return self.disk / "warehouse"

    @property
    def twins(self) -> Path:
        """The warehouse of pipelines that nothing disturbs."""
        return self.disk / "twins"

    @property
    def dagster(self) -> Path:
        return self.disk / "home"


_STARTED: list[int] = []


class Command:
    """A command at work."""

    def __init__(
        self,
        home: Home,
        words: Sequence[str],
        *,
        warehouse: Path | None = None,
        own: bool = False,
        jump: Jump | None = None,
    ) -> None:
        """Start it.

        Args:
            home: The places.
            words: The words after `tidemark`.
            warehouse: By default that of the home.
            own: With a Spark of its own, whatever is warm.
            jump: How its wall clock jumps.
        """
        self.words, self.jump, self.own = tuple(words), jump, own
        self.said = home.said / f"{len(list(home.said.iterdir())):05}-{words[0]}.txt"
        environment = {
            "DAGSTER_HOME": str(home.dagster),
            "TIDEMARK_WAREHOUSE": str(warehouse or home.warehouse),
            "TIDEMARK_SPECS": str(home.folder),
            **({"TIDEMARK_SPARK": OWN_SPARK} if own else {}),
        }
        self.said.touch()
        self._process: BaseProcess = PROCESSES.Process(target=_work, args=(self.words, self.said, environment, jump))
        self._began = time.monotonic()
        self._process.start()
        _STARTED.append(self._process.pid or 0)

    @property
    def text(self) -> str:
        """The command as a person would type it, without the folders."""
        words = [Path(word).stem if word.endswith(".yaml") else word for word in self.words]
        return " ".join([*words, *(["with a Spark of its own"] if self.own else [])])

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def stage(self) -> str:
        """The last stage that it has named."""
        lines = self.output.splitlines()
        return lines[-1].partition(": ")[2] or lines[-1] if lines else "its start"

    @property
    def output(self) -> str:
        return self.said.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, or for some seconds."""
        self._process.join(max(seconds, 0))

    def ended(self) -> int:
        """Wait for its end; return its exit code.

        Raises:
            TimeoutError: It does not end.
        """
        self.wait(LONGEST_S - self.seconds)
        code = self._process.exitcode
        if code is None:
            kill(self._process.pid or 0, "group")
            raise TimeoutError(f"`{self.text}` did not end in {LONGEST_S} s; at the end it said: {self.stage}")
        return code

    def kill(self, victim: Victim) -> str | None:
        """Kill it, or its Java; return what was killed and when in words, None if there was nothing left to kill."""
        seconds, stage = self.seconds, self.stage
        if not self.is_alive or not kill(self._process.pid or 0, victim):
            return None
        return f"`{self.text}` killed ({victim}) after {seconds:.1f} s at «{stage}»"

    @contextmanager
    def no_longer_files(self, length: int) -> Iterator[None]:
        """Let the command, and its Java, write no more than so many bytes to any file during the block."""
        for pid in members(self._process.pid or 0):
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (length, resource.RLIM_INFINITY))
        yield


def _work(words: Sequence[str], said: Path, environment: Mapping[str, str], jump: Jump | None) -> None:
    """Do what the command `tidemark` does, in a forked process."""
    os.setsid()
    os.environ.pop("TIDEMARK_SPARK", None)
    os.environ |= environment
    output = os.open(said, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    if jump is not None:
        begun = time.monotonic()

        def now(clock: Clock) -> datetime:
            return truth(clock) + (jump.by if time.monotonic() - begun >= jump.after_s else timedelta(0))

        truth = Clock.now
        setattr(Clock, "now", now)  # noqa: B010 - the one place that reads the wall clock; mypy knows no such change
    sys.argv = ["tidemark", *words]
    main([*words])


def members(session: int) -> dict[int, str]:
    """Return the processes of a session, with the names of their programs."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            program, _, rest = text.partition("(")[2].rpartition(")")
            state, _, _, of_session = rest.split()[:4]
            if int(of_session) == session and state not in "ZX":
                found[int(folder.name)] = program
    return found


def kill(session: int, victim: Victim) -> bool:
    """Kill the leader of a session, its Java, or all of it; return whether anything was alive."""
    there = members(session)
    chosen = {"python": [session], "jvm": [pid for pid, name in there.items() if name == "java"], "group": [*there]}
    hit = [pid for pid in chosen[victim] if pid in there]
    for pid in hit:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(hit)


def kill_all_commands() -> None:
    """Kill all that is left of commands."""
    for session in _STARTED:
        kill(session, "group")
    _STARTED.clear()


class Servers:
    """The warm Spark and Dagster's daemon, each there or not."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._stacks: dict[str, ExitStack] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: Server) -> None:
        """Start one, unless it is at work; a warm Spark is ready then, a daemon only begins."""
        if name in self._processes and (name == "daemon" or self._is_warm) and self._processes[name].poll() is None:
            return
        self.stop(name)
        stack = self._stacks[name] = ExitStack()
        home = self._home
        if name == "serve":
            server = stack.enter_context(warm_spark(home.dagster, home.folder, patience_s=LONGEST_S))
            if server.poll() is not None:
                raise RuntimeError(f"`tidemark serve` ended: {(home.folder / 'serve.log').read_text()}")
        else:
            server = stack.enter_context(daemon(home.dagster, home.folder, home.warehouse))
        self._processes[name] = server

    @property
    def _is_warm(self) -> bool:
        server = self._processes["serve"]
        return find_note(self._home.dagster) is not None and "java" in members(server.pid).values()

    def kill(self, name: Server, victim: Victim) -> str | None:
        """Kill a server, its Java, or all its processes; return that in words, None if it was not there."""
        server = self._processes.get(name)
        if server is None or not kill(server.pid, victim):
            return None
        return f"`{'tidemark serve' if name == 'serve' else 'dagster-daemon'}` killed ({victim})"

    def stop(self, name: Server) -> None:
        """End a server, or what is left of it."""
        stack = self._stacks.pop(name, None)
        server = self._processes.pop(name, None)
        if stack is not None:
            stack.close()
        if server is not None:
            kill(server.pid, "group")

    def stop_all(self) -> None:
        for name in SERVERS:
            self.stop(name)
