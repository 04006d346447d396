"""Durations and cron texts: what is read, what is refused and why, and that Dagster takes what is read."""

import re
import warnings
from datetime import timedelta

import pytest
from dagster import ScheduleDefinition
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import ProblemsError
from tidemark.timeops.spec.automation import check_cron
from tidemark.timeops.values.durations import DURATION_PATTERN, format_duration, micros, parse_duration

READ = {
    timedelta(0): ["0 s"],
    timedelta(microseconds=1): ["1 microsecond", "0.000001 s"],
    timedelta(microseconds=7): ["7 microseconds"],
    timedelta(microseconds=250): ["250 us"],
    timedelta(milliseconds=1): ["1 millisecond"],
    timedelta(milliseconds=3): ["3 milliseconds"],
    timedelta(milliseconds=200): ["200 ms", "200ms"],
    timedelta(milliseconds=500): ["PT0.5S"],
    timedelta(seconds=1): ["1 second"],
    timedelta(seconds=1.5): ["1.5 s"],
    timedelta(seconds=5): ["5 seconds", "5 sec", " 5 s "],
    timedelta(seconds=30): ["30s"],
    timedelta(minutes=1): ["1 minute"],
    timedelta(minutes=5): ["5 m", "5 min", "PT5M"],
    timedelta(minutes=90): ["90 minutes", "1 hour 30 minutes", "1h30m"],
    timedelta(hours=1): ["1 hour"],
    timedelta(hours=1, minutes=30, seconds=15): ["PT1H30M15S"],
    timedelta(hours=2): ["2h"],
    timedelta(days=1): ["1 d", "1 day"],
    timedelta(days=1, hours=2): ["P1DT2H"],
    timedelta(days=2): ["P2D"],
    timedelta(days=2, hours=3): ["2 days 3 hours"],
    timedelta(weeks=1): ["1 week", "P1W"],
    timedelta(weeks=2): ["2 weeks"],
}
REFUSED: list[tuple[str, str, list[object]]] = [
    ("bare number", "us, ms, s, min, h, d or their full names", [60, 60.5, "60", " 1.5 ", "-3", "+3"]),
    ("which has no fixed length", "`5 seconds`", ["1 month", "2 months", "1 year", "3 years", "1 year 2 days"]),
    ("which has no fixed length", "`5 seconds`", ["P1M", "P1Y", "P1Y2D"]),
    ("negative", "zero or more", ["-5 s", "-PT5M"]),
    ("not a duration", "`5 seconds`", ["", "soon", "s", "5 fortnights", "5 S", "1 Hour", "5s 3", "5 s and 3 ms"]),
    ("not a duration", "`5 seconds`", ["1,5 s", "P", "PT", "P1DT", "P1H", "PT5", "1:30", None, True, []]),
    ("finer than a microsecond", "a whole number", ["0.5 us"]),
    ("which is too long", "at most 9999 years", ["99999999999999999999 days"]),
]


@pytest.mark.parametrize(("text", "length"), [(text, length) for length, texts in READ.items() for text in texts])
def test_a_number_with_a_unit_is_read(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize(("why", "expected", "text"), [(*words, text) for *words, texts in REFUSED for text in texts])
def test_what_is_no_duration_is_refused_with_the_reason(why: str, expected: str, text: object) -> None:
    with pytest.raises(SpecError, match=why) as caught:
        parse_duration(text)
    assert expected in caught.value.expected


def test_a_bare_number_is_written_with_a_unit_in_the_remedy() -> None:
    with pytest.raises(SpecError) as caught:
        parse_duration(" -3")
    assert caught.value.remedy == "write the unit, such as `3 seconds`"


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


PART = st.from_regex(r"\A(\*|[0-9]{1,2}(-[0-9]{1,2})?|sun|jan|mon-fri|dec-feb|l|lw|5l|mon#2|r|\?)(/[0-9]{1,2})?\Z")
FIELD = st.lists(PART, min_size=1, max_size=2).map(",".join)
NAMES = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly"]


def given_to_dagster(cron: str) -> object:
    """Return the cron text of a schedule that Dagster has made of it; it refuses what it cannot read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of steps longer than their field, which it reads as well
        return ScheduleDefinition(job_name="a_job", cron_schedule=cron).cron_schedule


@settings(deadline=None)
@given(st.lists(FIELD, min_size=5, max_size=5).map(" ".join))
def test_dagster_takes_every_text_that_is_read(text: str) -> None:
    try:
        read = check_cron(text)
    except ProblemsError:
        return
    assert given_to_dagster(read) == read


@pytest.mark.parametrize(
    "text",
    [*NAMES, "* * * * *", "*/5 * * * *", "30 2 1,15 * *", "0 9-17/2 * jan-mar mon-fri", "0 0 29 2 *", "0 0 * * 7"],
)
def test_common_texts_and_names_are_read_in_one_spelling(text: str) -> None:
    assert check_cron(text) == text
    assert check_cron(f" {text.upper()} ".replace(" ", "  ")) == text
    assert given_to_dagster(text) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * * *", "which has 4 fields"),
        ("@reboot", "which has 1 fields"),
        ("0 0 30 2 *", "a day that exists in no year"),
        ("0 0 31 4,6 *", "a day that exists in no year"),
        ("5-1 * * * *", "`5-1` as the minute, which cannot be read"),
        ("*/0 * * * *", "`*/0` as the minute, which cannot be read"),
        ("* 24 * * *", "`24` as the hour, which cannot be read"),
        ("0 1,24 * * *", "`24` as the hour, which cannot be read"),
        ("0 0 l * *", "`l` as the day of the month, which cannot be read"),
        ("* * * moon *", "`moon` as the month, which cannot be read"),
        ("* * * * mon#2", "`mon#2` as the day of the week, which cannot be read"),
        ("0 0 * * 5l", "`5l` as the day of the week, which cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told_by_its_field(text: str, says: str) -> None:
    with pytest.raises(ProblemsError, match="found") as raised:
        check_cron(text)
    [problem] = raised.value.problems
    assert says in problem.found
    assert problem.expected
