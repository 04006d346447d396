"""Columns that come, go and get wider types while a pipeline runs: its tables go on as those of a fresh one."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.faults.killed import run_killed
from tests.runs.landing import START, table
from tests.runs.running import FLUSH, Made, go, rebuild, written
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.delta.lake import Lake
from tidemark.timeops.errors import SpecError

SPEC = """
name: {name}
sources:
  - name: lines
    kind: files
    path: in/*.jsonl
    format: json
    schema: "{schema}"
    arrival_time: got
    settle: 0 s
{source}
time: {{timestamp_by: at, unit: millisecond, out_of_orderness: 20 s, out_of_order: keep, deduplicate_by: [id],
  within: 1 hour}}
windows:
  - {{name: per_minute, kind: tumbling, size: 1 minute, allowed_lateness: 10 s, emit: on_time, group_by: [v],
     aggregates: {{n: count(*), ids: array_sort(collect_set(id))}}}}
  - {{name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {{n: count(*), top: max(v)}}}}
  - {{name: last, kind: sliding, size: 10 s, group_by: [k], aggregates: {{n: count(*), total: sum(w)}}}}
  - {{name: hourly, kind: tumbling, from: per_minute, size: 1 hour, allowed_lateness: 10 s, group_by: [v],
     aggregates: {{n: sum(n)}}}}
"""
TABLES = (
    "raw_events",
    "ordered_events",
    "held_events",
    "dead_letters",
    "windows/per_minute",
    "windows/visits",
    "windows/last",
    "windows/hourly",
)
FIRST = "id STRING, at STRING, got STRING, k STRING, v INT, w FLOAT, gone INT"
LATER = "id STRING, at STRING, got STRING, k STRING, who STRING, v BIGINT, w DOUBLE"


def write(base: Path, name: str, schema: str, source: str = "") -> Made:
    return written(base, name, SPEC.format(name=name, schema=schema, source=source))


def land(base: Path, name: str, first: int, count: int, **more: Any) -> None:
    lines = []
    for number in range(first, first + count):
        at = START + timedelta(seconds=3 * number - (number % 5) * 7)
        got = START + timedelta(seconds=3 * number)
        record = {"id": f"e{number}", "at": at.isoformat(), "got": got.isoformat(), "k": "ab"[number % 2]}
        lines.append(json.dumps(record | {"v": number % 3, "w": 0.5 * number} | more))
    (base / "in").mkdir(exist_ok=True)
    (base / "in" / name).write_text("\n".join(lines) + "\n")


def rows(made: Made, name: str, without: frozenset[str]) -> list[dict[str, Any]]:
    found = table(made[1].warehouse, made[0].spec, name)
    kept = [{key: value for key, value in row.items() if key not in without} for row in found]
    for row in kept if name == "dead_letters" else ():
        row["payload"] = {key: value for key, value in json.loads(row["payload"]).items() if key not in without}
    return sorted(({key: row[key] for key in sorted(row)} for row in kept), key=str)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    with DagsterInstance.ephemeral() as made:
        yield made


@pytest.mark.long
def test_columns_that_come_go_and_grow_leave_all_else_as_a_fresh_pipeline_has_it(
    spark: SparkSession, tmp_path: Path, instance: DagsterInstance
) -> None:
    changed = write(tmp_path, "changed", FIRST)
    land(tmp_path, "a.jsonl", 0, 60, gone=1)
    go(changed, instance, RunOptions(max_events_per_batch=25))
    land(tmp_path, "b.jsonl", 60, 20, gone=1)
    run_killed(spark, changed, "windows/per_minute")
    changed = write(tmp_path, "changed", LATER)
    assert go(changed, instance).batches == 1, "what the dead run has left"
    land(tmp_path, "c.jsonl", 80, 40, who="me", v=3_000_000_000)
    go(changed, instance, RunOptions(max_events_per_batch=25))
    made_anew = rebuild(changed)
    assert made_anew.exit_code == 0, made_anew.output
    land(tmp_path, "d.jsonl", 120, 30, who="me")
    go(changed, instance, FLUSH)

    (tmp_path / "in").rename(tmp_path / "all")
    fresh = write(tmp_path, "fresh", LATER)
    for name in ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "all" / name).rename(tmp_path / "in" / name)
        go(fresh, instance, FLUSH if name == "d.jsonl" else None)
    for name in TABLES:
        without = frozenset({"_batch_id", "gone", "replayed_at"})
        assert rows(changed, name, without) == rows(fresh, name, without), name

    log = table(changed[1].warehouse, changed[0].spec, "raw_events")
    assert [(row["gone"], row["who"]) for row in sorted(log, key=lambda row: row["_arrival_seq"])] == [
        *[(1, None)] * 80,
        *[(None, "me")] * 70,
    ]
    lake = Lake(tmp_path / "warehouse" / "changed")
    assert (lake.columns("raw_events")["v"], lake.columns("windows/per_minute")["v"]) == ("bigint", "bigint")
    for name in TABLES:  # no feature that only few readers know
        assert lake.open(name).protocol().reader_features in (None, []), name
    files = lake.open("raw_events").file_uris()
    assert {str(pq.read_schema(file).field("v").type) for file in files} == {"int64"}


def begun(tmp_path: Path, instance: DagsterInstance) -> Made:
    """Return a pipeline that has read five records."""
    made = write(tmp_path, "kept", FIRST)
    land(tmp_path, "a.jsonl", 0, 5)
    go(made, instance)
    return made


@pytest.mark.long
def test_what_cannot_go_on_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, instance: DagsterInstance
) -> None:
    made = begun(tmp_path, instance)
    for schema, said in (
        (FIRST.replace("v INT", "v STRING"), "`v` was INT, is STRING"),
        (LATER.replace("k STRING", "K STRING"), "the tables call it `k`"),
    ):
        with pytest.raises(SpecError, match=said):
            go(write(tmp_path, "kept", schema), instance)
    assert len(table(made[1].warehouse, made[0].spec, "raw_events")) == 5


@pytest.mark.long
def test_a_column_that_comes_back_has_the_name_and_type_that_it_had(
    spark: SparkSession, tmp_path: Path, instance: DagsterInstance
) -> None:
    made = begun(tmp_path, instance)
    without = write(tmp_path, "kept", FIRST.replace(", gone INT", ""))
    land(tmp_path, "b.jsonl", 5, 5)
    go(without, instance)
    land(tmp_path, "c.jsonl", 10, 5)
    with pytest.raises(SpecError, match=r"`gone` is STRING now, and the table .* has INT"):  # long after it went
        go(write(tmp_path, "kept", FIRST.replace("gone INT", "gone STRING")), instance)
    with pytest.raises(SpecError, match="raw_events calls it `gone`"):
        go(write(tmp_path, "kept", FIRST.replace("gone INT", "Gone INT")), instance)
    go(write(tmp_path, "kept", FIRST), instance)
    assert len(table(made[1].warehouse, made[0].spec, "raw_events")) == 15


@pytest.mark.long
def test_columns_that_nobody_names_are_proposed_once(
    spark: SparkSession, tmp_path: Path, instance: DagsterInstance
) -> None:
    made = write(
        tmp_path, "asked", "id STRING, at STRING, got STRING, k STRING, v INT, w FLOAT", "    keep_unknown: true"
    )
    land(tmp_path, "a.jsonl", 0, 5)
    assert go(made, instance).new_columns == ()
    land(tmp_path, "b.jsonl", 5, 5, who="me", n=1.5)
    (said,) = go(made, instance).new_columns
    assert said == (
        "source lines has `who`, `n`, which `schema` does not name. To take them from here on, add `who STRING, "
        "n DOUBLE` to `schema`; until then `_rescued` keeps the values, and a rebuild then fills the past."
    )
    land(tmp_path, "c.jsonl", 10, 5, who="me", **{"a b": 2})
    (said,) = go(made, instance).new_columns
    assert (
        "has `a b`, which `schema` does not name. To take it from here on, add `a_b BIGINT` to `schema` and " in said
    )
    assert '`"a b": a_b` to `rename`' in said
    land(tmp_path, "d.jsonl", 15, 5, who="me", n=1)
    assert go(made, instance).new_columns == ()
