"""Runs of a pipeline in Dagster, without Spark: which count in a home, what is set for all assets, and its upkeep."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidConfigError,
    DagsterRun,
    Definitions,
    asset,
    asset_check,
    validate_run_config,
)

import tidemark as tm
from tests.pure.letter.test_losses import TIMED, ahead, shop, tills
from tests.pure.report.shop import WINDOWS
from tidemark.assets.catalog.databases import databases_open
from tidemark.assets.live import BATCH
from tidemark.pipelines.code_location.upkeep import BY_HAND, forget_runs
from tidemark.pipelines.command_line import say, settings_of
from tidemark.pipelines.definitions import build_definitions, definitions, job_name
from tidemark.pipelines.running.instance import dagster_instance
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.place import place_of
from tidemark.resources.settings import counted_warehouse, from_environment
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, WATERMARKS, WATERMARKS_SCHEMA
from tidemark.resources.workspace import Workspace

SPEC = """
name: shop
sources: [{name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING"}]
time: {timestamp_by: at}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "shop.yaml").write_text(SPEC)
    return tmp_path / "home"


def counted(warehouse: str | None = None) -> bool:
    """Return whether what a run in a warehouse reports is found in the home, by an event as assets report it."""
    asset = AssetKey(["shop", uuid4().hex])
    with dagster_instance(settings_of(Path(warehouse) if warehouse else None), "shop", tell=say) as instance:
        instance.report_runless_asset_event(AssetMaterialization(asset))
    with DagsterInstance.get() as kept:
        return kept.get_latest_materialization_event(asset) is not None


def test_a_trial_run_in_another_warehouse_leaves_nothing_in_dagster_and_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert counted()
    assert not counted("trial")
    said = capsys.readouterr().err
    assert (
        said == f"shop: a trial run, which Dagster does not show: there the pipeline is in {home.parent}/warehouse\n"
    )
    assert counted()


def test_runs_in_the_warehouse_of_the_code_location_count_whatever_ran_before(home: Path) -> None:
    assert counted("trial"), "nothing else is known yet"
    assert counted(), "the usual warehouse goes before the one of a first run"
    definitions("shop.yaml", warehouse="theirs")
    assert [counted(), counted("trial"), counted("theirs")] == [False, False, True]
    definitions("shop.yaml")
    assert [counted(), counted("theirs")] == [True, False]


def test_a_note_that_cannot_be_read_is_as_none(home: Path) -> None:
    home.mkdir()
    (home / "tidemark_warehouses.json").write_text('{"shop": ')
    assert counted_warehouse(home, "shop", Path("/a"), Path("/b")) == "/a"
    assert counted_warehouse(home, "shop", Path("/c"), Path("/b")) == "/a"


def test_dagsters_databases_stay_open_during_a_run_and_leave_no_log_behind(home: Path) -> None:
    """Else SQLite copies the log of a file back, and deletes it, after each event."""

    def logs() -> list[str]:
        return sorted(path.name for path in (home / "history").rglob("*-wal"))

    settings_of()  # it makes the home
    with DagsterInstance.get() as instance:
        run, *others = [DagsterRun("shop_live") for _ in range(9)]
        with databases_open():
            instance.add_run(run)
            instance.report_engine_event("it runs", run)
            assert instance.all_asset_keys() == []
            assert logs() == sorted([f"{run.run_id}.db-wal", "index.db-wal", "runs.db-wal"])
            [entry] = [*instance.all_logs(run.run_id)]
            with ThreadPoolExecutor(4) as threads:
                found = [*threads.map(instance.get_run_by_id, [run.run_id] * 40)]
            assert {each.run_id for each in found if each is not None} == {run.run_id}
            with databases_open():  # the stages of a run whose process has begun so
                assert instance.get_run_by_id(run.run_id) is not None
            assert len(logs()) == 3
            for other in others:
                instance.add_run(other)
                instance.report_engine_event("another one", other)
            assert len(logs()) == 6, "a process that looks at many runs keeps the last ones"
        assert logs() == []
        assert [*instance.all_logs(run.run_id)] == [entry]
    with DagsterInstance.ephemeral() as elsewhere, databases_open():
        elsewhere.add_run(run)
        assert logs() == []
    with dagster_instance(settings_of(), "shop", tell=say) as of_command:
        assert of_command.get_run_by_id(run.run_id) is not None
        assert logs() == ["runs.db-wal"]
    assert logs() == []


def test_the_settings_of_a_run_are_those_of_one_resource_and_its_assets_take_none(home: Path) -> None:
    file = read_spec(home.parent / "shop.yaml")
    job = build_definitions(from_environment(home.parent), [file]).resolve_job_def(job_name(file))
    asked = {"max_events_per_batch": 5, "end_of_input": "flush", "reread": True, "live": True, "reopen": "why"}
    assert validate_run_config(job, {})
    assert validate_run_config(job, {"resources": {BATCH: {"config": asked}}})
    for name in ("raw_events", "ordered_events"):
        with pytest.raises(DagsterInvalidConfigError):
            validate_run_config(job, {"ops": {f"shop__{name}": {"config": {"live": True}}}})


def test_the_job_in_dagster_looks_after_a_pipeline_beside_its_runs(home: Path) -> None:
    """It needs no Spark, and no pool in which it would wait."""
    file, settings = read_spec(home.parent / "shop.yaml"), from_environment(home.parent)
    lake = Workspace(file, settings.warehouse).lake
    lake.create(BATCHES, BATCHES_SCHEMA)
    lake.create(WATERMARKS, WATERMARKS_SCHEMA)
    for number in range(14):
        row = pa.Table.from_pylist([{"_batch_id": number}], schema=WATERMARKS_SCHEMA)
        lake.append_rows(WATERMARKS, row, attempt=number + 1, expect=number)
    job = build_definitions(settings, [file]).resolve_job_def("shop_maintain")
    assert all(op.definition.pools == set() for op in job.nodes)
    with DagsterInstance.ephemeral() as instance:
        for retain, succeeds in (("2 days", True), ("1 s", False)):
            config = {"ops": {"shop__maintain": {"config": {"retain": retain}}}}
            done = job.execute_in_process(instance=instance, run_config=config, raise_on_error=succeeds)
            assert done.success == succeeds
    assert len(lake.open(WATERMARKS).file_uris()) == 1


def test_the_job_in_dagster_answers_questions_and_writes_nothing(tmp_path: Path) -> None:
    records = [(came, time, till.removeprefix("t")) for came, time, till in tills(300, ahead)]
    made = shop(tmp_path, records, TIMED + WINDOWS)
    path, warehouse = made.folder / "shop.yaml", made.folder / "warehouse"
    job = build_definitions(from_environment(tmp_path, warehouse=place_of(warehouse)), [made.file]).resolve_job_def(
        "shop_ask"
    )
    assert all(op.definition.pools == set() for op in job.nodes)
    files = {file: file.stat().st_mtime_ns for file in warehouse.rglob("*")}
    answers: list[tuple[dict[str, Any] | None, Any]] = [
        (None, tm.advise(path, warehouse=warehouse)),  # what the UI begins with
        ({"explain": {"seq": 250}}, tm.explain(path, seq=250, warehouse=warehouse)),
        (
            {"explain": {"where": "_arrival_seq > 200", "limit": 2}},
            tm.explain(path, where="_arrival_seq > 200", most=2, warehouse=warehouse),
        ),
        (
            {"explain": {"window": "per_minute", "start": "2026-01-01T00:20:00Z", "group": {"till": 3}}},
            tm.explain(
                path, window="per_minute", start="2026-01-01T00:20:00Z", group={"till": "3"}, warehouse=warehouse
            ),
        ),
    ]
    assert answers[3][1].groups, "there is such a window"
    with DagsterInstance.ephemeral() as instance:
        for question, expected in answers:
            config = None if question is None else {"ops": {"shop__ask": {"config": question}}}
            done = job.execute_in_process(instance=instance, run_config=config)
            [output] = [event for event in done.all_events if event.is_successful_output]
            metadata = output.step_output_data.metadata
            assert metadata["answer"].value == f"```text\n{expected.text}\n```"
            assert metadata["json"].value == json.loads(json.dumps(expected.to_dict()))
            assert ("lost_by_tolerance" in metadata) == (question is None)
    assert {file: file.stat().st_mtime_ns for file in warehouse.rglob("*")} == files


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"explain": {"seq": 300}}, "The log of shop has no record 300.\nExpected: a number from 0 to 299"),
        ({"explain": {"seq": 1, "where": "true"}}, "Found `seq` and `where`.\nExpected: one of `seq`, `where`, or"),
        ({"explain": {"where": "true", "limit": -1}}, "Found a limit of -1 records.\nExpected: at least 1"),
        ({"explain": {"window": "per_hour", "start": "2026-01-01"}}, "shop has no window 'per_hour'.\nExpected: one"),
        ({"simulate": {"set": ["time.nix=1"]}}, "unknown key `nix`"),
        ({"simulate": {"set": []}}, "A setting without a key"),
        ({"simulate": {"set": ["time.unit=second"], "or": [["name=other"]]}}, "cannot answer for `name`"),
        (
            {"simulate": {"set": ["time.unit=second"], "from": "2026-01-02", "to": "2026-01-01"}},
            "Found `from` 2026-01-02 and `to` 2026-01-01",
        ),
    ],
)
def test_a_wrong_question_fails_its_run_with_a_sentence(question: dict[str, Any], said: str, tmp_path: Path) -> None:
    made = shop(tmp_path, tills(300, ahead), TIMED + WINDOWS)
    settings = from_environment(tmp_path, warehouse=place_of(made.folder / "warehouse"))
    job = build_definitions(settings, [made.file]).resolve_job_def("shop_ask")
    config = {"ops": {"shop__ask": {"config": question}}}
    with DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    [failed] = [event for event in done.all_events if event.is_step_failure]
    assert failed.step_failure_data.error is not None
    assert said in failed.step_failure_data.error.message


