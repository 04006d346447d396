"""The world of a chaos: its pipelines, its servers, its disk, how long things take, and what was killed.

Here: what all rounds share. Not here: what a round does (acts.py).
"""

import os
import random
import subprocess
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

from tests.chaos.commands import Command, Home, Jump, Servers, Victim
from tests.chaos.pipelines import Pipeline
from tests.chaos.readers import Reader
from tests.chaos.verdicts import FaultError
from tests.faults.killed import KILLED

_GUESS_S = 12.0
"""How long a command takes, before one was measured."""
_BUSY, _IN_THE_MEANTIME = "Another run is at work", "in the meantime"
_PATIENCE_S = 600.0
_TAKEN_OUT = "is excluded already"


@dataclass
class Disk:
    """The disk of the warehouses, whose size can be changed: a tmpfs, where one can be mounted.

    Attributes:
        folder: Where it is.
        is_own: Whether it is a tmpfs of its own.
    """

    folder: Path
    is_own: bool

    SIZE = "2g"

    @classmethod
    def mounted(cls, folder: Path) -> "Disk":
        """Mount a tmpfs, which needs no root in a namespace of its own."""
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={cls.SIZE}", "chaos", str(folder)]
        return cls(folder, subprocess.run(command, capture_output=True, check=False).returncode == 0)

    @contextmanager
    def nearly_full(self, room: int) -> Iterator[None]:
        """Leave so many bytes of room during the block, on a disk of its own."""
        while True:
            state = os.statvfs(self.folder)
            used = (state.f_blocks - state.f_bfree) * state.f_frsize
            if self._resize(str(used + room)):
                break
            room += 4_096  # something was written meanwhile
        try:
            yield
        finally:
            self._resize(self.SIZE)

    def _resize(self, size: str) -> bool:
        """Resize the disk; return whether that worked: it cannot be smaller than what is on it."""
        command = ["mount", "-o", f"remount,size={size}", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass
class World:
    """All that rounds share.

    Attributes:
        home: The places.
        disk: The disk of the warehouses.
        pipelines: The pipelines by name.
        servers: The warm Spark and the daemon.
        reader: Who reads meanwhile.
        rng: The dice of the round.
        kills: How many processes, or groups of them, were killed.
        said: What the round has done so far.
    """

    home: Home
    disk: Disk
    pipelines: dict[str, Pipeline]
    servers: Servers
    reader: Reader
    rng: random.Random = field(default_factory=random.Random)
    kills: int = 0
    said: list[str] = field(default_factory=list)
    _lengths: dict[tuple[str, ...], deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=5))
    )

    def any_pipeline(self) -> Pipeline:
        """Return one of the pipelines."""
        return self.rng.choice([*self.pipelines.values()])

    def tell(self, done: str | None) -> None:
        """Note what was done, for the line of the round."""
        if done is not None:
            self.said.append(done)

    def killed(self, what: str | None) -> None:
        """Note what was killed; None if nothing was alive."""
        self.kills += what is not None
        self.tell(what)

    def jump(self, share: float = 0.25) -> Jump | None:
        """Return a jump of the wall clock, or none: hours or days, forwards or backwards."""
        if self.rng.random() >= share:
            return None
        hours = self.rng.choice([-24 * 20, -24, -1, 1, 24, 24 * 20]) * self.rng.random()
        return Jump(self.rng.uniform(0, 6), timedelta(hours=hours))

    def start(self, words: Sequence[str], pipelines: Sequence[Pipeline], *, disturbed: bool = True) -> Command:
        """Start a command of pipelines, on a clock that may jump, and a Spark that may be its own."""
        specs = [str(one.spec) for one in pipelines]
        own = disturbed and self.rng.random() < 0.2
        command = Command(self.home, [words[0], *specs, *words[1:]], own=own, jump=self.jump() if disturbed else None)
        if command.jump is not None:
            self.tell(f"`{command.text}`: {command.jump}")
        return command

    def start_run(self, *pipelines: Pipeline) -> Command:
        """Start a run that will be disturbed, with or without small batches and a tick."""
        words = ["run"]
        most = self.rng.choice([None, RECORDS_AT_ONCE, 2 * RECORDS_AT_ONCE])
        words += [] if most is None else ["--max-events-per-batch", str(most)]
        if [one.name for one in pipelines] == ["live"] and self.rng.random() < 0.6:
            words.append("--live")
        return self.start(words, pipelines)

    @contextmanager
    def little_room(self, command: Command) -> Iterator[None]:
        """Let the disk be full, or nearly, during the block; without a disk of its own, the files of the command."""
        with (
            self.disk.nearly_full(self.rng.choice([0, 20_000, 100_000]))
            if self.disk.is_own
            else command.no_longer_files(self.rng.choice([6_000, 9_000]))
        ):
            yield

    def moment(self, command: Command) -> float:
        """Return a moment of the life of a command, in seconds from now: any of its stages may be at work then."""
        known = self._lengths.get(_kind(command)) or self._lengths.get(_kind(command)[:1])
        return self.rng.uniform(0.2, 1.05 * (median(known) if known else _GUESS_S))

    def kill(self, command: Command) -> None:
        """Kill a command at some moment, or the Spark that it uses."""
        command.wait(self.moment(command))
        if command.own:
            self.killed(command.kill(self.rng.choice(["python", "jvm", "group"])))
        elif self.rng.random() < 0.06:
            victim: Victim = self.rng.choice(["python", "jvm", "group"])
            self.killed(self.servers.kill("serve", victim))
        else:
            self.killed(command.kill("python"))

    def ended(self, command: Command) -> int:
        """Wait for the end of a command that was disturbed, and check what it has said.

        Raises:
            FaultError: It ended in a way that no disturbance explains.
        """
        code, output = command.ended(), command.output
        if "Traceback (most recent call last)" in output:
            raise FaultError(f"`{command.text}` printed a traceback:\n{output}")
        if code not in (0, 1, KILLED) and _TAKEN_OUT not in output:
            raise FaultError(f"`{command.text}` ended with {code}:\n{output}")
        if code == 0:
            self.measured(command)
        return code

    def measured(self, command: Command) -> None:
        """Note how long a command took that came to its end, unless it had nothing to do."""
        if "nothing new" in command.output:
            return
        self._lengths[_kind(command)].append(command.seconds)
        self._lengths[_kind(command)[:1]].append(command.seconds)

    def finish(self, *pipelines: Pipeline) -> None:
        """Run pipelines until nothing is left, as an operator does after a failure.

        Raises:
            FaultError: A run that nothing disturbs fails.
        """
        command = self.complete(lambda: self.start(["run"], pipelines, disturbed=False))
        self.tell(f"`run` went on in {command.seconds:.1f} s")

    def complete(self, begin: Callable[[], Command]) -> Command:
        """Let a command do its work, again while another process is at work; return the one that did it.

        Raises:
            FaultError: It fails.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            command = begin()
            code, output = command.ended(), command.output
            if "Traceback (most recent call last)" in output:
                raise FaultError(f"`{command.text}` printed a traceback:\n{output}")
            if code == 0:
                self.measured(command)
                return command
            if code == 2 and _TAKEN_OUT in output:  # one that was killed has done it
                return command
            is_busy = _BUSY in output or _IN_THE_MEANTIME in output
            if not is_busy or time.monotonic() > deadline:
                raise FaultError(f"`{command.text}`, which nothing disturbed, ended with {code}:\n{output}")
            time.sleep(2)


RECORDS_AT_ONCE = 30


def _kind(command: Command) -> tuple[str, ...]:
    spec = next((Path(word).stem for word in command.words if word.endswith(".yaml")), "")
    return (command.words[0], spec, *(["own"] if command.own else []))
