"""Pipelines for end-to-end tests, the ways to run and rebuild them in this process, and what they are compared with.

Here: specs, runs, backfills, rebuilds, days by Dagster, the page of `tidemark report`. Not here: what is landed and
what the oracle expects (landing.py).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from dagster import AssetKey, DagsterInstance, MetadataValue

from tests.runs.landing import table
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.pipelines.cli import main
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.running.runner import RunOptions, RunReport, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Commit, Plan, this_process
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.place import Place
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.spec import Spec

_FILES = """
name: {name}
sources:
  - name: lines
    kind: files
    path: {landing}/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v INT"
    arrival_time: got
    settle: 0 s
    {source}
"""
_REST = """time:
  timestamp_by: at
  unit: {unit}
  out_of_orderness: 10 s
  out_of_order: {policy}
  {time}
windows:
  - name: per_minute
    kind: tumbling
    size: 1 minute
    group_by: [k]
    aggregates: {{n: count(*), total: sum(v), seen: array_sort(collect_set(id))}}
{more}
partitions: {{start: 2026-01-01}}
"""
SPEC = _FILES + _REST

SPARSE = """
  - name: sparse
    kind: hopping
    size: 20 s
    hop: 30 s
    {lateness}
    where: v > 2
    {group_by}
    aggregates: {{n: count(*)}}
"""

SESSIONS = """
  - name: visits
    kind: session
    gap: 8 s
    {rule}
    group_by: [k]
    aggregates: {{n: count(*)}}
  - name: stays
    kind: session
    gap: 4 s
    where: v > 2
    group_by: [k]
    aggregates: {{n: count(*)}}
"""
VISITS = """
  - name: visits
    kind: session
    gap: 8 s
    group_by: [k]
    aggregates: {n: count(*)}
"""
ON_INPUT = "schedule: {on_new_input: 10 s}\n"
FLUSH = RunOptions(end_of_input="flush")
Made = tuple[SpecFile, Settings]
_OF_BATCHES = ("raw_events", "_state/files", "log_control", "watermarks")


def written(base: Path, name: str, text: str) -> Made:
    """Write the spec file of a pipeline; its warehouse and Dagster's home are beside it."""
    path = base / f"{name}.yaml"
    path.write_text(text)
    return read_spec(path), Settings(base / "warehouse", base, base / "home")


def pipeline(
    tmp_path: Path,
    name: str,
    policy: str,
    *,
    unit: str = "millisecond",
    sparse: bool = True,
    sessions: bool = False,
    over: str = "",
    time: str = "",
    source: str = "",
) -> Made:
    lateness = "allowed_lateness: 5 s" if policy == "keep" else ""
    more = SPARSE.format(lateness=lateness, group_by=f"group_by: [{over}]" if over else "") if sparse else ""
    if sessions:
        more += SESSIONS.format(rule=lateness or "max_duration: 15 s")
    time = f"over: [{over}]\n  {time}" if over else time
    given = {"landing": f"in_{name}", "policy": policy, "unit": unit, "time": time, "more": more, "source": source}
    return written(tmp_path, name, SPEC.format(name=name, **given))


def over_source(base: Path, name: str, source: str, *, policy: str = "drop", time: str = "", more: str = "") -> Made:
    """Return the same spec over another source, an item of `sources` with the columns id, at, k and v."""
    rest = _REST.format(unit="millisecond", policy=policy, time=time, more=more)
    return written(base, name, f"name: {name}\nsources:\n  - {source}\n{rest}")


def scheduled(tmp_path: Path, name: str, schedule: str = ON_INPUT) -> Made:
    """Return a pipeline with a schedule and nothing landed yet."""
    file, _ = pipeline(tmp_path, name, "keep", sparse=False)
    (tmp_path / f"in_{name}").mkdir()
    return written(tmp_path, name, schedule + file.path.read_text())


def go(made: Made, instance: DagsterInstance | None = None, options: RunOptions | None = None) -> RunReport:
    """Run what waits, with an instance of its own where none is given."""
    with nullcontext(instance) if instance is not None else DagsterInstance.ephemeral() as used:
        return run_pipeline(*made, options or RunOptions(), instance=used)


def command(base: Path, name: str, word: str = "run", *words: str) -> Result:
    """Return a command of the pipeline of that name in a folder."""
    given = [word, str(base / f"{name}.yaml"), "--warehouse", str(base / "warehouse"), *words]
    return CliRunner().invoke(main, given)


