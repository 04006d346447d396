"""Pipelines with windows over the rows of joins: results are sums of these rows, in batches and computed again."""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.batch.test_audits import audited, first_changed, with_column
from tests.runs.batch.test_audits import changed as with_changed
from tests.runs.landing import ASKS_AND_BIDS, START, land, table
from tests.runs.running import FLUSH, Made, asked, backfill, changed, committed, go, rebuild, written
from tidemark.assets.judging import replay
from tidemark.pipelines.running.runner import RunOptions

SPEC = (
    f"name: paying\n{ASKS_AND_BIDS}"
    """\
joins:
  - {name: priced, kind: as_of, left: {source: asks}, right: {source: bids}, on: [k], within: 10 s, how: left,
     direction: forward}
  - {name: near, kind: interval, left: {source: asks}, right: {source: bids}, on: [k], before: 4 s, after: 2 s,
     how: full}
windows:
  - {name: alone, kind: tumbling, size: 1 minute, from: near, allowed_lateness: 4 s, where: _right_seq IS NULL,
     group_by: [k], aggregates: {n: count(*), total: sum(v)}}
  - {name: minutes, kind: tumbling, size: 1 minute, from: priced, allowed_lateness: 10 s,
     aggregates: {n: count(*), total: sum(right_v)}}
  - {name: hours, kind: tumbling, size: 1 hour, closed: right, from: minutes, allowed_lateness: 10 s,
     aggregates: {n: sum(n)}}
  - {name: events, kind: tumbling, size: 1 minute, aggregates: {n: count(*)}}
partitions: {start: 2026-01-01}
"""
)


@pytest.mark.long
def test_an_audit_recomputes_windows_over_joins(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "meter", SPEC.replace("name: paying", "name: meter"))
    land(tmp_path / "asks", 80, seed=3)
    land(tmp_path / "bids", 80, seed=4)
    go(made)
    done = asked(made, "audit")
    assert (done.exit_code, "not recomputed" in done.output) == (0, False), done.output
    for name in ("minutes", "alone"):
        with_changed(f"windows/{name}", with_column("n", first_changed(lambda n: n + 1)))(tmp_path)
        assert any(
            found["table"] == f"windows/{name}" and "1 with other values" in found["what"]
            for found in audited(tmp_path)
        )


@pytest.mark.long
def test_windows_over_joins_are_sums_of_their_rows_in_batches_in_days_and_in_a_rebuild(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MOST_IN_A_PIECE", 90)  # what is computed in memory goes piece by piece as well
    made = written(tmp_path, "paying", SPEC)
    land(tmp_path / "asks", 80, seed=3)
    land(tmp_path / "bids", 80, seed=4)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=60)).batches == 3
        assert_sums_of_rows(made, lateness=timedelta(seconds=10), window="minutes")
        assert_sums_of_rows(made, lateness=timedelta(seconds=4), window="alone")
        simulated = json.loads(asked(made, "simulate", "--set", "joins[1].after=3 s", "--json").stdout)
        go(made, instance, FLUSH)
    assert simulated[0]["windows"]["alone"]["rows"] < len(committed(made, "windows/alone"))
    assert_sums_of_rows(made, window="minutes")
    assert_sums_of_rows(made, window="alone")
    assert sum(row["n"] for row in committed(made, "windows/hours")) == len(committed(made, "joins/priced"))
    start = committed(made, "windows/alone")[0]["window_start"]
    told = tm.explain(made[0].path, window="alone", start=start, warehouse=str(made[1].warehouse)).to_dict()
    assert told["groups"]
    before = {name: committed(made, f"windows/{name}") for name in ("alone", "minutes", "hours")}
    done = backfill(*made, "--from", "2026-01-01", "--to", "2026-01-02")
    assert done.exit_code == 0, done.output
    assert {name: committed(made, f"windows/{name}") for name in before} == before
    done = rebuild(made, "--window", "alone")
    assert done.exit_code != 0
    assert "computed with all tables" in done.output
    again = changed(made, "after: 2 s", "after: 3 s")
    plan = asked(again, "plan", "--json")
    assert plan.exit_code == 3, plan.output
    windows = json.loads(plan.stdout.splitlines()[-1])["would_differ"]["windows"]
    assert windows["minutes"]["other"] == 0, "the join below it is as it was"
    done = rebuild(again)
    assert done.exit_code == 0, done.output
    assert_sums_of_rows(again, window="alone")
    assert {name: committed(again, f"windows/{name}") for name in ("minutes", "hours")} == {
        name: before[name] for name in ("minutes", "hours")
    }
    land(tmp_path / "asks", 5, seed=7, prefix="h", start=START.replace(day=3))
    reopened = asked(again, "run", "--reopen", "more came")
    assert reopened.exit_code != 0
    assert "goes over the rows of a join" in reopened.output


PAIRS = """\
name: pairing
sources:
  - {name: asks, kind: files, path: asks/*.jsonl, format: json, settle: 0 s, schema: "at TIMESTAMP"}
  - {name: bids, kind: files, path: bids/*.jsonl, format: json, settle: 0 s, schema: "at TIMESTAMP"}
time: {timestamp_by: at, out_of_orderness: 1 minute}
joins:
  - {name: near, kind: interval, left: {source: asks}, right: {source: bids}, before: 5 s, after: 5 s}
windows:
  - {name: visits, kind: session, gap: 4 s, from: near, allowed_lateness: 5 s, aggregates: {n: count(*)}}
"""


def test_rows_of_one_time_from_two_batches_are_each_once_in_a_session(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "pairing", PAIRS)
    for name in ("asks", "bids"):
        (tmp_path / name).mkdir()
    for number, (name, second) in enumerate([("asks", 10), ("bids", 8), ("bids", 11)]):
        (tmp_path / name / f"{number}.jsonl").write_text(f'{{"at": "2026-01-01T00:00:{second:02}Z"}}\n')
        go(made, options=FLUSH if number == 2 else RunOptions())
    assert sorted(row["_right_seq"] for row in committed(made, "joins/near")) == [1, 2]
    assert [row["n"] for row in committed(made, "windows/visits")] == [2]


def assert_sums_of_rows(made: Made, *, window: str, lateness: timedelta | None = None) -> None:
    """Compare a window with the final rows of its join; with a lateness only the windows that have closed."""
    warehouse, spec = made[1].warehouse, made[0].spec
    source = next(one for one in spec.windows if one.name == window).input
    rows = [row for row in table(warehouse, spec, f"joins/{source}") if row["_is_final"]]
    if window == "alone":
        rows = [row for row in rows if row["_right_seq"] is None]
    inside = defaultdict[tuple[datetime, str | None], list[dict[str, Any]]](list)
    for row in rows:
        minute = row["_timestamp"].replace(second=0, microsecond=0)
        inside[minute, row["k"] if window == "alone" else None].append(row)
    watermarks = [row["watermark"] for row in table(warehouse, spec, "watermarks") if row["watermark"] is not None]
    last = max(watermarks) if lateness is not None else datetime(9999, 1, 1, tzinfo=UTC)
    of = "v" if window == "alone" else "right_v"
    expected = {
        key: (len(of_key), sum(row[of] for row in of_key if row[of] is not None))
        for key, of_key in inside.items()
        if key[0] + timedelta(minutes=1) + (lateness or timedelta(0)) <= last
    }
    assert len(expected) > 2
    found = {
        (row["window_start"], row.get("k")): (row["n"], row["total"] or 0)
        for row in table(warehouse, spec, f"windows/{window}")
    }
    assert found == expected
