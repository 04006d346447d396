"""Days of time zones: they tile the line through every change of the clocks, and rows are counted by them."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from tidemark.assets.catalog.days.counts import counts_by_day
from tidemark.assets.rebuild.days import between_days, days_of_zone
from tidemark.timeops.errors import SpecError
from tidemark.timeops.values.utc import begin_of, us_of

MICROSECOND = timedelta(microseconds=1)
ZONES = {
    "Europe/Berlin": date(2026, 3, 29),
    "America/New_York": date(2026, 11, 1),
    "America/Sao_Paulo": date(2018, 11, 4),  # the clocks skip midnight
    "America/Havana": date(2025, 11, 2),  # midnight comes twice
    "America/St_Johns": date(2010, 11, 7),  # a minute past midnight the clocks go back to the day before
    "Pacific/Apia": date(2011, 12, 30),  # a day that there never was
    "Asia/Kathmandu": date(1986, 1, 1),
}


@pytest.mark.parametrize("zone", ZONES)
def test_days_tile_the_line_through_changes_of_the_clocks(zone: str) -> None:
    days = [ZONES[zone] + timedelta(days=number) for number in range(-3, 5)]
    begins = [begin_of(day, zone) for day in days]
    assert begins == sorted(begins)
    held = {
        instant: day
        for day, begin, end in zip(days, begins, begins[1:], strict=False)
        for instant in (begin, begin + (end - begin) / 3, end - MICROSECOND)
        if begin <= instant < end
    }
    assert len(held) >= 18, "days without an instant are rare"
    for instant, day in held.items():
        assert counts_by_day(np.array([us_of(instant)]), zone) == {day.isoformat(): 1}
    assert counts_by_day(np.array([us_of(instant) for instant in held]), zone) == Counter(map(str, held.values()))


def test_days_of_years_that_python_does_not_have_are_named_in_utc() -> None:
    beyond = us_of(datetime(9999, 12, 31, tzinfo=UTC)) + 86_400_000_000
    assert counts_by_day(np.array([beyond, 0, beyond + 1]), "Europe/Berlin") == {"1970-01-01": 1, "+10000-01-01": 2}
    assert counts_by_day(np.array([], dtype=np.int64), "UTC") == {}


def test_days_that_are_computed_anew_are_half_open_in_the_zone_of_the_partitions() -> None:
    day = date(2026, 1, 31)
    assert between_days(day, day, "UTC") == [
        ("window_start", ">=", datetime(2026, 1, 31, tzinfo=UTC)),
        ("window_start", "<", datetime(2026, 2, 1, tzinfo=UTC)),
    ]
    assert between_days(day, day + timedelta(days=1), "America/New_York") == [
        ("window_start", ">=", datetime(2026, 1, 31, 5, tzinfo=UTC)),
        ("window_start", "<", datetime(2026, 2, 2, 5, tzinfo=UTC)),
    ]


@pytest.mark.parametrize(
    ("zone", "first", "last", "had"),
    [
        ("Pacific/Apia", date(2011, 12, 29), date(2011, 12, 30), (date(2011, 12, 29), date(2011, 12, 29))),
        ("Pacific/Apia", date(2011, 12, 30), date(2011, 12, 31), (date(2011, 12, 31), date(2011, 12, 31))),
        ("Pacific/Kwajalein", date(1993, 8, 20), date(1993, 8, 22), (date(1993, 8, 20), date(1993, 8, 22))),
        ("America/Sao_Paulo", date(2018, 11, 4), date(2018, 11, 4), (date(2018, 11, 4), date(2018, 11, 4))),
    ],
)
def test_a_day_that_a_zone_never_had_stands_for_no_other(
    zone: str, first: date, last: date, had: tuple[date, date]
) -> None:
    assert days_of_zone(first, last, zone) == had
    with pytest.raises(SpecError, match="Pacific/Apia had no 2011-12-30"):
        days_of_zone(date(2011, 12, 30), date(2011, 12, 30), "Pacific/Apia")
