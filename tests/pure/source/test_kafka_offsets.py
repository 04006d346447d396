"""Records that an ingestion of Kafka would read, asked of a real broker without Spark."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import PASSWORD, SECURE, Topic, login
from tests.knows import Knows
from tests.runs.landing import START
from tidemark.resources.sources.kafka import KafkaReader, OffsetsFound
from tidemark.resources.sources.kafka_connection import Broker, Connection
from tidemark.resources.sources.kafka_offsets import Positions, fair_shares
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import KafkaSource

MakeTopic = Callable[..., Topic]
HERE = Path()
PATIENCE_S = 15
START_MS = int(START.timestamp() * 1_000)


def source(of: Topic, **settings: object) -> KafkaSource:
    values = {"name": "s", "kind": "kafka", "bootstrap_servers": of.broker.address, "format": "json"}
    topics = {} if "topic_pattern" in settings else {"topics": [of.name]}
    return KafkaSource.model_validate({**values, "schema": "a INT", **topics, **settings})


def fill(topic: Topic, *counts: int, at_ms: int = START_MS) -> None:
    """Writes so many records to each partition, one a second."""
    topic.write(
        [
            {"value": b"{}", "partition": partition, "timestamp": at_ms + number * 1_000}
            for partition, count in enumerate(counts)
            for number in range(count)
        ]
    )


def filled(topic: MakeTopic, *counts: int) -> Topic:
    """Return a new topic of a partition for each number of records."""
    made = topic(len(counts))
    fill(made, *counts)
    return made


def look(of: KafkaSource, before: Positions | None = None) -> OffsetsFound:
    return KafkaReader(of, HERE).look(Knows(positions=None if before is None else before.to_json()))


def read(found: OffsetsFound) -> Positions:
    """Return the position of the source once what was found has been read."""
    assert found.at is not None
    return Positions.from_json(found.at.after(found.offsets).to_json())


def ranges(found: OffsetsFound) -> dict[str, tuple[int, int]]:
    return {one.split.rpartition("-")[2]: (one.first, one.end) for one in found.offsets}


def only_error(found: OffsetsFound) -> str:
    (error,) = found.errors
    return str(error)


def refused(of: KafkaSource, before: Positions | None = None) -> str:
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        look(of, before)
    assert time.monotonic() - started < PATIENCE_S
    return str(caught.value)


def test_each_offset_is_read_once_and_new_ones_later(topic: MakeTopic) -> None:
    orders = filled(topic, 5, 2, 0)
    first = look(source(orders))
    assert ranges(first) == {"0": (0, 5), "1": (0, 2)}
    at = read(first)
    assert at.first_splits == tuple(f"{orders.name}-{number}" for number in range(3))
    again = look(source(orders), at)
    assert not again.is_ready
    assert not again.is_moved
    fill(orders, 0, 1, 4)
    assert ranges(look(source(orders), at)) == {"1": (2, 3), "2": (0, 4)}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {"0": (0, 4), "1": (0, 2)}),
        ("latest", {}),
        ("2026-01-01T23:50:02Z", {"0": (2, 4)}),
        ({0: 3, 1: 1}, {"0": (3, 4), "1": (1, 2)}),
    ],
)
def test_the_first_ingestion_begins_where_the_spec_says(topic: MakeTopic, start: Any, expected: object) -> None:
    orders = filled(topic, 4, 2)
    begins = source(orders, start={orders.name: start} if isinstance(start, dict) else start)
    found = look(begins)
    assert ranges(found) == expected
    assert found.is_moved  # to be remembered also where nothing is read: later ones go on from here
    fill(orders, 1)
    assert ranges(look(begins, read(found))) == {"0": (4, 5)}


def test_partitions_have_equal_shares_of_what_one_ingestion_reads(topic: MakeTopic) -> None:
    found = look(source(filled(topic, 50, 3, 10, 0), max_records=20))
    assert ranges(found) == {"0": (0, 9), "1": (0, 3), "2": (0, 8)}
    assert (found.left, found.new) == (43, 63)


@pytest.mark.parametrize(
    ("waiting", "most", "shares"),
    [([5, 5], 4, [2, 2]), ([9, 1, 9], 11, [5, 1, 5]), ([1, 1], 1, [0, 1]), ([3, 4], 100, [3, 4]), ([], 5, [])],
)
def test_what_one_does_not_need_the_others_get(waiting: list[int], most: int, shares: list[int]) -> None:
    assert fair_shares(waiting, most) == shares


def test_a_new_partition_is_read_from_its_beginning_and_does_not_hold_the_watermark(topic: MakeTopic) -> None:
    orders = filled(topic, 2)
    at = read(look(source(orders)))
    orders.add_partitions(2)
    fill(orders, 1, 3)
    found = look(source(orders), at)
    assert ranges(found) == {"0": (2, 3), "1": (0, 3)}
    assert read(found).first_splits == (f"{orders.name}-0",)


def test_offsets_that_expired_are_said_with_their_numbers_or_noted(topic: MakeTopic) -> None:
    orders = filled(topic, 4, 4)
    noting = source(orders, on_data_loss="note")
    at = read(look(source(orders)))
    fill(orders, 6, 6)
    orders.expire(p0=7)
    found = look(source(orders), at)
    assert not found.is_ready
    assert f"{orders.name}-0: offsets 4 to 6 were not read and are gone" in only_error(found)
    noted = look(noting, at)
    assert ranges(noted) == {"0": (7, 10), "1": (4, 10)}
    assert [one.to_json() for one in noted.lost] == [{"split": f"{orders.name}-0", "first": 4, "last": 6}]
    assert not look(noting, read(noted)).lost


def test_a_topic_that_was_made_anew_is_noticed(topic: MakeTopic) -> None:
    orders = filled(topic, 3)
    at = read(look(source(orders)))
    orders.delete()
    gone = only_error(look(source(orders), at))
    assert f"there is no topic {orders.name}" in gone
    assert "any more" in gone
    orders.make(1)
    fill(orders, 5)
    assert "the topic was deleted and created again" in only_error(look(source(orders), at))
    noted = look(source(orders, on_data_loss="note"), at)
    assert ranges(noted) == {"0": (0, 5)}
    assert [one.to_json() for one in noted.lost] == [{"split": f"{orders.name}-0", "first": 3}]


def test_topics_by_pattern_come_and_go(topic: MakeTopic) -> None:
    first = filled(topic, 1)
    second = Topic(first.broker, f"{first.name}.more")
    by_name = source(first, topic_pattern=f"{first.name}.*", on_data_loss="note")
    at = read(look(by_name))
    second.make(1)
    fill(second, 2)
    found = look(by_name, at)
    assert [one.split for one in found.offsets] == [f"{second.name}-0"]
    first.delete()
    noted = look(by_name, read(found))
    assert [one.split for one in noted.lost] == [f"{first.name}-0"]
    assert not look(by_name, read(noted)).lost


GROUP = {"group": "g", "max_drift": "1 s", "update_interval": "5 s"}


def test_an_aligned_source_is_read_up_to_an_instant_but_for_partitions_that_are_ahead(topic: MakeTopic) -> None:
    orders = filled(topic, 10, 0, 0)
    fill(orders, 0, 10, at_ms=START_MS + 3_000)
    fill(orders, 0, 0, 5, at_ms=START_MS + 100_000)
    aligned = source(orders, alignment=GROUP)
    found = look(aligned)
    assert found.new == 25
    at_once = KafkaReader(aligned, HERE).until_judged(found, [])
    assert ranges(at_once) == {"0": (0, 5), "1": (0, 2)}
    assert (at_once.left, at_once.ahead) == (18, 0)
    some = KafkaReader(aligned, HERE).until_judged(found, [f"{orders.name}-0"])
    assert ranges(some) == {"1": (0, 5)}
    assert (some.left, some.ahead, some.splits_ahead) == (20, 10, (f"{orders.name}-0",))


def test_timestamps_that_went_ahead_once_do_not_cut_what_follows_into_single_records(topic: MakeTopic) -> None:
    orders = filled(topic, 3)
    fill(orders, 1, at_ms=START_MS + 60_000)
    aligned = source(orders, alignment=GROUP)
    at = read(look(aligned))
    fill(orders, 100, at_ms=START_MS + 4_000)  # up to 103 s
    found = KafkaReader(aligned, HERE).until_judged(look(aligned, at), [])
    assert ranges(found) == {"0": (4, 84)}, "5, 10, 20, 40, 80 s"


@pytest.mark.long
def test_a_broker_that_died_and_is_back_is_asked_as_before(topic: MakeTopic) -> None:
    orders = filled(topic, 3, 3)
    at = read(look(source(orders)))
    orders.broker.kill()
    with ThreadPoolExecutor() as pool:  # each waits for ten seconds
        first, later = pool.submit(refused, source(orders)), pool.submit(look, source(orders), at)
        assert "does not answer" in first.result()
        assert "does not answer" in only_error(later.result())
    orders.broker.start()
    fill(orders, 1)
    assert ranges(look(source(orders), at)) == {"0": (3, 4)}


def test_a_look_sees_that_something_came(topic: MakeTopic) -> None:
    orders = topic(1)
    reader, known = KafkaReader(source(orders), HERE), Knows()
    before = reader.seen(known)
    assert reader.seen(known) == before
    fill(orders, 1)
    assert reader.seen(known) != before


def test_a_topic_that_is_not_there_is_one_sentence(topic: MakeTopic) -> None:
    orders = topic(1)
    said = refused(source(orders, topics=["nosuch"]))
    assert said.startswith(f"Source 's': there is no topic nosuch at {orders.broker.address}")


def test_a_broker_that_cannot_be_reached_is_one_sentence(topic: MakeTopic) -> None:
    orders, servers = topic(1), ("127.0.0.1:1", "nosuch.invalid:9092")
    with ThreadPoolExecutor() as pool:  # each waits for ten seconds
        told = [pool.submit(refused, source(orders, bootstrap_servers=one)) for one in servers]
    for one, said in zip(servers, told, strict=True):
        assert said.result().startswith(f"Kafka at {one} does not answer: ")


def secure(of: Topic, **options: str) -> KafkaSource:
    return source(of, bootstrap_servers=of.broker.address_of(SECURE), options={**login(of.broker), **options})


def test_tls_and_a_password_let_in_which_is_shown_nowhere(topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = filled(topic, 2)
    orders.allow("alice", "READ", "DESCRIBE")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    of = secure(orders)
    assert ranges(look(of)) == {"0": (0, 2)}
    assert PASSWORD not in repr(of) + of.model_dump_json()


def test_who_may_not_read_or_is_not_known_is_told_so(topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = topic(1)
    orders.allow("alice", "DESCRIBE")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    assert f"this user may not read topic {orders.name}" in refused(secure(orders))
    assert "cannot be read: No such file" in refused(secure(orders, **{"ssl.ca.location": "nosuch.pem"}))
    monkeypatch.setenv("KAFKA_PASSWORD", "not the one")
    said = refused(secure(orders))
    assert "refuses to let this user in" in said
    assert "not the one" not in said
    monkeypatch.delenv("KAFKA_PASSWORD")
    said = refused(secure(orders))
    assert "the environment variable KAFKA_PASSWORD of the option `sasl.password` is not set" in said


def records(of: KafkaSource, *ends: int, patience_s: float = PATIENCE_S) -> list[tuple[int, int]]:
    """Return the places of the records up to an end of each partition."""
    broker = Broker(Connection.of(of, HERE), patience_s)
    read = broker.records({(of.topics[0], number): (0, end) for number, end in enumerate(ends)})
    return sorted((one.partition() or 0, one.offset() or 0) for one in read)


def test_records_are_read_up_to_the_end_of_their_range_by_a_user_without_a_group(
    topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = filled(topic, 3, 7, 1)
    orders.allow("alice", "READ", "DESCRIBE")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    assert records(secure(orders), 3, 5) == [(0, n) for n in range(3)] + [(1, n) for n in range(5)]


def test_records_that_go_while_they_are_read_are_no_end(topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a range whose beginning was deleted, and one that has never been so long."""
    orders = filled(topic, 5)
    with pytest.raises(InputError, match=f"records of partition {orders.name}-0 were deleted while they were read"):
        records(source(orders), 6, patience_s=1)
    orders.expire(p0=2)
    with pytest.raises(InputError, match=f"records of partition {orders.name}-0 were deleted while they were read"):
        records(source(orders), 5)
    broker, place = Broker(Connection.of(source(orders), HERE)), (orders.name, 0)
    assert broker.times_at({place: 0}) == broker.times_at({place: 2}) != {place: None}
    orders.allow("alice", "DESCRIBE")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    with pytest.raises(InputError, match=f"this user may not read topic {orders.name}"):
        records(secure(orders), 5)
    monkeypatch.setenv("KAFKA_PASSWORD", "not the one")
    with pytest.raises(InputError, match="refuses to let this user in"):
        records(secure(orders), 5)


