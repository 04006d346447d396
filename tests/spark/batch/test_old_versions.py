"""Versions that are older than a week: Delta's Spark refuses them, unless a table or a session says otherwise."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.aged import age
from tests.knows import Knows
from tests.pure.batch.batches import START, T, lake_of, planned, rows
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.committed import read
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.upkeep import keep_readable
from tidemark.resources.sources.delta import DeltaReader
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.table_versions import reading_place
from tidemark.resources.spark.session import READS_OLD_VERSIONS
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA
from tidemark.timeops.spec import DeltaSource

TEN_DAYS, WEEK, MONTH = timedelta(days=10), timedelta(days=7), timedelta(days=30)


@pytest.fixture
def foreign(spark: SparkSession) -> SparkSession:
    """Return a session with the settings that any program has."""
    other = spark.newSession()
    for name in READS_OLD_VERSIONS:
        other.conf.set(name, "true")
    return other


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a pipeline of two commits that are ten days old, and a batch that has written and not committed."""
    made = lake_of(tmp_path / "shop", [1], [2, 3])
    made.create(BATCHES, BATCHES_SCHEMA)
    made.set_change_feed(T, on=True)
    log = BatchLog(made)
    for version in (1, 2):
        log.commit(planned(log), {}, {T: version}, START)
    age(made.path(T), TEN_DAYS)
    made.append_rows(T, rows(4), attempt=4, expect=made.version(T))
    return made


def keys(session: SparkSession, lake: Lake, batch_id: int | None = None) -> list[int]:
    return sorted(row["k"] for row in read(session, lake.root.parent, "shop", T, batch_id).collect())


def by_sql(session: SparkSession, lake: Lake, version: int) -> list[int]:
    found = session.sql(f"SELECT k FROM delta.`{lake.path(T)}` VERSION AS OF {version}")  # as views of a catalog do
    return sorted(row["k"] for row in found.collect())


def test_commits_of_any_age_are_read_by_a_session_of_any_settings(foreign: SparkSession, lake: Lake) -> None:
    assert (by_sql(foreign, lake, 2), by_sql(foreign, lake, 1)) == ([1, 2, 3], [1])
    keep_readable(lake, T, 2, WEEK)  # `tidemark maintain` promises less; the last commit stays readable all the same
    age(lake.path(T), TEN_DAYS)
    assert by_sql(foreign, lake, 2) == [1, 2, 3]
    lake.set_properties(T, {"delta.deletedFileRetentionDuration": "interval 7 days"})  # as tables of former versions
    age(lake.path(T), TEN_DAYS)
    with pytest.raises(AnalysisException, match="RETENTION_DURATION"):
        by_sql(foreign, lake, 2)
    assert (keys(foreign, lake), keys(foreign, lake, 0)) == ([1, 2, 3], [1])


@pytest.mark.long
def test_feeds_clones_and_restored_versions_are_as_old_as_maintenance_says(
    foreign: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = f"delta.`{lake.path(T)}`"
    keep_readable(lake, T, 2, MONTH)
    age(lake.path(T), TEN_DAYS)
    feed = foreign.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 3)
    assert [row["k"] for row in feed.load(str(lake.path(T))).collect()] == [4]
    foreign.sql(f"CREATE TABLE delta.`{tmp_path / 'clone'}` SHALLOW CLONE {table} VERSION AS OF 1")
    assert [row["k"] for row in foreign.read.format("delta").load(str(tmp_path / "clone")).collect()] == [1]
    foreign.sql(f"RESTORE TABLE {table} TO VERSION AS OF 2")
    assert sorted(row["k"] for row in foreign.read.format("delta").load(str(lake.path(T))).collect()) == [1, 2, 3]


@pytest.mark.long
def test_commits_of_others_are_read_whatever_their_age(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing can be set on the table, which belongs to another program."""
    feed = "'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true'"
    table = f"delta.`{tmp_path / 't'}`"
    spark.sql(f"CREATE TABLE {table} (k INT) USING delta TBLPROPERTIES ({feed})")
    for change in ("INSERT INTO", "DELETE FROM", "INSERT INTO", "INSERT INTO"):
        of = {"INSERT INTO": "SELECT explode(array(1, 2))", "DELETE FROM": "WHERE k = 2"}[change]
        spark.sql(f"{change} {table} {of}")
    age(tmp_path / "t", TEN_DAYS)
    assert everything(spark, tmp_path, changes="rows", start_version=0) == [1, 2, -2, 1, 2, 1, 2]
    assert everything(spark, tmp_path, changes="rows", start_version=2) == [-2, 1, 2, 1, 2]
    assert everything(spark, tmp_path, changes="follow", start_version=0) == [1, 2, 1, -1, -2, 1, 2, 1, 2]
    assert everything(spark, tmp_path, changes="ignore", start_version=0) == [1, 2, 1, 2, 1, 2]
    assert everything(spark, tmp_path) == [1, 1, 1, 2, 2]


def everything(spark: SparkSession, base: Path, **settings: object) -> list[int]:
    """Read all that a source finds, version by version, and return the keys; those of rows that are gone negative."""
    named = {"name": "s", "kind": "delta", "path": "t", "schema": "k INT", "max_versions": 1}
    reader = DeltaReader(DeltaSource.model_validate({**named, **settings}), base)
    states: list[FileState] = []
    found: list[int] = []
    while versions := (seen := reader.look(Knows(states))).versions:
        assert not seen.errors
        with reading_place(base / "shop") as place:
            records = reader.read(spark, seen, place, "UTC")
            rows = [(row["k"], row.asDict().get("_change_type")) for row in records.records.collect()]
            found += sorted((-key if kind == "delete" else key for key, kind in rows), key=abs)
            if records.corrects is not None:
                found += sorted((-row["k"] for row in records.corrects[1].collect()), key=abs)
        states += [version.state for version in versions]
    return found
