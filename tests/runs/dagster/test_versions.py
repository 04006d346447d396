"""Versions of days in a real instance of Dagster: what is stale, and what conditions ask for.

Here: days that late data, a changed spec and a rebuild change, or do not. Not here: which part of a spec a version
is of (tests/pure/catalog/test_code_versions.py), hashes of rows (tests/pure/catalog/test_row_hashes.py).
"""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from tests.runs.running import Made, changed, elsewhere, go, materialize_days, written
from tidemark.pipelines.code_location.rebuilding import RebuildSettings
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.pipelines.running.runner import RunOptions

SPRING, SUMMER, AUTUMN, WINTER = "2026-03-29", "2026-07-01", "2026-10-25", "2026-11-02"
"""Days of 23, 24, 25 and 24 hours in Berlin."""
DAYS = [SPRING, SUMMER, AUTUMN, WINTER]
SPEC = """
name: shop
sources:
  - {name: s, kind: files, path: in/*.csv, format: csv, schema: "at STRING, k STRING, v DOUBLE", settle: 0 s}
time: {timestamp_by: at, out_of_order: keep}
windows:
  - name: hourly
    kind: tumbling
    size: 1 hour
    group_by: [k]
    allowed_lateness: 1000 days
    emit: on_time
    revise_every: 0 s
    automation_condition: code_version_changed
    aggregates: {total: sum(v), largest: max(v)}
  - name: other
    kind: tumbling
    size: 1 hour
    allowed_lateness: 1000 days
    emit: on_time
    revise_every: 0 s
    aggregates: {n: count(*)}
partitions: {time_zone: Europe/Berlin}
"""
HOURLY, OTHER = (dg.AssetKey(["shop", "windows", name]) for name in ("hourly", "other"))
DAY, REPORT = dg.AssetKey("of_day"), dg.AssetKey("of_all_days")


