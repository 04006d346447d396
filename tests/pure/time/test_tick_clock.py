"""Ticks of live runs: their clock, and when there is none. No Spark session is started."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.clock import FixedClock
from tests.pure.batch.batches import planned
from tidemark.assets.ingestion.pending_work import clock_of_tick, why_never
from tidemark.assets.planning import LogSegment, next_segment, take_on
from tidemark.assets.time_adjustment import control_items
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchKind
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.lake import Lake
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import BusyError
from tidemark.timeops.spec import parse_spec
from tidemark.timeops.values.utc import instant_of, us_of
from tidemark.timeops.watermark.alignment import LastArrival, estimated_clock

SEEN = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = 1_000_000
SPEC = """
name: shop
sources:
  - {name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING, t STRING", arrival_time: t, LIVE}
time: {timestamp_by: at, emit: {every: 1 s}}
"""


def test_the_clock_goes_on_by_the_wall_clock_since_the_last_record_was_seen() -> None:
    assert estimated_clock([LastArrival(1_000, seen_us=5_000)], now_us=5_300) == 1_300


def test_of_several_sources_the_earliest_estimate_counts() -> None:
    first, second = LastArrival(1_000, seen_us=5_000), LastArrival(900, seen_us=4_000)
    assert estimated_clock([first, second], now_us=5_000) == 1_000
    assert estimated_clock([first, LastArrival(900, seen_us=4_950)], now_us=5_000) == 950


def test_a_source_without_a_record_holds_the_clock() -> None:
    assert estimated_clock([LastArrival(1_000, seen_us=5_000), None], now_us=9_000) is None


def test_a_wall_clock_that_was_set_back_takes_nothing_from_the_estimate() -> None:
    assert estimated_clock([LastArrival(1_000, seen_us=5_000)], now_us=4_000) == 1_000


def shop(folder: Path, *, spec: str = SPEC.replace("LIVE", "live: true")) -> Workspace:
    """Return a pipeline whose last record arrived at 11:00 and was read at 12:00, the time of its wall clock."""
    (folder / "in").mkdir()
    file = SpecFile(parse_spec(spec, file="shop.yaml"), folder / "shop.yaml")
    workspace = Workspace(file, folder / "warehouse", clock=FixedClock(SEEN))
    lake = Lake(workspace.lake.root)
    for name in (tables.BATCHES, tables.FILES, tables.LOG_CONTROL, tables.WATERMARKS):
        lake.create(name, tables.CONTROL_SCHEMAS[name])
    arrived = us_of(SEEN - timedelta(hours=1))
    commit(
        workspace,
        "ingest",
        {"clock_us": arrived, "last_arrival_us.tills": arrived, "last_seen_us.tills": us_of(SEEN)},
    )
    return workspace


def commit(workspace: Workspace, kind: BatchKind, counts: dict[str, int], **given: int) -> None:
    """Make a batch of one record."""
    log = BatchLog(workspace.lake)
    plan = planned(log, kind, now=SEEN, input=given, fingerprint=workspace.spec.fingerprint())
    log.commit(plan, counts, {}, SEEN)


def test_a_segment_is_not_taken_on_once_another_run_has_committed_since_it_was_chosen(tmp_path: Path) -> None:
    # The run chose the segment of the batch that another one had at work, and takes it on once that is committed.
    workspace = shop(tmp_path)
    pending = planned(workspace.batches, now=SEEN, input={"flush": False})
    segment = next_segment(workspace, None, flush=False)
    assert segment == LogSegment(0, 1, flushes=False)
    workspace.batches.commit(pending, {"records": 1}, {}, SEEN)
    with pytest.raises(BusyError, match="Another run has committed batch 1 in the meantime"):
        take_on(workspace, segment, "run")


def test_a_tick_is_not_taken_on_once_another_run_has_read_more_input(tmp_path: Path) -> None:
    workspace = shop(tmp_path)
    tick = next_segment(workspace, None, flush=False, tick_us=7)
    assert tick.tick_us == 7
    commit(workspace, "ingest", {})
    with pytest.raises(BusyError, match="Another run has committed batch 1 in the meantime"):
        take_on(workspace, tick, "run")


def test_a_tick_stands_behind_the_log_when_all_input_is_read_and_the_clock_has_gone_on(tmp_path: Path) -> None:
    workspace = shop(tmp_path)
    assert clock_of_tick(workspace) is None, "no time has passed"
    assert isinstance(workspace.clock, FixedClock)
    workspace.clock.advance(timedelta(seconds=5))
    assert clock_of_tick(workspace) == us_of(SEEN - timedelta(hours=1)) + 5 * SECOND
    (tmp_path / "in" / "a.csv").write_text("2026-01-01T12:00:00Z,2026-01-01T12:00:00Z\n")
    assert clock_of_tick(workspace) is None, "input waits"
    (tmp_path / "in" / "a.csv").write_text("2026-01-01T1")
    an_hour_ago = (SEEN - timedelta(hours=1)).timestamp()
    os.utime(tmp_path / "in" / "a.csv", (an_hour_ago, an_hour_ago))
    assert clock_of_tick(workspace) is None, "a line is not finished"
    (tmp_path / "in" / "a.csv").unlink()
    assert clock_of_tick(workspace) is not None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (SPEC.replace(", LIVE", ""), "source `tills` has an `arrival_time` without `live: true`"),
        (
            SPEC.replace(", arrival_time: t, LIVE", "").replace(", emit: {every: 1 s}", ""),
            "no rule of the spec depends on the clock alone",
        ),
    ],
)
def test_there_is_no_tick_where_it_cannot_be_or_has_no_effect(tmp_path: Path, spec: str, why: str) -> None:
    workspace = shop(tmp_path, spec=spec)
    assert why in (why_never(workspace.spec) or "")
    assert isinstance(workspace.clock, FixedClock)
    workspace.clock.advance(timedelta(hours=5))
    assert clock_of_tick(workspace) is None


def test_the_clock_of_the_log_goes_on_from_a_tick(tmp_path: Path) -> None:
    workspace = shop(tmp_path)
    tick_us = us_of(SEEN - timedelta(minutes=1))
    commit(workspace, "process", {}, tick_us=tick_us)
    assert workspace.progress.log_clock_us() == tick_us
    assert isinstance(workspace.clock, FixedClock)
    workspace.clock.advance(timedelta(minutes=59))
    assert clock_of_tick(workspace) is None, "the estimate has only come to the tick"
    workspace.clock.advance(timedelta(seconds=1))
    assert clock_of_tick(workspace) == tick_us + SECOND


def test_a_tick_stands_behind_the_last_record_only_and_is_noted_in_plan_and_log_control(tmp_path: Path) -> None:
    workspace = shop(tmp_path)
    assert next_segment(workspace, None, flush=True, tick_us=7) == LogSegment(0, 1, flushes=True)
    segment = next_segment(workspace, None, flush=False, tick_us=7)
    assert segment == LogSegment(0, 1, flushes=False, tick_us=7)
    plan = planned(workspace.batches, now=SEEN, input={"flush": False, "tick_us": 7})
    assert next_segment(workspace, None, flush=False) == segment, "a batch that is tried again has the tick it had"
    items = control_items(workspace, plan, Position())
    item = pa.Table.from_pylist(items, schema=tables.LOG_CONTROL_SCHEMA).to_pylist()[-1]
    assert (item["kind"], item["_after_seq"], item["clock"], item["argument"]) == ("tick", 0, instant_of(7), None)
