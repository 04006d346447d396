"""The rounds of a chaos: what is done to the pipelines, and that they go on afterwards.

Here: each kind of round, as a function of the world; it returns the pipelines that it has touched, which are finished
then. Not here: what must hold afterwards (verdicts.py).
"""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.chaos.commands import Command
from tests.chaos.pipelines import DAYS, Pipeline
from tests.chaos.verdicts import FaultError, done, findings
from tests.chaos.world import World
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace

Act = Callable[[World], Sequence[Pipeline]]
_FULL = "free some space and run again"
_UNREPAIRED = ("batches", "log_control", "_state/files")
"""Tables that only a backup brings back."""


def runs(world: World) -> Sequence[Pipeline]:
    """Kill one run after another; each takes up what the one before it has left."""
    pipeline = world.any_pipeline()
    for _ in range(world.rng.randint(8, 16)):
        pipeline.land()
        run = world.start_run(pipeline)
        _land_meanwhile(world, pipeline, run)
        world.kill(run)
        world.ended(run)
    return [pipeline]


def all_in_one(world: World) -> Sequence[Pipeline]:
    """Kill runs of all pipelines in one command."""
    pipelines = [*world.pipelines.values()]
    for _ in range(6):
        for pipeline in pipelines:
            pipeline.land()
        run = world.start_run(*pipelines)
        world.kill(run)
        world.ended(run)
    return pipelines


def two_at_once(world: World) -> Sequence[Pipeline]:
    """Start two runs of a pipeline at once, and kill one of them or both."""
    pipeline = world.any_pipeline()
    for _ in range(world.rng.randint(4, 8)):
        pipeline.land()
        both = [world.start_run(pipeline)]
        time.sleep(world.rng.choice([0, world.rng.uniform(0, 3)]))
        both.append(world.start_run(pipeline))
        world.rng.shuffle(both)
        for run in both[: world.rng.randint(1, 2)]:
            world.kill(run)
        for run in both:
            world.ended(run)
    return [pipeline]


def operator(world: World) -> Sequence[Pipeline]:
    """Kill a command of an operator, with a live run beside it now and then, and repeat the command."""
    pipeline = world.any_pipeline()
    words = _words(world, pipeline)
    for _ in range(world.rng.randint(3, 6)):
        pipeline.land()
        beside = [world.start_run(pipeline)] if world.rng.random() < 0.4 else []
        _clear(world, words)
        command = world.start(words, [pipeline])
        for victim in world.rng.sample([command, *beside], k=world.rng.randint(1, 1 + len(beside))):
            world.kill(victim)
        for one in (command, *beside):
            world.ended(one)
    if words[0] not in ("backup", "maintain") and world.rng.random() < 0.5:
        world.finish(pipeline)  # else the command finds what a killed run has left
    _clear(world, words)
    command = world.complete(lambda: world.start(words, [pipeline], disturbed=False))
    world.tell(f"then `{command.text}` in {command.seconds:.1f} s")
    if words[0] == "backup":
        _audit_copy(world, pipeline)
    _clear(world, words)
    return [pipeline]


def by_daemon(world: World) -> Sequence[Pipeline]:
    """Let Dagster's daemon take what lands, and kill the daemon, or all that it has started, again and again."""
    pipelines = [*world.pipelines.values()]
    for _ in range(world.rng.randint(1, 3)):
        world.servers.start("daemon")
        for pipeline in world.rng.sample(pipelines, k=2):
            pipeline.land()
        time.sleep(world.rng.uniform(8, 40))
        world.killed(world.servers.kill("daemon", world.rng.choice(["python", "group"])))
        if world.rng.random() < 0.2:
            world.killed(world.servers.kill("serve", "group"))
    world.servers.stop("daemon")
    return pipelines


def everything(world: World) -> Sequence[Pipeline]:
    """Kill all at once: runs, the warm Spark, the daemon."""
    pipelines = [*world.pipelines.values()]
    world.servers.start("daemon")
    for pipeline in pipelines:
        pipeline.land()
    commands = [world.start_run(pipeline) for pipeline in world.rng.sample(pipelines, k=2)]
    commands.append(world.start(["rebuild"], [world.any_pipeline()]))
    time.sleep(world.moment(commands[-1]))
    for command in commands:
        world.killed(command.kill("group"))
    world.killed(world.servers.kill("serve", "group"))
    world.killed(world.servers.kill("daemon", "group"))
    for command in commands:
        world.ended(command)
    world.servers.stop("daemon")
    return pipelines


def full_disk(world: World) -> Sequence[Pipeline]:
    """Let the disk run full under a run; it says so, and goes on when there is room."""
    pipeline = world.any_pipeline()
    pipeline.land()
    run = world.start_run(pipeline)
    run.wait(world.moment(run) / 2)
    with world.little_room(run):
        code = world.ended(run)
    world.tell(f"the disk full under `{run.text}`, which ended with {code}")
    if code != 0 and _FULL not in run.output:
        raise FaultError(f"`{run.text}` does not say that the disk is full:\n{run.output}")
    return [pipeline]


