"""Pipelines over a real broker of Kafka, end to end: what is read, once, and what partitions do to the watermark."""

import io
import json
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.kafka import Topic
from tests.runs.landing import START, arrivals, assert_tables_equal_the_oracle
from tests.runs.running import VISITS, Made, command, go, log_of, over_source, rows_of, run
from tests.seeds import Dice
from tidemark.assets.ingestion.pending_work import look, signature
from tidemark.assets.ingestion.waiting_input import largest_times
from tidemark.pipelines.running.runner import RunOptions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.sources import kafka_records
from tidemark.resources.workspace import Workspace

MakeTopic = Callable[..., Topic]
kafka_write = kafka_records._write
Records = list[dict[str, Any]]
CASES = 1  # a log for each turn of the dice
SCHEMA = "id STRING, at STRING, k STRING, v INT"
ENDS = (("keep", True), ("drop", False), ("adjust", True))  # a policy, and whether a flush is the end
IDLE = "idle: {advance: exclude_split, timeout: 40 s}"
SOURCE = """name: orders
    kind: kafka
    bootstrap_servers: {servers}
    topics: [{topic}]
    format: json
    schema: "{schema}"
    {source}"""


def events(seed: int, count: int, start: datetime = START, partitions: Sequence[int] = (0, 0, 0, 1, 2)) -> Records:
    """Events that come late, some without a time, a value or a shape; a partition named more often has more."""
    rng = random.Random(seed)
    found: Records = []
    for number, (clock, event) in enumerate(arrivals(rng, count, start)):
        at = None if rng.random() < 0.02 else event.isoformat(timespec="milliseconds")
        text = json.dumps({"id": f"{seed}-{number}", "at": at, "k": rng.choice("ab"), "v": rng.randint(0, 9)})
        value: bytes | None = rng.choices([text.encode(), b"\xff\x00" + text.encode(), None], [0.97, 0.02, 0.01])[0]
        stamp = int(clock.timestamp() * 1_000)
        found.append({"value": value, "partition": rng.choice(partitions), "timestamp": stamp})
    return found


def made(
    base: Path, name: str, topic: Topic, source: str = "", *, schema: str = SCHEMA, time: str = IDLE, **more: str
) -> Made:
    of_topic = SOURCE.format(servers=topic.broker.address, topic=topic.name, schema=schema, source=source)
    return over_source(base, name, of_topic, time=time, **more)


def places(log: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["_split"], row["_position"]) for row in log)


def written(topic: Topic, records: Records) -> list[tuple[str, int]]:
    """Return the places of records in a topic that had none before."""
    counts: dict[int, int] = {}
    found = []
    for record in records:
        offset = counts.get(record["partition"], 0)
        counts[record["partition"]] = offset + 1
        found.append((f"{topic.name}-{record['partition']}", offset))
    return sorted(found)


@pytest.mark.long
def test_tables_equal_the_oracle_with_partitions_as_splits_whatever_the_cut(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path, dice: Dice
) -> None:
    """One partition has most of the records and one has none; runs at any time; with `flush` the last one ends it."""
    policy, flush = dice.turn(ENDS, 0)
    rng = random.Random(dice.seed(11))
    orders = topic(4)
    made_of = made(tmp_path, "x", orders, f"max_records: {rng.randint(20, 60)}", policy=policy, more=VISITS)
    sent: Records = []
    with DagsterInstance.ephemeral() as instance:
        for number in range(3):
            part = events(rng.getrandbits(32), rng.randint(10, 40), START + timedelta(minutes=number))
            orders.write(part)
            sent += part
            if rng.random() < 0.4:
                go(made_of, instance)
        go(made_of, instance, RunOptions(end_of_input="flush" if flush else "hold"))
    file, settings = made_of
    log = log_of(tmp_path, "x")
    assert places(log) == written(orders, sent)
    assert {row["_split"] for row in log} == {f"{orders.name}-{number}" for number in range(3)}
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=flush)


