"""The demo against a plain pandas computation of the same rules over all of its 336,776 flights.

Nothing of the product is used for what is expected: the data set, its columns and the rules are read anew here.
"""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pandas as pd
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tidemark.pipelines.demos.flights import SPEC, land_flights, packaged_flights
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.pipelines.views.terminal import lines_of, watermark_text
from tidemark.resources.settings import Settings
from tidemark.resources.spark.session import session_config, with_settings
from tidemark.resources.tables import DEAD_LETTERS, HELD_EVENTS, ORDERED_EVENTS
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.long

HOUR = pd.Timedelta(hours=1)
TOLERANCE = pd.Timedelta(hours=3)
WINDOW = "windows/departures_1h"


@dataclass(frozen=True)
class Expected:
    """Figures of the flights under the rules.

    Attributes:
        log: All flights in the order of the log; `event`, `arrival` (NaT where cancelled) and `outcome`.
        watermark: The watermark after the last one.
        windows: Of each closed hour and airport `departures`, `mean_delay`, `p95_delay`.
    """

    log: pd.DataFrame
    watermark: pd.Timestamp
    windows: pd.DataFrame


@pytest.fixture(scope="module")
def expected() -> Expected:
    flights = pd.read_csv(packaged_flights(), na_values=["NA"])
    clock = flights["sched_dep_time"].astype(str).str.zfill(4)
    day = pd.to_datetime(flights[["year", "month", "day"]])
    local = day + pd.to_timedelta(clock.str[:2] + ":" + clock.str[2:] + ":00")
    flights["event"] = local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    delay = flights["dep_delay"]
    # Of missing numbers pandas multiplies whatever is in memory, and NumPy may warn of an overflow.
    flights["arrival"] = flights["event"] + pd.to_timedelta(delay.fillna(0), unit="min").where(delay.notna())
    flights["line"] = flights.groupby("month").cumcount()
    log = flights.sort_values(["arrival", "month", "line"], na_position="last").reset_index(drop=True)

    arrived = log["arrival"].notna()
    latest = log["event"].where(arrived).cummax()
    watermark = latest.iloc[arrived.sum() - 1] - TOLERANCE
    is_late = log["event"] < latest.shift() - TOLERANCE
    log["outcome"] = "ordered"
    log.loc[log["event"] >= watermark, "outcome"] = "held"
    log.loc[is_late, "outcome"] = "out_of_order"
    log.loc[~arrived, "outcome"] = "no_arrival_time"

    accepted = log[log["outcome"].isin(["ordered", "held"])]
    delays = accepted.groupby([accepted["event"].dt.floor("h").rename("window_start"), "origin"])["dep_delay"]
    windows = pd.DataFrame(
        {"departures": delays.size(), "mean_delay": delays.mean(), "p95_delay": delays.quantile(0.95)}
    )
    closed = windows.index.get_level_values("window_start") <= watermark - HOUR
    return Expected(log, watermark, windows[closed])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Workspace]:
    """Yield the tables after one run of the demo's own spec over its own landing files."""
    root = tmp_path_factory.mktemp("demo")
    land_flights(root / "data" / "flights")
    spec = root / "pipelines" / "specs" / SPEC.name
    spec.parent.mkdir(parents=True)
    shutil.copy(SPEC, spec)
    file = read_spec(spec)
    settings = Settings(warehouse=root / "warehouse", specs=spec.parent, dagster_home=root)
    with DagsterInstance.ephemeral() as instance, as_in_a_run(spark):
        report = run_pipeline(file, settings, RunOptions(), instance=instance)
    assert (report.batches, report.waiting, report.held_back) == (1, (), ())
    yield Workspace(file, settings.warehouse)
    shutil.rmtree(root)


def as_in_a_run(spark: SparkSession) -> AbstractContextManager[None]:
    """Return the session of the tests as it is for many rows outside of them: with compiled and adaptive queries."""
    settings = {
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": session_config()["spark.sql.shuffle.partitions"],
    }
    return with_settings(spark, settings)


def read(demo: Workspace, table: str, columns: list[str]) -> pd.DataFrame:
    """Columns of a table as of the last commit, by delta-rs."""
    frame: pd.DataFrame = demo.lake.rows(table, demo.base()[table], columns=columns).to_pandas()
    return frame


def test_every_flight_ends_where_pandas_says(demo: Workspace, expected: Expected) -> None:
    found = {
        "ordered": read(demo, ORDERED_EVENTS, ["_arrival_seq"]),
        "held": read(demo, HELD_EVENTS, ["_arrival_seq"]),
    }
    letters = read(demo, DEAD_LETTERS, ["_arrival_seq", "reason"])
    found |= {str(reason): rows for reason, rows in letters.groupby("reason")}
    wanted = {str(outcome): list(rows.index) for outcome, rows in expected.log.groupby("outcome")}
    assert {name: len(rows) for name, rows in wanted.items()} == {
        "ordered": 325_320,
        "held": 30,
        "out_of_order": 3_171,
        "no_arrival_time": 8_255,
    }
    assert {name: sorted(rows["_arrival_seq"]) for name, rows in found.items()} == wanted


def test_event_time_and_arrival_are_right_in_the_nights_in_which_the_clocks_change(
    demo: Workspace, expected: Expected
) -> None:
    columns = ["_arrival_seq", "_event_time", "_arrival_time", "flight", "origin"]
    found = read(demo, ORDERED_EVENTS, columns).set_index("_arrival_seq").sort_index()
    wanted = expected.log.loc[found.index]
    assert (found["_event_time"] == wanted["event"]).all()
    assert (found["_arrival_time"] == wanted["arrival"]).all()
    assert (found[["flight", "origin"]] == wanted[["flight", "origin"]]).all(axis=None)


def test_every_window_row_equals_what_pandas_gives(demo: Workspace, expected: Expected) -> None:
    keys, numbers = ["window_start", "origin"], ["departures", "mean_delay", "p95_delay"]
    rows = read(demo, WINDOW, [*keys, "window_end", *numbers, "_is_final"])
    assert (rows["window_end"] - rows["window_start"] == HOUR).all()
    assert rows["_is_final"].all()
    found, wanted = rows.set_index(keys)[numbers].sort_index(), expected.windows.sort_index()
    assert list(found.index) == list(wanted.index)
    found.index = wanted.index  # the same instants, in microseconds instead of nanoseconds
    assert (found["departures"] == wanted["departures"]).all()
    for name in ("mean_delay", "p95_delay"):
        assert (found[name] - wanted[name]).abs().max() <= 1e-9


def test_the_watermark_is_three_hours_behind_the_latest_schedule(demo: Workspace, expected: Expected) -> None:
    assert demo.progress.position().watermark_us == expected.watermark.value // 1_000
    assert watermark_text(demo.progress.position()) == f"{expected.watermark:%Y-%m-%d %H:%M:%S} UTC"


def test_the_report_shows_the_same_counts(demo: Workspace, expected: Expected) -> None:
    shown = {line.label.strip(): (line.added, line.in_all) for line in lines_of(demo, 1)}
    counts = expected.log["outcome"].value_counts()
    refused = counts["out_of_order"] + counts["no_arrival_time"]
    rows = len(expected.windows)
    assert shown == {
        "records in": (len(expected.log), len(expected.log)),
        "ordered": (counts["ordered"], counts["ordered"]),
        "held, the watermark has not passed them": (None, counts["held"]),
        "refused, in dead_letters": (refused, refused),
        "no_arrival_time": (counts["no_arrival_time"],) * 2,
        "out_of_order": (counts["out_of_order"],) * 2,
        f"rows of {WINDOW}": (rows, rows),
    }
