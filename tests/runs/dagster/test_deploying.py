"""`docs/how-to/deploy.md`, pasted line by line into a shell, and the example of a new home."""

import os
import re
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from click.testing import CliRunner
from dagster import DagsterInstance
from pyspark.sql import SparkSession

import tidemark as tm
from tests import ROOT
from tests.processes import free_port, process, wait_until
from tests.pure.source.landed import discover
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.spark.session import session_config
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.spec import FilesSource

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
PLACE = "/srv/events"
MANIFEST = ROOT / "examples" / "kubernetes" / "tidemark.yaml"


def pasted(home: Path, port: int) -> str:
    """Return the commands of the page for an environment of its own, with another home and port."""
    text = PAGE.read_text(encoding="utf-8").split("\n## An environment of its own\n")[1].split("\n## ")[0]
    [block] = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert PLACE in block
    lines = block.replace(PLACE, str(home)).splitlines()
    assert lines[-1].startswith("dg dev ")
    last, comment = lines[-1].split(" #", 1)
    return "\n".join([*lines[:-1], f"exec {last} -p {port} #{comment}"])


@pytest.mark.long
def test_the_page_can_be_pasted_line_by_line_and_ends_with_dagster_at_work(tmp_path: Path) -> None:
    home, port, log = tmp_path / "events", free_port(), tmp_path / "shell.log"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with process(["bash", "-exc", pasted(home, port)], {"PATH": path, "DAGSTER_HOME": ""}, log) as shell:
        wait_until(lambda: serves(port) or shell.poll() is not None, log)
        assert shell.poll() is None, log.read_text()
    assert "example: ok" in log.read_text()
    assert "granularity: run" in (home / "dagster" / "dagster.yaml").read_text()


def serves(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/server_info") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_kubernetes_manifest_agrees_with_itself_and_with_this_version() -> None:
    """No Kubernetes is asked: names lead to what they name, variables and versions are those of the code."""
    parts = {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}
    assert {part["metadata"]["namespace"] for part in parts.values()} == {"data"}
    lines = parts["ConfigMap"]["data"]["spark-defaults.conf"].splitlines()
    spark = dict(line.split() for line in lines if not line.startswith("#"))
    assert spark["spark.kubernetes.container.image"] == f"apache/spark:{version('pyspark')}"

    workload, service = parts["StatefulSet"], parts["Service"]
    pod, driver = workload["spec"]["template"], f"{workload['metadata']['name']}-0"
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    assert spark["spark.kubernetes.driver.pod.name"] == driver
    assert spark["spark.driver.host"] == f"{driver}.{service['metadata']['name']}.data.svc"

    [container] = pod["spec"]["containers"]
    known = {variable["name"]: variable["value"] for variable in container["env"]}
    documented = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in documented for name in known if name.startswith("TIDEMARK_"))
    assert session_config(known["TIDEMARK_SPARK"])["spark.master"].startswith("k8s://https://")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert mounts["spark"] == known["SPARK_CONF_DIR"]
    assert volumes["spark"]["configMap"]["name"] == parts["ConfigMap"]["metadata"]["name"]
    shared = "spark.kubernetes.executor.volumes.persistentVolumeClaim.events."
    assert mounts["events"] == spark[f"{shared}mount.path"]
    claims = (volumes["events"]["persistentVolumeClaim"]["claimName"], spark[f"{shared}options.claimName"])
    assert set(claims) == {parts["PersistentVolumeClaim"]["metadata"]["name"]}


@pytest.mark.long
def test_the_example_of_a_new_home_runs_and_shows_a_window_and_a_dead_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    home = tmp_path / "events"
    assert CliRunner().invoke(main, ["init", str(home)], catch_exceptions=False).exit_code == 0
    file = read_spec(home / "specs" / "example.yaml", ["sources[0].settle=0 s"])
    settings = Settings(home / "warehouse", home / "specs", home / "dagster")
    with DagsterInstance.ephemeral() as instance:
        done = run_pipeline(file, settings, RunOptions(), instance=instance)
        assert done.counts["records"] == 10
        assert rows_of_rooms(file, settings) == {"windows/by_quarter_hour": 6, "dead_letters": 1}
        (home / "later" / "second.jsonl").rename(home / "landing" / "example" / "second.jsonl")
        assert run_pipeline(file, settings, RunOptions(), instance=instance).counts["records"] == 4
    assert rows_of_rooms(file, settings) == {"windows/by_quarter_hour": 9, "dead_letters": 2}, "step 4"


def rows_of_rooms(file: SpecFile, settings: Settings) -> dict[str, int]:
    lake, versions = Workspace(file, settings.warehouse).lake, tm.consistent(settings.warehouse, "example")
    names = ("windows/by_quarter_hour", "dead_letters")
    return {name: lake.rows(name, versions[name][1]).num_rows for name in names}


@pytest.mark.long
def test_the_quakes_of_the_readme_have_data_that_show_windows_and_every_way_to_be_refused(folder: Path) -> None:
    for words in (["init", "--example", "quakes", "quakes"], ["run", "quakes/quakes.yaml"]):
        assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    lake = Workspace(read_spec(folder / "quakes" / "quakes.yaml"), folder / "warehouse").lake
    assert lake.rows("windows/by_hour").num_rows == 111
    reasons = Counter(lake.rows("dead_letters")["reason"].to_pylist())
    ways = ("bad_timestamp", "malformed", "no_arrival_time", "no_timestamp")
    assert reasons == {"window_closed": 11, **dict.fromkeys(ways, 1)}


def test_the_example_of_quakes_is_the_pipeline_of_the_readme_with_its_data(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", "--example", "quakes", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    places = re.findall(r"(\w+)=(\S+)", done.stdout.partition("export ")[2].partition("\n")[0])
    assert [name for name, _ in places] == ["TIDEMARK_SPECS", "TIDEMARK_WAREHOUSE", "DAGSTER_HOME"]
    file = read_spec(tmp_path / "quakes.yaml")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```yaml\n{file.path.read_text(encoding='utf-8')}```" in readme
    for name, place in places:  # its lines make the warehouse that the command names
        assert f"{name}={place.replace(str(tmp_path), '$PWD/quakes')} " in readme
    [source] = file.spec.sources
    assert isinstance(source, FilesSource)
    found = discover(source, file.folder, [], datetime.now(UTC) + timedelta(minutes=1))
    assert (len(found.ready), found.errors) == (2, ())
    assert not (tmp_path / "specs").exists()
    (tmp_path / "quakes.yaml").write_text("name: mine\n")
    assert CliRunner().invoke(main, ["init", "--example", "quakes", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "quakes.yaml").read_text() == "name: mine\n"


def test_a_home_that_is_there_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "mine.yaml").write_text("name: mine\n")
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text("# mine\n")
    done = CliRunner().invoke(main, ["init"], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"init: {tmp_path}/warehouse" in done.output
    assert "dagster.yaml" not in done.output
    assert [path.name for path in (tmp_path / "specs").iterdir()] == ["mine.yaml"]
    assert (tmp_path / "dagster" / "dagster.yaml").read_text() == "# mine\n"


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")
    done = CliRunner().invoke(main, ["init", str(tmp_path / "events")], catch_exceptions=False)
    assert done.exit_code == 1
    assert f"{tmp_path}/events/specs cannot be created: Not a directory" in done.output
