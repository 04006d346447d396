"""Runs of a pipeline, each in a process of its own, that die or are stopped right after a commit.

Here: the process, the places where it can die, the ways. Not here: what must hold afterwards.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import pytest
from dagster import DagsterInstance
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests.amounts import all_rows_are_many
from tidemark.pipelines.code_location.rebuilding import RebuildSettings, ReplaySettings
from tidemark.pipelines.code_location.upkeep import maintain
from tidemark.pipelines.command_line import in_words
from tidemark.pipelines.operators.forgetting import forget
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.place import Place, delta_place
from tidemark.resources.settings import Settings
from tidemark.resources.sources import kafka_records
from tidemark.resources.spark.session import local_session, session_config
from tidemark.resources.tables import BATCHES, REBUILD_FOLDER
from tidemark.resources.workspace import SpecFile

KILLED = -signal.SIGKILL
FETCHED, COPIED = "records of Kafka", "copy of records of Kafka"
"""Deaths when the last record has come and the copy lacks its end, and when it is whole and Spark has not read it."""
OUT_OF_ORDER = "reason = 'out_of_order'"
Victim = Literal["python", "jvm", "group"]
Stop = Literal["SIGINT", "SIGTERM"]
DEADLINE_S = 300
# PySpark takes a process whose main module is no file, as the server of forks is, for a run of its own doctests.
vars(sys.modules["__main__"]).setdefault("__file__", __file__)
PROCESSES = multiprocessing.get_context("forkserver")
"""Processes that are forked from one that has imported all that they need."""
PROCESSES.set_forkserver_preload([__name__, "great_expectations"])  # imported once for all of them


@dataclass(frozen=True)
class Gateway:
    """The way to a JVM that runs already: a killed Python process then need not start one to be killed in."""

    port: int
    secret: str

    @classmethod
    def of(cls, spark: SparkSession) -> "Gateway":
        """Return the JVM of a session of this process."""
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        return cls(gateway.gateway_parameters.port, gateway.gateway_parameters.auth_token)


@dataclass(frozen=True)
class Death:
    """Who dies, and right after which commit, by its name (see `commit_name`).

    Attributes:
        after: The commit, `FETCHED` or `COPIED`, or a part of what the run says that it is doing.
        victim: Who dies; or the signal by which an operator stops the run.
        is_said: `after` is a part of what the run says, and it dies as it says so.
        is_large: Every batch counts as large, and `after` names a table: the process dies when Spark has written its
            files, before their commit.
    """

    after: str
    victim: Victim | Stop
    is_large: bool = False
    is_said: bool = False


def run_and_die(
    spec: Path,
    warehouse: Place,
    death: Death,
    gateway: Gateway | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Runs a pipeline in a new process, which dies; returns its exit code.

    What it says is in `said.txt` beside the warehouse, or beside the spec if the warehouse is in a store.
    """
    return exit_code(_run, spec, warehouse, death, gateway, dict(environment))


def run_killed(spark: SparkSession, made: tuple[SpecFile, Settings], after: str, *, is_large: bool = False) -> None:
    """Run a pipeline in a new process, which is killed right after a commit."""
    file, settings = made
    died = run_and_die(file.path, settings.warehouse, Death(after, "python", is_large), Gateway.of(spark))
    assert died == KILLED, after


def exit_code(work: Callable[..., None], *args: object) -> int:
    """Does work in a new process; returns how that ended."""
    process = PROCESSES.Process(target=work, args=args)
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode is not None, f"the run did not end in {DEADLINE_S} s"
    return process.exitcode


def rebuild_and_die(spec: Path, warehouse: Place, death: Death, gateway: Gateway) -> int:
    """Make the tables of a pipeline anew in a new process, which dies; as `run_and_die`."""
    return exit_code(_run, spec, warehouse, death, gateway, {}, _rebuild)


def replay_and_die(spec: Path, warehouse: Place, death: Death, gateway: Gateway) -> int:
    """Let all dead letters out of order in, in a new process, which dies; as `run_and_die`."""
    return exit_code(_run, spec, warehouse, death, gateway, {}, _replay)


def commit_name(lake: Lake, table: str) -> str | None:
    """Name of the latest commit of a table: the table, of `batches` also what its row says; None for an undoing.

    Of a table that a rebuild makes it begins with `beside`.
    """
    name = _commit_name(lake, table)
    return (
        f"beside {name}" if name and isinstance(lake.root, Path) and lake.root.parent.name == REBUILD_FOLDER else name
    )


def _commit_name(lake: Lake, table: str) -> str | None:
    if table != BATCHES:
        undone = DeltaTable(**delta_place(lake.path(table))).history(1)[0]["operation"] == "RESTORE"
        return None if undone else table
    log = BatchLog(lake)
    pending, last = log.pending(), log.last_commit()
    if pending is not None:
        return f"plan to {pending.kind}"
    return f"commit of {last.plan.kind}" if last else None


