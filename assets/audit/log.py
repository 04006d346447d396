"""Audit of the log and of what is numbered: no hole, no double, the clock of each record, releases in order.

Here: `raw_events`, `log_control`, the ranges in `batches`, `_release_seq`. Not here: where each record ended
(assets/audit/verdicts.py), counts (assets/audit/counts.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemark.assets.audit.findings import Finding, some, wrong_rows
from tidemark.assets.log.retention import log_begins_at
from tidemark.assets.recount.sequences import RELEASE_COLUMNS, Faults, Numbers, Releases, Sequences
from tidemark.assets.schemas import RELEASED
from tidemark.assets.state.checkpoints import checkpoints_of, has_state, state_at
from tidemark.resources import tables
from tidemark.resources.batches.plans import (
    LOG_CLOCK,
    REMOVED_RELEASES,
    BatchInput,
    BatchKind,
    Commit,
    Counts,
    RebuildInput,
)
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.queries import pieces
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.values.instants import NONE, integers


def audit_log(workspace: Workspace) -> Iterator[Finding]:
    """Look for records of the log that are missing, doubled, of another batch or with another clock."""
    yield from _audit_ranges(workspace)
    workspace.tell("looking at the numbers of the log")
    log = _Log(workspace.batches.history("ingest"), clocks_before(workspace))
    version = workspace.base_of(tables.RAW_EVENTS)
    for piece in pieces(workspace.lake, tables.RAW_EVENTS, version, [c.SEQ, c.ARRIVAL, c.CLOCK, c.BATCH]):
        log.add(piece)
    faults = log.numbers.faults({0: workspace.progress.log_end()}, {0: log_begins_at(workspace)})
    yield from _findings_of(workspace, tables.RAW_EVENTS, faults, "record")
    if faults.misplaced:
        sentence = f"the clock of record {some(_numbers(faults.misplaced))} is before the clock of an earlier record"
        yield wrong_rows(workspace, tables.RAW_EVENTS, sentence)
    if log.of_other_batch:
        sentence = f"record {some(log.of_other_batch)} does not have the batch that read it"
        yield wrong_rows(workspace, tables.RAW_EVENTS, sentence)
    if log.off_clock:
        sentence = f"the clock of record {some(log.off_clock)} is not the latest arrival up to it"
        yield wrong_rows(workspace, tables.RAW_EVENTS, sentence)
    for commit in log.other_clock:
        sentence = f"batch {commit.batch_id} counts another `{LOG_CLOCK}` than the clock of its last record"
        yield wrong_rows(workspace, tables.BATCHES, sentence)
    yield from _audit_control(workspace)


class _Log:
    """The faults of the rows of the log, as far as they were read."""

    def __init__(self, reads: Sequence[Commit], before_us: Mapping[int, int | None]) -> None:
        self.numbers = Sequences()
        self.of_other_batch: list[int] = []
        self.off_clock: list[int] = []
        self.other_clock: list[Commit] = []
        self._reads = [read for read in reads if records_in(read.plan)]
        self._firsts = np.array([read.plan.first_seq for read in self._reads], np.int64)
        self._batches = np.array([read.batch_id for read in self._reads], np.int64)
        self._before = np.array(
            [NONE if (us := before_us[number]) is None else us for number in self._batches], np.int64
        )

    def add(self, piece: pa.RecordBatch) -> None:
        """Look at some rows."""
        seqs = piece[c.SEQ].to_numpy()
        if not len(seqs):
            return
        clock, arrival = (integers(piece[name]) for name in (c.CLOCK, c.ARRIVAL))
        self.numbers.add(np.zeros(len(seqs), np.int64), seqs, (clock, seqs))
        place = np.searchsorted(self._firsts, seqs, "right") - 1
        is_other = (place < 0) | (self._batches[place] != piece[c.BATCH].to_numpy())
        self.of_other_batch += seqs[is_other].tolist()
        order = np.argsort(seqs, kind="stable")  # upkeep may have joined files in any order
        seqs, clock, arrival, place = seqs[order], clock[order], arrival[order], place[order]
        if len(self._reads):
            self._at_starts(seqs, clock, arrival, place)
        self._at_ends(seqs, clock, place)

    def _at_starts(self, seqs: Numbers, clock: Numbers, arrival: Numbers, place: Numbers) -> None:
        """Compare each clock with the one before it, where that is here, and with the record's own arrival."""
        is_first = self._firsts[place] == seqs
        is_next = np.append(False, (np.diff(seqs) == 1) & (np.diff(place) == 0))
        clock_before = np.where(is_first, self._before[place], np.append(NONE, clock[:-1]))
        is_off = (arrival > clock) | ((is_first | is_next) & (np.maximum(clock_before, arrival) != clock))
        self.off_clock += seqs[is_off].tolist()

    def _at_ends(self, seqs: Numbers, clock: Numbers, place: Numbers) -> None:
        """Compare the clock of the last record of each ingestion with what that has counted."""
        for number in np.unique(place[place >= 0]).tolist():
            read = self._reads[number]
            at = np.flatnonzero(seqs == plan_end(read.plan) - 1)
            if len(at) and clock[at[0]] != read.counts.get(LOG_CLOCK, NONE):
                self.other_clock.append(read)


