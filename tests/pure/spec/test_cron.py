"""Cron texts: what is read, what is refused, and that Dagster takes what is read."""

import warnings

import pytest
from dagster import ScheduleDefinition
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.timeops.problems import ProblemsError
from tidemark.timeops.spec.automation import check_cron

PART = st.from_regex(r"\A(\*|[0-9]{1,2}(-[0-9]{1,2})?|sun|jan|mon-fri|dec-feb|l|lw|5l|mon#2|r|\?)(/[0-9]{1,2})?\Z")
FIELD = st.lists(PART, min_size=1, max_size=2).map(",".join)


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
    "text", ["* * * * *", "*/5 * * * *", "30 2 1,15 * *", "0 9-17/2 * jan-mar mon-fri", "0 0 29 2 *", "0 0 * * 7"]
)
def test_common_texts_are_read_as_they_are(text: str) -> None:
    assert check_cron(f" {text.upper()} ".replace(" ", "  ")) == text
    assert given_to_dagster(text) == text


@pytest.mark.parametrize("name", ["@hourly", "@daily", "@weekly", "@monthly", "@yearly"])
def test_common_schedules_have_names(name: str) -> None:
    assert check_cron(name) == name
    assert given_to_dagster(name) == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * * *", "which has 4 fields"),
        ("0 0 30 2 *", "a day that no year has"),
        ("0 0 31 4,6 *", "a day that no year has"),
        ("5-1 * * * *", "`5-1` as the minute, which cannot be read"),
        ("* 24 * * *", "`24` as the hour, which cannot be read"),
        ("* * * moon *", "`moon` as the month, which cannot be read"),
        ("* * * * mon#2", "`mon#2` as the day of the week, which cannot be read"),
        ("*/0 * * * *", "`*/0` as the minute, which cannot be read"),
        ("0 1,24 * * *", "`24` as the hour, which cannot be read"),
        ("0 0 l * *", "`l` as the day of the month, which cannot be read"),
        ("0 0 * * 5l", "`5l` as the day of the week, which cannot be read"),
        ("@reboot", "which has 1 fields"),
    ],
)
def test_what_cannot_be_read_is_told_by_its_field(text: str, says: str) -> None:
    with pytest.raises(ProblemsError, match="found") as raised:
        check_cron(text)
    [problem] = raised.value.problems
    assert says in problem.found
    assert problem.expected
