"""A wrong spec among good ones, and two spec files of one name: the good ones go on, and a person sees why."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetSelection,
    DagsterInstance,
    Definitions,
    build_sensor_context,
    define_asset_job,
)
from pyspark.sql import SparkSession

from tests.runs.landing import land
from tests.runs.running import pipeline
from tidemark.assets.log.spec_changes import note_of, other_file
from tidemark.pipelines import definitions
from tidemark.pipelines.cli import main
from tidemark.pipelines.definitions import CHECK
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError

GOOD = """
name: good
sources:
  - {name: lines, kind: files, path: "in/*.csv", format: csv, schema: "at STRING, amount INT"}
time: {timestamp_by: at}
"""


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the environment names."""
    monkeypatch.setenv("TIDEMARK_SPECS", str(tmp_path / "specs"))
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    return tmp_path / "specs"


def with_files(specs: Path) -> None:
    """Write a good spec with its cases, a wrong one, one that is no YAML, and two of one name."""
    specs.mkdir()
    (specs / "good.yaml").write_text(GOOD)
    (specs / "good.cases.yaml").write_text("cases: []\n")
    (specs / "link.yaml").symlink_to(specs / "good.yaml")
    (specs / "wrong.yaml").write_text(GOOD.replace("name: good", "name: shop") + "tyme: {}\n")
    (specs / "no-yaml.yaml").write_text("name: [")
    for name in ("a", "b"):
        (specs / f"{name}.yaml").write_text(GOOD.replace("name: good", "name: twin"))


def located() -> Definitions:
    return definitions.defs()


def groups(made: Definitions) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key in made.resolve_asset_graph().get_all_asset_keys():
        group = made.resolve_asset_graph().get(key).group_name
        found.setdefault(group, set()).add("/".join(key.path))
    return found


Cursors = dict[str, str | None]


def told(made: Definitions, before: Cursors | None = None) -> tuple[dict[str, str], Cursors]:
    """Return what each pipeline's sensor says of failed checks in a tick, by asset, and the sensors' cursors."""
    said: dict[str, str] = {}
    cursors: Cursors = {}
    for name in [one.name for one in made.sensors or [] if one.name.endswith("_wrong_spec")]:
        cursor = (before or {}).get(name)
        with DagsterInstance.ephemeral() as instance, build_sensor_context(instance, cursor=cursor) as context:
            tick = made.resolve_sensor_def(name).evaluate_tick(context)
        checks = [event for event in tick.asset_events if isinstance(event, AssetCheckEvaluation)]
        said |= {"/".join(one.asset_key.path): f"{one.passed}: {one.description}" for one in checks}
        cursors[name] = tick.cursor
    return said, cursors


def test_good_specs_are_loaded_and_wrong_ones_are_assets_whose_check_fails_with_the_message(specs: Path) -> None:
    with_files(specs)
    made = located()
    Definitions.validate_loadable(made)
    assert {group: keys for group, keys in groups(made).items() if group not in ("good", "sources")} == {
        "shop": {"shop/wrong_yaml"},
        "no_yaml": {"no_yaml/no_yaml_yaml"},
        "twin": {"twin/a_yaml", "twin/b_yaml"},
    }
    assert "good/raw_events" in groups(made)["good"]

    said, cursor = told(made)
    assert "wrong.yaml, line 6, tyme: unknown key `tyme`" in said["shop/wrong_yaml"]
    assert "no-yaml.yaml, line 1: the YAML cannot be read" in said["no_yaml/no_yaml_yaml"]
    for name in ("twin/a_yaml", "twin/b_yaml"):
        assert f"{specs}/a.yaml and {specs}/b.yaml are both called twin" in said[name]
    assert all(text.startswith("False: ") for text in said.values())
    assert told(made, cursor)[0] == {}, "each is told once"

    (specs / "a.yaml").unlink()
    said, _ = told(made, cursor)
    assert said.keys() == {"twin/a_yaml", "twin/b_yaml"}
    assert "True: The spec is valid now: reload the code location" in said["twin/b_yaml"]
    assert "twin/raw_events" in groups(located())["twin"]


def test_a_check_of_a_wrong_spec_can_be_run_and_fails_with_the_message(specs: Path) -> None:
    with_files(specs)
    only = define_asset_job("only", selection=AssetSelection.checks_for_assets(AssetKey(["shop", "wrong_yaml"])))
    job = Definitions.merge(located(), Definitions(jobs=[only])).resolve_job_def("only")
    with DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, raise_on_error=False)
    [check] = done.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == (CHECK, False)
    assert "unknown key `tyme`" in (check.description or "")


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_that_is_not_there_or_holds_no_spec_is_no_success(specs: Path, made: bool) -> None:
    if made:
        specs.mkdir()
        (specs / "good.yml").write_text(GOOD)
    found = located()
    assert groups(found) == {"specs": {"specs/specs"}}
    said = told(found)[0]["specs/specs"]
    assert (f"{specs} holds no `*.yaml`" if made else f"{specs}: there is no such folder") in said


def test_two_files_of_one_pipeline_are_refused_on_one_command_line_and_both_are_named(
    spark: SparkSession, specs: Path
) -> None:
    with_files(specs)
    for command in ("run", "report", "validate"):
        done = CliRunner().invoke(main, [command, str(specs / "a.yaml"), str(specs / "b.yaml")])
        assert done.exit_code == 2, done.output
        assert f"{specs}/a.yaml and {specs}/b.yaml are both called twin" in done.output


def test_a_second_file_of_one_pipeline_is_refused_as_long_as_the_first_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    project, other, copied = (tmp_path / name for name in ("project", "other", "copied"))
    project.mkdir()
    file, _ = pipeline(project, "shop", "keep")
    land(project / "in_shop", 5, seed=1, files=1)
    shutil.copytree(project, other)
    settings = Settings(project / "warehouse", project, tmp_path / "home")
    second = other / file.path.name

    def run(path: Path) -> int:
        with DagsterInstance.ephemeral() as instance:
            return run_pipeline(read_spec(path), settings, RunOptions(), instance=instance).batches

    assert run(file.path) == 1
    with pytest.raises(SpecError, match="are both called shop") as refused:
        run(second)
    assert f"{second} and {file.path} " in str(refused.value)
    (tmp_path / "link").symlink_to(project)
    assert run(tmp_path / "link" / file.path.name) == 0, "the same file by another name"

    shutil.copytree(project, copied)
    moved = Workspace(read_spec(copied / file.path.name), copied / "warehouse")
    assert other_file(moved) is None, "a project and its tables may be copied"
    file.path.rename(project / "shop.old")
    assert other_file(Workspace(read_spec(second), settings.warehouse)) is None, "it takes the place of the first"


def test_what_is_noted_is_the_name_that_the_operator_gave_so_that_a_link_may_lead_to_the_next_release(
    tmp_path: Path,
) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "good.yaml").write_text(GOOD)
    (tmp_path / "current").symlink_to(tmp_path / "release")
    workspace = Workspace(read_spec(tmp_path / "current" / "good.yaml"), tmp_path / "warehouse")
    assert note_of(workspace) == "../../current/good.yaml"
