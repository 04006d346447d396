"""Devices and sources that are silent for longer than they ever were: the rule, and tables written without Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pure.report.shop import SPEC, Shop, at, event, letter, us
from tidemark.assets.alarms.alerts import SILENCE, alerts_of, check_alert
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import BatchWriter
from tidemark.pipelines.views.report.page import page_of
from tidemark.resources import tables
from tidemark.resources.quality.checks import Checked
from tidemark.timeops.figures.silences import SEEN, habits_of, silent_of
from tidemark.timeops.spec import parse_spec

OVER = SPEC.replace("amount INT", "amount INT, till STRING").replace("10 s}", "10 s, over: [till]}")
TWO = SPEC.replace(
    "time:", '  - {name: web, kind: files, path: "web/*.csv", format: csv, schema: "at STRING"}\ntime:'
)
BATCH_S = 600
"""A batch judges the records of ten minutes."""


def silent(came: dict[str, list[int]], clock_us: int) -> list[str]:
    """Return who is silent at a clock, of values that came at these."""
    rows = [(value, us) for value, instants in came.items() for us in instants]
    seen = pa.Table.from_pylist([{"value": value, "clock_us": us} for value, us in reversed(rows)], schema=SEEN)
    return [one.value for one in silent_of(habits_of(seen), clock_us)]


@pytest.mark.parametrize(("clock_us", "found"), [(120, []), (121, ["a"])])
def test_a_silence_counts_from_twice_the_longest_gap_on(clock_us: int, found: list[str]) -> None:
    """Let the longest gap of a be 30, and its last moment 60."""
    assert silent({"a": [0, 10, 40, 50, 60], "b": [0, 100, 105, 110, 120]}, clock_us) == found


@pytest.mark.parametrize(
    ("instants", "found"), [([0, 10, 20, 30], []), ([0, 10, 20, 30, 30], []), ([0, 10, 20, 30, 40], ["a"])]
)
def test_who_came_at_fewer_than_five_moments_has_no_habit(instants: list[int], found: list[str]) -> None:
    assert silent({"a": instants, "b": [0, 200, 300, 400, 1_000]}, 1_000) == found


@pytest.mark.parametrize(("others", "found"), [(1, []), (2, ["a", "b"]), (3, ["a", "b"])])
def test_if_more_than_half_are_silent_the_input_pauses_and_none_is_named(others: int, found: list[str]) -> None:
    came = {name: [0, 10, 20, 30, 40] for name in ("b", "a")}
    assert silent(came | {f"c{n}": [0, 250, 500, 750, 1_000] for n in range(others)}, 1_000) == found


def checked(made: Shop) -> Checked:
    last = made.workspace.batches.last_commit()
    assert last is not None
    return check_alert(BatchLosses(BatchWriter(made.workspace, last.plan)), SILENCE)


def tills(folder: Path, quiet_from: dict[str, int], late: Sequence[dict[str, Any]] = ()) -> Shop:
    """Return a shop that has judged twelve batches of ten minutes with three tills, some quiet from a batch on.

    The last batch is 1: the ones before it need no commit of their own.
    """
    made = Shop.with_log(folder, 36, OVER)
    marks: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for n in range(12):
        stamps = {"_batch_id": n - 10, "clock": at(BATCH_S * (n + 1)), "final": False, "released": 0, "counts": {}}
        sent = [till for till in range(3) if n < quiet_from.get(f"t{till}", 12)]
        names = {till: f'["t{till}"]' for till in sent}
        marks += [stamps, *(stamps | {"_timeline": name} for name in names.values())]
        came = {"_arrival_time": at(BATCH_S * n + 300)}
        events += [event(3 * n + till) | came | {"_timeline": name} for till, name in names.items()]
    made.add(tables.WATERMARKS, marks)
    made.add(tables.ORDERED_EVENTS, events)
    made.add(tables.DEAD_LETTERS, late)
    made.commit("process", 36, {"records": 36})
    return made


def test_a_silent_device_is_named_with_its_last_record_and_the_report_says_so_too(tmp_path: Path) -> None:
    made = tills(tmp_path, {"t1": 9})
    found = checked(made)
    assert not found.passed
    assert not found.is_error
    assert not found.expectation.blocking
    said = (
        '`["t1"]` has sent nothing for 35 minutes by the clock of the log; it was never silent for longer than '
        "10 minutes before; last record 25 at 2026-01-01 01:25:00 UTC"
    )
    assert f"Found {said}. To do: look at the device or source." in found.message
    assert found.numbers == {"silent": 1, "looked_at": 3, "longest_silence_seconds": 2_100}
    page = page_of(made.workspace)
    assert '<code>["t1"]</code> has sent nothing for 35 minutes' in page.replace("&#34;", '"')


@pytest.mark.parametrize("quiet_from", [{}, {"t1": 10}, {"t1": 9, "t2": 9}])
def test_gaps_as_before_and_pauses_of_most_devices_are_no_silences(
    tmp_path: Path, quiet_from: dict[str, int]
) -> None:
    assert checked(tills(tmp_path, quiet_from)).passed


def test_a_device_whose_records_are_all_too_late_is_not_silent(tmp_path: Path) -> None:
    came = {"_timeline": '["t1"]', "_arrival_time": at(BATCH_S * 12 - 300)}
    assert checked(tills(tmp_path, {"t1": 9}, [letter(34) | came])).passed


@pytest.mark.parametrize(("quiet_from", "said"), [(5, "the source `web` has sent nothing for 30 minutes"), (6, "")])
def test_a_silent_source_is_named_where_arrivals_are_noted(tmp_path: Path, quiet_from: int, said: str) -> None:
    made = Shop(tmp_path, TWO).create()
    for n in range(7):
        last = {"tills": BATCH_S * n, "web": BATCH_S * min(n, quiet_from - 1)}
        made.commit("ingest", 3 * n + 3, {f"last_arrival_us.{name}": us(at(second)) for name, second in last.items()})
    made.add(tables.WATERMARKS, [{"_batch_id": 7, "clock": at(BATCH_S * 7), "final": False}])
    made.commit("process", 21, {})
    found = checked(made)
    assert found.passed == (not said)
    assert said in found.message
    assert ("last record at 2026-01-01 00:40:00 UTC" in found.message) == bool(said)


def test_only_pipelines_with_several_devices_or_sources_have_the_check() -> None:
    has = {
        text: SILENCE in alerts_of(parse_spec(text, file="shop.yaml"))[tables.ORDERED_EVENTS]
        for text in (SPEC, OVER, TWO)
    }
    assert has == {SPEC: False, OVER: True, TWO: True}
