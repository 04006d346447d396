"""The wall clock of a zone, and grids on it: where local windows begin, in numbers and as SQL.

Here: what the clocks of a zone show, when they first come to a time, starts on the wall clock as instants. Not here:
which windows hold an instant (timeops/calendar/grid.py), days of partitions (timeops/values/utc.py), whether Java
knows the same rules (timeops/calendar/zones.py).

An instant is placed by the latest time that the clocks have shown up to it. This never goes back, so instants are in
the same order as their places. A window begins at the first instant at which the clocks have come to its start. What
the clocks skip is passed at the moment when they are moved; an hour that comes twice belongs where its first pass
ended. Times of the wall clock are BIGINT microseconds like instants, as if the clocks showed UTC.

In SQL, Spark's functions of zones know which time the clocks show, and the instant of a time. They do not place by
this rule only where a start lies inside an hour that is skipped or comes twice. The text of the expression has these
moments, of the years 1900 to 2100.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from tidemark.timeops.columns import floor_to, shifted
from tidemark.timeops.expressions.tokens import let, literal
from tidemark.timeops.spec.window_shape import LocalGrid
from tidemark.timeops.values.utc import FIRST_US, LAST_US, instant_of, us_of

Numbers = NDArray[Any]
LISTED_YEARS = range(1900, 2101)
"""Years whose moved clocks are in the text of expressions, where they matter."""

NEVER = 2**62
_DAY_US, _SECOND_US = 86_400_000_000, 1_000_000
_PROBE_US = 3 * _DAY_US  # the clocks of Freetown were moved back after four days, nowhere sooner
_EDGE_US = 2 * _DAY_US  # at the ends of the years 0001 to 9999 local time is not in Python's calendar


@lru_cache(maxsize=100_000)
def _changes_of_year(zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """Return the begin of a year in UTC and when clocks were moved in it, each with the offset from then on."""
    rules = ZoneInfo(zone)

    def offset(us: int) -> int:
        utc_offset = instant_of(min(max(us, FIRST_US + _EDGE_US), LAST_US - _EDGE_US)).astimezone(rules).utcoffset()
        assert utc_offset is not None  # an aware time of a zone has one
        return round(utc_offset.total_seconds() * _SECOND_US)

    begin = us_of(datetime(year, 1, 1, tzinfo=UTC))
    end = us_of(datetime(year + 1, 1, 1, tzinfo=UTC)) if year < 9999 else LAST_US + 1
    changes = [(begin, offset(begin))]
    for before, after in pairwise([*range(begin, end, _PROBE_US), end]):
        if offset(after) == changes[-1][1]:
            continue
        low, high = before, after
        while high - low > _SECOND_US:
            middle = low + (high - low) // _SECOND_US // 2 * _SECOND_US
            low, high = (low, middle) if offset(middle) != changes[-1][1] else (middle, high)
        if high < end:
            changes.append((high, offset(high)))
    return tuple(changes)


class WallClock(NamedTuple):
    """The clocks of a zone in some years.

    Attributes:
        at: When offsets begin, microseconds, in order.
        offset: The offsets from UTC from then on; the first holds before, too.
        peak: The latest time that clocks have shown up to the end of each.
    """

    at: Numbers
    offset: Numbers
    peak: Numbers

    @classmethod
    def of(cls, zone: str, years: Sequence[int]) -> "WallClock":
        """Return the clocks of a zone in some years, in order."""
        changes = np.array([change for year in years for change in _changes_of_year(zone, year)], np.int64)
        at, offset = changes[:, 0], changes[:, 1]
        ends = np.append(at[1:], LAST_US + _EDGE_US)
        return cls(at, offset, np.maximum.accumulate(ends - 1 + offset))

    @classmethod
    def around(cls, zone: str, us: Numbers, reach: int = 1) -> "WallClock":
        """Return the clocks of a zone in the years of some instants or local times, and `reach` years around."""
        years = {
            min(max(int(year), 1), 9999)
            for year in np.unique(us.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64)) + 1970
        }
        around = {near for year in years for near in range(year - reach, year + reach + 1)}
        return cls.of(zone, sorted(near for near in around if 1 <= near <= 9999))

    def reached(self, us: Numbers) -> Numbers:
        """Return the latest time that the clocks have shown up to each instant."""
        which = np.searchsorted(self.at, us, "right") - 1
        shown = us + self.offset[np.maximum(which, 0)]
        return np.where(which > 0, np.maximum(shown, self.peak[np.maximum(which, 1) - 1]), shown)

    def first(self, wall: Numbers) -> Numbers:
        """Return the first instant at which the clocks have come to each time."""
        which = np.minimum(np.searchsorted(self.peak, wall), len(self.at) - 1)
        instants = wall - self.offset[which]
        return np.where(which > 0, np.maximum(instants, self.at[which]), instants)

    def moved(self) -> Numbers:
        """Return a row for each time that clocks were moved: the instant, what they showed then, and after it."""
        is_moved = np.flatnonzero(np.diff(self.offset)) + 1
        return np.column_stack(
            [
                self.at[is_moved],
                self.at[is_moved] + self.offset[is_moved - 1],
                self.at[is_moved] + self.offset[is_moved],
            ]
        )


# Starts on the wall clock, in numbers.


def floored(wall: Numbers, grid: LocalGrid) -> Numbers:
    """Return the last start at or before each time."""
    if grid.step_us is None:
        anchor = grid.anchor_day
        first = 12 * (anchor.year - 1970) + anchor.month - 1
        months = (wall - _into_month_us(grid)).astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        starts = (months - (months - first) % grid.months).astype("datetime64[M]")
        return np.asarray(starts.astype("datetime64[us]").astype(np.int64) + _into_month_us(grid))
    return (wall - grid.anchor_us) // grid.step_us * grid.step_us + grid.anchor_us


def following(start: Numbers, grid: LocalGrid) -> Numbers:
    """Return the start after each one."""
    if grid.step_us is None:
        return floored(start + 31 * grid.months * _DAY_US, grid)
    return start + grid.step_us


def _into_month_us(grid: LocalGrid) -> int:
    """Return how long after the begin of its month a start is, on a grid of months."""
    return (grid.anchor_day.day - 1) * _DAY_US


def spans_around(us: Numbers, grid: LocalGrid) -> tuple[Numbers, Numbers]:
    """Return when the window that holds each instant begins and ends, of windows one after the other."""
    clock = WallClock.around(grid.zone, us, 1 + grid.months // 12)
    start = floored(clock.reached(us), grid)
    begin, end = clock.first(start), clock.first(following(start, grid))
    if grid.splits:
        last, within, coming = _starts_again(us, clock.moved(), grid)
        begin = np.maximum(begin, np.where(last == NEVER, begin, last))
        end = np.minimum(end, np.minimum(within, coming))
    return begin, end


def _starts_again(us: Numbers, moved: Numbers, grid: LocalGrid) -> tuple[Numbers, Numbers, Numbers]:
    """Return of the starts in second passes of an hour the last at or before each instant, and two that may follow.

    The two are the next one in the latest pass, and the first one of the pass to come; NEVER for none.
    """
    back = moved[moved[:, 2] < moved[:, 1]]
    no_more = np.array([[NEVER, 0, 0]])
    at, before, after = np.concatenate([-no_more, back, no_more]).T
    which = np.searchsorted(at[1:-1], us, "right")
    again = us - at[which] + after[which]
    last = floored(np.minimum(again, before[which] - 1), grid)
    following_one = following(floored(again, grid), grid)
    first = following(floored(after[which + 1] - 1, grid), grid)

    def instant(start: Numbers, of: Numbers) -> Numbers:
        return np.where((start >= after[of]) & (start < before[of]), start - after[of] + at[of], NEVER)

    return instant(last, which), instant(following_one, which), instant(first, which + 1)


def begins_between(first_us: int, last_us: int, grid: LocalGrid) -> Numbers:
    """Return the instants from one to another, both included, at which windows begin, in order."""
    if first_us > last_us:
        return np.zeros(0, np.int64)
    ends = np.clip(np.array([max(first_us, FIRST_US), min(last_us, LAST_US)]), FIRST_US, LAST_US)
    years = np.clip(ends.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970, 2, 9998)
    clock = WallClock.of(grid.zone, range(years[0] - 1, years[1] + 2))
    first, last = floored(clock.reached(ends), grid).tolist()
    step_us = _DAY_US if grid.step_us is None else grid.step_us
    begins = clock.first(np.unique(floored(np.arange(first, last + 1, step_us), grid)))
    if grid.splits:
        at, before, after = clock.moved().T
        passes = [low - high + _between(high, end, grid) for low, end, high in zip(at, before, after, strict=True)]
        begins = np.concatenate([begins, *passes])
    begins = np.unique(begins)
    return begins[(begins >= first_us) & (begins <= last_us)]


def _between(low: int, high: int, grid: LocalGrid) -> Numbers:
    """Return the starts from one time on and before another."""
    first, last = floored(np.array([low - 1, high - 1]), grid)
    starts = following(np.arange(first, last, grid.step_us or _DAY_US), grid)
    return np.asarray(starts[(starts >= low) & (starts < high)], np.int64)


# The same in SQL.


def shown_sql(instant_us: str, grid: LocalGrid) -> str:
    """Return the latest time that the clocks have shown up to an instant, as far as `grid` makes a difference."""
    zone = literal(grid.zone)
    moved = _listed(grid.zone)
    ends = moved[:, 1] - 1  # the last time of the first pass
    is_back = moved[:, 2] <= ends
    repeats = moved[is_back & (floored(moved[:, 2], grid) != floored(ends, grid))]
    shown = _wall_us(instant_us, zone)
    if not len(repeats):
        return shown
    at = f"size(filter({_array(repeats[:, 0])}, __tm_at -> __tm_at <= __tm_u)) - 1"
    peak = f"get({_array(np.maximum.accumulate(repeats[:, 1]) - 1)}, {at})"
    wall = let("__tm_u", instant_us, f"greatest({_wall_us('__tm_u', zone)}, {peak})")
    return f"IF({_first_sql(shown, zone)} < {instant_us}, {wall}, {shown})"


def first_sql(wall_us: str, grid: LocalGrid) -> str:
    """Return the first instant at which the clocks have come to a start of the grid."""
    zone, moved = literal(grid.zone), _listed(grid.zone)
    plain = _first_sql(wall_us, zone)
    skips = moved[(moved[:, 2] > moved[:, 1]) & (floored(moved[:, 2] - 1, grid) > moved[:, 1])]
    if not len(skips):
        return plain
    index = f"size(filter({_array(skips[:, 1])}, __tm_from -> __tm_from <= __tm_wall)) - 1"
    at = f"IF(__tm_wall < get({_array(skips[:, 2])}, {index}), get({_array(skips[:, 0])}, {index}), NULL)"
    instant = _first_sql("__tm_wall", zone)
    is_shown = f"{_wall_us(instant, zone)} = __tm_wall"
    return let("__tm_wall", wall_us, f"IF({is_shown}, {instant}, coalesce({at}, {instant}))")


def floor_sql(wall_us: str, grid: LocalGrid) -> str:
    """Return the last start at or before a time."""
    if grid.step_us is None:
        month = f"date_trunc('month', timestamp_micros({shifted(wall_us, -_into_month_us(grid))}))"
        since = f"months_between({month}, TIMESTAMP'{grid.anchor_day.replace(day=1)}')"  # whole: both are a first
        months = f"CAST(floor({since} / {grid.months}) * {grid.months} AS INT)"
        return f"(unix_date(add_months(DATE'{grid.anchor_day}', {months})) * {_DAY_US}L)"
    return floor_to(wall_us, grid.step_us, grid.anchor_us)


def following_sql(start_us: str, grid: LocalGrid) -> str:
    """Return the start after another one."""
    if grid.step_us is None:
        return f"unix_micros(timestamp_micros({start_us}) + INTERVAL {grid.months} MONTH)"
    return shifted(start_us, grid.step_us)


def begin_sql(limit_us: str, grid: LocalGrid) -> str:
    """Return the last instant at or before a limit at which a window begins: windows one after the other."""
    begin = first_sql("__tm_s", grid)
    repeats = _listed_again(grid)
    if len(repeats):
        again = _at_repeat("begin", "size(filter({at}, __tm_at -> __tm_at <= __tm_u)) - 1", repeats, grid)
        begin = f"IF({_is_long('__tm_s', grid)}, greatest({begin}, {again}), {begin})"
    return _edge_sql(limit_us, begin, grid)


def after_sql(limit_us: str, grid: LocalGrid) -> str:
    """Return the first instant after a limit at which a window begins: windows one after the other."""
    end = first_sql(following_sql("__tm_s", grid), grid)
    repeats = _listed_again(grid)
    if len(repeats):
        past = "size(filter({at}, __tm_at -> __tm_at <= __tm_u))"
        within, coming = (_at_repeat("end", f"{past}{less}", repeats, grid) for less in (" - 1", ""))
        end = f"IF({_is_long('__tm_s', grid)}, least({end}, {within}, {coming}), {end})"
    return _edge_sql(limit_us, end, grid, is_end=True)


def _edge_sql(limit_us: str, edge: str, grid: LocalGrid, *, is_end: bool = False) -> str:
    """Return an edge of the window around `__tm_u`, whose start on the wall clock is `__tm_s`.

    Away from moved clocks Spark's functions of zones say it: the lists, which take long, are for the other instants.
    """
    zone = literal(grid.zone)
    start = floor_sql(_wall_us(limit_us, zone), grid)
    edges = [start, following_sql(start, grid)]
    plain = _first_sql(edges[is_end], zone)
    if "split(" not in edge + shown_sql("__tm_u", grid):  # no clocks were moved over a start
        return plain
    both = [_first_sql(wall, zone) for wall in edges]
    once = [
        f"{_first_sql(_wall_us(limit_us, zone), zone)} = {limit_us}",
        f"{_wall_us(plain, zone)} = {edges[is_end]}",
    ]
    once += [f"{both[1]} - {both[0]} = {grid.step_us}L"] if grid.splits else []
    shown = floor_sql(shown_sql("__tm_u", grid), grid)
    return f"IF({' AND '.join(once)}, {plain}, {let('__tm_u', limit_us, let('__tm_s', shown, edge))})"


def _is_long(start: str, grid: LocalGrid) -> str:
    """Return SQL of a BOOLEAN: a window is longer than others, as an hour that comes twice is in it."""
    end = first_sql(following_sql(start, grid), grid)
    return f"{end} - {first_sql(start, grid)} > {grid.step_us}L"


def _at_repeat(which: str, place: str, repeats: Numbers, grid: LocalGrid) -> str:
    """Return the last begin at or before `__tm_u`, or the first after it, in the second pass of an hour; or null."""
    at, before, after = (_array(column) for column in repeats.T)
    i = place.format(at=at)
    again = f"greatest(__tm_u - get({at}, {i}), -1L) + get({after}, {i})"
    start = floor_sql(f"least({again}, get({before}, {i}) - 1L)" if which == "begin" else again, grid)
    if which == "end":
        start = following_sql(start, grid)
    fits = f"__tm_again >= get({after}, {i}) AND __tm_again < get({before}, {i})"
    return let("__tm_again", start, f"IF({fits}, __tm_again - get({after}, {i}) + get({at}, {i}), NULL)")


@lru_cache
def _listed(zone: str) -> Numbers:
    return WallClock.of(zone, LISTED_YEARS).moved()


def _listed_again(grid: LocalGrid) -> Numbers:
    """Return the times that clocks were moved back over a start, where each pass through it begins a window."""
    moved = _listed(grid.zone) if grid.splits else np.zeros((0, 3), np.int64)
    ends = moved[:, 1] - 1
    return moved[(moved[:, 2] <= ends) & (floored(ends, grid) >= moved[:, 2])]


def _wall_us(instant_us: str, zone: str) -> str:
    """Return the time that the clocks show at an instant."""
    return f"unix_micros(from_utc_timestamp(timestamp_micros({instant_us}), {zone}))"


def _first_sql(wall_us: str, zone: str) -> str:
    """Return an instant at which the clocks show a time, the first of two; of a skipped time one after it."""
    return f"unix_micros(to_utc_timestamp(timestamp_micros({wall_us}), {zone}))"


def _array(numbers: Numbers) -> str:
    """Return ARRAY<BIGINT> as one text, which Spark reads once for a query: hundreds of literals take it long."""
    return f"CAST(split('{','.join(map(str, numbers.tolist()))}', ',') AS ARRAY<BIGINT>)"
