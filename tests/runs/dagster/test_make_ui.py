"""`make ui`: webserver and daemon over a folder of specs, what they show of a run, and Ctrl-C."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from tests.processes import free_port, process, wait_until
from tidemark.pipelines.cli import main

RUNS = "{runsOrError {... on Runs {results {status}}}}"
DAYS = "{assetNodes {partitionStats {numPartitions numMaterialized numFailed}}}"
BACKFILL = """mutation {launchPartitionBackfill(backfillParams: {
  assetSelection: [{path: ["quakes", "windows", "by_hour"]}], partitionNames: ["2026-01-03", "2026-01-04"]
}) {__typename}}"""


def is_there(group: int) -> bool:
    """Return whether a process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_the_sensor_runs_input_days_are_filled_and_computed_anew_and_ctrl_c_ends_all(tmp_path: Path) -> None:
    made = CliRunner().invoke(main, ["init", str(tmp_path), "--example", "quakes"], catch_exceptions=False)
    assert made.exit_code == 0
    spec = tmp_path / "quakes.yaml"
    spec.write_text("schedule: {on_new_input: 10 s}\n" + spec.read_text())
    port, log = free_port(), tmp_path / "ui.log"
    places = {"TIDEMARK_SPECS": tmp_path, "TIDEMARK_WAREHOUSE": tmp_path / "wh", "DAGSTER_HOME": tmp_path / "dagster"}
    command = [sys.executable, "-m", "tidemark.pipelines.demos.ui", "--port", str(port)]

    def asked(query: str) -> Any:
        sent = Request(f"http://127.0.0.1:{port}/graphql", json.dumps({"query": query}).encode())
        sent.add_header("Content-Type", "application/json")
        with urlopen(sent) as answer:
            return json.load(answer)["data"]

    def has_run(times: int) -> bool:
        try:
            runs = asked(RUNS)["runsOrError"]["results"]
        except URLError:
            return False
        assert "FAILURE" not in [run["status"] for run in runs], log.read_text()
        return [run["status"] for run in runs] == ["SUCCESS"] * times

    def days() -> list[dict[str, int]]:
        return [one["partitionStats"] for one in asked(DAYS)["assetNodes"] if one["partitionStats"]]

    with process(command, {name: str(place) for name, place in places.items()}, log) as ui:
        wait_until(lambda: has_run(1), log)
        filled = [{"numPartitions": 2, "numMaterialized": 2, "numFailed": 0}]
        assert days() == filled
        assert asked(BACKFILL)["launchPartitionBackfill"]["__typename"] == "LaunchBackfillSuccess"
        wait_until(lambda: has_run(2), log)
        assert days() == filled
        os.killpg(ui.pid, signal.SIGINT)
        assert ui.wait(60) == 0
        wait_until(lambda: not is_there(ui.pid), log, 30)
    said = log.read_text()
    assert "superseded" not in said
    assert "Traceback" not in said
