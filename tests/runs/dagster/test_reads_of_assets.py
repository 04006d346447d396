"""`tm.TidemarkResource` in real runs of Dagster: the rows of a partition, and one commit for all reads of a run."""

import os
import sys
import tempfile
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidemark as tm
from tests.pure.report.shop import PER_MINUTE, SPEC, WINDOWS, Shop, window_row
from tidemark.pipelines.code_location.resource import as_pandas
from tidemark.resources.tables import LOG_CONTROL, SPEC_ITEM

KOLKATA, BERLIN = "partitions: {time_zone: Asia/Kolkata}\n", "partitions: {time_zone: Europe/Berlin}\n"
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # one run for a range of partitions
DAYS = dg.DynamicPartitionsDefinition(name=f"shop/{PER_MINUTE}")


def shop(folder: Path, *starts: str, more: str = "") -> Shop:
    """Return a pipeline with a row of a window at each of these instants."""
    made = Shop.with_log(folder, 10, SPEC + WINDOWS + more)
    item = {"_control_seq": 0, "kind": SPEC_ITEM, "argument": made.file.spec.canonical_json()}
    made.add(LOG_CONTROL, [item])
    write(made, *starts)
    return made


def write(made: Shop, *starts: str) -> None:
    """Add rows of the window in a batch of their own."""
    rows = [{**window_row(0), "window_start": datetime.fromisoformat(at).replace(tzinfo=UTC)} for at in starts]
    made.add(PER_MINUTE, rows)
    made.commit("process", 10, {"records": len(rows)})


def reading(**given: Any) -> tm.TidemarkResource:
    return tm.TidemarkResource(warehouse="warehouse", pipeline="shop", **given)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read_by(
    partitions: dg.PartitionsDefinition[Any] | None,
    key: str | None = None,
    *,
    upto: str | None = None,
    table: str = PER_MINUTE,
) -> tuple[list[str], dict[str, Any]]:
    """Materialize an asset that reads a table; return its instants in order, and the metadata of its output."""
    found: list[pa.Table] = []

    @dg.asset(partitions_def=partitions, backfill_policy=dg.BackfillPolicy.single_run())
    def report(context: dg.AssetExecutionContext, tidemark: tm.TidemarkResource) -> None:
        found.append(tidemark.read(context, table))

    ends = {"dagster/asset_partition_range_start": key or "", "dagster/asset_partition_range_end": upto or ""}
    with dg.DagsterInstance.ephemeral() as instance:
        if isinstance(partitions, dg.DynamicPartitionsDefinition):
            instance.add_dynamic_partitions(
                str(partitions.name), ["2026-03-28", "2026-03-29", "2026-03-31", "every day"]
            )
        done = dg.materialize(
            [report],
            instance=instance,
            resources={"tidemark": reading()},
            partition_key=None if upto else key,
            tags=ends if upto else None,
            raise_on_error=True,
        )
    [event] = done.asset_materializations_for_node("report")[:1]
    instants = found[0]["window_start"].to_pylist()
    return sorted(f"{one:%m-%d %H:%M}" for one in instants), {name: one.value for name, one in event.metadata.items()}


def test_an_asset_without_partitions_gets_all_rows_and_says_of_which_commit(tmp_path: Path) -> None:
    shop(tmp_path, "2026-03-28 12:00", "2026-03-29 12:00")
    rows, told = read_by(None)
    assert rows == ["03-28 12:00", "03-29 12:00"]
    assert told == {"shop: batch": 1, f"shop/{PER_MINUTE}: version": 1}


def test_runs_leave_one_file_in_the_folder_for_temporary_files_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop(tmp_path, "2026-03-28 12:00")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for _ in range(3):
        read_by(None)
    assert [path.name for path in (tmp_path / "temporary").iterdir()] == [f"tidemark-read-{os.getuid()}.lock"]


@pytest.mark.parametrize(
    ("zone", "begin", "end"),
    [("", "29 00:00", "30 00:00"), (BERLIN, "28 23:00", "29 22:00"), (KOLKATA, "28 18:30", "29 18:30")],
)
def test_a_day_of_the_window_is_that_of_the_zone_of_the_pipeline(
    tmp_path: Path, zone: str, begin: str, end: str
) -> None:
    """In Berlin this day has 23 hours; in Kolkata days begin at half past."""
    each = [f"{day} {hour:02}:{minute}" for day in (28, 29, 30) for hour in range(24) for minute in ("00", "30")]
    shop(tmp_path, *(f"2026-03-{at}" for at in each), more=zone)
    assert read_by(DAYS, "2026-03-29")[0] == [f"03-{at}" for at in each if begin <= at < end]


