"""Schedules and sensors: when a run is launched, when not, and what the reason says."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    DependencyDefinition,
    Failure,
    GraphDefinition,
    In,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    Out,
    Output,
    RetryPolicy,
    RunRequest,
    SkipReason,
    build_schedule_context,
    build_sensor_context,
    op,
)
from pyspark.sql import SparkSession

from tests import ROOT
from tests.clock import FixedClock
from tests.runs.landing import land
from tests.runs.running import begin_elsewhere, pipeline, scheduled
from tidemark.assets import live
from tidemark.assets.catalog.runs import FAILURE_TAG, LASTING, PROCESS_TAG, say_who_runs
from tidemark.assets.ingestion.pending_work import look
from tidemark.assets.ingestion.raw_events import ingest
from tidemark.assets.schemas import create_tables
from tidemark.pipelines.code_location.launching import WORK_TAG, decide, end_dead_runs
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.plans import BatchOwner, process_of, this_process
from tidemark.resources.last_look import LastLook
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import InputError

NIGHTS = {"maintain_nightly": "*", "audit_weekly": "sun"}
"""The schedules that every pipeline has, with the days of the week on which they are due."""


def sensor_of(made: tuple[SpecFile, Settings]) -> "Sensor":
    return Sensor(build_definitions(made[1], [made[0]]), made[0].spec.name)


class Sensor:
    """The sensor of a pipeline, with the cursor that Dagster keeps for it."""

    def __init__(self, definitions: Definitions, name: str) -> None:
        self._sensor = definitions.resolve_sensor_def(f"{name}_on_new_input")
        self._cursor: str | None = None

    def tick(self, instance: DagsterInstance) -> RunRequest | str:
        """Return what one tick asks for; the reason of one that asks for nothing."""
        with build_sensor_context(instance, cursor=self._cursor) as context:
            found = self._sensor.evaluate_tick(context)
        self._cursor = found.cursor
        if found.run_requests:
            [request] = found.run_requests
            return request
        return found.skip_message or ""


def reason(asked: RunRequest | str) -> str:
    assert isinstance(asked, str), f"nothing was to be launched, and {asked} was"
    return asked


def request(asked: RunRequest | str) -> RunRequest:
    assert isinstance(asked, RunRequest), asked
    return asked


def launched(instance: DagsterInstance, file: SpecFile, asked: RunRequest, status: DagsterRunStatus) -> DagsterRun:
    """Return what Dagster keeps of a run that was asked for."""
    return instance.add_run(DagsterRun(job_name=job_name(file), tags=dict(asked.tags), status=status))


def test_only_a_spec_that_asks_for_it_has_a_schedule_or_a_sensor_which_are_then_switched_on(tmp_path: Path) -> None:
    by_hand, settings = pipeline(tmp_path, "by_hand", "keep")
    by_cron, _ = scheduled(tmp_path, "by_cron", 'schedule: "*/5 * * * *"\n')
    by_input, _ = scheduled(tmp_path, "by_input")
    made = build_definitions(settings, [by_hand, by_cron, by_input])
    in_the_night = {f"{file.spec.name}_{when}" for file in (by_hand, by_cron, by_input) for when in NIGHTS}
    assert {schedule.name for schedule in made.schedules or ()} == {"by_cron_schedule"} | in_the_night
    assert [sensor.name for sensor in made.sensors or ()] == ["by_input_on_new_input"]
    resolved = made.resolve_schedule_def("by_cron_schedule")
    assert (resolved.cron_schedule, resolved.execution_timezone) == ("*/5 * * * *", "UTC")
    assert resolved.default_status.value == "RUNNING"
    watching = made.resolve_sensor_def("by_input_on_new_input")
    assert (watching.minimum_interval_seconds, watching.default_status.value) == (9, "RUNNING")


def test_schedules_of_upkeep_and_audits_are_off_at_first_and_begin_at_different_minutes(tmp_path: Path) -> None:
    files = [pipeline(tmp_path, f"p{number}", "keep")[0] for number in range(5)]
    made = build_definitions(pipeline(tmp_path, "p0", "keep")[1], files)
    for when, weekday in NIGHTS.items():
        schedules = [made.resolve_schedule_def(f"{file.spec.name}_{when}") for file in files]
        assert {schedule.default_status.value for schedule in schedules} == {"STOPPED"}
        fields = [str(schedule.cron_schedule).split() for schedule in schedules]
        assert all(1 <= int(hour) < 4 and rest == ["*", "*", weekday] for _, hour, *rest in fields), fields
        assert len({(minute, hour) for minute, hour, *_ in fields}) == len(files)


def test_a_night_runs_its_job_once_there_are_tables(tmp_path: Path, spark: SparkSession) -> None:
    file, settings = pipeline(tmp_path, "young", "keep")
    made = build_definitions(settings, [file])
    for when in NIGHTS:
        schedule = made.resolve_schedule_def(f"young_{when}")
        with DagsterInstance.ephemeral() as instance, build_schedule_context(instance) as context:
            assert schedule.evaluate_tick(context).skip_message == "young has no tables yet"
    create_tables(Workspace(file, settings.warehouse, lambda: spark))
    for when in NIGHTS:
        schedule = made.resolve_schedule_def(f"young_{when}")
        with DagsterInstance.ephemeral() as instance, build_schedule_context(instance) as context:
            [asked] = schedule.evaluate_tick(context).run_requests or ()
            assert (schedule.job_name, asked.run_config) == (f"young_{when.rpartition('_')[0]}", {})


def test_all_assets_and_checks_of_a_pipeline_share_a_pool_and_are_tried_again(tmp_path: Path) -> None:
    file, settings = pipeline(tmp_path, "pooled", "keep")
    made = build_definitions(settings, [file])
    ops = [node.definition for node in made.resolve_implicit_global_asset_job_def().graph.nodes]
    assert len(ops) == 10
    assert {op.pool for op in ops} == {"tidemark/pooled"}  # type: ignore[attr-defined]
    assert {op.retry_policy for op in ops} == {live.RETRIES}  # type: ignore[attr-defined]


def test_the_sensor_asks_for_one_run_per_set_of_new_files(tmp_path: Path) -> None:
    file, _ = made = scheduled(tmp_path, "watched")
    landing = tmp_path / "in_watched"
    sensor = sensor_of(made)
    with DagsterInstance.ephemeral() as instance:
        assert reason(sensor.tick(instance)) == "in_watched/*.jsonl: 0 new"
        assert reason(sensor.tick(instance)).startswith("no file and no batch changed since the last look")

        land(landing, 3, seed=1, files=1)
        first = request(sensor.tick(instance))
        assert request(sensor.tick(instance)).run_key == first.run_key, "Dagster launches a key once"
        run = launched(instance, file, first, DagsterRunStatus.STARTED)
        assert reason(sensor.tick(instance)).startswith(f"run {run.run_id} is on its way; in_watched/*.jsonl: 1 new")

        (landing / "f0.jsonl").rename(landing / "g0.jsonl")
        instance.report_run_canceled(run)
        assert request(sensor.tick(instance)).run_key != first.run_key


def test_a_tick_with_nothing_new_costs_little_beside_loading_the_code_and_starts_no_jvm(tmp_path: Path) -> None:
    file, settings = scheduled(tmp_path, "quiet")
    for number in range(1_000):
        (tmp_path / "in_quiet" / f"{number}.txt").touch()
    code = f"""
