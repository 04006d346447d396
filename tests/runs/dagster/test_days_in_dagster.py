"""The day partitions that Dagster shows: the days that hold results, and no other; and what it is told of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    DagsterInstance,
    EventLogEntry,
    build_sensor_context,
)

from tests.runs.running import (
    ON_INPUT,
    Made,
    assert_as_new,
    backfill,
    changed,
    go,
    workspace_of,
    written,
)
from tidemark.assets.catalog.days import partitions as day_partitions
from tidemark.assets.catalog.days.partitions import show_days_held, told_of
from tidemark.pipelines.code_location.rebuilding import RebuildSettings
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.timeops.spec import parse_spec

SPEC = """
name: gaps
sources:
  - {name: s, kind: files, path: in/*.csv, format: csv, options: {header: true}, schema: "at STRING", settle: 0 s}
time: {timestamp_by: at, out_of_orderness: 400 days}
windows:
  - {name: hourly, kind: tumbling, size: 1 hour, aggregates: {n: count(*)}, having: n > 1}
  - {name: weekly, kind: tumbling, size: 7 days, aggregates: {n: count(*)}}
"""
HOURLY, WEEKLY = AssetKey(["gaps", "windows", "hourly"]), AssetKey(["gaps", "windows", "weekly"])


def gaps(folder: Path, *days: str, more: str = "") -> Made:
    """Return a pipeline whose log has two events on some days."""
    (folder / "in").mkdir(exist_ok=True)
    land(folder, "a", *(f"{day}T{minute}:00Z" for day in days for minute in ("10:00", "10:30")))
    return written(folder, "gaps", SPEC + more)


def land(folder: Path, name: str, *times: str) -> None:
    (folder / "in" / f"{name}.csv").write_text("\n".join(["at", *times, ""]))


def shown(instance: DagsterInstance, asset: AssetKey = HOURLY) -> list[str]:
    """Return the partitions of a window, in Dagster's order."""
    return list(instance.get_dynamic_partitions("/".join(asset.path)))


def filled(instance: DagsterInstance, asset: AssetKey = HOURLY) -> list[str]:
    return sorted(day for day in instance.get_materialized_partitions(asset))


def materialize(made: Made, instance: DagsterInstance, first: str, last: str) -> None:
    """Select days in the UI and materialize them."""
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    job = build_definitions(made[1], [made[0]]).resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[HOURLY], tags=tags).success


def told(instance: DagsterInstance, asset: AssetKey = HOURLY) -> dict[str | None, tuple[str, int | None]]:
    """Return by day the run of its newest materialization, and how many rows this says that the day has."""
    found: dict[str | None, tuple[str, int | None]] = {}
    for record in instance.fetch_materializations(asset, limit=1_000).records:
        event = record.asset_materialization
        assert event is not None
        rows = event.metadata.get("dagster/partition_row_count")
        found.setdefault(event.partition, (record.run_id, None if rows is None else int(str(rows.value))))
    return found


def evaluated(instance: DagsterInstance, asset: str, check: str) -> tuple[str, bool]:
    """Return the run of the newest result of a check, and whether it passed."""
    name = AssetCheckKey(AssetKey(["gaps", asset]), check)
    event = instance.event_log_storage.get_latest_asset_check_execution_by_key([name])[name].event
    assert isinstance(event, EventLogEntry)
    assert event.dagster_event is not None
    found = event.dagster_event.asset_check_evaluation_data
    assert isinstance(found, AssetCheckEvaluation)
    return event.run_id, found.passed


def by_day(instance: DagsterInstance, check: str, asset: AssetKey = HOURLY) -> dict[str | None, tuple[str, bool]]:
    """Return by day the run of the newest result of a check, and whether it passed: of the newest materialization."""
    key = AssetCheckKey(asset, check)
    infos = {one.partition_key: one for one in instance.event_log_storage.get_asset_check_partition_info([key])}
    current = {day: one for day, one in infos.items() if day is None or one.is_current}
    return {
        day: (one.latest_planned_run_id, one.latest_execution_status.value == "SUCCEEDED")
        for day, one in current.items()
    }


def let_report(instance: DagsterInstance) -> None:
    """Let the time of `events.every` pass."""
    note = told_of(instance, parse_spec(SPEC, file="gaps.yaml"))
    assert note is not None
    text = json.dumps(asdict(replace(note, at=note.at - 86_400)))
    instance.daemon_cursor_storage.set_cursor_values({"tidemark/gaps/told": text})


ALERT = "alerts: {dead_letter_rate: {warn: 10 %, period: 1 day}}\n"


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_rebuild_tells_under_its_run_of_each_day_of_all_tables_and_of_their_checks(tmp_path: Path) -> None:
    """Days whose results are gone have no rows and stay; a window that is new has its materialization."""
    made = gaps(tmp_path, "2026-01-03", "2026-01-05", more=ALERT)
    land(tmp_path, "b", "2028-01-01T00:00:00Z", "no time", "none")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert evaluated(instance, "dead_letters", "dead_letter_rate")[1] is False
        text = SPEC.replace("timestamp_by: at", 'timestamp_by: "cast(at AS TIMESTAMP) - INTERVAL 1 DAY"')
        daily = "  - {name: daily, kind: tumbling, size: 1 day, aggregates: {n: count(*)}}\n"
        made = written(tmp_path, "gaps", text + daily + ALERT)
        assert rebuild_pipeline(*made, RebuildSettings(reason="a test"), instance=instance) is not None
        [run] = [one.run_id for one in instance.get_runs() if one.job_name == "gaps_rebuild"]
        days = {"2026-01-02": (run, 1), "2026-01-04": (run, 1)}
        gone = dict.fromkeys(["2026-01-03", "2026-01-05"], (run, 0))
        assert {day: told(instance)[day] for day in shown(instance)} == days | gone
        of_daily = AssetKey(["gaps", "windows", "daily"])
        assert told(instance, of_daily) == days
        assert shown(instance, of_daily) == [*days]
        for table in ("ordered_events", "window_results", "dead_letters", "batches"):
            assert told(instance, AssetKey(["gaps", table]))[None][0] == run, table
        for check in ("complete", "counts_agree"):  # the last event is of the year 2028, and 400 days are allowed
            assert by_day(instance, check) == dict.fromkeys({**days, **gone}, (run, True)), check
            assert by_day(instance, check, of_daily) == dict.fromkeys(days, (run, True)), check
        for table, check in (("dead_letters", "conservation"), ("window_results", "one_final_row")):
            assert evaluated(instance, table, check) == (run, True), check
        assert evaluated(instance, "dead_letters", "dead_letter_rate") == (run, False), "red stays red"
        made = changed(made, "size: 1 day, ", "size: 2 days, ")
        assert rebuild_pipeline(*made, RebuildSettings(to_spec=True), instance=instance) is not None
        alone = instance.get_runs(limit=1)[0].run_id
        assert alone != run
        now = {day: told(instance, of_daily)[day] for day in shown(instance, of_daily)}
        emptied = dict.fromkeys(["2026-01-02", "2026-01-04"], (alone, 0))
        assert now == dict.fromkeys(["2026-01-01", "2026-01-03"], (alone, 1)) | emptied
        assert told(instance)["2026-01-04"] == (run, 1), "another window"
        for check, passed in (("dead_letter_rate", False), ("late_drop_recount", True)):
            assert evaluated(instance, "dead_letters", check) == (alone, passed)
        assert rebuild_pipeline(*made, RebuildSettings(to_spec=True), instance=instance) is None


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_new_instance_is_told_of_days_that_were_written_before_a_part_of_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an instance of a version that showed days and told of none; of a day without results nothing is told."""
    made = gaps(tmp_path, "2026-01-03", "2026-01-05", more=ON_INPUT)
    land(tmp_path, "b", "2028-01-01T00:00:00Z")
    go(made)
    with DagsterInstance.ephemeral() as instance:
        days = ["2026-01-03", "2026-01-05"]
        instance.add_dynamic_partitions("gaps/windows/hourly", ["2026-01-03", "2026-01-04", "2026-01-05", "soon"])
        monkeypatch.setattr(day_partitions, "_LONGEST_S", -1)
        sensor, cursor = build_definitions(made[1], [made[0]]).resolve_sensor_def("gaps_on_new_input"), None
        for longest_s in (-1, 20):
            monkeypatch.setattr(day_partitions, "_LONGEST_S", longest_s)
            with build_sensor_context(instance, cursor=cursor) as context:
                cursor = sensor.evaluate_tick(context).cursor
            assert (cursor is None) == (longest_s < 0), "what is left is for the next look"
        assert told(instance) == dict.fromkeys(days, ("", 1))
        assert by_day(instance, "complete") == by_day(instance, "counts_agree") == dict.fromkeys(days, ("", True))
        assert shown(instance, WEEKLY) == filled(instance, WEEKLY)
        land(tmp_path, "c", "2027-12-01T00:00:00Z", "2027-12-01T00:01:00Z", "2029-12-01T00:00:00Z")
        go(made, instance)
        assert filled(instance) == [*days, "2027-12-01"]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_days_are_told_no_more_often_than_asked_for_and_at_last_by_a_look(tmp_path: Path) -> None:
    """Looks report once what runs could not report yet, and what became of days that got no more rows."""
    more = f"{ON_INPUT}events: {{every: 1 hour}}\nalerts: {{freshness: {{warn: 1 minute}}}}\n"
    made = gaps(tmp_path, "2026-01-03", "2026-01-05", more=more)
    land(tmp_path, "b", "2027-02-07T10:30:00Z")  # the watermark is on 3 January at 10:30
    sensor = build_definitions(made[1], [made[0]]).resolve_sensor_def("gaps_on_new_input")

    def look(instance: DagsterInstance, cursor: str | None = None) -> str | None:
        with build_sensor_context(instance, cursor=cursor) as context:
            return sensor.evaluate_tick(context).cursor

    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert told(instance) == by_day(instance, "complete") == {}
        land(tmp_path, "c", "2027-02-07T12:00:00Z")
        go(made, instance)
        first = instance.get_runs(limit=1)[0].run_id
        assert told(instance) == {"2026-01-03": (first, 1)}
        assert by_day(instance, "complete") == {"2026-01-03": (first, False)}, "open, and later than a minute"
        assert by_day(instance, "freshness") == {None: (first, False)}
        land(tmp_path, "d", "2027-02-08T12:00:00Z")
        go(made, instance)
        land(tmp_path, "e", "2027-02-09T12:00:00Z")
        go(made, instance)
        last = instance.get_runs(limit=1)[0].run_id
        assert look(instance) is None, "it looks again, as there is something to tell"
        assert told(instance) == {"2026-01-03": (first, 1)}
        let_report(instance)
        cursor = look(instance)
        assert cursor is not None
        assert told(instance) == {"2026-01-03": (first, 1), "2026-01-05": ("", 1)}
        assert by_day(instance, "complete") == {"2026-01-03": (last, True), "2026-01-05": (last, False)}
        assert by_day(instance, "counts_agree") == {"2026-01-03": (first, True), "2026-01-05": (last, True)}
        events = len(instance.fetch_materializations(HOURLY, limit=100).records)
        let_report(instance)
        assert look(instance) == cursor
        assert len(instance.fetch_materializations(HOURLY, limit=100).records) == events == 2


@pytest.mark.usefixtures("spark")
def test_a_day_whose_session_a_late_event_joins_to_that_of_the_day_before_is_told(tmp_path: Path) -> None:
    late = "allowed_lateness: 9 days, emit: on_time, revise_every: 0 s, aggregates: {n: count(*)}"
    rest = "time: {timestamp_by: at, out_of_order: keep}\n"
    rest += f"windows:\n  - {{name: visits, kind: session, gap: 10 minutes, {late}}}\n"
    (tmp_path / "in").mkdir()
    land(tmp_path, "a", "2026-01-03T23:50:00Z", "2026-01-04T00:05:00Z", "2026-01-05T10:00:00Z")
    made = written(tmp_path, "gaps", SPEC[: SPEC.index("time:")] + rest)
    of_visits = AssetKey(["gaps", "windows", "visits"])
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        first = instance.get_runs(limit=1)[0].run_id
        assert told(instance, of_visits) == {"2026-01-03": (first, 1), "2026-01-04": (first, 1)}
        land(tmp_path, "b", "2026-01-03T23:57:00Z")
        go(made, instance)
        second = instance.get_runs(limit=1)[0].run_id
        assert told(instance, of_visits) == {"2026-01-03": (second, 1), "2026-01-04": (second, 0)}


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_only_days_that_hold_results_are_shown_in_order_and_each_is_filled(tmp_path: Path) -> None:
    made = gaps(tmp_path, "2026-01-03", "2026-03-05")
    land(tmp_path, "b", "2027-06-01T00:00:00Z")  # has the windows before it closed; it has no result of its own
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert shown(instance) == filled(instance) == ["2026-01-03", "2026-03-05"]
        assert shown(instance, WEEKLY) == filled(instance, WEEKLY) == ["2026-01-01", "2026-03-05"]
        land(tmp_path, "c", "2026-12-01T05:00:00Z", "2026-12-01T05:01:00Z", "2026-08-01T05:00:00Z")
        land(tmp_path, "d", "2026-07-01T05:00:00Z", "2026-07-01T05:01:00Z", "2028-12-01T05:00:00Z")
        go(made, instance)
        assert shown(instance) == filled(instance) == ["2026-01-03", "2026-03-05", "2026-07-01", "2026-12-01"]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_days_with_new_results_appear_and_days_that_lose_theirs_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    made = gaps(tmp_path, "2026-01-03", "2026-01-09")
    land(tmp_path, "b", "2026-01-05T07:00:00Z", "2028-01-01T00:00:00Z")
    with DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        go(made, instance)
        assert shown(instance) == ["2026-01-03", "2026-01-09"]
        made = changed(made, "n > 1", "n > 0")
        materialize(made, instance, "2026-01-03", "2026-01-09")
        assert shown(instance) == filled(instance) == ["2026-01-03", "2026-01-05", "2026-01-09"]
        made = changed(made, "n > 0", "n = 1")
        done = backfill(*made, "--from", "2025-12-24", "--to", "2026-01-31", "--window", "hourly")
        assert done.exit_code == 0, done.output
        assert shown(instance) == ["2026-01-03", "2026-01-05", "2026-01-09"], "conditions see the loss of a shown day"
        assert [told(instance)[day][1] for day in shown(instance)] == [0, 1, 0]
        show_days_held(instance, workspace_of(made))
        assert shown(instance) == ["2026-01-05"]
        assert shown(instance, WEEKLY) == filled(instance, WEEKLY) == ["2026-01-01", "2026-01-08"]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_an_instance_without_the_list_is_given_it_by_the_first_look_and_a_day_that_a_person_adds_is_computed(
    tmp_path: Path,
) -> None:
    """Nothing that was recorded goes. Earlier versions left such instances, with a partition for each day."""
    made = gaps(tmp_path, "2026-01-03", "2026-01-09", more=ON_INPUT)
    land(tmp_path, "b", "2026-01-05T07:00:00Z", "2028-01-01T00:00:00Z")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        for day in shown(instance):
            instance.delete_dynamic_partition("gaps/windows/hourly", day)
        sensor = build_definitions(made[1], [made[0]]).resolve_sensor_def("gaps_on_new_input")
        with build_sensor_context(instance) as context:
            assert not sensor.evaluate_tick(context).run_requests
        assert shown(instance) == filled(instance) == ["2026-01-03", "2026-01-09"]
    with DagsterInstance.ephemeral() as new:
        assert go(made, new).batches == 0
        assert shown(new) == ["2026-01-03", "2026-01-09"]
        materialize(made, new, "2026-01-03", "2026-01-09")
        assert shown(new) == filled(new)
        new.add_dynamic_partitions("gaps/windows/hourly", ["2026-01-05", "soon"])
        now = changed(made, "n > 1", "n > 0")
        materialize(now, new, "2026-01-05", "2026-01-05")
        assert filled(new) == ["2026-01-03", "2026-01-05", "2026-01-09"]
        job = build_definitions(now[1], [now[0]]).resolve_implicit_global_asset_job_def()
        tags = {"dagster/partition": "soon"}
        failed = job.execute_in_process(
            instance=new, asset_selection=[HOURLY], tags=tags, partition_key="soon", raise_on_error=False
        )
        assert "The partition `soon` is not a day" in str(failed.all_events)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_days_before_those_of_the_spec_are_not_shown(tmp_path: Path) -> None:
    made = gaps(tmp_path, "2026-01-03", "2026-01-09", more="partitions: {start: 2026-01-04}\n")
    land(tmp_path, "b", "2028-01-01T00:00:00Z")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert shown(instance) == ["2026-01-09"]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_all_days_of_a_window_that_was_changed_make_it_anew_and_some_name_the_job(tmp_path: Path) -> None:
    made = gaps(tmp_path, "2026-01-03", "2026-01-09")
    land(tmp_path, "b", "2028-01-01T00:00:00Z")
    over = "  - {name: monthly, kind: tumbling, size: 30 days, from: hourly, aggregates: {n: sum(n)}}\n"
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        now = written(
            tmp_path, "gaps", (SPEC + over).replace("size: 1 hour", "size: 20 minutes").replace("n > 1", "n > 0")
        )
        job = build_definitions(now[1], [now[0]]).resolve_implicit_global_asset_job_def()
        tags = {
            "dagster/asset_partition_range_start": "2026-01-03",
            "dagster/asset_partition_range_end": "2026-01-03",
        }
        some = job.execute_in_process(
            instance=instance, asset_selection=[HOURLY], tags=tags, partition_key=None, raise_on_error=False
        )
        assert not some.success
        assert "--window monthly --window hourly` (in Dagster with the job `gaps_rebuild`)" in str(some.all_events)
        materialize(now, instance, "2026-01-03", "2026-01-09")
        assert filled(instance) == ["2026-01-03", "2026-01-09"]
        assert filled(instance, AssetKey(["gaps", "windows", "monthly"])) == ["2025-12-08", "2026-01-07"]
        assert go(now, instance).batches == 0
        assert_as_new(now, instance)
    last = workspace_of(now).batches.last_commit()
    assert last is not None
    assert (last.plan.kind, last.reason) == ("rebuild", "all days in Dagster")
