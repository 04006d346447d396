"""Pipelines with sessions whose events say their gap: the oracle's live, by days, rebuilt and rejudged; explained."""

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, OWN_GAP, assert_tables_equal_the_oracle, land, table
from tests.runs.letter.test_explained import assert_counts, assert_letters, explained
from tests.runs.running import (
    FLUSH,
    Made,
    asked,
    assert_as_new,
    changed,
    go,
    materialize_days,
    rebuild,
    without_batch,
    written,
)
from tests.runs.window.test_across_timelines import assert_one_value_lets_a_late_event_in
from tidemark.pipelines.running.runner import RunOptions

GAP = f'gap: "{OWN_GAP}"'
KEEP = (
    f"name: homes\n{LINES}"
    f"""\
time: {{timestamp_by: at, unit: millisecond, out_of_orderness: 2 s, out_of_order: keep}}
windows:
  - {{name: visits, kind: session, {GAP}, max_gap: 6 s, allowed_lateness: 5 s, group_by: [k],
     aggregates: {{n: count(*)}}}}
  - {{name: revised, kind: session, {GAP}, max_gap: 7 s, allowed_lateness: 20 s, emit: on_time, revise_every: 10 s,
     history: true, where: v > 2, aggregates: {{n: count(*)}}}}
  - {{name: minutes, kind: tumbling, size: 1 minute, closed: right, from: visits, allowed_lateness: 5 s,
     group_by: [k], aggregates: {{n: sum(n)}}}}
partitions: {{start: 2026-01-01}}
"""
)
DROP = (
    f"name: homes\n{LINES}"
    f"""\
time:
  timestamp_by: at
  over: [k]
  out_of_orderness: 1 s
  idle: {{advance: window_close, timeout: 3 s}}
windows:
  - {{name: visits, kind: session, {GAP}, max_gap: 6 s, max_duration: 9 s, group_by: [k],
     aggregates: {{n: count(*)}}}}
  - {{name: all, kind: session, {GAP}, max_gap: 7 s, across: true, aggregates: {{n: count(*)}}}}
"""
)


def rows_of(made: Made, name: str) -> list[dict[str, Any]]:
    return table(made[1].warehouse, made[0].spec, name)


def audit(made: Made) -> None:
    done = asked(made, "audit", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, []), done.output


@pytest.mark.long
def test_sessions_with_own_gaps_are_the_oracles_in_batches_by_days_rebuilt_and_rejudged(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(tmp_path, "homes", KEEP)
    land(tmp_path / "in", 150, seed=31)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=40)).batches == 4
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        reasons = {(row["window_name"], row["reason"]) for row in rows_of(made, "dead_letters")}
        assert reasons >= {("visits", "bad_expression"), ("visits", "window_closed")}
        for name in ("visits", "revised", "minutes"):
            live = rows_of(made, f"windows/{name}")
            assert live, name
            materialize_days(made, instance, name)
            assert without_batch(rows_of(made, f"windows/{name}")) == without_batch(live), name
        audit(made)
        assert rebuild(made).exit_code == 0
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        seq = next(row["_arrival_seq"] for row in rows_of(made, "ordered_events"))
        done = asked(made, "rejudge", "--exclude", str(seq), "--reason", "a test")
        assert done.exit_code == 0, done.output
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, without=[seq])
        land(tmp_path / "in", 50, seed=32, prefix="later")
        go(made, instance, RunOptions(max_events_per_batch=20, end_of_input="flush"))
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True, without=[seq])
        audit(made)


@pytest.mark.long
def test_a_silence_closes_sessions_by_the_gap_of_their_events_wherever_the_log_is_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "homes", DROP)
    land(tmp_path / "in", 130, seed=33)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=30, end_of_input="flush"))
        assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec, flush=True)
        audit(made)
        assert_as_new(made, instance, FLUSH)


@pytest.mark.long
def test_a_plan_says_that_a_changed_gap_needs_the_past_and_a_rebuild_of_the_window_computes_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "homes", KEEP)
    land(tmp_path / "in", 80, seed=34)
    go(made, options=RunOptions(max_events_per_batch=50))
    longer = changed(made, "max_gap: 6 s", "max_gap: 7 s")
    assert asked(longer, "run").exit_code == 2
    plan = json.loads(asked(longer, "plan", "--json").stdout)
    assert "max_gap" in json.dumps(plan)
    done = asked(longer, "rebuild", "--window", "visits", "--reason", "longer visits")
    assert done.exit_code == 0, done.output
    assert_tables_equal_the_oracle(longer[1].warehouse, longer[0].spec)


@pytest.mark.long
@pytest.mark.parametrize("text", [KEEP, DROP], ids=["keep", "drop"])
def test_each_record_is_explained_as_the_tables_of_sessions_with_own_gaps_have_it(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    start = text.find("  - {name: minutes")
    made = written(tmp_path, "homes", text if start < 0 else text[:start] + text[text.index("partitions") :])
    land(tmp_path / "in", 130, seed=36)
    go(made, options=RunOptions(max_events_per_batch=70))
    answers, letters = explained(made, spark, 130), rows_of(made, "dead_letters")
    assert_letters(answers, [letter for letter in letters if letter["reason"] != "bad_expression"])
    final = {
        window.name: [row for row in rows_of(made, f"windows/{window.name}") if row["_is_final"]]
        for window in made[0].spec.windows
    }
    assert_counts(made, answers, final)
    if made[0].spec.time.out_of_order == "keep":  # in the other log only the clock makes events late
        assert_one_value_lets_a_late_event_in(made, answers)
    unfit = {letter["_arrival_seq"] for letter in letters if letter["reason"] == "bad_expression"}
    filtered = [
        window["outcome"] for seq in unfit for window in answers[seq]["windows"] if window["name"] == "visits"
    ]
    assert filtered
    assert {*filtered} == {"filtered"}
