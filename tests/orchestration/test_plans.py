"""What a plan says would differ is what a fresh pipeline under the changed spec has, on the same log."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.orchestration.landing import LINES, START, land, table
from tests.orchestration.running import go
from tidemark.pipelines.cli import main
from tidemark.pipelines.runner import RunOptions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile

SPEC = (
    f"name: shop\n{LINES}"
    """\
time: {timestamp_by: at, unit: millisecond, out_of_orderness: 4 s, out_of_order: keep}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*), mean: avg(v / 7)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: hours, kind: tumbling, from: minutes, size: 1 hour, aggregates: {n: sum(n)}}
  - {name: same, kind: snapshot, aggregates: {n: count(*)}}
"""
)
WINDOWS = ("minutes", "visits", "hours", "same")
Made = tuple[SpecFile, Settings]


def made(base: Path, text: str, warehouse: str) -> Made:
    path = base / "shop.yaml"
    path.write_text(text)
    return read_spec(path), Settings(base / warehouse, base, base / "home")


def filled(base: Path, text: str, warehouse: str, instance: DagsterInstance) -> Made:
    """A pipeline that has read some records, was flushed, and reopened for others."""
    found = made(base, text, warehouse)
    shutil.rmtree(base / "in", ignore_errors=True)
    land(base / "in", 150, seed=1)
    go(found, instance, RunOptions(max_events_per_batch=80, end_of_input="flush"))
    land(base / "in", 100, seed=2, start=START.replace(hour=23, minute=54), prefix="g")
    go(found, instance, RunOptions(reopen="more came"))
    return found


def planned(of: Made) -> dict[str, Any]:
    given = ["plan", str(of[0].path), "--json", "--warehouse", str(of[1].warehouse)]
    done = CliRunner().invoke(main, given, catch_exceptions=False)
    assert done.exit_code in (0, 3), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows_of(of: Made, window: str) -> dict[str, dict[str, Any]]:
    """Rows by window and group; sums of floating point cut to the digits that count."""
    spec = next(one for one in of[0].spec.windows if one.name == window)
    found = {}
    for row in table(of[1].warehouse, of[0].spec, f"windows/{window}"):
        del row["_batch_id"]
        short = {name: f"{value:.9e}" if isinstance(value, float) else value for name, value in row.items()}
        found[str([row[name] for name in spec.key_columns])] = short
    return found


def differences(now: Made, then: Made, window: str) -> dict[str, int]:
    before, after = rows_of(now, window), rows_of(then, window)
    both = before.keys() & after.keys()
    return {
        "now": len(before),
        "then": len(after),
        "new": len(after) - len(both),
        "gone": len(before) - len(both),
        "other": sum(before[key] != after[key] for key in both),
    }


def test_what_would_differ_is_what_a_fresh_pipeline_has_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    with DagsterInstance.ephemeral() as instance:
        now = filled(tmp_path, SPEC, "warehouse", instance)
        of_time = SPEC.replace("out_of_orderness: 4 s", "out_of_orderness: 20 s")
        then = filled(tmp_path, of_time, "other", instance)
    files = sorted(path for path in (tmp_path / "warehouse").rglob("*") if path.is_file())
    found = planned(made(tmp_path, of_time, "warehouse"))
    assert (found["meaning"], found["needs_decision"], found["past"]["records"]) == ("from here on", False, 250)
    assert found["run"]["files"] == 0
    told = found["would_differ"]["windows"]
    for window in WINDOWS:
        expected = differences(now, then, window)
        assert {name: told[window][name] for name in expected} == expected, window
    assert told["minutes"]["new"] + told["minutes"]["other"] > 0, "equal tables would show nothing"
    counts = [Counter(row["reason"] for row in table(*_of(one), "dead_letters")) for one in (now, then)]
    letters = {reason: {"now": counts[0][reason], "then": counts[1][reason]} for reason in {*counts[0], *counts[1]}}
    assert found["would_differ"]["dead_letters"] == letters

    grown = SPEC.replace("size: 1 minute", "size: 30 s").replace("id STRING,", "id STRING, more DATE,")
    found = planned(made(tmp_path, grown, "warehouse"))
    assert (found["meaning"], found["changes"][1]["windows"]) == ("needs the past", ["minutes", "hours"])
    assert (set(found["would_differ"]["windows"]), found["would_differ"]["dead_letters"]) == (
        {"minutes", "hours"},
        {},
    )
    assert sorted(path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()) == files


def _of(one: Made) -> tuple[Any, Any]:
    return one[1].warehouse, one[0].spec
