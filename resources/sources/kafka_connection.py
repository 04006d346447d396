"""A connection to Kafka: the options of a source as settings of its client, questions to brokers, and their records.

Here: values of variables and of files with keys; questions about topics and offsets, and the records of ranges, asked
of librdkafka, without a JVM and with limited patience, and a sentence for each failure to answer. Not here: which
options there are (timeops/spec/kafka_source.py), the meaning of the answers (resources/sources/kafka.py), records as
columns (resources/sources/kafka_records.py).

Connections hold secrets: pass them to a client, and store them nowhere.
"""

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.resources.settings import KAFKA_PREFIX, may_be_sent_to_kafka, variable
from tidemark.timeops.errors import InputError, MachineError
from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.spec import KafkaSource
from tidemark.timeops.spec.fields import VARIABLE

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message


_PEM = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
"""Options that name a file, each with the name of its content in librdkafka."""


def refused_variables(source: KafkaSource) -> Iterator[Problem]:
    """Yield a problem for each option with a variable whose value may not be sent to brokers."""
    for option, text in source.options.items():
        for name in VARIABLE.findall(text):
            if not may_be_sent_to_kafka(name):
                yield Problem(
                    f"the variable {name} may not be sent to brokers",
                    expected=f"a name that begins with {KAFKA_PREFIX}, or is listed in TIDEMARK_KAFKA_VARIABLES",
                    remedy=f"name the variable {KAFKA_PREFIX}{name}, or list it where the pipeline runs",
                    at=("options", option),
                )


