"""Columns that get a type which is no wider one: a rebuild casts the values of the log, or names the first misfit."""

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.running import (
    Made,
    asked,
    assert_as_new,
    assert_same,
    changed,
    committed,
    go,
    rebuild,
    workspace_of,
    written,
)
from tidemark.assets.rebuild import switch

STOPPED = 130
BEFORE = "id INT, at STRING, v STRING, price STRING, day STRING, big BIGINT"
NOW = "id STRING, at STRING, v INT, price DECIMAL(9,2), day DATE, big INT"
SPEC = f"""\
name: shop
sources:
  - {{name: lines, kind: files, path: in/*.jsonl, format: json, settle: 0 s, schema: "{BEFORE}"}}
time: {{timestamp_by: at, out_of_orderness: 3 s, out_of_order: keep}}
windows:
  - {{name: minutes, kind: tumbling, size: 1 minute, group_by: [v], aggregates: {{n: count(*), m: max(price)}}}}
"""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    land(tmp_path, "a", 0)
    return written(tmp_path, "shop", SPEC)


def land(base: Path, name: str, first: int) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(first, first + 40):
        at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
        price, day = f"{number}.{number % 100:02}", f"2026-02-{number % 28 + 1:02}"
        rows.append({"id": number, "at": at, "v": number % 3, "price": price, "day": day, "big": number * 7})
    (base / "in").mkdir(exist_ok=True)
    lines = [json.dumps({key: value for key, value in row.items() if key == "at" or row["id"] % 5}) for row in rows]
    (base / "in" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.long
def test_values_are_cast_and_all_is_as_in_a_pipeline_that_had_the_types_from_the_first_record_on(
    spark: SparkSession, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        before = committed(made, "raw_events")
        made = changed(made, BEFORE, NOW)
        refused = asked(made, "run")
        assert (refused.exit_code, f"`tidemark rebuild {made[0].path}`" in refused.output) == (2, True), (
            refused.output
        )
        assert "`v` was STRING, is INT: the values in the log are cast" in refused.output
        with monkeypatch.context() as patched:
            patched.setattr(switch, "end_tables", _dies)
            assert rebuild(made).exit_code == STOPPED
        assert committed(made, "raw_events") == before, "readers still see the last commit"
        done = rebuild(made, "--to-spec")
        assert done.exit_code == 0, done.output
        fresh = assert_as_new(made, instance)
        land(tmp_path, "b", 40)
        for one in (made, fresh):
            go(one, instance)
    assert_same(made, fresh)


def _dies(_workspace: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_the_first_value_that_does_not_fit_is_named_and_may_be_taken_out(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "at": f"2026-01-01T00:05:0{n}Z", "v": value} for n, value in enumerate(["many", "7", "1.5"])
    ]
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, "v STRING", "v INT")
        refused = rebuild(made)
        assert refused.exit_code == 2, refused.output
        assert "Record 0 of the log has `v` = 'many', which is not INT; records with such values: 2" in refused.output
        out = asked(made, "rejudge", "--exclude", "0,2", "--reason", "words")
        assert out.exit_code == 0, out.output
        go(made, instance)
    log = sorted(committed(made, "raw_events"), key=lambda row: int(row["_arrival_seq"]))
    assert [row["v"] for row in log] == [None, 7, None]
    assert [row["v"] for row in committed(made, "held_events")] == [7]
    assert workspace_of(made).lake.columns("raw_events")["v"] == "int"
