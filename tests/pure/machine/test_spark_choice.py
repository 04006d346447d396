"""Which Spark computes, and the note by which runs find a warm one: decided without starting any."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance

from tests.runs.landing import land
from tests.runs.running import go, pipeline
from tidemark.pipelines import runner
from tidemark.pipelines.cli import main
from tidemark.pipelines.runner import RunOptions
from tidemark.resources.machine import machine_failure
from tidemark.resources.settings import Settings, from_environment
from tidemark.resources.spark import choice as spark_choice
from tidemark.resources.spark import server
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.spark.network import check_master, check_secret
from tidemark.resources.spark.server import (
    ServerNote,
    address_of,
    answers,
    find_note,
    leave_note,
    new_token,
    note_of_this_process,
    proving,
    remove_note,
)
from tidemark.resources.spark.session import SERVED_SETTINGS, session_config
from tidemark.timeops.errors import MachineError, SpecError, TidemarkError


@contextmanager
def listening() -> Iterator[int]:
    """Yield a port at which a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        yield port


@contextmanager
def serving(*, is_alive: bool = True) -> Iterator[ServerNote]:
    """Yield the note of a server, or of a process whose Spark has died, and both of its ports."""
    with listening() as port, proving("secret", lambda: is_alive) as proof:
        yield ServerNote(f"sc://localhost:{port}/;token=secret", os.getpid(), proof)


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
    with serving() as note:
        leave_note(tmp_path, note)
        choice = choose_spark(settings(tmp_path))
    assert choice.config["spark.remote"] == note.url
    assert SERVED_SETTINGS.items() <= choice.config.items()
    assert "secret" not in choice.sentence


def test_a_server_that_has_opened_a_bucket_at_another_address_or_for_another_account_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(address: str, key: str = "key", bucket: str = "s3://landing") -> SparkChoice:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"not-for-all-{key}")
        return choose_spark(settings(tmp_path), [f"{bucket}/in/*.csv"])

    with serving() as note:
        leave_note(tmp_path, note)
        assert choose("http://one:1").is_remote
        assert choose("http://one:1").is_remote
        other = choose("http://two:2")
        assert not other.is_remote
        assert "has opened s3://landing at another address or for another account" in other.sentence
        assert not choose("http://one:1", key="another").is_remote
        assert choose("http://two:2", bucket="s3://other").is_remote
        assert choose("http://one:1").is_remote
    with serving() as next_one:
        leave_note(tmp_path, next_one)
        assert choose("http://two:2").is_remote, "a new server has opened nothing"
    assert not any("not-for-all" in path.read_text() for path in tmp_path.iterdir() if path.is_file())


def test_a_server_that_no_longer_answers_is_left_aside_and_told(tmp_path: Path) -> None:
    leave_note(tmp_path, ServerNote(f"sc://localhost:{dead_port()}/;token=secret", 1, dead_port()))
    choice = choose_spark(settings(tmp_path))
    assert not choice.is_remote
    assert "does not answer" in choice.sentence
    assert "secret" not in choice.sentence


def test_a_stranger_at_the_ports_of_a_stale_note_is_told_apart_within_seconds_and_learns_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.3)
    heard: list[bytes] = []
    with (
        stranger(heard) as silent,
        stranger(heard, answer=b"x" * 32) as liar,
        proving("other", lambda: True) as next_one,
    ):
        for proof in (silent, liar, next_one):
            leave_note(tmp_path, ServerNote(f"sc://localhost:{silent}/;token=secret", os.getpid(), proof))
            began = time.monotonic()
            assert not choose_spark(settings(tmp_path)).is_remote
            assert time.monotonic() - began < 5
    assert heard
    assert not any(b"secret" in one for one in heard)


def test_a_server_whose_spark_has_died_proves_nothing(tmp_path: Path) -> None:
    with serving(is_alive=False) as note:
        leave_note(tmp_path, note)
        assert not choose_spark(settings(tmp_path)).is_remote


def test_a_named_server_that_is_no_spark_is_told_within_seconds_and_learns_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_choice, "_PATIENCE_S", 1.0)
    heard: list[bytes] = []
    with stranger(heard) as port, pytest.raises(TidemarkError, match=r"at localhost:.* is not a Spark Connect"):
        open_session(choose_spark(settings(tmp_path, f"sc://localhost:{port}/;token=secret")))
    assert heard
    assert not any(b"secret" in one for one in heard)


