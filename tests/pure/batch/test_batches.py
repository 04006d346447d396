"""The protocol of batches on real Delta tables, without Spark: who may plan, who may commit, what is undone."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import tidemark as tm
from tests import ROOT
from tests.clock import FixedClock
from tidemark.resources.batches import batch_log as batches
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Commit, Kind, Owner, Plan, is_gone, this_process
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

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ME = this_process("me")
ELSEWHERE = Owner("other", "a-host-of-another-name", 4711, 1)

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
    log.begin("ingest", this_process(sys.argv[2]), datetime.now(UTC), after=None, first_seq=0, end_seq=5,
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


def begin(
    log: BatchLog,
    owner: Owner = ME,
    now: datetime = NOON,
    kind: Kind = "process",
    given: Mapping[str, object] = MappingProxyType({"days": []}),
) -> Plan:
    last = log.last_commit()
    after = last.batch_id if last else None
    return log.begin(kind, owner, now, after=after, first_seq=0, end_seq=10, input=dict(given), fingerprint="f")


@contextmanager
def run_of(lake: Lake, name: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield a second run, started and about to take a batch on."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(lake.root), name],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert said_by(process) == "ready"
            yield process
        finally:
            process.kill()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def said_by(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_plan_is_pending_until_its_commit(log: BatchLog) -> None:
    assert log.pending() is None
    assert log.last_commit() is None
    plan = begin(log)
    assert log.pending() == plan
    assert (plan.batch_id, plan.attempt, plan.owner, plan.input) == (0, 1, ME, {"days": []})
    commit = log.commit(plan, {"released": 7}, {"ordered_events": 3}, NOON + timedelta(seconds=5))
    assert log.pending() is None
    assert log.last_commit() == commit
    assert (dict(commit.counts), commit.table_versions, commit.reason) == (
        {"released": 7},
        {"ordered_events": 3},
        None,
    )
    assert commit.committed_at == NOON + timedelta(seconds=5)
    assert commit.plan == plan


def test_committed_batches_are_numbered_without_a_gap_whatever_happened_between(log: BatchLog) -> None:
    log.commit(begin(log, kind="ingest"), {}, {}, NOON)
    log.release(begin(log), NOON)
    log.release(begin(log), NOON)
    log.commit(begin(log), {}, {}, NOON)
    log.commit(begin(log, kind="ingest"), {}, {}, NOON)
    assert [(commit.batch_id, commit.plan.attempt) for commit in log.history()] == [(0, 1), (1, 4), (2, 5)]
    latest = log.last_commit("process")
    assert latest is not None
    assert latest.batch_id == 1
    assert log.last_commit("backfill") is None


def test_an_ingestion_learns_the_end_of_its_range_at_its_commit(log: BatchLog) -> None:
    plan = log.begin("ingest", ME, NOON, after=None, first_seq=0, end_seq=None, input={}, fingerprint="f")
    assert plan.end_seq is None
    log.commit(plan, {}, {}, NOON, end_seq=12)
    commit = log.commit_of(0)
    assert commit is not None
    assert commit.plan.end_seq == 12


def test_a_commit_repeated_changes_nothing(lake: Lake, log: BatchLog) -> None:
    plan = begin(log)
    first = log.commit(plan, {"a": 1}, {}, NOON)
    version = lake.version(BATCHES)
    assert log.commit(plan, {"a": 2}, {}, NOON) == first
    assert lake.version(BATCHES) == version


def test_an_accepted_batch_is_committed_and_keeps_the_reason(log: BatchLog) -> None:
    log.commit(begin(log), {}, {}, NOON, reason="the source sent a day twice")
    commit = log.last_commit()
    assert commit is not None
    assert commit.reason == "the source sent a day twice"
    assert log.pending() is None


def test_a_live_owners_batch_is_left_alone(lake: Lake, log: BatchLog) -> None:
    with run_of(lake, "first") as process:
        go(process)
        assert said_by(process) == "won"
        version = lake.version(BATCHES)
        with pytest.raises(BusyError, match=rf"process {process.pid} on .* has had batch 0 \(ingest\)") as error:
            begin(log, now=NOON + timedelta(days=400))  # however long it has been silent
        assert "Nothing was changed" in str(error.value)
        assert lake.version(BATCHES) == version


def test_the_batch_of_a_killed_owner_is_taken_over_under_its_number(lake: Lake, log: BatchLog) -> None:
    with run_of(lake, "first") as process:
        go(process)
        assert said_by(process) == "won"
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet taken note of by its parent
        plan = begin(log)
    assert (plan.batch_id, plan.attempt, plan.owner) == (0, 2, ME)
    assert log.pending() == plan


def test_a_process_that_ended_is_gone(lake: Lake) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    assert is_gone(replace(ME, id="x", pid=process.pid, started=None), NOON, NOON)


def test_another_process_under_the_owners_number_does_not_stand_for_it(log: BatchLog) -> None:
    assert ME.started is not None
    begin(log, replace(ME, id="before", started=ME.started - 1))
    assert begin(log, ME).attempt == 2


def test_a_run_may_plan_its_own_batch_again(log: BatchLog) -> None:
    first = begin(log)
    second = begin(log)
    assert (second.batch_id, second.attempt) == (0, 2)
    with pytest.raises(FencedError):
        log.commit(first, {}, {}, NOON)


def test_an_owner_on_another_host_is_gone_when_its_lease_ran_out(log: BatchLog) -> None:
    plan = begin(log, ELSEWHERE)
    with pytest.raises(BusyError):
        begin(log, now=NOON + timedelta(minutes=10))
    log.heartbeat(plan, NOON + timedelta(minutes=10))
    log.heartbeat(plan, NOON + timedelta(minutes=4))  # delayed on its way
    with pytest.raises(BusyError):
        begin(log, now=NOON + timedelta(minutes=20))
    assert begin(log, now=NOON + timedelta(minutes=20, microseconds=1)).attempt == 2


def test_the_late_commit_of_a_run_that_was_taken_for_dead_is_refused(lake: Lake, log: BatchLog) -> None:
    late = begin(log, ELSEWHERE)
    plan = begin(log, now=NOON + timedelta(hours=1))
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
    with run_of(lake, "first") as first, run_of(lake, "second") as second:
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
    outcomes: list[str] = []

    def run(name: str) -> None:
        try:
            begin(BatchLog(Crossing(lake.root)), replace(ME, id=name))
            outcomes.append("won")
        except BusyError:
            outcomes.append("busy")

    threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["busy", "won"]
    assert lake.rows(BATCHES).num_rows == 1


def test_a_plan_made_before_another_runs_commit_is_refused(log: BatchLog) -> None:
    log.commit(begin(log), {}, {}, NOON)
    with pytest.raises(BusyError, match="committed batch 0 meanwhile"):
        log.begin("process", ME, NOON, after=None, first_seq=0, end_seq=10, input={}, fingerprint="f")


def test_a_released_batch_may_be_taken_over_at_once(lake: Lake, log: BatchLog) -> None:
    plan = begin(log, ELSEWHERE)
    log.release(plan, NOON)
    log.release(plan, NOON)
    assert lake.rows(BATCHES)["state"].to_pylist().count("released") == 1
    pending = log.pending()
    assert pending is not None
    assert pending.released
    assert begin(log).attempt == 2


def test_a_committed_batch_cannot_be_released(log: BatchLog) -> None:
    plan = begin(log)
    log.commit(plan, {}, {}, NOON)
    log.release(plan, NOON)
    assert log.pending() is None


def test_tables_of_a_newer_format_are_refused(lake: Lake, log: BatchLog) -> None:
    log.commit(begin(log), {}, {}, NOON)
    row = lake.rows(BATCHES).to_pylist()[0] | {"attempt": 2, "format_version": FORMAT_VERSION + 1}
    lake.append_rows(BATCHES, pa.Table.from_pylist([row], schema=BATCHES_SCHEMA), expect=2)
    for look in (log.last_commit, log.pending, lambda: begin(log)):
        with pytest.raises(LakeError, match=f"made by a newer Tidemark: its tables have format {FORMAT_VERSION + 1}"):
            look()
    assert lake.version(BATCHES) == 3


def test_heartbeats_are_sent_while_the_work_goes_on_and_no_longer(lake: Lake, log: BatchLog) -> None:
    plan = begin(log, ELSEWHERE)
    beaten = threading.Event()

    class Watched(Clock):
        def now(self) -> datetime:
            if lake.version(BATCHES) > 1:  # the first heartbeat is written
                beaten.set()
            return NOON + timedelta(minutes=5)

    with log.keeping_lease(plan, Watched(), every=timedelta(milliseconds=10)):
        assert beaten.wait(timeout=30)
    written = lake.version(BATCHES)
    pending = log.pending()
    assert pending is not None
    assert pending.heartbeat_at == NOON + timedelta(minutes=5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lease of")]
    log.commit(plan, {}, {}, NOON)  # heartbeats do not get in the way
    assert lake.version(BATCHES) == written + 1


def test_a_lost_lease_does_not_disturb_the_work_and_shows_at_the_commit(log: BatchLog) -> None:
    late = begin(log, ELSEWHERE)
    plan = begin(log, now=NOON + timedelta(hours=1))
    with log.keeping_lease(late, FixedClock(NOON), every=timedelta(milliseconds=1)):
        assert log.pending() == plan
    with pytest.raises(FencedError):
        log.commit(late, {}, {}, NOON)


def test_a_table_that_a_batch_did_not_write_stays_at_its_version(log: BatchLog) -> None:
    log.commit(begin(log), {}, {"raw_events": 1, "dead_letters": 1}, NOON)
    log.commit(begin(log), {}, {"raw_events": 2}, NOON)
    commit = log.last_commit()
    assert commit is not None
    assert commit.table_versions == {"raw_events": 2, "dead_letters": 1}
    assert log.base_versions(["raw_events", "windows/new"]) == {"raw_events": 2, "windows/new": 0}


def tick(seq: int) -> pa.Table:
    return pa.Table.from_pylist([{"_after_seq": seq, "_control_seq": seq, "kind": "tick"}], schema=LOG_CONTROL_SCHEMA)


def test_what_an_attempt_without_a_commit_wrote_is_undone(lake: Lake, log: BatchLog) -> None:
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    plan = begin(log)
    written = lake.append_rows(LOG_CONTROL, tick(0), attempt=plan.attempt, expect=0)
    log.commit(plan, {}, {LOG_CONTROL: written.version}, NOON)
    lake.append_rows(LOG_CONTROL, tick(1), attempt=begin(log).attempt, expect=1)

    plan = begin(log)
    versions = prepare(lake, log.base_versions([LOG_CONTROL]), plan.attempt)
    assert lake.rows(LOG_CONTROL)["_after_seq"].to_pylist() == [0]
    assert (
        prepare(lake, log.base_versions([LOG_CONTROL]), plan.attempt) == versions
    )  # there already: no second commit
    written = lake.append_rows(LOG_CONTROL, tick(2), attempt=plan.attempt, expect=versions[LOG_CONTROL])
    assert lake.rows(LOG_CONTROL, filters=[("_after_seq", ">", 0)])["_after_seq"].to_pylist() == [2]
    assert written.rows == 1


def test_a_table_behind_the_last_commit_is_an_error(lake: Lake, log: BatchLog) -> None:
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    log.commit(begin(log), {}, {LOG_CONTROL: 3}, NOON)
    with pytest.raises(LakeError, match="is at version 0") as error:
        prepare(lake, log.base_versions([LOG_CONTROL]), 2)
    assert "version 3" in str(error.value)


def test_the_log_of_many_batches_stays_in_few_files(
    lake: Lake, log: BatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COMPACT_EVERY", 4)
    for _ in range(4):
        log.commit(begin(log), {"events": 5}, {"raw_events": 2}, NOON)
    assert len(DeltaTable(str(lake.path(BATCHES))).file_uris()) == 1
    log.commit(begin(log), {"events": 5}, {"raw_events": 2}, NOON)
    assert [commit.batch_id for commit in log.history()] == [0, 1, 2, 3, 4]
    assert [commit.counts for commit in log.history()] == [{"events": 5}] * 5


def test_a_snapshot_names_every_table_at_the_versions_of_one_commit(lake: Lake, log: BatchLog) -> None:
    warehouse = lake.root.parent
    with pytest.raises(LakeError, match="no pipeline garden"):
        tm.consistent(warehouse, "garden")
    with pytest.raises(LakeError, match="no committed batch yet"):
        tm.consistent(warehouse, "shop")
    log.commit(begin(log), {}, {LOG_CONTROL: 1, WATERMARKS: 1}, NOON)
    log.commit(begin(log), {}, {LOG_CONTROL: 1, WATERMARKS: 3}, NOON)
    begin(log)
    folders = {table: warehouse / "shop" / table for table in (LOG_CONTROL, WATERMARKS)}
    assert tm.consistent(warehouse, "shop") == {
        LOG_CONTROL: (folders[LOG_CONTROL], 1),
        WATERMARKS: (folders[WATERMARKS], 3),
    }
    assert tm.consistent(warehouse, "shop", 0)[WATERMARKS] == (folders[WATERMARKS], 1)
    with pytest.raises(LakeError, match="no committed batch 2"):
        tm.consistent(warehouse, "shop", 2)


def made_by_a_rebuild(log: BatchLog, tmp_path: Path, *numbers: int) -> list[Commit]:
    """Commits of a log of batches beside, with numbers that the log has kept."""
    beside = Lake(tmp_path / "beside")
    beside.create(BATCHES, BATCHES_SCHEMA)
    made = BatchLog(beside)
    for number in numbers:
        last = made.last_commit()
        after = last.batch_id if last else None
        plan = made.begin(
            "process", ME, NOON, after=after, first_seq=0, end_seq=number, input={}, fingerprint="g", number=number
        )
        made.commit(plan, {"records": number}, {WATERMARKS: number}, NOON)
    return made.history()


def test_a_rebuild_keeps_numbers_for_its_batches_and_supersedes_those_before(log: BatchLog, tmp_path: Path) -> None:
    for kind in ("ingest", "process", "backfill"):
        log.commit(begin(log, kind=kind), {"records": 1}, {}, NOON)
    log.commit(begin(log, kind="rebuild", given={"reserves": 10}), {}, {}, NOON)
    log.commit(begin(log), {"records": 2}, {LOG_CONTROL: 5}, NOON)
    assert [one.batch_id for one in log.history()] == [0, 1, 2, 3, 14], "4 to 13 are kept"

    plan = begin(log, kind="rebuild", given={"numbers": [[4, 13]]})
    made = made_by_a_rebuild(log, tmp_path, 4, 6)
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
        last, processed = known.last_commit(), known.last_commit("process")
        assert last
        assert processed
        assert (last.batch_id, processed.batch_id, processed.plan.end_seq) == (15, 6, 6)
        assert last.table_versions == processed.table_versions == {WATERMARKS: 7, LOG_CONTROL: 5}
        assert known.history("process")[0].table_versions == {}, "nobody has seen that state"
        assert known.pending() is None
        assert [one.batch_id for one in known.every_commit()] == [0, 1, 2, 3, 4, 6, 14, 15]
    log.commit(begin(log), {}, {}, NOON)
    assert [one.batch_id for one in log.history("process")] == [4, 6, 16]


def test_a_rebuild_that_was_begun_and_not_ended_supersedes_nothing(log: BatchLog) -> None:
    log.commit(begin(log), {"records": 1}, {}, NOON)
    plan = begin(log, kind="rebuild", given={"numbers": [[5, 6]]})
    log.release(plan, NOON)
    assert [one.batch_id for one in log.history("process")] == [0]
    log.commit(begin(log), {}, {}, NOON)
    assert [one.batch_id for one in log.history()] == [0, 1]
