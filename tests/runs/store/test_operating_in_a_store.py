"""A pipeline whose input and tables are in an object store, from day to day: each part by its real entrance.

Here: `tidemark serve`, Dagster's daemon, days by Dagster, changes by hand, the change feed and names in a catalog,
over one server and one warehouse. Not here: whether the tables are right in every case (suites/test_every_store.py).
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from dagster import DagsterInstance
from deltalake import DeltaTable

from tests import ROOT
from tests.feeds import net, rows_at
from tests.processes import daemon, wait_until, warm_spark
from tests.runs.landing import LINES, START, assert_tables_equal_the_oracle, land
from tests.s3 import BUCKET, SECRET, s3_server
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.place import delta_place, place_of
from tidemark.resources.settings import use_dagster_home
from tidemark.resources.workspace import Workspace

REVISED = "windows/revised"
STORE = f"s3://{BUCKET}"
SPEC = (
    f"name: shop\n{LINES.replace('path: in', f'path: {STORE}/in')}"
    """\
time: {timestamp_by: at, unit: millisecond, out_of_orderness: 5 s, out_of_order: keep}
windows:
  - {name: revised, kind: tumbling, size: 1 minute, allowed_lateness: 2 minutes, emit: on_time, history: true,
     change_feed: true, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
catalog: {schema: sales}
partitions: {start: 2026-01-01}
schedule: {on_new_input: 5 s}
"""
)
METASTORE = """\
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir {folder}/managed
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={folder}/metastore;create=true
"""

VIEWS = """\
import json, sys
from tidemark.pipelines.command_line import settings_of
from tidemark.resources.spark.choice import choose_spark, open_session
spark = open_session(choose_spark(settings_of()))
views = {name: f"sales.{name}_committed" for name in sys.argv[1:]}
there = {name: view for name, view in views.items() if spark.catalog.tableExists(view)}
print(json.dumps({name: spark.table(view).count() for name, view in there.items()}))
"""
NAMES = {"raw_events": "raw_events", "windows_revised": REVISED, "history_revised": "history/revised"}
PATIENCE_S = 400


@pytest.mark.long
def test_a_warm_spark_dagster_changes_by_hand_and_names_in_a_catalog_work_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "shop.yaml"
    spec.write_text(SPEC)
    (tmp_path / "spark-defaults.conf").write_text(METASTORE.format(folder=tmp_path))
    warehouse, home = place_of(f"{STORE}/warehouse"), tmp_path / "home"
    with ExitStack() as stack:
        server = stack.enter_context(s3_server(tmp_path))
        places = {"TIDEMARK_WAREHOUSE": str(warehouse), "DAGSTER_HOME": str(home), "SPARK_CONF_DIR": str(tmp_path)}
        for name, value in {**server.environment, **places, "TIDEMARK_SPECS": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        use_dagster_home(home)
        stack.enter_context(DagsterInstance.get())  # before the daemon: only one may make its databases
        stack.enter_context(warm_spark(home, tmp_path))
        stack.enter_context(daemon(home, tmp_path, warehouse))
        workspace = Workspace(read_spec(spec), warehouse)
        lake = workspace.lake

        upload(tmp_path, 120, seed=1)
        wait_until_processed(workspace, 120, tmp_path)
        assert "computing with the warm Spark of `tidemark serve`" in (tmp_path / "serve.log").read_text()
        wait_until(lambda: views_show_the_commit(workspace), tmp_path / "daemon.log", PATIENCE_S)

        committed = lake.version(REVISED)
        DeltaTable(**delta_place(lake.path(REVISED))).delete("k = 'a'")
        found = said(1, "tidemark", "changes", spec)
        assert f"{REVISED}: version {committed + 1}, DELETE" in found
        assert "taken back" in said(0, "tidemark", "changes", spec, "--take-back", "wrong table")
        assert "views of them as of batch 2" in said(0, "tidemark", "register", spec)
        assert views_show_the_commit(workspace)

        upload(tmp_path, 60, seed=2, later=timedelta(minutes=3))
        wait_until_processed(workspace, 180, tmp_path)
        assert_tables_equal_the_oracle(warehouse, workspace.spec)
        kept = rows_at(lake.path(REVISED), last_version(workspace))
        module = ("-m", "tidemark.pipelines.definitions", "--select", f'key:"shop/{REVISED}"')
        said(0, "dagster", "asset", "materialize", *module, "--partition", "2026-01-01")  # the day that has results
        assert workspace.batches.history("backfill"), "it computed the days anew"
        assert rows_at(lake.path(REVISED), last_version(workspace)) == kept
        assert net(lake.path(REVISED), 0, last_version(workspace)) == kept, "the feed tells each row"
        assert views_show_the_commit(workspace)

        assert " tables, now " in said(0, "tidemark", "maintain", spec, "--retain", "1h")
        assert f"{STORE}/warehouse/shop" in said(0, "tidemark", "status", spec)
    for log in tmp_path.glob("*.log"):
        assert SECRET not in log.read_text(), log


def upload(folder: Path, records: int, seed: int, later: timedelta = timedelta()) -> None:
    """Puts generated files into the folder of the store that the pipeline reads."""
    land(folder / f"in{seed}", records, seed, files=1, prefix=f"n{seed}_", start=START + later)
    for file in (folder / f"in{seed}").iterdir():
        place_of(f"{STORE}/in/{file.name}").write_bytes(file.read_bytes())


def wait_until_processed(workspace: Workspace, records: int, folder: Path) -> None:
    def is_processed() -> bool:
        return (
            workspace.exists and workspace.progress.processed_end() == records and workspace.batches.pending() is None
        )

    wait_until(is_processed, folder / "daemon.log", PATIENCE_S)


def last_version(workspace: Workspace) -> int:
    return workspace.batches.base_versions([REVISED])[REVISED]


def views_show_the_commit(workspace: Workspace) -> bool:
    """Return whether SQL on the warm Spark finds as many rows under the names as the last commit has."""
    versions = workspace.batches.base_versions([*NAMES.values()])
    in_commit = {name: workspace.lake.row_count(table, versions[table]) for name, table in NAMES.items()}
    lines = said(0, "python", "-W", "ignore", "-c", VIEWS, *NAMES).splitlines()
    return bool(json.loads(lines[-1]) == in_commit)


def said(code: int, program: str, *words: object) -> str:
    """Return what a program of this environment says, which ends so."""
    command = [str(Path(sys.executable).parent / program), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == code, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout
