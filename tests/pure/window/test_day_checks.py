"""Checks of days: when a day is complete, late or open again, and what is said of it."""

from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.pure.spec.specs import SMALL, parse
from tidemark.assets.catalog.days.checks import DayView, check_complete, check_counts, freshness_of
from tidemark.assets.catalog.days.counts import DayCounts, days_of, doubled_by_day
from tidemark.assets.state.completeness import Reached
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import us_of

DAY, ROWS = "2026-03-28", DayCounts(24, 24)
LEVELS = {"freshness": {"warn": "15 minutes", "error": "1 hour"}}


def at(text: str) -> int:
    return us_of(datetime.fromisoformat(text).replace(tzinfo=UTC))


def view(reached: str | None, now: str, *, timeline: str = "", final: bool = False) -> DayView:
    """Return windows of an hour whose watermark has come to an instant, at an instant of the wall clock."""
    spec = parse({**SMALL, "alerts": LEVELS})
    watermark_us = None if reached is None else at(reached)
    place = Reached(spec.windows[0], "UTC", watermark_us, timeline, final=final)
    return DayView(SpecFile(spec, Path("small.yaml")), place, datetime.fromisoformat(now).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ({"kind": "tumbling", "size": "1 hour"}, "2026-03-29T00:10:00"),
        ({"kind": "tumbling", "size": "1 day"}, "2026-03-29T00:10:00"),
        ({"kind": "tumbling", "size": "7 days"}, "2026-04-02T00:10:00"),  # the one that began on 26 March
        # It began on 28 March at 23:00 UTC, and has 23 hours.
        ({"kind": "tumbling", "size": "1 day", "time_zone": "Europe/Berlin"}, "2026-03-29T22:10:00"),
        ({"kind": "hopping", "size": "2 hours", "hop": "1 hour"}, "2026-03-29T01:10:00"),
        ({"kind": "tumbling", "size": "1 hour", "closed": "right"}, "2026-03-29T00:10:00.000001"),
        ({"kind": "sliding", "size": "5 minutes"}, "2026-03-29T00:15:00"),
        ({"kind": "session", "gap": "5 minutes"}, "2026-03-29T00:15:00"),
    ],
)
def test_a_day_is_complete_as_soon_as_its_last_window_and_the_lateness_are_over(
    keys: dict[str, str], first: str
) -> None:
    shape = {"name": "w", "aggregates": {"n": "count(*)"}, "allowed_lateness": "10 minutes", **keys}
    window, day = WindowSpec.model_validate(shape), date.fromisoformat(DAY)
    assert Reached(window, "UTC", at(first)).has_completed(day)
    assert not Reached(window, "UTC", at(first) - 1).has_completed(day)
    assert not Reached(window, "UTC").has_completed(day), "no event yet"
    assert Reached(window, "UTC", at(first) - 1, final=True).has_completed(day), "flushed"
    assert not Reached(window, "UTC", at(first), open_us=at("2026-03-28T23:59:00")).has_completed(day)
    assert Reached(window, "UTC", at(first), open_us=at("2026-03-29T00:00:00")).has_completed(day)
    assert not Reached(window, "UTC", at(first), filled_us=at("2026-03-28T23:00:00")).has_completed(day)