def test_a_range_of_days_gets_their_rows_and_none_of_a_day_between_that_is_not_among_them(tmp_path: Path) -> None:
    shop(tmp_path, *(f"2026-03-{day} 12:00" for day in (27, 28, 29, 30, 31)))
    assert read_by(DAYS, "2026-03-28", upto="2026-03-31")[0] == ["03-28 12:00", "03-29 12:00", "03-31 12:00"]


_DAILY = dg.DailyPartitionsDefinition("2026-10-24")


@pytest.mark.parametrize(
    ("partitions", "key", "begin", "end"),
    [
        (dg.DailyPartitionsDefinition("2026-10-24", timezone="Europe/Berlin"), "2026-10-25", "24 22", "25 23"),
        (_DAILY, "2026-10-25", "25 00", "26 00"),
        (dg.HourlyPartitionsDefinition("2026-10-24-00:00"), "2026-10-25-01:00", "25 01", "25 02"),
        (dg.DailyPartitionsDefinition("2026-10-24", hour_offset=6), "2026-10-25", "25 06", "26 06"),
        (dg.WeeklyPartitionsDefinition("2026-10-18"), "2026-10-25", "25 00", "27 00"),
        (
            dg.MultiPartitionsDefinition({"day": _DAILY, "net": dg.StaticPartitionsDefinition(["us"])}),
            dg.MultiPartitionKey({"day": "2026-10-25", "net": "us"}),
            "25 00",
            "26 00",
        ),
    ],
)
def test_time_partitions_of_a_project_get_the_rows_of_their_time(
    tmp_path: Path, partitions: dg.PartitionsDefinition[Any], key: str, begin: str, end: str
) -> None:
    """There are rows in each hour of three days; the second has 25 hours in Berlin."""
    hours = [f"{day} {hour:02}" for day in (24, 25, 26) for hour in range(24)]
    shop(
        tmp_path, *(f"2026-10-{hour}:00" for hour in hours), more=BERLIN if (begin, end) == ("24 22", "25 23") else ""
    )
    assert read_by(partitions, key)[0] == [f"10-{hour}:00" for hour in hours if begin <= hour < end]


@pytest.mark.parametrize(
    ("partitions", "key", "table", "said"),
    [
        (dg.StaticPartitionsDefinition(["emea"]), "emea", PER_MINUTE, "The partition `emea` is not a day"),
        (DAYS, "every day", PER_MINUTE, "The partition `every day` is not a day"),
        (DAYS, "2026-03-29", "dead_letters", "The rows of dead_letters belong to no day"),
        (dg.StaticPartitionsDefinition(["2011-12-30"]), "2011-12-30", PER_MINUTE, "Pacific/Apia had no 2011-12-30"),
        (
            _DAILY,
            "2026-10-25",
            PER_MINUTE,
            "2026-10-25 is a day in UTC, but the days of the pipeline are in Pacific/A",
        ),
        (None, None, "windows/by_our", "Pipeline shop has no table windows/by_our as of batch 1"),
    ],
)
def test_a_partition_without_rows_of_its_own_is_an_error_that_says_so(
    tmp_path: Path, partitions: dg.PartitionsDefinition[Any] | None, key: str | None, table: str, said: str
) -> None:
    shop(tmp_path, "2026-03-28 12:00", more="partitions: {time_zone: Pacific/Apia}\n")
    with pytest.raises(tm.TidemarkError, match=said):
        read_by(partitions, key, table=table)


def test_all_reads_of_a_run_are_of_one_commit_also_when_a_step_is_tried_again(tmp_path: Path) -> None:
    made, seen, fails = shop(tmp_path, "2026-03-28 12:00"), list[int](), [True]

    @dg.asset
    def first(context: dg.AssetExecutionContext, tidemark: tm.TidemarkResource) -> None:
        seen.append(tidemark.read(context, PER_MINUTE).num_rows)
        write(made, "2026-03-29 12:00")  # a commit between two reads
        seen.append(len(tidemark.read(context, PER_MINUTE, as_="pandas")))

    @dg.asset(deps=[first], retry_policy=dg.RetryPolicy(max_retries=1))
    def second(context: dg.AssetExecutionContext, tidemark: tm.TidemarkResource) -> None:
        seen.append(tidemark.read(context, PER_MINUTE, as_="polars").height)
        if fails:
            fails.clear()
            raise ValueError

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            dg.materialize([first, second], instance=instance, resources={"tidemark": reading()})
    assert seen == [1, 1, 1, 1, 2, 2, 2]


