"""Single tables of the lake: each write is one commit, can be repeated, and is read by others than Spark."""

import json
import os
import stat
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import tidemark as tm
from tidemark.resources.delta import lake as lake_module
from tidemark.resources.delta.files import piece_of
from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.versions import NO_ROWS, Filters
from tidemark.resources.spark import amount as amount_module
from tidemark.resources.spark.amount import ANY, FEW, Amount
from tidemark.resources.spark.delta_jars import delta_package
from tidemark.resources.spark.session import check_java, session_config
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, LOG_CONTROL, LOG_CONTROL_SCHEMA
from tidemark.timeops.errors import FencedError, LakeError, TidemarkError

EVENTS = "ordered_events"
SCHEMA = StructType([StructField("k", LongType()), StructField("v", StringType())])
AT = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)


class Counting(Lake):
    """A lake that notes its commits."""

    noted: list[tuple[str, int]] = []  # noqa: RUF012 - reset by the fixture

    def _committing(self, table: str) -> None:
        self.noted.append((table, -1))

    def _committed(self, table: str, version: int) -> None:
        self.noted.append((table, version))


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    Counting.noted.clear()
    made = Counting(tmp_path / "a warehouse" / "shop", lambda: spark)
    made.create(EVENTS, SCHEMA)
    return made


def some(lake: Lake, keys: Sequence[int], value: str = "old") -> DataFrame:
    """Rows with these keys, in one file."""
    return lake.session().createDataFrame([(key, value) for key in keys], SCHEMA).coalesce(1)


def seed(lake: Lake, *files: Sequence[int]) -> None:
    """Bring files with these keys in, a version each, as attempts 1, 2, ... and fast: without Spark."""
    for attempt, keys in enumerate(files, start=1):
        rows = pa.table({"k": pa.array(keys, pa.int64()), "v": ["old"] * len(keys)})
        lake.append_rows(EVENTS, rows, attempt=attempt, expect=attempt - 1)


def content(lake: Lake) -> list[tuple[int, str]]:
    rows = lake.rows(EVENTS)
    return sorted(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def test_numbers_and_instants_that_arrow_writes_are_differences_which_every_reader_reads(lake: Lake) -> None:
    schema = StructType().add("came", TimestampType()).add("n", LongType()).add("_arrival_seq", LongType())
    lake.create("log", schema)
    us = [-62_135_596_800_000_000, None, 253_402_300_799_999_999, 0, 1]
    values = {
        "came": pa.array(us, pa.timestamp("us", "UTC")),
        "n": pa.array([2**63 - 1, -(2**63), None, 0, 7]),
        "_arrival_seq": pa.array([-(2**63), 2**63 - 1, 3, 4, 5]),
    }
    rows = pa.table(values)
    lake.replace_pieces("log", [lambda made: rows.cast(made).to_batches()], where=NO_ROWS, attempt=1, expect=0)
    [path] = lake.path("log").glob("*/*.parquet")
    group = pq.read_metadata(path).row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(3)}
    assert [name for name, of in encodings.items() if "DELTA_BINARY_PACKED" in of] == ["came", "_arrival_seq"]
    plain = [*zip(us, values["n"].to_pylist(), values["_arrival_seq"].to_pylist(), strict=True)]
    asked = "unix_micros(came), n, _arrival_seq"
    assert [tuple(row) for row in lake.read("log").selectExpr(*asked.split(", ")).collect()] == plain
    assert duckdb.execute(f"SELECT epoch_us(came), n, _arrival_seq FROM '{path}'").fetchall() == plain
    assert lake.rows("log").equals(rows.cast(lake.rows("log").schema))


