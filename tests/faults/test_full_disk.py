"""A disk that runs full under a run: one clear error, and nothing lost once there is room again."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from pipelines.runner import RunOptions, run_pipeline
from resources.disk import FullDiskError, full_disk
from resources.workspace import Workspace
from tests.orchestration.landing import assert_tables_equal_the_oracle, land
from tests.orchestration.test_live_runs import pipeline


@contextmanager
def no_file_longer_than(process: int, size: int) -> Iterator[None]:
    """A process that can write no more than `size` bytes to a file, as little as on a disk that is nearly full."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


def jvm_of(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())


def test_a_disk_that_runs_full_is_said_and_the_next_run_goes_on_where_the_last_commit_stands(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = pipeline(tmp_path, "full", "drop", sparse=False)
    land(tmp_path / "in_full", 300, seed=6)
    workspace = Workspace(file, settings.warehouse)
    with DagsterInstance.ephemeral() as instance:
        with (
            no_file_longer_than(jvm_of(spark), 6_000),
            pytest.raises(FullDiskError, match="make room and run again"),
        ):
            run_pipeline(file, settings, RunOptions(), instance=instance)
        assert workspace.batches.last_commit() is None
        run_pipeline(file, settings, RunOptions(), instance=instance)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.parametrize(
    "said",
    [
        "[Errno 28] No space left on device: '/data/x'",
        "org.apache.spark.SparkException:\nCaused by: java.io.IOException: No space left on device\n\tat java.base/…",
        "Generic LocalFileSystem error: … (os error 122): Disk quota exceeded",
        "File too large (os error 27)",
    ],
)
def test_a_full_disk_is_known_by_what_its_writers_say(said: str) -> None:
    assert full_disk(said) is not None


def test_any_other_failure_is_not_taken_for_a_full_disk() -> None:
    assert full_disk("java.io.FileNotFoundException: No such file or directory") is None
