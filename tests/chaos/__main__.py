"""`python -m tests.chaos`: pipelines under chaos, round after round, by a seed.

Here: the command, the rounds, the line of each. Not here: what a round does (acts.py), what must hold (verdicts.py).
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click

from tests.chaos import acts
from tests.chaos.commands import Command, Home, Servers, kill_all_commands
from tests.chaos.pipelines import SPECS, TWINS, Pipeline
from tests.chaos.readers import Reader
from tests.chaos.verdicts import FaultError, assert_as_judged_again, assert_as_undisturbed, assert_sound, done
from tests.chaos.world import Disk, World

_INSIDE = "TIDEMARK_CHAOS_NAMESPACE"
_NAMESPACE = ("unshare", "--map-root-user", "--mount")
COMPARED_EVERY = 5
"""Rounds after which the rows of all pipelines are compared with those of undisturbed ones."""


@click.command()
@click.option("--seed", type=int, help="Of all that is drawn. [default: a new one, which is printed]")
@click.option("--kills", default=200, show_default=True, help="End after so many kills.")
@click.option("--minutes", type=float, help="End after the round in which these are over.")
@click.option("--from-round", "first", default=1, show_default=True, help="Begin with this round, on new pipelines.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it works; kept if a round fails. [default: a temporary folder]",
)
def main(*, seed: int | None, kills: int, minutes: float | None, first: int, folder: Path | None) -> None:
    """Disturb pipelines in all ways, and check after each round that nothing shows.

    Exit status: 0 nothing was found; 1 a round failed: its folder is kept.
    """
    if seed is None:
        seed = random.SystemRandom().getrandbits(32)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda number, _frame: sys.exit(128 + number))  # all that was started ends with it
    _enter_namespace(["--seed", str(seed), *_without_seed(sys.argv[1:])])
    place = folder or Path(tempfile.mkdtemp(prefix="tidemark-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    said = (place / "rounds.txt").open("a", encoding="utf-8", buffering=1)

    def say(line: str) -> None:
        click.echo(line)
        said.write(f"{line}\n")

    say(f"seed {seed}, in {place}")
    if fault := _rounds(place.absolute(), seed, kills, minutes, first, say):
        say(fault)
        say(f"kept: {place}")
        sys.exit(1)
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)


def _rounds(
    folder: Path, seed: int, kills: int, minutes: float | None, first: int, say: Callable[[str], None]
) -> str | None:
    """Do round after round; return what failed, None if nothing did."""
    begun, number = time.monotonic(), first
    done_so_far: list[str] = []
    try:
        with _world(folder, seed) as world:
            done_so_far = world.said
            if not world.disk.is_own:
                say("no disk of its own can be mounted here: files that may not grow stand for a full one")
            while world.kills < kills and (minutes is None or time.monotonic() - begun < 60 * minutes):
                done_so_far.clear()
                say(_round(world, seed, number))
                number += 1
            done_so_far.clear()
            n = _compared(world, "--end-of-input", "flush")
            say(f"all flushed: {n} rows as undisturbed; audits: nothing found")
            each = (time.monotonic() - begun) / max(world.kills, 1)
            say(f"{number - first} rounds, {world.kills} kills, {each:.1f} s a kill: nothing was found")
    except Exception as error:  # whatever it is, the folder is kept
        shown = str(error) if isinstance(error, FaultError) else traceback.format_exc()
        again = f"python -m tests.chaos --seed {seed} --from-round {number} --kills 1"
        return f"round {number} FAILED: {'; '.join(done_so_far)}\n{shown}\nthe same round on new pipelines: {again}"
    return None


def _without_seed(words: list[str]) -> list[str]:
    if "--seed" in words:
        at = words.index("--seed")
        return words[:at] + words[at + 2 :]
    return [word for word in words if not word.startswith("--seed=")]


def _enter_namespace(words: list[str]) -> None:
    """Go on in a namespace of mounts of its own, where that is allowed: no root is needed there to mount a disk."""
    if os.environ.get(_INSIDE) or shutil.which(_NAMESPACE[0]) is None:
        return
    if subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0:
        os.environ[_INSIDE] = "1"
        os.execvp(_NAMESPACE[0], [*_NAMESPACE, sys.executable, "-m", "tests.chaos", *words])


@contextmanager
def _world(folder: Path, seed: int) -> Iterator[World]:
    """Yield new pipelines, each run once; what was on the disk stays in the folder."""
    home = Home(folder, folder / "disk", folder / "said")
    home.said.mkdir()
    with ExitStack() as stack:
        disk = Disk.mounted(home.disk)
        stack.callback(_keep, disk)
        servers = Servers(home)
        stack.callback(servers.stop_all)
        stack.callback(kill_all_commands)
        home.dagster.mkdir()
        pipelines = {name: Pipeline(name, folder, f"{seed}") for name in SPECS}
        for pipeline in pipelines.values():
            pipeline.write()
            pipeline.land()
        reader = Reader(home.warehouse, [*pipelines], f"{seed}")
        world = World(home, disk, pipelines, servers, reader)
        servers.start("serve")
        for pipeline in pipelines.values():
            world.complete(lambda pipeline=pipeline: Command(home, ["run", str(pipeline.spec)]))  # type: ignore[misc]
        stack.enter_context(reader.at_work())
        yield world


def _keep(disk: Disk) -> None:
    """Leave what is on the disk in its folder, which outlives the namespace."""
    if not disk.is_own:
        return
    copy = disk.folder.with_name("disk.copy")
    with suppress(OSError, shutil.Error):
        shutil.copytree(disk.folder, copy, symlinks=True)
        subprocess.run(["umount", "--lazy", str(disk.folder)], check=False)
        disk.folder.rmdir()
        copy.rename(disk.folder)


def _round(world: World, seed: int, number: int) -> str:
    """Do a round, and check what must hold after it; return its line.

    Raises:
        FaultError: Something does not hold.
    """
    world.rng = random.Random(f"{seed} {number}")
    begun, kills, looks = time.monotonic(), world.kills, world.reader.looks.total()
    if world.rng.random() < 0.8:
        world.servers.start("serve")
    [act] = world.rng.choices([act for act, _ in acts.ACTS], [often for _, often in acts.ACTS])
    is_calm = act not in (acts.full_disk, acts.damage, acts.everything, acts.by_daemon)
    asks, of = world.rng.random() < 0.3, world.rng.choice([*SPECS])
    asking = acts.asked(world, of, world.rng) if is_calm and asks else None
    pipelines = act(world)
    if asking is not None:
        _answered(world, asking)
    world.finish(*pipelines)
    audited = time.monotonic()
    for pipeline in pipelines:
        assert_sound(world.home, pipeline)
    audit_s = time.monotonic() - audited
    compared = f"; {_compared(world)} rows as undisturbed" if number % COMPARED_EVERY == 0 else ""
    world.reader.check()
    names = ", ".join(pipeline.name for pipeline in pipelines)
    return (
        f"round {number}, {act.__name__} ({names}), {world.kills - kills} kills, {world.kills} in all: "
        f"{'; '.join(world.said)}; audit: nothing found in {audit_s:.1f} s{compared}; "
        f"{world.reader.looks.total() - looks} reads, no mix; {time.monotonic() - begun:.0f} s"
    )


def _answered(world: World, asking: Command) -> None:
    """Check that a question has an answer, unless the Spark that computes it was killed."""
    if world.ended(asking) != 0 and not any("tidemark serve" in said for said in world.said):
        raise FaultError(f"`{asking.text}`, which nothing disturbed, failed:\n{asking.output}")
    world.tell(f"`{asking.text}` answered")


def _compared(world: World, *words: str) -> int:
    """Compare the rows of all pipelines with those of undisturbed ones, after one more run; return how many."""
    pipelines = [*world.pipelines.values()]
    for pipeline in pipelines:
        for warehouse in (world.home.warehouse, *([world.home.twins] if pipeline.name in TWINS else [])):
            done(Command(world.home, ["run", str(pipeline.spec), *words], warehouse=warehouse))
        assert_sound(world.home, pipeline)
    return sum(
        assert_as_undisturbed(world.home, pipeline)
        if pipeline.name in TWINS
        else assert_as_judged_again(world.home, pipeline)
        for pipeline in pipelines
    )


if __name__ == "__main__":
    main()
