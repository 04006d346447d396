"""Some rounds of chaos by a fixed seed, and what its reader takes for a mix of two commits."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.chaos.readers import MixError, check_commit

SEED, KILLS = 16, 1


@pytest.mark.long
def test_some_rounds_of_chaos_leave_nothing_that_an_audit_or_an_undisturbed_run_could_show(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", f"{SEED}", "--kills", f"{KILLS}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "chaos")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": nothing was found\n")


def commit() -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return the commits of a pipeline with three records in a minute, and its tables as of the last one."""
    commits: list[dict[str, Any]] = [{"kind": "ingest", "end_seq": 3}, {"kind": "process", "end_seq": 3}]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    of_batch: dict[str, Any] = {"_batch_id": 1}
    letter: dict[str, Any] = {"stage": "time", "window_name": None, "replayed_at": None}
    tables: dict[str, list[dict[str, Any]]] = {
        "raw_events": [{"_arrival_seq": seq, "_batch_id": 0} for seq in range(3)],
        "ordered_events": [{"_arrival_seq": 0, "_timestamp": start, "k": "a", **of_batch}],
        "held_events": [{"_arrival_seq": 1, "_timestamp": start, "k": "a", **of_batch}],
        "dead_letters": [{"_arrival_seq": 2, **letter, **of_batch}],
        "windows/minutes": [{"window_start": start, "k": "a", "n": 2, "_is_final": True, **of_batch}],
    }
    return commits, tables


def test_tables_of_one_commit_are_no_mix() -> None:
    check_commit("shop", 1, *commit())


@pytest.mark.parametrize(
    ("table", "rows", "said"),
    [
        ("raw_events", [], "0 records of the log, and batches read 3"),
        ("held_events", [], r"in no or several places: \[1\]"),
        ("dead_letters", [], r"in no or several places: \[2\]"),
        ("windows/minutes", [{"n": 1}], "counts 1 events of 2"),
        ("windows/minutes", [{"_batch_id": 2}], "1 rows of windows/minutes are of later batches"),
    ],
)
def test_a_table_of_another_commit_is_a_mix(table: str, rows: list[dict[str, Any]], said: str) -> None:
    commits, tables = commit()
    tables[table] = [{**before, **row} for before, row in zip(tables[table], rows, strict=False)]
    with pytest.raises(MixError, match=said):
        check_commit("shop", 1, commits, tables)
