"""Names in a catalog: a real metastore of Spark's own (Derby), in processes with a Spark of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests import ROOT
from tests.runs.landing import LINES, land
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.delta.lake import Lake

SPEC = (
    f"name: shop\n{LINES}"
    """\
time: {timestamp_by: at, unit: millisecond, out_of_orderness: 5 s, out_of_order: keep}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, allowed_lateness: 2 minutes, emit: on_time, history: true,
     group_by: [k], aggregates: {n: count(*)}}
catalog: {schema: sales}
"""
)
PUBLIC = ("raw_events", "ordered_events", "held_events", "dead_letters", "watermarks", "windows_minutes",
          "history_minutes", "batches")  # fmt: skip
SCRIPT = """\
import json, os, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from click.testing import CliRunner
from tests.runs.landing import land
from tests.runs.store.test_catalog import in_commit
from tidemark.pipelines.cli import main
from tidemark.resources.spark.session import local_session, session_config
from tidemark.resources import catalog

spark = local_session(session_config(small=True))
for step in json.loads(sys.argv[1]):
    if step[0] == "dies between":  # the commit and the views
        catalog._Names._move = lambda *_: os._exit(9)
    elif step[0] == "land":
        land(Path("in"), int(step[1]), seed=int(step[1]), prefix=step[1])
    elif step[0] == "in commit":
        print("SAID", json.dumps(in_commit(Path())))
    elif step[0] == "sql":
        said = [list(row) for row in spark.sql(step[1]).collect()] if step[1:] else []
        print("SAID", json.dumps(said, default=str))
    else:
        done = CliRunner().invoke(main, step)
        print("SAID", json.dumps([done.exit_code, done.output]))
    sys.stdout.flush()
"""


def steps(base: Path, *asked: list[str], settings: Mapping[str, str] | None = None) -> list[Any]:
    """Return what a process with a metastore says to commands and queries, one after the other."""
    conf = base / "conf"
    conf.mkdir(exist_ok=True)
    place = f"jdbc:derby:;databaseName={base}/metastore;create=true"
    given = {"spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": str(base / "managed"),
             "spark.hadoop.javax.jdo.option.ConnectionURL": place, **(settings or {})}  # fmt: skip
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in given.items()))
    environment = {**os.environ, "SPARK_CONF_DIR": str(conf), "TIDEMARK_WAREHOUSE": str(base / "warehouse"),
                   "DAGSTER_HOME": str(base / "home"), "PYTHONPATH": str(ROOT)}  # fmt: skip
    (base / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(asked)],
        cwd=base, env=environment, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    said = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert said, done.stderr
    return said


def sql(text: str) -> list[str]:
    return ["sql", text]


def view(name: str) -> list[str]:
    return sql(f"SELECT count(*), max(_batch_id) FROM sales.{name}_committed")


def shop(base: Path, text: str = SPEC) -> Path:
    path = base / "shop.yaml"
    path.write_text(text)
    return path


def in_commit(base: Path) -> dict[str, int]:
    """Rows of each table as of the last commit, without Spark."""
    lake = Lake(base / "warehouse" / "shop")
    last = BatchLog(lake).last_commit()
    assert last is not None
    names = {"windows_minutes": "windows/minutes", "history_minutes": "history/minutes"}
    found = {name: lake.row_count(names.get(name, name), last.table_versions[names.get(name, name)])
             for name in PUBLIC if name != "batches"}  # fmt: skip
    return found | {"batches": len(BatchLog(lake).history())}


@pytest.mark.long
def test_views_show_the_last_commit_and_a_death_before_they_are_moved_is_healed(tmp_path: Path) -> None:
    shop(tmp_path)
    run, register, dies = ["run", "shop.yaml"], ["register", "shop.yaml"], ["dies between"]
    views = [["in commit"], *map(view, PUBLIC)]
    first, *rows, listed = steps(
        tmp_path, ["land", "120"], run, *views, sql("SHOW TABLES IN sales"), ["land", "60"], dies, run
    )
    assert first[0] == 0, first
    before = shown(rows)
    assert {row[1] for row in listed} == {*PUBLIC, *(f"{name}_committed" for name in PUBLIC)}

    assert in_commit(tmp_path) != before, "it committed, and died"
    stale, healed, again, *rows = steps(
        tmp_path, view("raw_events"), register, register, *views, ["land", "61"], dies, run
    )
    assert stale[0][0] == before["raw_events"], "never a batch in part: the views stay where they were"
    assert healed == again
    assert healed[0] == 0
    assert "8 tables in `spark_catalog`.`sales`, and views of them as of batch" in healed[1]
    before = shown(rows)

    assert in_commit(tmp_path) != before
    backfill = ["backfill", "shop.yaml", "--from", "2026-01-01", "--to", "2026-01-02"]
    ran, changed, *rows = steps(tmp_path, [*run, "--end-of-input", "flush"], backfill, *views)
    assert ran[0] == changed[0] == 0, (ran, changed)
    shown(rows)


def shown(said: Sequence[Any]) -> dict[str, int]:
    """Return how many rows each table has as of the last commit, which each view has to show."""
    committed, *rows = said
    found: dict[str, int] = {name: row[0][0] for name, row in zip(PUBLIC, rows, strict=True)}
    assert found == committed
    return found


@pytest.mark.long
def test_what_stands_against_names_is_one_sentence_and_nothing_is_begun(tmp_path: Path) -> None:
    shop(tmp_path)
    land(tmp_path / "in", 30, seed=1)
    asked = [
        sql("CREATE SCHEMA sales"),
        sql("CREATE TABLE sales.raw_events (n INT) USING parquet"),
        ["run", "shop.yaml"],
        ["run", "shop.yaml", "--set", "catalog.name=nowhere"],
        sql("DROP TABLE sales.raw_events"),
        sql("CREATE VIEW sales.held_events_committed AS SELECT 1 AS one"),
        ["run", "shop.yaml"],
        ["run", "shop.yaml", "--set", "catalog.schema=other"],
    ]
    *_, taken, nowhere, _, _, viewed, other = steps(tmp_path, *asked)
    assert taken[0] == 1
    assert "`spark_catalog`.`sales`.`raw_events` is taken: it is a table of" in taken[1]
    assert nowhere[0] == 1
    assert "There is no catalog `nowhere` in this Spark." in nowhere[1]
    assert viewed[0] == 1
    assert "held_events_committed` is taken: it is a view" in viewed[1]
    assert other[0] == 0, other
    for said in (taken, nowhere, viewed):
        assert "Traceback" not in said[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"spark.sql.catalogImplementation": "in-memory"}, "This Spark has no metastore"),
        (
            {"spark.hadoop.hive.metastore.uris": "thrift://127.0.0.1:1"},
            "The metastore of `spark_catalog`.`sales`",
        ),
    ],
)
def test_a_spark_without_a_metastore_says_so(tmp_path: Path, settings: Mapping[str, str], sentence: str) -> None:
    shop(tmp_path)
    land(tmp_path / "in", 30, seed=1)
    [said] = steps(tmp_path, ["run", "shop.yaml"], settings=settings)
    assert said[0] == 1
    assert sentence in said[1]
    assert "Traceback" not in said[1]
    assert DeltaTable(str(tmp_path / "warehouse" / "shop" / "raw_events")).version() == 0, "nothing was begun"


def test_register_asks_for_a_catalog(tmp_path: Path) -> None:
    path = shop(tmp_path, SPEC.replace("catalog: {schema: sales}\n", ""))
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.pipelines.cli", "register", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no `catalog`" in done.stderr