import time
from pathlib import Path
from dagster import DagsterInstance, build_sensor_context
from pyspark import SparkContext
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.last_look import LastLook
from tidemark.resources.settings import Settings
file = read_spec(Path({str(file.path)!r}), ["sources[0].path=in_quiet/*"])
settings = Settings(Path({str(settings.warehouse)!r}), Path("."), Path("."))
sensor = build_definitions(settings, [file]).resolve_sensor_def("quiet_on_new_input")
with DagsterInstance.ephemeral() as instance:
    began, cursor = time.process_time(), None
    for _ in range(2):
        with build_sensor_context(instance, cursor=cursor) as context:
            found = sensor.evaluate_tick(context)
        cursor = found.cursor
    took = time.process_time() - began
assert SparkContext._gateway is None
print(took / began)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
    assert float(done.stdout) < 2 * 0.15  # of the CPU seconds of one process, so that its machine does not matter


def test_work_that_a_run_left_undone_is_tried_again_later_and_later(tmp_path: Path) -> None:
    file, settings = scheduled(tmp_path, "again")
    land(tmp_path / "in_again", 3, seed=1, files=1)
    clock = FixedClock(datetime.now(UTC) + timedelta(days=1))
    workspace = Workspace(file, settings.warehouse, clock=clock)

    def ask() -> RunRequest | SkipReason:
        return decide(look(workspace), workspace, job_name(file), instance)

    waits: list[float] = []
    with DagsterInstance.ephemeral() as instance:
        for _ in range(3):
            asked = ask()
            assert isinstance(asked, RunRequest)
            run = launched(instance, file, asked, DagsterRunStatus.STARTED)
            instance.report_run_failed(run)
            [record] = instance.get_run_records(limit=1)
            assert record.end_time is not None
            ended = datetime.fromtimestamp(record.end_time, UTC)
            for seconds in (29, 31, 59, 61, 119, 121):
                clock.advance(ended + timedelta(seconds=seconds) - clock.now())
                if isinstance(ask(), RunRequest):
                    waits.append(seconds)
                    break
    assert waits == [31, 61, 121]