def test_files_that_arrow_writes_say_their_types_once_and_every_reader_reads_them(lake: Lake) -> None:
    columns = "a TINYINT, b INT, c FLOAT, d BOOLEAN, e BINARY, f DATE, g TIMESTAMP, h DECIMAL(20, 3), i STRING"
    nested = "l ARRAY<STRING>, m MAP<STRING, BIGINT>, n STRUCT<x: DATE, y: ARRAY<TIMESTAMP>>"
    lake.create("types", StructType.fromDDL(f"{columns}, {nested}"))
    day, instant = date(1969, 12, 31), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    first: list[Any] = [-128, 2**31 - 1, 0.5, True, b"\x00\xff", day, instant, Decimal("-1.125"), "ü"]
    values = [[*first, ["a", None], [("k", 1)], {"x": day, "y": [instant, None]}], [None] * 12]
    names = "abcdefghilmn"

    def piece(made: pa.Schema) -> list[pa.RecordBatch]:
        rows = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in values], schema=made)
        return [*rows.to_batches()]

    lake.replace_pieces("types", [piece], where=NO_ROWS, attempt=1, expect=0)
    [path] = lake.path("types").glob("*/*.parquet")
    assert b"ARROW:schema" not in (pq.read_metadata(path).metadata or {})  # for Arrow alone
    read = lake.rows("types")
    assert read.equals(pa.Table.from_batches(piece(read.schema)))
    asked = ("g = n.y[0]", "f = n.x", "h", "m['k']", "l")
    by_spark = lake.read("types").where("a = -128").selectExpr(*asked).first()
    assert by_spark == (True, True, Decimal("-1.125"), 1, ["a", None])
    by_duckdb = duckdb.execute(f"SELECT epoch_us(g), f, h, i, l, n.x FROM '{path}' WHERE a = -128").fetchall()
    assert by_duckdb == [(-1, day, Decimal("-1.125"), "ü", ["a", None], day)]


def files(lake: Lake) -> set[str]:
    return set(DeltaTable(str(lake.path(EVENTS))).file_uris())


def local(uri: str) -> Path:
    """Return the local file that a table's URI names."""
    return Path(unquote(uri.removeprefix("file://")))


def by_somebody_else(lake: Lake) -> None:
    write_deltalake(str(lake.path(EVENTS)), pa.table({"k": pa.array([99]), "v": ["x"]}), mode="append")


def test_an_append_is_one_commit_and_counts_its_rows(lake: Lake) -> None:
    written = lake.append(EVENTS, some(lake, [1, 2, 3]), attempt=1, expect=0)
    assert (written.version, written.rows) == (1, 3)
    assert lake.version(EVENTS) == 1
    assert Counting.noted == [(EVENTS, -1), (EVENTS, 1)]
    assert sorted(row.k for row in lake.read(EVENTS).collect()) == [1, 2, 3]


def test_an_append_repeated_by_its_attempt_writes_nothing(lake: Lake) -> None:
    first = lake.append(EVENTS, some(lake, [1, 2]), attempt=7, expect=0)
    assert lake.append(EVENTS, some(lake, [1, 2]), attempt=7, expect=0) == first
    assert lake.append(EVENTS, some(lake, [1, 2]), attempt=7, expect=1) == first
    assert content(lake) == [(1, "old"), (2, "old")]
    assert len(Counting.noted) == 2


def test_an_earlier_attempt_cannot_write_behind_a_later_one(lake: Lake) -> None:
    seed(lake, [1], [2])
    with pytest.raises(FencedError, match="attempt 2, a later one than this run's 1"):
        lake.append(EVENTS, some(lake, [3]), attempt=1, expect=2)
    assert content(lake) == [(1, "old"), (2, "old")]


def test_a_table_that_somebody_else_has_written_is_not_written(lake: Lake) -> None:
    by_somebody_else(lake)
    with pytest.raises(ConflictError, match="ordered_events is at version 1") as error:
        lake.append(EVENTS, some(lake, [1]), attempt=1, expect=0)
    assert "version 0" in str(error.value)
    assert "Run again" in str(error.value)
    assert content(lake) == [(99, "x")]
    assert [version for _, version in Counting.noted if version >= 0] == [], "it committed nothing"


