"""The keys of `kind: kafka`: what they mean, and what is said of wrong ones."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.pure.spec.specs import SMALL, parse, schema_accepts
from tidemark.pipelines.cli import main
from tidemark.resources.sources.kafka_connection import Connection
from tidemark.timeops.errors import InputError, SpecError
from tidemark.timeops.spec import KafkaSource

TOPICS: dict[str, Any] = {
    "name": "s",
    "kind": "kafka",
    "bootstrap_servers": "one:9092, two:9093",
    "topics": ["orders"],
    "format": "json",
    "schema": "t STRING, x INT",
}
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": "${KAFKA_PASSWORD}",
}


def with_source(**keys: object) -> dict[str, Any]:
    source = {name: value for name, value in {**TOPICS, **keys}.items() if value is not None}
    return {**SMALL, "sources": [source]}


def source_of(spec: dict[str, Any]) -> KafkaSource:
    (source,) = parse(spec).sources
    assert isinstance(source, KafkaSource)
    return source


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"topics": None, "topic_pattern": "orders[.].*", "start": "latest", "order": "position"},
        {"format": "avro", "avro_schema": "order.avsc", "skip_bytes": 5, "keep_unknown": True},
        {"format": "raw", "schema": "t STRING", "start": {"orders": {"0": 5}}, "on_data_loss": "note"},
        {"metadata": {"key": "k", "timestamp": "at"}, "start": "2026-01-01T01:00:00+01:00", "options": LOGIN},
        {"alignment": {"group": "g", "max_drift": "1 minute"}},  # its partitions wait for each other
    ],
)
def test_a_source_is_read_and_written_as_it_is(keys: dict[str, Any]) -> None:
    spec = parse(with_source(**keys))
    assert parse(json.loads(spec.canonical_json())) == spec
    assert schema_accepts(json.loads(spec.canonical_json()))
    assert spec.uses_splits
    assert not spec.reads_files_only


def test_what_kafka_says_of_a_record_stands_behind_the_columns() -> None:
    source = source_of(with_source(metadata={"headers": "h", "offset": "o"}))
    assert source.columns_in_tables == ["t", "x", "h", "o"]
    assert source.bootstrap_servers == "one:9092,two:9093"
    begins = source_of(with_source(start="2026-01-01T01:00:00+01:00")).start
    assert begins == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"bootstrap_servers": "one"}, "sources[0].bootstrap_servers", "host:port"),
        ({"bootstrap_servers": "one:0"}, "sources[0].bootstrap_servers", "host:port"),
        ({"topics": None}, "sources[0]", "nothing says what to read"),
        ({"topic_pattern": "o.*"}, "sources[0].topic_pattern", "both say what to read"),
        ({"topics": ["orders*"]}, "sources[0].topics[0]", "use `topic_pattern`"),
        ({"topics": ["a", "a"]}, "sources[0].topics[1]", "occurs twice"),
        ({"topics": None, "topic_pattern": "("}, "sources[0].topic_pattern", "no regular expression"),
        ({"format": "csv"}, "sources[0].format", "json or avro or raw"),
        ({"format": "avro"}, "sources[0].format", "needs `avro_schema`"),
        ({"avro_schema": "a.avsc"}, "sources[0].avro_schema", "has no effect with `format: json`"),
        ({"format": "raw"}, "sources[0].schema", "a raw value is one column"),
        ({"format": "raw", "schema": "t STRING", "keep_unknown": True}, "sources[0].keep_unknown", "no effect"),
        ({"metadata": {"ofset": "o"}}, "sources[0].metadata.ofset", "did you mean `offset`?"),
        ({"metadata": {"key": "x"}}, "sources[0].metadata.key", "there is a column `x` already"),
        ({"metadata": {"key": "_split"}}, "sources[0].metadata.key", "choose another name"),
        ({"start": "soon"}, "sources[0].start", "earliest, latest, an instant"),
        ({"start": {"orders": {"0": -1}}}, "sources[0].start.orders", "the offset that is read first"),
        ({"start": {"oders": {"0": 1}}}, "sources[0].start.oders", "did you mean `orders`?"),
        ({"max_records": 0}, "sources[0].max_records", "a whole number, at least 1"),
        ({"on_data_loss": "ignore"}, "sources[0].on_data_loss", "fail or note"),
        ({"splits": ["a"]}, "sources[0].splits", "the splits are the partitions"),
        ({"path": "in/*"}, "sources[0].path", "unknown key `path`"),
        ({"max_bytes": 5}, "sources[0].max_bytes", "unknown key `max_bytes`"),
        ({"live": True}, "sources[0].live", "timestamps of Kafka are the machine's already"),
        ({"options": {"sasl.pasword": "x"}}, 'options["sasl.pasword"]', "did you mean `sasl.password`?"),
        ({"options": {"security.protocol": "TLS"}}, 'options["security.protocol"]', "one of PLAINTEXT, SSL"),
        ({"options": {"sasl.username": "me"}}, 'options["sasl.username"]', "a protocol with SASL"),
        ({"options": {"security.protocol": "SASL_SSL"}}, 'options["security.protocol"]', "lacks `sasl.mechanism`"),
        (
            {"options": {"security.protocol": "SSL", "ssl.key.location": "k.pem"}},
            'options["ssl.key.location"]',
            "go together",
        ),
    ],
)
def test_what_is_wrong_with_a_source_is_said_at_its_key(keys: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(with_source(**keys))
    said = str(caught.value)
    assert place in said
    assert words in said


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password"])
@pytest.mark.parametrize("value", ["hunter2", "x${PASSWORD}", "hunter2 ${A}"])
def test_a_password_in_the_file_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(with_source(options={**LOGIN, name: value}))
    assert "found a secret in the spec file" in str(caught.value)
    assert value not in str(caught.value)


def test_options_are_said_in_the_words_of_both_clients(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "certificate", "key"):
        (base / f"{name}.pem").write_text(f"the {name}")
    monkeypatch.setenv("KAFKA_PASSWORD", 'a"b\\c')
    files = {f"ssl.{name}.location": f"{name}.pem" for name in ("ca", "certificate", "key")}
    more = {"ssl.endpoint.identification.algorithm": "none", "isolation.level": "read_uncommitted"}
    made = Connection.of(source_of(with_source(options={**LOGIN, **files, **more})), base)
    of_python, of_java = made.for_librdkafka(), made.for_spark()
    assert of_python["sasl.password"] == 'a"b\\c'
    assert of_python["ssl.key.pem"] == of_java["kafka.ssl.keystore.key"] == "the key"
    assert of_python["ssl.ca.pem"] == of_java["kafka.ssl.truststore.certificates"] == "the ca"
    assert of_java["kafka.ssl.truststore.type"] == of_java["kafka.ssl.keystore.type"] == "PEM"
    assert of_java["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="me" password="a\"b\\c";'
    )
    assert of_java["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert of_java["kafka.isolation.level"] == "read_uncommitted"
    assert "isolation.level" not in of_python
    assert 'a"b' not in repr(made)


@pytest.mark.parametrize("name", ["client.id", "sasl.username", "ssl.ca.location", "ssl.key.location"])
def test_a_variable_stands_for_nothing_but_a_secret(name: str) -> None:
    certificates = {"ssl.certificate.location": "a.pem", "ssl.key.location": "b.pem"}
    with pytest.raises(SpecError) as caught:
        parse(with_source(options={**LOGIN, **certificates, name: "${KAFKA_ID}"}))
    assert f'options["{name}"]' in str(caught.value)
    assert "a variable of the environment in an option that is no secret" in str(caught.value)


def test_only_variables_for_kafka_are_sent_to_the_brokers_that_a_spec_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands refuse the spec, and nothing connects for a source that came another way."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of this machine")
    given = with_source(options={**LOGIN, "sasl.password": "${AWS_SECRET_ACCESS_KEY}"})
    with pytest.raises(InputError, match="the variable AWS_SECRET_ACCESS_KEY may not be sent to brokers"):
        Connection.of(source_of(given), tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    done = CliRunner().invoke(main, ["validate", str(tmp_path / "small.yaml")])
    assert done.exit_code == 2
    assert 'sources[0].options["sasl.password"]: the variable AWS_SECRET_ACCESS_KEY may not be sent' in done.output
    assert "of this machine" not in done.output
    monkeypatch.setenv("TIDEMARK_KAFKA_VARIABLES", "OTHER, AWS_SECRET_ACCESS_KEY")
    assert Connection.of(source_of(given), tmp_path).options["sasl.password"] == "of this machine"


@pytest.mark.parametrize("address", ["me:hunter2@one:9092", "kafka://me:hunter2@one:9092", "two:1,hunter2@one:9092"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(SpecError, match="found an address with a user or a password in it") as caught:
        parse(with_source(bootstrap_servers=address))
    assert "hunter2" not in str(caught.value)