def damage(world: World) -> Sequence[Pipeline]:
    """Damage a file of a table: an audit names it, and a repair mends it, also one that is killed."""
    pipeline = world.any_pipeline()
    world.finish(pipeline)
    with world.reader.paused():
        table, how = _damaged(world, pipeline)
        world.tell(how)
        found = findings(world.home, pipeline, is_damaged=True)
        if not any(finding["table"] == table for finding in found):
            raise FaultError(f"{pipeline.name}: {how}, and an audit names {found}")
        for _ in range(world.rng.randint(0, 3)):
            repair = world.start(["repair"], [pipeline])
            world.kill(repair)
            world.ended(repair)
        repair = world.complete(lambda: world.start(["repair"], [pipeline], disturbed=False))
        world.tell(f"then `repair` in {repair.seconds:.1f} s")
    return [pipeline]


ACTS: Sequence[tuple[Act, int]] = (
    (runs, 36),
    (two_at_once, 12),
    (operator, 24),
    (all_in_one, 6),
    (by_daemon, 6),
    (everything, 4),
    (full_disk, 6),
    (damage, 6),
)
"""Each kind of round, and how often it comes."""
QUESTIONS: Sequence[Sequence[str]] = (
    ("status",),
    ("show", "dead_letters"),
    ("show", "windows/minutes", "--format", "json"),
    ("report", "--out", "page.html"),
    ("explain", "--seq", "7", "--json"),
    ("simulate", "--set", "time.out_of_orderness=9s", "--json"),
    ("plan",),
)
"""Questions of people while runs are killed."""


def asked(world: World, name: str, rng: random.Random) -> Command:
    """Ask something about a pipeline, without a disturbance."""
    pipeline = world.pipelines[name]
    words = [str(world.home.folder / word) if word.endswith(".html") else word for word in rng.choice(QUESTIONS)]
    return Command(world.home, [words[0], str(pipeline.spec), *words[1:]])


def _land_meanwhile(world: World, pipeline: Pipeline, run: Command) -> None:
    if pipeline.name != "joined" and world.rng.random() < 0.4:  # see `Pipeline.land`
        run.wait(world.rng.uniform(0, 3))
        pipeline.land()


def _words(world: World, pipeline: Pipeline) -> Sequence[str]:
    """Return a command of an operator."""
    window = world.rng.choice(["minutes", {"kept": "visits", "live": "grow", "joined": "prices"}[pipeline.name]])
    of_all: list[Sequence[str]] = [
        ("backfill", "--from", DAYS[0], "--to", DAYS[1]),
        ("backfill", "--from", DAYS[0], "--to", DAYS[0], "--window", window),
        ("rebuild",),
        ("rebuild", "--window", "minutes" if pipeline.name == "joined" else window),  # over a join only with all
        ("maintain", "--retain", "1h"),
        ("repair",),
        ("backup", "--to", str(world.home.disk / "copies")),
    ]
    if pipeline.name == "live":
        workspace = Workspace(read_spec(pipeline.spec), world.home.warehouse)
        out = sorted(world.rng.sample(range(workspace.progress.processed_end()), k=2))
        letters = workspace.lake.rows("dead_letters", workspace.base_of("dead_letters")).to_pylist()
        late = [row["_arrival_seq"] for row in letters if row["reason"] == "out_of_order"]
        of_all += 2 * [("rejudge", "--exclude", f"{out[0]},{out[1]}", "--reason", "their clock lied")]
        if late:
            chosen = world.rng.choice(late)
            where = f"reason = 'out_of_order' AND _arrival_seq = {chosen}"
            of_all += 2 * [("replay", "--where", where, "--reason", "the gateway was offline")]
    return world.rng.choice(of_all)


def _clear(world: World, words: Sequence[str]) -> None:
    """Delete the copy that a backup has begun."""
    if words[0] == "backup":
        shutil.rmtree(world.home.disk / "copies", ignore_errors=True)


def _audit_copy(world: World, pipeline: Pipeline) -> None:
    audit = Command(world.home, ["audit", str(pipeline.spec), "--json"], warehouse=world.home.disk / "copies")
    done(audit)
    world.tell("its audit found nothing")


def _damaged(world: World, pipeline: Pipeline) -> tuple[str, str]:
    """Damage a file of the last commit; return its table, and how, in words."""
    workspace = Workspace(read_spec(pipeline.spec), world.home.warehouse)
    tables = [name for name in workspace.tables if name not in _UNREPAIRED and workspace.lake.row_count(name)]
    table = world.rng.choice(tables)
    folder = world.home.warehouse / pipeline.name / table
    actions = pa.table(DeltaTable(str(folder), workspace.base_of(table)).get_add_actions(flatten=True)).to_pylist()
    file = folder / world.rng.choice(sorted(action["path"] for action in actions if action["num_records"]))
    how = world.rng.choice(["deleted", "cut", "with a turned byte"])
    if how == "with a turned byte" and not _turned(file, world.rng):
        how = "deleted"  # delta-rs writes no checksums of pages
    if how == "deleted":
        file.unlink()
    elif how == "cut":
        file.write_bytes(file.read_bytes()[: -world.rng.randint(1, 100)])
    return table, f"a file of {table} {how}"


def _turned(file: Path, rng: random.Random) -> bool:
    """Turn a bit of the values of a column; return whether a checksum of the page shows it, else leave the file."""
    before = file.read_bytes()
    group = pq.read_metadata(file).row_group(0)
    column = group.column(rng.randrange(group.num_columns))
    data = bytearray(before)
    data[column.data_page_offset + column.total_compressed_size * 3 // 4] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    try:
        pq.read_table(file, page_checksum_verification=True, partitioning=None)
    except OSError as error:
        if "CRC" in str(error):
            return True
    file.write_bytes(before)
    return False