def run(base: Path, name: str, word: str = "run", *words: str) -> Result:
    """Return a command that ends well."""
    ran = command(base, name, word, *words)
    assert ran.exit_code == 0, (ran.output, ran.exc_info)
    return ran


def rows_of(base: Path, name: str, table: str = "raw_events") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Lake(base / "warehouse" / name).rows(table).to_pylist()
    return found


def log_of(base: Path, name: str) -> list[dict[str, Any]]:
    """Return the log in order, without the batches that read it."""
    found = sorted(rows_of(base, name), key=lambda row: int(row["_arrival_seq"]))
    assert [row["_arrival_seq"] for row in found] == list(range(len(found)))
    return [{key: value for key, value in row.items() if key != "_batch_id"} for row in found]


def asked(made: Made, word: str, *words: str) -> Result:
    given = [word, str(made[0].path), "--warehouse", str(made[1].warehouse), *words]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def backfill(file: SpecFile, settings: Settings, *words: str) -> Result:
    return asked((file, settings), "backfill", *words)


def materialize_days(made: Made, instance: DagsterInstance, window: str = "per_minute") -> None:
    """Select all days of a window in the UI, and materialize them."""
    file, settings = made
    asked = AssetKey([file.spec.name, "windows", window])
    days_shown = instance.get_dynamic_partitions("/".join(asked.path))
    job = build_definitions(settings, [file]).resolve_implicit_global_asset_job_def()
    tags = {
        "dagster/asset_partition_range_start": days_shown[0],
        "dagster/asset_partition_range_end": days_shown[-1],
    }
    days = job.execute_in_process(instance=instance, asset_selection=[asked], tags=tags)
    assert days.success


