"""The protocol of batches on real Delta tables, without Spark: who may plan, who may commit, what is undone.

Also the state that batches keep for the next ones, and the pieces in which a rebuild judges the log.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.clock import FixedClock
from tests.pure.batch.batches import ME, go, planned, process_of, said_by
from tidemark.assets.judging.replay import Piece, pieces_left
from tidemark.assets.log.control import END_OF_INPUT, REOPEN, TICK, WAIT
from tidemark.assets.planning import LogSegment
from tidemark.assets.state.dedup import NEAR_US, joined
from tidemark.assets.state.windows import live_rows
from tidemark.resources.batches import batch_log as batches
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchKind, BatchOwner, Commit, Counts, Plan, is_gone
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.undoing import prepare
from tidemark.resources.settings import Clock
from tidemark.resources.tables import (
    BATCHES,
    BATCHES_SCHEMA,
    FORMAT_VERSION,
    LOG_CONTROL,
    LOG_CONTROL_SCHEMA,
    WATERMARKS,
)
from tidemark.timeops.errors import BusyError, FencedError, LakeError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ELSEWHERE = BatchOwner("other", "a-host-of-another-name", 4711, 1)

# A process that takes a batch on, says how that went, and works on until its input is closed.
RUN = """
import sys
from datetime import datetime, UTC
from pathlib import Path
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.delta.lake import Lake
from tidemark.resources.batches.plans import this_process
from tidemark.timeops.errors import BusyError
log = BatchLog(Lake(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
try:
    log.begin("ingest", this_process(sys.argv[2]), datetime.now(UTC), last_batch=None, first_seq=0, end_seq=5,
              input={}, fingerprint="f")
    print("won", flush=True)
except BusyError:
    print("busy", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "shop")
    made.create(BATCHES, BATCHES_SCHEMA)
    return made


@pytest.fixture
def log(lake: Lake) -> BatchLog:
    return BatchLog(lake)


def done(log: BatchLog, kind: BatchKind = "process", versions: Mapping[str, int] | None = None) -> Commit:
    """Plan a batch and commit it, with the versions of tables."""
    return log.commit(planned(log, kind), {}, versions or {}, NOON)


def last(log: BatchLog, kind: BatchKind | None = None) -> Commit:
    commit = log.last_commit(kind)
    assert commit is not None
    return commit


def pending(log: BatchLog) -> Plan:
    plan = log.pending()
    assert plan is not None
    return plan


def test_questions_of_one_block_are_answered_from_one_look_and_what_is_begun_on_an_old_one_is_refused(
    lake: Lake, log: BatchLog
) -> None:
    first = done(log)
    with log.as_of_now():
        assert log.last_commit() == first
        second = done(BatchLog(Lake(lake.root)))
        assert log.last_commit() == first
        with pytest.raises(BusyError):
            planned(log)
        assert log.last_commit() == second, "a write that is refused has looked"
    third = done(BatchLog(Lake(lake.root)))
    assert log.last_commit() == third


def test_a_plan_is_pending_until_its_commit_which_keeps_why_it_was_accepted(log: BatchLog) -> None:
    assert log.pending() is None
    assert log.last_commit() is None
    plan = planned(log, input={"days": []})
    assert log.pending() == plan
    assert (plan.batch_id, plan.attempt, plan.owner, plan.input) == (0, 1, ME, {"days": []})
    why = "the source sent a day twice"
    commit = log.commit(plan, {"released": 7}, {"ordered_events": 3}, NOON, reason=why)
    assert log.pending() is None
    assert log.last_commit() == commit == Commit(plan, NOON, Counts({"released": 7}), {"ordered_events": 3}, why)


def test_a_batch_that_is_handed_over_is_the_same_attempt_of_another_run(log: BatchLog) -> None:
    plan = planned(log)
    log.release(plan, NOON)
    new = replace(ME, id="the run that repeats it")
    handed = log.hand_over(pending(log), new, NOON - timedelta(minutes=1))  # its clock may be slow
    assert pending(log) == handed == replace(plan, owner=new, heartbeat_at=handed.heartbeat_at)
    with pytest.raises(BusyError, match="Another run is at work"):
        planned(log, owner=replace(ME, id="a third run"))
    assert log.commit(handed, {}, {}, NOON).plan.owner == new


def test_committed_batches_are_numbered_without_a_gap_whatever_happened_between(log: BatchLog) -> None:
    done(log, "ingest")
    log.release(planned(log), NOON)
    log.release(planned(log), NOON)
    done(log)
    done(log, "ingest")
    assert [(commit.batch_id, commit.plan.attempt) for commit in log.history()] == [(0, 1), (1, 4), (2, 5)]
    assert last(log, "process").batch_id == 1
    assert log.last_commit("backfill") is None


def test_an_ingestion_learns_the_end_of_its_range_at_its_commit(log: BatchLog) -> None:
    plan = planned(log, "ingest", end_seq=None)
    assert plan.end_seq is None
    commit = log.commit(plan, {}, {}, NOON, end_seq=12)
    assert log.commit_of(0) == commit == Commit(replace(plan, end_seq=12), NOON, Counts(), {}, reason=None)


def test_a_commit_repeated_changes_nothing(lake: Lake, log: BatchLog) -> None:
    plan = planned(log)
    first = log.commit(plan, {"a": 1}, {}, NOON)
    version = lake.version(BATCHES)
    assert log.commit(plan, {"a": 2}, {}, NOON) == first
    assert lake.version(BATCHES) == version


def test_a_live_owners_batch_is_left_alone_and_a_killed_ones_is_taken_over(lake: Lake, log: BatchLog) -> None:
    with process_of(RUN, lake.root, "first") as process:
        go(process)
        assert said_by(process) == "won"
        version = lake.version(BATCHES)
        with pytest.raises(BusyError, match=rf"process {process.pid} on .* has had batch 0 \(ingest\)") as error:
            planned(log, now=NOON + timedelta(days=400))  # however long it has been silent
        assert "Nothing was changed" in str(error.value)
        assert lake.version(BATCHES) == version
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet taken note of by its parent
        plan = planned(log)
    assert (plan.batch_id, plan.attempt, plan.owner) == (0, 2, ME)
    assert log.pending() == plan


def test_a_process_that_ended_is_gone(lake: Lake) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    assert is_gone(replace(ME, id="x", pid=process.pid, started=None), NOON, NOON)


def test_another_process_under_the_owners_number_does_not_stand_for_it(log: BatchLog) -> None:
    assert ME.started is not None
    planned(log, owner=replace(ME, id="before", started=ME.started - 1))
    assert planned(log, owner=ME).attempt == 2


def test_a_run_may_plan_its_own_batch_again(log: BatchLog) -> None:
    first = planned(log)
    second = planned(log)
    assert (second.batch_id, second.attempt) == (0, 2)
    with pytest.raises(FencedError):
        log.commit(first, {}, {}, NOON)


def test_an_owner_on_another_host_is_gone_when_its_lease_ran_out(log: BatchLog) -> None:
    plan = planned(log, owner=ELSEWHERE, now=NOON)
    with pytest.raises(BusyError):
        planned(log, now=NOON + timedelta(minutes=10))
    log.heartbeat(plan, NOON + timedelta(minutes=10))
    log.heartbeat(plan, NOON + timedelta(minutes=4))  # delayed on its way
    with pytest.raises(BusyError):
        planned(log, now=NOON + timedelta(minutes=20))
    assert planned(log, now=NOON + timedelta(minutes=20, microseconds=1)).attempt == 2


def test_the_late_commit_of_a_run_that_was_taken_for_dead_is_refused(lake: Lake, log: BatchLog) -> None:
    late = planned(log, owner=ELSEWHERE, now=NOON)
    plan = planned(log, now=NOON + timedelta(hours=1))
    version = lake.version(BATCHES)
    with pytest.raises(FencedError, match=rf"attempt 2 of process {ME.pid} on"):
        log.commit(late, {"late": 1}, {}, NOON + timedelta(hours=2))
    with pytest.raises(FencedError):
        log.heartbeat(late, NOON + timedelta(hours=2))
    log.release(late, NOON)
    assert lake.version(BATCHES) == version
    log.commit(plan, {"right": 1}, {}, NOON)
    with pytest.raises(FencedError):
        log.commit(late, {"late": 1}, {}, NOON + timedelta(hours=2))
    assert [commit.counts for commit in log.history()] == [{"right": 1}]


def test_of_two_processes_that_begin_at_once_one_wins(lake: Lake) -> None:
    with process_of(RUN, lake.root, "first") as first, process_of(RUN, lake.root, "second") as second:
        go(first)
        go(second)
        assert sorted([said_by(first), said_by(second)]) == ["busy", "won"]
    assert lake.rows(BATCHES).num_rows == 1


class Crossing(Lake):
    """A lake on which two writers have both decided before either commits."""

    gate = threading.Barrier(2)

    def _committing(self, table: str) -> None:  # noqa: ARG002
        self.gate.wait(timeout=30)


def test_of_two_plans_made_on_the_same_state_one_wins(lake: Lake) -> None:
    def outcome(name: str) -> str:
        try:
            planned(BatchLog(Crossing(lake.root)), owner=replace(ME, id=name))
        except BusyError:
            return "busy"
        return "won"

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(outcome, ["first", "second"])) == ["busy", "won"]
    assert lake.rows(BATCHES).num_rows == 1


def test_a_plan_made_before_another_runs_commit_is_refused(log: BatchLog) -> None:
    done(log)
    with pytest.raises(BusyError, match="committed batch 0 in the meantime"):
        log.begin("process", ME, NOON, last_batch=None, first_seq=0, end_seq=10, input={}, fingerprint="f")


def test_a_batch_is_free_also_if_the_clock_was_set_back_before_it_was_released(log: BatchLog) -> None:
    plan = planned(log, now=NOON)
    log.heartbeat(plan, NOON + timedelta(minutes=1))
    log.release(plan, NOON - timedelta(days=1))
    assert pending(log).released
    planned(log, owner=replace(ME, id="the next run of the same process"), now=NOON - timedelta(days=1))


def test_a_batch_took_no_time_if_the_clock_was_set_back_before_its_commit(log: BatchLog) -> None:
    for later, took in ((timedelta(seconds=9), timedelta(seconds=9)), (-timedelta(days=1), timedelta(0))):
        plan = planned(log, now=NOON)
        assert log.commit(plan, {}, {}, NOON + later).took == took


def test_a_released_batch_is_taken_over_at_once_and_no_committed_one_is_released(lake: Lake, log: BatchLog) -> None:
    plan = planned(log, owner=ELSEWHERE)
    log.release(plan, NOON)
    log.release(plan, NOON)
    assert lake.rows(BATCHES)["state"].to_pylist().count("released") == 1
    assert pending(log).released
    again = planned(log)
    assert again.attempt == 2
    log.commit(again, {}, {}, NOON)
    log.release(again, NOON)
    assert log.pending() is None


def test_tables_of_a_newer_format_are_refused(lake: Lake, log: BatchLog) -> None:
    done(log)
    row = lake.rows(BATCHES).to_pylist()[0] | {"attempt": 2, "format_version": FORMAT_VERSION + 1}
    lake.append_rows(BATCHES, pa.Table.from_pylist([row], schema=BATCHES_SCHEMA), expect=2)
    for look in (log.last_commit, log.pending, lambda: planned(log)):
        with pytest.raises(
            LakeError, match=f"written by a newer Tidemark: its tables have format {FORMAT_VERSION + 1}"
        ):
            look()
    assert lake.version(BATCHES) == 3


def test_heartbeats_are_sent_while_the_work_goes_on_and_no_longer(lake: Lake, log: BatchLog) -> None:
    plan = planned(log, owner=ELSEWHERE)
    beaten = threading.Event()

    class Watched(Clock):
        def now(self) -> datetime:
            if lake.version(BATCHES) > 1:  # the first heartbeat is written
                beaten.set()
            return NOON + timedelta(minutes=5)

    with log.keeping_lease(plan, Watched(), every=timedelta(milliseconds=10)):
        assert beaten.wait(timeout=30)
    written = lake.version(BATCHES)
    assert pending(log).heartbeat_at == NOON + timedelta(minutes=5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lease of")]
    log.commit(plan, {}, {}, NOON)  # heartbeats do not get in the way
    assert lake.version(BATCHES) == written + 1


def test_a_lost_lease_does_not_disturb_the_work_and_shows_at_the_commit(log: BatchLog) -> None:
    late = planned(log, owner=ELSEWHERE, now=NOON)
    plan = planned(log, now=NOON + timedelta(hours=1))
    with log.keeping_lease(late, FixedClock(NOON), every=timedelta(milliseconds=1)):
        assert log.pending() == plan
    with pytest.raises(FencedError):
        log.commit(late, {}, {}, NOON)


def test_a_table_that_a_batch_did_not_write_stays_at_its_version(log: BatchLog) -> None:
    done(log, versions={"raw_events": 1, "dead_letters": 1})
    done(log, versions={"raw_events": 2})
    assert last(log).table_versions == {"raw_events": 2, "dead_letters": 1}
    assert log.base_versions(["raw_events", "windows/new"]) == {"raw_events": 2, "windows/new": 0}


def tick(seq: int) -> pa.Table:
    return pa.Table.from_pylist([{"_after_seq": seq, "_control_seq": seq, "kind": "tick"}], schema=LOG_CONTROL_SCHEMA)


def test_what_an_attempt_without_a_commit_wrote_is_undone(lake: Lake, log: BatchLog) -> None:
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    plan = planned(log)
    written = lake.append_rows(LOG_CONTROL, tick(0), attempt=plan.attempt, expect=0)
    log.commit(plan, {}, {LOG_CONTROL: written.version}, NOON)
    lake.append_rows(LOG_CONTROL, tick(1), attempt=planned(log).attempt, expect=1)

    plan = planned(log)
    versions = prepare(lake, log.base_versions([LOG_CONTROL]), plan.attempt)
    assert lake.rows(LOG_CONTROL)["_after_seq"].to_pylist() == [0]
    again = prepare(lake, log.base_versions([LOG_CONTROL]), plan.attempt)
    assert again == versions, "there already: no second commit"
    written = lake.append_rows(LOG_CONTROL, tick(2), attempt=plan.attempt, expect=versions[LOG_CONTROL])
    assert lake.rows(LOG_CONTROL, filters=[("_after_seq", ">", 0)])["_after_seq"].to_pylist() == [2]
    assert written.rows == 1


def test_a_table_behind_the_last_commit_is_an_error(lake: Lake, log: BatchLog) -> None:
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    done(log, versions={LOG_CONTROL: 3})
    with pytest.raises(LakeError, match="is at version 0") as error:
        prepare(lake, log.base_versions([LOG_CONTROL]), 2)
    assert "version 3" in str(error.value)


def test_a_log_of_many_batches_is_in_few_files(lake: Lake, log: BatchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_COMPACT_EVERY", 4)
    for _ in range(4):
        log.commit(planned(log), {"events": 5}, {}, NOON)
    assert len(lake.open(BATCHES).file_uris()) == 1
    log.commit(planned(log), {"events": 5}, {}, NOON)
    assert [(commit.batch_id, dict(commit.counts)) for commit in log.history()] == [
        (n, {"events": 5}) for n in range(5)
    ]


def test_a_snapshot_names_every_table_at_the_versions_of_one_commit(lake: Lake, log: BatchLog) -> None:
    warehouse = lake.root.parent
    with pytest.raises(LakeError, match="no pipeline garden"):
        tm.consistent(warehouse, "garden")
    with pytest.raises(LakeError, match="no committed batch yet"):
        tm.consistent(warehouse, "shop")
    done(log, versions={LOG_CONTROL: 1, WATERMARKS: 1})
    done(log, versions={LOG_CONTROL: 1, WATERMARKS: 3})
    planned(log)
    folders = {table: warehouse / "shop" / table for table in (LOG_CONTROL, WATERMARKS)}
    assert tm.consistent(warehouse, "shop") == {
        LOG_CONTROL: (folders[LOG_CONTROL], 1),
        WATERMARKS: (folders[WATERMARKS], 3),
    }
    assert tm.consistent(warehouse, "shop", 0)[WATERMARKS] == (folders[WATERMARKS], 1)
    with pytest.raises(LakeError, match="no committed batch 2"):
        tm.consistent(warehouse, "shop", 2)


def test_a_table_is_read_as_of_a_commit_without_what_a_batch_at_work_has_written(lake: Lake, log: BatchLog) -> None:
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    for number in range(3):
        lake.append_rows(LOG_CONTROL, tick(number), expect=number)
        if number < 2:
            done(log, versions={LOG_CONTROL: number + 1})
    counts = [tm.table(lake.root.parent, "shop", LOG_CONTROL, batch_id).count_rows() for batch_id in (None, 0)]
    assert counts == [2, 1]
    with pytest.raises(LakeError, match="no table windows/none"):
        tm.table(lake.root.parent, "shop", "windows/none")


ALIVE: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {
    "none takes back": ([(3, 1), (4, 1)], [(3, 1), (4, 1)]),
    "one takes back": ([(0, 1), (1, 1), (2, 3), (-1, 3)], [(1, 1), (2, 3)]),
    "written anew by the batch that takes back": ([(7, 1), (-8, 3), (7, 3)], [(7, 3)]),
    "the newest that takes back counts": ([(7, 1), (-8, 3), (7, 3), (-8, 5), (7, 5), (8, 5)], [(7, 5), (8, 5)]),
    "an older one takes back too": ([(7, 1), (-8, 5), (-8, 3), (7, 3)], []),
}


@pytest.mark.parametrize(("rows", "alive"), ALIVE.values(), ids=ALIVE)
def test_a_row_of_an_open_session_counts_until_one_takes_back_the_event_of_its_number(
    rows: list[tuple[int, int]], alive: list[tuple[int, int]]
) -> None:
    seqs, numbers = zip(*rows, strict=True)
    table = pa.table({"_arrival_seq": pa.array(seqs, pa.int64()), "_batch_id": pa.array(numbers, pa.int64())})
    found = live_rows(table)
    assert list(zip(found["_arrival_seq"].to_pylist(), found["_batch_id"].to_pylist(), strict=True)) == alive


def test_segments_that_overlap_or_are_near_each_other_are_one() -> None:
    far = 10 * NEAR_US
    assert joined([(far, far + 5), (0, 10), (4, 6), (10 + NEAR_US, 20 + NEAR_US)], 8) == (
        (0, 20 + NEAR_US),
        (far, far + 5),
    )


def test_beyond_the_most_those_with_the_least_between_them_are_joined() -> None:
    starts = [0, 10 * NEAR_US, 13 * NEAR_US, 30 * NEAR_US]
    spans = [(start, start + 1) for start in starts]
    assert joined(spans, 3) == (spans[0], (spans[1][0], spans[2][1]), spans[3])
    assert joined(spans, 1) == ((0, starts[3] + 1),)
    assert joined([], 3) == ()


def made_by_a_rebuild(folder: Path, *numbers: int) -> list[Commit]:
    """Commits of a log of batches beside, with numbers that the log has kept."""
    beside = Lake(folder)
    beside.create(BATCHES, BATCHES_SCHEMA)
    made = BatchLog(beside)
    for number in numbers:
        plan = planned(made, end_seq=number, fingerprint="g", number=number)
        made.commit(plan, {"records": number}, {WATERMARKS: number}, NOON)
    return made.history()


def test_a_rebuild_keeps_numbers_for_its_batches_and_supersedes_those_before(log: BatchLog, tmp_path: Path) -> None:
    kinds: list[BatchKind] = ["ingest", "process", "backfill"]
    for kind in kinds:
        done(log, kind)
    log.commit(planned(log, "rebuild", input={"reserves": 10}), {}, {}, NOON)
    done(log, versions={LOG_CONTROL: 5})
    assert [one.batch_id for one in log.history()] == [0, 1, 2, 3, 14], "4 to 13 are kept"

    plan = planned(log, "rebuild", input={"numbers": [[4, 13]]})
    made = made_by_a_rebuild(tmp_path / "beside", 4, 6)
    for _ in range(2):  # a commit may be repeated
        log.commit(plan, {"batches": 2}, {WATERMARKS: 7}, NOON, made=made)
    for known in (log, BatchLog(Lake(tmp_path / "shop"))):
        assert [(one.batch_id, one.plan.kind) for one in known.history()] == [
            (0, "ingest"),
            (3, "rebuild"),
            (4, "process"),
            (6, "process"),
            (15, "rebuild"),
        ]
        newest, processed = last(known), last(known, "process")
        assert (newest.batch_id, processed.batch_id, processed.plan.end_seq) == (15, 6, 6)
        assert newest.table_versions == processed.table_versions == {WATERMARKS: 7, LOG_CONTROL: 5}
        assert known.history("process")[0].table_versions == {}, "nobody has seen that state"
        assert known.pending() is None
        assert [one.batch_id for one in known.every_commit()] == [0, 1, 2, 3, 4, 6, 14, 15]
    done(log)
    assert [one.batch_id for one in log.history("process")] == [4, 6, 16]


def test_a_rebuild_that_was_begun_and_not_ended_supersedes_nothing(log: BatchLog) -> None:
    done(log)
    log.release(planned(log, "rebuild", input={"numbers": [[5, 6]]}), NOON)
    assert [one.batch_id for one in log.history("process")] == [0]
    done(log)
    assert [one.batch_id for one in log.history()] == [0, 1]


Item = dict[str, Any]


def item(after_seq: int, kind: str, argument: str | None = None) -> Item:
    return {"_after_seq": after_seq, "kind": kind, "clock": NOON, "argument": argument, "reason": f"why {after_seq}"}


def segments(items: Sequence[Item], end_seq: int, most: int) -> list[LogSegment]:
    return [piece.segment for piece in pieces_left(items, 0, 0, end_seq, most)]


def test_a_log_without_items_is_rebuilt_in_pieces_by_its_length_alone() -> None:
    found = [(one.first_seq, one.end_seq) for one in segments([], 25, most=10)]
    assert found == [(0, 10), (10, 20), (20, 25)]
    assert segments([], 0, most=10) == []


def test_a_rebuild_is_cut_at_ticks_flushes_reopenings_and_waits() -> None:
    items = [
        item(4, TICK),
        item(4, TICK),
        item(9, WAIT, '["slow"]'),
        item(14, END_OF_INPUT),
        item(14, REOPEN),
        item(14, WAIT, "[]"),
    ]
    noon_us = 1_767_268_800_000_000
    assert segments(items, 20, most=8) == [
        LogSegment(0, 5, flushes=False, tick_us=noon_us),
        LogSegment(5, 5, flushes=False, tick_us=noon_us),
        LogSegment(5, 10, flushes=False),
        LogSegment(10, 15, flushes=True, waits=frozenset({"slow"})),
        LogSegment(15, 20, flushes=False, reopens="why 14"),
    ]
    assert segments([item(24, END_OF_INPUT)], 25, most=10)[-1] == LogSegment(20, 25, flushes=True)


@pytest.mark.parametrize("seed", range(50))
def test_a_rebuild_that_is_stopped_goes_on_with_what_is_left(seed: int) -> None:
    rng = random.Random(seed)
    items, end = log_of(rng)
    most = rng.randint(1, 30)
    whole = [*pieces_left(items, 0, 0, end, most)]
    for number, one in enumerate(whole):
        left = [*pieces_left(items, one.segment.end_seq, one.replayed, end, most)]
        assert told(left) == told(whole[number + 1 :])
    ends = [piece.segment.end_seq for piece in whole]
    assert [piece.segment.first_seq for piece in whole] == [0, *ends][:-1], "nothing is left out or judged twice"


@pytest.mark.parametrize("seed", range(50))
def test_what_comes_while_a_rebuild_is_at_work_is_left_then(seed: int) -> None:
    rng = random.Random(seed)
    items, end = log_of(rng)
    some = rng.randint(0, len(items))
    until = items[some]["_after_seq"] + 1 if some < len(items) else end
    first = [*pieces_left(items[:some], 0, 0, until)]
    begin, replayed = (first[-1].segment.end_seq, first[-1].replayed) if first else (0, 0)
    both = [*first, *pieces_left(items, begin, replayed, end)]
    assert told(both) == told([*pieces_left(items, 0, 0, end)])


def told(pieces: Sequence[Piece]) -> list[tuple[Any, ...]]:
    """Return what the pieces say of each record and of each item that ends one, however the records are cut."""
    found: list[tuple[Any, ...]] = []
    for piece in pieces:
        one = piece.segment
        seqs = range(one.first_seq, one.end_seq)
        found += [(seq, one.reopens if seq == one.first_seq else None, one.waits) for seq in seqs]
        if one.tick_us or one.flushes:
            found.append(("item", one.end_seq, one.tick_us, one.flushes))
    return found


def log_of(rng: random.Random) -> tuple[list[Item], int]:
    """Items as live runs write them, and the end of the log: a wait or a reopening is followed by records."""
    items: list[Item] = []
    seq, flushed = rng.randint(0, 5), False
    for _ in range(rng.randint(0, 12)):
        if flushed:
            items.append(item(seq - 1, REOPEN))
            flushed = False
        if rng.random() < 0.3:
            items.append(item(seq - 1, WAIT, rng.choice(["[]", '["a"]', '["b"]'])))
        seq += rng.randint(1, 9)
        kind = rng.choice([TICK, TICK, END_OF_INPUT, None])
        if kind is not None:
            items.append(item(seq - 1, kind))
            flushed = kind == END_OF_INPUT
    return items, max([one["_after_seq"] + 1 for one in items], default=0) + rng.randint(0, 12)


def test_a_reason_that_windows_share_with_rules_is_counted_once() -> None:
    """`refused.bad_expression` is not of a window with the name `refused`, nor is what was let in of one."""
    counts = Counts(
        {"refused.bad_expression": 2, "_replayed.window_closed": 3, "_replayed.early": 1, "w.window_closed": 4}
    )
    assert counts.windows == ["w"]
    assert counts.dead_letters(counts.windows) == {"bad_expression": 2, "window_closed": 4}
    assert counts.replayed == {"window_closed": 3, "early": 1}
