"""A real broker of Kafka for tests, and topics on it.

Here: the broker that the tests of a process share, who may log in to it, and writing records. Not here: pipelines.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition, cimpl
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.asymmetric import ec

from examples.kafka.broker import LocalBroker, running
from tests.certificates import as_pem, certificate_of

SECURE = "SASL_SSL"
PASSWORD = 'correct horse; "battery"'
"""Of the user `alice`, with signs that have to be escaped."""
_QUIET = logging.getLogger("tests.kafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


@dataclass(frozen=True)
class Topic:
    """A topic of a test.

    Attributes:
        broker: The broker.
        name: A name that no other test has.
    """

    broker: LocalBroker
    name: str

    def write(self, records: Sequence[dict[str, Any]], **settings: object) -> None:
        """Writes records: `value`, `partition`, and what else a producer takes, such as `timestamp`."""
        producer = Producer({"bootstrap.servers": self.broker.address, "linger.ms": 5, **settings}, logger=_QUIET)
        for record in records:
            producer.produce(self.name, **record)
        assert producer.flush(60) == 0

    def write_named(self, header: bytes, value: bytes) -> None:
        """Write a record to partition 0 with a header of any name, which Python's client has no way to write."""
        client = ctypes.CDLL(cimpl.__file__)
        for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
            getattr(client, function).restype = ctypes.c_void_p
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        said = ctypes.create_string_buffer(512)
        settings = pointer(client.rd_kafka_conf_new())
        client.rd_kafka_conf_set(settings, b"bootstrap.servers", self.broker.address.encode(), said, size(512))
        producer = pointer(client.rd_kafka_new(0, settings, said, size(512)))
        headers = pointer(client.rd_kafka_headers_new(size(1)))
        client.rd_kafka_header_add(headers, header, ctypes.c_ssize_t(len(header)), b"", ctypes.c_ssize_t(0))
        tags = {"topic": 1, "partition": 3, "value": 4, "flags": 7, "headers": 10, "end": 0}
        words = [number(tags["topic"]), ctypes.c_char_p(self.name.encode()), number(tags["partition"]), number(0)]
        words += [number(tags["value"]), ctypes.c_char_p(value), size(len(value)), number(tags["flags"]), number(2)]
        assert client.rd_kafka_producev(producer, *words, number(tags["headers"]), headers, number(tags["end"])) == 0
        assert client.rd_kafka_flush(producer, 60_000) == 0
        client.rd_kafka_destroy(producer)

    def add_partitions(self, count: int) -> None:
        """Add partitions, so that there are `count`."""
        _done(self.admin.create_partitions([NewPartitions(self.name, count)]))

    def make(self, partitions: int, **settings: str) -> None:
        """Makes it, and waits until the broker knows what its controller has made."""
        _done(self.admin.create_topics([NewTopic(self.name, partitions, 1, config=settings)]))
        until = time.monotonic() + 30
        while self.name not in self.admin.list_topics(timeout=10).topics:
            assert time.monotonic() < until
            time.sleep(0.05)

    def delete(self) -> None:
        _done(self.admin.delete_topics([self.name]))

    def expire(self, **ends: int) -> None:
        """Deletes records before an offset, as retention does; by partition, such as `p0=10`."""
        before = [TopicPartition(self.name, int(name[1:]), offset) for name, offset in ends.items()]
        for future in self.admin.delete_records(before).values():
            future.result()

    def allow(self, user: str, *operations: str) -> None:
        rules = [
            AclBinding(
                ResourceType.TOPIC,
                self.name,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[one],
                AclPermissionType.ALLOW,
            )
            for one in operations
        ]
        for future in self.admin.create_acls(rules).values():
            future.result()

    @cached_property
    def admin(self) -> AdminClient:
        """A client that may do everything."""
        return AdminClient({"bootstrap.servers": self.broker.address}, logger=_QUIET)


def _done(futures: dict[str, Any]) -> None:
    for future in futures.values():
        future.result()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """One broker for all tests of a process; a test that kills it starts it again."""
    with broker_in(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@contextmanager
def broker_in(folder: Path) -> Iterator[LocalBroker]:
    """Yield a broker with one listener open to all, and one for clients that log in over TLS."""
    prefix = f"listener.name.{SECURE.lower()}"
    password = PASSWORD.replace('"', '\\\\"')
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        f"{prefix}.sasl.enabled.mechanisms": "PLAIN",
        f"{prefix}.plain.sasl.jaas.config": f'{login} user_alice="{password}";',
        f"{prefix}.ssl.keystore.type": "PEM",
        **_certificate(folder, prefix),
    }
    with running(folder, protocols=(SECURE,), settings=settings) as found:
        yield found


def login(broker: LocalBroker) -> dict[str, str]:
    """Return the options with which `alice` logs in at the secure listener; KAFKA_PASSWORD holds her password."""
    return {
        "security.protocol": SECURE,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "${KAFKA_PASSWORD}",
        "ssl.ca.location": str(broker.folder / "authority.pem"),
    }


def _certificate(folder: Path, prefix: str) -> dict[str, str]:
    """Return the settings by which a listener shows a certificate, which is left in the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = as_pem(certificate_of(key, "127.0.0.1"))
    (folder / "authority.pem").write_text(certificate)
    pem = {"certificate.chain": certificate, "key": as_pem(key)}
    return {f"{prefix}.ssl.keystore.{what}": text.replace("\n", "\\n") for what, text in pem.items()}


@pytest.fixture
def topic(broker: LocalBroker) -> Callable[..., Topic]:
    """Makes topics: `topic(partitions)`."""

    def made(partitions: int, **settings: str) -> Topic:
        found = Topic(broker, f"t{uuid4().hex[:12]}")
        found.make(partitions, **settings)
        return found

    return made