def dead_process() -> BatchOwner:
    """Return a process of this machine that is no more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return process_of(process.pid)


def test_a_run_whose_process_is_gone_is_ended_by_the_sensor_which_then_launches(tmp_path: Path) -> None:
    file, settings = made = scheduled(tmp_path, "cut")
    land(tmp_path / "in_cut", 3, seed=1, files=1)
    dead = dead_process()
    clock = FixedClock(datetime.now(UTC))
    workspace = Workspace(file, settings.warehouse, clock=clock)
    with DagsterInstance.ephemeral() as instance:
        sensor = sensor_of(made)
        asked = request(sensor.tick(instance))
        run = launched(instance, file, asked, DagsterRunStatus.STARTED)
        instance.add_run_tags(run.run_id, {PROCESS_TAG: this_process("").text})
        assert reason(sensor.tick(instance)).startswith(f"run {run.run_id} is on its way")

        other = DagsterRun(job_name="days", status=DagsterRunStatus.STARTED, tags={PROCESS_TAG: dead.text})
        instance.add_run(other)  # it holds the pool
        instance.add_run_tags(run.run_id, {PROCESS_TAG: dead.text})
        said = reason(sensor.tick(instance))
        assert f"run {run.run_id} is over: process {dead.pid} on {dead.host} is gone" in said
        assert f"run {other.run_id} is over" in said
        assert f"run {run.run_id} did not finish it: it is retried at " in said
        assert {one.status for one in instance.get_runs()} == {DagsterRunStatus.FAILURE}
        clock.advance(timedelta(minutes=1))
        request_after = decide(look(workspace), workspace, job_name(file), instance)
        assert isinstance(request_after, RunRequest)


def test_a_run_that_never_said_who_works_on_it_is_ended_when_it_was_silent_for_long(tmp_path: Path) -> None:
    file, settings = made = scheduled(tmp_path, "mute")
    land(tmp_path / "in_mute", 3, seed=1, files=1)
    clock = FixedClock(datetime.now(UTC) + timedelta(minutes=9))
    workspace = Workspace(file, settings.warehouse, clock=clock)
    with DagsterInstance.ephemeral() as instance:
        asked = request(sensor_of(made).tick(instance))
        run = launched(instance, file, asked, DagsterRunStatus.STARTED)
        elsewhere = DagsterRun(job_name="another_live", status=DagsterRunStatus.STARTED)
        instance.add_run(elsewhere)
        assert end_dead_runs(workspace, job_name(file), instance) == []
        clock.advance(timedelta(minutes=2))
        [said] = end_dead_runs(workspace, job_name(file), instance)
        assert said.startswith(f"run {run.run_id} is over: it has been silent for 10 minutes")
        still = instance.get_run_by_id(elsewhere.run_id)
        assert still is not None
        assert still.status == DagsterRunStatus.STARTED, "of other pipelines' runs only a process tells"


def test_the_tags_of_a_run_that_failed_say_nothing_of_the_run_that_repeats_it(tmp_path: Path) -> None:
    """Dagster copies them: the process has ended, and the failure was that of the other run."""
    file, settings = made = scheduled(tmp_path, "twice")
    land(tmp_path / "in_twice", 3, seed=1, files=1)
    clock = FixedClock(datetime.now(UTC))
    workspace = Workspace(file, settings.warehouse, clock=clock)
    with DagsterInstance.ephemeral() as instance:
        asked = request(sensor_of(made).tick(instance))
        tags = {**asked.tags, PROCESS_TAG: dead_process().text, FAILURE_TAG: LASTING}
        failed = instance.add_run(DagsterRun(job_name="twice_live", tags=tags, status=DagsterRunStatus.FAILURE))
        assert "would fail again" in reason(sensor_of(made).tick(instance))
        repeated = DagsterRun(
            job_name="twice_live",
            tags=tags,
            status=DagsterRunStatus.STARTED,
            parent_run_id=failed.run_id,
            root_run_id=failed.run_id,
        )
        instance.add_run(repeated)
        assert end_dead_runs(workspace, "twice_live", instance) == []
        instance.report_run_failed(repeated)
        assert "it is retried at" in reason(sensor_of(made).tick(instance))


def test_the_cron_schedule_skips_when_nothing_is_new_and_says_what_it_looked_at(tmp_path: Path) -> None:
    file, settings = scheduled(tmp_path, "timed", 'schedule: "* * * * *"\n')
    schedule = build_definitions(settings, [file]).resolve_schedule_def("timed_schedule")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with (
        DagsterInstance.local_temp(str(tmp_path)) as instance,
        build_schedule_context(instance, scheduled_execution_time=now) as context,
    ):
        assert schedule.evaluate_tick(context).skip_message == "in_timed/*.jsonl: 0 new"
        land(tmp_path / "in_timed", 3, seed=1, files=2)
        [asked] = schedule.evaluate_tick(context).run_requests or ()
        assert asked.tags[WORK_TAG]
        shown = [name for name in asked.tags if not name.startswith((".dagster/", "dagster/"))]
        assert shown == [], "a digest is not for the lists of runs"


def test_files_that_settle_and_files_that_are_held_back_are_told_and_launch_nothing(tmp_path: Path) -> None:
    file, settings = made = scheduled(tmp_path, "young")
    settling = read_spec(file.path, ["sources[0].settle=1 h", "sources[0].path=in_young/*"])
    land(tmp_path / "in_young", 3, seed=1, files=1)
    with DagsterInstance.ephemeral() as instance:
        young = sensor_of((settling, settings))
        assert reason(young.tick(instance)) == "in_young/*: 0 new, 1 younger than `settle`"
        assert reason(young.tick(instance)) == "in_young/*: 0 new, 1 younger than `settle`", "time alone changes it"
        (tmp_path / "in_young" / "f0.jsonl").rename(tmp_path / "in_young" / "f0.zip")
        held = read_spec(file.path, ["sources[0].path=in_young/*"])
        said = reason(sensor_of((held, settings)).tick(instance))
        assert said.startswith("in_young/*: 0 new, 1 held back (")
        assert "compression .zip cannot be read" in said
        (tmp_path / "in_young" / "f0.zip").unlink()
        (tmp_path / "in_young").rmdir()
        with pytest.raises(InputError, match="there is no folder"):
            sensor_of(made).tick(instance)


def test_bad_input_fails_at_once_and_is_not_tried_again_until_it_changes(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = made = scheduled(tmp_path, "broken")
    path = tmp_path / "in_broken" / "a.jsonl"
    wrong = read_spec(file.path, ["sources[0].schema=id STRING, at STRING, got STRING, k STRING, v NO_TYPE"])
    land(path.parent, 3, seed=1, files=1)
    with DagsterInstance.ephemeral() as instance:
        sensor = sensor_of((wrong, settings))
        asked = request(sensor.tick(instance))
        job = build_definitions(settings, [wrong]).resolve_job_def("broken_live")
        began = time.monotonic()
        run = job.execute_in_process(instance=instance, raise_on_error=False, tags=dict(asked.tags))
        assert not run.success
        assert time.monotonic() - began < 5 + 15
        assert not retries(instance, run.run_id)
        told = instance.get_run_by_id(run.run_id)
        assert told is not None
        assert told.tags[FAILURE_TAG] == LASTING
        assert "it is retried when the input or the spec changes" in reason(sensor.tick(instance))
        mended = request(sensor_of(made).tick(instance))
        assert mended.tags[WORK_TAG] != asked.tags[WORK_TAG]


def test_a_run_that_was_canceled_is_not_launched_again_before_there_is_new_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also where it had read its input by then, so that there is other work than before it."""
    file, settings = made = scheduled(tmp_path, "stopped")
    land(tmp_path / "in_stopped", 3, seed=1, files=1)
    with DagsterInstance.ephemeral() as instance:
        asked = request(sensor_of(made).tick(instance))
        run = launched(instance, file, asked, DagsterRunStatus.CANCELED)
        workspace = Workspace(file, settings.warehouse, lambda: spark)
        for has_read in (False, True):
            if has_read:
                create_tables(workspace)
                ingest(workspace, run.run_id)
            said = reason(sensor_of(made).tick(instance))
            assert said.startswith(f"run {run.run_id} was canceled: another one is launched for new input")
            assert said.endswith("3 records of the log are not processed") == has_read
        (tmp_path / "in_stopped" / "b.jsonl").write_text("{}\n")
        request(sensor_of(made).tick(instance))


