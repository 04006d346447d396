"""Days computed anew from a part of the log are the live ones, and most of its files are not opened."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.running import FLUSH, go, written
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.rebuild.days import range_of_windows, rebuild_days
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.workspace import Workspace
from tidemark.timeops.values.utc import us_of

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = 5
SPEC = """
name: daily
sources:
  - {name: days, kind: files, path: in/*.jsonl, format: json, settle: 0 s, max_files: 1, arrival_time: got,
     schema: "at STRING, got STRING, k STRING, v INT, id STRING"SPLIT}
time: {timestamp_by: at, out_of_orderness: 30 minutes, POLICY}
windows:
"""
HOURS = "{name: hours, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {n: count(*), s: sum(v)}LATENESS}"
HOPS = HOURS.replace("tumbling, size: 1 hour", "hopping, size: 3 hours, hop: 1 hour, closed: right, where: v > 2")
LOCAL = HOURS.replace("1 hour", "1 day, time_zone: Europe/Berlin").replace("hours", "local")
LATE = ", allowed_lateness: 2 hours"
REVISED = HOURS.replace("hours", "revised").replace("LATENESS", f"{LATE}, emit: on_time, revise_every: 10 minutes")
CLOCK = "late: {tolerance: 45 minutes, policy: adjust}, idle: {advance: arrival_clock}"
EACH_KEY = "over: [k], out_of_order: drop, deduplicate_by: [id], within: 2 days"
SILENCES = "out_of_order: adjust, emit: {every: 20 minutes}, idle: {advance: exclude_split, timeout: 2 hours}"
POLICIES = {
    "drop": (f"out_of_order: drop, {CLOCK}", (HOPS, LOCAL), "flush"),
    "keep": ("out_of_order: keep", (HOURS.replace("LATENESS", LATE), REVISED), "hold"),
    "each key": (EACH_KEY, (HOURS,), "hold"),
    "reopened": (SILENCES, (HOURS,), "hold"),
}
FILES = {
    "drop": {"hours": {1: 2, 4: 1}, "local": {1: 2, 3: 2}},
    "keep": {"hours": {1: 2, 4: 1}, "revised": {1: 2, 4: 1}},
    "each key": {"hours": {0: 4, 1: 3, 3: 2, 4: 1}},
    "reopened": {"hours": {0: 2, 2: 2, 3: 3, 4: 1}},
}
"""How many files are read for a day, a local one too: how long each is, its zone says.
One key is silent on days 1, 2 and 4: it closes days 0 and 1 on day 3, and never day 3. The log that was
reopened was flushed after day 2, from where no part can begin."""


def land(folder: Path, days: range) -> None:
    """Write a file for each day; one event in six is late, some too late for their windows; some come twice."""
    folder.mkdir(exist_ok=True)
    for day in days:
        rng, number = random.Random(day), 150 * day
        start = FIRST + timedelta(days=day)
        arrivals = sorted(start + timedelta(minutes=rng.uniform(0, 1440)) for _ in range(150))
        times = [at - timedelta(minutes=rng.choice([*[5] * 10, 100, 400]) * rng.random()) for at in arrivals]
        lines = []
        for at, got in zip(times, arrivals, strict=True):
            key, number = rng.choice("abc" if day in (0, 3) else "ab"), number + 1
            id_ = f"{key}{number if rng.random() < 0.9 else number // 20}"
            record = {"at": at.isoformat(), "got": got.isoformat(), "k": key, "v": rng.randint(0, 9), "id": id_}
            lines.append(json.dumps(record))
        (folder / f"{day}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_days_computed_from_the_part_of_the_log_that_matters_equal_the_live_ones_both_ways(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    time, windows, end = POLICIES[policy]
    lines = "\n".join(f"  - {window.replace('LATENESS', '')}" for window in windows)
    spec = SPEC.replace("POLICY", time).replace("SPLIT", ", split: k" if time == SILENCES else "")
    file, settings = made = written(tmp_path, "daily", spec + lines)
    runs, batches = [(range(DAYS), RunOptions(end_of_input=end))], 0
    if policy == "reopened":
        runs = [(range(3), FLUSH), (range(3, DAYS), RunOptions(end_of_input=end, reopen="days were missing"))]
    with DagsterInstance.ephemeral() as instance:
        for days, options in runs:
            land(tmp_path / "in", days)
            batches += go(made, instance, options).batches
    assert batches == DAYS
    workspace = Workspace(file, settings.warehouse, lambda: spark)
    for window in file.spec.windows:
        table = f"windows/{window.name}"
        live = workspace.read_base(table).drop("_batch_id").localCheckpoint()
        for day, files in FILES[policy][window.name].items():
            start = FIRST + timedelta(days=day)
            part = range_of_windows(workspace, window, us_of(start), us_of(start + timedelta(days=1)))
            assert len(records_between(workspace, part.first_seq, part.end_seq).inputFiles()) == files
            done = rebuild_days(workspace, window, start.date(), start.date(), f"{window.name} {day}")
            rows = done.counts[f"{window.name}.rows"]
            assert rows == live.where(f"to_date(window_start) = '{start.date()}'").count() > 0
            rebuilt = workspace.read_base(table)
            assert rebuilt.where(f"_batch_id = {workspace.batches.history()[-1].batch_id}").count() == rows
            rebuilt = rebuilt.drop("_batch_id")
            assert live.exceptAll(rebuilt).union(rebuilt.exceptAll(live)).count() == 0, (window.name, day)