_PROJECT = """
from pathlib import Path
import dagster as dg
import tidemark as tm

def rows(context, tidemark):
    context.add_output_metadata({"rows": tidemark.read(context, "windows/per_minute").num_rows})

@dg.asset
def first(context, tidemark: tm.TidemarkResource):
    rows(context, tidemark)
    Path("read").touch()

@dg.asset(deps=[first])
def second(context, tidemark: tm.TidemarkResource):
    rows(context, tidemark)
    if Path("fails").exists():
        raise dg.Failure("as it should", allow_retries=False)

job = dg.define_asset_job("both", executor_def=dg.multiprocess_executor)
defs = dg.Definitions([first, second], jobs=[job], resources={"tidemark": tm.TidemarkResource(
    warehouse="warehouse", pipeline="shop")})

def both():
    return defs.resolve_job_def("both")
"""


@pytest.mark.long
def test_steps_in_processes_of_their_own_and_a_run_that_goes_on_where_one_failed_read_the_same_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop(tmp_path, "2026-03-28 12:00")
    (tmp_path / "project_of_reads.py").write_text(_PROJECT)
    (tmp_path / "fails").touch()
    monkeypatch.syspath_prepend(tmp_path)
    both = dg.reconstructable(import_module("project_of_reads").both)

    def rows(run_id: str) -> dict[str, Any]:
        records = [
            instance.fetch_materializations(dg.AssetKey(name), limit=9).records for name in ("first", "second")
        ]
        events = [one.event_log_entry for each in records for one in each if one.run_id == run_id]
        return {
            one.step_key: one.asset_materialization.metadata["rows"].value
            for one in events
            if one.step_key and one.asset_materialization
        }

    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        failed = dg.execute_job(both, instance)
        assert (failed.success, rows(failed.run_id)) == (False, {"first": 1})
        write(made, "2026-03-29 12:00")
        (tmp_path / "fails").unlink()
        goes_on = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        went_on = dg.execute_job(both, instance, reexecution_options=goes_on)
        assert (went_on.success, rows(went_on.run_id)) == (True, {"second": 1})
        again = dg.execute_job(both, instance, reexecution_options=dg.ReexecutionOptions(failed.run_id))
        assert (again.success, rows(again.run_id)) == (True, {"first": 2, "second": 2})


def test_a_session_of_spark_reads_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    shop(tmp_path, "2026-03-28 23:59", "2026-03-29 00:00", "2026-03-30 00:00")
    found: list[int] = []

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-03-01"))
    def report(context: dg.AssetExecutionContext, tidemark: tm.TidemarkResource) -> None:
        found.append(tidemark.read(context, PER_MINUTE, as_="spark").count())

    dg.materialize([report], resources={"tidemark": reading()}, partition_key="2026-03-29")
    assert found == [1]


def test_numbers_of_pandas_are_exact_where_some_are_null() -> None:
    rows = pa.table({"n": pa.array([2**53 + 1, None]), "is_final": pa.array([True, None])})
    frame = as_pandas(rows)
    assert (frame["n"][0], str(frame["n"].dtype), str(frame["is_final"].dtype)) == (2**53 + 1, "Int64", "boolean")


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(tmp_path, "2026-03-28 12:00")
    context = dg.build_asset_context()
    with pytest.raises(tm.SpecError, match="No pipeline is named"):
        tm.TidemarkResource(warehouse="warehouse").read(context, PER_MINUTE)
    with pytest.raises(tm.LakeError, match="There is no pipeline shoe"):
        reading().read(context, PER_MINUTE, pipeline="shoe")
    with pytest.raises(tm.SpecError, match="`as_` is 'json'"):
        reading().read(context, PER_MINUTE, as_="json")  # type: ignore[call-overload]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(tm.MachineError, match="polars is not installed"):
        reading().read(context, PER_MINUTE, as_="polars")
