"""One pipeline, wherever its queries run: a warm server, a cluster, this process. Real processes, one Delta lake."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka import PASSWORD, SECURE, Topic, login
from tests.processes import PATIENCE_S, ROOT, free_port, process, standalone_cluster, wait_until
from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land
from tests.runs.running import log_of
from tests.runs.source.test_kafka_secrets import pages_of
from tests.runs.source.test_kafka_sources import events, made, places, written
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.spark.server import find_note

SPEC = (
    f"name: anywhere\n{LINES}"
    """\
time:
  timestamp_by: at
  unit: millisecond
  over: [k]
  out_of_orderness: 5 s
  out_of_order: keep
windows:
  - {name: hops, kind: hopping, size: 1 minute, hop: 30 s, allowed_lateness: 20 s, emit: on_time, revise_every: 5 s,
     group_by: [k], aggregates: {n: count(*), kinds: count(DISTINCT v)}}
  - {name: spells, kind: session, gap: 2 s, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
"""
)


class Pipeline:
    """A pipeline, run by the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spec, self.warehouse = folder, folder / "anywhere.yaml", folder / "warehouse"
        self.home = folder / "home"
        self.spec.write_text(SPEC)

    @property
    def command(self) -> list[str]:
        """Runs all that waits."""
        run = [sys.executable, "-m", "tidemark.pipelines.cli", "run"]
        return [*run, str(self.spec), "--warehouse", str(self.warehouse)]

    @property
    def environment(self) -> dict[str, str]:
        return {"DAGSTER_HOME": str(self.home)}

    def ends(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Return how a run ends."""
        known = {**os.environ, **self.environment, **environment}
        words = [*self.command, *options]
        return subprocess.run(
            words, cwd=ROOT, env=known, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    def run(self, *options: str, **environment: str) -> str:
        """Runs all that waits; what it said."""
        done = self.ends(*options, **environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def assert_is_the_oracles(self, *, flush: bool = False) -> None:
        assert_tables_equal_the_oracle(self.warehouse, read_spec(self.spec).spec, flush=flush)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


CASES = """
cases:
  - name: counted
    records:
      - {at: "2026-01-01T00:00:01Z", got: "2026-01-01T00:00:01Z", k: a, v: 1}
      - {at: "2026-01-01T00:00:02Z", got: "2026-01-01T00:00:02Z", k: a, v: 2}
    end_of_input: flush
    expect: {windows/spells: [{k: a, n: 2, total: 3}]}
"""
ALONE = """
import sys
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tidemark.pipelines.cli import main
for words in (["validate", "anywhere.yaml"], ["test", "anywhere.yaml", "anywhere.cases.yaml"]):
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    print(done.output, done.exit_code)
session = SparkSession.getActiveSession()
print(session.conf.get("spark.sql.extensions", "no extension"), session.conf.get("spark.jars", "no jar"))
"""


@pytest.mark.long
def test_a_spec_is_validated_and_its_cases_run_without_delta_lake(pipeline: Pipeline) -> None:
    (pipeline.folder / "anywhere.cases.yaml").write_text(CASES)
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=pipeline.folder, capture_output=True, text=True, check=False
    )
    assert "anywhere: ok" in done.stdout, done.stderr
    assert "1 of 1 hold" in done.stdout
    assert done.stdout.splitlines()[-1] == "no extension no jar"


@pytest.mark.long
def test_runs_use_a_warm_server_as_long_as_it_answers_and_the_tables_are_the_same(pipeline: Pipeline) -> None:
    log, port = pipeline.folder / "serve.log", free_port()
    command = [sys.executable, "-m", "tidemark.pipelines.cli", "serve", "--port", str(port)]
    with process(command, {"DAGSTER_HOME": str(pipeline.home)}, log) as server:
        wait_until(lambda: "ready" in log.read_text() or server.poll() is not None, log)
        note = find_note(pipeline.home)
        assert note is not None, log.read_text()
        assert (pipeline.home / "spark_server.json").stat().st_mode & 0o077 == 0, "it holds the token"
        land(pipeline.folder / "in", 300, seed=5)
        said = pipeline.run("--max-events-per-batch", "200")
        assert f"the warm Spark of `tidemark serve` at localhost:{port}" in said
        pipeline.assert_is_the_oracles()
        (pipeline.folder / "anywhere.cases.yaml").write_text(CASES)
        words = [*pipeline.command[:3], "test", str(pipeline.spec), str(pipeline.folder / "anywhere.cases.yaml")]
        known = {**os.environ, **pipeline.environment}
        cases = subprocess.run(words, cwd=ROOT, env=known, capture_output=True, text=True, check=False)
        assert "1 of 1 hold" in cases.stdout, cases.stderr
        os.kill(note.pid, signal.SIGTERM)
        assert server.wait(60) == 128 + signal.SIGTERM
        assert "Traceback" not in log.read_text()
    assert find_note(pipeline.home) is None
    land(pipeline.folder / "in", 50, seed=6, prefix="g")
    said = pipeline.run("--end-of-input", "flush")
    assert "Spark in this process" in said
    pipeline.assert_is_the_oracles(flush=True)


@pytest.mark.long
def test_a_standalone_cluster_gives_the_same_tables_by_one_setting(pipeline: Pipeline) -> None:
    with standalone_cluster(pipeline.folder / "cluster") as cluster:
        land(pipeline.folder / "in", 300, seed=7)
        said = pipeline.run("--end-of-input", "flush", **cluster.environment_of_a_driver)
        assert f"Spark on {cluster.master}" in said
        [application] = cluster.says()["completedapps"]
    assert (application["name"], application["cores"]) == ("tidemark", 2)
    pipeline.assert_is_the_oracles(flush=True)


@pytest.mark.long
def test_a_warm_server_reads_kafka_and_its_pages_show_no_password(
    topic: Callable[..., Topic], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    orders = topic(2)
    orders.allow("alice", "READ", "DESCRIBE")
    file, _ = made(tmp_path, "anywhere", orders, f"options: {json.dumps(login(orders.broker))}")
    spec = file.path.read_text().replace(orders.broker.address, orders.broker.address_of(SECURE))
    sent = events(1, 30, partitions=(0, 1))
    orders.write(sent)
    pipeline, log, port = Pipeline(tmp_path), tmp_path / "serve.log", free_port()
    pipeline.spec.write_text(spec)
    command = [sys.executable, "-m", "tidemark.pipelines.cli", "serve", "--port", str(port), "--spark-ui"]
    with process(command, {**pipeline.environment, "TIDEMARK_SPECS": str(tmp_path)}, log) as server:
        wait_until(lambda: "ready" in log.read_text() or server.poll() is not None, log)
        said = pipeline.run()
        [ui] = re.findall(r"http://[\w.:]+", log.read_text())
        pages = list(pages_of(ui))
    assert "the warm Spark of `tidemark serve`" in said
    assert places(log_of(tmp_path, "anywhere")) == written(orders, sent)
    assert any(orders.name in page for page in pages), "the pages show how the topic was asked for"
    assert "battery" in PASSWORD
    assert not any("battery" in page for page in pages)
