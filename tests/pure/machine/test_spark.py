"""Spark of this machine and others, without starting any: which computes, how it is found, what it needs."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance
from pyspark.sql.connect.plan import CachedRemoteRelation

from tests import ROOT
from tests.runs.landing import land
from tests.runs.running import go, pipeline
from tidemark.pipelines.cli import main
from tidemark.pipelines.running import runner
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.machine import machine_failure
from tidemark.resources.scratch import new_scratch
from tidemark.resources.settings import Settings, from_environment
from tidemark.resources.spark import choice as spark_choice
from tidemark.resources.spark import server
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.spark.client import release_in_a_thread
from tidemark.resources.spark.delta_jars import known_jars, on_class_path, remember_jars
from tidemark.resources.spark.network import check_master, check_secret
from tidemark.resources.spark.session import (
    SERVED_SETTINGS,
    session_config,
    with_little_memory,
    with_one_compiler,
    without_delta,
)
from tidemark.timeops.computing.session import JAVA_MEANING, is_utc
from tidemark.timeops.errors import MachineError, SpecError, TidemarkError

NO_UI = {"spark.authenticate": "true", "spark.ui.enabled": "false"}


@contextmanager
def listening() -> Iterator[int]:
    """Yield a port at which a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as program:
        port: int = program.getsockname()[1]
        yield port


@contextmanager
def serving(*, is_alive: bool = True) -> Iterator[server.ServerNote]:
    """Yield the note of a server, or of a process whose Spark has died, and both of its ports."""
    with listening() as port, server.proving("secret", lambda: is_alive) as proof:
        yield note_of(port, proof)


def note_of(port: int, proof: int) -> server.ServerNote:
    return server.ServerNote(f"sc://localhost:{port}/;token=secret", os.getpid(), proof)


def dead_port() -> int:
    with listening() as port:
        return port


@contextmanager
def stranger(heard: list[bytes], answer: bytes = b"") -> Iterator[int]:
    """Yield a port at which a program listens that keeps what it hears, and says one thing or nothing."""

    class Listen(BaseRequestHandler):
        def handle(self) -> None:
            while part := self.request.recv(4_096):
                heard.append(part)
                with suppress(OSError):
                    self.request.sendall(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Listen) as program:
        program.daemon_threads = True
        Thread(target=program.serve_forever, daemon=True).start()
        yield program.server_address[1]
        program.shutdown()


def settings(home: Path, spark: str | None = None) -> Settings:
    return Settings(home / "warehouse", home, home, spark)


def chosen_beside(note: server.ServerNote, home: Path) -> SparkChoice:
    """Return the Spark of a run that finds a note."""
    server.leave_note(home, note)
    return choose_spark(settings(home))


def test_without_a_note_a_run_computes_in_its_own_process(tmp_path: Path) -> None:
    choice = choose_spark(settings(tmp_path))
    assert not choice.is_remote
    assert choice.config == session_config()
    assert choice.sentence == "Spark in this process"


def test_a_server_that_left_a_note_and_answers_is_taken(tmp_path: Path) -> None:
    with serving() as note:
        choice = chosen_beside(note, tmp_path)
    assert choice.config["spark.remote"] == note.url
    assert SERVED_SETTINGS.items() <= choice.config.items()
    assert "secret" not in choice.sentence


def test_a_server_that_has_opened_a_bucket_in_another_way_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(address: str, key: str = "key", bucket: str = "s3://landing") -> SparkChoice:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"not-for-all-{key}")
        return choose_spark(settings(tmp_path), [f"{bucket}/in/*.csv"])

    with serving() as note:
        server.leave_note(tmp_path, note)
        assert choose("http://one:1").is_remote
        assert choose("http://one:1").is_remote
        other = choose("http://two:2")
        assert not other.is_remote
        assert "has opened s3://landing at another address or for another account" in other.sentence
        assert not choose("http://one:1", key="another").is_remote
        assert choose("http://two:2", bucket="s3://other").is_remote
        assert choose("http://one:1").is_remote
    with serving() as next_one:
        server.leave_note(tmp_path, next_one)
        assert choose("http://two:2").is_remote, "a new server has opened nothing"
    assert not any("not-for-all" in path.read_text() for path in tmp_path.iterdir() if path.is_file())


