"""Pipelines over real Delta tables, end to end: what is read, in which order, once, whatever the cut."""

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.runs.landing import START, arrivals, assert_tables_equal_the_oracle
from tests.runs.running import VISITS, Made, backfill, changed, command, go, log_of, over_source, run
from tests.seeds import Dice
from tidemark.pipelines.running.runner import RunOptions

CASES = 1  # a log for each turn of the dice
SCHEMA = "id STRING, at STRING, got TIMESTAMP, k STRING, v INT"


def rows(seed: int, count: int, start: datetime = START) -> pa.Table:
    """Events that come late, some without a time, in no order."""
    rng = random.Random(seed)
    found = []
    for number, (clock, event) in enumerate(arrivals(rng, count, start)):
        at = None if rng.random() < 0.02 else event.isoformat(timespec="milliseconds")
        got = None if rng.random() < 0.01 else clock
        one = {"id": f"{seed}-{number}", "at": at, "got": got, "k": rng.choice("ab"), "v": rng.randint(0, 9)}
        found.append(one)
    rng.shuffle(found)
    got = pa.timestamp("us", "UTC")
    types = {"id": pa.string(), "at": pa.string(), "got": got, "k": pa.string(), "v": pa.int32()}
    return pa.Table.from_pylist(found, schema=pa.schema(list(types.items())))


def add(base: Path, part: pa.Table, **more: Any) -> DeltaTable:
    write_deltalake(str(base / "bronze" / "orders"), part, mode="append", **more)
    return DeltaTable(str(base / "bronze" / "orders"))


def commits(base: Path, count: int, **more: Any) -> None:
    for number in range(count):
        add(base, rows(number, 30, START + timedelta(minutes=number)), **more)


def made(base: Path, name: str, source: str = "start_version: 0", **more: str) -> Made:
    of_table = f'{{name: orders, kind: delta, path: bronze/orders, schema: "{SCHEMA}", {source}}}'
    return over_source(base, name, of_table, **more)


@pytest.mark.long
def test_rows_of_a_version_are_in_order_of_arrival_and_versions_in_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = {"at_once": 1_000, "one_by_one": 1, "by_twos": 2, "as_it_came": 1_000}  # versions in one ingestion
    for name, most in names.items():
        made(tmp_path, name, f"start_version: 0, max_versions: {most}, arrival_time: got")
    for number in range(4):
        add(tmp_path, rows(number, 25, START + timedelta(minutes=4 - number)))  # later commits arrived earlier
        if number % 2:
            run(tmp_path, "as_it_came")
    for name in names:
        run(tmp_path, name)
    log = log_of(tmp_path, "at_once")
    assert len(log) == 100
    versions = [int(row["_file"][1:].split("/")[0]) for row in log]
    assert versions == sorted(versions)
    arrivals = [
        (version, row["_arrival_time"] or datetime.max.replace(tzinfo=UTC))
        for version, row in zip(versions, log, strict=True)
    ]
    assert arrivals == sorted(arrivals)
    known = [row["_arrival_time"] for row in log if row["_arrival_time"] is not None]
    assert log[-1]["_clock"] == max(known)
    assert [row["_clock"] for row in log] == sorted(row["_clock"] for row in log)
    for name in names:
        assert log_of(tmp_path, name) == log, name


@pytest.mark.long
def test_the_log_has_the_rows_of_the_same_files_landed(spark: SparkSession, tmp_path: Path) -> None:
    """Where arrivals rise from commit to commit, a table and its files make one log but for the names."""
    made(tmp_path, "table", "start_version: 0, arrival_time: got")
    of_files = "kind: files, path: in/*.parquet, format: parquet, settle: 0 s"
    over_source(tmp_path, "files", f'{{name: orders, {of_files}, schema: "{SCHEMA}", arrival_time: got}}')
    (tmp_path / "in").mkdir()
    for number in range(3):
        part = rows(number, 40, START + timedelta(hours=number))
        part = part.filter(pa.compute.is_valid(part["got"]))
        add(tmp_path, part)
        pq.write_table(part, tmp_path / "in" / f"{number}.parquet")
    run(tmp_path, "table")
    run(tmp_path, "files")
    differ = ("_file", "_arrival_seq")
    here, there = (
        [{k: v for k, v in row.items() if k not in differ} for row in log_of(tmp_path, name)]
        for name in ("table", "files")
    )
    assert here == there
    assert len(here) > 100


