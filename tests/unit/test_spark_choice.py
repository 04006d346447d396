"""Which Spark computes, and the note by which runs find a warm one: decided without starting any."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.cli import main
from resources.settings import Settings, from_environment
from resources.spark import SERVED_SETTINGS, session_config
from resources.spark_choice import choose_spark, open_session, server_gone
from resources.spark_server import (
    ServerNote,
    address_of,
    answers,
    find_note,
    leave_note,
    note_of_this_process,
    remove_note,
)
from timeops.errors import TidemarkError


@contextmanager
def listening() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        yield port


def dead_port() -> int:
    with listening() as port:
        return port


def settings(home: Path, spark: str | None = None) -> Settings:
    return Settings(home / "warehouse", home, home, spark)


def test_without_a_note_a_run_computes_in_its_own_process(tmp_path: Path) -> None:
    choice = choose_spark(settings(tmp_path))
    assert not choice.is_remote
    assert choice.config == session_config()
    assert choice.sentence == "Spark in this process"


def test_a_server_that_left_a_note_and_answers_is_taken(tmp_path: Path) -> None:
    with listening() as port:
        leave_note(tmp_path, ServerNote(f"sc://localhost:{port}/;token=secret", os.getpid()))
        choice = choose_spark(settings(tmp_path))
    assert choice.config["spark.remote"] == f"sc://localhost:{port}/;token=secret"
    assert SERVED_SETTINGS.items() <= choice.config.items()
    assert "secret" not in choice.sentence


def test_a_server_that_no_longer_answers_is_left_aside_and_told(tmp_path: Path) -> None:
    leave_note(tmp_path, ServerNote(f"sc://localhost:{dead_port()}/;token=secret", 1))
    choice = choose_spark(settings(tmp_path))
    assert not choice.is_remote
    assert "does not answer" in choice.sentence
    assert "secret" not in choice.sentence


def test_the_spark_that_the_environment_names_goes_before_a_note(tmp_path: Path) -> None:
    with listening() as port:
        leave_note(tmp_path, ServerNote(f"sc://localhost:{port}", 1))
        named = choose_spark(settings(tmp_path, "spark://far:7077"))
        server = choose_spark(settings(tmp_path, "sc://far:15002"))
    assert named.config["spark.master"] == "spark://far:7077"
    assert server.config["spark.remote"] == "sc://far:15002"


def test_of_a_cluster_nothing_is_set_that_its_own_settings_should_say() -> None:
    here, cluster = session_config("local[3]"), session_config("spark://far:7077")
    assert here["spark.master"] == "local[3]"
    assert set(here) - set(cluster) == {
        "spark.databricks.delta.snapshotPartitions",
        "spark.sql.shuffle.partitions",
        "spark.driver.memory",
        "spark.buffer.pageSize",
    }
    assert SERVED_SETTINGS.items() <= cluster.items()


def test_an_empty_variable_names_no_spark() -> None:
    assert from_environment(Path(), environment={"TIDEMARK_SPARK": ""}).spark is None
    assert from_environment(Path(), environment={"TIDEMARK_SPARK": "local[2]"}).spark == "local[2]"


def test_a_named_server_that_does_not_answer_is_an_error_and_no_reason_to_compute_elsewhere(tmp_path: Path) -> None:
    url = f"sc://localhost:{dead_port()}/;token=secret"
    with pytest.raises(TidemarkError, match="No Spark Connect server listens at localhost:") as raised:
        open_session(choose_spark(settings(tmp_path, url)))
    assert "secret" not in str(raised.value)


def test_a_note_is_for_its_owner_and_is_taken_away_by_nobody_else(tmp_path: Path) -> None:
    first, second = ServerNote("sc://localhost:1/;token=a", 1), ServerNote("sc://localhost:2/;token=b", 2)
    leave_note(tmp_path, first)
    assert (tmp_path / "spark_server.json").stat().st_mode & 0o777 == 0o600
    leave_note(tmp_path, second)
    remove_note(tmp_path, first)
    assert find_note(tmp_path) == second
    remove_note(tmp_path, second)
    assert find_note(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "sc://localhost"}', '{"url": "sc://x", "pid": "seven"}'])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "spark_server.json").write_text(text)
    assert find_note(tmp_path) is None


def test_every_server_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "")
    first, second = note_of_this_process(15002), note_of_this_process(15002)
    assert first.url != second.url
    assert second.url.endswith(os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"])
    assert first.address == "localhost:15002"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sc://far", "far:15002"),
        ("sc://far:7/;user_id=me", "far:7"),
        ("sc://[::1]:7", "[::1]:7"),
    ],
)
def test_an_address_is_host_and_port(url: str, address: str) -> None:
    assert address_of(url) == address


def test_a_host_that_does_not_exist_does_not_answer() -> None:
    assert not answers("sc://no-such-host.invalid:15002")


def test_a_server_that_goes_away_in_the_middle_of_the_work_is_told_in_words() -> None:
    said = server_gone("<_InactiveRpcError status = UNAVAILABLE details = failed to connect to all addresses>")
    assert said is not None
    assert "run again" in str(said)
    assert server_gone("[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found") is None


def test_serve_refuses_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with listening() as port:
        done = CliRunner().invoke(main, ["serve", "--port", str(port)])
    assert done.exit_code == 1
    assert f"Port {port} is taken" in done.output


def test_serve_refuses_a_second_server_for_one_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with listening() as port:
        leave_note(tmp_path, ServerNote(f"sc://localhost:{port}/;token=secret", 4711))
        done = CliRunner().invoke(main, ["serve", "--port", str(dead_port())])
    assert done.exit_code == 1
    assert f"A server is there already, at localhost:{port}: process 4711" in done.output


def test_serve_refuses_to_stand_before_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_SPARK", "sc://far:15002")
    done = CliRunner().invoke(main, ["serve"])
    assert done.exit_code == 1
    assert "TIDEMARK_SPARK names a server already, at far:15002" in done.output