def test_a_server_that_no_longer_answers_or_whose_spark_has_died_is_left_aside_and_told(tmp_path: Path) -> None:
    with serving(is_alive=False) as note_of_dead_spark:
        for note in (note_of(dead_port(), dead_port()), note_of_dead_spark):
            choice = chosen_beside(note, tmp_path)
            assert not choice.is_remote
            assert "does not answer" in choice.sentence
            assert "secret" not in choice.sentence


def test_a_stranger_at_the_ports_of_a_stale_note_is_told_apart_within_seconds_and_learns_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_ANSWER_PATIENCE_S", 0.3)
    heard: list[bytes] = []
    with (
        stranger(heard) as silent,
        stranger(heard, answer=b"x" * 32) as liar,
        server.proving("other", lambda: True) as next_one,
    ):
        for proof in (silent, liar, next_one):
            began = time.monotonic()
            assert not chosen_beside(note_of(silent, proof), tmp_path).is_remote
            assert time.monotonic() - began < 5
    assert heard
    assert not any(b"secret" in one for one in heard)


def test_a_named_server_that_is_no_spark_is_told_within_seconds_and_learns_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_choice, "_PATIENCE_S", 1.0)
    heard: list[bytes] = []
    with stranger(heard) as port, pytest.raises(TidemarkError, match=r"at localhost:.* is not a Spark Connect"):
        open_session(choose_spark(settings(tmp_path, f"sc://localhost:{port}/;token=secret")))
    assert heard
    assert not any(b"secret" in one for one in heard)


def test_the_spark_that_the_environment_names_goes_before_a_note(tmp_path: Path) -> None:
    with listening() as port:
        server.leave_note(tmp_path, note_of(port, port))
        named = choose_spark(settings(tmp_path, "spark://far:7077"))
        remote = choose_spark(settings(tmp_path, "sc://far:15002"))
    assert named.config["spark.master"] == "spark://far:7077"
    assert remote.config["spark.remote"] == "sc://far:15002"


def test_of_a_cluster_nothing_is_set_that_its_own_settings_should_say() -> None:
    here, cluster = session_config("local[3]"), session_config("spark://far:7077")
    assert here["spark.master"] == "local[3]"
    assert set(cluster) - set(here) == {"spark.executor.extraJavaOptions"}
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


def test_every_start_of_java_fixes_its_locale_after_all_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"-Duser.language=en", "-Duser.extensions=", "-Duser.language.format=en"} <= set(JAVA_MEANING.split())
    starts = [session_config(), session_config("local[3]", ui=True), session_config(small=True)]
    others = (with_one_compiler, with_little_memory, without_delta)
    for config in [*starts, *(settings_for(start) for settings_for in others for start in starts)]:
        assert JAVA_MEANING in config["spark.driver.extraJavaOptions"]
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.extraJavaOptions -Duser.language=tr -Xss4m\n")
    cluster = session_config("spark://far:7077")
    assert JAVA_MEANING in cluster["spark.driver.extraJavaOptions"]
    assert cluster["spark.executor.extraJavaOptions"] == f"-Duser.language=tr -Xss4m {JAVA_MEANING}"


def test_a_command_without_tables_starts_without_delta_and_ends_before_java_would_optimize(tmp_path: Path) -> None:
    choice = choose_spark(settings(tmp_path), tables=False)
    assert "delta" not in " ".join([value for name, value in choice.config.items() if "Options" not in name])
    java = choice.config["spark.driver.extraJavaOptions"].split()
    assert {"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"} <= set(java)
    assert "-XX:+UseParallelGC" not in java, "Java takes one collector"
    assert SERVED_SETTINGS.items() <= choice.config.items(), "an expression means the same"
    for named in ("spark://far:7077", "sc://far:15002"):
        far = settings(tmp_path, named)
        assert choose_spark(far, tables=False) == choose_spark(far)


def test_a_process_next_to_others_has_one_collector_and_the_heap_that_it_needs(tmp_path: Path) -> None:
    choice = choose_spark(settings(tmp_path))
    java = choice.with_little_memory().config["spark.driver.extraJavaOptions"].split()
    assert {"-XX:+UseSerialGC", "-XX:MaxHeapFreeRatio=25"} <= set(java)
    assert "-XX:+UseParallelGC" not in java, "Java takes one collector"
    assert [option for option in java if option.startswith("-Xms")][-1] == "-Xms176m", "of several it takes the last"
    heaps = {each.config["spark.driver.memory"] for each in (choice, choice.with_little_memory())}
    assert len(heaps) == 1, "a query that needs more has as much as in any other process"
    for named in ("spark://far:7077", "sc://far:15002"):
        far = choose_spark(settings(tmp_path, named))
        assert far.with_little_memory() == far


