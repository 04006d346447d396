"""The log of batches: plan, outputs, checks, commit. It turns writes to several Delta tables into one batch.

Here: who may work on which batch, and what is committed. Not here: the outputs (see resources/delta/lake.py), what
the tables may hold (resources/delta/undoing.py), and the checks.

A row is written only if the table is still at the version on which the decision was made; otherwise the decision is
made again. So of two runs that begin at once exactly one wins, and a run that was taken for dead cannot commit. A
batch has a plan row; heartbeat rows when it takes long; a release row when its run gave it up; and at last a commit
row, which names the version of every table: readers open the tables at these. Each plan is an attempt, numbered over
the life of the pipeline. The latest attempt is in force; it supersedes earlier attempts that have no commit.

A rebuild commits the batches that it made together with itself. They supersede the batches that judged the log
before, and everything made from these.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from tidemark.resources.batches.plans import (
    BatchEvent,
    BatchKind,
    BatchOwner,
    Commit,
    Plan,
    RebuildInput,
    Row,
    commit_from,
    counted_commits,
    is_gone,
    plan_from,
    row_of,
)
from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.versions import Filters
from tidemark.resources.places.checks import ensure_put_if_absent
from tidemark.resources.settings import Clock
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, FORMAT_VERSION
from tidemark.timeops.errors import BusyError, FencedError, LakeError

HEARTBEAT = timedelta(seconds=30)
_COMMITTED = ("committed", "accepted")
_OF_RESULTS = ("process", "backfill", "change", "retention")
"""Kinds of batches that a rebuild supersedes."""
_COMPACT_EVERY = 8  # each batch leaves a few files of one row, and every look opens them all
_TRIES = 50
_KEPT_ATTEMPTS = 4  # of the run's own batches and the last commits, whose rows are asked for again and again


@dataclass(frozen=True)
class _View:
    """The rows of the table as of one version."""

    version: int
    attempt: int
    last: Commit | None
    pending: Plan | None


@dataclass(frozen=True)
class _LogRows:
    """The rows of one version of the table, as far as they were read or written here.

    `index` has the columns that rows are looked up by, `rows` all rows of some attempts. `rebuilt` is the last
    rebuild of all tables, if there was one. `newest` has the last commit of each kind that was asked for, None for
    any kind: a batch asks two hundred times.
    """

    version: int
    index: pa.Table
    rows: Mapping[int, list[Row]]
    rebuilt: Plan | None
    newest: dict[BatchKind | None, Commit | None] = field(default_factory=dict)

    def then(self, version: int, written: pa.Table) -> "_LogRows":
        """Return the rows of the next version, which adds rows of one attempt."""
        attempt = written["attempt"][0].as_py()
        rows = dict(sorted(self.rows.items())[-_KEPT_ATTEMPTS:])
        # An attempt whose earlier rows are not here is read whole when it is asked for.
        if attempt in rows or not pc.any(pc.equal(self.index["attempt"], attempt)).as_py():
            rows[attempt] = [*rows.get(attempt, []), *written.to_pylist()]
        index = pa.concat_tables([self.index, written.select(self.index.column_names)]).combine_chunks()
        return _LogRows(version, index, rows, self.rebuilt)

    def committed(self, kind: BatchKind | None) -> pa.Table:
        """Return the index of the commits in force, optionally of one kind."""
        commits = self.index.filter(pc.is_in(self.index["state"], value_set=pa.array(_COMMITTED)))
        if self.rebuilt is not None:
            number = pc.field("_batch_id")
            counts = (number > self.rebuilt.batch_id) | ~pc.field("kind").isin(_OF_RESULTS)
            for first, last in RebuildInput.of(self.rebuilt).numbers:
                counts |= (number >= first) & (number <= last)
            commits = commits.filter(counts)
        return commits if kind is None else commits.filter(pc.equal(commits["kind"], kind))


class BatchMemory:
    """The last rows read from the table: a version never changes, and every stage asks for it again."""

    def __init__(self) -> None:
        self.log_rows: _LogRows | None = None


def unwatched(_event: BatchEvent) -> None:
    """Do nothing, as no program watches the log of batches."""


class BatchLog:
    """The table `batches` of a pipeline, with the rows of it that other stages have read already."""

    def __init__(
        self, lake: Lake, memory: BatchMemory | None = None, watch: Callable[[BatchEvent], None] = unwatched
    ) -> None:
        self._lake, self._memory, self._watch = lake, memory or BatchMemory(), watch

    @property
    def exists(self) -> bool:
        """Return whether the table has been made."""
        return self._memory.log_rows is not None or self._lake.exists(BATCHES)

    @contextmanager
    def as_of_now(self) -> Iterator[None]:
        """Answer every question of the block from one look at its beginning: in a store, each look is a request.

        If another process commits in the meantime, the next write notices it and is refused.
        """
        if self.exists and not self._lake.opened.is_settled:
            self._lake.opened.newest(BATCHES)
        with self._lake.settled():
            yield

    def last_commit(self, kind: BatchKind | None = None) -> Commit | None:
        """Return the latest commit in force, optionally of one kind; None before the first."""
        return self._last(self._log_rows(), kind)

    def commit_of(self, batch_id: int) -> Commit | None:
        """Return the commit of a batch, None if it has none."""
        rows = self._lake.rows(BATCHES, filters=[("_batch_id", "=", batch_id), ("state", "in", list(_COMMITTED))])
        return commit_from(rows.to_pylist()[0]) if rows.num_rows else None

    def pending(self, kind: BatchKind | None = None) -> Plan | None:
        """Return the plan in force that is not committed, optionally of one kind; None if there is none."""
        plan = self._look().pending
        return plan if plan is not None and kind in (None, plan.kind) else None

    def newest_attempt(self) -> int:
        """Return the number of the newest attempt, 0 before the first."""
        return self._look().attempt

    def history(self, kind: BatchKind | None = None, *, after_batch: int = -1) -> list[Commit]:
        """Return the commits in force by batch, optionally of one kind and after a batch."""
        in_force = set(self._log_rows().committed(kind)["_batch_id"].to_pylist())
        return [commit for commit in self.every_commit(after_batch=after_batch) if commit.batch_id in in_force]

    def has_any(self, kind: BatchKind) -> bool:
        """Return whether a batch of a kind was committed; only the index is read."""
        return len(self._log_rows().committed(kind)) > 0

    def last_rebuild(self) -> Plan | None:
        """Return the last rebuild of all tables, None if there was none."""
        return self._log_rows().rebuilt

    def counted(self) -> list[Commit]:
        """Return the commits whose counts add up to what the tables hold, by batch."""
        return counted_commits(self.history())

    def every_commit(self, *, after_batch: int = -1) -> list[Commit]:
        """Return all commits after a batch, by batch, including commits that a rebuild has superseded."""
        rows = self._lake.rows(BATCHES, filters=[("_batch_id", ">", after_batch), ("state", "in", list(_COMMITTED))])
        return [commit_from(row) for row in rows.sort_by("_batch_id").to_pylist()]

    def base_versions(self, tables: Iterable[str]) -> dict[str, int]:
        """Return the version of each table as of the last commit; 0, the empty table, if the commit lacks it."""
        last = self.last_commit()
        committed = last.table_versions if last else {}
        return {table: committed.get(table, 0) for table in tables}

    def begin(
        self,
        kind: BatchKind,
        owner: BatchOwner,
        now: datetime,
        *,
        last_batch: int | None,
        first_seq: int,
        end_seq: int | None,
        input: Mapping[str, Any],  # noqa: A002 - the name of the column
        fingerprint: str,
        number: int | None = None,
    ) -> Plan:
        """Take on the next batch, or take over the pending one.

        A pending plan is taken over if its owner is gone, has released it, or is this process. To retry it unchanged,
        plan what `pending` returns again. Then `prepare` the tables before anything is written.

        The batch reads the range of the log from `first_seq` to `end_seq`, see `Plan`; `last_batch` is the number of
        the last committed batch when the plan was made, None before the first. By default `number` is the next one.

        Raises:
            BusyError: Another run is at work, or has committed a batch since; nothing was changed.
            LakeError: The tables are in a store that would let two runs write the same commit.
        """
        ensure_put_if_absent(self._lake.root.parent)

        abandoned: Plan | None = None

        def decide(view: _View) -> Row:
            nonlocal abandoned
            _refuse_if_busy(view, owner, now, last_batch)
            abandoned = view.pending
            batch_id = next_number(view.last) if number is None else number
            attempt = view.attempt + 1
            plan = Plan(batch_id, kind, attempt, owner, now, now, first_seq, end_seq, input, fingerprint, False)
            return row_of(plan, "planned")

        row = self._write(decide)
        assert row is not None  # a plan is written or an error raised
        plan = plan_from([row])
        if abandoned is not None and not abandoned.released:  # otherwise its end was seen
            self._watch(BatchEvent(abandoned, ended=True))
        self._watch(BatchEvent(plan))
        return plan

    def commit(
        self,
        plan: Plan,
        counts: Mapping[str, int],
        table_versions: Mapping[str, int],
        now: datetime,
        *,
        reason: str | None = None,
        end_seq: int | None = None,
        made: Iterable[Commit] = (),
        dropped: Collection[str] = (),
    ) -> Commit:
        """Commit a batch: from now on readers see its outputs. Repeated, it changes nothing.

        Args:
            plan: The plan that `begin` returned.
            counts: Counts of every outcome.
            table_versions: Version of each table as of this batch; other tables keep the version of the last commit.
            now: The present instant.
            reason: Why an operator accepts the batch although a blocking check failed.
            end_seq: End of the batch's range of the log, where the plan did not know it.
            made: Batches that a rebuild has made, committed at the same moment; the last of them left the tables as
                they are.
            dropped: Tables that the pipeline no longer has.

        Raises:
            FencedError: Another run has taken the batch over.
        """
        earlier_versions: Mapping[str, int] = {}

        def decide(view: _View) -> Row | None:
            nonlocal earlier_versions
            if view.last and view.last.plan.attempt == plan.attempt:
                return None
            if view.pending is None or view.pending.attempt != plan.attempt:
                _fenced(plan, view)
            row = row_of(plan, "committed" if reason is None else "accepted")
            earlier_versions = view.last.table_versions if view.last else {}
            versions = {**earlier_versions, **table_versions}
            versions = {table: version for table, version in versions.items() if table not in dropped}
            row |= {"committed_at": now, "counts": dict(counts), "table_versions": versions, "reason": reason}
            if of_rebuild:
                of_rebuild[-1]["table_versions"] = versions
            return row | {"end_seq": plan.end_seq if end_seq is None else end_seq}

        of_rebuild = [_made_by(commit, plan) for commit in made]
        row = self._write(decide, of_rebuild)
        if row is not None and plan.batch_id % _COMPACT_EVERY == _COMPACT_EVERY - 1:
            self._lake.compact(BATCHES)
        commit = self.commit_of(plan.batch_id) if row is None else commit_from(row)
        assert commit is not None  # written just now, or found
        if row is not None:
            self._watch(BatchEvent(plan, commit, earlier_versions))
        return commit

    def release(self, plan: Plan, now: datetime, why: str = "") -> None:
        """Release a batch after a failure, so that the next run may take it over at once; `why` is for who watches.

        Do nothing if that was done already, or if another run has the batch.
        """

        def decide(view: _View) -> Row | None:
            if view.pending is None or view.pending.attempt != plan.attempt or view.pending.released:
                return None
            # The clock may have been set back since the last sign: the newest one decides whether the batch is free.
            return row_of(plan, "released") | {"heartbeat_at": max(now, view.pending.heartbeat_at)}

        if self._write(decide) is not None:
            self._watch(BatchEvent(plan, ended=True, why=why))

    def give_up(self, plan: Plan, now: datetime, why: str = "") -> None:
        """Release a batch if that can be written; otherwise it is free once this process is gone."""
        with suppress(DeltaError, OSError):
            self.release(plan, now, why)

    def heartbeat(self, plan: Plan, now: datetime) -> None:
        """Record that the owner of a batch is alive.

        Raises:
            FencedError: Another run has taken the batch over.
        """

        def decide(view: _View) -> Row:
            if view.pending is None or view.pending.attempt != plan.attempt:
                _fenced(plan, view)
            return row_of(plan, "heartbeat") | {"heartbeat_at": now}

        self._write(decide)

    def hand_over(self, plan: Plan, owner: BatchOwner, now: datetime) -> Plan:
        """Assign a batch to another run, which continues the same attempt where a run that has ended left it.

        Raises:
            FencedError: Another run has taken the batch over.
        """
        latest = max(now, plan.heartbeat_at + timedelta(microseconds=1))  # clocks of two machines may differ
        new = replace(plan, owner=owner, heartbeat_at=latest, released=False)
        self.heartbeat(new, latest)
        return new

    @contextmanager
    def keeping_lease(self, plan: Plan, clock: Clock, every: timedelta = HEARTBEAT) -> Iterator[None]:
        """Send heartbeats from another thread while the block runs. The commit notices if the batch was lost.

        Inside the block the tables are not checked for writes of other processes, see `Opened.settled`.
        """
        is_over = threading.Event()

        def beat() -> None:
            while not is_over.wait(every.total_seconds()):
                try:
                    self.heartbeat(plan, clock.now())
                except FencedError:
                    return
                except (LakeError, DeltaError, OSError):
                    continue  # the lease outlasts many heartbeats

        # A daemon: the lease must not keep a process alive whose work has ended.
        thread = threading.Thread(target=beat, name=f"lease of batch {plan.batch_id}", daemon=True)
        thread.start()
        try:
            with self._lake.settled():
                yield
        finally:
            is_over.set()
            thread.join()

    def _write(self, decide: Callable[[_View], Row | None], other_rows: Sequence[Row] = ()) -> Row | None:
        """Write the chosen row if the table is at the version of the choice; otherwise choose again.

        The other rows are written in the same commit.
        """
        for _ in range(_TRIES):
            view = self._look()
            row = decide(view)
            if row is None:
                return None
            rows = pa.Table.from_pylist([*other_rows, row], schema=BATCHES_SCHEMA)
            try:
                written = self._lake.append_rows(BATCHES, rows, expect=view.version)
            except ConflictError:
                continue
            log_rows = self._memory.log_rows
            # After a rebuild other commits are in force: then the rows are read again.
            if log_rows is not None and log_rows.version == view.version and row["kind"] != "rebuild":
                self._memory.log_rows = log_rows.then(written.version, rows)
            return row
        raise BusyError(
            f"{self._lake.path(BATCHES)} was changed by others during each of {_TRIES} attempts to write it.",
            expected="one run at a time",
            remedy="Check which runs are at work on this pipeline, and run again.",
        )

    def _look(self) -> _View:
        log_rows = self._log_rows()
        version, index = log_rows.version, log_rows.index
        attempt = pc.max(index["attempt"]).as_py() or 0
        last = self._last(log_rows, None)
        if attempt == (last.plan.attempt if last else 0):
            return _View(version, attempt, last, None)  # the newest attempt is the committed one
        return _View(version, attempt, last, plan_from(self._rows_of(version, attempt)))

    def _log_rows(self) -> _LogRows:
        version, log_rows = self._lake.version(BATCHES), self._memory.log_rows
        if log_rows is None or log_rows.version != version:
            index = self._read_index(version)
            log_rows = self._memory.log_rows = _LogRows(version, index, {}, self._last_rebuild(version, index))
        return log_rows

    def _last_rebuild(self, version: int, index: pa.Table) -> Plan | None:
        """Return the plan of the last rebuild that switched all tables."""
        # Most pipelines have none, and no row has to be read to know it.
        of_kind = index.filter(pc.equal(index["kind"], "rebuild"))
        if not pc.any(pc.is_in(of_kind["state"], value_set=pa.array(_COMMITTED))).as_py():
            return None
        filters: Filters = [("kind", "=", "rebuild"), ("state", "in", list(_COMMITTED))]
        rows = self._lake.rows(BATCHES, version, filters=filters).sort_by("_batch_id").to_pylist()
        plans = [plan_from([row]) for row in rows]
        return next((plan for plan in reversed(plans) if RebuildInput.of(plan).numbers), None)

    def _read_index(self, version: int) -> pa.Table:
        """Check the format of the table, and return the columns that rows are looked up by."""
        columns = ["_batch_id", "attempt", "kind", "state", "format_version"]
        index = self._lake.rows(BATCHES, version, columns=columns)
        newest = pc.max(index["format_version"]).as_py() or 0
        if newest > FORMAT_VERSION:
            raise LakeError(
                f"{self._lake.root} was written by a newer Tidemark: its tables have format {newest}.",
                expected=f"format {FORMAT_VERSION} or lower",
                remedy="Run it with that version, or use another warehouse with this one.",
            )
        return index

    def _last(self, log_rows: _LogRows, kind: BatchKind | None) -> Commit | None:
        if kind not in log_rows.newest:
            log_rows.newest[kind] = self._newest(log_rows, kind)
        return log_rows.newest[kind]

    def _newest(self, log_rows: _LogRows, kind: BatchKind | None) -> Commit | None:
        commits = log_rows.committed(kind)
        if not commits.num_rows:
            return None
        newest = commits.slice(pc.index(commits["_batch_id"], pc.max(commits["_batch_id"])).as_py(), 1).to_pylist()[0]
        rows = self._rows_of(log_rows.version, newest["attempt"])
        number = newest["_batch_id"]
        # A rebuild and the batches that it made have one attempt.
        return next(commit_from(row) for row in rows if row["state"] in _COMMITTED and row["_batch_id"] == number)

    def _rows_of(self, version: int, attempt: int) -> list[Row]:
        log_rows = self._memory.log_rows
        if log_rows is not None and log_rows.version == version and attempt in log_rows.rows:
            return log_rows.rows[attempt]
        rows: list[Row] = self._lake.rows(BATCHES, version, filters=[("attempt", "=", attempt)]).to_pylist()
        if log_rows is not None and log_rows.version == version:
            self._memory.log_rows = replace(log_rows, rows={**log_rows.rows, attempt: rows})
        return rows


def next_number(last: Commit | None) -> int:
    """Return the number of the batch after a commit, which may have reserved numbers for a rebuild."""
    return last.batch_id + 1 + RebuildInput.of(last.plan).reserves if last else 0


def _made_by(commit: Commit, plan: Plan) -> Row:
    """Return the row of a batch that a rebuild has made; readers cannot go back to it."""
    row = row_of(commit.plan, "committed") | {"attempt": plan.attempt, "committed_at": commit.committed_at}
    return row | {"counts": dict(commit.counts), "table_versions": {}, "reason": None}


def _refuse_if_busy(view: _View, owner: BatchOwner, now: datetime, last_batch: int | None) -> None:
    pending = view.pending
    if pending and not (
        pending.released or pending.owner.id == owner.id or is_gone(pending.owner, pending.heartbeat_at, now)
    ):
        raise BusyError(
            f"Another run is at work: {pending.owner} has had batch {pending.batch_id} ({pending.kind}) "
            f"since {pending.planned_at:%Y-%m-%d %H:%M:%S} UTC. Nothing was changed.",
            remedy="Wait until it is done, or stop that process; then run again.",
        )
    last = view.last.batch_id if view.last else None
    if last != last_batch:
        raise BusyError(
            f"Another run has committed batch {last} in the meantime. Nothing was changed.",
            expected="no commit" if last_batch is None else f"batch {last_batch} to be the last commit",
            remedy="Run again.",
        )


def _fenced(plan: Plan, view: _View) -> NoReturn:
    other = view.pending or (view.last.plan if view.last else None)
    raise FencedError(
        f"Batch {plan.batch_id} is no longer this run's (attempt {plan.attempt})"
        + (f": attempt {other.attempt} of {other.owner} took it over." if other else "."),
        expected="no other run that considers this one dead",
        remedy="Nothing of this attempt was committed, and nothing is lost. Run again.",
    )
