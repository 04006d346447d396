"""A value that no record may have, in formats whose records are no lines: one dead letter, and all goes on.

It is too large, or a text in it is not UTF-8.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import convert_to_deltalake, write_deltalake
from pyspark.sql import SparkSession

from tests.kafka import Topic
from tests.runs.running import over_source, run
from tests.runs.source.test_kafka_sources import MakeTopic
from tidemark.resources.delta.lake import Lake
from tidemark.resources.sources.local_files import LONGEST_LINE

AT = "2026-01-01T10:00:00Z"
LARGE = "é" + "x" * (LONGEST_LINE + 1)
TEXTS = pa.array([b"a", b"K\xf6ln", b"c"]).view(pa.string())
"""The second one is not UTF-8."""
NOT_UTF8 = f'{{"id":"1","at":"{AT}","k":"X\'4BF66C6E\'","v":1}} (the value of `k` is not UTF-8)'
SCHEMA = "schema: 'id STRING, at STRING, k STRING, v INT'"


def rows(values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    """Write records with a value that no column asks for, or that is asked for as `k`."""
    ids = [str(number) for number in range(len(values))]
    table = pa.table({"id": ids, "at": [AT] * len(ids), "v": pa.array([1] * len(ids), pa.int32())})
    return table.append_column("k", pa.array(values, kind))


def letters(base: Path, name: str, said: str = " has too large a `") -> dict[int, str]:
    """Return the text of each dead letter, which says why, by its place in the log; the others are accepted."""
    run(base, name)
    lake = Lake(base / "warehouse" / name)
    found = {row["_arrival_seq"]: row for row in lake.rows("dead_letters").to_pylist()}
    assert {row["reason"] for row in found.values()} == {"malformed"}
    assert all(said in row["detail"] for row in found.values())
    assert lake.rows("raw_events").num_rows == 3
    return {seq: row["payload"] for seq, row in found.items()}


def assert_is_beginning(said: str, value: str, name: str = "k") -> None:
    assert said.startswith("éxxx" if value is LARGE else value)
    assert said.endswith(f"… (the value of `{name}` has {len(value.encode()):,} bytes)")
    assert len(said) < 1_200


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_large_value_of_parquet_is_a_dead_letter_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(rows(["a", LARGE, "c"]), tmp_path / "in" / "a.parquet")
    over_source(tmp_path, "files", f"{{name: s, kind: files, path: in/*, format: parquet, settle: 0 s, {SCHEMA}}}")
    [(seq, said)] = letters(tmp_path, "files").items()
    assert seq == 1
    assert_is_beginning(said, LARGE)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["files", "delta"])
def test_a_text_that_is_not_utf8_is_a_dead_letter_that_shows_its_bytes(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    table = rows([None] * 3).drop(["k"]).append_column("k", TEXTS).select(["id", "at", "k", "v"])
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    how = "path: in/*, format: parquet, settle: 0 s"
    if kind == "delta":
        convert_to_deltalake(str(tmp_path / "in"))
        how = "path: in, start_version: 0"
    over_source(tmp_path, kind, f"{{name: s, kind: {kind}, {how}, {SCHEMA}}}")
    assert letters(tmp_path, kind, " has bytes in `k` that are not UTF-8: ") == {1: NOT_UTF8}


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_large_value_of_a_delta_table_is_a_dead_letter_also_in_a_list(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "up"), rows([["a"], ["b", LARGE], None], pa.list_(pa.string())))
    asked = SCHEMA.replace("k STRING", "k ARRAY<STRING>")
    over_source(tmp_path, "table", f"{{name: s, kind: delta, path: up, start_version: 0, {asked}}}")
    [said] = letters(tmp_path, "table").values()
    assert said.startswith("… (the value of `k` has 16,777,2")


@pytest.mark.long
def test_a_large_value_of_kafka_is_a_dead_letter(spark: SparkSession, tmp_path: Path, topic: MakeTopic) -> None:
    most = 40 << 20
    made: Topic = topic(1, **{"max.message.bytes": str(most)})
    plain = json.dumps({"id": "a", "at": AT, "k": "k", "v": 1})
    large = json.dumps({"id": LARGE}, ensure_ascii=False)
    records = [{"value": value.encode(), "partition": 0} for value in (plain, large, plain)]
    made.write(records, **{"message.max.bytes": most})
    where = f"bootstrap_servers: '{made.broker.address}', topics: [{made.name}]"
    over_source(tmp_path, "stream", f"{{name: s, kind: kafka, {where}, format: json, start: earliest, {SCHEMA}}}")
    [(seq, said)] = letters(tmp_path, "stream").items()
    assert seq == 1
    assert said.startswith('{"id": "éxxx')
    assert said.endswith(f"… (the value of `value` has {len(large.encode()):,} bytes)")
