"""The demo on a cluster whose workers and driver die: the rows are those of one machine, table by table.

Here: real processes, real flights, input and warehouse in an object store. Not here: a file system that all see, and
other pipelines on a cluster (runs/store/test_where_it_computes.py).
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import Cluster, process, standalone_cluster, wait_until
from tests.runs.running import assert_same_tables, rows_by_table
from tests.s3 import BUCKET, S3Server, s3_server
from tidemark.pipelines.demos.flights import SPEC, land_flights
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.place import Place, place_of
from tidemark.resources.tables import ORDERED_EVENTS
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.long

MONTHS = ("01", "02")  # 51,955 flights of every outcome: more than a batch may have that is planned as a small one
FLIGHTS = 51_955
DEADLINE_S = 900  # of a command: it plans for a minute, and longer beside other tests
FOLDER, STORE = "../../data", f"s3://{BUCKET}"
"""Where the folder of flights is, as the spec names it, and where it is in a store."""
DAYS = ("--from", "2013-01-10", "--to", "2013-01-20")


@dataclass(frozen=True)
class Demo:
    """The demo's pipeline with a warehouse of its own.

    Attributes:
        spec: The spec file, which all share.
        folder: Where Dagster's home is.
        warehouse: Where the tables are.
        environment: What a run needs to compute where it is to, and to reach its tables.
    """

    spec: Path
    folder: Path
    warehouse: Place
    environment: Mapping[str, str]

    @property
    def workspace(self) -> Workspace:
        return Workspace(read_spec(self.spec), self.warehouse)

    @property
    def log(self) -> Path:
        return self.folder / "said.txt"

    def started(self, command: str, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Return a command of tidemark over this pipeline: it leads a group of processes, which its JVM is in."""
        self.folder.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "tidemark.pipelines.cli", command, str(self.spec), *options]
        places = {"TIDEMARK_WAREHOUSE": str(self.warehouse), "DAGSTER_HOME": str(self.folder / "home")}
        return process(words, {**places, **self.environment}, self.log)

    def does(self, command: str, *options: str) -> str:
        with self.started(command, *options) as running:
            assert running.wait(DEADLINE_S) == 0, self.log.read_text()
        return self.log.read_text()

    def is_in_a_batch(self, *, behind: int = 0) -> bool:
        """Return whether released events are written, and the batch has not ended: windows are not yet computed.

        Args:
            behind: The version of `ordered_events` before the attempt that is meant.
        """
        workspace = self.workspace
        lake = workspace.lake
        is_written = lake.exists(ORDERED_EVENTS) and lake.version(ORDERED_EVENTS) > behind
        return is_written and workspace.progress.processed_end() == 0

    def tables(self, *, of_one_batch: bool = True) -> dict[str, list[str]]:
        """Return the rows of each table but `batches`, which has times and processes in it, as sorted texts.

        The spec is in one of them, and it says where the input is. Where a file lies and when it was written is not
        compared: input in a store is a copy.
        """
        without = {"place", "modified_us"} | (set() if of_one_batch else {"_batch_id"})
        found = rows_by_table(self.workspace, without=without, newest=True)
        return {name: sorted(text.replace(STORE, FOLDER) for text in rows) for name, rows in found.items()}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo's spec, with the flights of some months."""
    root = tmp_path_factory.mktemp("flights")
    landing = root / "data" / "flights"
    land_flights(landing)
    for file in landing.iterdir():
        if file.stem[-2:] not in MONTHS:
            file.unlink()
    copy = root / "pipelines" / "specs" / SPEC.name
    copy.parent.mkdir(parents=True)
    shutil.copy(SPEC, copy)
    return copy


@pytest.fixture(scope="module")
def alone(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the tables of a run on one machine."""
    folder = tmp_path_factory.mktemp("alone")
    demo = Demo(spec, folder, folder / "warehouse", {})
    assert "Spark in this process" in demo.does("run")
    return demo.tables()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Yield a store that this process and its children reach."""
    with s3_server(tmp_path) as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


@pytest.fixture
def demo(spec: Path, cluster: Cluster, server: S3Server, tmp_path: Path) -> Demo:
    """Return the demo with input and tables in an object store: driver and workers share no folder."""
    for file in (spec.parents[2] / "data" / "flights").iterdir():
        place_of(f"{STORE}/flights/{file.name}").write_bytes(file.read_bytes())
    copy = tmp_path / SPEC.name
    copy.write_text(spec.read_text().replace(FOLDER, STORE))
    environment = {**cluster.environment_of_a_driver, **server.environment}
    return Demo(copy, tmp_path / "demo", place_of(f"{STORE}/warehouse"), environment)


def test_the_demo_and_a_backfill_give_the_rows_of_one_machine_though_a_driver_and_a_worker_die(
    demo: Demo, cluster: Cluster, alone: dict[str, list[str]]
) -> None:
    """Two workers hold what the batch has set aside: it goes on with the one that is left."""
    kill_the_driver(demo)
    assert not demo.workspace.batches.history("process")
    left = demo.workspace.lake.version(ORDERED_EVENTS)
    with demo.started("run") as running:
        wait_until(while_running(running, lambda: demo.is_in_a_batch(behind=left)), demo.log, DEADLINE_S)
        assert f"Spark on {cluster.master}" in demo.log.read_text()
        cluster.kill_worker(0)
        assert running.wait(DEADLINE_S) == 0, demo.log.read_text()
    [batch] = demo.workspace.batches.history("process")
    assert batch.plan.attempt == 3, "its second attempt, after that of the ingestion"
    assert len(alone["raw_events"]) == FLIGHTS
    assert_same_tables(demo.tables(), alone)
    wait_until(lambda: cluster.says()["aliveworkers"] == 1, demo.log)
    before = demo.tables(of_one_batch=False)
    demo.does("backfill", *DAYS)
    assert demo.workspace.batches.history("backfill"), "it wrote the days anew"
    assert_same_tables(demo.tables(of_one_batch=False), before)
    wait_until(lambda: not cluster.says()["activeapps"], demo.log)


def kill_the_driver(demo: Demo) -> None:
    """Ends the process of a run and its JVM at once, in the middle of a batch, as if their machine went away."""
    with demo.started("run") as running:
        wait_until(while_running(running, demo.is_in_a_batch), demo.log, DEADLINE_S)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def while_running(running: subprocess.Popen[bytes], holds: Callable[[], bool]) -> Callable[[], bool]:
    """Return the same as `holds`, which fails once the process has ended."""

    def held() -> bool:
        assert running.poll() is None, "it ended before"
        return holds()

    return held
