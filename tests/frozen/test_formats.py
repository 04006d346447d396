"""Warehouses that earlier versions wrote: they are read as they are, and go on with the next batch."""

import json
import shutil
import tarfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import tidemark as tm
from tests.faults.killed import KILLED, Death, Gateway, run_and_die
from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land, table
from tests.runs.running import assert_same_tables, rows_by_table
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.delta.migration import old_columns
from tidemark.resources.workspace import SpecFile, Workspace

SPEC = (
    f"name: shifts\n{LINES}"
    """\
    rename: {id: _open_in}  # the name that the product would give a column beside it
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 10 s
  out_of_order: keep
windows:
  - {name: revised, kind: tumbling, size: 1 minute, allowed_lateness: 1 minute, emit: on_time, revise_every: 20 s,
     group_by: [k], aggregates: {n: count(*)}}
  - {name: overlapping, kind: hopping, size: 30 s, hop: 10 s, allowed_lateness: 3 s, empty: true, where: v > 2,
     group_by: [k, v], aggregates: {n: count(*)}}
  - {name: last_20_s, kind: sliding, size: 20 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, allowed_lateness: 5 s, group_by: [k], aggregates: {n: count(*)}}
"""
)
SESSIONS = "_state/session_events"
OF_FORMAT_2 = {
    "_open_in_": "__sessions",
    "_watermark": "__w_before",
    "_group_0": "__group0",
    "_group_1": "__group1",
    "_first_end": "__first_end",
    "_last_end": "__last_end",
    "_start": "__start",
    "_end": "__end",
    "_last_seq": "__last_seq",
}
HELD = (SESSIONS, "_state/revised_events", "_state/seen_groups/overlapping")
RENAMED = (
    *HELD,
    *(f"_state/flushed/{name}" for name in ("revised", "overlapping", "last_20_s", "visits")),
)


