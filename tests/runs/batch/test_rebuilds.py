"""Pipelines whose tables are rebuilt from the log: after a change of the spec, and where tables were lost."""

import json
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetKey, DagsterInstance
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, SHIFTS, START, assert_tables_equal_the_oracle, land, table
from tests.runs.running import (
    FLUSH,
    Made,
    asked,
    assert_as_new,
    assert_same,
    backfill,
    changed,
    committed,
    go,
    lines,
    materializations,
    pipeline,
    public_tables,
    rebuild,
    workspace_of,
    written,
)
from tidemark.assets.catalog.days.partitions import show_days_held
from tidemark.assets.judging import replay
from tidemark.assets.rebuild import switch
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.batches.committed import consistent
from tidemark.resources.delta.lake import Lake


@pytest.mark.long
def test_after_a_change_that_needs_the_past_the_tables_are_those_of_a_new_pipeline(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "meter", "drop", source="order: position", sessions=True)
    land(tmp_path / "in_meter", 60, seed=3, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=25))
        made = changed(made, "size: 1 minute", "size: 30 s")
        done = rebuild(made, "--reason", "half a minute is enough")
        assert done.exit_code == 0, done.output
        assert "meter: rebuilt from the 60 records of the log, as batch " in done.output
        fresh = assert_as_new(made, instance)
        assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec)
        land(tmp_path / "in_meter", 50, seed=4, prefix="b")
        go(made, instance)
        go(fresh, instance)
    assert_same(made, fresh)
    assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec)
    [said] = [row for row in table(made[1].warehouse, made[0].spec, "log_control") if row["kind"] == "rebuild"]
    assert said["reason"] == "half a minute is enough"
    assert not (made[1].warehouse / "meter" / "_rebuild").exists()


TICKS = (
    f"name: ticking\n{LINES}"
    """\
    live: true
    split: k
time:
  timestamp_by: at
  out_of_orderness: 10 s
  deduplicate_by: [v, k]
  within: 5 s
  idle: {advance: exclude_split, timeout: 3 s}
  emit: {every: 7 s}
windows:
  - {name: early, kind: tumbling, size: 10 s, group_by: [k], aggregates: {n: count(*)}, emit: {early: 5 s}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}, emit: {early: 5 s}}
"""
)
OVER = (
    f"name: devices\n{LINES}"
    """\
time:
  timestamp_by: at
  over: [k]
  out_of_orderness: 10 s
  out_of_order: adjust
  late: {tolerance: 20 s, policy: adjust}
  idle: {advance: arrival_clock}
windows:
  - {name: minutes, kind: cumulative, step: 10 s, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, max_duration: 20 s, group_by: [k], aggregates: {n: count(*)}}
"""
)
LIVE = RunOptions(live=True)


def all_of(made: Made) -> dict[str, list[dict[str, Any]]]:
    return {name: committed(made, name) for name in public_tables(made)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (SHIFTS, [FLUSH, RunOptions(reopen="the late shift", max_events_per_batch=30), FLUSH]),
        (TICKS, [LIVE, RunOptions(max_events_per_batch=20), LIVE]),
        (OVER, [FLUSH, RunOptions(reopen="more"), FLUSH]),
    ],
    ids=["shifts", "ticks", "over"],
)
def test_a_rebuild_under_the_same_spec_changes_no_row_and_live_runs_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, runs: Sequence[RunOptions]
) -> None:
    monkeypatch.setattr(replay, "MOST_IN_A_PIECE", 50)
    file, settings = made = written(tmp_path, "spec", text)
    start = START
    with DagsterInstance.ephemeral() as instance:
        for number, options in enumerate(runs):
            land(tmp_path / "in", 40, seed=number, start=start, prefix=f"f{number}", files=1)
            newest = max(row["got"] or "" for row in lines(tmp_path / "in" / f"f{number}0.jsonl"))
            start = datetime.fromisoformat(newest) - timedelta(seconds=30)
            before = go(made, instance, options)
            assert before.batches
            if number == len(runs) - 2:
                found, position = all_of(made), workspace_of(made).progress.position()
                assert rebuild(made).exit_code == 0
                assert all_of(made) == found
                assert workspace_of(made).progress.position() == position
    flushed = runs[-1] is FLUSH
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=flushed)
    found = all_of(made)
    assert rebuild(made).exit_code == 0, "of one that was made anew before"
    assert all_of(made) == found
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=flushed)