def clocks_before(workspace: Workspace) -> Mapping[int, int | None]:
    """Return by ingestion the clock of the log before it, microseconds: of the last record, or of a later tick."""
    by_ingestion = dict[int, int | None]()
    record_us: int | None = None
    tick_us: int | None = None
    for commit in workspace.batches.every_commit():
        if commit.plan.kind == "ingest":
            by_ingestion[commit.batch_id] = max((us for us in (record_us, tick_us) if us is not None), default=None)
            record_us = commit.counts.get(LOG_CLOCK)
        elif commit.plan.kind == "process" and not commit.plan.is_replayed:
            tick_us = BatchInput.of(commit.plan).tick_us
        elif commit.plan.kind == "rebuild" and (clocks := RebuildInput.of(commit.plan).clocks) is not None:
            record_us = clocks.get(LOG_CLOCK)  # records that had moved the clock were excluded
    return by_ingestion


def _findings_of(workspace: Workspace, table: str, faults: Faults, noun: str, of: str = "") -> Iterator[Finding]:
    """Yield what is missing, or there twice."""
    if faults.n_missing:
        sentence = (
            f"{plural(faults.n_missing, f'{noun} is', f'{noun}s are')} missing{of}: {some(_numbers(faults.missing))}"
        )
        yield wrong_rows(workspace, table, sentence)
    if faults.doubled:
        numbers = _numbers(faults.doubled)
        sentence = f"{plural(len(numbers), f'{noun} is', f'{noun}s are')} there more than once{of}: {some(numbers)}"
        yield wrong_rows(workspace, table, sentence)
    if faults.n_beyond:
        sentence = f"{plural(faults.n_beyond, noun)} more than the last commit names{of}"
        yield wrong_rows(workspace, table, sentence)


def _numbers(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return sorted({number for _, number in pairs})


def _audit_ranges(workspace: Workspace) -> Iterator[Finding]:
    """Look for parts of the log that no batch, or more than one, has read or judged."""
    kinds: tuple[tuple[BatchKind, str], ...] = (("ingest", "read"), ("process", "judged"))
    for kind, verb in kinds:
        end = 0
        for commit in workspace.batches.history(kind):
            plan = commit.plan
            if plan.first_seq != end or plan_end(plan) < plan.first_seq:
                sentence = f"batch {commit.batch_id} has {verb} records {plan.first_seq:,} to {plan_end(plan) - 1:,}"
                yield wrong_rows(workspace, tables.BATCHES, f"{sentence}, and the ones before it up to {end - 1:,}")
            if kind == "ingest" and commit.counts.records != records_in(plan):
                sentence = f"batch {commit.batch_id} counts {plural(commit.counts.records, 'record')}"
                yield wrong_rows(workspace, tables.BATCHES, f"{sentence}, and has read {records_in(plan):,}")
            end = plan_end(plan)


def _audit_control(workspace: Workspace) -> Iterator[Finding]:
    """Look for control items that are missing or doubled."""
    version = workspace.base_of(tables.LOG_CONTROL)
    numbers = Sequences()
    for piece in pieces(workspace.lake, tables.LOG_CONTROL, version, ["_control_seq", c.BATCH]):
        seqs = integers(piece["_control_seq"])
        numbers.add(np.zeros(len(seqs), np.int64), seqs, (seqs, seqs))
    faults = numbers.faults()
    yield from _findings_of(workspace, tables.LOG_CONTROL, faults, "control item")
    if not len(numbers.runs):
        yield wrong_rows(
            workspace, tables.LOG_CONTROL, "it has no control item, not even the spec of the first batch"
        )


def audit_releases(workspace: Workspace) -> Iterator[Finding]:
    """Look for `_release_seq` that are missing, doubled or out of order, timeline by timeline.

    Of numbers that `retention` has removed only their count is known.
    """
    table = tables.ORDERED_EVENTS
    workspace.tell(f"looking at the order of {table}")
    numbers, timelines = Sequences(), dict[str, int]()
    for piece in pieces(workspace.lake, table, workspace.base_of(table), RELEASE_COLUMNS):
        Releases.of(piece, timelines).add_to(numbers)
    faults = numbers.faults()
    n_removed = Counts.sum(commit.counts for commit in workspace.batches.counted()).get(REMOVED_RELEASES, 0)
    if n_removed and faults.n_missing <= n_removed:  # of a timeline that has no row left none is missed
        faults = replace(faults, missing=[], n_missing=0)
    yield from _findings_of(workspace, table, faults, "`_release_seq`")
    if misplaced := _misplaced(workspace, faults.misplaced, timelines):
        sentence = f"`_release_seq` {some(_numbers(misplaced))} does not follow `_timestamp` and `_arrival_seq`"
        yield wrong_rows(workspace, table, sentence)
    if not workspace.spec.time.over:
        released = workspace.progress.position().released
        n_rows = sum(1 + last - first for _, first, _, _, last, _, _ in _all(numbers))
        if n_rows + n_removed != released and not (faults.n_missing or faults.doubled):
            removed = f" and `retention` has removed {n_removed:,}," if n_removed else ""
            sentence = f"it has {n_rows:,} released events,{removed} and `watermarks` counts {released:,}"
            yield wrong_rows(workspace, table, sentence)


def _misplaced(
    workspace: Workspace, misplaced: Sequence[tuple[int, int]], timelines: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Return the ones of misplaced numbers that are not the first of their timeline after a flush.

    What comes to a log that is reopened may be earlier than what the flush has released.
    """
    flushes = [place for place in checkpoints_of(workspace) if place.position.final] if misplaced else []
    firsts = set[tuple[int, int]]()
    for flush in flushes:
        if not has_state(workspace, flush):
            return []
        state = state_at(workspace, flush)
        numbers = zip(state[c.TIMELINE].to_pylist(), state[RELEASED].to_pylist(), strict=True)
        firsts |= {(timelines[name], released) for name, released in numbers if name in timelines}
    return [number for number in misplaced if number not in firsts]


def _all(numbers: Sequences) -> Iterator[list[int]]:
    return (run for runs in numbers.runs for run in runs.T.tolist())