def test_a_pipeline_at_work_elsewhere_is_tried_again_and_its_sensor_waits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "RETRIES", RetryPolicy(max_retries=1, delay=0.1))
    file, settings = made = scheduled(tmp_path, "shared")
    land(tmp_path / "in_shared", 3, seed=1, files=1)
    with DagsterInstance.ephemeral() as instance:
        workspace = Workspace(file, settings.warehouse, lambda: spark)
        create_tables(workspace)
        other = begin_elsewhere(workspace)
        sensor = sensor_of(made)
        assert reason(sensor.tick(instance)).endswith("is at work on batch 0")
        job = build_definitions(settings, [file]).resolve_job_def("shared_live")
        run = job.execute_in_process(instance=instance, raise_on_error=False)
        assert not run.success
        assert len(retries(instance, run.run_id)) == 1
        told = instance.get_run_by_id(run.run_id)
        assert told is not None
        assert told.tags[PROCESS_TAG] == this_process("").text
        workspace.batches.release(other, workspace.clock.now())
        asked = request(sensor.tick(instance))

        cut = launched(instance, file, asked, DagsterRunStatus.STARTED)
        dead = replace(dead_process(), id=cut.run_id)
        begun = workspace.batches.pending()
        assert begun is not None
        again = partial(workspace.batches.begin, "ingest", last_batch=None, first_seq=0, end_seq=None, input={})
        again(dead, workspace.clock.now(), fingerprint=begun.fingerprint)
        said = reason(sensor.tick(instance))
        assert f"run {cut.run_id} is over: {dead}, which had batch 0, is gone" in said


