"""Rows of joins that a plan and a simulation foretell are the ones that a run or a rebuild with the setting makes."""

from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.batch.test_plans import differing, planned
from tests.runs.batch.test_simulations import contents, made_with, simulated
from tests.runs.join.test_joins import SPEC
from tests.runs.landing import land, table
from tests.runs.running import Made, asked, changed, go, rebuild, written
from tidemark.assets.judging import replay
from tidemark.pipelines.running.runner import RunOptions

SETTINGS = (
    ("time.out_of_orderness=1s", "joins[1].direction=forward"),
    ("joins[0].within=3 s", "joins[2].after=6 s", "joins[3].how=inner"),
)


def rows_of(of: Made, name: str) -> dict[str, dict[str, Any]]:
    """Rows of a join by the columns that name one, without how they came about."""
    [join] = [join for join in of[0].spec.joins if join.name == name]
    found = {}
    for row in table(of[1].warehouse, of[0].spec, f"joins/{name}"):
        for column in ("_batch_id", "_revision", "_is_final", "_watermark"):
            del row[column]
        found[str([row[column] for column in join.key_columns])] = row
    return found


@pytest.mark.long
def test_rows_of_joins_are_foretold_as_a_run_or_a_rebuild_makes_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(replay, "MOST_IN_A_PIECE", 90)
    now = written(tmp_path, "joining", SPEC)
    land(tmp_path / "asks", 90, seed=3)
    land(tmp_path / "bids", 90, seed=4)
    with DagsterInstance.ephemeral() as instance:
        go(now, instance, RunOptions(max_events_per_batch=100))
        there, names = contents(tmp_path), [join.name for join in now[0].spec.joins]
        sets = [[word for value in setting for word in ("--set", value)] for setting in SETTINGS]
        found = simulated(now, *sets[0], *(word for words in sets[1:] for word in ("--or", *words)))
        assert contents(tmp_path) == there
        before = {name: rows_of(now, name) for name in names}
        assert {name: one["rows"] for name, one in found[0]["joins"].items()} == {
            name: len(rows) for name, rows in before.items()
        }
        changes = 0
        for number, setting in enumerate(SETTINGS):
            other = made_with(now, setting, f"other{number}")
            go(other, instance)
            for name in names:
                expected = differing(before[name], rows_of(other, name))
                numbers = {"rows": "then", "new": "new", "gone": "gone", "changed": "other"}
                told = found[1 + number]["joins"][name]
                assert told == {key: expected[was] for key, was in numbers.items()}, (setting, name)
                changes += told["new"] + told["gone"] + told["changed"]
        assert changes > 20
    text = asked(now, "simulate", *sets[1])
    assert text.exit_code == 0, text.output
    assert "rows of priced" in text.stdout
    assert "The largest differences with" in text.stdout
    shorter = changed(now, "within: 1 minute", "within: 3 s")
    plan = planned(shorter)["would_differ"]["joins"]
    shown = asked(shorter, "plan")
    assert "rows of joins/priced" in shown.output
    assert "priced: most in the hour of 20" in shown.output
    done = rebuild(shorter)
    assert done.exit_code == 0, done.output
    for name in names:
        expected = differing(before[name], rows_of(shorter, name))
        assert {key: plan[name][key] for key in expected} == expected
    assert plan["priced"]["other"] > 0