@pytest.mark.long
def test_a_copy_that_lacks_a_record_is_not_ingested(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of the records that were fetched Spark does not return, nothing is lost."""
    orders, sent = topic(2), events(1, 30, partitions=(0, 1))
    made(tmp_path, "x", orders)
    orders.write(sent)
    with monkeypatch.context() as fault:
        fault.setattr(kafka_records, "_write", lambda records, *rest: kafka_write([*records][:-1], *rest) + 1)
        ran = command(tmp_path, "x")
    assert ran.exit_code == 1
    assert (
        "30 records were fetched and copied to files, and Spark read 29 from them; nothing was ingested" in ran.output
    )
    assert not rows_of(tmp_path, "x")
    run(tmp_path, "x")
    assert places(log_of(tmp_path, "x")) == written(orders, sent)


@pytest.mark.long
def test_a_silent_partition_holds_the_watermark_and_metadata_become_columns(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic(2)
    names = {name: f"of_{name}" for name in ("key", "headers", "topic", "partition", "offset", "timestamp")}
    names["timestamp_type"] = "of_type"
    source = f"metadata: {{{', '.join(f'{name}: {column}' for name, column in names.items())}}}"
    file, settings = made(tmp_path, "x", orders, source, time="")
    stamp = int(START.timestamp() * 1_000)
    text = json.dumps({"id": "a", "at": START.isoformat(), "k": "a", "v": 1}).encode()
    more = {"partition": 0, "timestamp": stamp}
    orders.write(
        [
            {"value": text, "key": b"one", "headers": {"h": b"x"}, **more},
            {"value": text, "key": b"\xff\x01", **more},
            {"value": None, "key": b"gone", **more},
            {"value": b"\xffnot json", **more},
            {"value": b'{"id": "cut', **more},
        ]
    )
    orders.write_named(b"\xff", b"{}")
    run(tmp_path, "x")
    log = log_of(tmp_path, "x")
    assert [row["of_key"] for row in log] == ["one", "X'FF01'", "gone", None, None, None]
    assert log[0]["of_headers"] == [{"key": "h", "value": "x"}]
    assert [log[1][names[name]] for name in ("topic", "partition", "offset", "timestamp", "timestamp_type")] == [
        orders.name,
        0,
        1,
        START,
        "CreateTime",
    ]
    assert [(row["id"], row["_malformed"]) for row in log[2:]] == [
        (None, None),
        (None, "X'FF6E6F74206A736F6E'"),
        (None, '{"id": "cut'),
        (None, "{} (the name of a header is not UTF-8)"),
    ]
    letters = {row["_position"]: (row["reason"], row["_split"]) for row in rows_of(tmp_path, "x", "dead_letters")}
    split = f"{orders.name}-0"
    assert letters == {2: ("no_timestamp", split), **dict.fromkeys((3, 4, 5), ("malformed", split))}
    assert len(rows_of(tmp_path, "x", "held_events")) == 2  # the other partition has no event yet
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


def test_a_sensor_sees_new_records_and_what_is_gone_stops_the_source_or_is_noted(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic(1)
    file, settings = made(tmp_path, "x", orders)
    orders.write(events(1, 10, partitions=(0,)))
    looks = Workspace(file, settings.warehouse)  # without Spark
    assert look(looks).is_there
    run(tmp_path, "x")
    done, seen = look(looks), signature(looks)
    assert not done.is_there
    assert signature(looks) == seen
    orders.write(events(2, 10, partitions=(0,)))
    assert signature(looks) != seen
    assert look(looks).is_there
    assert "10 new inputs" in command(tmp_path, "x", "status").output
    orders.expire(p0=15)
    ran = command(tmp_path, "x")
    assert ran.exit_code == 1
    assert f"{orders.name}-0: offsets 10 to 14 were not read and are gone" in ran.output
    assert len(log_of(tmp_path, "x")) == 10
    made(tmp_path, "x", orders, "on_data_loss: note")
    assert "offsets 10 to 14 were not read and are gone" in run(tmp_path, "x").output
    assert [row["_position"] for row in log_of(tmp_path, "x")] == [*range(10), *range(15, 20)]
    items = [row for row in rows_of(tmp_path, "x", "log_control") if row["kind"] == "data_loss"]
    assert [(row["_after_seq"], json.loads(row["argument"])) for row in items] == [
        (9, {"source": "orders", "split": f"{orders.name}-0", "first": 10, "last": 14})
    ]
    assert_tables_equal_the_oracle(settings.warehouse, read_spec(file.path).spec)


@pytest.mark.long
def test_partitions_and_topics_come_anew(spark: SparkSession, topic: MakeTopic, tmp_path: Path) -> None:
    """Added partitions join with their first event; a topic that was made anew is read from the start."""
    orders = topic(1)
    file, settings = made(tmp_path, "x", orders, "on_data_loss: note")
    orders.write(events(1, 15, partitions=(0,)))
    run(tmp_path, "x")
    orders.add_partitions(2)
    orders.write(events(2, 15, START + timedelta(minutes=1), partitions=(0, 1)))
    run(tmp_path, "x")
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    orders.delete()
    assert "there is no topic" in command(tmp_path, "x").output
    orders.make(2)
    orders.write(events(3, 15, START + timedelta(minutes=2), partitions=(0, 1)))
    run(tmp_path, "x")
    assert len(log_of(tmp_path, "x")) == 45
    noted = [row for row in rows_of(tmp_path, "x", "log_control") if row["kind"] == "data_loss"]
    assert len(noted) == 2
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_gaps_of_compacted_and_transactional_topics_are_no_loss(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path
) -> None:
    """Records of an aborted transaction are not read, and the offsets of markers have none."""
    from confluent_kafka import Producer  # noqa: PLC0415

    orders = topic(1)
    made(tmp_path, "x", orders)
    settings = {"bootstrap.servers": orders.broker.address, "transactional.id": orders.name, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions()
    for record, ends in zip(events(5, 3, partitions=(0,)), ("commit", "abort", "commit"), strict=True):
        producer.begin_transaction()
        producer.produce(orders.name, **{**record, "value": b"{}"})
        if ends == "commit":
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    run(tmp_path, "x")
    assert [row["_position"] for row in log_of(tmp_path, "x")] == [0, 4]
    run(tmp_path, "x")
    orders.write(events(6, 2, partitions=(0,)))
    run(tmp_path, "x")
    assert [row["_position"] for row in log_of(tmp_path, "x")] == [0, 4, 6, 7]


@pytest.mark.long
def test_a_partition_that_is_ahead_is_not_read_while_a_slower_one_has_records(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path
) -> None:
    """Two records of a partition are one ingestion; its events are 1 second, 1 minute or 10 minutes apart."""
    orders = topic(3)
    group = "alignment: {group: g, max_drift: 20 s, update_interval: 1 minute}"
    file, settings = made(tmp_path, "x", orders, group)
    sent: Records = []
    for partition, seconds in enumerate((1, 60, 600)):
        for number in range(4):
            stamp = int(START.timestamp()) + 30 * number
            at = (START + timedelta(seconds=seconds * number)).isoformat()
            value = json.dumps({"id": f"{partition}-{number}", "at": at, "k": "a", "v": 1}).encode()
            sent.append({"value": value, "partition": partition, "timestamp": stamp * 1_000})
    orders.write(sent)
    run(tmp_path, "x")
    slow, fast, faster = (f"{orders.name}-{number}" for number in range(3))
    plans = [commit.plan for commit in Workspace(file, settings.warehouse).batches.history()]
    assert [plan.input["offsets"]["orders"] for plan in plans if plan.kind == "ingest"] == [
        {slow: [0, 2], fast: [0, 2], faster: [0, 2]},
        {slow: [2, 4]},
        {fast: [2, 4]},  # nothing waits in the slow one; of the two that wait, the other is too far ahead
        {faster: [2, 4]},
    ]
    waits = [[], [["orders", fast], ["orders", faster]], [["orders", faster]], []]
    for kind in ("ingest", "process"):
        assert [plan.input.get("waits", []) for plan in plans if plan.kind == kind] == waits
    items = [row for row in rows_of(tmp_path, "x", "log_control") if row["kind"] == "wait"]
    noted = sorted((row["_after_seq"], json.loads(row["argument"])) for row in items)
    assert noted == [(5, waits[1]), (7, waits[2]), (9, [])]
    assert places(log_of(tmp_path, "x")) == written(orders, sent)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


@pytest.mark.long
def test_a_partition_that_waits_is_not_taken_for_idle_and_the_recount_agrees(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path
) -> None:
    """While one partition waits, the other overtakes it, and 80 s go by: with a timeout of 40 s.

    If the wait were counted, the watermark would follow the other alone, and the record of 2:30 would be dropped.
    """
    orders = topic(2)
    group = "alignment: {group: g, max_drift: 20 s, update_interval: 1 minute}"
    file, settings = made(tmp_path, "x", orders, group)
    slow = ((0, 0), (30, 10), (65, 20), (110, 300), (115, 150), (118, 85))  # seconds of arrival and of event
    ahead = ((0, 0), (30, 100), (70, 105), (100, 400))
    sent: Records = []
    for partition, moments in enumerate((slow, ahead)):
        for arrived, happened in moments:
            event = {"id": f"{partition}-{happened}", "at": (START + timedelta(seconds=happened)).isoformat()}
            value = json.dumps({**event, "k": "a", "v": 1}).encode()
            stamp = (int(START.timestamp()) + arrived) * 1_000
            sent.append({"value": value, "partition": partition, "timestamp": stamp})
    orders.write(sent)
    run(tmp_path, "x")
    plans = [commit.plan for commit in Workspace(file, settings.warehouse).batches.history("process")]
    assert [plan.input.get("waits", []) for plan in plans] == [[], [["orders", f"{orders.name}-1"]], []]
    dropped = [row["payload"] for row in rows_of(tmp_path, "x", "dead_letters")]
    assert [json.loads(payload)["id"] for payload in dropped] == ["0-85"], "it is behind the one that waits, too"
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "k", "type": ["null", "string"]},
        {"name": "more", "type": "int"},
    ],
}


@pytest.mark.long
def test_values_are_read_as_avro_and_as_bytes(spark: SparkSession, topic: MakeTopic, tmp_path: Path) -> None:
    orders = topic(1)
    inner = [{"name": "alt", "type": ["null", "int"]}, {"name": "lat", "type": "float"}]
    place = {"name": "loc", "type": {"type": "record", "name": "place", "fields": inner}}
    avro = {**AVRO, "fields": [*AVRO["fields"], place]}
    (tmp_path / "order.avsc").write_text(json.dumps(avro))
    values = []
    for number in range(3):
        written_as = io.BytesIO()
        event = {"id": f"e{number}", "at": START, "k": None if number else "a", "more": number}
        event |= {"loc": {"alt": number or None, "lat": 0.5}}
        fastavro.schemaless_writer(written_as, avro, event)
        values.append(b"\x00\x00\x00\x00\x07" + written_as.getvalue())
    no_text = values[0].replace(b"e0", b"\xff0")
    sent = (*values, b"\x00\x00\x00\x00\x07\xff", None, no_text)
    orders.write([{"value": value, "partition": 0} for value in sent])
    of_avro = ("format: json", "format: avro\n    avro_schema: order.avsc\n    skip_bytes: 5\n    keep_unknown: true")
    file, _ = made(tmp_path, "avro", orders, schema="id STRING, at TIMESTAMP, k STRING, loc STRUCT<lat: DOUBLE>")
    file.path.write_text(file.path.read_text().replace(*of_avro).replace("total: sum(v)", "total: count(k)"))
    run(tmp_path, "avro")
    log = log_of(tmp_path, "avro")
    shown = f"""{{"id":"X'FF30'","at":"{START:%Y-%m-%dT%H:%M:%S.%f}Z","k":"a","more":0,"loc":{{"lat":0.5}}}}"""
    assert [(row["id"], row["at"], row["k"], row["_rescued"], row["_malformed"]) for row in log] == [
        ("e0", START, "a", '{"more":0}', None),
        ("e1", START, None, '{"more":1,"loc":{"alt":1,"lat":0.5}}', None),
        ("e2", START, None, '{"more":2,"loc":{"alt":2,"lat":0.5}}', None),
        (None, None, None, None, "X'FF'"),
        (None, None, None, None, None),
        (None, None, None, None, f"{shown} (the value of `id` is not UTF-8)"),
    ]
    assert [row["loc"] for row in log] == [{"lat": 0.5}] * 3 + [None] * 3
    twice = {**avro, "fields": [*avro["fields"], {"name": "MORE", "type": "int", "default": 0}]}
    (tmp_path / "order.avsc").write_text(json.dumps(twice))
    orders.write([{"value": values[0], "partition": 0}])
    assert "order.avsc: column `more` occurs more than once (in any case)" in command(tmp_path, "avro", "run").output
    file, _ = made(tmp_path, "raw", orders, schema="v BINARY")
    spec = file.path.read_text().replace("format: json", "format: raw").replace("group_by: [k]", "")
    spec = spec.replace(", total: sum(v), seen: array_sort(collect_set(id))", "")
    file.path.write_text(spec.replace("timestamp_by: at", "timestamp_by: _arrival_time"))
    run(tmp_path, "raw")
    assert [row["v"] for row in log_of(tmp_path, "raw")] == [*sent, values[0]]


@pytest.mark.long
def test_a_source_that_is_renamed_reads_on_at_its_offsets_and_its_partitions_stay_splits(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path
) -> None:
    kept, first, second = topic(3), events(1, 60), events(2, 60, START + timedelta(minutes=4))
    kept.write(first)
    made(tmp_path, "orders", kept)
    run(tmp_path, "orders")
    file = tmp_path / "orders.yaml"
    file.write_text(file.read_text().replace("- name: orders", "- name: sales\n    was: orders"))
    told = command(tmp_path, "orders", "plan")
    assert (told.exit_code, "from here on" in told.output) == (0, True), told.output
    run(tmp_path, "orders")
    workspace = workspace_at(file, tmp_path)
    assert {source for source, _ in largest_times(workspace)} == {"sales"}
    assert workspace.rules.listed_splits == tuple(("sales", f"{kept.name}-{n}") for n in range(3))
    kept.write(second)
    run(tmp_path, "orders")
    assert places(log_of(tmp_path, "orders")) == written(kept, first + second)
    assert {row["_source"] for row in log_of(tmp_path, "orders")} == {"orders", "sales"}
    assert len(largest_times(workspace_at(file, tmp_path))) == 3


def workspace_at(file: Path, base: Path) -> Workspace:
    return Workspace(read_spec(file), base / "warehouse")
