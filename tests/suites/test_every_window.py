"""Windows of every kind at their edges, on the calendar, and their laws; every case against the oracle as well."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise, product
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.oracle.grids import windows_of
from tests.properties import fold
from tests.properties.fold import assert_equal_to_oracle, run
from tests.properties.logs import BASE_US, Event, Log, generate, shape_of
from tidemark.timeops.calendar.grid import (
    close_time,
    count_between,
    end_after,
    ends_between,
    ends_of,
    last_closed,
    last_end,
    last_end_of,
    may_close_between,
    start_of,
)
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows import aligned
from tidemark.timeops.windows.kinds import kind_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_US = BASE_US // 40 * 40  # a start of every grid below
EDGES = (0, 1, 9, 10, 11, 14, 15, 16, 20)  # of windows of 10 us, and of those with a lateness of 5 us


def window(name: str, lateness: str = "0 us", **keys: Any) -> WindowSpec:
    return fold.window(name=name, allowed_lateness=lateness, **({"kind": name} | keys))


SHAPES: dict[str, dict[str, str]] = {
    "tumbling": {"size": "10 us"},
    "tumbling_right": {"kind": "tumbling", "size": "10 us", "closed": "right"},
    "shifted": {"kind": "tumbling", "size": "10 us", "offset": "5 us"},
    "hopping": {"size": "10 us", "hop": "5 us"},
    "hopping_right": {"kind": "hopping", "size": "10 us", "hop": "4 us", "closed": "right"},
    "gapped": {"kind": "hopping", "size": "5 us", "hop": "10 us"},
    "gapped_right": {"kind": "hopping", "size": "5 us", "hop": "10 us", "closed": "right"},
    "cumulative": {"size": "10 us", "step": "5 us"},
    "cumulative_right": {"kind": "cumulative", "size": "20 us", "step": "10 us", "closed": "right"},
    "sliding": {"size": "10 us"},
    "snapshot": {},
    "session": {"gap": "5 us"},
}


def logs_of(cases: Sequence[Sequence[int]], *, cut: bool) -> list[Log]:
    """Return logs of events at some times, all of one group; `cut` after the first and the second record."""
    seqs = count()
    return [
        Log(
            f"c{number}",
            tuple(Event(next(seqs), BASE_US + i, START_US + t, 2) for i, t in enumerate(times)),
            (1, 2) if cut else (),
        )
        for number, times in enumerate(cases)
    ]


@pytest.mark.long
def test_events_on_every_edge_in_every_order_give_the_oracles_windows(spark: SparkSession) -> None:
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep")
    windows = (
        *(window(name, "5 us", **keys) for name, keys in SHAPES.items()),
        window("emptied", "5 us", kind="cumulative", size="4 us", step="2 us", empty=True),
    )
    logs = logs_of(list(product(EDGES, repeat=3)), cut=True)
    out = run(spark, logs, time, windows, parts=(0, 1, 2))
    assert_equal_to_oracle(logs, out, time, windows)


@pytest.mark.long
def test_windows_obey_the_laws_of_their_kinds(spark: SparkSession) -> None:
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_orderness="40 us")
    windows = tuple(window(name, **keys) for name, keys in SHAPES.items())
    logs = logs_of([(t, t + 7, t - 3, t + 10) for t in range(20)], cut=False)
    out = run(spark, logs, time, windows, flush=True)
    assert_equal_to_oracle(logs, out, time, windows, flush=True)
    for log in logs:
        spans = {name: {row[:2]: set(row[3]) for row in out.windows[name][log.case]} for name in SHAPES}
        everything = sorted(event.seq for event in log.events)
        for partition in ("tumbling", "tumbling_right", "shifted", "snapshot", "session"):
            assert sorted(seq for seqs in spans[partition].values() for seq in seqs) == everything
        assert spans["hopping"] == spans["tumbling"] | spans["shifted"]
        for (start, end), seqs in spans["tumbling"].items():
            assert spans["cumulative"][start, end] == seqs, "the longest is the tumbling one"
        for (start, end), seqs in spans["sliding"].items():
            inside = {event.seq for event in log.events if start < (event.event_us or 0) <= end}
            assert (seqs, end - start) == (inside, 10)


def over(source: str, name: str, lateness: str = "0 us", **keys: str) -> WindowSpec:
    """Return a window over the results of another one, which adds up its events."""
    aggregates = {"seqs": "array_sort(flatten(array_sort(collect_list(seqs))))"}
    shape = {"from": source, "name": name, "allowed_lateness": lateness, **keys}
    return WindowSpec(aggregates=aggregates, **({"group_by": ("case",)} | shape))


@pytest.mark.long
@pytest.mark.parametrize("policy", ["keep", "adjust"])
def test_sessions_and_sliding_windows_over_results_are_the_oracles_wherever_a_log_is_cut(
    spark: SparkSession, policy: str
) -> None:
    soon, late, rule = ("2 us", "5 us", {}) if policy == "keep" else ("0 us", "0 us", {"max_duration": "9 us"})
    fours = window("fours", soon, kind="hopping", size="4 us", hop="3 us")
    windows = (
        fours.model_copy(update={"group_by": ("case", "v")}),
        over("fours", "spells", late, kind="session", gap="4 us", **rule),
        over("spells", "of_spells", late, kind="sliding", size="20 us"),
        over("of_spells", "runs", late, kind="session", gap="9 us", **rule),
    )
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order=policy, out_of_orderness="3 us")
    logs, flush = generate(seed=3, cases=80), policy == "keep"
    out = run(spark, logs, time, windows, parts=(0, 1, 2), flush=flush)
    assert_equal_to_oracle(logs, out, time, windows, flush=flush)
    for one in windows:
        assert max(len(rows) for rows in out.windows[one.name].values()) > 1, one.name


@pytest.mark.long
def test_the_last_revision_is_the_one_result_of_a_window_that_gives_one(spark: SparkSession) -> None:
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness="5 us")
    once = [window(name, "20 us", **SHAPES[name]) for name in ("tumbling", "hopping_right", "sliding")]
    revised = [one.model_copy(update={"name": f"{one.name}_revised", "emit": "on_time"}) for one in once]
    logs = generate(seed=9, cases=60)
    out = run(spark, logs, time, (*once, *revised), flush=True)
    for one, other in zip(once, revised, strict=True):
        last = {case: [row for row in rows if row[-2]] for case, rows in out.windows[other.name].items()}
        assert {case: sorted(row[:4] for row in rows) for case, rows in last.items()} == {
            case: sorted(row[:4] for row in rows) for case, rows in out.windows[one.name].items()
        }
        assert any(len(out.windows[other.name][case]) > len(rows) for case, rows in last.items()), "none was revised"


@pytest.mark.long
@pytest.mark.parametrize("parts", [(0, 1, 2), (None,)])
def test_early_results_go_on_behind_the_end_while_late_events_are_taken(
    spark: SparkSession, parts: Sequence[int | None]
) -> None:
    keys = {"tumbling": "4 us", "hopping_right": "10 us", "sliding": "7 us"}
    windows = tuple(
        window(name, "25 us", **SHAPES[name], emit={"early": every}, having=having)
        for (name, every), having in zip(keys.items(), (None, "size(seqs) != 2", None), strict=True)
    )
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness="3 us")
    logs, flush = generate(seed=12, cases=120), len(parts) == 1
    out = run(spark, logs, time, windows, parts=parts, flush=flush)
    assert_equal_to_oracle(logs, out, time, windows, flush=flush)
    for one in windows:
        rows = [row for case in out.windows[one.name].values() for row in case]
        behind = [row for row in rows if not row[-2] and row[-1] is not None and row[-1] > row[1]]
        assert behind, f"{one.name} gave nothing between its end and its close"


MERGED = {
    "n": "count(*)",
    "known": "count(IF(v > 2, v, NULL))",
    "total": "sum(v + 1)",
    "mean": "avg(v)",
    "lowest": "min(_timestamp)",
    "highest": "max(_arrival_seq)",
}


@pytest.mark.long
def test_windows_by_slices_hold_what_they_hold_by_assignment(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[dict[str, str]] = [
        {"kind": "hopping", "size": "30 us", "hop": "3 us", "offset": "2 us"},
        {"kind": "hopping", "size": "30 us", "hop": "7 us", "closed": "right"},
        {"kind": "hopping", "size": "120 us", "hop": "2 us", "offset": "1 us", "closed": "right"},
        {"kind": "hopping", "size": "132 us", "hop": "3 us", "where": "v > 1"},
        {"kind": "cumulative", "size": "40 us", "step": "4 us", "offset": "1 us", "where": "v > 1"},
        {"kind": "cumulative", "size": "40 us", "step": "2 us", "closed": "right"},
    ]
    windows = tuple(
        window(f"w{i}", "6 us", **shape).model_copy(update={"group_by": ("case", "v"), "aggregates": dict(MERGED)})
        for i, shape in enumerate(shapes)
    )
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness="9 us")
    logs = generate(seed=4, cases=60)
    results = []
    for most in (aligned.MOST_ASSIGNED, 10**9):
        monkeypatch.setattr(aligned, "MOST_ASSIGNED", most)
        found = run(spark, logs, time, windows, flush=True, aggregates=tuple(MERGED)).windows
        results.append(
            {name: {case: sorted(rows, key=str) for case, rows in of.items()} for name, of in found.items()}
        )
    assert results[0] == results[1]
    assert all(len(found) > 0 for found in results[0].values())


@pytest.mark.parametrize(
    ("count", "found"),
    [(4, [4]), (10, [10]), (12, [6, 2]), (60, [10, 6]), (44, [4, 11]), (121, [11, 11]), (1440, [10, 9, 8, 2])],
)
def test_windows_of_many_slices_are_joined_in_steps_of_few(count: int, found: list[int]) -> None:
    assert aligned.factors(count, aligned.MOST_JOINED) == found


ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")
"""Among them one that moves its clocks by half an hour, one 45 minutes aside, and one that left out a day."""


@pytest.mark.long
@pytest.mark.parametrize("zone", ZONES)
def test_local_days_and_months_tile_the_line_through_every_change_of_the_clocks(
    spark: SparkSession, zone: str
) -> None:
    local = [datetime(2000, 1, 1) + timedelta(days=day) for day in range(38 * 365)]  # noqa: DTZ001
    midnights = [(day.replace(tzinfo=ZoneInfo(zone)) - EPOCH) // timedelta(microseconds=1) for day in local]
    instants = spark.createDataFrame(pa.table({"t": [m + near for m in midnights[1:-40] for near in (-1, 0, 1)]}))
    day, month = window("day", kind="tumbling", size="1 day", time_zone=zone), _months(zone)
    found = instants.selectExpr(
        "t",
        *[f"{ends_of('t', kind)} AS {kind.name}" for kind in (day, month)],
        *[f"{start_of(ends_of('t', kind) + '[0]', kind)} AS {kind.name}_from" for kind in (day, month)],
    ).collect()
    for row in found:
        for kind in (day, month):
            assert [(row[f"{kind.name}_from"], *row[kind.name])] == windows_of(shape_of(kind), row["t"]), row
    days = sorted({(row["day_from"], row["day"][0]) for row in found})
    assert [end for _, end in days[:-1]] == [start for start, _ in days[1:]]
    limits = [days[place][0] - 1 for place in (3, -3)]
    [between] = spark.range(1).selectExpr(*_between(day, limits), *_between(month, limits)).collect()
    assert between["day_ends"] == [start for start, _ in days[3:-2]]
    assert between["month_ends"] == sorted({row["month_from"] for row in found} & set(between["day_ends"]))
    left_out = 1 if zone == "Pacific/Apia" else 0  # 2011-12-30
    assert between["day_count"] == len(between["day_ends"]) + left_out
    assert between["month_count"] == len(between["month_ends"])


def _between(kind: WindowSpec, limits: Sequence[int]) -> list[str]:
    after, limit = f"{limits[0]}L", f"{limits[1] + 1}L"
    ends, count = ends_between(after, limit, kind), count_between(after, limit, kind)
    return [f"{ends} AS {kind.name}_ends", f"{count} AS {kind.name}_count"]


def test_where_the_clocks_go_back_over_midnight_the_first_midnight_counts(spark: SparkSession) -> None:
    """In St. John's they went from 00:01 to 23:01 of the day before, so that 2010-11-07 began twice."""
    kind = window("day", kind="tumbling", size="1 day", time_zone="America/St_Johns")
    began = datetime(2010, 11, 7, 2, 30, tzinfo=UTC)
    second = began + timedelta(minutes=31)  # 23:31 of the day before, on the clocks
    us = [(instant - EPOCH) // timedelta(microseconds=1) for instant in (began, second)]
    frame = spark.createDataFrame(pa.table({"t": us}))
    rows = frame.selectExpr("t", f"{ends_of('t', kind)}[0] AS `end`", f"{last_end('t', kind)} AS start")
    following = (datetime(2010, 11, 8, 3, 30, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    assert {(row["start"], row["end"]) for row in rows.collect()} == {(us[0], following)}


def _months(zone: str) -> WindowSpec:
    return window("month", kind="tumbling", size="1 month", time_zone=zone)


@pytest.mark.long
def test_days_of_23_and_25_hours_and_months_give_the_oracles_windows(spark: SparkSession) -> None:
    logs, seqs = [], count()
    for number, first in enumerate([datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 10, 23, tzinfo=UTC)]):
        hours = [(first - EPOCH) // timedelta(microseconds=1) + hour * 3_600_000_000 for hour in range(24 * 11)]
        late = [hours[i - 30 if i % 7 == 3 and i > 30 else i] for i in range(len(hours))]
        events = tuple(Event(next(seqs), at, t, 2) for at, t in zip(hours, late, strict=True))
        logs.append(Log(f"c{number}", events, (50, 120)))
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep")
    windows = (
        window("day", "12 hours", kind="tumbling", size="1 day", time_zone="Europe/Berlin"),
        window("day_right", kind="tumbling", size="1 day", time_zone="Europe/Berlin", closed="right"),
        _months("Europe/Berlin"),
    )
    out = run(spark, logs, time, windows, parts=(0, 1, 2))
    assert_equal_to_oracle(logs, out, time, windows)
    lengths = {(row[1] - row[0]) // 3_600_000_000 for log in logs for row in out.windows["day"][log.case]}
    assert lengths == {23, 24, 25}


LOCAL: dict[str, dict[str, Any]] = {
    "six_hours": {"size": "6 hours", "emit": "on_time", "revise_every": "0 s"},
    "split": {"size": "15 minutes", "repeated": "split"},
    "together": {"size": "30 minutes", "closed": "right"},
    "emptied": {"size": "1 hour", "empty": True},
    "weeks": {"size": "1 week", "week_start": "sunday"},
    "hopping": {"kind": "hopping", "size": "1 hour", "hop": "20 minutes"},
    "revised": {"kind": "hopping", "size": "90 minutes", "hop": "30 minutes", "emit": {"early": "20 minutes"}},
    "gapped": {"kind": "hopping", "size": "20 minutes", "hop": "1 hour", "closed": "right"},
    "cumulative": {"kind": "cumulative", "size": "12 hours", "step": "1 hour"},
}


def logs_around_changes() -> list[Log]:
    """Return logs of New York and Lord Howe around changes of the clocks, out of order and cut at any place."""
    dice, logs, seqs = Random(7), list[Log](), count()
    for case, change in enumerate([(2026, 3, 8, 7), (2026, 11, 1, 6), (2026, 10, 3, 15), (2026, 4, 4, 15)] * 2):
        first = (datetime(*change, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) - 4 * 3_600_000_000
        times = [first + n * 600_000_000 - dice.choice([0, 0, 1, 3_000_000_000, 9_000_000_000]) for n in range(60)]
        events = tuple(Event(next(seqs), at, t, 2) for at, t in zip(sorted(times), times, strict=True))
        logs.append(Log(f"c{case}", events, tuple(sorted(dice.sample(range(1, 60), 2)))))
    return logs


@pytest.mark.long
@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe"])
def test_windows_on_the_wall_clock_are_the_oracles_wherever_a_log_is_cut(spark: SparkSession, zone: str) -> None:
    windows = tuple(
        window(name, "40 minutes", time_zone=zone, **({"kind": "tumbling"} | keys)) for name, keys in LOCAL.items()
    )
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness="5 minutes")
    logs = logs_around_changes()
    out = run(spark, logs, time, windows, parts=(0, 1, 2))
    assert_equal_to_oracle(logs, out, time, windows)
    changed = 30 if zone == "Australia/Lord_Howe" else 60
    lengths = {(row[1] - row[0]) // 60_000_000 for log in logs for row in out.windows["six_hours"][log.case]}
    assert lengths == {360 - changed, 360, 360 + changed}


@pytest.mark.long
def test_windows_on_the_wall_clock_by_slices_hold_what_they_hold_by_assignment(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[dict[str, str]] = [
        {"kind": "hopping", "size": "2 hours", "hop": "15 minutes"},
        {"kind": "hopping", "size": "100 minutes", "hop": "20 minutes", "closed": "right"},
        {"kind": "hopping", "size": "70 minutes", "hop": "15 minutes"},
        {"kind": "cumulative", "size": "8 hours", "step": "30 minutes", "offset": "6 hours"},
    ]
    windows = tuple(
        window(f"w{i}", "30 minutes", time_zone="America/New_York", **shape).model_copy(
            update={"group_by": ("case", "v"), "aggregates": dict(MERGED)}
        )
        for i, shape in enumerate(shapes)
    )
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep")
    results = []
    for most in (aligned.MOST_ASSIGNED, 10**9):
        monkeypatch.setattr(aligned, "MOST_ASSIGNED", most)
        found = run(spark, logs_around_changes(), time, windows, flush=True, aggregates=tuple(MERGED)).windows
        results.append({name: {case: sorted(rows) for case, rows in of.items()} for name, of in found.items()})
    assert results[0] == results[1]
    assert all(len(rows) > 3 for of in results[0].values() for rows in of.values())


@pytest.mark.parametrize("kind", [window(name, "3 us", **keys) for name, keys in SHAPES.items() if name != "session"])
def test_plans_never_say_too_little_closes_or_is_needed(spark: SparkSession, kind: WindowSpec) -> None:
    """Numbers that Python computes for a plan agree with the columns for the rows."""
    assert_plans_agree(spark, kind, range(START_US, START_US + 45))


@pytest.mark.parametrize("size", ["1 day", "1 month", "1 quarter"])
def test_plans_never_say_too_little_of_local_days_and_months(spark: SparkSession, size: str) -> None:
    kind = window("day", "1 hour", kind="tumbling", size=size, time_zone="America/New_York", closed="right")
    assert_plans_agree(spark, kind, range(START_US, START_US + 33 * 86_400_000_000, 3_600_000_000))


def assert_plans_agree(spark: SparkSession, kind: WindowSpec, watermarks: Sequence[int]) -> None:
    rows = spark.createDataFrame(pa.table({"w": list(watermarks)}))
    close = close_time(last_end_of("w", kind), kind)
    found = rows.selectExpr(
        "w", f"{close} AS closes", f"{last_closed('w', kind)} AS closed", end_after("w", kind)
    ).collect()
    for before, after in pairwise(found):
        if kind.closes_on_grid and before["closed"] != after["closed"]:
            assert may_close_between(before["w"], after["w"], kind)
    needed = [(watermark, kind_of(kind).needed_from(watermark)) for watermark in watermarks]
    for w, closes in ((row["w"], row["closes"]) for row in found):  # as an event's time
        if closes is not None:
            assert all(w >= from_us for watermark, from_us in needed if closes > watermark)
    assert not may_close_between(watermarks[0], watermarks[0], kind)
    assert may_close_between(None, watermarks[0], kind)
