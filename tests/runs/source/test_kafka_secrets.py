"""Passwords and keys that let a pipeline in to Kafka: they reach the brokers and are nowhere else.

Here: a real broker with a login over TLS, this process, and a Spark Connect server with its pages. Not here: options
as settings of the client (pure/spec/test_spec.py).
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark.sql import SparkSession

from tests import ROOT
from tests.certificates import as_pem, certificate_of
from tests.kafka import PASSWORD, SECURE, Topic, login
from tests.processes import PATIENCE_S, warm_spark
from tests.runs.running import command, log_of, run
from tests.runs.source.test_kafka_sources import MakeTopic, events, made, places, written

pytestmark = pytest.mark.long

SECRETS = "secrets"
KEY_PASSWORD = "unlocks the key"


def with_a_login(base: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a pipeline `x` over a topic, with a password and a key of many lines; return the texts to keep secret."""
    topic.allow("alice", "READ", "DESCRIBE")
    (base / SECRETS).mkdir()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # its text is longer than a page shows
    (base / SECRETS / "certificate.pem").write_text(as_pem(certificate_of(key, "127.0.0.1")))
    forms = serialization.PrivateFormat
    for name, form in {"PKCS8": forms.PKCS8, "Traditional": forms.TraditionalOpenSSL}.items():
        (base / SECRETS / f"{name}.pem").write_text(as_pem(key, form))
    lock = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    (base / SECRETS / "Encrypted.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, forms.PKCS8, lock))
    (base / SECRETS / "No.pem").write_text("not a key")
    for name, value in {"KAFKA_PASSWORD": PASSWORD, "KAFKA_KEY_PASSWORD": KEY_PASSWORD}.items():
        monkeypatch.setenv(name, value)
    options = {
        **login(topic.broker),
        "ssl.key.location": f"{SECRETS}/PKCS8.pem",
        "ssl.key.password": "${KAFKA_KEY_PASSWORD}",
        "ssl.certificate.location": f"{SECRETS}/certificate.pem",
    }
    file, _ = made(base, "x", topic)
    secure = file.path.read_text().replace(topic.broker.address, topic.broker.address_of(SECURE))
    file.path.write_text(secure.replace("format: json", f"format: json\n    options: {json.dumps(options)}"))
    keys = [line for file in (base / SECRETS).glob("[PTE]*.pem") for line in file.read_text().splitlines()[1:-1]]
    assert len(keys) > 60
    return [PASSWORD, "battery", KEY_PASSWORD, *keys]


def assert_stand_nowhere(secrets: list[str], base: Path, *said: str) -> None:
    for secret in secrets:
        assert not any(secret in text for text in said), secret
        for path in base.rglob("*"):
            is_told = path.is_file() and path.parent.name != SECRETS
            assert not is_told or secret.encode() not in path.read_bytes(), path


def test_a_password_and_a_key_in_any_form_let_in_and_stand_nowhere(
    spark: SparkSession, topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = topic(1)
    secrets = with_a_login(tmp_path, orders, monkeypatch)
    orders.write(events(1, 10, partitions=(0,)))
    said = [run(tmp_path, "x").output]
    assert len(log_of(tmp_path, "x")) == 10
    spec = tmp_path / "x.yaml"
    for before, form in pairwise(("PKCS8", "Traditional", "Encrypted", "No")):
        spec.write_text(spec.read_text().replace(f"{before}.pem", f"{form}.pem"))
        orders.write(events(2, 1, partitions=(0,)))
        ran = command(tmp_path, "x")
        said.append(ran.output)
        assert ran.exit_code == (form == "No"), ran.output
    assert len(log_of(tmp_path, "x")) == 12
    assert "Kafka's client does not take the options" in said[-1]
    spec.write_text(spec.read_text().replace("No.pem", "Encrypted.pem"))
    monkeypatch.setenv("KAFKA_PASSWORD", "another; one")
    refused = command(tmp_path, "x")
    assert refused.exit_code == 1
    assert "refuses to let this user in" in refused.output
    said.append(refused.output)
    assert not any("Traceback" in text for text in said)
    assert_stand_nowhere([*secrets, "another; one"], tmp_path, *said)


def test_records_of_kafka_reach_a_warm_server_and_password_and_key_do_not(
    topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, sent = topic(2), events(1, 30, partitions=(0, 1))
    secrets = with_a_login(tmp_path, orders, monkeypatch)
    orders.write(sent)
    home = tmp_path / "home"
    for name, value in {"DAGSTER_HOME": home, "TIDEMARK_SPECS": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    with warm_spark(home, tmp_path, "--spark-ui"):
        command = [sys.executable, "-m", "tidemark.pipelines.cli", "run", str(tmp_path / "x.yaml")]
        words = [*command, "--warehouse", str(tmp_path / "warehouse")]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr
        assert "computing with the warm Spark of `tidemark serve`" in ran.stderr
        told = (tmp_path / "serve.log").read_text()
        [ui] = re.findall(r"http://[\w.:]+", told)
        assert f"UI is at {ui}" in told
        pages = list(pages_of(ui))
    assert places(log_of(tmp_path, "x")) == written(orders, sent)
    assert any("spark.connect.grpc.binding.port" in page for page in pages), "the pages are those of the warm server"
    assert any("tidemark" in page for page in pages), "and show what it was asked for, to some depth of a request"
    assert_stand_nowhere(secrets, tmp_path, ran.stdout, ran.stderr, *pages)


def pages_of(address: str) -> Iterator[str]:
    """Yield the pages of Spark's UI, with all requests: by itself a table shows the newest hundred."""
    for page in ("connect/", "SQL/", "jobs/", "stages/", "environment/"):
        yield urlopen(f"{address}/{page}?sqlstat.pageSize=10000&completed.pageSize=10000").read().decode()
