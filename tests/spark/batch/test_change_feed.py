"""Replacements of a table with a change feed: every reader sees the rows that changed, by whatever way it reads."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from tests.feeds import between, changes, net, net_by_spark, rows_at
from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.undoing import take_back
from tidemark.resources.delta.upkeep import vacuum
from tidemark.resources.delta.versions import Filters, files_of
from tidemark.resources.spark.amount import ANY, FEW, Amount

T = "windows/all"
SCHEMA = "k BIGINT, v STRING, at TIMESTAMP, tally MAP<STRING, DOUBLE>, parts ARRAY<STRUCT<a: INT>>, _batch_id BIGINT"
DAY = timedelta(days=1)
LOW: Filters = [("k", "<", 10)]


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    made = Lake(tmp_path / "shop", lambda: spark)
    made.create(T, spark.createDataFrame([], SCHEMA).schema, change_feed=True)
    return made


def rows(lake: Lake, keys: Sequence[int | None], value: str = "old", batch: int = 1) -> DataFrame:
    at = "TIMESTAMP '2026-01-01 00:00:00.123456'"
    made = lake.session().createDataFrame([(key,) for key in keys], "k BIGINT").coalesce(1)
    return made.selectExpr(
        "k", f"'{value}' AS v", f"{at} AS at", "map('n', k / 2) AS tally", "array(struct(1 AS a)) AS parts",
        f"CAST({batch} AS BIGINT) AS _batch_id",
    )  # fmt: skip


def seed(lake: Lake, *files: Sequence[int | None]) -> int:
    for attempt, keys in enumerate(files, start=1):
        lake.append(T, rows(lake, keys), attempt=attempt, expect=attempt - 1)
    return len(files)


def told(lake: Lake, after: int) -> Counter[tuple[int, str, str]]:
    feed = changes(lake.path(T), after, lake.version(T)).to_pylist()
    return Counter((row["k"], row["v"], row["_change_type"]) for row in feed)


def assert_feed_and_table_agree(spark: SparkSession, lake: Lake, after: int = 0) -> None:
    folder, latest = lake.path(T), lake.version(T)
    assert net(folder, after, latest) == net_by_spark(spark, folder, after, latest) == between(folder, after, latest)


@pytest.mark.parametrize("amount", [pytest.param(FEW, id="few"), pytest.param(ANY, id="any", marks=pytest.mark.long)])
def test_a_replacement_tells_the_rows_that_go_and_come_and_none_that_stay(
    spark: SparkSession, lake: Lake, amount: Amount
) -> None:
    before = seed(lake, [1, 2, 20, None], [3, 3, 21], [30])
    new = rows(lake, [1, 3], batch=9).unionByName(rows(lake, [4, 4], "new", batch=9))
    written = lake.replace(T, new, where=LOW, attempt=9, expect=before, amount=amount)
    assert written.rows == 2
    assert told(lake, before) == {(2, "old", "delete"): 1, (3, "old", "delete"): 1, (4, "new", "insert"): 2}
    assert_feed_and_table_agree(spark, lake)
    kept = lake.rows(T).select(["k", "v", "_batch_id"]).to_pylist()
    assert Counter((row["k"], row["v"], row["_batch_id"]) for row in kept) == {
        **{(k, "old", 1): 1 for k in (1, 3, 20, 21, 30, None)},
        (4, "new", 9): 2,
    }, "rows that are given again keep the number of their batch"


def test_rows_that_are_all_given_again_are_no_commit(lake: Lake) -> None:
    before = seed(lake, [1, 2, 20])
    assert lake.replace(T, rows(lake, [2, 1], batch=9), where=LOW, attempt=9, expect=before).rows == 0
    assert lake.version(T) == before


def test_files_of_which_all_rows_go_need_no_commit_that_splits_them(spark: SparkSession, lake: Lake) -> None:
    before = seed(lake, [1, 2], [20])
    lake.replace(T, rows(lake, [5], "new"), where=LOW, attempt=9, expect=before)
    assert lake.version(T) == before + 1
    assert_feed_and_table_agree(spark, lake, before)


def test_a_write_that_is_repeated_writes_nothing(lake: Lake) -> None:
    before = seed(lake, [1, 2, 20])
    first = lake.replace(T, rows(lake, [1, 5], "new"), where=LOW, attempt=9, expect=before)
    assert lake.replace(T, rows(lake, [1, 5], "new"), where=LOW, attempt=9, expect=before) == first
    assert lake.version(T) == first.version == before + 2


def test_what_an_unfinished_attempt_wrote_is_told_and_taken_back_row_by_row(spark: SparkSession, lake: Lake) -> None:
    before = seed(lake, [1, 2, 20])
    lake.replace(T, rows(lake, [1, 5], "new"), where=LOW, attempt=9, expect=before)
    there = take_back(lake, T, before, attempt=10)
    went = {(k, "old", "delete"): 1 for k in (1, 2)} | {(k, "new", "insert"): 1 for k in (1, 5)}
    back = {(k, "old", "insert"): 1 for k in (1, 2)} | {(k, "new", "delete"): 1 for k in (1, 5)}
    assert told(lake, before) == went | back
    assert net(lake.path(T), before, there) == net_by_spark(spark, lake.path(T), before, there) == {}
    assert rows_at(lake.path(T), there) == rows_at(lake.path(T), before)


@pytest.mark.long
def test_upkeep_is_not_told_and_a_split_that_it_joined_again_is_made_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    joined: list[int] = []

    class Joining(Lake):
        """Join the files right after the commit that splits them."""

        def _committed(self, table: str, version: int) -> None:
            if version == 2 and not joined:
                joined.append(version)
                DeltaTable(str(self.path(table))).optimize.compact()

    lake = Joining(tmp_path / "shop", lambda: spark)
    lake.create(T, spark.createDataFrame([], SCHEMA).schema, change_feed=True)
    before = seed(lake, [1, 2, 20])
    lake.replace(T, rows(lake, [1, 5], "new"), where=LOW, attempt=9, expect=before)
    assert joined
    assert told(lake, before) == {
        **{(k, "old", "delete"): 1 for k in (1, 2)},
        **{(k, "new", "insert"): 1 for k in (1, 5)},
    }
    DeltaTable(str(lake.path(T))).optimize.z_order(["k"])
    assert_feed_and_table_agree(spark, lake, before)
    vacuum(lake, T, DAY, keep=[])
    assert_feed_and_table_agree(spark, lake, before)


def test_a_write_that_somebody_else_came_before_leaves_no_files(lake: Lake) -> None:
    before = seed(lake, [1, 2, 20])
    write_deltalake(str(lake.path(T)), rows(lake, [99]).toArrow(), mode="append")
    with pytest.raises(ConflictError):
        lake.replace(T, rows(lake, [1, 5], "new"), where=LOW, attempt=9, expect=before)
    assert not list(lake.path(T).glob("attempt-9-*"))


@pytest.mark.long
def test_a_feed_that_is_switched_on_later_begins_there_and_ends_where_it_is_switched_off(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "shop", lambda: spark)
    lake.create(T, spark.createDataFrame([], SCHEMA).schema)
    before = seed(lake, [1, 2, 20])
    for _ in range(2):
        lake.set_change_feed(T, on=True)
    assert lake.version(T) == before + 1
    lake.replace(T, rows(lake, [1], "new"), where=LOW, attempt=9, expect=before)
    assert_feed_and_table_agree(spark, lake, before + 1)
    lake.set_change_feed(T, on=False)
    there = lake.version(T)
    lake.replace(T, rows(lake, [2], "new"), where=LOW, attempt=10, expect=there)
    assert DeltaTable(str(lake.path(T))).metadata().configuration["delta.enableChangeDataFeed"] == "false"


def test_other_readers_need_nothing_new(lake: Lake) -> None:
    before = seed(lake, [1, 2, 20])
    lake.replace(T, rows(lake, [1], "new"), where=LOW, attempt=9, expect=before)
    delta = DeltaTable(str(lake.path(T)))
    assert delta.protocol().min_reader_version == 1
    assert delta.protocol().reader_features is None
    found = duckdb.arrow(delta.to_pyarrow_dataset(filesystem=files_of(lake.path(T))))
    assert found.select("k", "v").order("k").fetchall() == [(1, "new"), (20, "old")]