def without_batch(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    bare = [{name: value for name, value in row.items() if name != "_batch_id"} for row in rows]
    return sorted(bare, key=lambda row: [str(row.get(name)) for name in ("window_start", "window_end", "k", "_rank")])


def changed(made: Made, before: str, now: str) -> Made:
    file, settings = made
    text = file.path.read_text()
    assert text.count(before) == 1
    file.path.write_text(text.replace(before, now))
    return read_spec(file.path), settings


def rebuild(made: Made, *words: str) -> Result:
    return asked(made, "rebuild", *words)


def elsewhere(made: Made) -> Made:
    file, settings = made
    return file, Settings(settings.warehouse.parent / "fresh", settings.specs, settings.dagster_home)


def workspace_of(made: Made) -> Workspace:
    return Workspace(made[0], made[1].warehouse)


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file that can be read."""
    found = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def committed(made: Made, name: str) -> list[dict[str, Any]]:
    """Rows of a table as of the last commit, without their batches, in an order of their own."""
    workspace = workspace_of(made)
    rows = workspace.lake.rows(name, workspace.base_of(name)).to_pylist()
    bare = [{key: value for key, value in row.items() if key != "_batch_id"} for row in rows]
    return sorted(bare, key=str)


def public_tables(made: Made) -> Sequence[str]:
    return [name for name in workspace_of(made).tables if name not in _OF_BATCHES and not name.startswith("_state/")]


def rows_by_table(
    workspace: Workspace,
    names: Collection[str] | None = None,
    *,
    without: Collection[str] = (),
    newest: bool = False,
) -> dict[str, list[str]]:
    """Return the rows of each table as of the last commit, as sorted texts, in whatever order its columns are.

    Args:
        workspace: The pipeline.
        names: The tables; by default all.
        without: Columns that are left out.
        newest: All rows that are there instead, also what no commit holds.
    """
    found = {}
    for name in workspace.tables if names is None else names:
        rows = workspace.lake.rows(name, None if newest else workspace.base_of(name))
        columns = sorted(set(rows.column_names).difference(without))
        found[name] = sorted(map(str, rows.select(columns).to_pylist()))
    return found


def assert_same_tables(found: Mapping[str, list[str]], wanted: Mapping[str, list[str]]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, rows in wanted.items():
        assert found[name] == rows, name


def assert_same(made: Made, fresh: Made) -> None:
    assert committed(made, "raw_events") == committed(fresh, "raw_events"), "two logs cannot be compared"
    names = public_tables(fresh)
    found, wanted = (rows_by_table(workspace_of(one), names, without=["_batch_id"]) for one in (made, fresh))
    assert_same_tables(found, wanted)


def assert_as_new(made: Made, instance: DagsterInstance, options: RunOptions | None = None) -> Made:
    """Compare a pipeline with a new one over the same input; return that one."""
    fresh = elsewhere(made)
    go(fresh, instance, options)
    assert_same(made, fresh)
    return fresh


def begin_elsewhere(workspace: Workspace) -> Plan:
    """Begin an ingestion, as another run of this process does."""
    last = workspace.batches.last_commit()
    return workspace.batches.begin(
        "ingest",
        this_process("another run"),
        workspace.clock.now(),
        last_batch=last.batch_id if last else None,
        first_seq=workspace.progress.log_end(),
        end_seq=None,
        input={},
        fingerprint=workspace.spec.fingerprint(),
    )


def dies(*_: object, **__: object) -> None:
    raise OSError("dies here")


def commit_dies(patched: pytest.MonkeyPatch, is_meant: Callable[[Plan], bool]) -> None:
    """Let the commits of some plans die."""
    original = BatchLog.commit

    def commit(log: BatchLog, plan: Plan, *given: Any, **named: Any) -> Commit:
        if is_meant(plan):
            dies()
        return original(log, plan, *given, **named)

    patched.setattr(BatchLog, "commit", commit)


def at_the_end(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once when a rebuild has caught up with live runs, before it switches."""
    catch_up, left = Shadow.catch_up, [act]

    def catching_up(shadow: Shadow, *, is_last: bool = False) -> None:
        catch_up(shadow, is_last=is_last)
        if left and not is_last:
            left.pop()()

    monkeypatch.setattr(Shadow, "catch_up", catching_up)


def assert_the_report_tells_what_the_tables_hold(warehouse: Place, file: SpecFile) -> str:
    """Write the page by the command, compare its numbers with the tables, and return it."""
    out = (warehouse if isinstance(warehouse, Path) else file.path.parent) / "page.html"
    words = ["report", str(file.path), "--warehouse", str(warehouse), "--out", str(out)]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, f"{file.spec.name}: {out}\n")
    page = out.read_text(encoding="utf-8")
    tables = {"records in": "raw_events", "ordered": "ordered_events", "held": "held_events"}
    tables |= {f"rows of {window.name}": f"windows/{window.name}" for window in file.spec.windows}
    wanted = {name: len(table(warehouse, file.spec, of)) for name, of in tables.items()}
    stages = [letter["stage"] for letter in table(warehouse, file.spec, "dead_letters")]
    wanted["refused"] = len(stages) - stages.count("window")
    if "window" in stages:
        wanted["accepted, but too late for a window"] = stages.count("window")
    shown = re.findall(r"<li><b>([0-9,]+)</b> ([^<]+)</li>", page)
    assert {name: int(n.replace(",", "")) for n, name in shown} == wanted
    assert "the rows above add up to it" in page
    assert "by hand" not in page
    return page


def assert_dagster_shows_the_rows_of_the_tables(instance: DagsterInstance, warehouse: Place, spec: Spec) -> None:
    """Row counts are of the tables and of their days; what the batches wrote adds up to them."""
    window = AssetKey([spec.name, "windows", "per_minute"])
    for name in ("raw_events", "ordered_events", "dead_letters"):
        shown = materializations(instance, AssetKey([spec.name, name]))
        rows = len(table(warehouse, spec, name))
        assert shown[0]["dagster/row_count"].value == rows, name
        assert sum(one["rows_written"].value for one in shown) == rows, name
    days = Counter(str(row["window_start"].date()) for row in table(warehouse, spec, "windows/per_minute"))
    newest: dict[str | None, Mapping[str, MetadataValue[Any]]] = {}
    for event in instance.fetch_materializations(window, limit=100).records:
        assert event.asset_materialization is not None
        newest.setdefault(event.asset_materialization.partition, event.asset_materialization.metadata)
    assert {day: shown["dagster/partition_row_count"].value for day, shown in newest.items()} == days
    last = materializations(instance, window)[0]
    assert last["dagster/row_count"].value == days.total()


def materializations(instance: DagsterInstance, asset: AssetKey) -> list[Mapping[str, MetadataValue[Any]]]:
    """Metadata of the materializations of an asset, the newest first."""
    events = instance.fetch_materializations(asset, limit=100).records
    return [event.asset_materialization.metadata for event in events if event.asset_materialization is not None]