def land(folder: Path, name: str, *rows: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{name}.csv").write_text("\n".join([*rows, ""]))


class Home:
    """A pipeline, two assets downstream, and what Dagster's daemon evaluates of them."""

    def __init__(self, made: Made, instance: dg.DagsterInstance) -> None:
        self.made, self.instance = made, instance
        self._cursor: AssetDaemonCursor | None = None

    @property
    def definitions(self) -> dg.Definitions:
        has_changed = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
        same_day = dg.AssetDep(HOURLY, partition_mapping=dg.IdentityPartitionMapping())
        daily = dg.DailyPartitionsDefinition("2026-03-01", timezone="Europe/Berlin", end_date="2027-01-01")

        @dg.asset(key=DAY, deps=[same_day], partitions_def=daily, automation_condition=has_changed)
        def of_day() -> None:
            """Make a report of a day."""

        @dg.asset(key=REPORT, deps=[HOURLY], automation_condition=has_changed)
        def of_all_days() -> None:
            """Make a report."""

        return dg.Definitions.merge(
            build_definitions(self.made[1], [self.made[0]]), dg.Definitions([of_day, of_all_days])
        )

    def requested(self) -> dict[str, list[str]]:
        """Evaluate once: return what is requested, days by asset."""
        chosen = dg.AssetSelection.assets(HOURLY, OTHER, DAY, REPORT)
        found = dg.evaluate_automation_conditions(
            self.definitions, self.instance, asset_selection=chosen, cursor=self._cursor
        )
        self._cursor = found.cursor
        asked = {
            key: sorted(day or "" for day in found.get_requested_partitions(key)) for key in (HOURLY, OTHER, DAY)
        }
        asked[REPORT] = [""] * found.get_num_requested(REPORT)
        return {key.path[-1]: days for key, days in asked.items() if days}

    def compute(self, *days: str) -> None:
        """Run the asset downstream for days."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        for day in days:
            assert job.execute_in_process(instance=self.instance, asset_selection=[DAY], partition_key=day).success

    def stale(self, asset: dg.AssetKey) -> list[str]:
        """Return the days of an asset that Dagster shows as stale."""
        graph = self.definitions.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        return [day for day in DAYS if resolver.get_status(asset, day) == StaleStatus.STALE]

    def tags(self, asset: dg.AssetKey, tag: str) -> dict[str, str]:
        """Return a tag of the newest materialization of each day."""
        found = dict[str, str]()
        for record in self.instance.fetch_materializations(asset, limit=1_000).records:
            event = record.asset_materialization
            assert event is not None
            found.setdefault(event.partition or "", (event.tags or {})[tag])
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    # Noon in the summer, and the hours in which the clocks of Berlin change; each in two groups.
    rows = [
        f"{day}T{hour}:30:00Z,{k},{v}" for day in DAYS for hour in ("00", "01") for k, v in (("a", 1.1), ("b", 2.2))
    ]
    land(tmp_path, "a", *rows, "2027-02-01T00:00:00Z,a,0")
    made = written(tmp_path, "shop", SPEC)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        go(made, instance)
        yield Home(made, instance)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_changed_aggregate_makes_days_stale_until_they_are_computed_and_days_that_stay_as_they_are_ask_for_nothing(
    home: Home, tmp_path: Path
) -> None:
    assert home.requested() == {}, "the first evaluation"
    assert home.stale(HOURLY) == home.stale(OTHER) == []
    home.compute(*DAYS)
    versions = home.tags(HOURLY, "dagster/data_version")

    land(tmp_path, "late", f"{SPRING}T00:40:00Z,a,5", f"{AUTUMN}T00:40:00Z,a,5")
    go(home.made, home.instance)
    assert home.requested() == {"of_day": [SPRING, AUTUMN], "of_all_days": [""]}, "days of 23 and 25 hours"
    assert home.requested() == {}
    now = home.tags(HOURLY, "dagster/data_version")
    assert [day for day in DAYS if now[day] != versions[day]] == [SPRING, AUTUMN]
    assert home.stale(HOURLY) == [], "a batch makes no other day stale"
    assert home.stale(DAY) == [SPRING, AUTUMN]
    home.compute(SPRING, AUTUMN)

    home.made = changed(home.made, "largest: max(v)", "largest: min(v)")
    assert (home.stale(HOURLY), home.stale(OTHER)) == (DAYS, [])
    assert home.requested() == {"hourly": DAYS}, "the spec of this window asks for it"
    land(tmp_path, "later", f"{SUMMER}T00:40:00Z,a,5")
    go(home.made, home.instance)
    assert home.requested() == {"of_day": [SUMMER], "of_all_days": [""]}
    assert home.stale(HOURLY) == DAYS, "rows of the aggregate before are in each"
    home.compute(SUMMER)
    before = home.tags(HOURLY, "dagster/data_version")
    materialize_days(home.made, home.instance, "hourly")
    assert home.stale(HOURLY) == []
    assert home.requested() == {"of_day": [SPRING, AUTUMN], "of_all_days": [""]}, "of one event min is max"
    now = home.tags(HOURLY, "dagster/data_version")
    assert [day for day in DAYS if now[day] != before[day]] == home.stale(DAY) == [SPRING, AUTUMN]

    done = home.tags(HOURLY, "dagster/data_version")
    assert rebuild_pipeline(*home.made, RebuildSettings(reason="a test"), instance=home.instance) is not None
    assert home.requested() == {}, "the same rows"
    assert home.tags(HOURLY, "dagster/data_version") == done
    assert (home.stale(HOURLY), home.stale(OTHER)) == ([], [])


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_versions_of_days_are_the_same_however_the_log_is_cut(home: Home, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        cut = Home(elsewhere(home.made), instance)
        assert go(cut.made, instance, RunOptions(max_events_per_batch=3)).batches > 3
        for asset in (HOURLY, OTHER):
            for tag in ("dagster/data_version", "dagster/code_version"):
                assert cut.tags(asset, tag) == home.tags(asset, tag)
