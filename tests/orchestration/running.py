"""Pipelines for end-to-end tests, and the ways to run them in this process.

Here: specs, runs, backfills, days by Dagster, the log that came of it. Not here: what is landed and what the oracle
expects (landing.py).
"""

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from dagster import AssetKey, DagsterInstance

from tidemark.pipelines.cli import main
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.runner import RunOptions, RunReport, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.delta.lake import Lake
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile

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
) -> tuple[SpecFile, Settings]:
    lateness = "allowed_lateness: 5 s" if policy == "keep" else ""
    more = SPARSE.format(lateness=lateness, group_by=f"group_by: [{over}]" if over else "") if sparse else ""
    if sessions:
        more += SESSIONS.format(rule=lateness or "max_duration: 15 s")
    path = tmp_path / f"{name}.yaml"
    time = f"over: [{over}]\n  {time}" if over else time
    landing = f"in_{name}"
    given = {"landing": landing, "policy": policy, "unit": unit, "time": time, "more": more, "source": source}
    path.write_text(SPEC.format(name=name, **given))
    return read_spec(path), Settings(tmp_path / "warehouse", tmp_path, tmp_path / "home")


def over_source(
    base: Path, name: str, source: str, *, policy: str = "drop", time: str = "", more: str = ""
) -> tuple[SpecFile, Settings]:
    """The same over another source, which is given as an item of `sources` with the columns id, at, k and v."""
    path = base / f"{name}.yaml"
    rest = _REST.format(unit="millisecond", policy=policy, time=time, more=more)
    path.write_text(f"name: {name}\nsources:\n  - {source}\n{rest}")
    return read_spec(path), Settings(base / "warehouse", base, base / "home")


def scheduled(tmp_path: Path, name: str, schedule: str = ON_INPUT, policy: str = "keep") -> tuple[SpecFile, Settings]:
    """A pipeline with a schedule and nothing landed yet."""
    file, settings = pipeline(tmp_path, name, policy, sparse=False)
    file.path.write_text(schedule + file.path.read_text())
    (tmp_path / f"in_{name}").mkdir()
    return read_spec(file.path), settings


def go(made: tuple[SpecFile, Settings], instance: DagsterInstance, options: RunOptions | None = None) -> RunReport:
    return run_pipeline(*made, options or RunOptions(), instance=instance)


def command(base: Path, name: str, word: str = "run") -> Result:
    """A command of the pipeline of that name in a folder."""
    return CliRunner().invoke(main, [word, str(base / f"{name}.yaml"), "--warehouse", str(base / "warehouse")])


def run(base: Path, name: str) -> Result:
    ran = command(base, name)
    assert ran.exit_code == 0, ran.output
    return ran


def log_of(base: Path, name: str) -> list[dict[str, Any]]:
    """The log in order, without the batches that read it."""
    found = Lake(base / "warehouse" / name).rows("raw_events").sort_by("_arrival_seq").to_pylist()
    assert [row["_arrival_seq"] for row in found] == list(range(len(found)))
    return [{key: value for key, value in row.items() if key != "_batch_id"} for row in found]


def backfill(file: SpecFile, settings: Settings, *words: str) -> Result:
    given = ["backfill", str(file.path), "--warehouse", str(settings.warehouse), *words]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def materialize_days(made: tuple[SpecFile, Settings], instance: DagsterInstance, window: str = "per_minute") -> None:
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
    return sorted(bare, key=lambda row: [str(row[name]) for name in ("window_start", "window_end", "k")])
