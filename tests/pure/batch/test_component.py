"""`tidemark.TidemarkPipelines` in a Dagster project, without Spark: its attributes, translation and scaffold."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox

import tidemark as tm
from tests import ROOT
from tidemark.pipelines.command_line import read_specs
from tidemark.resources.places.place import Place

SPEC = """
name: {name}
sources: [{{name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING"}}]
time: {{timestamp_by: at}}
tags: {{domain: shops}}
windows: [{{name: by_hour, kind: tumbling, size: 1 hour, aggregates: {{events: count(*)}}}}]
"""
pytestmark = [  # of Dagster about itself, as it loads components
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
]
STAGES = ("raw_events", "ordered_events", "window_results", "dead_letters", "batches")
TABLES = (*STAGES, "windows/by_hour")
TYPE = "tidemark.TidemarkPipelines"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DefsFolderSandbox]:
    """Return a project with a component in `pipelines`, two specs and a home of Dagster."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    monkeypatch.chdir(tmp_path)
    with create_defs_folder_sandbox() as sandbox:
        specs = sandbox.defs_folder_path / "pipelines" / "specs"
        specs.mkdir(parents=True)
        for name in ("shop", "bank"):
            (specs / f"{name}.yaml").write_text(SPEC.format(name=name))
        yield sandbox


Loaded = tuple[tm.TidemarkPipelines, dg.Definitions]


def load(project: DefsFolderSandbox, attributes: Mapping[str, Any], **more: object) -> Loaded:
    folder = project.defs_folder_path / "pipelines"
    (folder / "defs.yaml").write_text(yaml.safe_dump({"type": TYPE, "attributes": {**attributes}, **more}))
    return loaded(project, folder)


def loaded(project: DefsFolderSandbox, folder: Path) -> Loaded:
    with project.build_component_tree() as tree:
        in_python = folder / "component.py"
        component = tree.load_component(in_python if in_python.exists() else folder, tm.TidemarkPipelines)
        made = tree.build_defs()
    dg.Definitions.validate_loadable(made)
    return component, made


def specs_of(made: dg.Definitions) -> dict[str, dg.AssetSpec]:
    """Return the assets of pipelines: those upstream of them stay as they are."""
    specs = (spec for spec in made.resolve_all_asset_specs() if spec.group_name != "sources")
    return {spec.key.to_user_string(): spec for spec in specs}


def test_without_a_translation_the_component_makes_what_tm_definitions_makes(project: DefsFolderSandbox) -> None:
    component, made = load(project, {"specs": "specs"})
    plain = specs_of(tm.definitions(project.defs_folder_path / "pipelines" / "specs"))
    found = specs_of(made)
    assert found.keys() == plain.keys() == {f"{name}/{table}" for name in ("shop", "bank") for table in TABLES}
    for name, spec in plain.items():
        assert (found[name].deps, found[name].group_name, found[name].kinds) == (
            spec.deps,
            spec.group_name,
            spec.kinds,
        )
    jobs = {"shop_live", "shop_maintain", "shop_audit", "shop_rebuild", "bank_rejudge", "bank_ask"}
    assert {job.name for job in made.jobs or []} >= jobs
    assert component.asset_key("shop", "windows/by_hour") == tm.asset_key("shop", "windows/by_hour")


def test_a_translation_changes_all_that_the_catalog_shows_and_keys_hold_for_deps_checks_and_commands(
    project: DefsFolderSandbox,
) -> None:
    translation = {
        "key_prefix": ["lake", "prod"],
        "group_name": "lake_{{ pipeline }}",
        "owners": ["team:{{ pipeline }}"],
        "tags": {"table": "{{ table | replace('/', '_') }}"},
        "kinds": ["iceberg"],
        "description": "{{ spec.description[:8] }}",
        "metadata": {"layer": "{{ 'gold' if table.startswith('windows/') else 'silver' }}"},
        "automation_condition": "{{ dg.AutomationCondition.eager() if table.startswith('windows/') else none }}",
    }
    component, made = load(project, {"specs": ["specs"], "translation": translation})
    found = specs_of(made)
    assert found.keys() == {f"lake/prod/{name}/{table}" for name in ("shop", "bank") for table in TABLES}
    window = found["lake/prod/shop/windows/by_hour"]
    assert (window.group_name, window.owners, window.kinds) == ("lake_shop", ["team:shop"], {"iceberg"})
    assert {name: window.tags[name] for name in ("table", "domain")} == {
        "table": "windows_by_hour",
        "domain": "shops",
    }
    assert (window.description, window.metadata["layer"]) == ("Final re", "gold")
    assert [bool(spec.automation_condition) for spec in (window, found["lake/prod/shop/batches"])] == [True, False]
    upstream = ("window_results", "batches")
    assert {dep.asset_key for dep in window.deps} == {
        dg.AssetKey(["lake", "prod", "shop", name]) for name in upstream
    }
    checks = made.resolve_asset_graph().asset_check_keys
    assert {check.asset_key.path[0] for check in checks} == {"lake"}
    assert component.asset_key("shop", "windows/by_hour") == window.key
    assert tm.asset_key("shop", "windows/by_hour", key_prefix=["lake", "prod"]) == window.key

    [file] = read_specs([project.defs_folder_path / "pipelines" / "specs" / "shop.yaml"], ())
    assert file.asset_keys == {table: ("lake", "prod", "shop", *table.split("/")) for table in TABLES}
    load(project, {"specs": "specs"})
    [file] = read_specs([file.path], ())
    assert file.asset_keys == {}, "the code location shows the default keys again"


@pytest.mark.parametrize(
    ("translation", "found"),
    [
        (
            {"key": "lake/{{ table }}"},
            "`lake/raw_events` belongs to two assets, bank: raw_events and shop: raw_events",
        ),
        ({"key": "all"}, "`all` belongs to two assets, bank: raw_events and bank: ordered_events"),
        ({"partitions_def": {"type": "static", "partition_keys": ["a"]}}, "the translation changes `partitions_def`"),
        ({"skippable": False}, "bank: raw_events: the translation changes `skippable`"),
    ],
)
def test_a_translation_that_runs_could_not_go_by_is_refused(
    project: DefsFolderSandbox, translation: dict[str, object], found: str
) -> None:
    with pytest.raises(ComponentTreeException) as error:
        load(project, {"specs": "specs", "translation": translation})
    assert isinstance(error.value.__cause__, tm.SpecError)
    assert found in str(error.value.__cause__)


def test_upstream_assets_of_a_translation_come_to_those_by_which_a_run_is_ordered(project: DefsFolderSandbox) -> None:
    specs = project.defs_folder_path / "pipelines" / "specs"

    def fed(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(deps=["feed"], key=spec.key.with_prefix("lake"))

    found = specs_of(tm.definitions(specs / "shop.yaml", translate=fed))
    assert {dep.asset_key.to_user_string() for dep in found["lake/shop/dead_letters"].deps} == {
        *("feed", "lake/shop/ordered_events", "lake/shop/window_results")
    }


def test_post_processing_changes_chosen_assets(project: DefsFolderSandbox) -> None:
    post = [{"target": "key:*/windows/*", "attributes": {"group_name": "results", "tags": {"tier": "gold"}}}]
    _, made = load(project, {"specs": "specs"}, post_processing={"assets": post})
    groups = {name: spec.group_name for name, spec in specs_of(made).items()}
    assert groups == {
        f"{name}/{table}": "results" if table == "windows/by_hour" else name
        for name in ("shop", "bank")
        for table in TABLES
    }


def test_a_wrong_spec_is_an_asset_of_the_translation_with_a_check_and_keeps_no_other_from_loading(
    project: DefsFolderSandbox,
) -> None:
    (project.defs_folder_path / "pipelines" / "specs" / "bank.yaml").write_text("name: bank\n")
    component, made = load(project, {"specs": "specs", "translation": {"key_prefix": "lake", "group_name": "lake"}})
    assert {name for name in specs_of(made) if "bank" in name} == {"lake/bank/bank_yaml"}
    assert "lake/shop/batches" in specs_of(made)
    assert component.asset_key("bank", "batches") == dg.AssetKey(["lake", "bank", "batches"]), "for what reads it"
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        [evaluation] = made.resolve_sensor_def("bank_wrong_spec").evaluate_tick(context).asset_events
    assert isinstance(evaluation, dg.AssetCheckEvaluation)
    assert (evaluation.asset_key.to_user_string(), evaluation.passed) == ("lake/bank/bank_yaml", False)

    groups = dict.fromkeys(TABLES, "lake")
    translation = {"group_name": f"{{{{ {groups}[table] }}}}"}  # which knows no file
    _, made = load(project, {"specs": "specs", "translation": translation})
    assert specs_of(made)["bank/bank_yaml"].group_name == "bank"
    assert specs_of(made)["shop/batches"].group_name == "lake"


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (("shops", "batches"), "The component has no pipeline `shops`"),
        (("shop", "windows/by_huor"), "The component has no table `windows/by_huor`"),
        (("shop", "batch"), "No pipeline shows a table `batch`"),
    ],
)
def test_the_key_of_a_table_that_is_not_there_is_an_error_with_what_is_there(
    project: DefsFolderSandbox, ask: tuple[str, str], found: str
) -> None:
    component, _ = load(project, {"specs": "specs"})
    with pytest.raises(tm.SpecError, match="did you mean") as error:
        component.asset_key(*ask)
    assert found in str(error.value)


def warehouse_of(made: dg.Definitions) -> Place:
    """Return the warehouse that the code location has noted."""
    noted = yaml.safe_load(Path("home/tidemark_warehouses.json").read_text())
    assert made.jobs
    return Path(noted["shop"]["warehouse"])


def test_attributes_are_relative_to_the_file_and_come_from_the_environment(
    project: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = {
        "specs": "{{ env.SPECS }}",
        "warehouse": "{{ env('WAREHOUSE', 'tables') }}",
        "spark": "{{ env.SPARK }}",
    }
    monkeypatch.setenv("SPECS", str(project.defs_folder_path / "pipelines" / "specs"))
    monkeypatch.setenv("SPARK", "local[3]")
    component, made = load(project, template)
    assert component.spark == "local[3]"
    assert warehouse_of(made) == (project.defs_folder_path / "pipelines" / "tables").resolve()
    monkeypatch.setenv("WAREHOUSE", "")
    assert warehouse_of(load(project, template)[1]) == tmp_path / "warehouse", "as if it were not set"
    monkeypatch.setenv("WAREHOUSE", "s3://bucket/tables")
    assert str(warehouse_of(load(project, template)[1])) == "s3:/bucket/tables"
    monkeypatch.delenv("SPECS")
    with pytest.raises(ComponentTreeException) as error:
        load(project, template)
    assert "`specs` is [None]" in str(error.value.__cause__)


@pytest.mark.parametrize("form", ["yaml", "python"])
def test_dg_scaffolds_a_component_with_an_example_that_loads(project: DefsFolderSandbox, form: Any) -> None:
    folder = project.scaffold_component(tm.TidemarkPipelines, "fresh", scaffold_format=form)
    component, made = loaded(project, folder)
    assert {name for name in specs_of(made) if name.startswith("example/windows")} == {
        "example/windows/by_quarter_hour"
    }
    assert Path(str(component.warehouse)) == project.project_root.resolve() / "warehouse"
    assert [len(list(folder.glob(f"{place}/**/*.jsonl"))) for place in ("landing", "later")] == [1, 1]


@pytest.mark.parametrize("form", ["yaml", "python"])
def test_dg_scaffolds_a_component_around_specs_that_are_there(
    project: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    monkeypatch.chdir(project.project_root)
    (project.project_root / "mine").mkdir()
    (project.project_root / "mine" / "till.yaml").write_text(SPEC.format(name="till"))
    folder = project.scaffold_component(tm.TidemarkPipelines, "fresh", {"specs": "mine"}, scaffold_format=form)
    assert len(list(folder.iterdir())) == 1
    assert "till/windows/by_hour" in specs_of(loaded(project, folder)[1])
    with pytest.raises(tm.SpecError, match="there is no such folder"):
        project.scaffold_component(tm.TidemarkPipelines, "other", {"specs": "nowhere"}, scaffold_format=form)


def test_assets_downstream_name_the_keys_of_the_component_as_the_page_shows(project: DefsFolderSandbox) -> None:
    page = (ROOT / "docs" / "how-to" / "use-in-a-dagster-project.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    folder = project.scaffold_component(tm.TidemarkPipelines, "pipelines")
    text = (folder / "defs.yaml").read_text()
    (folder / "defs.yaml").write_text(text.replace("  # translation", "  translation").replace("  #   ", "    "))
    (project.defs_folder_path / "mine.py").write_text(block)
    found = specs_of(loaded(project, folder)[1])
    assert {
        name: [dep.asset_key.to_user_string() for dep in found[name].deps] for name in found if "/" not in name
    } == {
        "warmest_room": ["lake/example/windows/by_quarter_hour"],
        "refused_readings": ["lake/example/dead_letters"],
    }
    assert found.keys() >= {"lake/example/windows/by_quarter_hour", "lake/example/dead_letters"}
