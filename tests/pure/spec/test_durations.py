"""Durations as text: what is read, what is refused and why."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.timeops.durations import DURATION_PATTERN, format_duration, micros, parse_duration
from tidemark.timeops.errors import SpecError

READ = {
    "200 ms": timedelta(milliseconds=200),
    "200ms": timedelta(milliseconds=200),
    "1 millisecond": timedelta(milliseconds=1),
    "3 milliseconds": timedelta(milliseconds=3),
    "250 us": timedelta(microseconds=250),
    "1 microsecond": timedelta(microseconds=1),
    "7 microseconds": timedelta(microseconds=7),
    "5 seconds": timedelta(seconds=5),
    "1 second": timedelta(seconds=1),
    "5 sec": timedelta(seconds=5),
    "30s": timedelta(seconds=30),
    "0 s": timedelta(0),
    "5 m": timedelta(minutes=5),
    "5 min": timedelta(minutes=5),
    "1 minute": timedelta(minutes=1),
    "90 minutes": timedelta(minutes=90),
    "2h": timedelta(hours=2),
    "1 hour": timedelta(hours=1),
    "1 hour 30 minutes": timedelta(minutes=90),
    "1h30m": timedelta(minutes=90),
    "1 d": timedelta(days=1),
    "1 day": timedelta(days=1),
    "2 days 3 hours": timedelta(days=2, hours=3),
    "1 week": timedelta(weeks=1),
    "2 weeks": timedelta(weeks=2),
    "1.5 s": timedelta(milliseconds=1500),
    "0.000001 s": timedelta(microseconds=1),
    " 5 s ": timedelta(seconds=5),
    "PT5M": timedelta(minutes=5),
    "P1DT2H": timedelta(days=1, hours=2),
    "PT0.5S": timedelta(milliseconds=500),
    "P1W": timedelta(weeks=1),
    "P2D": timedelta(days=2),
    "PT1H30M15S": timedelta(hours=1, minutes=30, seconds=15),
}


@pytest.mark.parametrize("text", READ)
def test_a_number_with_a_unit_is_read(text: str) -> None:
    assert parse_duration(text) == READ[text]


@pytest.mark.parametrize("text", [60, 60.5, "60", " 1.5 ", "-3", "+3"])
def test_a_bare_number_is_refused_and_the_units_are_named(text: object) -> None:
    with pytest.raises(SpecError, match=r"bare number") as caught:
        parse_duration(text)
    assert all(unit in caught.value.expected for unit in ("us", "ms", "min", "h", "d", "PT5M"))
    assert "seconds" in caught.value.remedy


@pytest.mark.parametrize("text", ["1 month", "2 months", "1 year", "3 years", "P1M", "P1Y", "P1Y2D", "1 year 2 days"])
def test_months_and_years_are_no_durations(text: str) -> None:
    with pytest.raises(SpecError, match="whose length differs"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-5 s", "-PT5M"])
def test_a_negative_duration_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="negative"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "5 fortnights",
        "5 S",
        "1 Hour",
        "P",
        "PT",
        "P1DT",
        "P1H",
        "PT5",
        "5 s and 3 ms",
        "1,5 s",
        "s",
        "5s 3",
        None,
        True,
        [],
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(SpecError, match="no duration") as caught:
        parse_duration(text)
    assert "`5 seconds`" in caught.value.expected


def test_a_fraction_of_a_microsecond_is_refused() -> None:
    with pytest.raises(SpecError, match="finer than a microsecond"):
        parse_duration("0.5 us")


def test_a_duration_longer_than_all_years_is_refused() -> None:
    with pytest.raises(SpecError, match="which is too long"):
        parse_duration("99999999999999999999 days")


def test_micros_counts_microseconds() -> None:
    assert micros(timedelta(days=1, seconds=2, microseconds=3)) == 86_402_000_003


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(minutes=90), "1 hour 30 minutes"),
        (timedelta(milliseconds=1500), "1 second 500 milliseconds"),
        (timedelta(weeks=2, microseconds=1), "14 days 1 microsecond"),
    ],
)
def test_a_duration_is_written_in_words(length: timedelta, text: str) -> None:
    assert format_duration(length) == text


def test_a_negative_length_is_not_written() -> None:
    with pytest.raises(ValueError, match="zero or more"):
        format_duration(timedelta(seconds=-1))


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3_652_059)))
def test_what_is_written_is_read_back_as_the_same_length(length: timedelta) -> None:
    text = format_duration(length)
    assert parse_duration(text) == length
    assert re.match(DURATION_PATTERN, text)
