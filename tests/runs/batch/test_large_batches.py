"""Batches that are too large to be kept: each stage judges the log anew, and reads no more of it than it needs."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.amounts import all_rows_are_many, no_records_are_kept
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import FLUSH, go, pipeline, workspace_of, written
from tidemark.assets.log import exclusions
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources import tables
from tidemark.resources.recount import recount

EVERY_TYPE = """\
name: typed
sources:
  - name: lines
    kind: files
    path: in/*.jsonl
    format: json
    schema: "at TIMESTAMP, n INT, d DATE, m DECIMAL(20, 4), b BINARY, l ARRAY<DOUBLE>,
      s STRUCT<x: STRING, y: TIMESTAMP>, p MAP<STRING, FLOAT>, z TIMESTAMP_NTZ, t BOOLEAN"
    settle: 0 s
time: {timestamp_by: at, out_of_orderness: 10 s}
"""


@pytest.fixture(autouse=True)
def _all_batches_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    all_rows_are_many(monkeypatch)
    no_records_are_kept(monkeypatch)
    monkeypatch.setattr(recount, "_PIECE", 100)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_a_log_in_large_batches_gives_the_oracles_tables(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    file, settings = made = pipeline(tmp_path, f"large_{policy}", policy, sessions=True)
    land(tmp_path / f"in_large_{policy}", 400, seed=7)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=220)).batches == 2
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        assert go(made, instance, FLUSH).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)


@pytest.mark.long
@pytest.mark.parametrize("most_bytes", [256_000_000, 0], ids=["by_arrow", "by_spark"])
def test_a_refused_record_of_a_large_batch_has_the_values_of_its_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(exclusions, "FEW_BYTES", most_bytes)
    late = {"n": 2, "d": "0001-01-03", "m": 1234567890123456.0125, "b": "AP8=", "l": [0.1, None], "t": None}
    late |= {"s": {"x": "é", "y": "9999-12-31T23:59:59.999999Z"}, "p": {"a": 1.5}, "z": "2026-03-29T02:30:00.000001"}
    records = [{"at": "2026-01-01T10:00:00Z", "n": 1}, {"at": "2026-01-01T09:00:00Z", **late}, {"at": None, "n": 3}]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    made = written(tmp_path, "typed", EVERY_TYPE)
    go(made)
    letters: pa.Table = workspace_of(made).lake.rows(tables.DEAD_LETTERS).sort_by("_arrival_seq")
    assert letters["reason"].to_pylist() == ["out_of_order", "no_timestamp"]
    assert json.loads(letters["payload"][0].as_py()) == {"at": "2026-01-01T09:00:00.000000Z", **late}
