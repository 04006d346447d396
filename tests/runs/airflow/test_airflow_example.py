"""`examples/airflow`, by the Airflow that it names, in an environment of its own: scheduler, tasks and web server."""

import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import tidemark as tm
from tests import ROOT
from tests.processes import free_port, process, wait_until
from tidemark.pipelines.examples.files import QUAKES, lay_out_example

EXAMPLE = ROOT / "examples" / "airflow"
DAYS = ["2026-01-03", "2026-01-04"]
PATIENCE_S = 600  # a task starts a Python of Airflow, one of Tidemark, and Spark


@dataclass(frozen=True)
class Airflow:
    """The interface of a web server of Airflow at work."""

    port: int
    log: Path

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer to a request, as its administrator."""
        with urlopen(f"http://127.0.0.1:{self.port}/auth/token") as answer:
            token = json.load(answer)["access_token"]
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        given = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}/api/v2/{path}"
        with urlopen(Request(url, given, headers, method=method)) as answer:
            return json.load(answer)

    def has_dags(self) -> bool:
        """Return whether the file of the example has been read."""
        with suppress(OSError):
            return {dag["dag_id"] for dag in self.ask("GET", "dags")["dags"]} == {"quakes_live", "quakes_days"}
        return False

    def reported(self, kind: str) -> list[tuple[str, int]]:
        """Return day and batch of each event of the asset that runs of a kind have reported, in order."""
        events = self.ask("GET", "assets/events?order_by=timestamp")["asset_events"]
        of_kind = [event for event in events if event["source_run_id"].startswith(kind)]
        return sorted((event["partition_key"], event["extra"]["batch"]) for event in of_kind)

    def states(self, kind: str) -> dict[str, str]:
        """Return the states of the tasks of a day's run of a kind."""
        tasks = self.ask("GET", "dags/quakes_days/dagRuns/~/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in tasks if task["dag_run_id"].startswith(kind)}


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[Airflow]:
    """Return an Airflow with the example, whose pipeline has not run yet."""
    environment, home, port = tmp_path / "environment", tmp_path / "airflow", free_port()
    venv.create(environment, with_pip=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", EXAMPLE / "requirements.txt"]
    subprocess.run([str(word) for word in pip], check=True, timeout=PATIENCE_S)
    variables = {
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": EXAMPLE,
        "AIRFLOW__CORE__LOAD_EXAMPLES": False,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": 5,
        "TIDEMARK_PYTHON": sys.executable,
        "TIDEMARK_SPEC": tmp_path / "quakes.yaml",
        "TIDEMARK_WAREHOUSE": tmp_path / "warehouse",
        "DAGSTER_HOME": tmp_path / "dagster",
    }
    lay_out_example(tmp_path, QUAKES)
    log = tmp_path / "airflow.log"
    texts = {name: str(value) for name, value in variables.items()}
    with process([str(environment / "bin" / "airflow"), "standalone"], texts, log):
        found = Airflow(port, log)
        wait_until(found.has_dags, log, PATIENCE_S)
        yield found


@pytest.mark.long
def test_airflow_runs_the_pipeline_waits_for_a_day_computes_a_day_again_and_reports_the_days_that_changed(
    airflow: Airflow, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    airflow.ask("PATCH", "dags/quakes_live", {"is_paused": False})
    wait_until(lambda: bool(airflow.reported("scheduled")), airflow.log, PATIENCE_S)
    rows = tm.table(warehouse, "quakes", "windows/by_hour").to_table()
    found = {start.date().isoformat() for start in rows["window_start"].to_pylist()}
    last = max(rows["_batch_id"].to_pylist())
    assert found == set(DAYS)
    assert airflow.reported("scheduled") == [(day, last) for day in DAYS]

    airflow.ask("PATCH", "dags/quakes_days", {"is_paused": False})
    first = f"{DAYS[0]}T00:00:00Z"
    airflow.ask("POST", "backfills", {"dag_id": "quakes_days", "from_date": first, "to_date": first})
    ended = {"compute": "success", "report": "success", "complete": "success", "use": "success"}
    wait_until(lambda: airflow.states("backfill") == ended, airflow.log, PATIENCE_S)
    assert airflow.reported("backfill") == [(DAYS[0], last + 1)]
    again = tm.table(warehouse, "quakes", "windows/by_hour").to_table()
    order, columns = [(name, "ascending") for name in ("window_start", "net")], set(rows.column_names) - {"_batch_id"}
    assert again.sort_by(order).select(sorted(columns)) == rows.sort_by(order).select(sorted(columns))

    wait_until(lambda: airflow.states("scheduled").get("complete") == "up_for_reschedule", airflow.log, PATIENCE_S)
    assert airflow.states("scheduled")["use"] is None, "yesterday may get rows as long as no later event has come"
