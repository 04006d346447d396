"""The component in a project as `create-dagster` makes it: `dg` lists, scaffolds, checks and serves it.

The project is written here as create-dagster 1.13 writes it, and Tidemark is installed next to it from its wheel. The
rest of the environment is that of the tests.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen
from zipfile import ZipFile

import pytest

import tidemark as tm
from tests import ROOT
from tests.processes import free_port, process, wait_until
from tests.wheels import build_wheel, copy_checkout

PROJECT = {
    "pyproject.toml": """\
[project]
name = "my_lake"
requires-python = ">=3.10,<3.15"
version = "0.1.0"
dependencies = ["dagster"]

[dependency-groups]
dev = ["dagster-dg-cli", "dagster-webserver"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "my_lake"
registry_modules = ["my_lake.components.*"]
""",
    "src/my_lake/__init__.py": "",
    "src/my_lake/defs/__init__.py": "",
    "src/my_lake/definitions.py": """\
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
}
DEFS = """\
type: tidemark.TidemarkPipelines

attributes:
  specs: specs
  warehouse: "{{ context.project_root }}/warehouse"
  translation: {key_prefix: lake, group_name: "{{ pipeline }}_lake"}
"""
STAGES = ("raw_events", "ordered_events", "window_results", "dead_letters", "batches")
PATIENCE_S = 900  # each step of a run by hand starts a Spark
TABLES = (*STAGES, "windows/by_quarter_hour")
ROWS = {"raw_events": 14, "dead_letters": 2, "windows/by_quarter_hour": 9}
LOCATION = 'repositoryLocationName: "my-lake"'
SETTINGS = re.findall(
    r"^```yaml\n(concurrency:.*?)^```$",
    (ROOT / "docs" / "how-to" / "use-in-a-dagster-project.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


class Project:
    """The project, its environment, and the webserver of its `dg dev`."""

    def __init__(self, folder: Path) -> None:
        self.root, self.port, self.log = folder / "my-lake", free_port(), folder / "dev.log"
        for name, text in PROJECT.items():
            file = self.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        copy_checkout(folder / "checkout")
        with ZipFile(build_wheel(folder / "checkout", folder / "wheels")) as wheel:
            wheel.extractall(folder / "installed")
        home = folder / "home"
        home.mkdir()
        [settings] = SETTINGS
        (home / "dagster.yaml").write_text(settings)
        paths = f"{folder / 'installed'}{os.pathsep}{self.root / 'src'}"
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {"PYTHONPATH": paths, "DAGSTER_HOME": str(home), "PATH": programs, "COLUMNS": "200"}
        self.pipelines = self.root / "src" / "my_lake" / "defs" / "pipelines"

    def dg(self, *words: str) -> str:
        """Return what `dg` prints in the project."""
        environment = {**os.environ, **self.environment}
        environment.pop("TIDEMARK_WAREHOUSE", None)
        done = subprocess.run(
            ["dg", *words], cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def asked(self, query: str) -> Any:
        sent = Request(f"http://127.0.0.1:{self.port}/graphql", json.dumps({"query": query}).encode())
        sent.add_header("Content-Type", "application/json")
        with urlopen(sent) as answer:
            return json.load(answer)["data"]

    def runs(self) -> Counter[tuple[str, str]]:
        """Return how many runs of a job ended so; while some are at work, or none is there yet, nothing."""
        try:
            runs = self.asked("{runsOrError {... on Runs {results {jobName status}}}}")["runsOrError"]["results"]
        except URLError:
            return Counter()
        ended = Counter((run["jobName"], run["status"]) for run in runs)
        assert not any(status in ("FAILURE", "CANCELED") for _, status in ended), self.log.read_text()
        return ended if {status for _, status in ended} == {"SUCCESS"} else Counter()

    def assets(self) -> dict[str, str]:
        """Return the group of each asset that the UI shows."""
        nodes = self.asked("{assetNodes {groupName assetKey {path}}}")["assetNodes"]
        return {"/".join(node["assetKey"]["path"]): node["groupName"] for node in nodes}


@pytest.mark.long
def test_dg_lists_scaffolds_checks_and_serves_pipelines_and_all_are_materialized_by_hand(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert "tidemark.TidemarkPipelines" in project.dg("list", "components")
    project.dg("scaffold", "defs", "tidemark.TidemarkPipelines", "pipelines")
    project.dg("check", "defs")
    (project.pipelines / "defs.yaml").write_text(DEFS)
    project.dg("check", "yaml")
    listed = {asset["asset_key"] for asset in json.loads(project.dg("list", "defs", "--json"))["assets"]}
    landing = f"file{project.pipelines}/landing/example"
    assert listed == {landing, *(f"lake/example/{table}" for table in TABLES)}

    command = ["bash", "-c", f"cd {project.root} && exec dg dev -p {project.port}"]
    with process(command, project.environment, project.log):
        wait_until(lambda: project.runs() == {("example_live", "SUCCESS"): 1}, project.log, PATIENCE_S)

        spec = project.pipelines / "specs" / "example.yaml"
        by_hand = re.sub(r"^schedule:.*$", "", spec.read_text(), flags=re.MULTILINE)
        spec.write_text(by_hand)
        (spec.parent / "more.yaml").write_text(by_hand.replace("name: example ", "name: more "))
        project.asked(f"mutation {{reloadRepositoryLocation({LOCATION}) {{__typename}}}}")
        groups = {f"lake/{name}/{table}": f"{name}_lake" for name in ("example", "more") for table in TABLES}
        assert project.assets() == {landing: "sources", **groups}

        later = project.pipelines / "later" / "second.jsonl"
        later.rename(project.pipelines / "landing" / "example" / "second.jsonl")
        keys = ", ".join(f"{{path: {json.dumps(['lake', 'example', *table.split('/')])}}}" for table in TABLES)
        chosen = f'{{assetSelection: [{keys}], partitionNames: ["2026-01-05"]}}'
        launched = project.asked(f"mutation {{launchPartitionBackfill(backfillParams: {chosen}) {{__typename}}}}")
        assert launched["launchPartitionBackfill"]["__typename"] == "LaunchBackfillSuccess"
        # The batch writes the day itself, so the backfill of it and of the stages is done with one run.
        done = {("example_live", "SUCCESS"): 1, ("__ASSET_JOB", "SUCCESS"): 1}
        wait_until(lambda: project.runs() == done, project.log, PATIENCE_S)

        days = "{assetNodes {assetKey {path} partitionStats {numMaterialized}}}"
        stats = {
            tuple(node["assetKey"]["path"]): node["partitionStats"] for node in project.asked(days)["assetNodes"]
        }
        assert stats["lake", "example", "windows", "by_quarter_hour"] == {"numMaterialized": 1}
    counted = {name: tm.table(project.root / "warehouse", "example", name).count_rows() for name in ROWS}
    assert counted == ROWS