def retries(instance: DagsterInstance, run_id: str) -> list[object]:
    wanted = {DagsterEventType.STEP_UP_FOR_RETRY}
    return list(instance.get_records_for_run(run_id, of_type=wanted).records)


def test_a_file_that_cannot_be_read_fails_a_check_of_the_log_though_it_makes_no_work(tmp_path: Path) -> None:
    """Until it is gone; a look that finds what the last one found says nothing."""
    file, settings = made = scheduled(tmp_path, "held")
    bad = tmp_path / "in_held" / "bad.jsonl"
    bad.write_bytes('{"id": "a"}\n'.encode("utf-16"))
    check = AssetCheckKey(AssetKey(["held", "raw_events"]), "nothing_held_back")
    with DagsterInstance.ephemeral() as instance:

        def told() -> list[tuple[bool, str]]:
            found = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
            events = [one.event.dagster_event for one in found if one.event is not None]
            evaluations = [event.asset_check_evaluation_data for event in events if event is not None]
            return [(one.passed, str(one.description)) for one in evaluations]

        sensor = sensor_of(made)
        for _ in range(2):
            reason(sensor.tick(instance))
        [(passed, said)] = told()
        assert not passed
        assert said.startswith("1 held back: ")
        assert "bad.jsonl" in said
        bad.unlink()
        reason(sensor.tick(instance))
        assert [one for one, _ in told()] == [True, False]
        assert check in build_definitions(settings, [file]).resolve_asset_graph().asset_check_keys


