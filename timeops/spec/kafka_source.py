"""Topics of Kafka as a source: which are read, how a value becomes columns, where reading starts, how to connect.

Here: the keys of `kind: kafka`. Not here: the keys that every source has (timeops/spec/source.py), the words of
Kafka's clients, the values of variables, and reading (resources/sources/).
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.timeops.errors.problems import Problem, ProblemsError, as_number, did_you_mean, misfit, raise_any, show
from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.spec.fields import (
    VARIABLE,
    Frozen,
    Text,
    WholeNumber,
    column_name_problems,
    columns_in_tables,
    one_name_problems,
    one_of,
    read_instant,
)
from tidemark.timeops.spec.source import SOURCE_KINDS, Source, distinct

OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "sasl.mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "sasl.username": (),
        "sasl.password": (),
        "ssl.ca.location": (),
        "ssl.certificate.location": (),
        "ssl.key.location": (),
        "ssl.key.password": (),
        "ssl.endpoint.identification.algorithm": ("https", "none"),
        "isolation.level": ("read_committed", "read_uncommitted"),
        "client.id": (),
    }
)
"""How to connect, and the words that an option takes; empty where it takes any text."""
_SECRETS = ("sasl.password", "ssl.key.password")
_WITH_SASL = ("sasl.mechanism", "sasl.username", "sasl.password")
_WITH_TLS = tuple(name for name in OPTIONS if name.startswith("ssl."))
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

METADATA: Mapping[str, str] = MappingProxyType(
    {
        "key": "STRING",
        "headers": "ARRAY<STRUCT<key: STRING, value: STRING>>",
        "topic": "STRING",
        "partition": "INT",
        "offset": "BIGINT",
        "timestamp": "TIMESTAMP",
        "timestamp_type": "STRING",
    }
)
"""The columns that hold what Kafka says of a record in addition to its value, with their types."""

Start = str | datetime | Mapping[str, Mapping[int, int]]


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",")]
    expected = "host:port, or several of them separated by commas"
    for server in servers:
        if "@" in server:
            remedy = "name the user in `options`, and a variable for the password; change it if others have seen it"
            raise ProblemsError(
                [Problem("found an address with a user or a password in it", expected=expected, remedy=remedy)]
            )
        match = _ADDRESS.fullmatch(server)
        if match is None or not 0 < int(match[2]) < 65536:
            raise misfit(server, expected)
    return ",".join(servers)


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in {".", ".."}:
        is_pattern = set(value) & set("*+[(^$")
        remedy = "use `topic_pattern` for topics with similar names" if is_pattern else ""
        raise misfit(value, "the name of a topic: letters, digits, `.`, `_` and `-`", remedy)
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        fault = f"found {show(value)}, which is not a valid regular expression: {error}"
        raise ProblemsError([Problem(fault, expected="a regular expression, such as orders[.].*")]) from None
    return value


def _options(value: object) -> Mapping[str, str]:
    """Check the options one by one; no message shows what an option holds."""
    if not isinstance(value, Mapping):
        raise misfit(value, "a mapping of options of Kafka's clients")
    problems: list[Problem] = []
    for name, option in value.items():
        at = (str(name),)
        if name not in OPTIONS:
            expected = f"one of {', '.join(OPTIONS)}"
            problems.append(
                Problem(f"unknown option `{name}`", expected=expected, remedy=did_you_mean(str(name), OPTIONS), at=at)
            )
        elif not isinstance(option, str) or not option.strip():
            problems.append(Problem("found no text", expected="text", remedy="put the value in quotes", at=at))
        elif name in _SECRETS and not VARIABLE.fullmatch(option):
            fault = "found a secret in the spec file"
            expected = 'the name of an environment variable that holds it, such as "${KAFKA_PASSWORD}"'
            problems.append(
                Problem(fault, expected=expected, remedy="change the secret if others have seen the file", at=at)
            )
        elif name not in _SECRETS and VARIABLE.search(option):
            fault = f"found {show(option)}: an environment variable in an option that is not a secret"
            expected = f"the value itself; only {' and '.join(_SECRETS)} name a variable"
            problems.append(Problem(fault, expected=expected, remedy="write the value", at=at))
        elif (words := OPTIONS[name]) and option not in words:
            problems.append(Problem(f"found {show(option)}", expected=f"one of {', '.join(words)}", at=at))
    raise_any(problems)
    return dict(value)


def _start(value: object) -> Start:
    if isinstance(value, datetime) or (isinstance(value, str) and value in {"earliest", "latest"}):
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({str(topic): _offsets(str(topic), offsets) for topic, offsets in value.items()})
    try:
        return read_instant(value)
    except ProblemsError:
        expected = (
            "earliest, latest, an instant such as 2026-01-31T12:00:00Z, or offsets: {topic: {partition: offset}}"
        )
        raise misfit(value, expected) from None


def _offsets(topic: str, value: object) -> Mapping[int, int]:
    offsets: dict[int, int] = {}
    for partition, offset in value.items() if isinstance(value, Mapping) else [(value, None)]:
        offset = as_number(offset)  # noqa: PLW2901
        is_whole = isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0
        if not is_whole or not str(partition).isdecimal():
            expected = 'the offset that is read first, by partition: {"0": 1200, "1": 1187}'
            raise ProblemsError([Problem(f"found {show(value)}", expected=expected, at=(topic,))])
        offsets[int(str(partition))] = int(str(offset))
    return MappingProxyType(offsets)


def _start_text(start: Start) -> object:
    if isinstance(start, Mapping):
        return {
            topic: {str(partition): offset for partition, offset in offsets.items()}
            for topic, offsets in start.items()
        }
    return start.isoformat() if isinstance(start, datetime) else start


_START_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"enum": ["earliest", "latest"]},
        {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"},
        {"type": "object", "additionalProperties": {"type": "object"}},
    ]
}


class KafkaSource(Source):
    """Topics of Kafka, read by ranges of offsets."""

    ARRIVALS: ClassVar[str] = "timestamps of Kafka"
    ARRIVAL: ClassVar[str] = "its timestamp in Kafka"

    kind: Annotated[Literal["kafka"], one_of(*SOURCE_KINDS)] = Field(
        description="Kind of source: files, delta or kafka."
    )
    bootstrap_servers: Annotated[Text, AfterValidator(_servers)] = Field(
        description="Brokers to contact first, as host:port, separated by commas."
    )
    topics: Annotated[tuple[Annotated[Text, AfterValidator(_topic)], ...], AfterValidator(distinct)] = Field(
        default=(), description="Topics to read; or `topic_pattern`."
    )
    topic_pattern: Annotated[Text, AfterValidator(_pattern)] | None = Field(
        default=None,
        description="Regular expression for the topics to read, which must match the whole name; a topic that "
        "matches later is read from its beginning.",
    )
    format: Literal["json", "avro", "raw"] = Field(
        description="What a value holds: json (one object), avro (one record by `avro_schema`), or raw (`schema` is "
        "one column, STRING or BINARY)."
    )
    avro_schema: Text | None = Field(
        default=None, description="With avro: file with the schema that values are written by, relative to the spec."
    )
    skip_bytes: WholeNumber | None = Field(
        default=None,
        description="Bytes in front of each value that are not part of it, such as 5 for the header of Confluent's "
        "schema registry.",
    )
    metadata: Annotated[Mapping[Text, Text], Frozen, PlainSerializer(dict)] = Field(
        default={},
        description="Kafka's metadata of a record, as columns: {key: order_key, headers: headers}; of key, headers, "
        "topic, partition, offset, timestamp and timestamp_type.",
    )
    start: Annotated[
        Start, PlainValidator(_start), PlainSerializer(_start_text), WithJsonSchema(dict(_START_SCHEMA))
    ] = Field(
        default="earliest",
        description="Where the first ingestion begins: earliest, latest, an instant (the first record with this "
        'timestamp or a later one), or offsets such as {orders: {"0": 1200}}. Later ones continue where the last one '
        "ended.",
    )
    order: Literal["arrival_time", "position"] = Field(
        default="arrival_time",
        description="Order of the records of one ingestion: by arrival time, then topic-partition and offset; or "
        "position: partitions by name, records by offset.",
    )
    max_records: WholeNumber = Field(
        default=5_000_000,
        description="Most offsets in one ingestion; partitions have equal shares, and what one does not need the "
        "others get.",
    )
    on_data_loss: Literal["fail", "note"] = Field(
        default="fail",
        description="If Kafka has deleted records before they were read: fail (nothing more is read from the "
        "source), or note (`log_control` says which offsets are missing, and reading continues after them).",
    )
    options: Annotated[
        Mapping[str, str],
        PlainValidator(_options),
        Frozen,
        PlainSerializer(dict),
        WithJsonSchema(
            {
                "type": "object",
                "properties": {name: {"enum": [*words]} if words else {} for name, words in OPTIONS.items()},
                "additionalProperties": False,
            }
        ),
    ] = Field(
        default={},
        description="How to connect, as options of Kafka's clients; a password is always `${NAME}`, the value of "
        "an environment variable whose name begins with KAFKA_ or is listed in TIDEMARK_KAFKA_VARIABLES.",
    )

    @property
    def place(self) -> str:
        """The topics, and where."""
        what = ", ".join(self.topics) or f"topics like {self.topic_pattern}"
        return f"{what} at {self.bootstrap_servers}"

    @property
    def what(self) -> str:
        """Kafka."""
        return "Kafka"

    @property
    def form(self) -> str:
        """The format of the values."""
        return self.format

    @property
    def record_order(self) -> str:
        """The order of the spec."""
        return self.order

    @property
    def notes_losses(self) -> bool:
        """True with `on_data_loss: note`."""
        return self.on_data_loss == "note"

    @property
    def has_splits(self) -> bool:
        """Each partition is a split unless the spec divides the source in another way."""
        return True

    @property
    def is_read_by_split(self) -> bool:
        """Partitions are read one by one; what `split` divides them into is not."""
        return self.split is None

    @property
    def added_columns(self) -> Mapping[str, str]:
        """The columns that hold what Kafka says of a record."""
        return {column: METADATA[name] for name, column in self.metadata.items() if name in METADATA}

    def _own_problems(self) -> Iterator[Problem]:
        if bool(self.topics) == (self.topic_pattern is not None):
            fault = (
                "`topics` and `topic_pattern` both say what to read" if self.topics else "nothing says what to read"
            )
            yield Problem(fault, expected="`topics` or `topic_pattern`", at=("topic_pattern",) if self.topics else ())
        if self.splits and self.split is None:
            fault = "`splits` has no effect: the splits are the partitions, which Kafka lists"
            yield Problem(fault, remedy="leave it out", at=("splits",))
        yield from self._value_problems()
        yield from self._metadata_problems()
        yield from self._option_problems()
        if isinstance(self.start, Mapping) and self.topics:
            for topic in self.start:
                if topic not in self.topics:
                    remedy = did_you_mean(topic, self.topics)
                    yield Problem(f"`{topic}` is not among `topics`", remedy=remedy, at=("start", topic))

    def _value_problems(self) -> Iterator[Problem]:
        if self.format == "raw":
            yield from one_name_problems(self.rename, "raw values have one name for a column")
        if (self.format == "avro") != (self.avro_schema is not None):
            if self.format == "avro":
                yield Problem(
                    "`format: avro` needs `avro_schema`", expected="the file with the schema", at=("format",)
                )
            else:
                fault = f"`avro_schema` has no effect with `format: {self.format}`"
                yield Problem(fault, remedy="leave it out", at=("avro_schema",))
        if self.format == "raw":
            if len(top_level_names(self.columns)) != 1:
                yield Problem("a raw value is one column", expected="a column such as `value BINARY`", at=("schema",))
            if self.keep_unknown:
                fault = "`keep_unknown` has no effect with `format: raw`: there is one column"
                yield Problem(fault, remedy="leave it out", at=("keep_unknown",))

    def _metadata_problems(self) -> Iterator[Problem]:
        taken = {name.lower() for name in columns_in_tables(self.columns, self.rename)}
        for name, column in self.metadata.items():
            at = ("metadata", name)
            if name not in METADATA:
                remedy = did_you_mean(name, METADATA)
                yield Problem(
                    f"Kafka has no `{name}` for a record",
                    expected=f"one of {', '.join(METADATA)}",
                    remedy=remedy,
                    at=at,
                )
            yield from column_name_problems(column, "choose another name", at)
            if column.lower() in taken:
                yield Problem(
                    f"there is a column `{column}` already", expected="names that differ in more than case", at=at
                )
            taken.add(column.lower())

    def _option_problems(self) -> Iterator[Problem]:
        protocol = self.options.get("security.protocol", "PLAINTEXT")
        for kind, names in (("SASL", _WITH_SASL), ("SSL", _WITH_TLS)):
            options = [name for name in names if name in self.options]
            if kind not in protocol and options:
                fault = f"`{options[0]}` has no effect with `security.protocol: {protocol}`"
                yield Problem(fault, expected=f"a protocol with {kind}", at=("options", options[0]))
        missing = [name for name in _WITH_SASL if name not in self.options]
        if "SASL" in protocol and missing:
            fault = f"`security.protocol: {protocol}` lacks {', '.join(f'`{name}`' for name in missing)}"
            yield Problem(fault, expected="a mechanism, a user and a password", at=("options", "security.protocol"))
        certificate, key = "ssl.certificate.location", "ssl.key.location"
        if (certificate in self.options) != (key in self.options):
            fault = f"`{certificate}` and `{key}` go together: one of them is missing"
            yield Problem(
                fault, expected="both, or none", at=("options", certificate if certificate in self.options else key)
            )
