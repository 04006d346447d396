"""A project that shows tables under keys of its own: all reports go there, of runs, commands, looks and rebuilds."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster import AssetCheckKey, AssetKey, AssetSpec, DagsterInstance, Definitions, build_sensor_context

import tidemark as tm
from tidemark.pipelines.cli import main
from tidemark.resources.settings import use_dagster_home

SPEC = """
name: shop
sources: [{name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING", settle: 0 s}]
time: {timestamp_by: at}
windows: [{name: by_hour, kind: tumbling, size: 1 hour, aggregates: {events: count(*)}}]
schedule: {on_new_input: 15 seconds}
"""
STAGES = ("raw_events", "ordered_events", "window_results", "dead_letters", "batches")


def in_lake(spec: AssetSpec) -> AssetSpec:
    return spec.replace_attributes(key=AssetKey(["lake", *(part.upper() for part in spec.key.path)]))


def located(folder: Path) -> Definitions:
    return tm.definitions(folder / "shop.yaml", translate=in_lake)


def call(*words: str) -> None:
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def look(folder: Path) -> None:
    """Let the sensor look."""
    sensor = located(folder).resolve_sensor_def("shop_on_new_input")
    with DagsterInstance.get() as instance, build_sensor_context(instance) as context:
        sensor.evaluate_tick(context)


def materialize(folder: Path, window: str) -> None:
    """Materialize a day of a window by hand."""
    job = located(folder).resolve_implicit_global_asset_job_def()
    chosen, tags = [AssetKey.from_user_string(window)], {"dagster/partition": "2026-01-01"}
    with DagsterInstance.get() as instance:
        assert job.execute_in_process(instance=instance, asset_selection=chosen, tags=tags).success


def materializations(instance: DagsterInstance) -> Counter[str]:
    """Return how often each asset was reported as materialized, whatever its key is."""
    kept = {key: instance.fetch_materializations(key, limit=1_000).records for key in instance.all_asset_keys()}
    return Counter({key.to_user_string(): len(records) for key, records in kept.items()})


@pytest.mark.long
def test_runs_commands_looks_and_rebuilds_report_under_the_keys_of_the_project(folder: Path) -> None:
    use_dagster_home(folder / "home")
    window = "lake/SHOP/WINDOWS/BY_HOUR"
    stages = {f"lake/SHOP/{stage.upper()}" for stage in STAGES}
    (folder / "shop.yaml").write_text(SPEC)
    (folder / "in" / "day.csv").write_text("2026-01-01T12:00:00Z\n2026-01-01T20:00:00Z\n")
    located(folder)
    file, day = str(folder / "shop.yaml"), ("--from", "2026-01-01", "--to", "2026-01-01")
    steps: dict[str, tuple[Callable[[], None], set[str]]] = {
        "run": (lambda: call("run", file), {*stages, window}),
        "backfill": (lambda: call("backfill", file, *day), {window}),
        "rebuild": (
            lambda: call("rebuild", file),
            {window, *stages} - {"lake/SHOP/RAW_EVENTS"},
        ),
        "day by hand": (lambda: materialize(folder, window), {window}),
    }
    before = Counter[str]()
    for name, (act, expected) in steps.items():
        act()
        with DagsterInstance.get() as instance:
            now = materializations(instance)
        assert (now - before).keys() == expected, name
        before = now
    with DagsterInstance.get() as instance:
        assert instance.get_materialized_partitions(AssetKey.from_user_string(window)) == {"2026-01-01"}
    (folder / "in" / "wrong.csv").write_bytes(b"\xff\xfe\x00")
    look(folder)
    held_back = [
        AssetCheckKey(AssetKey(key), "nothing_held_back")
        for key in (["shop", "raw_events"], ["lake", "SHOP", "RAW_EVENTS"])
    ]
    with DagsterInstance.get() as instance:
        found = instance.event_log_storage.get_latest_asset_check_execution_by_key(held_back)
    assert {*found} == {held_back[1]}
