"""Warnings of tables written without Spark: what is far ahead of the clock, what fails, and how much is refused."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pure.report.shop import SPEC, WINDOWS, Shop, at, us
from tidemark.assets.alarms.alerts import (
    BAD_EXPRESSIONS,
    CLOCK_AHEAD,
    DEAD_LETTER_RATE,
    FAR_AHEAD,
    FUTURE_ARRIVALS,
    alerts_of,
    check_alert,
)
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import BatchWriter
from tidemark.assets.checks import expectations_by_asset
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.quality.checks import Checked, Expectation
from tidemark.timeops.figures.counts import FURTHEST_SEQ, FURTHEST_T_US, FURTHEST_US
from tidemark.timeops.spec import parse_spec

DAY = timedelta(days=1)
FUTURE = datetime.fromisoformat("2099-01-01T00:00:00Z")
FURTHEST = {FURTHEST_US: us(FUTURE) - us(at(0)), FURTHEST_SEQ: 5, FURTHEST_T_US: us(FUTURE)}
"""Counts of a batch whose record 5 is far ahead."""


def checked(folder: Path, alert: Expectation, rows: list[dict[str, Any]], spec: str = SPEC) -> Checked:
    """Return the check of a batch of ten records whose clock is at the start, and which wrote these watermarks."""
    made = Shop.with_log(folder, 10, spec)
    made.add(tables.WATERMARKS, [{"_batch_id": 1, "clock": at(0), "final": False} | row for row in rows])
    made.commit("process", 10, {})
    last = BatchLog(made.lake).last_commit()
    assert last is not None
    return check_alert(BatchLosses(BatchWriter(made.workspace, last.plan)), alert)


def ahead(folder: Path, watermark: datetime, *, more: str = "", **row: Any) -> Checked:
    """Return the check of a batch that ends with this watermark."""
    stamps = {"watermark": watermark, "max_timestamp": watermark, "released": 0, "counts": {}}
    rows = [stamps | row, stamps | {"_timeline": "[]", "watermark_set_by": 7}]
    return checked(folder, FAR_AHEAD, rows, SPEC + more)


def test_an_event_far_ahead_is_named_with_its_record_number(tmp_path: Path) -> None:
    found = ahead(tmp_path, at(0), counts=FURTHEST)  # the clock has caught up within the batch
    assert not found.passed
    assert not found.is_error
    assert not found.expectation.blocking
    days = (FUTURE - at(0)).days
    assert f"record 5 has the event time 2099-01-01 00:00:00 UTC, {days} days ahead of the" in found.message
    assert '; limit 1 day. The log without it: `tidemark rejudge SPEC --exclude 5 --reason "…"`' in found.message


@pytest.mark.parametrize("set_by", [7, None])
def test_a_watermark_that_stays_ahead_is_told_in_later_batches_with_the_record_that_set_it(
    tmp_path: Path, set_by: int | None
) -> None:
    found = ahead(tmp_path, FUTURE, watermark_set_by=set_by)  # None: of several timelines one is ahead
    assert "the watermark is 2099-01-01 00:00:00 UTC since record 7" in found.message


@pytest.mark.parametrize(
    ("watermark", "more", "passes"),
    [
        (at(0) + DAY, "", True),
        (at(1) + DAY, "", False),
        (at(1) + DAY, "alerts: {far_ahead: 2 days}\n", True),
        (at(0), "", True),
    ],
)
def test_the_bound_is_a_day_or_what_the_spec_says(
    tmp_path: Path, watermark: datetime, more: str, *, passes: bool
) -> None:
    assert ahead(tmp_path, watermark, more=more).passed == passes


def test_of_several_splits_the_lowest_counts(tmp_path: Path) -> None:
    split = SPEC.replace('INT"}', 'INT", split: amount}')
    assert split != SPEC
    assert checked(tmp_path, FAR_AHEAD, [{"counts": FURTHEST, "watermark": at(0)}], split).passed


def test_pipelines_with_an_event_time_of_their_own_have_the_check() -> None:
    spec = parse_spec(SPEC, file="shop.yaml")
    of_tables = {
        tables.ORDERED_EVENTS: (FAR_AHEAD, CLOCK_AHEAD, FUTURE_ARRIVALS),
        tables.DEAD_LETTERS: (DEAD_LETTER_RATE, BAD_EXPRESSIONS),
    }
    assert alerts_of(spec) == of_tables
    assert expectations_by_asset(spec)[tables.ORDERED_EVENTS][-3:] == (FAR_AHEAD, CLOCK_AHEAD, FUTURE_ARRIVALS)
    by_arrival = SPEC.replace("time: {timestamp_by: at, out_of_orderness: 10 s}", "")
    assert alerts_of(parse_spec(by_arrival, file="shop.yaml"))[tables.ORDERED_EVENTS] == (
        CLOCK_AHEAD,
        FUTURE_ARRIVALS,
    )
    unbound = by_arrival.replace("kind: files", "kind: files, future_arrival: off")
    assert alerts_of(parse_spec(unbound, file="shop.yaml"))[tables.ORDERED_EVENTS] == (CLOCK_AHEAD,)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"refused.bad_expression": 3}, "the time of the event failed on 3 of 10 records; limit 20 %"),
        (
            {"per_minute.bad_expression": 9, "refused.bad_expression": 1},
            "aggregates of `per_minute` failed on 9 of 10",
        ),
        ({"per_minute.bad_expression": 2, "refused.malformed": 8}, ""),
    ],
)
def test_expressions_that_fail_on_a_large_share_of_the_records_are_named(
    tmp_path: Path, counts: dict[str, int], said: str
) -> None:
    found = checked(tmp_path, BAD_EXPRESSIONS, [{"counts": counts, "watermark": at(0)}], SPEC + WINDOWS)
    assert found.passed == (not said)
    assert said in found.message
    assert not found.is_error
    assert not found.expectation.blocking
