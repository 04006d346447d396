"""Old records that `retention` removes from the log: runs continue as with them, and who needs them is told so."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.runs.batch.test_retention import START, audited, land, maintained, pipeline, refused, rows, run_by_run
from tests.runs.running import Made, asked, rebuild, workspace_of, written
from tidemark.assets.log.exclusions import arrivals_of
from tidemark.resources.batches.plans import Counts
from tidemark.timeops.errors import SpecError

DAYS = 6
KEPT_FROM = START.replace(day=START.day + DAYS - 1 - 2)
FIRST = 60
"""The first record of the batch that reaches into that day."""
RETENTION = "retention: {raw_events: 2 days}\n"
BY_KEY = (("  unit:", "  over: [k]\n  unit:"),)
"""Replacements in the spec of tests/runs/batch/test_retention.py, for one timeline of each key."""
SPECS = {
    "one timeline": (),
    "timelines": BY_KEY,
    "adjusted, in periods": (
        *BY_KEY,
        ("out_of_order: keep", "out_of_order: adjust"),
        ("allowed_lateness: 1 minute, emit: on_time, history: true,", ""),
        ("from: hourly, allowed_lateness: 1 minute,", "from: hourly,"),
        ("  unit:", "  emit: {every: 2 hours}\n  unit:"),
    ),
}
Replaced = Sequence[tuple[str, str]]


def pair_of(base: Path, replaced: Replaced, retention: str = RETENTION) -> tuple[Made, Made]:
    """Return a pipeline with `retention` that was run and maintained every two days, and the same one without."""
    made = []
    for name, more in (("short", retention), ("whole", "")):
        text = pipeline(base, name, more)[0].path.read_text()
        for old, new in replaced:
            text = text.replace(old, new)
        made.append(written(base / name, name, text))
    short, whole = made
    assert [*run_by_run(base, short, whole)][-1] == DAYS - 1
    return short, whole


@pytest.fixture(scope="module", params=SPECS)
def both(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Made, Made]:
    return pair_of(tmp_path_factory.mktemp("log"), SPECS[request.param])


def explained(made: Made, *words: str) -> Any:
    done = asked(made, "explain", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.long
def test_the_log_loses_whole_batches_of_old_days_and_every_other_table_is_as_with_them(
    both: tuple[Made, Made],
) -> None:
    short, whole = both
    log = rows(whole, "raw_events")
    assert rows(short, "raw_events") == [row for row in log if row["_arrival_seq"] >= FIRST]
    assert {row["_arrival_seq"] for row in log if row["_clock"] >= KEPT_FROM} == {*range(FIRST + 30, 30 * DAYS)}
    for table in workspace_of(whole).tables:
        if table not in ("raw_events", "log_control", "watermarks", "_state/files"):
            assert rows(short, table) == rows(whole, table), table
    total = Counts.sum(commit.counts for commit in workspace_of(short).batches.counted())
    assert total.removed("raw_events") == total.removed("raw_events/lines") == FIRST
    status = json.loads(asked(short, "status", "--json").stdout)
    assert (status["kept_from"], status["by_hand"]) == ({"raw_events": KEPT_FROM.date().isoformat()}, [])


@pytest.mark.long
def test_an_audit_judges_the_rest_of_the_log_and_says_what_it_did_not(both: tuple[Made, Made]) -> None:
    short, whole = both
    assert audited(short) == audited(whole) == []
    said = asked(short, "audit").output
    assert f"verdicts before record {FIRST} were not recounted: `retention` has removed these records" in said


@pytest.mark.long
def test_every_record_that_stays_has_the_story_that_it_has_in_a_whole_log(both: tuple[Made, Made]) -> None:
    short, whole = both
    for seq in (FIRST, 67, 73, 101, 109, 137, 179):
        here, there = explained(short, "--seq", str(seq)), explained(whole, "--seq", str(seq))
        removed = {window["name"] for window in here["windows"] if window["outcome"] == "removed"}
        assert removed <= {"visits"}, "only sessions depend on other records"
        for story in (here, there):
            story["windows"] = [window for window in story["windows"] if window["name"] not in removed]
            story.pop("admitted_by")  # a longer tolerance begins to hold with the first record
        assert here == there, seq
    window = ("--window", "hourly", "--start", "2026-03-04T10:00:00Z")
    assert explained(short, *window) == explained(whole, *window)
    found = asked(short, "explain", "--where", "_arrival_seq IN (97, 101, 170)", "--json").stdout
    assert len(found.splitlines()) == 3
    assert asked(short, "advise").exit_code == 0
    assert asked(short, "report", "--out", str(short[0].path.parent / "page.html")).exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("both", ["timelines"], indirect=True)
def test_whoever_needs_a_record_that_is_gone_is_told_so_and_nothing_changes(both: tuple[Made, Made]) -> None:
    short, _ = both
    before = {table: rows(short, table) for table in workspace_of(short).tables}
    gone = f"`retention` has removed the records of short before {FIRST}"
    because = ("--reason", "no")
    for words in (
        ("rebuild",),
        ("rebuild", "--window", "visits"),
        ("replay", "--where", "reason = 'late'", *because),
        ("rejudge", "--exclude", "100,101", *because),
        ("forget", "--where", "_arrival_seq = 100", *because),
        ("simulate", "--set", "time.out_of_orderness=9s"),
        ("backfill", "--from", "2026-03-02", "--to", "2026-03-02", "--window", "hourly"),
    ):
        said = refused(short, *words)
        assert gone in " ".join(said.split()), (words, said)
    assert "Record 3 of short is gone" in refused(short, "explain", "--seq", "3")
    said = refused(short, "explain", "--window", "hourly", "--start", "2026-03-02T20:00:00Z")
    assert "may hold records that `retention` has removed" in said
    assert f"two numbers from {FIRST} to" in refused(short, "capture", "--seq", "50..69")
    assert asked(short, "capture", "--seq", "100..105").exit_code == 0
    assert len(arrivals_of(workspace_of(short), 0, 0)) == 0, "no record is none that is gone"
    with pytest.raises(SpecError, match="this needs its records from 59 on"):
        arrivals_of(workspace_of(short), FIRST - 1, FIRST + 1)
    assert asked(short, "plan", "--set", "time.out_of_orderness=9s").exit_code == 0, "it says what a run would do"
    assert {table: rows(short, table) for table in workspace_of(short).tables} == before
    assert audited(short) == []


@pytest.mark.long
@pytest.mark.parametrize("both", ["timelines"], indirect=True)
def test_days_whose_records_are_left_are_backfilled_as_with_all(both: tuple[Made, Made], tmp_path: Path) -> None:
    short, _ = both
    base = short[0].path.parent
    shutil.copytree(base.parent, tmp_path / "copy")
    copy = written(tmp_path / "copy" / "short", "short", short[0].path.read_text())
    before = rows(copy, "windows/hourly")
    done = asked(copy, "backfill", "--from", "2026-03-05", "--to", "2026-03-05", "--window", "hourly")
    assert done.exit_code == 0, done.output
    assert rows(copy, "windows/hourly") == before
    assert audited(copy) == []


@pytest.mark.long
def test_after_a_rebuild_records_go_once_the_batches_after_it_are_old(spark: SparkSession, tmp_path: Path) -> None:
    short, _ = pair_of(tmp_path, BY_KEY, "retention: {raw_events: 20 days}\n")
    assert rebuild(short).exit_code == 0
    made = written(tmp_path / "short", "short", short[0].path.read_text().replace("20 days", "2 days"))
    maintained(made)
    assert len(rows(made, "raw_events")) == 30 * DAYS, "a rebuild leaves the state at its end alone"
    for day in (DAYS, DAYS + 3):
        land(tmp_path, day)
        assert asked(made, "run").exit_code == 0
    maintained(made)
    seqs = sorted(row["_arrival_seq"] for row in rows(made, "raw_events"))
    assert seqs == [*range(30 * (DAYS + 1), 30 * (DAYS + 2))]
    assert audited(made) == []


@pytest.mark.long
def test_a_changed_spec_judges_what_comes_next_and_questions_know_both(spark: SparkSession, tmp_path: Path) -> None:
    short, whole = pair_of(tmp_path, BY_KEY)
    for name in ("short", "whole"):
        path = tmp_path / name / f"{name}.yaml"
        path.write_text(path.read_text().replace("out_of_orderness: 10 s", "out_of_orderness: 2 minutes"))
    short, whole = (
        written(each[0].path.parent, each[0].spec.name, each[0].path.read_text()) for each in (short, whole)
    )
    for day in (DAYS, DAYS + 1):
        land(tmp_path, day)
        for made in (short, whole):
            ran = asked(made, "run")
            assert ran.exit_code == 0, ran.output
    maintained(short)
    assert rows(short, "ordered_events") == rows(whole, "ordered_events")
    assert audited(short) == []
    seq = str(30 * DAYS + 40)
    assert explained(short, "--seq", seq)["_watermark"] == explained(whole, "--seq", seq)["_watermark"]