@pytest.mark.usefixtures("spark")
def test_after_a_run_of_dagster_s_own_the_next_command_without_work_reports_its_look_again(tmp_path: Path) -> None:
    """Its findings, which Dagster shows, may be gone when the command looks."""
    file, settings = scheduled(tmp_path, "seen")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").touch()
    last, now = LastLook(tmp_path / "home", "seen"), datetime(2026, 1, 1, tzinfo=UTC)
    last.note("nothing is held back", now)
    with DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        assert last.was("nothing is held back", now)
        job = build_definitions(settings, [file]).resolve_job_def("seen_live")
        assert job.execute_in_process(instance=instance).success
        assert not last.was("nothing is held back", now)


@pytest.mark.parametrize("outcome", ["committed", "skipped", "failed"])
def test_a_run_of_another_job_is_waited_for_while_it_is_at_the_pipeline_and_no_longer(
    tmp_path: Path, outcome: str
) -> None:
    """Between the steps of «Materialize all» a look found the input still there, and asked for a second run."""
    file, settings = scheduled(tmp_path, "chosen")
    land(tmp_path / "in_chosen", 3, seed=1, files=1)
    clock = FixedClock(datetime.now(UTC))
    workspace = Workspace(file, settings.warehouse, clock=clock)
    seen: dict[str, bool] = {}

    def look_during(step: str, context: OpExecutionContext) -> None:
        asked = decide(look(workspace), workspace, job_name(file), context.instance)
        expected = f"run {context.run_id} is on its way"
        seen[step] = isinstance(asked, SkipReason) and str(asked.skip_message).startswith(expected)

    def step(name: str, after: str | None) -> OpDefinition:
        @op(name=name, ins={"after": In(Nothing)} if after else {}, out=Out(bool, is_required=False))
        def does(context: OpExecutionContext) -> Iterator[Output[bool]]:
            if name == "chosen__raw_events":
                say_who_runs(context)
            look_during(name, context)
            if name == "before":
                clock.advance(timedelta(minutes=11))
                look_during("long before", context)
            if name == "chosen__ordered_events_checks" and outcome == "failed":
                raise Failure(allow_retries=False)
            if name != "chosen__ordered_events_checks" or outcome == "committed":
                yield Output(value=True)

        return does

    chain = ["before", "chosen__raw_events", "chosen__ordered_events_checks", "chosen__batches"]
    beside = ["before", *(f"beside_{number}" for number in range(4)), "after"]
    pairs = {step: before for names in (chain, beside) for before, step in pairwise(names)}
    job = GraphDefinition(
        "mine",
        node_defs=[step(name, pairs.get(name)) for name in {**dict.fromkeys(chain), **dict.fromkeys(beside)}],
        dependencies={name: {"after": DependencyDefinition(before)} for name, before in pairs.items()},
    ).to_job()
    with DagsterInstance.ephemeral() as instance:
        job.execute_in_process(instance=instance, raise_on_error=False)
    waits = {name: name != "long before" for name in ("before", "long before", "chosen__raw_events")}
    assert {name: seen[name] for name in waits} == waits, "it may have hours of other work before, or be forgotten"
    assert seen.get("chosen__batches", True)
    assert not seen["after"], "it may have other work after the pipeline"