@pytest.mark.parametrize("amount", [ANY, FEW], ids=["any", "few"])
def test_a_write_by_somebody_else_at_the_same_time_is_noticed(lake: Lake, amount: Amount) -> None:
    class Crossed(Lake):
        def _committing(self, table: str) -> None:  # noqa: ARG002
            by_somebody_else(lake)

    crossed = Crossed(lake.root, lake.session)
    with pytest.raises(ConflictError, match="is at version 1"):
        crossed.append(EVENTS, some(lake, [1]), attempt=1, expect=0, amount=amount)
    where = [("k", "=", 99)]
    with pytest.raises(ConflictError, match="is at version 2"):
        crossed.replace(EVENTS, some(lake, [1]), where=where, attempt=2, expect=1, amount=amount)
    assert content(lake) == [(99, "x"), (99, "x")]
    assert not list(lake.path(EVENTS).glob("attempt-*")), "what Spark wrote for nothing is gone"


def test_maintenance_at_the_same_time_is_no_write_by_somebody_else(lake: Lake) -> None:
    class Maintained(Lake):
        def _committing(self, table: str) -> None:
            DeltaTable(str(self.path(table))).optimize.compact()  # the first time; then there is nothing to join

    maintained = Maintained(lake.root, lake.session)
    seed(lake, [1], [2])
    for attempt, amount in ((3, ANY), (4, FEW)):
        done = maintained.append(
            EVENTS, some(lake, [attempt]), attempt=attempt, expect=lake.version(EVENTS), amount=amount
        )
        assert (done.rows, done.version) == (1, lake.version(EVENTS))
    where = [("k", "=", 2)]
    replaced = maintained.replace(EVENTS, some(lake, [9]), where=where, attempt=5, expect=lake.version(EVENTS))
    assert replaced.rows == 1
    assert [key for key, _ in content(lake)] == [1, 3, 4, 9]


def test_replace_is_one_commit_that_rewrites_only_files_with_matching_rows(lake: Lake) -> None:
    seed(lake, [0, 1, 2], [10, 11, 12], [20, 21, 22])
    before = files(lake)
    outside = {uri for uri in before if pq.read_table(local(uri))["k"].to_pylist() != [10, 11, 12]}
    new, where = some(lake, [5, 11, 30, 31], "new"), [("k", ">=", 11), ("k", "<=", 19)]
    written = lake.replace(EVENTS, new, where=where, attempt=4, expect=3)
    assert (written.version, written.rows) == (4, 4)
    assert before & files(lake) == outside
    assert len(outside) == 2
    kept = [(key, "old") for key in (0, 1, 2, 10, 20, 21, 22)]
    assert content(lake) == sorted([*kept, (5, "new"), (11, "new"), (30, "new"), (31, "new")])
    assert lake.replace(EVENTS, new, where=where, attempt=4, expect=3) == written
    assert lake.version(EVENTS) == 4


@pytest.mark.parametrize("amount", [ANY, FEW], ids=["any", "few"])
def test_replace_keeps_rows_for_which_the_condition_is_null(lake: Lake, amount: Amount) -> None:
    df = lake.session().createDataFrame([(1, None), (2, "open"), (3, "closed")], SCHEMA)
    lake.append(EVENTS, df, attempt=1, expect=0, amount=amount)
    where = [("v", "=", "open")]
    lake.replace(EVENTS, some(lake, [4], "closed"), where=where, attempt=2, expect=1, amount=amount)
    assert sorted(lake.rows(EVENTS)["k"].to_pylist()) == [1, 3, 4]


def test_restore_brings_back_exactly_what_a_version_held(lake: Lake) -> None:
    seed(lake, [1, 2], [3])
    lake.replace(EVENTS, some(lake, [9], "new"), where=[("k", "<", 3)], attempt=3, expect=2)
    assert lake.restore(EVENTS, 2) == 4
    assert content(lake) == [(1, "old"), (2, "old"), (3, "old")]
    assert sorted(row.k for row in lake.read(EVENTS).collect()) == [1, 2, 3]
    assert lake.append(EVENTS, some(lake, [4]), attempt=4, expect=4).version == 5
    assert lake.restore(EVENTS, 0) == 6
    assert lake.read(EVENTS).count() == 0
    assert lake.read(EVENTS, version=5).count() == 4


