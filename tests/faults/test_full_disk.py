"""A disk that runs full under a run: one clear error, and nothing lost once there is room again."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.amounts import all_rows_are_many
from tests.faults.killed import Gateway, exit_code, join
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import go, pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.machine import FullDiskError, full_disk
from tidemark.resources.places.place import Place
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace

LONGEST_FILE = 6_000  # bytes: as little as on a disk that is nearly full
FULL = 3


@contextmanager
def no_longer_files(process: int) -> Iterator[None]:
    """Yield a process that can write no more than LONGEST_FILE to any file."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (LONGEST_FILE, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


def jvm_of(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())


def run_with_little_room(spec: Path, warehouse: Place, gateway: Gateway) -> None:
    """Exits with FULL where the run says that the disk is full."""
    join(gateway)
    with no_longer_files(os.getpid()):
        try:
            go((read_spec(spec), Settings(warehouse, spec.parent, spec.parent / "home")))
        except FullDiskError:
            sys.exit(FULL)


@pytest.mark.long
@pytest.mark.parametrize("writer", ["spark", "python"])
def test_a_disk_that_runs_full_is_said_and_the_next_run_goes_on_where_the_last_commit_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """Small batches are written by this process, so for Spark to write there must be no small ones."""
    file, settings = made = pipeline(tmp_path, "full", "drop", sparse=False)
    land(tmp_path / "in_full", 300, seed=6)
    if writer == "python":
        code = exit_code(run_with_little_room, file.path, settings.warehouse, Gateway.of(spark))
        assert code == FULL
    else:
        all_rows_are_many(monkeypatch)
        with no_longer_files(jvm_of(spark)), pytest.raises(FullDiskError, match="free some space and run again"):
            go(made)
    assert Workspace(file, settings.warehouse).batches.last_commit() is None
    go(made)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.parametrize(
    "said",
    [
        "[Errno 28] No space left on device: '/data/x'",
        "org.apache.spark.SparkException:\nCaused by: java.io.IOException: No space left on device\n\tat java.base/…",
        "Generic LocalFileSystem error: … (os error 122): Disk quota exceeded",
        "File too large (os error 27)",
        "(sqlite3.OperationalError) database or disk is full\n[SQL: INSERT INTO event_logs …",
    ],
)
def test_a_full_disk_is_known_by_what_its_writers_say(said: str) -> None:
    assert full_disk(said) is not None


def test_any_other_failure_is_not_taken_for_a_full_disk() -> None:
    assert full_disk("java.io.FileNotFoundException: No such file or directory") is None