def test_a_reader_sees_the_old_tables_or_the_new_ones_and_never_a_mix(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(tmp_path, "meter", "adjust", sparse=False)
    land(tmp_path / "in_meter", 60, seed=3)
    go(made)
    warehouse, old = made[1].warehouse, seen_by_a_reader(made)
    first = consistent(warehouse, "meter")
    made = changed(made, "out_of_orderness: 10 s", "out_of_orderness: 1 s")
    seen: list[dict[str, list[str]]] = []

    def look(lake: Lake, _table: str, _version: int) -> None:
        if lake.root == warehouse / "meter":
            seen.append(seen_by_a_reader(made))

    monkeypatch.setattr(Lake, "_committed", look)
    assert rebuild(made).exit_code == 0
    monkeypatch.undo()
    new = seen_by_a_reader(made)
    assert all(old[name] != new[name] for name in old)
    assert seen == [*[old] * (len(seen) - 1), new]
    assert len(seen) > len(old)
    lake = Lake(warehouse / "meter")
    assert {name: rows_at(lake, name, first[name][1]) for name in old} == old, "the old state stays readable"


def seen_by_a_reader(made: Made) -> dict[str, list[str]]:
    lake = Lake(made[1].warehouse / made[0].spec.name)
    found = consistent(made[1].warehouse, made[0].spec.name)
    names = ("ordered_events", "held_events", "dead_letters", "watermarks", "windows/per_minute")
    return {name: rows_at(lake, name, found[name][1]) for name in names}


def rows_at(lake: Lake, name: str, version: int) -> list[str]:
    return sorted(map(str, lake.rows(name, version).to_pylist()))


@pytest.mark.long
def test_live_runs_go_on_while_the_log_is_judged_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(tmp_path, "meter", "drop", sparse=False, source="order: position")
    land(tmp_path / "in_meter", 50, seed=3, prefix="a")
    catch_up, turns = Shadow.catch_up, count()
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, "out_of_orderness: 10 s", "out_of_orderness: 1 s")

        def then_a_live_run(shadow: Shadow, *, is_last: bool = False) -> None:
            catch_up(shadow, is_last=is_last)
            if next(turns) == 0:
                land(tmp_path / "in_meter", 40, seed=4, prefix="b")
                assert go(made, instance, RunOptions(max_events_per_batch=15)).batches == 3

        monkeypatch.setattr(Shadow, "catch_up", then_a_live_run)
        assert rebuild(made).exit_code == 0
        monkeypatch.undo()
        assert_as_new(made, instance)
    status = asked(made, "status")
    assert status.exit_code == 0, status.output
    assert "by hand" not in status.output, "the counts of batches are those of the tables"
    page = asked(made, "report", "--out", str(tmp_path / "page"))
    assert page.exit_code == 0, page.output
    live = committed(made, "windows/per_minute")
    assert backfill(*made, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    assert committed(made, "windows/per_minute") == live


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_the_job_in_dagster_makes_the_tables_anew_and_shows_what_it_did(tmp_path: Path) -> None:
    made = pipeline(tmp_path, "meter", "drop", sparse=False)
    land(tmp_path / "in_meter", 60, seed=3)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, "size: 1 minute", "size: 1 day")
        file, settings = made
        shown = "meter/windows/per_minute"
        assert instance.get_dynamic_partitions(shown)
        job = build_definitions(settings, [file]).resolve_job_def("meter_rebuild")
        config = {"ops": {"meter__rebuild": {"config": {"reason": "days are enough"}}}}
        done = job.execute_in_process(instance=instance, run_config=config)
        assert done.success
        days = instance.get_materialized_partitions(AssetKey(["meter", "windows", "per_minute"]))
        assert {*instance.get_dynamic_partitions(shown)} == days, "assets downstream see that they have no rows now"
        show_days_held(instance, workspace_of(made))
        assert instance.get_dynamic_partitions(shown) == [], "no window of a day has closed"
        shown_last = materializations(instance, AssetKey(["meter", "ordered_events"]))[0]
        last = workspace_of(made).batches.last_commit()
        assert last is not None
        assert (last.plan.kind, last.reason) == ("rebuild", "days are enough")
        assert shown_last["batch"].value == str(last.batch_id)
        shutil.rmtree(tmp_path / "warehouse" / "meter" / "raw_events")
        broken = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
        [failed] = [one for one in broken.all_events if one.is_step_failure]
        assert "raw_events is gone" in str(failed.step_failure_data.error)


