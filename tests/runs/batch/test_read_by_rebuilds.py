"""A rebuild of one window reads of the log the columns that the window and the time need, and no other events.

Spark's own record of its scans says it, and what this process opens by itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.dataset
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, land
from tests.runs.running import assert_as_new, changed, go, rebuild, written
from tidemark.resources.delta.lake import Lake
from tidemark.resources.spark import amount

SPEC = (
    f"name: shop\n{LINES}    order: position\n"
    """\
time: {timestamp_by: at, out_of_orderness: 3 s, late: {tolerance: 9 s, policy: drop}}
alerts: {dead_letter_rate: {warn: 50 %, min_records: 1000}}  # more than are read
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: hours, kind: tumbling, size: 1 hour, from: minutes, group_by: [k], aggregates: {n: sum(n)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [id], aggregates: {n: sum(v)}}
"""
)
JUDGED = {"at", "_arrival_seq", "_arrival_time", "_clock", "_malformed", "_source"}


@dataclass(frozen=True)
class Scan:
    """A table that Spark has read, and its columns."""

    table: str
    columns: frozenset[str]


def scans(spark: SparkSession, base: Path, after: int) -> Iterator[Scan]:
    """Yield the scans of the tables of a pipeline in all queries after one."""
    of: Any = spark
    store = of._jsparkSession.sharedState().statusStore()
    for query in queries(spark):
        for node in each(store.planGraph(query).allNodes()) if query > after else ():
            if found := re.match(
                r"FileScan parquet \[(.*?)\] .*?Location: \w+\(\d+ paths\)\[file:(.*?)(?:\.\.\.|[,\]])", node.desc()
            ):
                table = found[2].removeprefix(f"{base}/warehouse/shop/")
                columns = frozenset(name.split("#")[0] for name in found[1].split(",") if name)
                yield Scan(table, columns)


def queries(spark: SparkSession) -> list[int]:
    of: Any = spark
    return [one.executionId() for one in each(of._jsparkSession.sharedState().statusStore().executionsList())]


def each(seq: Any) -> Iterator[Any]:
    found = seq.iterator()
    while found.hasNext():
        yield found.next()


@pytest.fixture
def base() -> Iterator[Path]:
    """Yield a folder with a short name: Spark shows no more than the beginning of a path."""
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.long
def test_a_window_is_made_anew_from_the_columns_of_the_log_that_it_needs(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(base, "shop", SPEC)
    land(base / "in", 80, seed=3)
    opened, dataset = set[str](), Lake.dataset

    def opening(lake: Lake, table: str, version: int | None) -> pyarrow.dataset.Dataset:
        opened.add(table)
        return dataset(lake, table, version)

    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, "size: 1 minute", "size: 2 minutes")
        with monkeypatch.context() as patched:
            patched.setattr(amount, "KEPT_ROWS", 10)  # as of a long log
            patched.setattr(Lake, "dataset", opening)
            last = max(queries(spark))
            done = rebuild(made, "--window", "minutes")
            assert done.exit_code == 0, done.output
        found = [*scans(spark, base, last)]
        assert_as_new(made, instance)
    of_log = [scan for scan in found if scan.table.startswith("raw_events/")]
    whole = [scan for scan in of_log if not scan.columns <= JUDGED | {"k"}]
    assert len(whole) == 1, "whole records are kept of open windows alone"
    assert len(of_log) == 3, "the loop, results, and open windows"
    others = ("ordered_events", "held_events", "visits")
    read = {scan.table for scan in found} | opened
    assert not [table for table in read if any(other in table for other in others)], read
