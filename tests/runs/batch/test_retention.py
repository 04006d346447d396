"""Old rows that `retention` removes: what stays is as without it, and every command knows what is gone."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.clock import FixedClock
from tests.runs.running import Made, asked, commit_dies, committed, rebuild, workspace_of, written
from tidemark.assets.upkeep.removal import old_rows
from tidemark.resources.batches.plans import Counts

pytestmark = pytest.mark.long

START = datetime(2026, 3, 1, tzinfo=UTC)
SPEC = """\
name: {name}
sources:
  - name: lines
    kind: files
    path: ../in/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v BIGINT"
    arrival_time: got
    settle: 0 s
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 10 s
  out_of_order: keep
  late: {{tolerance: 2 hours, policy: drop}}
  deduplicate_by: [id]
  within: 1 day
windows:
  - {{name: hourly, kind: tumbling, size: 1 hour, allowed_lateness: 1 minute, emit: on_time, history: true,
     group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
  - {{name: visits, kind: session, gap: 40 minutes, group_by: [k], aggregates: {{n: count(*)}}}}
  - {{name: daily, kind: tumbling, size: 1 day, from: hourly, allowed_lateness: 1 minute, group_by: [k],
     aggregates: {{n: sum(n)}}}}
alerts: {{dead_letter_rate: {{warn: 90 %, period: 1 day}}}}
"""
RETENTION = "retention: {dead_letters: 3 days, ordered_events: 2 days, windows: 2 days}\n"
RUNS = ((0, 1), (2, 3), (4, 5))
"""The days that each run reads."""
BY_RECORD = {"dead_letters": 3, "ordered_events": 2}
"""Tables whose rows go by the record, and how many days of them stay."""


def records_of(day: int) -> list[dict[str, Any]]:
    """Return what arrives on a day: some come late for windows or by the rules, twice, or without a time."""
    found = []
    for n in range(30):
        got = START + timedelta(days=day, minutes=45 * n)
        late_s = {7: 5_000, 11: 9_000, 19: 4_000}.get(n, n % 3)
        at = None if n == 13 else (got - timedelta(seconds=late_s)).isoformat()
        name = f"e{day}-{n - 1 if n == 17 else n}"
        found.append({"id": name, "at": at, "got": got.isoformat(), "k": "ab"[n % 2], "v": n})
    return found


def land(base: Path, day: int) -> None:
    (base / "in").mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in records_of(day))
    (base / "in" / f"day{day}.jsonl").write_text(text)


def pipeline(base: Path, name: str, more: str = "") -> Made:
    (base / name).mkdir(exist_ok=True)
    return written(base / name, name, SPEC.format(name=name) + more)


def maintained(made: Made, *words: str) -> str:
    done = asked(made, "maintain", *words)
    assert done.exit_code == 0, done.output
    return done.output


def audited(made: Made) -> list[dict[str, Any]]:
    done = asked(made, "audit", "--json")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def rows(made: Made, table: str) -> list[dict[str, Any]]:
    return committed(made, table)


def kept_of(made: Made, table: str, day: int) -> list[dict[str, Any]]:
    """Return the rows that a pipeline without `retention` has, and one with it keeps, after the run of a day."""
    found = rows(made, table)
    if table in BY_RECORD:
        first = START + timedelta(days=day - BY_RECORD[table])
        seqs = [row["_arrival_seq"] for row in rows(made, "raw_events") if row["_clock"] < first]
        return [row for row in found if row["_arrival_seq"] >= len(seqs)]
    first = START + timedelta(days=day - 2)
    return [row for row in found if row["window_end"] > first or not row["_is_final"]]


TABLES = (*BY_RECORD, "windows/hourly", "windows/visits", "windows/daily")


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, Made]:
    """Return a pipeline with `retention` that was run and maintained every two days, and the same one without."""
    base = tmp_path_factory.mktemp("retention")
    short, whole = pipeline(base, "short", RETENTION), pipeline(base, "whole")
    for day in run_by_run(base, short, whole):
        for table in TABLES:
            assert rows(short, table) == kept_of(whole, table, day), (day, table)
    return short, whole


def run_by_run(base: Path, short: Made, whole: Made) -> Iterator[int]:
    """Run two pipelines every two days, and maintain the short one; yield the last day of each run."""
    for days in RUNS:
        for day in days:
            land(base, day)
        for made in (short, whole):
            ran = asked(made, "run")
            assert ran.exit_code == 0, ran.output
        maintained(short)
        yield days[-1]


def test_run_by_run_all_that_is_kept_is_as_without_retention_and_no_state_differs(both: tuple[Made, Made]) -> None:
    short, whole = both
    assert rows(short, "raw_events") == rows(whole, "raw_events")
    assert rows(short, "held_events") == rows(whole, "held_events")
    for table in (
        name for name in workspace_of(whole).tables if name.startswith("_state/") and name != "_state/files"
    ):
        assert rows(short, table) == rows(whole, table), table
    for table in TABLES:
        assert 0 < len(rows(short, table)) < len(rows(whole, table)), table
    history = rows(short, "history/hourly")
    assert history == [row for row in rows(whole, "history/hourly") if row["window_end"] > START + timedelta(days=3)]


def test_counts_say_what_is_gone_and_an_audit_finds_nothing_wrong(both: tuple[Made, Made]) -> None:
    short, whole = both
    assert audited(whole) == []
    assert audited(short) == []
    total = Counts.sum(commit.counts for commit in workspace_of(short).batches.counted())
    gone = {table: len(rows(whole, table)) - len(rows(short, table)) for table in TABLES}
    assert {table: total.removed(table) for table in TABLES if table != "dead_letters"} | {
        "dead_letters": total.removed_letters
    } == gone
    status = json.loads(asked(short, "status", "--json").stdout)
    assert status["by_hand"] == []
    assert status["kept_from"] == {
        "dead_letters": "2026-03-03",
        "ordered_events": "2026-03-04",
        "windows": "2026-03-04",
    }


@pytest.fixture
def short(both: tuple[Made, Made], tmp_path: Path) -> Made:
    """Return a copy of the pipeline with `retention`, and of its input."""
    base = both[0][0].path.parent.parent
    shutil.copytree(base / "in", tmp_path / "in")
    shutil.copytree(base / "short", tmp_path / "short")
    return pipeline(tmp_path, "short", RETENTION)


def refused(made: Made, word: str, *words: str) -> str:
    done = asked(made, word, *words)
    assert done.exit_code in (1, 2), done.output
    return done.output


def test_who_needs_what_is_gone_is_told_so_and_others_go_on(both: tuple[Made, Made], short: Made) -> None:
    whole = both[1]
    assert "whose dead letters" not in asked(short, "explain", "--seq", "170").output
    said = refused(short, "explain", "--seq", "3")
    assert "`retention` has removed the dead letters of records before 60" in said
    for seq in (61, 66, 67, 71, 100, 170):  # dead letters of records from 60 on are kept, events from 90 on
        assert asked(short, "explain", "--seq", str(seq), "--json").stdout == (
            asked(whole, "explain", "--seq", str(seq), "--json").stdout
        )
    said = refused(short, "backfill", "--from", "2026-03-01", "--to", "2026-03-01")
    assert "Results of hourly from before 2026-03-04 were removed" in said
    assert asked(short, "backfill", "--from", "2026-03-04", "--to", "2026-03-05").exit_code == 0
    assert "`retention` has removed the ones of records before 60" in refused(
        short, "replay", "--where", "_arrival_seq = 7", "--reason", "no"
    )
    story = asked(short, "explain", "--window", "hourly", "--start", "2026-03-01T03:00:00Z").output
    assert "`retention` has removed final results that end by 2026-03-04 00:00:00" in story
    assert "`retention` has removed the dead letters of records before 60" in story
    case = asked(short, "capture", "--seq", "30..65").stdout
    assert "# How it judged records before 60 is not known" in case
    simulated = json.loads(asked(short, "simulate", "--set", "time.out_of_orderness=10s", "--json").stdout)
    today, other = simulated
    assert other["dead_letters"] == today["dead_letters"]
    changes = {name: (of["new"], of["gone"], of["changed"]) for name, of in other["windows"].items()}
    assert changes == dict.fromkeys(("hourly", "visits", "daily"), (0, 0, 0))
    assert audited(short) == []


def test_what_is_computed_again_is_whole_again_and_the_next_upkeep_removes_what_is_old(
    both: tuple[Made, Made], short: Made
) -> None:
    whole = both[1]
    kept = {table: rows(short, table) for table in TABLES}
    assert "would remove\n  nothing" in maintained(short, "--dry-run")
    assert rebuild(short, "--window", "visits").exit_code == 0
    assert rows(short, "windows/visits") == rows(whole, "windows/visits")
    assert rows(short, "windows/hourly") == kept["windows/hourly"]
    assert audited(short) == []
    assert rebuild(short).exit_code == 0
    for table in TABLES:
        assert rows(short, table) == rows(whole, table), table
    assert json.loads(asked(short, "status", "--json").stdout)["kept_from"] == {}
    assert audited(short) == []
    gone = {table: len(rows(whole, table)) - len(kept[table]) for table in TABLES}
    said = maintained(short, "--dry-run")
    for table, n in gone.items():
        assert any(table in line and f" {n:,} old rows" in line for line in said.splitlines()), (table, said)
    assert rows(short, "dead_letters") == rows(whole, "dead_letters"), "a dry run writes nothing"
    assert "old rows, kept from 2026-03-04 on" in maintained(short)
    for table in TABLES:
        assert rows(short, table) == kept[table], table
    assert audited(short) == []


def test_nothing_goes_while_a_batch_waits_or_the_clock_is_ahead(short: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pipeline(short[0].path.parent.parent, "short", RETENTION.replace("windows: 2 days", "windows: 1 day"))
    land(short[0].path.parent.parent, 6)
    with monkeypatch.context() as patched:
        commit_dies(patched, lambda plan: plan.kind == "process")
        assert asked(made, "run").exit_code == 1
    assert "is not committed: old rows are removed once it is" in maintained(made)
    assert asked(made, "run").exit_code == 0
    at = START + timedelta(days=1)
    assert old_rows(replace(workspace_of(made), clock=FixedClock(at))).waits.startswith("the clock of the log is")
    assert old_rows(workspace_of(made)).rows > 0


JOINED = """\
name: joined
sources:
  - {name: asks, kind: files, path: asks/*.jsonl, format: json, arrival_time: got, settle: 0 s,
     schema: "id STRING, at STRING, got STRING, k STRING, v BIGINT"}
  - {name: bids, kind: files, path: bids/*.jsonl, format: json, arrival_time: got, settle: 0 s,
     schema: "id STRING, at STRING, got STRING, k STRING, v BIGINT"}
time: {timestamp_by: at, over: [k], out_of_orderness: 10 s}
joins:
  - {name: near, kind: interval, left: {source: asks}, right: {source: bids}, on: [k], before: 1 minute,
     after: 0 s, how: left}
windows:
  - {name: hourly, kind: tumbling, size: 1 hour, group_by: [k], change_feed: true, aggregates: {n: count(*)}}
alerts: {dead_letter_rate: {warn: 90 %, period: 1 day}}
retention: {ordered_events: 2 days, windows: 1 day}
"""


def test_answers_of_joins_and_rows_with_a_change_feed_go_and_each_timeline_keeps_its_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "joined", JOINED)
    for name in ("asks", "bids"):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(row) + "\n" for day in range(4) for row in records_of(day) if row["at"])
        (tmp_path / name / "all.jsonl").write_text(text)
    assert asked(made, "run").exit_code == 0
    before = {table: rows(made, table) for table in ("joins/near", "windows/hourly", "ordered_events")}
    assert "old rows" in maintained(made)
    first = START + timedelta(days=2)
    assert rows(made, "joins/near") == [row for row in before["joins/near"] if row["_timestamp"] >= first]
    assert rows(made, "windows/hourly") == [row for row in before["windows/hourly"] if row["window_end"] > first]
    events = rows(made, "ordered_events")
    assert 0 < len(events) < len(before["ordered_events"])
    assert all(row in before["ordered_events"] for row in events)
    assert audited(made) == []
    explained = asked(made, "explain", "--seq", "0").output
    assert "`retention` has removed old answers, among them the ones that name it" in explained
    land_more = "".join(json.dumps(row) + "\n" for row in records_of(5) if row["at"])
    (tmp_path / "asks" / "more.jsonl").write_text(land_more)
    assert asked(made, "run").exit_code == 0
    assert "old rows" in maintained(made)
    assert audited(made) == []