def test_an_open_day_has_no_result_until_it_is_later_than_allowed() -> None:
    """With the timeline that holds it back, how far it is, since when, and what to do."""
    assert check_complete(view("2026-03-28T23:00:00", "2026-03-29T00:15:00"), DAY, ROWS) is None
    late = view("2026-03-28T23:00:00", "2026-03-29T00:16:00", timeline='["d3"]')
    found = check_complete(late, DAY, ROWS)
    assert found is not None
    assert (found.passed, found.is_error) == (False, False)
    assert found.numbers == {"seconds_left": 3600.0, "seconds_late": 960.0}
    assert (
        f'Found {DAY} of `w` still open: the watermark of `["d3"]` at 2026-03-28 23:00:00 UTC, 1 hour before '
        "2026-03-29 00:00:00 UTC; by the clock that was 16 minutes ago, limit 15 minutes. To do: `tidemark status "
        "small.yaml` says what holds the watermark back. If no more input comes, `tidemark run small.yaml "
        "--end-of-input flush` closes the day."
    ) in found.message
    error = check_complete(view(None, "2026-03-29T02:00:00"), DAY, ROWS)
    assert error is not None
    assert error.is_error
    assert "no watermark yet; by the clock that was 2 hours ago, limit 1 hour" in error.message
    again = check_complete(view("2026-03-28T23:00:00", "2026-03-28T23:01:00"), DAY, ROWS, was_complete=True)
    assert again is not None
    assert not again.passed
    assert "a new timeline or the end of a flush has opened it again" in again.message


def test_a_complete_day_has_final_rows_only_and_no_row_twice() -> None:
    there = view("2026-03-29T00:00:00", "2026-03-29T00:00:10")
    complete = check_complete(there, DAY, ROWS)
    assert complete is not None
    assert (complete.passed, complete.note) == (True, "2026-03-28 is complete")
    assert complete.numbers == {"seconds_left": 0.0, "not_final": 0, "rows": 24, "final_rows": 24}
    wrong = check_complete(there, DAY, DayCounts(24, 22))
    assert wrong is not None
    assert "2 rows of 2026-03-28 of `w` are not final, and all its windows are closed" in wrong.message
    command = "`tidemark backfill small.yaml --from 2026-03-28 --to 2026-03-28 --window w`"
    twice = check_counts(there, DAY, DayCounts(24, 24, 3))
    for one in (wrong, twice):
        assert (one.passed, one.is_error) == (False, True)
        assert command in one.message
    assert "3 of 24 rows of 2026-03-28 of `w` have the window and group of another row" in twice.message
    assert check_counts(there, DAY, ROWS).note == "2026-03-28 has 24 rows, 24 of them final"
    assert check_counts(there, DAY, DayCounts(24, 24, None)).passed


def test_the_newest_final_result_is_as_old_as_its_end_by_event_time() -> None:
    for now, passed, error in (
        ("2026-03-29T00:15:00", True, False),
        ("2026-03-29T00:15:01", False, False),
        ("2026-03-29T01:01:00", False, True),
    ):
        seen = view("2026-03-29T00:00:00", now)
        levels = seen.file.spec.alerts.freshness
        assert levels is not None
        found = freshness_of(seen, levels, at("2026-03-29T00:00:00"))
        assert (found.passed, found.is_error) == (passed, error)
        assert found.numbers["seconds_behind"] == at(now) / 1e6 - at("2026-03-29T00:00:00") / 1e6
    assert "`w` ended at 2026-03-29 00:00:00 UTC, 1 hour 1 minute ago; limit 1 hour" in found.message
    assert levels is not None
    flushed = view("2026-03-29T00:00:00", "2026-04-29T00:00:00", final=True)
    assert freshness_of(flushed, levels, at("2026-03-29T00:00:00")).passed, "no more is to come"


def test_rows_whose_window_and_group_another_row_has_are_counted_by_day() -> None:
    starts = [at(text) for text in ("2026-03-28T01:00:00", "2026-03-28T01:00:00", "2026-03-29T01:00:00")] * 2
    groups = ["a", "b", None, "a", "a", None]
    keys = pa.table({"window_start": pa.array(starts, pa.timestamp("us", "UTC")), "k": groups})
    assert doubled_by_day(keys, "UTC") == {"2026-03-28": 2, "2026-03-29": 1}
    assert doubled_by_day(keys.slice(0, 3), "UTC") == {}
    assert doubled_by_day(keys.set_column(1, "k", pa.array([{"a": 1}] * 6)), "UTC") is None
    places, labels = days_of(np.array(starts), "UTC")
    assert [labels[place] for place in places] == ["2026-03-28", "2026-03-28", "2026-03-29"] * 2