@pytest.mark.long
def test_tables_equal_the_oracle_whatever_the_cut(spark: SparkSession, tmp_path: Path, dice: Dice) -> None:
    """Commits of any size and runs at any time, sessions among the windows; with `flush` the last run ends it."""
    policy, flush = dice.turn((("keep", True), ("drop", False), ("adjust", True)), 0)
    rng = random.Random(dice.seed(7))
    source = f"start_version: 0, arrival_time: got, max_versions: {rng.randint(1, 4)}"
    file, settings = made(tmp_path, "x", source, policy=policy, more=VISITS)
    records = 0
    with DagsterInstance.ephemeral() as instance:
        for number in range(3):
            part = rows(rng.getrandbits(32), rng.randint(0, 40), START + timedelta(minutes=number))
            add(tmp_path, part, partition_by=["k"])
            records += part.num_rows
            if rng.random() < 0.4:
                go((file, settings), instance)
        go((file, settings), instance, RunOptions(end_of_input="flush" if flush else "hold"))
    assert len(log_of(tmp_path, "x")) == records
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=flush)


@pytest.mark.long
def test_tables_and_files_are_sources_of_one_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a commit are in the place where it was made, records of files where they arrived."""
    beside = f'{{name: landed, kind: files, path: in/*.parquet, format: parquet, settle: 0 s, schema: "{SCHEMA}"}}\n'
    file, settings = changed(
        made(tmp_path, "x", "start_version: 0, arrival_time: got"), "\ntime:\n", f"\n  - {beside}time:\n"
    )
    (tmp_path / "in").mkdir()
    add(tmp_path, rows(1, 20))
    pq.write_table(rows(2, 20), tmp_path / "in" / "1.parquet")
    add(tmp_path, rows(3, 20))
    run(tmp_path, "x")
    log = log_of(tmp_path, "x")
    assert len(log) == 60
    assert [row["_file"].split("/")[0] for row in log[::20]] in (["v0", "1.parquet", "v1"], ["v0", "v1", "1.parquet"])
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_a_split_divides_a_table_as_it_does_files(spark: SparkSession, tmp_path: Path) -> None:
    commits(tmp_path, 2)
    file, settings = made(tmp_path, "x", "arrival_time: got, split: k")
    run(tmp_path, "x")
    assert {row["_split"] for row in log_of(tmp_path, "x")} == {"a", "b"}
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_a_version_that_deletes_rows_is_held_back_and_what_came_before_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    commits(tmp_path, 1)
    made(tmp_path, "x", "start_version: 0, arrival_time: got")
    add(tmp_path, rows(7, 5))
    DeltaTable(str(tmp_path / "bronze/orders")).delete("v = 1")
    ran = command(tmp_path, "x")
    assert ran.exit_code == 1
    assert "1 input(s) held back" in ran.output
    assert "updates or deletes rows" in ran.output
    assert len(log_of(tmp_path, "x")) == 35


@pytest.mark.long
def test_a_changed_type_stops_the_source_and_what_comes_before_is_read(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "bronze" / "orders"
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({SCHEMA}) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    made(tmp_path, "x", "start_version: 0, arrival_time: got")
    changed(made(tmp_path, "wide", "start_version: 0, arrival_time: got"), "v INT", "v BIGINT")
    insert = f"INSERT INTO delta.`{table}` VALUES ('a', '2026-01-01T00:00:00Z', TIMESTAMP '2026-01-01', 'a', {{}})"
    spark.sql(insert.format(1))
    spark.sql(f"ALTER TABLE delta.`{table}` ALTER COLUMN v TYPE BIGINT")
    spark.sql(insert.format(5_000_000_000))
    for _ in range(2):
        ran = command(tmp_path, "x")
        assert (ran.exit_code, "column `v` has the type BIGINT" in ran.output) == (1, True), ran.output
        assert [row["v"] for row in log_of(tmp_path, "x")] == [1]
    run(tmp_path, "wide")
    assert [row["v"] for row in log_of(tmp_path, "wide")] == [1, 5_000_000_000]


@pytest.mark.long
def test_a_table_with_deletion_vectors_column_mapping_and_partitions_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As Spark writes bronze tables: what a reader of files alone would misread."""
    table = tmp_path / "bronze" / "orders"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id STRING, at STRING, got TIMESTAMP, k STRING, old INT) USING delta "
        "PARTITIONED BY (k) TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    insert = (
        f"INSERT INTO delta.`{table}` SELECT 'e' || id, '2026-01-01T00:00:0' || id || 'Z', "
        "TIMESTAMP '2026-01-01', {}, id FROM range(5)"
    )
    spark.sql(insert.format("'a b/%'"))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE old = 2")
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN old TO v")
    made(tmp_path, "x", "arrival_time: got")
    run(tmp_path, "x")
    assert sorted((row["k"], row["v"]) for row in log_of(tmp_path, "x")) == [("a b/%", v) for v in (0, 1, 3, 4)]
    spark.sql(insert.format("NULL"))
    spark.sql(f"OPTIMIZE delta.`{table}`")
    spark.sql(insert.format("'ü'"))
    run(tmp_path, "x")
    log = log_of(tmp_path, "x")
    assert sorted((row["k"], row["v"]) for row in log[4:9]) == [(None, v) for v in range(5)]
    assert sorted((row["k"], row["v"]) for row in log[9:]) == [("ü", v) for v in range(5)]
    places = {(row["_file"], row["_position"]) for row in log}
    assert len(places) == len(log) == 14


