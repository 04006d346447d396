"""Losses of a day, who pulled the watermark, and the line of the spec that helps: of tables without Spark."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import AssetKey, validate_run_config
from markupsafe import escape

import tidemark as tm
from tests.pure.report.shop import SPEC, WINDOWS, Shop, at, event, letter
from tidemark.assets.alarms.alerts import DEAD_LETTER_RATE, check_alert
from tidemark.assets.alarms.losses.of_batch import BatchLosses, lost_lately
from tidemark.assets.batch import BatchWriter
from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.display.evaluations import evaluation_of
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.views.report.page import page_of
from tidemark.pipelines.views.status import status_of
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.quality.checks import Checked
from tidemark.resources.settings import from_environment
from tidemark.timeops.values.durations import format_duration, rounded_up

TOLERANCE_S = 10  # as SPEC has it
TIMED = SPEC.replace("format: csv,", "format: csv, arrival_time: at,").replace(
    'amount INT"', 'amount INT, till STRING"'
)
KEEP = TIMED.replace("out_of_orderness: 10 s}", "out_of_orderness: 10 s, out_of_order: keep}")
DAY_S = 86_400

Arrived = tuple[int, int, str]
"""Of a record its arrival and its event time, in seconds after the start, and its till."""


def shop(folder: Path, records: Sequence[Arrived], spec: str = TIMED, *, window: str = "") -> Shop:
    """Return a shop that has judged these records in one batch: late ones are out of order, or late for a window."""
    made = Shop(folder, spec).create()
    rows: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    letters: list[dict[str, Any]] = []
    newest, set_by, clock = -10_000_000, None, 0
    for seq, (came, time, till) in enumerate(records):
        clock = max(clock, came)
        rows.append({"_arrival_seq": seq, "_arrival_time": at(came), "_clock": at(clock), "_source": "tills"})
        rows[-1] |= {"till": till, "amount": seq}
        watermark = newest - TOLERANCE_S
        times = {"_arrival_time": at(came), "_event_time": at(time)}
        if set_by is not None and time < watermark:
            why = {"stage": "window", "reason": "window_closed", "window_name": window} if window else {}
            by = {"_watermark": at(watermark), "lateness_us": (watermark - time) * 1_000_000}
            letters.append(letter(seq) | times | by | {"watermark_set_by": set_by} | why)
        if not letters or letters[-1]["_arrival_seq"] != seq or window:
            events.append(event(seq) | times | {"_timestamp": at(time), "till": till})
        if time > newest:
            newest, set_by = time, seq
    made.add(tables.RAW_EVENTS, rows)
    made.commit("ingest", len(rows), {"records": len(rows), "files": 1})
    made.add(tables.ORDERED_EVENTS, events)
    made.add(tables.DEAD_LETTERS, letters)
    counts = {"records": len(rows), "accepted": len(events), "released": len(events)}
    counts |= Counter(f"refused.{one['reason']}" for one in letters if not one.get("window_name"))
    made.add(
        tables.WATERMARKS, [{"_batch_id": 1, "clock": at(clock), "final": False, "released": 0, "counts": counts}]
    )
    made.commit("process", len(rows), counts)
    return made


def checked(made: Shop) -> Checked:
    return check_alert(lost_in(made), DEAD_LETTER_RATE)


def lost_in(made: Shop) -> BatchLosses:
    return BatchLosses(BatchWriter(made.workspace, last_plan(made)))


def last_plan(made: Shop) -> Plan:
    last = made.workspace.batches.last_commit()
    assert last is not None
    return last.plan


def tills(records: int, come: Callable[[int, str], tuple[int, int]]) -> list[Arrived]:
    """Return records of five tills in the order of arrival, one each second, with arrival and event time of each."""
    made = [(*come(second, till), till) for second, till in ((n, f"t{n % 5}") for n in range(records))]
    return sorted(made, key=lambda record: record[0])


def ahead(second: int, till: str) -> tuple[int, int]:
    """Let the clock of t3 be 20 minutes ahead."""
    return second + 1, second + (1200 if till == "t3" else 0)


def offline(second: int, till: str) -> tuple[int, int]:
    """Let t3 send the records of 300 seconds when these are over."""
    return (501 if till == "t3" and 200 <= second < 500 else second + 1), second


def test_the_device_whose_clock_is_ahead_is_named_with_its_share_and_the_lines_to_change(tmp_path: Path) -> None:
    made = shop(tmp_path, tills(1_000, ahead))
    found = checked(made)
    assert not found.passed
    assert not found.is_error
    assert not found.expectation.blocking
    shown = evaluation_of(lost_in(made), AssetKey("letters"), found, blocks=False)
    assert "explain: {seq: 999}" in str(shown.metadata["ask"].value)
    assert (
        "79.7 % of the records that arrived on 2026-01-01 were lost (797 of 1,000: 797 out_of_order)" in found.message
    )
    assert "To do: records with `till` = `t3` set the watermark for 797 of 797 late ones (100 %), 19 minutes 59" in (
        found.message
    )
    assert (
        "such as record 3 with the event time 2026-01-01 00:20:03 UTC, which arrived at 2026-01-01 00:00:04 UTC"
        in (found.message)
    )
    ways = (
        "`time.over: [till]`",
        "`time.early: {tolerance: 10 seconds, policy: keep}`",
        "`time.out_of_orderness: 20 min",
    )
    assert all(way in found.message for way in ways)
    assert found.numbers["out_of_order_percent"] == pytest.approx(79.7)


def test_where_all_was_read_at_once_the_device_is_found_by_the_order_of_the_log(tmp_path: Path) -> None:
    at_once = [(5_000, time, till) for _, time, till in tills(1_000, ahead)]
    found = checked(shop(tmp_path, at_once))
    assert "records with `till` = `t3` set the watermark for 797 of 797" in found.message
    assert "ahead of their arrival" not in found.message
    assert "`time.early" not in found.message, "it compares with arrivals, which say nothing here"


def test_a_single_record_far_ahead_is_named_though_it_has_nothing_to_be_known_by(tmp_path: Path) -> None:
    far = [
        (came, time + (10**6 if came == 500 else 0), "t") for came, time, _ in tills(1_000, lambda n, _: (n + 1, n))
    ]
    found = checked(shop(tmp_path, far))
    assert "record 499 set the watermark for 500 of 500 late ones (100 %), 11 days" in found.message
    assert "`tidemark rejudge SPEC --exclude 499" in found.message
    assert "`time.out_of_orderness" not in found.message, "11 days would be no remedy"


@pytest.mark.parametrize("at_once", [False, True])
def test_a_device_that_sends_late_is_not_taken_for_others_that_are_ahead(tmp_path: Path, *, at_once: bool) -> None:
    records = [(5_000 if at_once else came, time, till) for came, time, till in tills(1_000, offline)]
    found = checked(shop(tmp_path, records))
    assert "(58 of 1,000: 58 out_of_order)" in found.message
    assert (
        "To do: 58 out_of_order, most of them with `till` = `t3`: `time.out_of_orderness: 5 minutes` would let"
        in (found.message)
    )
    assert "or `time.over: [till]`, a watermark for each" in found.message


def test_a_window_s_losses_count_with_the_lateness_that_would_let_them_in(tmp_path: Path) -> None:
    windows = WINDOWS.replace("group_by: [till]", "group_by: [till], allowed_lateness: 1 minute")
    found = checked(shop(tmp_path, tills(1_000, offline), KEEP + windows, window="per_minute"))
    assert (
        "5.8 % of the records that arrived on 2026-01-01 were lost (58 of 1,000: 58 window_closed by `per_minute`)"
        in (found.message)
    )
    assert "`allowed_lateness: 10 minutes` for `per_minute` would let in 99 % of them" in found.message


def test_an_offline_day_is_a_large_part_of_that_day_s_events_though_all_was_read_at_once(tmp_path: Path) -> None:
    """Of 30 days of five devices, one day of one device is lost: 1 of 150, and a fifth of its day."""
    records = [(0, day * DAY_S + n * 600, f"t{n % 5}") for day in range(30) for n in range(144)]
    late = [one for one in records if one[2] == "t3" and DAY_S <= one[1] < 2 * DAY_S]
    found = checked(shop(tmp_path, [*(one for one in records if one not in late), *late]))
    assert "20.1 % of the events with a time on 2026-01-02 were lost (29 of 144: 29 out_of_order); limit 5 %" in (
        found.message
    )


def test_duplicates_are_not_losses(tmp_path: Path) -> None:
    made = shop(tmp_path, tills(1_000, lambda n, _: (n + 1, n)))
    made.add(tables.DEAD_LETTERS, [letter(n) | {"reason": "duplicate"} for n in range(900)])
    found = checked(made)
    assert found.passed
    assert "Nothing was lost; limit 5 %" in found.message


@pytest.mark.parametrize(("records", "passes"), [(99, True), (100, False)])
def test_by_default_fewer_than_a_hundred_records_have_no_share(tmp_path: Path, records: int, *, passes: bool) -> None:
    assert checked(shop(tmp_path, tills(records, ahead))).passed == passes


@pytest.mark.parametrize(
    ("levels", "passes", "is_error"),
    [
        ("{warn: 1 %}", False, False),  # without `min_records`, as before there was one
        ("{warn: 1 %, error: 70 %}", False, True),
        ("{warn: 90 %}", True, False),
        ("{warn: 1 %, min_records: 91}", True, False),
    ],
)
def test_a_spec_s_levels_count_instead(tmp_path: Path, levels: str, *, passes: bool, is_error: bool) -> None:
    found = checked(shop(tmp_path, tills(90, ahead), f"{TIMED}alerts: {{dead_letter_rate: {levels}}}\n"))
    assert (found.passed, found.is_error) == (passes, is_error)


def test_records_that_cannot_be_read_have_another_remedy(tmp_path: Path) -> None:
    made = shop(tmp_path, tills(1_000, lambda n, _: (n + 1, n)))
    bad = {"stage": "ingest", "reason": "malformed", "_event_time": None, "_watermark": None, "lateness_us": None}
    made.add(tables.DEAD_LETTERS, [letter(n) | bad for n in range(300, 600)])
    found = checked(made)
    assert "30.0 % of the records that arrived on 2026-01-01 were lost (300 of 1,000: 300 malformed)" in found.message
    assert "To do: 300 malformed: a source may have changed its format: `tidemark show SPEC dead_letters --where" in (
        found.message
    )


def test_a_later_day_is_not_hidden_by_many_good_ones_nor_held_against_later_ones(tmp_path: Path) -> None:
    """Three days of 200 records; on the second one half is refused. The last batch has records of the third alone."""
    records = [(day * DAY_S + n, day * DAY_S + n, "t") for day in range(3) for n in range(200)]
    made = shop(tmp_path, records)
    made.add(tables.DEAD_LETTERS, [letter(n) | {"_arrival_time": at(DAY_S)} for n in range(200, 300)])
    assert "50.0 % of the records that arrived on 2026-01-02 were lost (100 of 200" in checked(made).message


def test_the_report_says_what_was_lost_and_what_to_do(tmp_path: Path) -> None:
    made = shop(tmp_path, tills(1_000, ahead), TIMED + WINDOWS)
    page = page_of(made.workspace)
    story = tm.explain(made.folder / "shop.yaml", seq=999, warehouse=made.folder / "warehouse").text
    assert "per_minute   2026-01-01 00:16:00 to 00:17:00   missed: it had closed" in story
    assert f"<pre>{escape(story)}</pre>" in page
    (made.folder / "shop.yaml").write_text(TIMED + WINDOWS.replace("1 minute,", "1 minute, where: amount > 0,"))
    without_spark = page_of(made.workspace)
    assert f"<pre>{escape(story[: story.index('Its windows')])}" in without_spark
    assert "It also shows the windows, whose <code>where</code> Spark computes." in without_spark
    assert "79.7 % of the records that arrived on 2026-01-01 were lost (797 of 1,000: 797 out_of_order)." in page
    assert "To do: records with <code>till</code> = <code>t3</code> set the watermark for 797 of 797" in page


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (1, "1 millisecond"),
        (10_000_000, "10 seconds"),
        (10_000_001, "15 seconds"),
        (20 * 60 * 1_000_000 + 1, "30 minutes"),
        (20 * 3_600 * 1_000_000, "1 day"),
        (2 * DAY_S * 1_000_000 + 1, "3 days"),
    ],
)
def test_a_proposed_length_is_one_that_a_person_would_write(us: int, text: str) -> None:
    assert format_duration(rounded_up(us)) == text


def test_the_status_says_in_two_lines_what_was_lost(tmp_path: Path) -> None:
    made = shop(tmp_path, tills(1_000, lambda second, _: (second + 1, second - (30 if second % 50 == 7 else 0))))
    lost = status_of(made.workspace).lost
    assert lost == lost_lately(made.workspace)
    assert [line.partition(": ")[0] for line in lost] == [
        "2.0 % of the records that arrived on 2026-01-01 were lost (20 of 1,000",
        "20 out_of_order, most of them with `till` = `t2`",
    ]
    of_batch = lost_in(made)
    shown = show.losses(of_batch)
    assert [shown["lost"].value, shown["to_do"].value] == [lost[0].replace("on 2026-01-01", "in batch 1"), lost[1]]
    job = build_definitions(from_environment(tmp_path), [made.file]).resolve_job_def("shop_ask")
    asked = [yaml.safe_load(text) for text in re.findall("```yaml\n(.*?)```", shown["ask"].value, re.DOTALL)]
    assert [[*config["ops"]["shop__ask"]["config"]] for config in asked] == [["explain"], ["advise"], ["simulate"]]
    assert asked[0]["ops"]["shop__ask"]["config"] == {"explain": {"seq": 957}}, "the newest"
    assert asked[2]["ops"]["shop__ask"]["config"] == {"simulate": {"set": ["time.out_of_orderness=20 seconds"]}}
    assert all(validate_run_config(job, config) for config in asked)
    (tmp_path / "other").mkdir()
    assert lost_lately(shop(tmp_path / "other", tills(60, lambda second, _: (second + 1, second))).workspace) == ()
