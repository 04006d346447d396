"""Conditions that a spec asks for, as Dagster's daemon evaluates them, without a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor

from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings

SPEC = """
name: shop
sources:
  - {name: s, kind: files, path: in/*.csv, format: csv, schema: "at STRING, v INT", upstream: [raw/orders]}
time: {timestamp_by: at}
windows:
  - {name: hourly, kind: tumbling, size: 1 hour, aggregates: {n: count(*)}}
"""
RAW, HOURLY = dg.AssetKey(["raw", "orders"]), dg.AssetKey(["shop", "windows", "hourly"])
STAGES = ["raw_events", "ordered_events", "window_results", "dead_letters", "batches"]
DAYS = ["2026-03-29", "2026-10-25"]


class Daemon:
    """Dagster's daemon in an instance of its own."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        self._cursor: AssetDaemonCursor | None = None

    def evaluate(self, spec: str) -> dict[str, Any]:
        """Evaluate once with a spec: return the assets that are requested, windows with their days."""
        (self.folder / "shop.yaml").write_text(spec)
        settings = Settings(self.folder / "warehouse", self.folder, self.folder / "home")
        pipeline = build_definitions(settings, [read_spec(self.folder / "shop.yaml")])

        @dg.asset(key=RAW)
        def orders() -> None:
            """Land orders."""

        chosen = [RAW, HOURLY, *(dg.AssetKey(["shop", name]) for name in STAGES)]
        found = dg.evaluate_automation_conditions(
            dg.Definitions.merge(pipeline, dg.Definitions(assets=[orders])),
            self.instance,
            asset_selection=dg.AssetSelection.assets(*chosen),
            cursor=self._cursor,
        )
        self._cursor = found.cursor
        asked = {key: found.get_requested_partitions(key) for key in chosen}
        return {key.path[-1]: sorted(day or "" for day in days) for key, days in asked.items() if days}

    def report(self, key: dg.AssetKey, *days: str) -> None:
        for day in days or (None,):
            self.instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=day))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield Daemon(tmp_path, instance)


def test_an_eager_pipeline_runs_whole_when_an_asset_upstream_is_updated_and_no_day_is_computed(
    daemon: Daemon,
) -> None:
    eager = f"{SPEC}automation_condition: eager\n"
    assert daemon.evaluate(eager) == {}
    daemon.report(RAW)
    assert daemon.evaluate(eager) == {name: [""] for name in STAGES}
    assert daemon.evaluate(eager) == {}


def test_a_changed_aggregate_requests_all_days_of_the_window_once(daemon: Daemon) -> None:
    asks = SPEC.replace("size: 1 hour,", "size: 1 hour, automation_condition: code_version_changed,")
    daemon.instance.add_dynamic_partitions("shop/windows/hourly", DAYS)
    daemon.report(HOURLY, *DAYS)
    assert daemon.evaluate(asks) == {}
    assert daemon.evaluate(asks.replace("name: shop", "name: shop\nowners: [ann@example.com]")) == {}
    assert daemon.evaluate(asks.replace("count(*)", "sum(v)")) == {"hourly": DAYS}
    assert daemon.evaluate(asks.replace("count(*)", "sum(v)")) == {}


def test_a_day_that_a_person_adds_is_requested_once(daemon: Daemon) -> None:
    asks = SPEC.replace("size: 1 hour,", "size: 1 hour, automation_condition: on_missing,")
    daemon.instance.add_dynamic_partitions("shop/windows/hourly", DAYS[:1])
    daemon.report(HOURLY, *DAYS[:1])
    assert daemon.evaluate(asks) == {}
    daemon.instance.add_dynamic_partitions("shop/windows/hourly", DAYS[1:])
    assert daemon.evaluate(asks) == {"hourly": DAYS[1:]}
    assert daemon.evaluate(asks) == {}


def test_without_a_condition_nothing_is_requested(daemon: Daemon) -> None:
    daemon.evaluate(SPEC)
    daemon.report(RAW)
    assert daemon.evaluate(SPEC.replace("count(*)", "sum(v)")) == {}