@dataclass(frozen=True)
class Connection:
    """The servers and options of a connection.

    Attributes:
        servers: Addresses of brokers.
        options: The options of the source, with the values of variables and the contents of files.
    """

    servers: str
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, source: KafkaSource, base: Path) -> "Connection":
        """Return the connection of a source; files are relative to the folder of the spec file.

        Raises:
            InputError: A variable is not set or may not be sent, or a file cannot be read.
        """
        for problem in refused_variables(source):
            raise InputError(
                f"Source {source.name!r}: {problem.found}", expected=problem.expected, remedy=problem.remedy
            )
        options: dict[str, str] = {}
        for name, text in source.options.items():
            value = VARIABLE.sub(partial(_value, source, name), text)
            options[name] = _file(source, name, base / value) if name in _PEM else value
        return cls(source.bootstrap_servers, options)

    @property
    def isolation(self) -> str:
        """The isolation level: by default records of open and aborted transactions are left out."""
        return self.options.get("isolation.level", "read_committed")

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a client of confluent-kafka."""
        settings = {_PEM.get(name, name): value for name, value in self.options.items() if name != "isolation.level"}
        return {"client.id": "tidemark", **settings, "bootstrap.servers": self.servers}


def _value(source: KafkaSource, option: str, match: re.Match[str]) -> str:
    """Return the value of the variable that an option names."""
    value = variable(match[1])
    if not value:
        raise InputError(
            f"Source {source.name!r}: the environment variable {match[1]} of the option `{option}` is "
            f"{'not set' if value is None else 'empty'}",
            expected="its value in the environment of this process",
            remedy=f"set {match[1]}; runs that Dagster starts have the environment of its daemon",
        )
    return value


def _file(source: KafkaSource, option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(
            f"Source {source.name!r}: {path}, which the option `{option}` names, cannot be read: {why}",
            expected="a PEM file that this user can read, relative to the spec file",
            remedy="correct the option, or the permissions of the file",
        ) from error


PATIENCE_S = 10.0
"""How long all questions of one look may take together."""
_STEP_S, _MOMENT_S = 1.0, 0.3
_AT_ONCE = 50  # records that are taken from the client together: of the largest usual size they take 50 MB
_WAITS = {
    "socket.connection.setup.timeout.ms": "5000",
    "reconnect.backoff.ms": "300",
    "reconnect.backoff.max.ms": "1000",
    "allow.auto.create.topics": "false",
}
_SILENT = logging.getLogger("tidemark.kafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False  # hides librdkafka's own log; failures are reported as errors

Partition = tuple[str, int]
"""Topic and number of a partition."""


@dataclass(frozen=True)
class Topic:
    """A topic as its brokers describe it.

    Attributes:
        topic_id: Its id, which changes when it is created again.
        partitions: Number of its partitions.
    """

    name: str
    topic_id: str
    partitions: int


class Broker:
    """The brokers of one source, for one look at them.

    Args:
        connection: How to reach them.
        patience_s: How long all questions of the look may take together.

    Raises:
        MachineError: The client is not installed.
        InputError: The client does not know an option.
    """

    def __init__(self, connection: Connection, patience_s: float = PATIENCE_S) -> None:
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra that only these pipelines need
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415
        except ImportError as error:
            raise MachineError(
                "The client of Kafka is not installed.",
                expected="the Python package confluent-kafka",
                remedy="install it with `pip install 'confluent-kafka>=2.6,<3'`.",
            ) from error
        self._connection = connection
        self._patience_s = patience_s
        self._until = time.monotonic() + patience_s
        self._said: list[KafkaError] = []
        try:
            self._admin = AdminClient({"socket.timeout.ms": "10000", **self._settings})
        except KafkaException as error:
            raise InputError(
                f"Kafka's client does not take the options for {connection.servers}: {error.args[0].str()}",
                expected="options with which it can connect, and keys and certificates as PEM",
                remedy="correct `options` of the source",
            ) from error

    def names(self) -> list[str]:
        """Return the names of all topics that this user may see, except Kafka's own."""
        return sorted(name for name in self._metadata() if not name.startswith("__"))

    def described(self, names: Iterable[str]) -> dict[str, Topic | None]:
        """Return topics by name; None for a topic that does not exist.

        Raises:
            InputError: The brokers cannot be asked, or this user may not read one of the topics.
        """
        from confluent_kafka import KafkaException, TopicCollection  # noqa: PLC0415

        self._metadata()
        wanted = list(names)
        if not wanted:
            return {}
        futures = self._admin.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=self._left_s()
        )
        topics: dict[str, Topic | None] = {}
        for name, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].name() not in {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"}:
                    raise self._failed(error.args[0], f"topic {name}") from error
                topics[name] = None
                continue
            operations = description.authorized_operations
            if operations is not None and "READ" not in {operation.name for operation in operations}:
                raise _not_allowed(f"topic {name}", self._connection.servers)
            topics[name] = Topic(name, str(description.topic_id), len(description.partitions))
        return topics

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first available offset of each partition."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

        first = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # of the client, which has types elsewhere
        return self._offsets(dict.fromkeys(partitions, first))

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after the last record of each partition that may be read."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

        last = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # as above
        return self._offsets(dict.fromkeys(partitions, last))

    def since(self, times_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the first offset of each partition with this timestamp or a later one; None if there is none."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

        offsets = self._offsets({partition: OffsetSpec.for_timestamp(ms) for partition, ms in times_ms.items()})
        return {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}

    def times_at(self, places: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the timestamp of the first record at or after an offset of each partition, in milliseconds.

        None if there is no record, or it has no timestamp.
        """
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        times: dict[Partition, int | None] = {}
        consumer = self._consumer({"auto.offset.reset": "earliest", "fetch.message.max.bytes": "65536"})
        try:
            consumer.assign([TopicPartition(*partition, offset) for partition, offset in places.items()])
            while len(times) < len(places) and time.monotonic() < self._until:
                record = consumer.poll(min(_STEP_S, self._left_s()))
                if record is None:
                    continue
                error = record.error()
                if error is not None and error.name() == _OF_GROUP:
                    continue
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise self._failed(error, f"topic {record.topic()}")
                partition = (str(record.topic()), int(record.partition() or 0))
                if partition not in times:
                    kind, ms = record.timestamp() if error is None else (0, 0)
                    times[partition] = ms if kind else None
                    consumer.incremental_unassign([TopicPartition(*partition)])
        except KafkaException as error:
            raise self._failed(error.args[0], "") from error
        finally:
            consumer.close()
        return {partition: times.get(partition) for partition in places}

    def records(self, ranges: Mapping[Partition, tuple[int, int]]) -> Iterator["Message"]:
        """Yield the records from the first offset of each range up to its end, in any order of partitions.

        An offset need not have a record: topics are compacted, and transactions aborted.

        Raises:
            InputError: Records are gone, this user may not read them, or for as long as the patience for questions
                none came.
        """
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        ends = {partition: end for partition, (_, end) in ranges.items()}
        # Where offsets are gone, the client would otherwise continue after them.
        consumer = self._consumer({"auto.offset.reset": "error", "check.crcs": "true", **_ANY_SIZE})
        early: list[Partition] = []
        try:
            consumer.assign([TopicPartition(*partition, first) for partition, (first, _) in ranges.items()])
            while ends:
                for record in self._next(consumer, early):
                    partition, offset = (str(record.topic()), int(record.partition() or 0)), int(record.offset() or 0)
                    end, error = ends.get(partition, 0), record.error()
                    if error is not None and error.name() == _OF_GROUP:
                        continue
                    if error is not None and error.name() != "_PARTITION_EOF":
                        is_gone = error.name() in _GONE
                        raise self._gone(partition) if is_gone else self._failed(error, f"topic {record.topic()}")
                    if error is None and offset < end:
                        yield record
                    # The end of a partition has the offset after its last one, which need not have a record.
                    is_read = offset >= (end - 1 if error is None else end)
                    if partition in ends and is_read:
                        del ends[partition]
                        consumer.incremental_unassign([TopicPartition(*partition)])
                    elif error is not None and not is_read:
                        early.append(partition)  # for a moment a new leader may not know of the last records
        except KafkaException as error:
            raise self._failed(error.args[0], "") from error
        finally:
            consumer.close()

    def _next(self, consumer: "Consumer", early: Sequence[Partition]) -> list["Message"]:
        """Return some of the records that have arrived.

        Args:
            consumer: Where they arrive.
            early: Partitions that ended before the last record that is wanted of them.

        Raises:
            InputError: For as long as the patience none came.
        """
        self._until = time.monotonic() + self._patience_s
        while (first := consumer.poll(_STEP_S)) is None:
            if self._refusal() is not None or time.monotonic() >= self._until:
                raise self._gone(early[0]) if early else self._silent()
        return [first, *consumer.consume(_AT_ONCE, 0)]

    def _consumer(self, more: Mapping[str, str]) -> "Consumer":
        """Return a consumer that joins no group and commits nothing."""
        from confluent_kafka import Consumer  # noqa: PLC0415

        reading = {
            "group.id": "tidemark",  # a consumer must have one
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": self._connection.isolation,
        }
        return Consumer({**self._settings, **reading, **more})

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings of all clients; what they say meanwhile is kept in `_said`."""
        return {**_WAITS, **self._connection.settings, "error_cb": self._said.append, "logger": _SILENT}

    def _offsets(self, specs: Mapping[Partition, Any]) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition  # noqa: PLC0415

        if not specs:
            return {}
        isolation = IsolationLevel[self._connection.isolation.upper()]
        offsets: dict[Partition, int] = {}
        while len(offsets) < len(specs):
            rest = {TopicPartition(*partition): spec for partition, spec in specs.items() if partition not in offsets}
            futures = self._admin.list_offsets(rest, isolation_level=isolation, request_timeout=self._left_s())
            in_motion = False
            for partition, future in futures.items():
                try:
                    offsets[partition.topic, partition.partition] = future.result().offset
                except KafkaException as error:
                    in_motion = error.args[0].name() in _IN_MOTION and time.monotonic() < self._until
                    if not in_motion:
                        what = f"partition {partition.topic}-{partition.partition}"
                        raise self._failed(error.args[0], what) from error
            if in_motion:
                time.sleep(_MOMENT_S)
        return offsets

    def _metadata(self) -> Mapping[str, Any]:
        """Return all topics, from the first broker that answers; errors reported meanwhile end the wait."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        while True:
            try:
                return dict(self._admin.list_topics(timeout=min(_STEP_S, self._left_s())).topics)
            except KafkaException as error:
                self._admin.poll(0)  # calls back with the errors
                if self._refusal() is not None or time.monotonic() >= self._until:
                    raise self._failed(error.args[0], "") from error

    def _left_s(self) -> float:
        return max(self._until - time.monotonic(), 0.1)

    def _refusal(self) -> "KafkaError | None":
        """Return the reported error that asking again would not change."""
        return next((error for error in self._said if error.name() in _REFUSALS), None)

    def _failed(self, error: "KafkaError", what: str) -> InputError:
        """Return the error in words, from the error reported meanwhile if that says more."""
        if self._refusal() is not None or error.name() in _SILENCES:
            return self._silent()
        if "AUTHORIZATION" in error.name():
            return _not_allowed(what, self._connection.servers)
        of = f" of {what}" if what else ""
        return InputError(
            f"Kafka at {self._connection.servers} gave an error{of}: {error.str()}",
            expected="an answer",
            remedy="see the log of the broker, and run again",
        )

    def _silent(self) -> InputError:
        """Return the error for brokers that do not answer, or not to this user."""
        servers, refusal = self._connection.servers, self._refusal()
        if refusal is not None:
            return InputError(
                f"Kafka at {servers} refuses to let this user in: {_why(refusal)}",
                expected=_REFUSALS[refusal.name()],
                remedy="correct `options` of the source, or the variables that they name",
            )
        reason = next((_why(error) for error in self._said if error.name() != "_ALL_BROKERS_DOWN"), "")
        return InputError(
            f"Kafka at {servers} does not answer" + (f": {reason}" if reason else f" within {self._patience_s:g} s"),
            expected="a broker that can be reached from here",
            remedy="correct `bootstrap_servers`, or see whether the broker runs and its listeners name an "
            "address that this machine reaches",
        )

    def _gone(self, partition: Partition) -> InputError:
        topic, number = partition
        return InputError(
            f"Kafka at {self._connection.servers}: records of partition {topic}-{number} were deleted while they "
            "were read",
            expected="records that Kafka keeps until they were read",
            remedy="run again: the run finds the missing records, and reports their offsets",
        )


_REFUSALS = {
    "_AUTHENTICATION": "a user and a password that it knows, by a mechanism that it has",
    "SASL_AUTHENTICATION_FAILED": "a user and a password that it knows, by a mechanism that it has",
    "_SSL": "TLS with certificates that both sides trust",
}
_IN_MOTION = {
    *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "BROKER_NOT_AVAILABLE"),
    *("UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH", "REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION"),
}
"""Errors for a moment after a broker has started, or has ceased to lead a partition."""
_OF_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""A consumer must name a group, and looks for its coordinator; none is joined, so a user needs no right for it."""
_GONE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION"}
_ANY_SIZE = {"receive.message.max.bytes": str(2**31 - 1)}
"""The client otherwise stops at a record of 100 MB."""
_SILENCES = {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"}


def _why(error: "KafkaError") -> str:
    """Return the message of librdkafka, without the internal state that it appends."""
    message = error.str().partition(" (after ")[0].strip()
    return message.rpartition("/bootstrap: ")[2].rstrip(": ")


def _not_allowed(what: str, servers: str) -> InputError:
    return InputError(
        f"Kafka at {servers}: this user may not read {what}"
        if what
        else f"Kafka at {servers} lets this user see nothing",
        expected="a user with the permissions READ and DESCRIBE",
        remedy="ask an administrator of the brokers for them, or correct `options` of the source",
    )