@pytest.mark.parametrize("waiting", ["little", "much", "batches"])
def test_a_run_over_little_input_ends_before_javas_second_compiler_would_pay_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    class Started(Exception):  # noqa: N818 - no error
        pass

    def start(choice: SparkChoice, _instance: object, _tell: object) -> None:
        raise Started("-XX:TieredStopAtLevel=1" in choice.config["spark.driver.extraJavaOptions"])

    monkeypatch.setattr(runner, "_start_spark", start)
    if waiting == "much":
        monkeypatch.setattr(runner, "_SHORT_BYTES", 100)
    made = pipeline(tmp_path, "any", "drop")
    land(tmp_path / "in_any", 20, seed=1)
    options = RunOptions(max_events_per_batch=5 if waiting == "batches" else None)
    with DagsterInstance.ephemeral() as instance, pytest.raises(Started, match=str(waiting == "little")):
        go(made, instance, options)


def test_of_this_machine_spark_listens_on_the_loopback_address_asks_for_a_secret_and_has_no_ui() -> None:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for master in (None, "local", "local[3]"):
        assert (loopback | NO_UI).items() <= session_config(master).items()
    wanted = {"spark.ui.enabled": "true", "spark.ui.killEnabled": "false"}
    assert wanted.items() <= session_config(ui=True).items()


def test_a_cluster_is_asked_for_a_secret_and_has_no_ui_unless_its_own_settings_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    defaults = tmp_path / "spark-defaults.conf"
    assert NO_UI.items() <= session_config("spark://far:7077").items()
    with pytest.raises(TidemarkError, match="The cluster spark://far:7077 has no secret"):
        open_session(choose_spark(settings(tmp_path, "spark://far:7077")))
    check_secret(session_config("yarn"))  # it is given one for each application
    defaults.write_text("# ours\nspark.authenticate=true\nspark.authenticate.secret   s3 = cret\n")
    check_secret(session_config("spark://far:7077"))
    defaults.write_text("spark.authenticate false\nspark.ui.enabled true\n")
    said = session_config("spark://far:7077")
    check_secret(said)
    assert said.keys().isdisjoint(NO_UI)


def test_the_ui_is_of_a_spark_of_this_machine_alone(tmp_path: Path) -> None:
    with serving() as note:
        server.leave_note(tmp_path, note)
        assert not choose_spark(replace(settings(tmp_path), spark_ui=True)).is_remote
    for named in ("sc://far:15002", "spark://far:7077"):
        with pytest.raises(SpecError, match="--spark-ui shows a Spark of this machine, and TIDEMARK_SPARK names"):
            choose_spark(replace(settings(tmp_path, named), spark_ui=True))


@pytest.mark.parametrize(("value", "named"), [("", None), ("local[2]", "local[2]")])
def test_an_empty_variable_names_no_spark(monkeypatch: pytest.MonkeyPatch, value: str, named: str | None) -> None:
    monkeypatch.setenv("TIDEMARK_SPARK", value)
    assert from_environment(Path()).spark == named


def test_a_named_server_that_does_not_answer_is_an_error_and_no_reason_to_compute_elsewhere(tmp_path: Path) -> None:
    url = f"sc://localhost:{dead_port()}/;token=secret"
    with pytest.raises(TidemarkError, match="No Spark Connect server listens at localhost:") as raised:
        open_session(choose_spark(settings(tmp_path, url)))
    assert "secret" not in str(raised.value)


def test_a_note_is_for_its_owner_and_is_taken_away_by_nobody_else(tmp_path: Path) -> None:
    first, second = note_of(1, 3), note_of(2, 4)
    server.leave_note(tmp_path, first)
    assert (tmp_path / "spark_server.json").stat().st_mode & 0o777 == 0o600
    server.leave_note(tmp_path, second)
    server.remove_note(tmp_path, first)
    assert server.find_note(tmp_path) == second
    server.remove_note(tmp_path, second)
    assert server.find_note(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"url": "sc://localhost"}', '{"url": "sc://x", "pid": "seven"}', '{"url": "sc://x", "pid": 7}'],
)
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "spark_server.json").write_text(text)
    assert server.find_note(tmp_path) is None


