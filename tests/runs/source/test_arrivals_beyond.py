"""Arrivals of no year from 0001 to 9999, from every source: each is a dead letter, and the pipeline goes on."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.kafka import Topic
from tests.runs.running import command, log_of, over_source, rows_of, run
from tidemark.resources.delta.lake import Lake

MICROSECONDS, NANOSECONDS = 1_767_225_600_000_000, 1_767_225_600_000_000_000
COLUMNS = 'schema: "id STRING, at STRING, k STRING, v INT"'
SCHEMA = pa.schema({"id": pa.string(), "at": pa.string(), "k": pa.string(), "v": pa.int32()}.items())


def event(number: int) -> bytes:
    return json.dumps({"id": str(number), "at": "2026-01-01T00:00:01Z", "k": "a", "v": number}).encode()


def refused(base: Path, name: str) -> list[tuple[str, int]]:
    letters = rows_of(base, name, "dead_letters")
    return sorted((row["reason"], row["_position"]) for row in letters)


@pytest.mark.long
def test_timestamps_of_kafka_in_another_unit_are_dead_letters(
    spark: SparkSession, topic: Callable[..., Topic], tmp_path: Path
) -> None:
    """Produce records whose time is in microseconds where Kafka has milliseconds; Spark cannot read nanoseconds."""
    orders = topic(2, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    of_topic = f"{{name: orders, kind: kafka, bootstrap_servers: {orders.broker.address}, topics: [{orders.name}]"
    over_source(
        tmp_path, "far", f"{of_topic}, format: json, metadata: {{key: of_key, timestamp: of_time}}, {COLUMNS}}}"
    )
    stamps = [MICROSECONDS // 1_000_000, MICROSECONDS, MICROSECONDS // 1_000]
    orders.write([{"value": event(n), "partition": 0, "timestamp": ms} for n, ms in enumerate(stamps)])
    run(tmp_path, "far")
    assert refused(tmp_path, "far") == [("no_arrival_time", 1)]
    stamps = [NANOSECONDS, MICROSECONDS // 1_000, 2**63 - 1]
    orders.write([{"value": event(n), "partition": 0, "key": "é", "timestamp": ms} for n, ms in enumerate(stamps)])
    orders.write([{"value": None, "partition": 1, "timestamp": NANOSECONDS}])
    run(tmp_path, "far")
    assert refused(tmp_path, "far") == [("no_arrival_time", 0), *(("no_arrival_time", n) for n in (1, 3, 5))]
    assert [row["of_key"] for row in log_of(tmp_path, "far")].count("é") == 3
    assert command(tmp_path, "far", "status").exit_code == 0


@pytest.fixture
def any_year() -> Iterator[Path]:
    """Yield a folder in memory: a disk may know no file of the year 12000."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.long
def test_a_file_a_commit_and_a_value_of_no_such_year_are_dead_letters(
    spark: SparkSession, tmp_path: Path, any_year: Path
) -> None:
    """Commits after such a one have their own times again."""
    lines = f'{{name: lines, kind: files, path: "{any_year}/*", format: json, settle: 0 s, {COLUMNS}}}'
    rows = f"{{name: rows, kind: delta, path: t, start_version: 0, {COLUMNS}}}"
    stamped = f'{COLUMNS[:-1]}, got TIMESTAMP"'
    got = f'{{name: got, kind: files, path: "p/*", format: parquet, settle: 0 s, arrival_time: got, {stamped}}}'
    over_source(tmp_path, "far", f"{lines}\n  - {rows}\n  - {got}")
    for number, second in enumerate((316_516_000_000, -70_000_000_000, 1_767_225_600)):
        (any_year / f"{number}").write_bytes(event(number) + b"\n")
        os.utime(any_year / f"{number}", (second, second))
    (tmp_path / "p").mkdir()
    table = pa.Table.from_pylist([{"id": str(n), "at": "2026-01-01", "k": "a", "v": n} for n in range(2)], SCHEMA)
    instants = pa.array([MICROSECONDS, MICROSECONDS * 1_000], pa.timestamp("us", "UTC"))
    pq.write_table(table.append_column("got", instants), tmp_path / "p" / "far.parquet")
    for _ in range(3):
        write_deltalake(tmp_path / "t", table, mode="append")
    entry = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
    entry.write_text(re.sub(r'("timestamp":\d+)', r"\g<1>000", entry.read_text()))
    run(tmp_path, "far")
    shown = ["_arrival_seq", "_arrival_time", "_clock", "_source", "_file"]  # got is of no year that Python has
    log = Lake(tmp_path / "warehouse" / "far").rows("raw_events", columns=shown).sort_by("_arrival_seq").to_pylist()
    timed = [row["_arrival_time"] is not None for row in log]
    expected = [True] * 4 + [False] * 2 + [True] * 2 + [False] * 3  # versions of a table keep their order
    assert timed == expected
    untimed = {(row["_source"], row["_file"].split("/")[0]) for row in log if row["_arrival_time"] is None}
    assert untimed == {("lines", "0"), ("lines", "1"), ("rows", "v1"), ("got", "far.parquet")}
    assert max(row["_clock"] for row in log).year < 2100
    assert command(tmp_path, "far", "status").exit_code == 0


@pytest.mark.long
def test_what_is_dated_ahead_of_the_machine_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Write a file that could never be old enough, and the record that moved the clock of the log."""
    aged = f'{{name: aged, kind: files, path: "aged/*", format: json, settle: 5 s, {COLUMNS}}}'
    stamped = '{name: stamped, kind: files, path: "in/*", format: json, settle: 0 s, arrival_time: at, '
    stamped += f"future_arrival: off, {COLUMNS}}}"
    over_source(tmp_path, "ahead", f"{aged}\n  - {stamped}")
    for folder, name, number in (("aged", "good", 1), ("aged", "ahead", 2), ("in", "a", 3)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(event(number) + b"\n")
    (tmp_path / "in" / "b").write_bytes(event(4).replace(b"2026", b"2099") + b"\n")
    for name, second in (("good", 1_767_225_600), ("ahead", 4_070_908_800)):
        os.utime(tmp_path / "aged" / name, (second, second))
    done = command(tmp_path, "ahead")
    assert done.exit_code == 1
    assert "aged/ahead: the modification time of the file is 2099-01-01 00:00:00 UTC, " in done.output
    assert "set its time with `touch`" in done.output
    assert (
        "record 2 (source stamped, b, record 1 of it) has the arrival time 2099-01-01 00:00:01 UTC, " in done.output
    )
    assert len(log_of(tmp_path, "ahead")) == 3
