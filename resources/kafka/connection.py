"""How to connect to Kafka: the options of a source by their names in its two clients.

Here: values of variables and of files with keys, and each option's name in librdkafka and in Spark's reader (Java).
Not here: which options there are (timeops/spec/kafka_source.py), asking a broker (broker.py).

The results hold secrets: pass them to a client, and store them nowhere.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.resources.settings import KAFKA_PREFIX, may_be_sent_to_kafka, variable
from tidemark.timeops.errors import InputError
from tidemark.timeops.problems import Problem
from tidemark.timeops.spec import KafkaSource
from tidemark.timeops.spec.kafka_source import VARIABLE

_PEM = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
"""Options that name a file, each with the name of its content in librdkafka."""
_PEM_IN_JAVA = {
    "ssl.ca.location": ("truststore", "ssl.truststore.certificates"),
    "ssl.certificate.location": ("keystore", "ssl.keystore.certificate.chain"),
    "ssl.key.location": ("keystore", "ssl.keystore.key"),
}
_LOGIN_MODULES = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM_MODULE = "scram.ScramLoginModule"


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
        """Return the connection of a source.

        Args:
            source: The source of the spec.
            base: The folder of the spec file.

        Raises:
            InputError: A variable is not set or may not be sent, or a file cannot be read.
        """
        for problem in refused_variables(source):
            raise InputError(
                f"Source {source.name!r}: {problem.found}", expected=problem.expected, remedy=problem.remedy
            )
        found: dict[str, str] = {}
        for name, text in source.options.items():
            value = VARIABLE.sub(_Variables(source, name), text)
            found[name] = _file(source, name, base / value) if name in _PEM else value
        return cls(source.bootstrap_servers, found)

    @property
    def reads_committed(self) -> bool:
        """Return whether records of open and aborted transactions are left out."""
        return self.options.get("isolation.level") != "read_uncommitted"

    def for_librdkafka(self) -> dict[str, str]:
        """Return the settings for a client of confluent-kafka."""
        own = {_PEM.get(name, name): value for name, value in self.options.items() if name != "isolation.level"}
        return {"client.id": "tidemark", **own, "bootstrap.servers": self.servers}

    def for_spark(self) -> dict[str, str]:
        """Return the options for Spark's reader: options of Java's consumer begin with `kafka.`."""
        options = self.options
        found = {
            "bootstrap.servers": self.servers,
            "client.id": options.get("client.id", "tidemark"),
            "isolation.level": "read_committed" if self.reads_committed else "read_uncommitted",
        }
        for name in ("security.protocol", "sasl.mechanism", "ssl.key.password"):
            if name in options:
                found[name] = options[name]
        if "sasl.mechanism" in options:
            module = _LOGIN_MODULES.get(options["sasl.mechanism"], _SCRAM_MODULE)
            user, password = _quoted(options["sasl.username"]), _quoted(options["sasl.password"])
            login = f"org.apache.kafka.common.security.{module} required username={user} password={password};"
            found["sasl.jaas.config"] = login
        if options.get("ssl.endpoint.identification.algorithm") == "none":
            found["ssl.endpoint.identification.algorithm"] = ""
        for name, (store, java) in _PEM_IN_JAVA.items():
            if name in options:
                found |= {f"ssl.{store}.type": "PEM", java: options[name]}
        return {f"kafka.{name}": value for name, value in found.items()}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class _Variables:
    """Replaces the variables in options by their values."""

    source: KafkaSource
    option: str

    def __call__(self, match: re.Match[str]) -> str:
        """Return the value of the variable that an option names.

        Raises:
            InputError: The variable is not set.
        """
        value = variable(match[1])
        if not value:
            raise InputError(
                f"Source {self.source.name!r}: the environment variable {match[1]} of the option `{self.option}` is "
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