def test_a_run_of_chosen_windows_is_not_waited_for_as_it_reads_no_input(tmp_path: Path) -> None:
    file, settings = scheduled(tmp_path, "chosen")
    land(tmp_path / "in_chosen", 3, seed=1, files=1)
    workspace = Workspace(file, settings.warehouse)
    whole = build_definitions(settings, [file]).resolve_implicit_global_asset_job_def()
    windows = whole.get_subset(asset_selection={AssetKey(["chosen", "windows", "per_minute"])})
    with DagsterInstance.ephemeral() as instance:
        instance.create_run_for_job(windows, status=DagsterRunStatus.STARTED)
        assert isinstance(decide(look(workspace), workspace, job_name(file), instance), RunRequest)
        run = instance.create_run_for_job(whole, status=DagsterRunStatus.STARTED)
        asked = decide(look(workspace), workspace, job_name(file), instance)
    assert isinstance(asked, SkipReason)
    assert str(asked.skip_message).startswith(f"run {run.run_id} is on its way")


def test_a_stage_whose_upstream_assets_a_project_has_replaced_fails_before_it_does_anything(tmp_path: Path) -> None:
    """Without them a batch was committed before its checks, or before its dead letters were written."""
    file, settings = scheduled(tmp_path, "loose")
    loose = build_definitions(settings, [file]).permissive_map_resolved_asset_specs(
        func=lambda spec: (
            spec.replace_attributes(deps=["mine", AssetKey(["loose", "ordered_events"])])
            if spec.key.path[-1] == "batches"
            else spec
        ),
        selection=None,
    )
    with DagsterInstance.ephemeral() as instance:
        done = loose.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, raise_on_error=False, asset_selection=[AssetKey(["loose", "batches"])]
        )
        [failed] = [event for event in done.all_events if event.is_step_failure]
    said = str(failed.step_failure_data.error)
    assert "has lost upstream assets, which are the order of a run: loose/dead_letters, loose/window_results." in said
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.parametrize("chosen", [["dead_letters"], ["ordered_events", "window_results"], ["batches"]])
def test_a_stage_that_is_materialized_without_the_others_of_its_batch_fails_and_says_what_to_launch(
    tmp_path: Path, chosen: list[str]
) -> None:
    file, settings = scheduled(tmp_path, "alone")
    job = build_definitions(settings, [file]).resolve_implicit_global_asset_job_def()
    stages = [AssetKey(["alone", name]) for name in chosen]
    with DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, raise_on_error=False, asset_selection=stages)
        [failed] = [event for event in done.all_events if event.is_step_failure]
    said = str(failed.step_failure_data.error)
    assert "materialized, so nothing could be committed." in said
    assert "launch the job alone_live" in said
    assert not (tmp_path / "warehouse").exists()
