"""Records that are taken out of the log: all is as if they had never come, and they can be taken back."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import Result
from dagster import DagsterInstance
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.landing import LINES, START, assert_tables_equal_the_oracle, land, table
from tests.runs.running import Made, asked, backfill, go, rebuild, workspace_of, written
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.running.runner import RunOptions

SPEC = (
    f"name: shop\n{LINES}"
    """\
    split: k
time:
  timestamp_by: at
  out_of_orderness: 3 s
  late: {tolerance: 30 s, policy: adjust}
  early: {tolerance: 1 minute, policy: drop}
  emit: {every: 5 s}
  idle: {advance: exclude_split, timeout: 20 s}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}}
partitions: {start: 2026-01-01}
"""
)
PLAIN = (
    SPEC[: SPEC.index("    split")]
    + "time: {timestamp_by: at, out_of_orderness: 3 s}\n"
    + SPEC[SPEC.index("windows:") :]
)


def rejudge(made: Made, *words: str, reason: str = "the clock lied") -> Result:
    return asked(made, "rejudge", "--reason", reason, *words)


def in_json(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return found


def lie(folder: Path, name: str, *, at: str, got: str) -> None:
    """Write a record whose clock was wrong."""
    (folder / f"{name}.jsonl").write_text(json.dumps({"id": "lie", "at": at, "got": got, "k": "a", "v": 1}) + "\n")


def number_of_lie(made: Made) -> int:
    rows = table(made[1].warehouse, made[0].spec, "raw_events")
    [lie] = [row for row in rows if row["id"] == "lie"]
    return int(lie["_arrival_seq"])


def newest_arrival(made: Made) -> datetime:
    rows = table(made[1].warehouse, made[0].spec, "raw_events")
    found: datetime = max(row["_arrival_time"] for row in rows if row["_arrival_time"] and row["id"] != "lie")
    return found


@pytest.mark.long
def test_a_record_that_has_ruined_the_watermark_is_named_with_the_command_that_takes_it_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "shop", PLAIN)
    land(tmp_path / "in", 50, seed=3, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        after = newest_arrival(made)
        lie(tmp_path / "in", "lie", at="2099-01-01T00:00:00Z", got=(after + timedelta(seconds=1)).isoformat())
        report = go(made, instance)
        seq = number_of_lie(made)
        command = f'`tidemark rejudge SPEC --exclude {seq} --reason "…"`'
        assert any(command in said for said in report.alerts), report.alerts
        land(tmp_path / "in", 40, seed=4, prefix="b", start=after)
        go(made, instance)
        letters = table(made[1].warehouse, made[0].spec, "dead_letters")
        assert sum(row["reason"] == "out_of_order" for row in letters) > 30, "all that comes is late"
        done = rejudge(made, "--exclude", str(seq))
        assert done.exit_code == 0, done.output
        assert "shop: 1 record taken out, all tables rebuilt, as batch " in done.output
        assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec, without=[seq])
        land(tmp_path / "in", 40, seed=5, prefix="c", start=newest_arrival(made))
        go(made, instance, RunOptions(max_events_per_batch=25))
    assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec, without=[seq])
    status = asked(made, "status")
    assert (status.exit_code, "by hand" in status.output) == (0, False), status.output
    again = rejudge(made, "--exclude", str(seq))
    assert (again.exit_code, f"Record {seq} is excluded already" in again.output) == (2, True)


@pytest.mark.long
def test_a_record_that_has_moved_the_clock_is_taken_out_of_it_for_what_is_there_and_what_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "shop", SPEC)
    warehouse, spec = made[1].warehouse, made[0].spec
    land(tmp_path / "in", 50, seed=3, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        after = newest_arrival(made)
        lie(tmp_path / "in", "lie", at=after.isoformat(), got="2099-01-01T00:00:00Z")
        go(made, instance)
        seq = number_of_lie(made)
        land(tmp_path / "in", 40, seed=4, prefix="b", start=after)
        go(made, instance, RunOptions(max_events_per_batch=15))
        looked = in_json(rejudge(made, "--where", "id = 'lie'", "--dry-run", "--json"))
        done = in_json(rejudge(made, "--where", "id = 'lie'", "--json"))
        assert {**looked, "dry_run": False, "batch": done["batch"], "committed_at": done["committed_at"]} == done
        assert any(window["days"] for window in done["windows"]), "other clocks release and close otherwise"
        assert_tables_equal_the_oracle(warehouse, spec, without=[seq])
        land(tmp_path / "in", 40, seed=5, prefix="c", start=newest_arrival(made))
        go(made, instance, RunOptions(max_events_per_batch=25))
        assert_tables_equal_the_oracle(warehouse, spec, without=[seq])
        assert workspace_of(made).progress.log_clock_us() == round(newest_arrival(made).timestamp() * 1e6)
        assert rebuild(made).exit_code == 0, "it stays out"
        assert_tables_equal_the_oracle(warehouse, spec, without=[seq])
        assert backfill(*made, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
        assert_tables_equal_the_oracle(warehouse, spec, without=[seq])
        back = rejudge(made, "--include", str(seq), reason="it was right")
        assert (back.exit_code, "1 record taken back" in back.output) == (0, True), back.output
        assert_tables_equal_the_oracle(warehouse, spec)
        land(tmp_path / "in", 20, seed=6, prefix="d", start=newest_arrival(made))
        go(made, instance)
    assert_tables_equal_the_oracle(warehouse, spec)
    items = sorted(table(warehouse, spec, "log_control"), key=lambda row: int(row["_control_seq"]))
    decided = [(row["kind"], row["reason"]) for row in items if row["kind"] in ("exclude", "include")]
    assert decided[-2:] == [("exclude", "the clock lied"), ("include", "it was right")]


@pytest.mark.long
def test_what_cannot_be_taken_out_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "shop", PLAIN)
    land(tmp_path / "in", 20, seed=3)
    go(made)
    for words, said in (
        (["--exclude", "20"], "There is no record 20 in the log of shop"),
        (["--exclude", "one"], "found 'one'"),
        (["--where", "nothing > 1"], "No field named nothing"),
        (["--where", "id = 'nobody'"], "No record of shop meets the condition"),
        (["--include", "3"], "Record 3 is not excluded"),
        ([], "Use exactly one of"),
        (["--exclude", "3", "--include", "4"], "Use exactly one of"),
    ):
        done = rejudge(made, *words)
        assert (done.exit_code, said in done.output) == (2, True), (words, done.output)


MINUTES = dg.AssetKey(["shop", "windows", "minutes"])


def rejudged_by(
    job: dg.JobDefinition, instance: dg.DagsterInstance, config: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str]:
    """Run the job; return the metadata of the run, and its id."""
    done = job.execute_in_process(instance=instance, run_config={"ops": {"shop__rejudge": {"config": config}}})
    assert done.success
    [output] = [event for event in done.all_events if event.is_successful_output]
    return output.step_output_data.metadata, done.run_id


def days_told(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Return the days of a window that a run has reported, in order."""
    found = instance.fetch_materializations(MINUTES, limit=1_000).records
    return sorted(record.partition_key or "" for record in found if record.run_id == run_id)


