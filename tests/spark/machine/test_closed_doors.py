"""Doors that a Spark of this machine opens: the addresses that it listens on, and the files that it leaves."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.resources.spark.session import local_session, session_config

_LISTENS = "0A"
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1, as the kernel writes them."""


def java(spark: SparkSession, name: str) -> str:
    """Return a property of the JVM."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return str(jvm.java.lang.System.getProperty(name))


def listening(pid: int) -> set[str]:
    """Addresses at which a process listens, as the kernel writes them."""
    inodes = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == _LISTENS and f"socket:[{row[9]}]" in inodes}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells it in files")
def test_all_that_spark_opens_is_bound_to_the_loopback_address(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    found = listening(int(jvm.java.lang.ProcessHandle.current().pid()))
    assert found, "the driver and its blocks at least"
    assert found <= _LOOPBACK
    assert spark.sparkContext.uiWebUrl is None


def test_what_it_keeps_while_it_works_is_in_a_folder_of_its_owner_alone(spark: SparkSession) -> None:
    folder = Path(java(spark, "java.io.tmpdir"))
    assert folder.stat().st_mode & 0o777 == 0o700
    spark.range(10).repartition(2).collect()
    assert list(folder.glob("blockmgr-*"))


def test_files_of_tables_follow_the_umask_of_the_process(spark: SparkSession, tmp_path: Path) -> None:
    umask = os.umask(0o077)
    os.umask(umask)
    spark.range(10).write.format("delta").save(str(tmp_path / "table"))
    files = list((tmp_path / "table").rglob("*.parquet"))
    assert files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}
    known = spark.sparkContext.getConf().get("spark.hadoop.fs.permissions.umask-mode")
    assert known == f"{umask:03o}", "Hadoop's own is 022, as the umask of most tests"


def test_a_session_that_is_there_keeps_its_folder(spark: SparkSession) -> None:
    before = java(spark, "java.io.tmpdir")
    assert local_session(session_config(small=True)) is spark
    assert java(spark, "java.io.tmpdir") == before