@contextmanager
def stranger(heard: list[bytes], answer: bytes = b"") -> Iterator[int]:
    """Yield a port at which a program listens that keeps what it hears, and says one thing or nothing."""

    class Listen(BaseRequestHandler):
        def handle(self) -> None:
            while part := self.request.recv(4_096):
                heard.append(part)
                with suppress(OSError):
                    self.request.sendall(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Listen) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_the_spark_that_the_environment_names_goes_before_a_note(tmp_path: Path) -> None:
    with listening() as port:
        leave_note(tmp_path, ServerNote(f"sc://localhost:{port}", 1, 1))
        named = choose_spark(settings(tmp_path, "spark://far:7077"))
        server = choose_spark(settings(tmp_path, "sc://far:15002"))
    assert named.config["spark.master"] == "spark://far:7077"
    assert server.config["spark.remote"] == "sc://far:15002"


def test_of_a_cluster_nothing_is_set_that_its_own_settings_should_say() -> None:
    here, cluster = session_config("local[3]"), session_config("spark://far:7077")
    assert here["spark.master"] == "local[3]"
    assert set(here) - set(cluster) == {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.ui.killEnabled",
        "spark.databricks.delta.snapshotPartitions",
        "spark.sql.shuffle.partitions",
        "spark.driver.memory",
        "spark.buffer.pageSize",
        "spark.executor.killOnFatalError.depth",
    }
    assert SERVED_SETTINGS.items() <= cluster.items()


def test_a_command_that_needs_no_table_starts_without_delta_and_ends_before_java_would_optimize(
    tmp_path: Path,
) -> None:
    choice = choose_spark(settings(tmp_path), tables=False)
    assert "delta" not in " ".join([value for name, value in choice.config.items() if "Options" not in name])
    java = choice.config["spark.driver.extraJavaOptions"].split()
    assert {"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"} <= set(java)
    assert "-XX:+UseParallelGC" not in java, "Java takes one collector"
    assert SERVED_SETTINGS.items() <= choice.config.items(), "an expression means the same"
    for named in ("spark://far:7077", "sc://far:15002"):
        far = settings(tmp_path, named)
        assert choose_spark(far, tables=False) == choose_spark(far)


@pytest.mark.parametrize("waiting", ["little", "much", "batches"])
def test_a_run_over_little_input_ends_before_javas_second_compiler_would_pay_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    class Started(Exception):  # noqa: N818 - no error
        pass

    def start(choice: SparkChoice, _tell: object) -> None:
        raise Started("-XX:TieredStopAtLevel=1" in choice.config["spark.driver.extraJavaOptions"])

    monkeypatch.setattr(runner, "open_session", start)
    monkeypatch.setattr(runner, "import_ahead", lambda: None)  # it would go on after the test
    if waiting == "much":
        monkeypatch.setattr(runner, "_SHORT_BYTES", 100)
    made = pipeline(tmp_path, "any", "drop")
    land(tmp_path / "in_any", 20, seed=1)
    options = RunOptions(max_events_per_batch=5 if waiting == "batches" else None)
    with DagsterInstance.ephemeral() as instance, pytest.raises(Started, match=str(waiting == "little")):
        go(made, instance, options)