@pytest.fixture(scope="module")
def opened(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SpecFile:
    """Return a pipeline that was flushed and reopened, with windows and sessions open, and more input waiting."""
    root = tmp_path_factory.mktemp("formats")
    path, warehouse = root / "shifts.yaml", root / "warehouse"
    path.write_text(SPEC)
    file = read_spec(path)
    land(root / "in", 150, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(root / "home"))
        run(path, warehouse, "--end-of-input", "flush")
        for count, prefix, words in ((25, "g", ["--reopen", "the late shift"]), (60, "h", [])):
            log = table(warehouse, file.spec, "raw_events")
            newest = max(row["_arrival_time"] for row in log if row["_arrival_time"])
            land(root / "in", count, seed=count, start=newest - timedelta(seconds=40), prefix=prefix)
            if words:
                run(path, warehouse, *words)
    return file


def run(spec: Path, warehouse: Path, *words: str) -> Result:
    done = CliRunner().invoke(main, ["run", str(spec), "--warehouse", str(warehouse), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(params=sorted(Path(__file__).parent.glob("*.tar.gz")), ids=lambda one: one.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the archive of a warehouse, unpacked beside; `tools/keep_warehouse.py` of its version made it."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    archive: Path = request.param
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    return archive


def test_a_warehouse_of_a_released_version_opens(kept: Path, tmp_path: Path) -> None:
    path, warehouse = tmp_path / "shifts.yaml", tmp_path / "warehouse"
    file = read_spec(path)
    versions = {row["tidemark_version"] for row in table(warehouse, file.spec, "batches")}
    assert versions == {kept.name.removesuffix(".tar.gz")}
    assert_tables_equal_the_oracle(warehouse, file.spec)
    told = []
    for command, *words in (["status", "--json"], ["plan", "--json"], ["show", "windows/visits"]):
        given = [command, str(path), *words, "--warehouse", str(warehouse)]
        done = CliRunner().invoke(main, given, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        told.append(done.stdout)
    assert json.loads(told[0])["wrong"] == []
    assert (json.loads(told[1])["changes"], json.loads(told[1])["run"]["files"]) == ([], 0)


@pytest.mark.long
@pytest.mark.usefixtures("kept")
def test_a_warehouse_of_a_released_version_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    path, warehouse = tmp_path / "shifts.yaml", tmp_path / "warehouse"
    file = read_spec(path)
    assert "nothing new" in run(path, warehouse).output, "all that is there was read by that version"
    newest = max(row["_arrival_time"] for row in table(warehouse, file.spec, "raw_events") if row["_arrival_time"])
    for folder in ("in", "gates"):
        land(tmp_path / folder, 30, seed=9, files=1, start=newest, prefix="later")
    run(path, warehouse)
    assert_tables_equal_the_oracle(warehouse, file.spec)
    run(path, warehouse, "--end-of-input", "flush")
    assert_tables_equal_the_oracle(warehouse, file.spec, flush=True)


def copied(file: SpecFile, name: str) -> Path:
    copy = file.path.parent / name
    shutil.copytree(file.path.parent / "warehouse", copy)
    return copy


def as_of_format_2(workspace: Workspace) -> None:
    """Makes the tables of state, and the last commit, what format 2 had."""
    versions = {}
    for name in RENAMED:
        rows = workspace.lake.rows(name, workspace.base_of(name))
        if "_watermark" in rows.column_names:
            at = rows.column_names.index("_watermark")
            rows = rows.set_column(at, "_watermark", rows["_watermark"].cast(pa.int64()))
        rows = rows.rename_columns([OF_FORMAT_2.get(column, column) for column in rows.column_names])
        versions[name] = overwritten(workspace, name, rows)
    name_in_last_commit(workspace, versions, format_version=2)


def overwritten(workspace: Workspace, name: str, rows: pa.Table) -> int:
    """Return the version of a table that has these rows and columns alone."""
    folder = str(workspace.lake.path(name))
    write_deltalake(folder, rows, mode="overwrite", schema_mode="overwrite")
    return DeltaTable(folder).version()


def name_in_last_commit(workspace: Workspace, versions: dict[str, int], **of_all: int) -> None:
    """Let the last commit name other versions of some tables, and all rows of `batches` have some values."""
    log = [row | of_all for row in workspace.lake.rows(tables.BATCHES).to_pylist()]
    last = max((row for row in log if row["state"] == "committed"), key=lambda row: int(row["attempt"]))
    last["table_versions"] = list((dict(last["table_versions"]) | versions).items())
    rows = pa.Table.from_pylist(log, schema=tables.BATCHES_SCHEMA)
    write_deltalake(str(workspace.lake.path(tables.BATCHES)), rows, mode="overwrite")


def contents(warehouse: Path, file: SpecFile) -> dict[str, list[str]]:
    """Return the rows of all tables, but for the table that says where the files lay."""
    workspace = Workspace(file, warehouse)
    return rows_by_table(workspace, [name for name in workspace.tables if name != tables.FILES], newest=True)


@pytest.fixture(scope="module")
def undisturbed(opened: SpecFile) -> tuple[Result, dict[str, list[str]]]:
    """Return what the next run says where nothing was of an earlier format, and the rows after it."""
    warehouse = copied(opened, "undisturbed")
    return run(opened.path, warehouse), contents(warehouse, opened)


@pytest.mark.long
def test_dead_letters_of_an_earlier_version_which_had_no_timeline_go_on(spark: SparkSession, tmp_path: Path) -> None:
    path, warehouse, landing = tmp_path / "told.yaml", tmp_path / "warehouse", tmp_path / "in"
    path.write_text(
        f"name: told\n{LINES}time: {{timestamp_by: at, unit: millisecond, out_of_orderness: 1 s, over: [k]}}\n"
        "windows: [{name: w, kind: tumbling, size: 10 s, group_by: [k], aggregates: {n: count(*)}}]\n"
    )
    file = read_spec(path)
    land(landing, 60, seed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
        run(path, warehouse)
        assert_tables_equal_the_oracle(warehouse, file.spec)
        workspace = Workspace(file, warehouse)
        older = workspace.lake.rows(tables.DEAD_LETTERS).drop_columns(["_timeline"])
        assert set(older["stage"].to_pylist()) == {"ingest", "time"}
        name_in_last_commit(workspace, {tables.DEAD_LETTERS: overwritten(workspace, tables.DEAD_LETTERS, older)})

        where = ["--where", "reason = 'out_of_order'", "--warehouse", str(warehouse)]
        assert CliRunner().invoke(main, ["show", str(path), "dead_letters", *where]).exit_code == 0
        records = table(warehouse, file.spec, "raw_events")
        newest = max(row["_arrival_time"] for row in records if row["_arrival_time"])
        land(landing, 60, seed=4, start=newest, prefix="g")
        run(path, warehouse)
    found = table(warehouse, file.spec, "dead_letters")
    told = [row["_timeline"] for row in found if row["_arrival_seq"] >= 60 and row["stage"] != "ingest"]
    assert {row["_timeline"] for row in found if row["_arrival_seq"] < 60} == {None}
    assert told
    assert set(told) <= {'["a"]', '["b"]', "[null]"}


@pytest.mark.long
def test_a_warehouse_of_format_2_is_read_as_it_is_and_goes_on_as_if_it_had_been_of_this_one(
    spark: SparkSession, opened: SpecFile, undisturbed: tuple[Result, dict[str, list[str]]]
) -> None:
    older = copied(opened, "older")
    workspace = Workspace(opened, older)
    as_of_format_2(workspace)
    assert all(old_columns(workspace.lake, name) for name in RENAMED)
    rows = {name: len(table(older, opened.spec, name)) for name in RENAMED}
    assert all(rows[name] for name in HELD), "empty tables would show nothing"
    assert any(rows[name] for name in RENAMED if name.startswith("_state/flushed/"))

    before = tm.read(spark, older, "shifts", SESSIONS)
    assert "__sessions" in before.columns
    for command, *words in (["show", "windows/visits"], ["show", SESSIONS], ["status"]):
        given = [command, str(opened.path), *words, "--warehouse", str(older)]
        read = CliRunner().invoke(main, given, catch_exceptions=False)
        assert read.exit_code == 0, read.output

    expected, rows_expected = undisturbed
    found = run(opened.path, older)
    said = f"renaming columns in {len(RENAMED)} tables of `_state` that an earlier Tidemark wrote"
    assert (found.stderr.count(said), said in expected.stderr) == (1, False)
    assert_same_tables(contents(older, opened), rows_expected)
    assert_tables_equal_the_oracle(older, opened.spec)
    names = {column for name in RENAMED for column in Workspace(opened, older).lake.columns(name)}
    assert not [name for name in names if name.startswith("__")]
    assert {row["format_version"] for row in table(older, opened.spec, "batches")} == {2, tables.FORMAT_VERSION}
    again = run(opened.path, older, "--end-of-input", "flush")
    assert "renaming" not in again.stderr
    assert_tables_equal_the_oracle(older, opened.spec, flush=True)


@pytest.mark.long
def test_a_run_that_dies_while_it_renames_leaves_tables_that_are_read_and_go_on(
    spark: SparkSession, opened: SpecFile, undisturbed: tuple[Result, dict[str, list[str]]]
) -> None:
    older = copied(opened, "killed")
    as_of_format_2(Workspace(opened, older))
    assert run_and_die(opened.path, older, Death(SESSIONS, "python"), Gateway.of(spark)) == KILLED
    left = Workspace(opened, older)
    assert {bool(old_columns(left.lake, name)) for name in RENAMED} == {False, True}
    assert "__sessions" in tm.read(spark, older, "shifts", SESSIONS).columns, "readers still see the last commit"
    run(opened.path, older)
    assert_same_tables(contents(older, opened), undisturbed[1])
    assert_tables_equal_the_oracle(older, opened.spec)


@pytest.mark.long
def test_a_changed_spec_meets_tables_of_format_2(opened: SpecFile, spark: SparkSession) -> None:
    older = copied(opened, "changed")
    as_of_format_2(Workspace(opened, older))
    changed = opened.path.with_name("changed.yaml")
    changed.write_text(SPEC.replace("n: count(*)", "n: count(*), most: max(v)"))
    changed.replace(opened.path)
    run(opened.path, older)
    assert "most" in table(older, opened.spec, "windows/visits")[0]
