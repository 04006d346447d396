"""Pipelines with windows across timelines: equal to the oracle live, by days, rebuilt and rejudged; and explained."""

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land, table
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
from tidemark.assets.recount.windows import wrong_results
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.workspace import Workspace

KEEP = (
    f"name: sites\n{LINES}"
    """\
time:
  timestamp_by: at
  unit: millisecond
  over: [k]
  out_of_orderness: 2 s
  out_of_order: keep
  idle: {advance: exclude_split, timeout: 20 s}
windows:
  - {name: totals, kind: tumbling, size: 20 s, across: true, allowed_lateness: 3 s, aggregates: {n: count(*)}}
  - {name: minutes, kind: tumbling, size: 1 minute, closed: right, across: true, from: totals, allowed_lateness: 3 s,
     aggregates: {n: sum(n)}}
  - {name: revised, kind: hopping, size: 40 s, hop: 20 s, across: true, allowed_lateness: 30 s, emit: on_time,
     revise_every: 10 s, history: true, where: v > 2, aggregates: {n: count(*)}}
  - {name: quiet, kind: tumbling, size: 10 s, across: true, empty: true, where: v > 2, group_by: [k],
     aggregates: {n: count(*)}}
  - {name: last_20_s, kind: sliding, size: 20 s, across: true, aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 3 s, across: true, allowed_lateness: 5 s, aggregates: {n: count(*)}}
  - {name: within, kind: tumbling, size: 20 s, group_by: [k], aggregates: {n: count(*)}}
partitions: {start: 2026-01-01}
"""
)
DROP = (
    f"name: sites\n{LINES}"
    """\
time:
  timestamp_by: at
  over: [k]
  out_of_orderness: 1 s
  late: {tolerance: 30 s, policy: drop}
  idle: {advance: exclude_split, timeout: 6 s}
windows:
  - {name: totals, kind: tumbling, size: 20 s, across: true, aggregates: {n: count(*)}}
  - {name: steps, kind: cumulative, size: 1 minute, step: 20 s, across: true, closed: right,
     aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 3 s, across: true, group_by: [k], aggregates: {n: count(*)}}
"""
)

LATE_TIMELINE = (
    f"name: sites\n{LINES}"
    """\
time: {timestamp_by: at, over: [k], out_of_orderness: 1 s}
windows:
  - {name: visits, kind: session, gap: 3 s, across: true, where: v > 0, aggregates: {n: count(*)}}
"""
)


def rows_of(made: Made, name: str) -> list[dict[str, Any]]:
    return table(made[1].warehouse, made[0].spec, name)


def answered(made: Made, *words: str) -> Any:
    return json.loads(asked(made, *words, "--json").output.splitlines()[-1])


@pytest.mark.long
def test_windows_across_timelines_are_the_oracles_in_batches_by_days_rebuilt_and_rejudged(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(tmp_path, "sites", KEEP)
    land(tmp_path / "in", 150, seed=21)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=40)).batches == 4
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        letters = rows_of(made, "dead_letters")
        assert any(row["window_name"] == "totals" for row in letters)
        for name in ("totals", "revised"):
            live = rows_of(made, f"windows/{name}")
            assert live, name
            materialize_days(made, instance, name)
            assert without_batch(rows_of(made, f"windows/{name}")) == without_batch(live), name
        workspace = Workspace(file, settings.warehouse, lambda: spark)
        for window in (one for one in file.spec.windows if one.name in ("totals", "minutes", "within")):
            assert [*wrong_results(workspace, window)] == [], window.name
        assert rebuild(made).exit_code == 0
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        seq = next(row["_arrival_seq"] for row in rows_of(made, "ordered_events"))
        done = asked(made, "rejudge", "--exclude", str(seq), "--reason", "a test")
        assert done.exit_code == 0, done.output
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, without=[seq])
        land(tmp_path / "in", 50, seed=22, prefix="later")
        go(made, instance, RunOptions(max_events_per_batch=20, end_of_input="flush"))
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True, without=[seq])


