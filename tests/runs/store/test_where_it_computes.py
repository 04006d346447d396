"""One pipeline, wherever its queries run: a warm server, a cluster, this process. Real processes, one Delta lake."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.processes import PATIENCE_S, free_port, standalone_cluster, warm_spark
from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land
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

    def ends(self, word: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidemark.pipelines.cli", word, str(self.spec), *words],
            cwd=ROOT,
            env={**os.environ, "DAGSTER_HOME": str(self.home), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def run(self, *options: str, **environment: str) -> str:
        """Runs all that waits; what it said."""
        done = self.ends("run", "--warehouse", str(self.warehouse), *options, **environment)
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
    with warm_spark(pipeline.home, pipeline.folder, port=port) as server:
        note = find_note(pipeline.home)
        assert note is not None, log.read_text()
        assert (pipeline.home / "spark_server.json").stat().st_mode & 0o077 == 0, "it holds the token"
        land(pipeline.folder / "in", 300, seed=5)
        said = pipeline.run("--max-events-per-batch", "200")
        assert f"the warm Spark of `tidemark serve` at localhost:{port}" in said
        pipeline.assert_is_the_oracles()
        (pipeline.folder / "anywhere.cases.yaml").write_text(CASES)
        cases = pipeline.ends("test", str(pipeline.folder / "anywhere.cases.yaml"))
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
