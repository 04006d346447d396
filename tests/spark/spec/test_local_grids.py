"""Grids on the wall clock in SQL: the same windows as in numbers, through every kind of change of the clocks."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.properties import fold
from tidemark.timeops.calendar.grid import (
    close_time,
    count_between,
    ends_between,
    ends_from,
    ends_of,
    instant_of_end,
    last_end_of,
    last_ends,
    spans_at,
    start_of,
)
from tidemark.timeops.calendar.wall_clock import WallClock
from tidemark.timeops.spec import WindowSpec

ZONES = (
    "America/New_York",
    "Australia/Lord_Howe",  # by half an hour
    "Asia/Kathmandu",  # 45 minutes off the hour
    "Pacific/Apia",  # left a day out
    "America/St_Johns",  # went back over midnight
    "Africa/Cairo",  # skips midnight
)
SHAPES: dict[str, dict[str, str]] = {
    "six_hours": {"size": "6 hours"},
    "hours": {"size": "1 hour"},
    "quarters": {"size": "15 minutes", "closed": "right"},
    "split": {"size": "15 minutes", "repeated": "split"},
    "split_hours": {"size": "1 hour", "repeated": "split", "closed": "right"},
    "shifts": {"size": "8 hours", "offset": "6 hours"},
    "days": {"size": "1 day"},
    "weeks": {"size": "1 week", "week_start": "sunday"},
    "fortnights": {"size": "2 weeks", "origin": "2026-04-06"},
    "months": {"size": "1 month"},
    "three_months": {"size": "1 quarter", "closed": "right"},
    "fiscal": {"size": "1 year", "origin": "2024-04-06"},
    "long": {"size": "18 months", "origin": "2009-11-28"},
    "hopping": {"kind": "hopping", "size": "1 hour", "hop": "30 minutes"},
    "hopping_days": {"kind": "hopping", "size": "7 days", "hop": "1 day"},
    "gapped": {"kind": "hopping", "size": "20 minutes", "hop": "1 hour"},
    "cumulative": {"kind": "cumulative", "size": "1 day", "step": "1 hour", "closed": "right"},
    "finer": {"kind": "cumulative", "size": "2 hours", "step": "20 minutes"},
}


def shape(name: str, zone: str) -> WindowSpec:
    keys = {"kind": "tumbling"} | SHAPES[name]
    return fold.window(name=name, allowed_lateness="0 us", time_zone=zone, **keys)


def near_changes(zone: str) -> list[int]:
    """Return instants before, in and after every hour that came twice or was skipped, and others."""
    at = WallClock.of(zone, range(2008, 2014)).moved()[:, 0]
    minutes = [-400, -61, -30, -1, 0, 1, 14, 15, 29, 30, 44, 59, 60, 61, 75, 90, 119, 120, 125, 600, 5000]
    us = np.concatenate([at + minute * 60_000_000 + more for minute in minutes for more in (0, -1)])
    return sorted({*us.tolist(), *range(1_700_000_000_000_000, 1_700_400_000_000_000, 7_777_777_777)})


@pytest.mark.parametrize(
    "zone", [ZONES[1], *(pytest.param(zone, marks=pytest.mark.long) for zone in (ZONES[0], *ZONES[2:]))]
)
def test_windows_on_the_wall_clock_are_those_in_numbers(spark: SparkSession, zone: str) -> None:
    us = near_changes(zone)
    windows = [shape(name, zone) for name in SHAPES]
    rows = spark.createDataFrame(pa.table({"t": us}))
    columns = []
    for window in windows:
        start, end = start_of("__tm_e", window), instant_of_end("__tm_e", window)
        columns.append(f"transform({ends_of('t', window)}, __tm_e -> array({start}, {end})) AS {window.name}")
        columns.append(f"{close_time(last_end_of('t', window), window)} AS {window.name}_last")
    found = rows.selectExpr("t", *columns).orderBy("t").toArrow().to_pydict()
    for window in windows:
        in_numbers = [[list(span) for span in spans_at(t, window)] for t in us]
        assert found[window.name] == in_numbers, window.name
        ends = last_ends(np.array(us), window).tolist()
        closes = [None if end == np.iinfo(np.int64).min else end + window.closes_after_us for end in ends]
        assert found[f"{window.name}_last"] == closes, window.name


def test_ends_of_months_and_years_between_two_instants_are_those_in_numbers(spark: SparkSession) -> None:
    """Rows for windows without an event need each of them, and their number before that."""
    after, limit = 1_200_000_000_000_000, 1_800_000_000_000_000
    windows = [shape(name, "America/St_Johns") for name in ("months", "three_months", "fiscal", "long")]
    columns = []
    for window in windows:
        columns.append(f"{ends_between(f'{after}L', f'{limit}L', window)} AS {window.name}")
        columns.append(f"{count_between(f'{after}L', f'{limit}L', window)} AS {window.name}_count")
    [found] = spark.range(1).selectExpr(*columns).collect()
    for window in windows:
        in_numbers = ends_from(after + 1, limit, window).tolist()
        assert found[window.name] == in_numbers, window.name
        assert found[f"{window.name}_count"] == len(in_numbers), window.name
    assert [found[f"{window.name}_count"] for window in windows] == [228, 76, 19, 13]