def test_of_a_pipeline_that_has_processed_nothing_there_is_nothing_to_make_anew(tmp_path: Path) -> None:
    made = pipeline(tmp_path, "meter", "drop", sparse=False)
    done = rebuild(made)
    assert (done.exit_code, "has processed nothing" in done.output) == (1, True)
    assert not (made[1].warehouse / "meter" / "_rebuild").exists()


@pytest.mark.long
def test_a_type_that_the_log_does_not_have_is_refused_and_what_was_begun_under_another_spec_is_thrown_away(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(tmp_path, "meter", "drop", sparse=False)
    land(tmp_path / "in_meter", 30, seed=3)
    go(made)
    before = consistent(made[1].warehouse, "meter")
    refused = rebuild(changed(made, "v INT", "v DATE"))
    assert refused.exit_code == 2, refused.output
    assert "`v` was INT, is DATE: existing values may not fit" in refused.output
    made = changed(made, "v DATE", "v INT")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(switch, "_switch", stop)
    stopped = rebuild(changed(made, "size: 1 minute", "size: 30 s"))
    assert stopped.exit_code == 130, stopped.output
    assert consistent(made[1].warehouse, "meter") == before, "nothing has changed"
    monkeypatch.undo()
    status = asked(made, "status")
    assert "rebuild of all tables, 30 of 30 records judged again; the same" in " ".join(status.output.split())
    again = rebuild(changed(made, "size: 30 s", "size: 20 s"))
    assert again.exit_code == 0, again.output
    assert "what another rebuild has left, which did not end, is thrown away" in again.output
    sizes = {row["window_end"] - row["window_start"] for row in committed(made, "windows/per_minute")}
    assert sizes == {timedelta(seconds=20)}


@pytest.mark.long
def test_the_change_feed_of_a_window_tells_the_rows_that_differ_and_upkeep_removes_what_is_left(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(tmp_path, "meter", "drop", sparse=False, source="order: position")
    made = changed(made, "size: 1 minute", "size: 1 minute\n    change_feed: true")
    land(tmp_path / "in_meter", 120, seed=3)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        before = committed(made, "windows/per_minute")
        folder = tmp_path / "warehouse" / "meter" / "windows" / "per_minute"
        version = DeltaTable(folder).version()
        made = changed(made, "change_feed: true", "change_feed: true\n    having: n > 3")
        monkeypatch.setattr(Shadow, "discard", lambda _: None)
        assert rebuild(made).exit_code == 0
        assert_as_new(made, instance)
    now = committed(made, "windows/per_minute")
    assert 0 < len(now) < len(before)
    feed = pa.table(DeltaTable(folder).load_cdf(starting_version=version + 1).read_all()).to_pylist()
    assert [row["_change_type"] for row in feed] == ["delete"] * (len(before) - len(now))
    assert (tmp_path / "warehouse" / "meter" / "_rebuild").exists(), "it died before it removed its tables"
    tidy = asked(made, "maintain")
    assert tidy.exit_code == 0, tidy.output
    assert not (tmp_path / "warehouse" / "meter" / "_rebuild").exists()


@pytest.mark.long
def test_columns_that_came_later_and_wider_types_are_in_the_tables_made_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "meter", "drop", sparse=False, source="order: position")
    land(tmp_path / "in_meter", 40, seed=3, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(made, "v INT", "v BIGINT, extra STRING")
        made = changed(made, "group_by: [k]", "group_by: [k, extra]")
        assert rebuild(made).exit_code == 0
        fresh = assert_as_new(made, instance)
        file = tmp_path / "in_meter" / "b.jsonl"
        line = {"id": "late", "at": "2026-01-02T00:30:00Z", "got": "2026-01-02T00:30:00Z", "v": 2**40, "extra": "x"}
        file.write_text(json.dumps(line) + "\n")
        for one in (made, fresh):
            go(one, instance)
    assert_same(made, fresh)
    assert [row["v"] for row in committed(made, "held_events") if row["extra"] == "x"] == [2**40]
