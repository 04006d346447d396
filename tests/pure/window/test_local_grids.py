"""Windows on the wall clock of a zone: every instant is in exactly one tumbling window, whatever the clocks do."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest

from tests.oracle.grids import close_of, latest_close_on_grid, windows_of
from tests.properties import fold
from tests.properties.logs import shape_of
from tests.seeds import Dice
from tidemark.assets.recount.records import ends_of_window
from tidemark.resources.recount import ends as recounted_ends
from tidemark.timeops.calendar.grid import closed_from, ends_from, last_ends, may_close_between, needed_from, spans_at
from tidemark.timeops.calendar.wall_clock import WallClock, begins_between, spans_around
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window_shape import LocalGrid
from tidemark.timeops.values.utc import instant_of, us_of

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
GRIDS = (
    *((step, 0, False) for step in (6 * HOUR, HOUR, 15 * MINUTE, DAY)),
    (7 * DAY, 4 * DAY, False),
    (8 * HOUR, 6 * HOUR, False),
    *((step, 0, True) for step in (HOUR, 15 * MINUTE, 45 * MINUTE, MINUTE)),
)
FISCAL = us_of(datetime(2024, 4, 6, tzinfo=UTC))
MONTHS = ((1, 0), (1, FISCAL), (3, 0), (5, 0), (12, 0), (12, FISCAL), (24, FISCAL - 5 * DAY))
"""How many months a window has, and a day with which one begins."""
CASES = 1
CHANGED = ("Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein", "America/St_Johns", "Africa/Monrovia")
"""Clocks moved by half an hour, over a day, back by a day, back over midnight, by 44 minutes and 30 seconds."""


def local(size: str, zone: str = "America/New_York", kind: str = "tumbling", **keys: Any) -> WindowSpec:
    return fold.window(name="w", kind=kind, size=size, time_zone=zone, **({"allowed_lateness": "0 us"} | keys))


def us(text: str, zone: str = "UTC") -> int:
    return us_of(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))


def instants(zone: str, rng: np.random.Generator, count: int = 1500) -> np.ndarray:
    """Return instants next to every change of the clocks from 1900 to 2100, and any others."""
    at = WallClock.of(zone, range(1900, 2101)).moved()[:, 0]
    near = [at + by for by in (-2 * HOUR, -1, 0, 1, 30 * MINUTE, HOUR - 1, HOUR, HOUR + 1, 5 * HOUR)]
    return np.concatenate([*near, rng.integers(us("1900-01-01"), us("2101-01-01"), count)])


def assert_tiled(zones: Sequence[str], dice: Dice) -> None:
    rng = np.random.default_rng(dice.seed(1))
    for zone in zones:
        when = instants(zone, rng)
        grids = [LocalGrid(zone, *grid) for grid in GRIDS]
        for grid in [*grids, *(LocalGrid(zone, None, anchor_us, months=months) for months, anchor_us in MONTHS)]:
            begin, end = spans_around(when, grid)
            assert ((begin <= when) & (when < end)).all(), grid
            for inside in (begin, end - 1):
                assert all(
                    np.array_equal(*pair) for pair in zip(spans_around(inside, grid), (begin, end), strict=True)
                ), grid
            assert np.array_equal(spans_around(end, grid)[0], end), grid


def test_every_instant_is_in_exactly_one_window_of_some_zones(dice: Dice) -> None:
    zones = sorted(available_timezones())
    assert_tiled([*CHANGED[:3], *(dice.choice(zones) for _ in range(4))], dice)


@pytest.mark.long
def test_every_instant_of_two_centuries_is_in_exactly_one_window_of_every_zone(dice: Dice) -> None:
    assert_tiled(sorted(available_timezones()), dice)


def spans(text: str, window: WindowSpec) -> list[str]:
    """Return the windows that hold a time of UTC, as the clocks of their zone show start and end, and their hours."""
    zone = ZoneInfo(window.time_zone or "UTC")
    found = spans_at(us(text), window)
    shown = [[instant_of(at).astimezone(zone).strftime("%d %H:%M") for at in span] for span in found]
    return [f"{a} - {b}: {(e - s) / HOUR:g} h" for (a, b), (s, e) in zip(shown, found, strict=True)]


LORD_HOWE, APIA, ST_JOHNS = "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns"
TABLE: list[tuple[WindowSpec, str, list[str]]] = [
    # 2026-03-08 02:00 becomes 03:00 at 07:00 UTC.
    (local("6 hours"), "2026-03-08 05:30", ["08 00:00 - 08 06:00: 5 h"]),
    (local("2 hours"), "2026-03-08 07:30", ["08 03:00 - 08 04:00: 1 h"]),
    (local("1 hour"), "2026-03-08 06:30", ["08 01:00 - 08 03:00: 1 h"]),
    (local("15 minutes"), "2026-03-08 07:00", ["08 03:00 - 08 03:15: 0.25 h"]),
    (
        local("1 hour", kind="hopping", hop="30 minutes"),
        "2026-03-08 06:45",
        ["08 01:00 - 08 03:00: 1 h", "08 01:30 - 08 03:00: 0.5 h"],
    ),
    (
        local("1 hour", kind="hopping", hop="30 minutes"),
        "2026-03-08 07:05",
        ["08 03:00 - 08 03:30: 0.5 h", "08 03:00 - 08 04:00: 1 h"],
    ),
    (local("3 hours", kind="cumulative", step="1 hour"), "2026-03-08 06:45", ["08 00:00 - 08 03:00: 2 h"]),
    # 2026-11-01 02:00 becomes 01:00 at 06:00 UTC.
    (local("6 hours"), "2026-11-01 06:30", ["01 00:00 - 01 06:00: 7 h"]),
    (local("1 hour"), "2026-11-01 05:30", ["01 01:00 - 01 02:00: 2 h"]),
    (local("1 hour"), "2026-11-01 06:30", ["01 01:00 - 01 02:00: 2 h"]),
    (local("15 minutes"), "2026-11-01 05:10", ["01 01:00 - 01 01:15: 0.25 h"]),
    (local("15 minutes"), "2026-11-01 06:10", ["01 01:45 - 01 02:00: 1.25 h"]),
    (local("1 hour", repeated="split"), "2026-11-01 05:30", ["01 01:00 - 01 01:00: 1 h"]),
    (local("1 hour", repeated="split"), "2026-11-01 06:30", ["01 01:00 - 01 02:00: 1 h"]),
    (local("15 minutes", repeated="split"), "2026-11-01 06:10", ["01 01:00 - 01 01:15: 0.25 h"]),
    (
        local("1 day", kind="cumulative", step="12 hours"),
        "2026-11-01 15:00",
        ["01 00:00 - 01 12:00: 13 h", "01 00:00 - 02 00:00: 25 h"],
    ),
    # Weeks, fiscal weeks, shifts.
    (local("1 week"), "2026-03-08 12:00", ["02 00:00 - 09 00:00: 167 h"]),
    (local("1 week", week_start="sunday"), "2026-03-08 12:00", ["08 00:00 - 15 00:00: 167 h"]),
    (local("4 weeks", origin="2026-02-01"), "2026-03-08 12:00", ["01 00:00 - 29 00:00: 671 h"]),
    (local("8 hours", offset="6 hours"), "2026-03-08 05:00", ["07 22:00 - 08 06:00: 7 h"]),
    # Quarters and years, whose hours are those of their days and one hour less or more.
    (local("1 quarter"), "2026-03-08 12:00", ["01 00:00 - 01 00:00: 2159 h"]),
    (local("3 months", origin="2026-02-01"), "2026-04-30 12:00", ["01 00:00 - 01 00:00: 2135 h"]),
    (local("1 year"), "2024-12-31 12:00", ["01 00:00 - 01 00:00: 8784 h"]),
    (local("1 year", origin="2024-04-01"), "2026-04-01 03:59:59", ["01 00:00 - 01 00:00: 8760 h"]),
    (local("1 year", origin="2024-04-01"), "2026-04-01 04:00", ["01 00:00 - 01 00:00: 8760 h"]),
    (local("1 year", "Europe/London", origin="2027-04-06"), "2024-01-01 00:00", ["06 00:00 - 06 00:00: 8784 h"]),
    (local("1 month", origin="2026-01-15"), "2026-03-14 12:00", ["15 00:00 - 15 00:00: 671 h"]),
    (
        local("7 days", kind="hopping", hop="7 days", week_start="sunday"),
        "2026-03-08 12:00",
        ["08 00:00 - 15 00:00: 167 h"],
    ),
    # Other clocks: by half an hour, 45 minutes off the hour, a day that was left out, midnight that came twice.
    (local("1 hour", LORD_HOWE), "2026-04-04 15:10", ["05 01:00 - 05 02:00: 1.5 h"]),
    (local("30 minutes", LORD_HOWE, repeated="split"), "2026-04-04 15:10", ["05 01:30 - 05 02:00: 0.5 h"]),
    (local("6 hours", "Asia/Kathmandu"), "2026-03-08 00:00", ["08 00:00 - 08 06:00: 6 h"]),
    (local("6 hours", APIA), "2011-12-30 09:59:59", ["29 18:00 - 31 00:00: 6 h"]),
    (local("7 days", APIA), "2011-12-30 10:00", ["26 00:00 - 02 00:00: 144 h"]),
    (local("1 day", "America/Toronto"), "1919-03-31 04:30", ["31 00:30 - 01 00:00: 23.5 h"]),
    (local("1 day", ST_JOHNS), "2010-11-07 03:10", ["07 00:00 - 08 00:00: 25 h"]),
]


@pytest.mark.parametrize(("window", "at", "found"), TABLE)
def test_windows_follow_the_clocks_of_their_zone(window: WindowSpec, at: str, found: list[str]) -> None:
    assert spans(at, window) == found
    assert windows_of(shape_of(window), us(at)) == spans_at(us(at), window)


def test_no_row_is_lost_where_flink_and_polars_lose_some() -> None:
    """Flink loses days of Shanghai and hours of Kolkata; Polars the hour before a midnight that the clocks skip."""
    for zone, size, first in (
        ("Asia/Shanghai", "1 day", "2026-03-01"),
        ("Asia/Kolkata", "1 hour", "2026-03-01"),
        ("Africa/Cairo", "1 day", "2026-04-23"),
        ("Asia/Beirut", "6 hours", "2026-03-28"),
        ("America/Santiago", "1 hour", "2026-09-05"),
    ):
        window = local(size, zone)
        rows = [us(first) + 15 * MINUTE * step for step in range(576)]
        held = [spans_at(at, window) for at in rows]
        assert all(len(found) == 1 and found[0][0] <= at < found[0][1] for at, found in zip(rows, held, strict=True))
        begins = sorted({start for [(start, _)] in held})
        assert [end for [(_, end)] in held if end in begins[1:]], zone
        hours = size != "1 day"
        shown = {instant_of(at).astimezone(ZoneInfo(zone)).strftime("%M" if hours else "%H:%M") for at in begins}
        assert shown <= {"00:00", "00", "01:00"}, zone


SHAPES: tuple[dict[str, str], ...] = (
    {"size": "6 hours"},
    {"size": "15 minutes", "repeated": "split"},
    {"size": "1 hour", "closed": "right"},
    {"size": "1 hour", "repeated": "split", "closed": "right"},
    {"size": "1 week", "week_start": "sunday"},
    {"size": "1 day"},
    {"size": "1 month"},
    {"size": "1 month", "origin": "2024-04-06", "closed": "right"},
    {"size": "1 quarter"},
    {"size": "1 year", "origin": "2024-04-01"},
    {"size": "18 months", "origin": "1999-11-28", "closed": "right"},
    {"size": "1 hour", "kind": "hopping", "hop": "30 minutes"},
    {"size": "10 minutes", "kind": "hopping", "hop": "30 minutes", "closed": "right"},
    {"size": "2 days", "kind": "hopping", "hop": "1 day"},
    {"size": "6 hours", "kind": "cumulative", "step": "90 minutes"},
    {"size": "1 day", "kind": "cumulative", "step": "1 hour", "closed": "right"},
)


@pytest.mark.parametrize("keys", SHAPES, ids=lambda keys: "-".join(keys.values()))
def test_plans_the_recount_and_the_oracle_place_windows_alike(keys: dict[str, str], dice: Dice) -> None:
    rng = np.random.default_rng(dice.seed(2))
    zone = dice.choice([*CHANGED, "America/New_York", "Europe/Berlin"])
    window, every = local(zone=zone, **keys), instants(zone, rng, 40)
    after_1970 = every[every > 0]  # before it two databases need not agree
    when = np.unique(rng.choice(after_1970, 60))
    model, of_recount = shape_of(window), ends_of_window(window, 1)
    last, closes = last_ends(when, window), recounted_ends.close_times(of_recount, when)
    reached = recounted_ends.last_close_times(of_recount, when)
    for number, at in enumerate(when.tolist()):
        expected = windows_of(model, at)
        assert spans_at(at, window) == expected, instant_of(at)
        close = close_of(model, at, 1)
        if close is None:
            assert expected == []
            assert last[number] == closes[number] == np.iinfo(np.int64).min
            continue
        assert (expected[-1][1], close) == (last[number], closes[number])
        assert latest_close_on_grid(model, at, 1) == reached[number]
        after = window.ends_inside_us
        assert ends_from(at - after - window.longest_us, at - after, window)[-1] + after == reached[number]
        for end in {end for _, end in expected}:
            assert may_close_between(end + after - 1, end + after, window)
            assert needed_from(end + after - 1, window) <= at
        assert closed_from(at, window) >= max(end for _, end in windows_of(model, at - 1) or [(0, 0)]) + after
    assert begins_between(5, 4, window.local_grid or LocalGrid("UTC", 1)).size == 0