def test_runs_by_hand_of_other_assets_of_the_project_stay(home: Path) -> None:
    keys = [AssetKey(["stock"]), AssetKey(["shop", "old_name"]), AssetKey(["lake", "log"])]

    def nothing() -> None:
        """Make an asset that is there to be materialized."""

    job = Definitions(assets=[asset(key=key)(nothing) for key in keys]).resolve_implicit_global_asset_job_def()
    later = datetime.now(UTC) + timedelta(days=1)
    with DagsterInstance.ephemeral() as instance:

        def run_of(selection: list[AssetKey] | None) -> str:
            return job.execute_in_process(instance=instance, asset_selection=selection).run_id

        stay = {run_of(None), run_of(keys[:1]), run_of(keys[:2])}
        assert run_of(keys[1:]) not in stay
        stay.add(run_of(keys[2:]))  # the newest materialization of an asset
        file = replace(read_spec(home.parent / "shop.yaml"), asset_keys={"raw_events": ("lake", "log")})
        assert forget_runs(file, instance, (BY_HAND,), later, home.parent) == 1
        assert {run.run_id for run in instance.get_runs()} == stay


def test_results_of_checks_go_with_their_runs_but_the_newest(home: Path) -> None:
    """Dagster keeps them, with all they say, when it deletes a run: findings/dagster_deleted_runs_leave_checks.sh."""
    ours = [AssetKey(["shop", *path]) for path in (["ordered_events"], ["raw_events"], ["windows", "by_till"])]
    other = AssetKey(["stock"])

    def checked(key: AssetKey) -> list[AssetsDefinition | AssetChecksDefinition]:
        def rows() -> None:
            """Make an asset that is there to be checked."""

        def holds() -> AssetCheckResult:
            return AssetCheckResult(passed=True)

        return [asset(key=key)(rows), asset_check(asset=key, name="holds")(holds)]

    made = [one for key in (*ours, other) for one in checked(key)]
    assets = [one for one in made if not isinstance(one, AssetChecksDefinition)]
    checks = [one for one in made if isinstance(one, AssetChecksDefinition)]
    job = Definitions(assets=assets, asset_checks=checks).resolve_implicit_global_asset_job_def()
    later, file = datetime.now(UTC) + timedelta(days=1), read_spec(home.parent / "shop.yaml")
    with DagsterInstance.ephemeral() as instance:

        def results_of(key: AssetKey) -> list[str]:
            check = AssetCheckKey(key, "holds")
            history = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
            return [record.run_id for record in history]

        runs = [job.execute_in_process(instance=instance, asset_selection=ours).run_id for _ in range(3)]
        of_other = [job.execute_in_process(instance=instance, asset_selection=[other]).run_id for _ in range(2)]
        assert [*map(results_of, [*ours, other])] == [*[runs[::-1]] * len(ours), of_other[::-1]]
        instance.delete_run(runs[0])  # as an earlier version did
        assert forget_runs(file, instance, (BY_HAND,), later, home.parent) == 1
        assert [*map(results_of, [*ours, other])] == [*[runs[2:]] * len(ours), of_other[::-1]]
