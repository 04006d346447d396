"""The conditions of the page on reading consistently, for assets downstream, in a real instance of Dagster.

Here: what is requested when days of a window change, and what a person can launch. Not here: what runs and rebuilds
report of days (test_days_in_dagster.py).
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor

from tests import ROOT
from tidemark.assets.rebuild.differences import WindowDifference
from tidemark.pipelines.code_location.downstream import links, partitions_downstream
from tidemark.pipelines.spec_files import read_spec

WINDOW = dg.AssetKey(["quakes", "windows", "by_hour"])
LIST = "/".join(WINDOW.path)
DAY, REPORT = dg.AssetKey("strongest_of_the_day"), dg.AssetKey("strongest_of_all_days")
SPEC = """
name: quakes
sources: [{name: s, kind: files, path: in/*.csv, format: csv, schema: "at STRING"}]
windows: [{name: by_hour, kind: tumbling, size: 1 hour, aggregates: {n: count(*)}}]
"""
DAYS = [(date(2026, 1, 1) + timedelta(days=number)).isoformat() for number in range(120)]
"""More than 100, above which Dagster goes by other times."""


def of_page() -> dict[str, Any]:
    """Return what the Python of the page names."""
    page = (ROOT / "docs" / "how-to" / "read-consistently.md").read_text(encoding="utf-8")
    [block] = [
        text for text in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "AutomationCondition" in text
    ]
    known: dict[str, Any] = {"WAREHOUSE": Path("warehouse")}
    exec(compile(block, "read-consistently.md", "exec"), known)
    return known


class Project:
    """A window of another code location, assets as of the page whose bodies wait, and what the daemon evaluates."""

    def __init__(self, instance: dg.DagsterInstance, condition: dg.AutomationCondition[Any]) -> None:
        self.instance, self.may_end, self.has_begun = instance, threading.Event(), threading.Event()
        self.may_end.set()
        self._cursor: AssetDaemonCursor | None = None
        window = dg.AssetSpec(WINDOW, partitions_def=dg.DynamicPartitionsDefinition(name=LIST))
        same_day = dg.AssetDep(WINDOW, partition_mapping=dg.IdentityPartitionMapping())
        daily = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-06-01")

        @dg.asset(key=DAY, deps=[same_day], partitions_def=daily, automation_condition=condition)
        def of_day() -> None:
            self.has_begun.set()
            assert self.may_end.wait(60)

        @dg.asset(key=REPORT, deps=[WINDOW], automation_condition=condition)
        def of_all_days() -> None:
            """Make a report."""

        self.definitions = dg.Definitions(assets=[window, of_day, of_all_days])

    def tell(self, *days: str) -> None:
        """Report days as a batch does."""
        self.instance.add_dynamic_partitions(LIST, [*days])
        for day in days:
            self.instance.report_runless_asset_event(dg.AssetMaterialization(WINDOW, partition=day))

    def requested(self) -> tuple[list[str], int]:
        """Evaluate once: return the days that are requested, and how often the report is."""
        chosen = dg.AssetSelection.assets(DAY, REPORT)
        found = dg.evaluate_automation_conditions(
            self.definitions, self.instance, asset_selection=chosen, cursor=self._cursor
        )
        self._cursor = found.cursor
        return sorted(day or "" for day in found.get_requested_partitions(DAY)), found.get_num_requested(REPORT)

    @contextmanager
    def at_work(self, day: str) -> Iterator[None]:
        """Let the run of a day be at work within the block; it has ended after it."""
        self.may_end.clear()
        self.has_begun.clear()
        job = self.definitions.resolve_implicit_global_asset_job_def()
        given: dict[str, Any] = {"instance": self.instance, "asset_selection": [DAY], "partition_key": day}
        run = threading.Thread(target=job.execute_in_process, kwargs=given)
        run.start()
        try:
            assert self.has_begun.wait(60)
            yield
        finally:
            self.may_end.set()
            run.join()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield Project(instance, of_page()["after_each_change"])


def test_the_assets_of_the_page_have_the_condition_that_is_tried_here() -> None:
    known = of_page()
    for name in ("strongest_of_the_day", "strongest_of_all_days"):
        [spec] = known[name].specs
        assert spec.automation_condition == known["after_each_change"]


@pytest.mark.long
def test_a_late_change_requests_exactly_its_day_and_the_report_once_although_older_days_were_never_told(
    project: Project,
) -> None:
    project.instance.add_dynamic_partitions(LIST, DAYS)
    assert project.requested() == ([], 0)
    project.tell(DAYS[3])
    assert project.requested() == ([DAYS[3]], 1), "116 days later, while 119 days were never told"
    assert project.requested() == ([], 0)
    project.tell(*DAYS)
    assert project.requested() == (DAYS, 1), "one batch, one report"
    assert project.requested() == ([], 0)
    project.tell(DAYS[0], DAYS[-1])
    assert project.requested() == ([DAYS[0], DAYS[-1]], 1)


@pytest.mark.long
@pytest.mark.parametrize("seen", ["while it works", "when it has ended"])
def test_a_change_while_the_run_of_its_day_is_at_work_is_requested_when_that_run_has_ended(
    project: Project, seen: str
) -> None:
    project.tell(*DAYS[:3])
    project.requested()
    project.tell(DAYS[1])
    assert project.requested()[0] == [DAYS[1]]
    with project.at_work(DAYS[1]):
        project.tell(DAYS[1])
        if seen == "while it works":
            assert project.requested()[0] == []
    assert project.requested()[0] == [DAYS[1]]
    assert project.requested()[0] == []


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore:Function `AssetSelection.keys`")
def test_the_days_of_a_batch_are_launched_as_one_backfill_by_the_sensor_that_a_project_has(project: Project) -> None:
    [given] = project.definitions.get_repository_def().sensor_defs
    assert isinstance(given, dg.AutomationConditionSensorDefinition)
    assert given.emit_backfills
    only_days = dg.AssetSelection.assets(DAY)
    sensor = dg.AutomationConditionSensorDefinition("mine", target=only_days, use_user_code_server=True)
    repository = dg.Definitions.merge(project.definitions, dg.Definitions(sensors=[sensor])).get_repository_def()

    def launched(cursor: str | None) -> tuple[str | None, list[Any]]:
        with dg.build_sensor_context(project.instance, cursor=cursor, repository_def=repository) as context:
            tick = sensor.evaluate_tick(context)
        return tick.cursor, [*(tick.run_requests or ())]

    project.instance.add_dynamic_partitions(LIST, DAYS)
    cursor, first = launched(None)
    project.tell(DAYS[3], DAYS[7], DAYS[110])
    cursor, [backfill] = launched(cursor)
    assert (first, backfill.requires_backfill_daemon()) == ([], True)
    days = backfill.asset_graph_subset.partitions_subsets_by_asset_key[DAY].get_partition_keys()
    assert sorted(days) == [DAYS[3], DAYS[7], DAYS[110]]
    assert launched(cursor)[1] == []


def test_a_decision_on_records_names_the_partitions_downstream_of_its_days_with_a_link_that_has_them_chosen(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "quakes.yaml").write_text(SPEC)
    differs = [
        WindowDifference("by_hour", 2, 1, 0, (DAYS[3], DAYS[7]), ()),
        WindowDifference("by_day", 0, 0, 0, (), ()),
    ]
    project.instance.add_dynamic_partitions(LIST, DAYS)
    repository = project.definitions.get_repository_def()
    with dg.partition_loading_context(dynamic_partitions_store=project.instance):
        found = partitions_downstream(repository, read_spec(tmp_path / "quakes.yaml"), differs)
    assert found == {DAY: [DAYS[3], DAYS[7]]}, "not the report over all days"
    assert links({dg.AssetKey(["my reports", "a/b"]): ["2026-01-04", "2026-01-08"]}) == (
        "- [my reports/a/b](/assets/my%20reports/a%2Fb?view=partitions&default_range=2026-01-04,2026-01-08): "
        "2026-01-04, 2026-01-08"
    )