def on_every_commit(act: Callable[[str], None]) -> Callable[[Lake, str, int], None]:
    """Return a hook for `Lake._committed` that reports the name of each commit."""

    def committed(lake: Lake, table: str, _version: int) -> None:
        name = commit_name(lake, table)
        if name is not None:
            act(name)

    return committed


def _on_every_copy(act: Callable[[str], None]) -> None:
    """Let the copying of records of Kafka report that they have come, and that they are copied."""
    write = kafka_records._write

    def written(records: Iterable[Any], fields: Mapping[str, Any], copy: Place) -> int:
        def reported() -> Iterator[Any]:
            yield from records
            act(FETCHED)

        count = write(reported(), fields, copy)
        act(COPIED)
        return count

    pytest.MonkeyPatch().setattr(kafka_records, "_write", written)


def _live(spec: Path, settings: Settings, instance: DagsterInstance, seen: Callable[[str], None]) -> None:
    run_pipeline(read_spec(spec), settings, RunOptions(), instance=instance, tell=seen)


def _rebuild(spec: Path, settings: Settings, instance: DagsterInstance, seen: Callable[[str], None]) -> None:
    rebuild_pipeline(read_spec(spec), settings, RebuildSettings(), instance=instance, tell=seen)


def _replay(spec: Path, settings: Settings, instance: DagsterInstance, seen: Callable[[str], None]) -> None:
    asked = ReplaySettings(where=OUT_OF_ORDER, reason="they were late")
    rebuild_pipeline(read_spec(spec), settings, asked, instance=instance, tell=seen)


def forget_and_die(spec: Path, warehouse: Place, where: str, death: Death, gateway: Gateway) -> int:
    """Forget records in a new process, which dies; as `run_and_die`."""
    return exit_code(_run, spec, warehouse, death, gateway, {}, partial(_forget, where))


def maintain_and_die(spec: Path, warehouse: Place, death: Death, gateway: Gateway) -> int:
    """Look after the tables of a pipeline in a new process, which dies; as `run_and_die`."""
    return exit_code(_run, spec, warehouse, death, gateway, {}, _maintain)


def _maintain(spec: Path, settings: Settings, instance: DagsterInstance, seen: Callable[[str], None]) -> None:
    maintain(read_spec(spec), settings, timedelta(days=7), instance=instance, tell=seen)


def _forget(
    where: str, spec: Path, settings: Settings, instance: DagsterInstance, seen: Callable[[str], None]
) -> None:
    file = read_spec(spec)
    forget(file, settings, where, "request 17", dry_run=False, instance=lambda _captures: instance, tell=seen)


def _run(
    spec: Path,
    warehouse: Place,
    death: Death,
    gateway: Gateway | None,
    environment: dict[str, str],
    work: Callable[[Path, Settings, DagsterInstance, Callable[[str], None]], None] = _live,
) -> None:
    os.setsid()
    os.environ |= environment
    warnings.simplefilter("ignore")
    beside = warehouse.parent if isinstance(warehouse, Path) else spec.parent
    said = os.open(beside / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 2)
    if gateway is None:
        local_session(session_config(small=True))
    else:
        join(gateway)

    signals = iter([death.victim])  # one: who stops a run does it once

    def die(name: str) -> None:
        if name == death.after:
            for victim in signals:
                _kill(victim)

    def seen(doing: str) -> None:
        if (death.is_said or death.victim in get_args(Stop)) and death.after in doing:
            die(death.after)

    patched = pytest.MonkeyPatch()
    if death.is_large:
        all_rows_are_many(patched)
        patched.setattr(Lake, "_committing", lambda _lake, table: die(table))
    else:
        patched.setattr(Lake, "_committed", on_every_commit(die))
        _on_every_copy(die)
    settings = Settings(warehouse, spec.parent, beside / "home")
    with DagsterInstance.ephemeral() as instance, in_words():
        work(spec, settings, instance, seen)


def _kill(victim: Victim | Stop) -> None:
    if victim in get_args(Stop):
        os.kill(os.getpid(), signal.Signals[victim])
    elif victim == "jvm":
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        jvm.kill()
        jvm.wait()
    elif victim == "group":
        os.killpg(0, signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def join(gateway: Gateway) -> None:
    """Makes the Spark session of a running JVM that of this process."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.secret}
    to_jvm = launch_gateway()  # type: ignore[no-untyped-call]
    running = to_jvm.jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = to_jvm.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    SparkSession(SparkContext(gateway=to_jvm, jsc=java_context))