def test_of_this_machine_spark_listens_on_the_loopback_address_asks_for_a_secret_and_has_no_ui() -> None:
    for master in (None, "local", "local[3]"):
        here = session_config(master)
        assert (here["spark.driver.host"], here["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
        assert (here["spark.authenticate"], here["spark.ui.enabled"]) == ("true", "false")
    wanted = session_config(ui=True)
    assert (wanted["spark.ui.enabled"], wanted["spark.ui.killEnabled"]) == ("true", "false")


def test_a_cluster_is_asked_for_a_secret_and_has_no_ui_unless_its_own_settings_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    defaults = tmp_path / "spark-defaults.conf"
    silent = session_config("spark://far:7077")
    assert (silent["spark.authenticate"], silent["spark.ui.enabled"]) == ("true", "false")
    with pytest.raises(TidemarkError, match="The cluster spark://far:7077 has no secret"):
        open_session(choose_spark(settings(tmp_path, "spark://far:7077")))
    check_secret(session_config("yarn"))  # it is given one for each application
    defaults.write_text("# ours\nspark.authenticate=true\nspark.authenticate.secret   s3 = cret\n")
    check_secret(session_config("spark://far:7077"))
    defaults.write_text("spark.authenticate false\nspark.ui.enabled true\n")
    said = session_config("spark://far:7077")
    check_secret(said)
    assert said.keys().isdisjoint({"spark.authenticate", "spark.ui.enabled"})


def test_the_ui_is_of_a_spark_of_this_machine_alone(tmp_path: Path) -> None:
    with serving() as note:
        leave_note(tmp_path, note)
        assert not choose_spark(replace(settings(tmp_path), spark_ui=True)).is_remote
    for named in ("sc://far:15002", "spark://far:7077"):
        with pytest.raises(SpecError, match="--spark-ui shows a Spark of this machine, and TIDEMARK_SPARK names"):
            choose_spark(replace(settings(tmp_path, named), spark_ui=True))


def test_an_empty_variable_names_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, spark in (("", None), ("local[2]", "local[2]")):
        monkeypatch.setenv("TIDEMARK_SPARK", value)
        assert from_environment(Path()).spark == spark


def test_a_named_server_that_does_not_answer_is_an_error_and_no_reason_to_compute_elsewhere(tmp_path: Path) -> None:
    url = f"sc://localhost:{dead_port()}/;token=secret"
    with pytest.raises(TidemarkError, match="No Spark Connect server listens at localhost:") as raised:
        open_session(choose_spark(settings(tmp_path, url)))
    assert "secret" not in str(raised.value)


def test_a_note_is_for_its_owner_and_is_taken_away_by_nobody_else(tmp_path: Path) -> None:
    first, second = ServerNote("sc://localhost:1/;token=a", 1, 3), ServerNote("sc://localhost:2/;token=b", 2, 4)
    leave_note(tmp_path, first)
    assert (tmp_path / "spark_server.json").stat().st_mode & 0o777 == 0o600
    leave_note(tmp_path, second)
    remove_note(tmp_path, first)
    assert find_note(tmp_path) == second
    remove_note(tmp_path, second)
    assert find_note(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"url": "sc://localhost"}', '{"url": "sc://x", "pid": "seven"}', '{"url": "sc://x", "pid": 7}'],
)
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "spark_server.json").write_text(text)
    assert find_note(tmp_path) is None


def test_every_server_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "")
    first, second = (note_of_this_process(15002, new_token(), proof=1) for _ in range(2))
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
    message = "<_InactiveRpcError status = UNAVAILABLE details = failed to connect to all addresses>"
    said = machine_failure(message, "SparkConnectGrpcException")
    assert said is not None
    assert said.found == "The Spark Connect server stopped answering."
    assert "run again" in str(said)
    assert machine_failure("[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found", "AnalysisException") is None


@pytest.mark.parametrize("form", ["spark://{}", "k8s://https://{}", "k8s://{}"])
def test_a_cluster_whose_master_is_not_there_is_refused_at_once(form: str) -> None:
    master = form.format(f"127.0.0.1:{dead_port()}")
    with pytest.raises(MachineError, match=f"No process listens at {master}"):
        check_master(master)


def test_one_master_of_several_is_enough_and_others_are_not_asked() -> None:
    with listening() as port:
        check_master(f"spark://127.0.0.1:{dead_port()},127.0.0.1:{port}")
    for master in ("yarn", "local[2]", ""):
        check_master(master)
    with pytest.raises(MachineError, match="is not an address with a port"):
        check_master("spark://far:seven")


def test_rows_that_went_with_their_executors_are_told_in_words() -> None:
    message = "Job aborted: org.apache.spark.SparkException: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] rdd_7_1"
    said = machine_failure(message, "Py4JJavaError")
    assert said is not None
    assert said.found.startswith("Executors of the cluster went away")
    assert "run again" in str(said)


def test_memory_that_runs_out_is_told_in_a_sentence() -> None:
    message = "Lost task 0.0 (executor driver): java.lang.OutOfMemoryError: Java heap space\n\tat x.Y(Z:1)"
    said = machine_failure(message, "Py4JJavaError")
    assert said is not None
    assert said.found == "Spark ran out of memory: Java heap space."
    message = "[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 64 bytes of memory, got 0."
    said = machine_failure(message, "Py4JJavaError")
    assert said is not None
    assert said.found == "Spark ran out of memory: Unable to acquire 64 bytes of memory, got 0."


def test_serve_refuses_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with listening() as port:
        done = CliRunner().invoke(main, ["serve", "--port", str(port)])
    assert done.exit_code == 1
    assert f"Port {port} is taken" in done.output


def test_serve_refuses_a_second_server_for_one_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with serving() as note:
        leave_note(tmp_path, note)
        done = CliRunner().invoke(main, ["serve", "--port", str(dead_port())])
    assert done.exit_code == 1
    assert f"A server is there already, at {note.address}: process {os.getpid()}" in done.output


def test_serve_refuses_to_stand_before_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_SPARK", "sc://far:15002")
    done = CliRunner().invoke(main, ["serve"])
    assert done.exit_code == 1
    assert "TIDEMARK_SPARK names a server already, at far:15002" in done.output
