"""A real Prometheus scrapes `tidemark serve --metrics-port`, and answers every query of the board and the alerts.

It needs Prometheus (on Debian the package `prometheus`, which `.ci/run` installs where it is root).
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests import ROOT
from tests.pure.report.shop import SPEC, WINDOWS, Shop
from tidemark.pipelines.cli import main

PATIENCE_S = 120.0
RULES = ROOT / "docs" / "prometheus-alerts.yaml"
_HOW = "install it (on Debian the package `prometheus`; `.ci/run` does it where it is root)"
_CONFIG = """
global: {{scrape_interval: 6s, evaluation_interval: 1s, scrape_timeout: 6s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: tidemark
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def program(name: str) -> str:
    """Return the path of a program. Without it the test is skipped, and fails in CI: there every test has to run."""
    if found := shutil.which(name):
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"There is no {name}: {_HOW}.")
    pytest.skip(f"there is no {name}: {_HOW}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def started(command: list[str], **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **given)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)


def asked(port: int, what: str, **given: str) -> Any:
    query = f"?{urllib.parse.urlencode(given)}" if given else ""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}{query}", timeout=10) as answer:
        return json.load(answer)["data"]


def until_scraped(port: int) -> None:
    """Wait until Prometheus has two samples, so that it can say how much they differ."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if [
                one
                for one in asked(port, "query", query="count_over_time(tidemark_up[1h])")["result"]
                if float(one["value"][1]) > 1
            ]:
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.5)
    pytest.fail(f"nothing was scraped: {asked(port, 'targets')}")


@dataclass(frozen=True)
class Scraped:
    """A Prometheus that has taken the numbers of a server twice: where it answers, and the board that asks it."""

    port: int
    board: dict[str, Any]

    def asked(self, what: str, **given: str) -> Any:
        return asked(self.port, what, **given)


def shop_in(folder: Path) -> None:
    """Write a pipeline with some records of January, ordered, held and refused."""
    (folder / "in").mkdir()
    made = Shop.with_log(folder, 10, SPEC + WINDOWS)
    made.process(ordered=6, held=2, refused=[{"reason": "early"}, {}])


@contextmanager
def served(folder: Path, port: int) -> Iterator[None]:
    """Serve the numbers of the pipelines of a folder at a port."""
    here = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TIDEMARK_SPECS": str(folder),
        "TIDEMARK_WAREHOUSE": str(folder / "warehouse"),
        "DAGSTER_HOME": str(folder / "home"),
    }
    words = ["serve", "--port", str(free_port()), "--metrics-port", str(port)]
    said = folder / "said.txt"
    with (
        said.open("wb") as log,
        started([sys.executable, "-m", "tidemark.pipelines.cli", *words], env=here, cwd=folder, stderr=log),
    ):
        yield
        end = time.monotonic() + PATIENCE_S
        while "warming up" not in said.read_text():  # stopped while it starts, Java would stay
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.5)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Yield a Prometheus with the rules and the board of the documentation, over a server of one pipeline."""
    prometheus, folder = program("prometheus"), tmp_path_factory.mktemp("scraped")
    shop_in(folder)
    metrics, port = free_port(), free_port()
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=RULES, port=metrics))
    scrapes = [
        prometheus,
        f"--config.file={config}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with served(folder, metrics), started(scrapes, stderr=subprocess.DEVNULL):
        until_scraped(port)
        yield Scraped(port, json.loads((ROOT / "docs" / "grafana.json").read_text()))


@pytest.mark.long
def test_promtool_finds_nothing_wrong_with_the_rules_and_with_what_metrics_writes(tmp_path: Path) -> None:
    promtool = program("promtool")
    subprocess.run([promtool, "check", "rules", str(RULES)], check=True, capture_output=True)
    shop_in(tmp_path)
    file = tmp_path / "shop.prom"
    words = ["metrics", str(tmp_path / "shop.yaml"), "--warehouse", str(tmp_path / "warehouse"), "--to", str(file)]
    wrote = CliRunner().invoke(main, words)
    assert wrote.exit_code == 0, wrote.output
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=file.read_bytes(), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.long
def test_a_real_prometheus_answers_every_query_of_the_board(scraped: Scraped) -> None:
    [target] = scraped.asked("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    empty = {}
    for panel in scraped.board["panels"]:
        for one in panel["targets"]:
            query = one["expr"].replace("$__rate_interval", "1m").replace("$pipeline", ".*")
            if not scraped.asked("query", query=query)["result"]:
                empty[panel["title"]] = query
    assert empty == {}
    values = scraped.asked("label/pipeline/values", **{"match[]": "tidemark_up"})
    assert values == ["shop"], "what the variable of the board offers"


@pytest.mark.long
def test_a_real_prometheus_knows_what_is_a_counter_and_the_unit_of_a_number(scraped: Scraped) -> None:
    kinds = scraped.asked("metadata")
    assert kinds["tidemark_records"][0]["type"] == "counter"
    assert kinds["tidemark_table_bytes"][0]["unit"] == "bytes"


@pytest.mark.long
def test_a_real_prometheus_evaluates_every_rule_and_warns_of_results_that_are_old(scraped: Scraped) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    wanted = {one["alert"] for group in groups for one in group["rules"]}

    def evaluated() -> dict[str, str]:
        """Return the state of each rule that Prometheus has evaluated without an error."""
        rules = [one for group in scraped.asked("rules")["groups"] for one in group["rules"]]
        return {one["name"]: one["state"] for one in rules if one["health"] == "ok"}

    end = time.monotonic() + PATIENCE_S
    while len(states := evaluated()) < 7:
        assert time.monotonic() < end, scraped.asked("rules")
        time.sleep(0.5)
    assert states.keys() == wanted
    assert states["TidemarkWatermarkBehind"] == "pending", "its tables are of January"
    assert states["TidemarkPipelineDown"] == "inactive"
