"""Planning a batch: its segment of the log, taking it on, keeping it, giving it up.

Here: the moves around one batch. Not here: the protocol itself (resources/batches/batch_log.py), what is judged of it
(assets/batch.py).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.resources.batches.plans import BatchInput, BatchKind, Commit, Plan, process_of
from tidemark.resources.batches.position import plan_end, waits_in
from tidemark.resources.sources.reference import ReferenceTable
from tidemark.resources.workspace import Workspace
from tidemark.timeops.calendar.zones import java_release, zones_of
from tidemark.timeops.errors import LakeError
from tidemark.timeops.rules.time_rules import Waiter, waiters_to_json
from tidemark.timeops.spec.window import root_of

MOST_IN_A_BATCH = 25_000_000
"""A longer backlog is cut into batches: each core is sent a number for every block of a batch's records, and of these
there are then at most about a million."""


@dataclass(frozen=True)
class LogSegment:
    """A range of the log to process, and the tick or the end of input after it.

    Attributes:
        first_seq: First `_arrival_seq`.
        end_seq: End of the range, exclusive.
        flushes: The end of input is flushed after it.
        tick_us: Clock of the tick after it, microseconds; None for no tick.
        reopens: Why the flushed pipeline is reopened before it; None if it is not.
        waits: The sources and splits that wait for others while it is read (F, alignment).
        tables: The versions of the tables on the right side of joins, by the join; as far as the log says them.
        after: The last commit when it was chosen: a batch that another run commits meanwhile may process it, too.
    """

    first_seq: int
    end_seq: int
    flushes: bool
    tick_us: int | None = None
    reopens: str | None = None
    waits: frozenset[Waiter] = frozenset()
    tables: Mapping[str, str] = field(default_factory=dict, hash=False)
    after: Commit | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """The number of its records."""
        return self.end_seq - self.first_seq

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to do."""
        return self.first_seq == self.end_seq and not self.flushes and self.tick_us is None


def begin(
    workspace: Workspace,
    run_id: str,
    kind: BatchKind,
    batch_input: Mapping[str, Any],
    *,
    after: Commit | None,
    seqs: tuple[int, int | None],
    fingerprint: str | None = None,
    number: int | None = None,
) -> Plan:
    """Take on a batch, as `BatchLog.begin` does; by default the fingerprint is that of the spec.

    `seqs` are the first `_arrival_seq` and the end, None where only the ingestion will know it.
    """
    return workspace.batches.begin(
        kind,
        process_of(workspace.process(), run_id),
        workspace.clock.now(),
        last_batch=after.batch_id if after else None,
        first_seq=seqs[0],
        end_seq=seqs[1],
        input=batch_input,
        fingerprint=fingerprint or workspace.spec.fingerprint(),
        number=number,
    )


@contextmanager
def at_work(workspace: Workspace, plan: Plan) -> Iterator[None]:
    """Keep the lease of a batch while the block runs, and release the batch if the block fails."""
    try:
        with workspace.batches.keeping_lease(plan, workspace.clock):
            yield
    except BaseException as error:  # a stopped run, too: this process may live on
        why = str(error) if isinstance(error, Exception) else ""
        workspace.batches.give_up(plan, workspace.clock.now(), why)
        raise


def zone_data(workspace: Workspace) -> dict[str, str]:
    """Return what a plan says of the rules that its batch is computed by; nothing where all is in UTC."""
    return {"zone_data": java_release(workspace.spark)} if zones_of(workspace.spec) else {}


def next_segment(
    workspace: Workspace,
    max_events: int | None,
    *,
    flush: bool,
    tick_us: int | None = None,
    reopen: str | None = None,
) -> LogSegment:
    """Return what the next batch processes: the segment that a failed batch left, else what follows the last one.

    Args:
        workspace: The pipeline.
        max_events: The most records in one batch; by default, and at most, MOST_IN_A_BATCH.
        flush: Flush after the last record of the log.
        tick_us: Clock of a tick to add after the last record of the log, microseconds; None for no tick.
        reopen: Why a flushed pipeline takes new records again; None if it does not.

    Raises:
        LakeError: The pipeline was flushed and new records came since; or it is open, and should be reopened.
    """
    with workspace.batches.as_of_now():
        pending, progress = workspace.batches.pending("process"), workspace.progress
        last_commit = workspace.batches.last_commit()
        if pending is not None:
            return replace(segment_of(pending), after=last_commit)
        first, end, flushed = progress.processed_end(), progress.log_end(), progress.position().final
        if reopen is not None:
            _check_may_reopen(workspace, flushed=flushed)
        if flushed and end > first and reopen is None:
            if _has_new_records(workspace, first):
                raise flushed_already(workspace)
            return LogSegment(first, first, flushes=False, after=last_commit)
        why = reopen if end > first else None
        most = min(max_events or MOST_IN_A_BATCH, MOST_IN_A_BATCH)
        read = workspace.batches.last_commit("ingest")
        # An aligned batch has records of the latest ingestion only: these sources were left waiting.
        waits = workspace.named_now(waits_in(read.plan)) if read else frozenset[Waiter]()
        segment = LogSegment(
            first, min(first + most, end), flushes=False, reopens=why, waits=waits, after=last_commit
        )
        if segment.end_seq < end:
            return segment
        is_open = not flushed or why is not None
        if flush or not is_open:
            return replace(segment, flushes=flush and is_open and end > 0)
        return replace(segment, tick_us=tick_us)


