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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests import ROOT
from tests.pure.report.shop import SPEC, WINDOWS, Shop
from tidemark.pipelines.cli import main

PATIENCE_S = 120.0
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


@pytest.mark.long
def test_a_real_prometheus_answers_every_query_of_the_board_and_takes_the_rules(tmp_path: Path) -> None:
    prometheus, promtool = program("prometheus"), program("promtool")
    (tmp_path / "in").mkdir()
    made = Shop.with_log(tmp_path, 10, SPEC + WINDOWS)
    made.process(ordered=6, held=2, refused=[{"reason": "early"}, {}])
    rules, board = ROOT / "docs" / "prometheus-alerts.yaml", json.loads((ROOT / "docs" / "grafana.json").read_text())
    subprocess.run([promtool, "check", "rules", str(rules)], check=True, capture_output=True)
    file = tmp_path / "shop.prom"
    wrote = CliRunner().invoke(
        main, ["metrics", str(tmp_path / "shop.yaml"), "--warehouse", str(tmp_path / "warehouse"), "--to", str(file)]
    )
    assert wrote.exit_code == 0, wrote.output
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=file.read_bytes(), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

    metrics, spark, port = free_port(), free_port(), free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=rules, port=metrics))
    here = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TIDEMARK_SPECS": str(tmp_path),
        "TIDEMARK_WAREHOUSE": str(tmp_path / "warehouse"),
        "DAGSTER_HOME": str(tmp_path / "home"),
    }
    serve = [
        sys.executable,
        "-m",
        "tidemark.pipelines.cli",
        "serve",
        "--port",
        str(spark),
        "--metrics-port",
        str(metrics),
    ]
    scrapes = [
        prometheus,
        f"--config.file={config}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
    ]
    with ExitStack() as stack:
        said = tmp_path / "said.txt"
        log = stack.enter_context(said.open("wb"))
        stack.enter_context(started(serve, env=here, cwd=tmp_path, stderr=log))
        stack.enter_context(started(scrapes, stderr=subprocess.DEVNULL))
        until_scraped(port)
        [target] = asked(port, "targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        empty = {}
        for panel in board["panels"]:
            for one in panel["targets"]:
                query = one["expr"].replace("$__rate_interval", "1m").replace("$pipeline", ".*")
                if not asked(port, "query", query=query)["result"]:
                    empty[panel["title"]] = query
        assert empty == {}
        values = asked(port, "label/pipeline/values", **{"match[]": "tidemark_up"})
        assert values == ["shop"], "what the variable of the board offers"
        kinds = asked(port, "metadata")
        assert kinds["tidemark_records"][0]["type"] == "counter"
        assert kinds["tidemark_table_bytes"][0]["unit"] == "bytes"
        end = time.monotonic() + PATIENCE_S
        while (
            len(
                taken := [
                    one for group in asked(port, "rules")["groups"] for one in group["rules"] if one["health"] == "ok"
                ]
            )
            < 7
        ):
            assert time.monotonic() < end, asked(port, "rules")
            time.sleep(0.5)
        wanted = {
            one["alert"]: one for group in yaml.safe_load(rules.read_text())["groups"] for one in group["rules"]
        }
        assert {one["name"] for one in taken} == wanted.keys()
        states = {one["name"]: one["state"] for one in taken}
        assert states["TidemarkWatermarkBehind"] == "pending", "its tables are of January"
        assert states["TidemarkPipelineDown"] == "inactive"
        while "warming up" not in said.read_text():  # stopped while it starts, Java would stay
            assert time.monotonic() < end + PATIENCE_S, said.read_text()
            time.sleep(0.5)