@pytest.mark.long
def test_the_same_log_in_one_batch_has_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "sites", DROP)
    land(tmp_path / "in", 130, seed=23)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=30, end_of_input="flush"))
        assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec, flush=True)
        assert any(row["stage"] == "window" for row in rows_of(made, "dead_letters")), "under drop, too"
        assert_as_new(made, instance, FLUSH)


@pytest.mark.long
def test_a_new_window_across_timelines_needs_all_tables_made_again(spark: SparkSession, tmp_path: Path) -> None:
    plain = DROP.replace(", across: true", "").replace("group_by: [k], ", "")
    plain = plain.replace("aggregates:", "group_by: [k], aggregates:").replace("  idle:", "  # idle:")
    made = written(tmp_path, "sites", plain)
    land(tmp_path / "in", 80, seed=24)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        across = changed(made, "name: totals,", "name: totals, across: true,")
        refused = asked(across, "run")
        assert refused.exit_code == 2
        assert "the watermark across timelines" in refused.output
        alone = asked(across, "rebuild", "--window", "totals", "--reason", "across")
        assert alone.exit_code == 2, alone.output
        assert rebuild(across).exit_code == 0
        land(tmp_path / "in", 40, seed=25, prefix="later")
        go(across, instance, RunOptions(max_events_per_batch=15))
    assert_tables_equal_the_oracle(across[1].warehouse, across[0].spec)


@pytest.mark.long
@pytest.mark.parametrize("text", [KEEP, DROP], ids=["keep", "drop"])
def test_each_record_is_explained_as_the_tables_of_windows_across_timelines_have_it(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    made = written(tmp_path, "sites", text.replace("empty: true, ", ""))
    land(tmp_path / "in", 130, seed=26)
    go(made, options=RunOptions(max_events_per_batch=70))
    answers = explained(made, spark, 130)
    letters = rows_of(made, "dead_letters")
    assert_letters(answers, letters)
    final = {
        window.name: [row for row in rows_of(made, f"windows/{window.name}") if row["_is_final"]]
        for window in made[0].spec.windows
    }
    assert_counts(made, answers, final)
    if made[0].spec.time.out_of_order == "keep":  # in the other log only the clock makes events late
        assert_one_value_lets_a_late_event_in(made, answers)
    start = max(row["window_start"] for row in final["totals"]).isoformat()
    assert answered(made, "explain", "--window", "totals", "--start", start)["state"] == "closed"


@pytest.mark.long
def test_under_drop_the_least_patience_counts_what_it_lets_into_the_session_as_well(tmp_path: Path) -> None:
    """Two seconds of patience accept the record at 14, which is dropped today, and which the one at 11 meets."""
    made = written(tmp_path, "sites", LATE_TIMELINE)
    lines = [
        {"at": f"2026-01-01T12:00:{at}Z", "got": f"2026-01-01T12:01:{place:02}Z", "k": k, "v": 1}
        for place, (k, at) in enumerate([("a", 16), ("a", 14), ("a", 18), ("b", 11)])
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    go(made)
    said = answered(made, "explain", "--seq", "3")
    assert (said["reason"], said["admitted_by"]) == ("window_closed", {"time.out_of_orderness": "2 seconds"})
    settings = ("--set", "time.out_of_orderness=2 s", "--or", "--set", "time.out_of_orderness=1999999 us")
    today, enough, less = (entry["dead_letters"] for entry in answered(made, "simulate", *settings))
    assert today == less == {"out_of_order": 1, "window_closed": 1}
    assert enough == {}


def assert_one_value_lets_a_late_event_in(made: Made, answers: list[dict[str, Any]]) -> None:
    """With the least patience the event is in its windows, with a microsecond less it is not."""
    key = "time.out_of_orderness"
    late = [one for one in answers if one["reason"] == "window_closed" and key in one["admitted_by"]]
    assert late, "the log shows nothing"
    seq, least = late[0]["_arrival_seq"], late[0]["admitted_by"][key]
    setting = f"{key}={least}"
    said = answered(made, "simulate", "--set", setting)
    before, now = (entry["dead_letters"].get("window_closed", 0) for entry in said)
    assert now < before, (seq, said)
