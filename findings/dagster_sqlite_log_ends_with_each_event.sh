#!/usr/bin/env bash
# Dagster: on SQLite each event ends the write-ahead log of its database, which SQLite copies back and deletes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27
export DAGSTER_HOME="$folder/home"
mkdir "$DAGSTER_HOME"
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import dagster as dg

EVENTS = 200


@dg.op
def nothing() -> None:
    """An operation whose run makes the database."""


@dg.job
def job() -> None:
    nothing()


def report(instance: dg.DagsterInstance, run: dg.DagsterRun, database: Path) -> tuple[int, float]:
    """Report events of a run; return after how many of them its database had no write-ahead log, and the seconds."""
    gone, began = 0, time.perf_counter()
    for number in range(EVENTS):
        instance.report_engine_event(f"event {number}", run, run_id=run.run_id)
        gone += not database.with_name(f"{database.name}-wal").exists()
    return gone, time.perf_counter() - began


print("dagster", dg.__version__, "SQLite", sqlite3.sqlite_version)
logging.disable(logging.CRITICAL)
with dg.DagsterInstance.get() as instance:
    result = job.execute_in_process(instance=instance)
    run = instance.get_run_by_id(result.run_id)
    database = Path(instance.event_log_storage.path_for_shard(run.run_id))
    with closing(sqlite3.connect(database)) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    alone, seconds_alone = report(instance, run, database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        kept, seconds_kept = report(instance, run, database)
print(f"journal_mode of a run's database: {mode}")
print(f"{EVENTS} events, nobody else reads it: its log was gone after {alone} of them, {seconds_alone:.2f} s")
print(f"{EVENTS} events, next to an open connection: gone after {kept} of them, {seconds_kept:.2f} s")
raise SystemExit(0 if (mode, alone, kept) == ("wal", EVENTS, 0) else 1)
PYTHON