@pytest.mark.parametrize("most", [0, 3, 100])
def test_few_rows_are_written_without_spark_and_many_with_it_and_the_table_is_the_same(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """With `most` 3 the appended rows are few, and the ones that stay get a file of their own."""
    monkeypatch.setattr(amount_module, "FEW_ROWS", most)
    first = lake.append(EVENTS, some(lake, [1, 2]), attempt=1, expect=0, amount=FEW)
    assert (first.version, first.rows) == (1, 2)
    assert lake.append(EVENTS, some(lake, [1, 2]), attempt=1, expect=0, amount=FEW) == first
    lake.append(EVENTS, some(lake, [3, 4]), attempt=2, expect=1, amount=FEW)
    where = [("k", ">=", 2), ("k", "<", 4)]
    written = lake.replace(EVENTS, some(lake, [7], "new"), where=where, attempt=3, expect=2, amount=FEW)
    assert (written.version, written.rows) == (3, 1)
    assert lake.replace(EVENTS, some(lake, [7], "new"), where=where, attempt=3, expect=2, amount=FEW) == written
    assert content(lake) == [(1, "old"), (4, "old"), (7, "new")]
    added = {version: set(DeltaTable(str(lake.path(EVENTS)), version).file_uris()) for version in (0, 1, 2, 3)}
    by_spark = [
        any("attempt-" in uri and "-c000" in uri for uri in added[version] - added[version - 1]) for version in (1, 3)
    ]
    assert by_spark == [most < 2, most < 1]
    with pytest.raises(FencedError):
        lake.replace(EVENTS, some(lake, [8]), where=(), attempt=2, expect=3, amount=FEW)
    lake.replace(EVENTS, some(lake, [8]), where=(), attempt=4, expect=3, amount=FEW)
    assert content(lake) == [(8, "old")]
    assert lake.restore(EVENTS, 3) == 5
    assert len(content(lake)) == 3


def test_rows_to_delete_may_stay_as_long_as_they_share_a_file_with_others(lake: Lake) -> None:
    held, schema = "held_events", pa.schema([("_arrival_seq", pa.int64())])  # the log has bounds of this column
    lake.create(held, schema)
    for version, numbers in enumerate([[0, 1], [2, 3], [4]]):
        lake.append_rows(held, pa.table([numbers], schema=schema), attempt=version + 1, expect=version)

    def replace(number: int, below: int, attempt: int, stays: Filters | None) -> list[int]:
        row = [piece_of(pa.table([[number]], schema=schema))]
        where = [("_arrival_seq", "<", below)]
        lake.replace_pieces(held, row, where=where, stays=stays, attempt=attempt, expect=attempt - 1)
        return sorted(lake.rows(held)["_arrival_seq"].to_pylist())

    before = set(DeltaTable(str(lake.path(held))).file_uris())
    assert replace(9, below=3, attempt=4, stays=[("_arrival_seq", ">=", 3)]) == [2, 3, 4, 9]
    assert len(before & set(DeltaTable(str(lake.path(held))).file_uris())) == 2, "no file is written anew"
    assert replace(10, below=3, attempt=5, stays=None) == [3, 4, 9, 10]
    assert replace(11, below=11, attempt=6, stays=None) == [11], "also where no row of a file stays"


def test_few_rows_are_replaced_in_the_files_that_hold_them_and_many_small_files_become_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(lake, [0, 1], [2, 3], [4])
    before = files(lake)
    lake.replace(EVENTS, some(lake, [9]), where=[("k", "=", 3)], attempt=4, expect=3, amount=FEW)
    assert [key for key, _ in content(lake)] == [0, 1, 2, 4, 9]
    assert len(before & files(lake)) == 2
    monkeypatch.setattr(lake_module, "MOST_FILES", 2)
    lake.replace(EVENTS, some(lake, [8]), where=[("k", "=", 9)], attempt=5, expect=4, amount=FEW)
    assert [key for key, _ in content(lake)] == [0, 1, 2, 4, 8]
    assert len(files(lake)) == 1


def test_instants_of_all_years_are_kept_to_the_microsecond_when_few_rows_are_written(lake: Lake) -> None:
    edges = [-62_135_596_800_000_000, -1, 0, 253_402_300_799_999_999]
    df = lake.session().createDataFrame([(us, us % 7) for us in edges], "us LONG, n LONG")
    df = df.selectExpr("us", "timestamp_micros(us) AS at")
    lake.create("times", df.schema)
    lake.append("times", df, attempt=1, expect=0, amount=FEW)
    assert lake.read("times").where("unix_micros(at) = us").count() == len(edges)
    cut = datetime(1970, 1, 1, tzinfo=UTC)
    assert lake.read("times", filters=[("at", "<", cut)]).count() == 2
    lake.replace("times", df.limit(0), where=[("at", "<", cut)], attempt=2, expect=1, amount=FEW)
    assert sorted(lake.rows("times")["us"].to_pylist()) == edges[2:]


def test_an_append_that_is_known_to_be_empty_may_make_no_commit(lake: Lake) -> None:
    nothing = some(lake, [1]).where("false")
    written = lake.append(EVENTS, nothing, attempt=1, expect=0)
    assert written.rows == 0
    assert lake.version(EVENTS) == written.version
    assert lake.append(EVENTS, some(lake, [2]), attempt=2, expect=written.version).rows == 1


def test_a_filter_on_a_boolean_finds_rows_that_spark_wrote_without_statistics_of_it(
    lake: Lake, spark: SparkSession
) -> None:
    schema = StructType.fromDDL("k BIGINT, done BOOLEAN")
    assert isinstance(schema, StructType)
    lake.create("flags", schema)
    lake.append("flags", spark.createDataFrame([(1, True), (2, False), (3, None)], schema), attempt=1, expect=0)
    for filters in ([("done", "=", False)], [("done", "=", False), ("k", ">", 0)]):
        assert [row.k for row in lake.read("flags", filters=filters).collect()] == [2]
        assert lake.rows("flags", columns=["k"], filters=filters).to_pydict() == {"k": [2]}


def test_a_filtered_read_opens_only_files_that_may_hold_such_rows(lake: Lake) -> None:
    numbers = pa.schema([("_arrival_seq", pa.int64())])
    lake.create("raw_events", numbers)
    for version, seqs in enumerate([[1, 2], [3, 4], [5]]):
        lake.append_rows("raw_events", pa.table([seqs], schema=numbers), attempt=version + 1, expect=version)
    found = lake.read("raw_events", filters=[("_arrival_seq", ">", 1), ("_arrival_seq", "<", 5)])
    assert sorted(row[0] for row in found.collect()) == [2, 3, 4]
    assert len(found.inputFiles()) == 2
    seed(lake, [1, 2], [3, 4], [5])
    assert lake.read(EVENTS).inputFiles() != []
    found = lake.read(EVENTS, filters=[("k", ">", 1), ("k", "<", 5)])
    assert sorted(row.k for row in found.collect()) == [2, 3, 4]
    assert [row.k for row in lake.read(EVENTS, 2, filters=[("k", "in", [4, 5])]).collect()] == [4]
    assert lake.read(EVENTS, filters=[("k", "=", 9)]).schema == SCHEMA
    assert lake.read(EVENTS, filters=[("v", "=", None)]).collect() == []
    assert lake.rows(EVENTS, filters=[("v", "=", None)]).num_rows == 0
    assert lake.rows(EVENTS, filters=[("v", "!=", "new"), ("k", "<", 3)]).num_rows == 2
    assert lake.read(EVENTS, filters=[("k", "=", 9)]).collect() == []


def test_bounds_of_events_are_kept_for_the_columns_that_ranges_prune_by(lake: Lake) -> None:
    rows = pa.table({"_arrival_seq": [1, 2], "_batch_id": [1, 1], "amount": [2.5, 3.5]})
    for table, attempt in (("raw_events", 1), ("windows/w", 2)):
        lake.create(table, rows.schema)
        lake.append_rows(table, rows, attempt=attempt, expect=0)
        by_spark = lake.read(table).repartition(1)
        lake.append(table, by_spark, attempt=attempt + 2, expect=1)
    ours = {"raw_events": {"min._arrival_seq", "min._batch_id"}, "windows/w": {"min._batch_id"}}
    for table, expected in ours.items():
        known = pa.table(DeltaTable(str(lake.path(table))).get_add_actions(flatten=True))
        assert {name for name in known.column_names if name.startswith("min.")} == expected
        assert [known[name].null_count for name in sorted(expected)] == [0] * len(expected)
        assert lake.row_count(table) == 4


def test_names_of_folders_above_a_table_are_no_columns_and_no_patterns(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "day=1" / "{a,b}* 100%" / "shop", lambda: spark)
    lake.create(EVENTS, SCHEMA)
    seed(lake, [1])
    assert lake.read(EVENTS).collect() == [(1, "old")]
    assert lake.append(EVENTS, some(lake, [2]), attempt=2, expect=1).rows == 1


def test_restore_does_nothing_where_the_table_is_there_already(lake: Lake) -> None:
    seed(lake, [1])
    assert lake.restore(EVENTS, 1) == 1
    assert lake.restore(EVENTS, 0) == 2
    assert lake.restore(EVENTS, 0) == 2
    assert Counting.noted[2:] == [(EVENTS, -1), (EVENTS, 2)]


def test_a_write_that_was_taken_back_may_be_made_again(lake: Lake) -> None:
    seed(lake, [1])
    lake.restore(EVENTS, 0)
    assert lake.append(EVENTS, some(lake, [1]), attempt=1, expect=2).version == 3
    assert content(lake) == [(1, "old")]


def test_a_table_cannot_go_back_to_files_that_are_gone(lake: Lake) -> None:
    seed(lake, [1])
    (uri,) = files(lake)
    lake.replace(EVENTS, some(lake, [2]), where=(), attempt=2, expect=1)
    local(uri).unlink()
    with pytest.raises(LakeError, match="cannot go back to version 1"):
        lake.restore(EVENTS, 1)
    assert lake.version(EVENTS) == 2


def test_small_tables_follow_the_same_rules_without_spark(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "shop")
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    tick = {"_after_seq": 3, "_control_seq": 0, "kind": "tick", "clock": AT}
    rows = pa.Table.from_pylist([tick], schema=LOG_CONTROL_SCHEMA)
    first = lake.append_rows(LOG_CONTROL, rows, attempt=2, expect=0)
    assert (first.version, first.rows) == (1, 1)
    assert lake.append_rows(LOG_CONTROL, rows, attempt=2, expect=0) == first
    with pytest.raises(FencedError):
        lake.append_rows(LOG_CONTROL, rows, attempt=1, expect=1)
    with pytest.raises(ConflictError):
        lake.append_rows(LOG_CONTROL, rows, attempt=3, expect=0)
    assert lake.append_rows(LOG_CONTROL, rows.slice(0, 0), attempt=3, expect=1).version == 1
    assert lake.rows(LOG_CONTROL, columns=["clock"])["clock"].to_pylist() == [AT]
    with pytest.raises(LakeError, match="without Spark"):
        lake.read(LOG_CONTROL)


def test_a_table_is_opened_from_a_checkpoint_at_most_ten_commits_old(lake: Lake) -> None:
    seed(lake, *([key] for key in range(12)))
    log = lake.path(EVENTS) / "_delta_log"
    [known] = log.glob("*.checkpoint.parquet")
    assert lake.version(EVENTS) - int(known.name[:20]) <= 10
    assert [row[0] for row in content(lake)] == list(range(12))


def test_a_table_may_be_created_twice(lake: Lake) -> None:
    seed(lake, [1])
    strict = StructType([StructField("k", LongType(), nullable=False), StructField("v", StringType())])
    lake.create(EVENTS, strict)
    assert content(lake) == [(1, "old")]
    assert lake.version(EVENTS) == 1


def test_a_table_with_other_columns_is_refused_with_their_names(lake: Lake) -> None:
    other = StructType(
        [StructField("k", IntegerType()), StructField("v", StringType()), StructField("w", ArrayType(StringType()))]
    )
    with pytest.raises(LakeError, match="other columns") as error:
        lake.create(EVENTS, other)
    assert "k is bigint, expected int" in error.value.found
    assert "w is missing" in error.value.found
    with pytest.raises(LakeError, match="v is string, expected none"):
        lake.create(EVENTS, StructType([StructField("k", LongType())]))


def test_a_column_may_have_any_name_that_a_source_gives_it(lake: Lake) -> None:
    lake.create("windows/x", StructType([StructField("unit price (€); net=1", LongType())]))
    df = lake.session().sql("SELECT 5L AS `unit price (€); net=1`")
    lake.append("windows/x", df, attempt=1, expect=0)
    assert lake.rows("windows/x")["unit price (€); net=1"].to_pylist() == [5]


def test_a_table_that_is_not_there_is_named(lake: Lake) -> None:
    assert not lake.exists("windows/x")
    with pytest.raises(LakeError, match=r"There is no table .*windows/x"):
        lake.version("windows/x")


def test_delta_rs_and_duckdb_read_what_spark_wrote(lake: Lake) -> None:
    missed = ArrayType(StructType([StructField("start", TimestampType()), StructField("end", TimestampType())]))
    schema = StructType(
        [
            *(StructField("at", TimestampType()), StructField("price", DecimalType(10, 2))),
            StructField("missed_windows", missed),
        ]
    )
    lake.create("dead_letters", schema)
    df = lake.session().sql(
        f"SELECT timestamp'{AT:%Y-%m-%d %H:%M:%S.%f}' AS at, CAST(1.5 AS DECIMAL(10, 2)) AS price, "
        "array(named_struct('start', timestamp_seconds(0), 'end', timestamp_seconds(60))) AS missed_windows"
    )
    lake.append("dead_letters", df, attempt=1, expect=0)

    assert lake.rows("dead_letters")["at"].to_pylist() == [AT]
    delta = DeltaTable(str(lake.path("dead_letters")))
    assert delta.protocol().min_reader_version == 1  # no deletion vectors, no column mapping
    (path,) = [local(uri) for uri in delta.file_uris()]
    instant = pq.read_metadata(path).schema.column(0)
    assert (instant.physical_type, json.loads(instant.logical_type.to_json())["timeUnit"]) == (
        "INT64",
        "microseconds",
    )
    query = 'SELECT epoch_us("at"), price::DOUBLE, epoch(missed_windows[1]."end") FROM read_parquet(?)'
    row = duckdb.connect().execute(query, [str(path)]).fetchone()
    assert row == (int(AT.timestamp()) * 1_000_000 + AT.microsecond, 1.5, 60.0)


def test_spark_reads_what_delta_rs_wrote(lake: Lake) -> None:
    lake.create(BATCHES, BATCHES_SCHEMA)
    row = {"_batch_id": 0, "state": "committed", "committed_at": AT, "counts": {"late": 2}, "table_versions": {}}
    lake.append_rows(BATCHES, pa.Table.from_pylist([row], schema=BATCHES_SCHEMA), expect=0)
    read = lake.read(BATCHES).selectExpr("unix_micros(committed_at) AS us", "counts['late'] AS late").first()
    assert read is not None
    assert (read.us, read.late) == (int(AT.timestamp()) * 1_000_000 + AT.microsecond, 2)


def test_a_consistent_read_does_not_see_what_was_not_committed(lake: Lake, spark: SparkSession) -> None:
    lake.create(BATCHES, BATCHES_SCHEMA)
    seed(lake, [1], [2])
    owner = {"owner": "me", "host": "h", "pid": 1, "heartbeat_at": AT, "planned_at": AT}
    row = {"_batch_id": 0, "kind": "process", "state": "committed", "attempt": 1, "first_seq": 0, "end_seq": 1}
    row |= {"input": "{}", "format_version": 1, "counts": {}, "table_versions": {EVENTS: 1}, "committed_at": AT}
    lake.append_rows(BATCHES, pa.Table.from_pylist([row | owner], schema=BATCHES_SCHEMA), expect=0)
    warehouse = lake.root.parent
    assert [row.k for row in tm.read(spark, warehouse, "shop", EVENTS).collect()] == [1]
    with pytest.raises(LakeError, match="no table windows/x"):
        tm.read(spark, warehouse, "shop", "windows/x")


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def test_a_missing_java_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TidemarkError, match="There is no Java") as error:
        check_java({"PATH": str(tmp_path)})
    assert "Install Java 17, 21 or 25" in error.value.remedy
    with pytest.raises(TidemarkError, match="does not run, and JAVA_HOME points there"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", "8"), ("11.0.2", "11")])
def test_an_old_java_is_refused(tmp_path: Path, version: str, major: str) -> None:
    fake_java(tmp_path, version)
    with pytest.raises(TidemarkError, match=f"is Java {major}\\."):
        check_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_a_recent_java_is_found_on_the_path(tmp_path: Path, version: str, major: int) -> None:
    java = fake_java(tmp_path, version)
    found = check_java({"PATH": str(java.parent)})
    assert (found.path, found.major) == (str(java), major)


def test_the_settings_reach_the_session(spark: SparkSession) -> None:
    for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.legacy.timeParserPolicy"):
        assert spark.conf.get(key) == session_config()[key]
    assert delta_package() == "io.delta:delta-spark_4.2_2.13:4.4.0"


def test_a_table_grows_by_the_columns_that_it_lacks_and_rows_may_lack_some(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "grown", lambda: spark)
    lake.create("results", spark.createDataFrame([], "a BIGINT, gone BIGINT").schema)
    first = lake.append("results", spark.createDataFrame([(1, 2)], "a BIGINT, gone BIGINT"), attempt=1, expect=0)
    fresh = spark.createDataFrame([("x", 3)], "b STRING, a BIGINT")
    lake.create("results", fresh.schema, may_grow=True)
    with pytest.raises(LakeError, match="b is missing, expected string"):
        lake.create("results", fresh.schema)
    with pytest.raises(LakeError, match="a is bigint, expected string"):
        lake.create("results", spark.createDataFrame([], "a STRING").schema, may_grow=True)

    grown = lake.grow("results", fresh.schema, attempt=2, expect=first.version)
    assert lake.grow("results", fresh.schema, attempt=2, expect=grown) == grown == first.version + 1
    by_spark = lake.append("results", fresh, attempt=2, expect=grown)
    few = lake.append("results", fresh, attempt=3, expect=by_spark.version, amount=FEW)
    lake.replace("results", fresh, where=[("a", "=", 1)], attempt=4, expect=few.version, amount=FEW)
    rows = lake.rows("results").to_pylist()
    assert rows == [{"a": 3, "gone": None, "b": "x"}] * 3
    lake.restore("results", first.version)
    assert lake.rows("results").to_pylist() == [{"a": 1, "gone": 2}]
    assert [row.asDict() for row in lake.read("results", few.version).where("a = 1").collect()] == [
        {"a": 1, "gone": 2, "b": None}
    ]
