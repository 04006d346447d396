"""Behaviour of a source of any kind: no cut changes the log, and what is new is seen, and read once.

Here: one test for all kinds. Not here: what one kind alone has (test_delta_sources.py, test_kafka_sources.py and
others).
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from deltalake import write_deltalake

from tests.kafka import Topic
from tests.runs.landing import START, arrivals, assert_tables_equal_the_oracle
from tests.runs.running import VISITS, Made, command, commit_dies, go, log_of, over_source, run
from tidemark.assets.ingestion.pending_work import look, signature
from tidemark.resources.workspace import Workspace

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]

TYPES = {
    "id": pa.string(),
    "at": pa.string(),
    "got": pa.timestamp("us", "UTC"),
    "k": pa.string(),
    "v": pa.int32(),
}
SCHEMA = "id STRING, at STRING, got TIMESTAMP, k STRING, v INT"
BY_GOT = "arrival_time: got"
KINDS = ("json", "csv", "parquet", "delta", "kafka")
OWN_ARRIVALS = ("delta_as_committed", "kafka_as_stamped")


@dataclass(frozen=True)
class Feed:
    """Input of one kind, which comes in parts: a file, a version of a table, or records of a partition.

    Attributes:
        of_kind: The words of the spec that only this kind has.
        one_part: The option by which an ingestion reads one part of twenty records.
        put: Adds a part: its number, and its records.
        waits: The words of `status` for a part of five records that waits.
    """

    of_kind: str
    one_part: str
    put: Callable[[int, pa.Table], None]
    waits: str

    def pipeline(self, base: Path, name: str, more: str = "") -> Made:
        of_feed = f'name: orders, {self.of_kind}, schema: "{SCHEMA}"'
        return over_source(base, name, f"{{{of_feed}{more}}}", more=VISITS)


def in_files(folder: Path, form: str, options: str = "") -> Feed:
    folder.mkdir()

    def put(number: int, rows: pa.Table) -> None:
        path = folder / f"{number}.{form}"
        if form == "parquet":
            pyarrow.parquet.write_table(rows, path)
        elif form == "csv":
            pyarrow.csv.write_csv(pa.Table.from_pylist(as_texts(rows)), path)
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in as_texts(rows)))

    of_kind = f"kind: files, path: {folder.name}/*, format: {form}, order: position, settle: 0 s, {BY_GOT}{options}"
    return Feed(of_kind, "max_files: 1", put, "1 new file")


def in_a_table(folder: Path, arrival: str) -> Feed:
    def put(_: int, rows: pa.Table) -> None:
        write_deltalake(str(folder), rows, mode="append")

    return Feed(f"kind: delta, path: {folder.name}, start_version: 0{arrival}", "max_versions: 1", put, "1 new input")


def in_a_topic(topic: Topic, arrival: str) -> Feed:
    def put(_: int, rows: pa.Table) -> None:
        stamps = [int(got.timestamp() * 1_000) for got in rows["got"].to_pylist()]
        values = [json.dumps(row).encode() for row in as_texts(rows)]
        both = zip(values, stamps, strict=True)
        topic.write([{"value": value, "partition": 0, "timestamp": stamp} for value, stamp in both])

    where = f"bootstrap_servers: '{topic.broker.address}', topics: [{topic.name}]"
    of_kind = f"kind: kafka, {where}, format: json, order: position{arrival}"
    return Feed(of_kind, "max_records: 20", put, "5 new inputs")


def as_texts(rows: pa.Table) -> list[dict[str, Any]]:
    return [row | {"got": row["got"].isoformat()} for row in rows.to_pylist()]


@pytest.fixture(params=KINDS)
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Feed:
    kind: str = request.param
    arrival = "" if kind in OWN_ARRIVALS else f", {BY_GOT}"
    if kind.startswith("kafka"):
        return in_a_topic(request.getfixturevalue("topic")(1), arrival)
    if kind.startswith("delta"):
        return in_a_table(tmp_path / "orders", arrival)
    return in_files(tmp_path / "in", kind, ", options: {header: true}" if kind == "csv" else "")


def part(number: int, count: int = 20, start: datetime = START) -> pa.Table:
    """Return events that come late, one of them without a time, as they arrived."""
    rng = random.Random(number)
    found = [
        {"id": f"{number}-{n}", "at": at.isoformat(), "got": got, "k": rng.choice("ab"), "v": rng.randint(0, 9)}
        for n, (got, at) in enumerate(arrivals(rng, count, start))
    ]
    found[1]["at"] = None
    return pa.Table.from_pylist(found, schema=pa.schema(list(TYPES.items())))


@pytest.mark.parametrize("feed", [*KINDS, *OWN_ARRIVALS], indirect=True)
def test_no_cut_changes_the_log(feed: Feed, tmp_path: Path) -> None:
    names = {"at_once": "", "one_by_one": f", {feed.one_part}", "as_it_came": ""}
    made = [feed.pipeline(tmp_path, name, more) for name, more in names.items()]
    for number in range(3):
        feed.put(number, part(number, start=START + timedelta(minutes=3 - number)))  # later parts arrived earlier
        if number == 1:
            run(tmp_path, "as_it_came")
    for name in names:
        run(tmp_path, name)
    logs = [log_of(tmp_path, name) for name in names]
    assert [row["id"] for row in logs[0]] == [f"{number}-{n}" for number in range(3) for n in range(20)]
    assert [row["_clock"] for row in logs[0]] == sorted(row["_clock"] for row in logs[0])
    assert logs[1] == logs[2] == logs[0]
    for file, settings in made:
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)


def test_new_input_is_seen_without_spark_counted_and_read_once(feed: Feed, tmp_path: Path) -> None:
    file, settings = feed.pipeline(tmp_path, "x")
    looks = Workspace(file, settings.warehouse)
    feed.put(0, part(0))
    assert look(looks).is_there
    run(tmp_path, "x")
    seen = signature(looks)
    assert (look(looks).is_there, signature(looks)) == (False, seen)
    feed.put(1, part(1, 5))
    assert look(looks).is_there
    assert signature(looks) != seen
    assert feed.waits in command(tmp_path, "x", "status").output
    run(tmp_path, "x")
    assert "nothing new" in run(tmp_path, "x").output
    assert [row["id"] for row in log_of(tmp_path, "x")] == [f"{n // 20}-{n % 20}" for n in range(25)]


def test_an_ingestion_that_dies_before_its_commit_leaves_nothing_and_its_input_is_read_once(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = feed.pipeline(tmp_path, "died")
    feed.put(0, part(0))
    with monkeypatch.context() as patched:
        commit_dies(patched, lambda plan: plan.kind == "ingest")
        with pytest.raises(Exception, match="dies here"):
            go(died)
    feed.put(1, part(1))
    go(died)
    ingested = [one.plan for one in Workspace(died[0], died[1].warehouse).batches.history("ingest")]
    assert [(plan.first_seq, plan.end_seq) for plan in ingested] == [(0, 40)]
    feed.pipeline(tmp_path, "undisturbed")
    run(tmp_path, "undisturbed")
    assert log_of(tmp_path, "died") == log_of(tmp_path, "undisturbed")
    assert_tables_equal_the_oracle(died[1].warehouse, died[0].spec)