def test_a_start_that_names_no_partition_or_topic_is_refused(topic: MakeTopic) -> None:
    orders = topic(2)
    said = refused(source(orders, start={orders.name: {"1": 0, "2": 0, "7": 5}}))
    assert f"`start` names {orders.name}-2, {orders.name}-7, and the topic has 2 partition(s)" in said
    said = refused(source(orders, topic_pattern=f"{orders.name}.*", start={"other": {"0": 1}}))
    assert "`start` names other, which is not a topic that is read" in said


def test_partitions_that_are_gone_are_named_as_long_as_they_hold_the_watermark(topic: MakeTopic) -> None:
    orders = filled(topic, 1, 1, 1)
    noted = source(orders, on_data_loss="note")
    before = read(look(noted))
    assert look(noted, before).warnings == ()
    orders.delete()
    until = time.monotonic() + 30
    while orders.name in orders.admin.list_topics(timeout=10).topics:
        assert time.monotonic() < until
        time.sleep(0.05)
    orders.make(1)
    after = read(look(noted, before))
    for positions in (before, after):
        (said,) = look(noted, positions).warnings
        assert f"{orders.name}-1, {orders.name}-2 are gone" in said
        assert "`idle: {advance: exclude_split, timeout: 10 minutes}`" in said
    assert look(source(orders, on_data_loss="note", split="a"), after).warnings == ()
