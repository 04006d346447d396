"""`tm.definitions` in another Dagster project: with packages, resources and an executor of its own."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import dagster as dg
import pytest

import tidemark as tm
from tests.wheels import build_wheel, copy_checkout

QUAKES = """\
name: quakes
sources:
  - {name: usgs, kind: files, path: "../landing/*.csv", format: csv, settle: 0 s, schema: "time STRING, mag DOUBLE"}
time: {timestamp_by: time, end_of_input: flush}
windows:
  - {name: by_hour, kind: tumbling, size: 1 hour, aggregates: {events: count(*)}}
"""
ASSETS = """\
import dagster as dg
import tidemark as tm
from deltalake import DeltaTable

from resources import WAREHOUSE, Desk


@dg.asset(deps=[dg.AssetKey(["quakes", "windows", "by_hour"])], group_name="quakes")
def busiest_hour(spark: Desk) -> dg.MaterializeResult:
    folder, version = tm.consistent(WAREHOUSE, "quakes")["windows/by_hour"]
    rows = DeltaTable(folder, version=version).to_pyarrow_table().to_pylist()
    return dg.MaterializeResult(metadata={"events": max(row["events"] for row in rows), "desk": spark.name})
"""
RESOURCES = """\
from pathlib import Path

import dagster as dg

HERE = Path(__file__).parents[1]
WAREHOUSE = HERE / "warehouse"


class Desk(dg.ConfigurableResource):
    name: str
"""
DEFINITIONS = """\
import dagster as dg
import tidemark as tm

import assets
import resources

mine = dg.Definitions(
    assets=[assets.busiest_hour],
    resources={"spark": resources.Desk(name="front")},
    jobs=[dg.define_asset_job("mine", selection=dg.AssetSelection.assets("busiest_hour"))],
    executor=dg.multiprocess_executor,
)
defs = dg.Definitions.merge(mine, tm.definitions(specs=resources.HERE / "specs", warehouse=resources.WAREHOUSE))
"""
RUN = """\
import json
import sys

import tidemark as tm

light = {"pyspark", "dagster"}.isdisjoint(sys.modules)

import dagster as dg
from pyspark.sql import SparkSession

import assets
import resources
from definitions import defs

dg.Definitions.validate_loadable(defs)
with dg.DagsterInstance.ephemeral() as instance:
    done = [defs.resolve_job_def(name).execute_in_process(instance=instance) for name in ("quakes_live", "mine")]
mine = done[1].asset_materializations_for_node("busiest_hour")[0].metadata
spark = SparkSession.getActiveSession()
rows = tm.read(spark, resources.WAREHOUSE, "quakes", "windows/by_hour").orderBy("window_start").collect()
told = {
    "light": light,
    "files": [module.__file__ for module in (tm, assets, resources)],
    "success": [one.success for one in done],
    "busiest_hour_in_live": bool(done[0].asset_materializations_for_node("quakes__raw_events"))
    and any(event.asset_key == dg.AssetKey("busiest_hour") for event in done[0].get_asset_materialization_events()),
    "mine": [mine["events"].value, mine["desk"].value],
    "rows": [[str(row["window_start"]), row["events"]] for row in rows],
    "letters": tm.read(spark, resources.WAREHOUSE, "quakes", "dead_letters").count(),
}
print("told:" + json.dumps(told))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a Dagster project with packages called as folders of this checkout are."""
    texts = {"assets/__init__.py": ASSETS, "resources/__init__.py": RESOURCES, "definitions.py": DEFINITIONS}
    texts |= {"run.py": RUN, "specs/quakes.yaml": QUAKES}
    day = [("12:10:00", 4.1), ("12:20:00", 2.0), ("13:05:00", 3.0), ("12:00:00", 1.0)]
    texts["landing/day.csv"] = "".join(f"2026-01-01T{time}Z,{mag}\n" for time, mag in day)
    for name, text in texts.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


@pytest.mark.long
def test_a_project_with_packages_of_the_same_names_runs_its_own_asset_and_a_pipeline(
    tmp_path: Path, project: Path
) -> None:
    copy_checkout(tmp_path / "checkout")
    installed = tmp_path / "installed"
    with ZipFile(build_wheel(tmp_path / "checkout", tmp_path / "wheels")) as wheel:
        wheel.extractall(installed)
    # -S leaves out the .pth file of the editable installation, which would put this checkout on the path.
    paths = [installed, sysconfig.get_path("purelib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "DAGSTER_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-S", "run.py"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("told:")]
    assert json.loads(line.removeprefix("told:")) == {
        "light": True,
        "files": [
            f"{installed}/tidemark/__init__.py",
            f"{project}/assets/__init__.py",
            f"{project}/resources/__init__.py",
        ],
        "success": [True, True],
        "busiest_hour_in_live": False,
        "mine": [2, "front"],
        "rows": [["2026-01-01 12:00:00", 2], ["2026-01-01 13:00:00", 1]],
        "letters": 1,
    }


def test_definitions_of_several_places_merge_although_specs_of_each_are_wrong(tmp_path: Path, project: Path) -> None:
    for name in ("shop", "bank"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "good.yaml").write_text(QUAKES.replace("name: quakes", f"name: {name}", 1))
        (tmp_path / name / "wrong.yaml").write_text(f"name: {name}_wrong\n")
    mine = dg.Definitions(resources={"spark": object()}, executor=dg.multiprocess_executor)
    shop = tm.definitions(tmp_path / "shop", tmp_path / "warehouse")
    bank = tm.definitions([tmp_path / "bank", str(project / "specs" / "quakes.yaml")], tmp_path / "other_warehouse")
    merged = dg.Definitions.merge(mine, shop, bank)
    dg.Definitions.validate_loadable(merged)
    assert {job.name for job in merged.jobs or []} == {
        f"{name}_{end}"
        for name in ("shop", "bank", "quakes")
        for end in ("live", "audit", "maintain", "rebuild", "rejudge", "replay", "ask")
    }
    assert {sensor.name for sensor in merged.sensors or []} == {"shop_wrong_wrong_spec", "bank_wrong_wrong_spec"}
    assert {key.path[0] for key in merged.resolve_asset_graph().get_all_asset_keys()} == {
        *("shop", "bank", "quakes", "shop_wrong", "bank_wrong", "file")
    }
    assert set(merged.resources or {}) == {"spark", "tidemark_batch", "tidemark_spark"}


def test_a_file_that_is_not_there_is_a_failed_check_and_no_place_at_all_an_error(tmp_path: Path) -> None:
    made = tm.definitions([tmp_path / "gone.yaml"], tmp_path / "warehouse")
    assert made.resolve_asset_graph().get_all_asset_keys() == {dg.AssetKey(["gone", "gone_yaml"])}
    with pytest.raises(tm.SpecError, match="`specs` names no place"):
        tm.definitions([])
