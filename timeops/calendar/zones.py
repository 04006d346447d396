"""Time zones that Java and Python know by different rules: Spark computes with Java's, plans are made with Python's.

Here: Java's rules of a zone, asked through Spark, and Python's. Not here: arithmetic with zones
(timeops/calendar/grid.py, timeops/values/utc.py).

Each has a database of its own, of another release. Where their rules differ, a window of a local day would begin at
one instant and be looked for at another. Whether it is found would depend on how the log is cut.

A look without work plans nothing, so PySpark is imported where Java has to answer.
"""
# ruff: noqa: PLC0415 - the reason is above

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tidemark.timeops.errors.problems import Path, Problem
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.utc import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST_YEAR = 2100
"""Rules are compared from 1970 to the end of this year; of earlier years some zones have several histories."""

_DAYS = (datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC) - EPOCH).days
_QUARTERS = 96  # of an hour, in a day
_DAY_S, _QUARTER_S = 86_400, 900

Offsets = Mapping[int, tuple[int, ...]]
"""By the day, counted from the epoch, before whose begin in UTC the clocks were moved: the offset from UTC in seconds
at each quarter of an hour of the day before, up to that begin. The first entry is of the epoch."""


@lru_cache
def java_release(session: "SparkSession") -> str:
    """Return the release of Java's time zone data, such as 2025a; `unknown` where Java does not say."""
    from pyspark.errors import PySparkException

    try:
        rows = session.sql("SELECT java_method('java.time.zone.ZoneRulesProvider', 'getVersions', 'UTC')").collect()
    except PySparkException:  # a cluster may forbid it
        return "unknown"
    return str(rows[0][0]).strip("{}").rpartition(", ")[2].partition("=")[0]


def zones_of(spec: Spec) -> dict[Path, str]:
    """Return the time zones that a spec names, but for UTC, by where it names them."""
    parts: dict[Path, str | None] = {("time",): spec.time.time_zone, ("partitions",): spec.partitions.time_zone}
    parts |= {("sources", number): source.time_zone for number, source in enumerate(spec.sources)}
    parts |= {("windows", number): window.time_zone for number, window in enumerate(spec.windows)}
    return {(*at, "time_zone"): zone for at, zone in parts.items() if zone is not None and zone != "UTC"}


def zone_problems(spec: Spec, session: "Callable[[], SparkSession]") -> list[Problem]:
    """Return what is wrong with the zones of a spec; a session is asked for only where it names one."""
    return [problem for at, zone in zones_of(spec).items() for problem in problems_of_zone(session(), zone, at)]


def problems_of_zone(session: "SparkSession", zone: str | None, at: Path) -> list[Problem]:
    """Return what is wrong with a zone that a key names, at most one problem."""
    problem = None if zone is None or zone == "UTC" else _problem(session, zone)
    return [] if problem is None else [replace(problem, at=at)]


@lru_cache
def _problem(session: "SparkSession", zone: str) -> Problem | None:
    """Return what is wrong with a zone that Python knows: Java does not, or has other rules for it."""
    from pyspark.errors import PySparkException

    try:
        java = _java_offsets(session, zone)
    except PySparkException as error:
        if error.getCondition() != "INVALID_TIMEZONE":
            raise
        return Problem(
            f"`{zone}` is unknown to Java, whose time zone data are of release {java_release(session)}",
            expected="a time zone that both Python and Java know",
            remedy="update Java, or its time zone data alone, or name another zone with the same clocks",
        )
    different = first_difference(java, _python_offsets(zone))
    if different is None:
        return None
    at, by_java, by_python = different
    return Problem(
        f"`{zone}` has different rules in two databases: at {at:%Y-%m-%d %H:%M} UTC its offset is {_hours(by_java)} "
        f"by Java's (release {java_release(session)}) and {_hours(by_python)} by Python's",
        expected=f"the same rules from 1970 to {LAST_YEAR}: Spark computes with Java's, plans are made with Python's",
        remedy="update Java, and the system's zone files or the package tzdata, to the same release",
    )


def first_difference(left: Offsets, right: Offsets) -> tuple[datetime, int, int] | None:
    """Return the first instant at which offsets differ, with both; None where they never do."""
    last_offsets = [0, 0]
    for day in sorted({*left, *right}):
        here = [
            offsets.get(day, (last,) * (_QUARTERS + 1))
            for offsets, last in zip((left, right), last_offsets, strict=True)
        ]
        for quarter, (first, second) in enumerate(zip(*here, strict=True)):
            if first != second:
                return EPOCH + timedelta(days=day - 1, seconds=quarter * _QUARTER_S), first, second
        last_offsets = [offsets[-1] for offsets in here]
    return None


def _java_offsets(session: "SparkSession", zone: str) -> Offsets:
    def offset(at: str) -> str:
        return f"unix_seconds(from_utc_timestamp(timestamp_seconds({at}), '{zone}')) - ({at})"

    begin, begin_before = f"day * {_DAY_S}", f"(day - 1) * {_DAY_S}"
    quarters = f"transform(sequence(0, {_QUARTERS}), q -> {offset(f'{begin_before} + q * {_QUARTER_S}')})"
    moved = f"filter(sequence(0L, {_DAYS - 1}L), day -> day = 0 OR {offset(begin)} <> {offset(begin_before)})"
    # Of one row that is known beforehand, Spark computes this as it plans, without a job.
    query = (
        f"SELECT transform({moved}, day -> struct(day, {quarters} AS offsets)) AS moved FROM VALUES (0) AS one(row)"
    )
    [row] = session.sql(query).collect()
    return {entry["day"]: tuple(entry["offsets"]) for entry in row["moved"]}


def _python_offsets(zone: str) -> Offsets:
    rules = ZoneInfo(zone)

    def offset(seconds: int) -> int:
        utc_offset = (EPOCH + timedelta(seconds=seconds)).astimezone(rules).utcoffset()
        assert utc_offset is not None  # an aware time of a zone has one
        return int(utc_offset.total_seconds())

    def quarters(day: int) -> Iterator[int]:
        return (offset((day - 1) * _DAY_S + quarter * _QUARTER_S) for quarter in range(_QUARTERS + 1))

    offsets, last = {0: tuple(quarters(0))}, offset(0)
    for day in range(1, _DAYS):
        now = offset(day * _DAY_S)
        if now != last:
            offsets[day], last = tuple(quarters(day)), now
    return offsets


def _hours(offset_s: int) -> str:
    sign, minutes = "-" if offset_s < 0 else "+", abs(offset_s) // 60
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}"