@pytest.mark.long
def test_a_column_that_the_table_renames_is_found_under_each_of_its_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "bronze" / "orders"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id STRING, at STRING, got TIMESTAMP, k STRING, old INT) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    for number, renamed in enumerate([None, "old TO v", "v TO worth"]):
        if renamed is not None:
            spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN {renamed}")
        spark.sql(f"INSERT INTO delta.`{table}` VALUES ('e', '2026-01-01T00:00:00Z', NULL, 'a', {number})")
    made(tmp_path, "x", "start_version: 0, rename: {old: v, v: v, worth: v}, keep_unknown: true")
    run(tmp_path, "x")
    assert [(row["v"], row["_rescued"]) for row in log_of(tmp_path, "x")] == [(0, None), (1, None), (2, None)]
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN old INT")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES ('e', '2026-01-01T00:00:00Z', NULL, 'a', 3, 4)")
    ran = command(tmp_path, "x")
    assert (ran.exit_code, "`old` and `worth` are the same column, and both are in the table" in ran.output) == (
        1,
        True,
    )


@pytest.mark.long
def test_changes_are_read_as_rows_in_a_fixed_order(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "bronze" / "orders"
    for name, most in {"at_once": 1_000, "one_by_one": 1}.items():
        made(tmp_path, name, f"changes: rows, start_version: 0, max_versions: {most}")
    add(tmp_path, rows(1, 6), configuration={"delta.enableChangeDataFeed": "true"})
    add(tmp_path, rows(2, 4))
    spark.sql(f"UPDATE delta.`{table}` SET v = v + 100 WHERE id LIKE '1-%'")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = '2-0'")
    add(tmp_path, rows(3, 2))
    for name in ("at_once", "one_by_one"):
        run(tmp_path, name)
    log = log_of(tmp_path, "at_once")
    assert log_of(tmp_path, "one_by_one") == log
    kinds = [row["_change_type"] for row in log]
    assert kinds == ["insert"] * 10 + ["update_preimage"] * 6 + ["update_postimage"] * 6 + ["delete"] + ["insert"] * 2
    assert [row["v"] + 100 for row in log[10:16]] == [row["v"] for row in log[16:22]]
    assert [row["_position"] for row in log[10:22]] == list(range(1, 13))


@pytest.mark.long
def test_a_correction_of_one_pipeline_stops_another_until_it_is_passed_over_or_read_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Carry out the remedy of the message to the letter, both ways of it."""
    add(tmp_path, rows(1, 40))
    first = made(tmp_path, "first", "start_version: 0, arrival_time: got")
    run(tmp_path, "first")
    spec = (
        "name: {name}\nsources:\n  - {{name: minutes, kind: delta, path: warehouse/first/windows/per_minute, "
        'schema: "window_start TIMESTAMP, window_end TIMESTAMP, k STRING, total BIGINT", '
        "arrival_time: window_end{more}}}\n"
        "time: {{timestamp_by: window_start, out_of_orderness: 1 hour}}\n"
        "windows:\n  - {{name: all, kind: tumbling, size: 10 days, aggregates: {{total: sum(total)}}}}\n"
    )

    def total(name: str, more: str = "") -> tuple[int, str, int]:
        (tmp_path / f"{name}.yaml").write_text(spec.format(name=name, more=more))
        done = command(tmp_path, name)
        return done.exit_code, done.output, sum(row["total"] for row in log_of(tmp_path, name))

    code, _, before = total("second")
    assert (code, before > 0) == (0, True)
    first = changed(first, "total: sum(v)", "total: sum(v) * 100")
    run(tmp_path, "first")
    assert backfill(*first, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    code, said, after = total("second")
    assert (code, after) == (1, before)
    [further] = re.findall(r"set `(start_version: \d+)`", said)
    code, _, after = total("second", f", {further}")
    assert (code, after) == (0, before)
    add(tmp_path, rows(2, 40, START + timedelta(hours=1)))
    run(tmp_path, "first")
    code, _, more = total("second", f", {further}")
    assert (code, more > before) == (0, True)
    code, _, anew = total("third")
    assert (code, anew) == (0, more - before + 100 * before)
