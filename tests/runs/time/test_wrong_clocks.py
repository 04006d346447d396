"""Clocks that are ahead, of events and of arrivals: neither moves what other events are judged by."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.runs.running import Made, asked, committed, go, rows_of, written

SPEC = """\
name: clocks
sources:
  - {{name: s, kind: files, path: in/*.jsonl, format: json, order: position, settle: 0 s, arrival_time: came{more},
     schema: "at TIMESTAMP, came TIMESTAMP, k STRING"}}
time: {{timestamp_by: at, out_of_orderness: 1 minute, {time}}}
windows: [{{name: hours, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {{n: count(*)}}}}]
partitions: {{start: "2026-01-01"}}
"""
MORNING = datetime(2026, 1, 5, 8, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Rows = list[dict[str, object]]


def land(base: Path, name: str, *records: tuple[datetime, datetime, str]) -> None:
    (base / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"at": at.isoformat(), "came": came.isoformat(), "k": k}) for at, came, k in records]
    (base / "in" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def hours_of(made: Made) -> Rows:
    rows = committed(made, "windows/hours")
    return sorted(({key: row[key] for key in ("window_start", "k", "n")} for row in rows), key=str)


@pytest.mark.long
def test_a_kept_event_of_tomorrow_makes_no_other_late_and_is_in_its_day_when_that_is_computed_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(
        tmp_path, "clocks", SPEC.format(more="", time="early: {tolerance: 1 hour, policy: keep}, out_of_order: drop")
    )
    land(
        tmp_path,
        "a",
        (MORNING, MORNING, "a"),
        (MORNING + DAY, MORNING, "ahead"),
        (MORNING + HOUR, MORNING + HOUR, "a"),
    )
    go(made)
    tomorrow = MORNING + DAY + 2 * HOUR
    land(tmp_path, "b", (tomorrow, tomorrow, "a"))
    go(made)
    assert not rows_of(tmp_path, "clocks", "dead_letters")
    live = hours_of(made)
    assert [(row["window_start"], row["k"]) for row in live] == [
        (MORNING, "a"),
        (MORNING + HOUR, "a"),
        (MORNING + DAY, "ahead"),
    ]
    day = str((MORNING + DAY).date())
    done = asked(made, "backfill", "--from", day, "--to", day)
    assert done.exit_code == 0, done.stderr
    assert hours_of(made) == live, "the batch of a day before has an event of this day"
    done = asked(made, "rebuild", "--reason", "the same")
    assert done.exit_code == 0, done.stderr
    assert hours_of(made) == live


@pytest.mark.long
def test_a_record_of_a_future_arrival_arrives_when_it_is_read_and_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "clocks", SPEC.format(more="", time="late: {tolerance: 1 hour, policy: adjust}"))
    now = datetime.now(UTC)
    land(
        tmp_path,
        "a",
        (now, now, "a"),
        (now, now + 20 * DAY, "far"),
        (now, now + HOUR / 2, "near"),
    )
    report = go(made)
    log = sorted(rows_of(tmp_path, "clocks"), key=lambda row: row["_arrival_seq"])
    assert now <= log[1]["_arrival_time"] < now + HOUR / 4, "the moment at which it was read"
    assert [row["_arrival_time"] for row in (log[0], log[2])] == [now, now + HOUR / 2]
    assert log[2]["_clock"] == now + HOUR / 2, "not in twenty days"
    [item] = [item for item in rows_of(tmp_path, "clocks", "log_control") if item["kind"] == "future_arrival"]
    assert json.loads(item["argument"]) == {"records": [[1, 1]]}
    assert item["reason"] == "1 record arrived up to 19 days 23 hours ahead of this machine's clock"
    [check] = report.alerts
    assert "record 1 (source s, a.jsonl, record 2 of it)" in check

    def marks() -> dict[object, object]:
        held = committed(made, "held_events")
        return {row["k"]: row["_adjusted_by"] for row in held}

    assert marks() == {"a": [], "far": ["future_arrival"], "near": []}
    assert asked(made, "rebuild", "--reason", "the same").exit_code == 0
    assert marks() == {"a": [], "far": ["future_arrival"], "near": []}


@pytest.mark.long
def test_without_a_bound_an_arrival_is_as_it_was_read(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "clocks", SPEC.format(more=", future_arrival: off", time="out_of_order: drop"))
    came = datetime(2099, 1, 1, tzinfo=UTC)
    land(tmp_path, "a", (MORNING, came, "a"))
    go(made)
    assert [row["_arrival_time"] for row in rows_of(tmp_path, "clocks")] == [came]
    assert {item["kind"] for item in rows_of(tmp_path, "clocks", "log_control")} == {"spec"}