def test_every_server_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "")
    first, second = (server.note_of_this_process(15002, server.new_token(), proof=1) for _ in range(2))
    assert first.url != second.url
    assert second.url.endswith(os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"])
    assert first.address == "localhost:15002"


@pytest.mark.parametrize(
    ("url", "address"), [("sc://far", "far:15002"), ("sc://far:7/;user_id=me", "far:7"), ("sc://[::1]:7", "[::1]:7")]
)
def test_an_address_is_host_and_port(url: str, address: str) -> None:
    assert server.server_address(url) == address


def test_a_host_that_does_not_exist_does_not_answer() -> None:
    assert not server.is_answering("sc://no-such-host.invalid:15002")


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


@pytest.mark.parametrize(
    ("kind", "message", "found", "remedy"),
    [
        (
            "SparkConnectGrpcException",
            "<_InactiveRpcError status = UNAVAILABLE details = failed to connect to all addresses>",
            "The Spark Connect server stopped answering.",
            "run again",
        ),
        (
            "Py4JJavaError",
            "Job aborted: org.apache.spark.SparkException: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] rdd_7_1",
            "Executors of the cluster were lost with rows of the batch that no other executor had.",
            "run again",
        ),
        (
            "Py4JJavaError",
            "Lost task 0.0 (executor driver): java.lang.OutOfMemoryError: Java heap space\n\tat x.Y(Z:1)",
            "Spark ran out of memory: Java heap space.",
            "",
        ),
        (
            "Py4JJavaError",
            "[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 64 bytes of memory, got 0.",
            "Spark ran out of memory: Unable to acquire 64 bytes of memory, got 0.",
            "",
        ),
        (
            "OperationalError",
            '(sqlite3.OperationalError) disk I/O error\n[SQL: PRAGMA main.table_info("alembic_version")]',
            "Dagster's database in DAGSTER_HOME can be neither read nor written: disk I/O error.",
            "free some space and run again",
        ),
    ],
    ids=["a server that went away", "rows that went with executors", "memory of Java", "memory of Spark", "SQLite"],
)
def test_what_fails_in_the_machine_is_told_in_words(kind: str, message: str, found: str, remedy: str) -> None:
    said = machine_failure(message, kind)
    assert said is not None
    assert said.found == found
    assert remedy in str(said)


def test_what_fails_in_the_work_is_no_failure_of_the_machine() -> None:
    assert machine_failure("[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found", "AnalysisException") is None


def refused_by_serve(*options: str) -> str:
    done = CliRunner().invoke(main, ["serve", *options])
    assert done.exit_code == 1
    return done.output


def test_serve_refuses_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with listening() as port:
        assert f"Port {port} is taken" in refused_by_serve("--port", str(port))


def test_serve_refuses_where_there_is_a_server_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with serving() as note:
        server.leave_note(tmp_path, note)
        said = refused_by_serve("--port", str(dead_port()))
        assert f"A server is already running at {note.address}: process {os.getpid()}" in said
    monkeypatch.setenv("TIDEMARK_SPARK", "sc://far:15002")
    assert "TIDEMARK_SPARK already names a server, at far:15002" in refused_by_serve()


@dataclass
class Client:
    """Where PySpark looks first when it lets a checkpoint go. It is closed, so that nothing is sent."""

    freed_at_once: list[bool] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        freed: list[bool] = []

        class Probe:
            def __del__(self) -> None:
                freed.append(True)

        Probe()
        self.freed_at_once.append(bool(freed))
        return True


def test_checkpoints_are_let_go_where_python_frees_at_once_however_deep_they_lie() -> None:
    release_in_a_thread()
    client, deepest = Client(), 120  # more than twice what Python frees at a stretch
    for depth in range(deepest):
        held: Any = CachedRemoteRelation(str(depth), cast("Any", SimpleNamespace(client=client)))
        for _ in range(depth):
            held = [held]
        del held
    deadline = time.monotonic() + 10
    while len(client.freed_at_once) < deepest and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.freed_at_once == [True] * deepest


SCRATCH = """
import sys
from tidemark.resources.scratch import new_scratch
folder = new_scratch()
(folder / "blockmgr").mkdir()
print(folder, flush=True)
sys.stdin.read()
"""


@contextmanager
def another(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a process that has a folder for what Spark keeps while it works, until its input ends."""
    command, known = [sys.executable, "-c", SCRATCH], {**os.environ, "TMPDIR": str(parent)}
    with subprocess.Popen(
        command, cwd=ROOT, env=known, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        yield started, Path(started.stdout.readline().strip())


def test_the_folder_is_its_owners_alone_and_goes_with_its_process_also_with_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "spark-of-somebody-else").mkdir()
    with another(tmp_path) as (ends, first), another(tmp_path) as (killed, second):
        assert first.parent == tmp_path
        assert first.stat().st_mode & 0o777 == 0o700
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (second / "blockmgr").is_dir(), "nobody was there to remove it"
        own = new_scratch()
        assert (first / "blockmgr").is_dir(), "its process lives"
        assert not second.exists()
        ends.communicate("")
        assert ends.returncode == 0
        assert not first.exists()
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {own.name, "spark-of-somebody-else"}


PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
CLASS_PATH = "SPARK_DIST_CLASSPATH"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def jars(tmp_path: Path, cache: Path) -> list[str]:
    """Return the jars that a start of Spark has resolved, beside a cache of nothing yet."""
    paths = [tmp_path / "resolved" / f"io.delta_delta-{name}-4.4.0.jar" for name in ("spark_4.2_2.13", "storage")]
    paths[0].parent.mkdir()
    for path in paths:
        path.touch()
    return [str(path) for path in paths]


def test_a_start_knows_the_jars_of_an_earlier_one_but_not_those_of_the_user(tmp_path: Path, jars: list[str]) -> None:
    assert known_jars(PACKAGE) == []
    remember_jars(PACKAGE, ",".join(f"file://{one}" for one in (f"{tmp_path}/mine.jar", *jars)))
    assert known_jars(PACKAGE) == jars
    assert known_jars("io.delta:delta-spark_4.2_2.13:4.5.0") == [], "another version is resolved anew"


def test_jars_that_are_gone_or_a_damaged_note_are_resolved_anew(cache: Path, jars: list[str]) -> None:
    remember_jars(PACKAGE, ",".join(jars))
    Path(jars[1]).unlink()
    assert known_jars(PACKAGE) == []
    Path(jars[1]).touch()
    assert known_jars(PACKAGE) == jars
    (note,) = (cache / "tidemark").iterdir()
    for text in ("[", "7", ""):
        note.write_text(text)
        assert known_jars(PACKAGE) == []


def test_without_a_cache_no_jars_are_remembered_and_nothing_fails(cache: Path, jars: list[str]) -> None:
    cache.write_text("a file where the folder should be")
    remember_jars(PACKAGE, ",".join(jars))
    assert known_jars(PACKAGE) == []


@pytest.mark.parametrize("before", [None, "/hadoop/conf"])
def test_jars_come_after_what_is_on_the_class_path(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLASS_PATH, raising=False)
    if before:
        monkeypatch.setenv(CLASS_PATH, before)
    with on_class_path(["/a.jar", "/b.jar"]):
        assert os.environ[CLASS_PATH] == os.pathsep.join([*([before] if before else []), "/a.jar", "/b.jar"])
    assert os.environ.get(CLASS_PATH) == before
    with on_class_path([]):
        assert os.environ.get(CLASS_PATH) == before


@pytest.mark.parametrize(
    ("zones", "are_utc"),
    [
        ("UTC Etc/UTC Zulu Etc/Universal UCT GMT Etc/GMT-0 Greenwich UT Z +00:00 UTC+0", True),
        ("Europe/London Africa/Abidjan Etc/GMT+1 +01:00 UTC-00:30 nonsense ../UTC", False),
    ],
    ids=["of UTC", "of others"],
)
def test_utc_has_many_names_but_no_zone_that_was_ever_at_another_offset_is_it(zones: str, are_utc: bool) -> None:
    assert {zone: is_utc(zone) for zone in zones.split()} == dict.fromkeys(zones.split(), are_utc)
    assert not is_utc("")
