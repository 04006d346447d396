"""Differences that a plan foretells are the ones that a rebuild under the changed spec then makes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, START, land, table
from tests.runs.running import Made, asked, go, rebuild, written
from tidemark.pipelines.running.runner import RunOptions

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


def filled(base: Path, instance: DagsterInstance) -> Made:
    """Return a pipeline that has read some records, was flushed, and reopened for others."""
    found = written(base, "shop", SPEC)
    land(base / "in", 150, seed=1)
    go(found, instance, RunOptions(max_events_per_batch=80, end_of_input="flush"))
    land(base / "in", 100, seed=2, start=START.replace(hour=23, minute=54), prefix="g")
    go(found, instance, RunOptions(reopen="more came"))
    return found


def planned(of: Made) -> dict[str, Any]:
    done = asked(of, "plan", "--json")
    assert done.exit_code in (0, 3), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows_of(of: Made, window: str) -> dict[str, dict[str, Any]]:
    """Rows by window and group; sums of floating point cut to the digits that count."""
    spec = next(one for one in of[0].spec.windows if one.name == window)
    found = {}
    for row in table(of[1].warehouse, of[0].spec, f"windows/{window}"):
        for name in ("_batch_id", "_revision", "_is_final", "_watermark"):  # no values of a result
            del row[name]
        short = {name: f"{value:.9e}" if isinstance(value, float) else value for name, value in row.items()}
        found[str([row[name] for name in spec.key_columns])] = short
    return found


def differing(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> dict[str, int]:
    both = before.keys() & after.keys()
    return {
        "now": len(before),
        "then": len(after),
        "new": len(after) - len(both),
        "gone": len(before) - len(both),
        "other": sum(before[key] != after[key] for key in both),
    }


def letters_of(of: Made, *windows: str) -> Counter[str]:
    rows = table(of[1].warehouse, of[0].spec, "dead_letters")
    return Counter(row["reason"] for row in rows if not windows or row["window_name"] in windows)


@pytest.mark.long
def test_what_would_differ_is_what_a_rebuild_then_changes_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    with DagsterInstance.ephemeral() as instance:
        now = filled(tmp_path, instance)
    files = sorted(path for path in (tmp_path / "warehouse").rglob("*") if path.is_file())
    grown = SPEC.replace("size: 1 minute", "size: 30 s").replace("id STRING,", "id STRING, more DATE,")
    found = planned(written(tmp_path, "shop", grown))
    assert (found["meaning"], found["changes"][1]["windows"]) == ("needs the past", ["minutes", "hours"])
    of_windows = letters_of(now, "minutes", "hours")
    assert {reason: n["now"] for reason, n in found["would_differ"]["dead_letters"].items()} == of_windows
    assert set(found["would_differ"]["windows"]) == {"minutes", "hours"}

    patient = written(tmp_path, "shop", SPEC.replace("gap: 8 s,", "gap: 8 s, allowed_lateness: 2 days,"))
    found, closed = planned(patient)["would_differ"], letters_of(now, "visits")["window_closed"]
    assert closed > 0
    assert found["dead_letters"] == {"window_closed": {"now": closed, "then": 0}}
    assert 0 < found["windows"]["visits"]["reopened"] <= found["windows"]["visits"]["gone"]
    assert "taken back until the window closes" in asked(patient, "plan").stdout

    changed = written(tmp_path, "shop", SPEC.replace("out_of_orderness: 4 s", "out_of_orderness: 20 s"))
    found = planned(changed)
    assert (found["meaning"], found["needs_decision"], found["past"]["records"]) == ("from here on", False, 250)
    assert sorted(path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()) == files
    before, letters = {window: rows_of(now, window) for window in WINDOWS}, letters_of(now)
    made_anew = rebuild(changed)
    assert made_anew.exit_code == 0, made_anew.output
    for window in WINDOWS:
        expected, told = differing(before[window], rows_of(changed, window)), found["would_differ"]["windows"][window]
        assert {name: told[name] for name in expected} == expected, window
        assert expected["other"] + expected["new"] > 0 or window == "same", "equal tables would show nothing"
    after = letters_of(changed)
    expected_letters = {reason: {"now": letters[reason], "then": after[reason]} for reason in {*letters, *after}}
    assert found["would_differ"]["dead_letters"] == expected_letters
    assert planned(changed)["changes"] == []