def times_told(instance: dg.DagsterInstance) -> Counter[str | None]:
    """Count by day how often it was reported, by a run or a look."""
    return Counter(record.partition_key for record in instance.fetch_materializations(MINUTES, limit=1_000).records)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_the_job_in_dagster_shows_what_differs_first_and_reports_just_these_days_when_records_are_taken_out(
    tmp_path: Path,
) -> None:
    made = written(tmp_path, "shop", PLAIN)
    given: dict[str, Any] = {"warehouse": str(made[1].warehouse)}
    for number in range(3):
        land(tmp_path / "in", 30, number, prefix=f"a{number}", start=START + timedelta(days=2 * number))
    with dg.DagsterInstance.ephemeral() as instance:
        go(made, instance)
        job = build_definitions(made[1], [made[0]]).resolve_job_def("shop_rejudge")
        for asked_for, said in (({}, "expected: one of the three"), ({"exclude": [99]}, "There is no record 99")):
            config = {"ops": {"shop__rejudge": {"config": {**asked_for, "reason": "a test device"}}}}
            failed = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
            [step] = [one for one in failed.all_events if one.is_step_failure]
            assert said.lower() in str(step.step_failure_data.error).lower()
        decision: dict[str, Any] = {"exclude": [33, 35], "reason": "a test device"}
        looked, run_id = rejudged_by(job, instance, {**decision, "dry_run": True})
        assert (looked["dry_run"].value, days_told(instance, run_id)) == (True, []), "nothing was written"
        same = tm.rejudge(made[0].path, dry_run=True, **decision, **given)
        [days] = [window.days for window in same.windows if window.window == "minutes"]
        assert days == ("2026-01-03",)
        done, run_id = rejudged_by(job, instance, decision)
        for name in ("records taken out or back", "differences", "results", "days"):
            assert done[name] == looked[name], name
        assert done["days"].value == {window.window: [*window.days] for window in same.windows}
        assert days_told(instance, run_id) == ["2026-01-03"], "and no other day"
        land(tmp_path / "in", 30, 7, prefix="b", start=START + timedelta(days=8))
        go(made, instance)
        now = times_told(instance)  # the last day was open, and has more results now
        assert {day: now[day] for day in ("2026-01-01", "2026-01-03")} == {"2026-01-01": 1, "2026-01-03": 2}
        back = tm.rejudge(made[0].path, "it was right", include=[33, 35], **given, instance=instance)
        assert str(back).splitlines()[0] == f"shop: 2 records taken back, all tables rebuilt, as batch {back.batch}"
        assert [window.days for window in back.windows if window.window == "minutes"] == [days]
        with pytest.raises(tm.SpecError, match="None or several of"):
            tm.rejudge(made[0].path, "both", include=[1], exclude=[2], **given)
    status = asked(made, "status")
    assert "took out of the log" not in " ".join(status.output.split())