def input_of(workspace: Workspace, segment: LogSegment, replayed: int | None = None) -> Mapping[str, Any]:
    """Return what the plan of a processing batch stores of its segment; `segment_of` reads it."""
    flush, waits, zones = segment.flushes, waiters_to_json(segment.waits), zone_data(workspace)
    versions = _table_versions(workspace, segment)
    batch_input = BatchInput(
        flush, segment.tick_us, segment.reopens, waits, **zones, replayed=replayed, tables=versions
    )
    return batch_input.to_json()


def _table_versions(workspace: Workspace, segment: LogSegment) -> Mapping[str, str]:
    """Return the version of each table on the right side of a join for a batch that is planned now.

    It is the one that the table has; where the log is judged again, the one that the log says.
    """
    of_log = segment.tables if workspace.log_of is not None else {}
    joins = [join for join in workspace.spec.joins if join.has_table]
    return {
        join.name: of_log.get(join.name) or ReferenceTable(join, workspace.file.folder).version() for join in joins
    }


def segment_of(plan: Plan) -> LogSegment:
    """Return the segment that a processing batch processes."""
    batch_input = BatchInput.of(plan)
    return LogSegment(
        *(plan.first_seq, plan_end(plan), batch_input.flush, batch_input.tick_us, batch_input.reopen),
        waits_in(plan),
        batch_input.tables,
    )


def _has_new_records(workspace: Workspace, first_seq: int) -> bool:
    """Return whether records came that do not just take the places of others."""
    reads = [commit for commit in workspace.batches.history("ingest") if commit.plan.first_seq >= first_seq]
    return any(commit.counts.records > commit.counts.taken for commit in reads)


def _check_may_reopen(workspace: Workspace, *, flushed: bool) -> None:
    if not flushed:
        raise not_flushed(workspace)
    for window in workspace.spec.windows:
        if window.may_take_back:
            raise LakeError(
                f"Pipeline {workspace.spec.name} cannot be reopened: {window.name} is a session window that revises "
                "its results, and what it had given before the flush is not remembered.",
                expected="no session window with `emit: on_time` or `emit: {early: …}`",
                remedy="process the new input in another warehouse, or under another pipeline name",
            )
    for window in workspace.spec.chained_windows:
        if root_of(window, workspace.spec.windows) is not None:
            raise LakeError(
                f"Pipeline {workspace.spec.name} cannot be reopened: {window.name} goes over the rows of a join, and "
                "later rows may be of windows that the flush has closed.",
                expected="no window over the rows of a join",
                remedy="process the new input in another warehouse, or under another pipeline name",
            )
        if window.is_linked:
            raise LakeError(
                f"Pipeline {workspace.spec.name} cannot be reopened: {window.name} is a {window.kind} window over "
                "the results of another, and what a flush closed there is not remembered yet.",
                expected="no session or sliding window over results",
                remedy="process the new input in another warehouse, or under another pipeline name",
            )


def flushed_already(workspace: Workspace) -> LakeError:
    """Return the error of a pipeline that has more input after its end of input was flushed."""
    return LakeError(
        f"Pipeline {workspace.spec.name} was flushed at the end of its input, and new input has come since.",
        expected="no more input: a flush releases every event and closes every window",
        remedy='continue where it was with `tidemark run SPEC --reopen "why"`: what the flush closed stays closed. '
        "Without `end_of_input: flush` a pipeline stays open",
    )


def not_flushed(workspace: Workspace) -> LakeError:
    """Return the error of a pipeline that should be reopened and is open."""
    return LakeError(
        f"Pipeline {workspace.spec.name} should be reopened, and its end of input is not flushed.",
        expected="a flush after the last record that was processed",
        remedy="leave `--reopen` (in Dagster `reopen`) out",
    )


def take_on(workspace: Workspace, segment: LogSegment, run_id: str) -> Plan:
    """Plan a processing batch and undo what an earlier attempt at it has written.

    Raises:
        BusyError: Another run is at work, or has committed a batch since the segment was chosen.
    """
    seqs = (segment.first_seq, segment.end_seq)
    plan = begin(workspace, run_id, "process", input_of(workspace, segment), after=segment.after, seqs=seqs)
    with workspace.batches.keeping_lease(plan, workspace.clock):
        workspace.prepare(plan)
    return plan


def batch_of(workspace: Workspace, run_id: str) -> Plan | None:
    """Return the processing batch that this run has taken on, None if it has none."""
    pending = workspace.batches.pending("process")
    return pending if pending is not None and pending.owner.id == run_id else None
