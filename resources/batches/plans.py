"""A batch as rows of the table `batches`: its plan, its owner, its commit.

Here: plans, commits and owners, the rows that hold them, and whether an owner's process is still alive. Not here:
writing these rows (batch_log.py).
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Literal

from tidemark.resources.tables import FORMAT_VERSION

LEASE = timedelta(minutes=10)
"""How long the owner on another host counts as alive after its last heartbeat."""


@dataclass(frozen=True)
class Owner:
    """The process that works on a batch.

    Args:
        id: Random name of the run, so that two runs are never taken for one.
        host: Name of the machine.
        pid: Process number on that machine.
        started: When the process began, in clock ticks since the machine started. It distinguishes a process from a
            later one with the same number. None if the system does not say.
    """

    id: str
    host: str
    pid: int
    started: int | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def text(self) -> str:
        """All fields but the id in one line, for `owner_in`."""
        return f"{self.host}:{self.pid}:{'' if self.started is None else self.started}"


def owner_in(text: str, owner_id: str) -> Owner | None:
    """Return the owner that a text of `Owner.text` describes, None if it describes none."""
    host, _, numbers = text.partition(":")
    pid, _, started = numbers.partition(":")
    if not pid.isdecimal() or not (started.isdecimal() or not started):
        return None
    return Owner(owner_id, host, int(pid), int(started) if started else None)


def this_process(owner_id: str) -> Owner:
    """Return this process as the owner with the given random name."""
    return process_of(os.getpid(), owner_id)


def process_of(pid: int, owner_id: str = "") -> Owner:
    """Return a process of this machine as an owner."""
    return Owner(owner_id, socket.gethostname(), pid, _start_of(pid))


def is_gone(owner: Owner, heartbeat_at: datetime, now: datetime, lease: timedelta = LEASE) -> bool:
    """Return whether the owner of a batch has stopped working on it.

    On this host the process itself is looked up: it is gone if no process, or another one, has its number. A live
    process is never gone, however long it has been silent. Of another host only the heartbeat is known.

    Args:
        owner: The owner.
        heartbeat_at: Its last heartbeat.
        now: The present instant.
        lease: How long an owner elsewhere may be silent.
    """
    if owner.host != socket.gethostname():
        return now - heartbeat_at > lease
    if not _is_alive(owner.pid):
        return True
    return owner.started is not None and owner.started != _start_of(owner.pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, and belongs to another user
        return True
    fields = _stat(pid)
    return not fields or fields[0] not in "ZX"  # killed, but its parent has not noticed yet


def _start_of(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on (proc(5), field 3); none where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it is in brackets and may hold anything


Kind = Literal["ingest", "process", "backfill", "change", "rebuild"]
Row = dict[str, Any]

RESERVES = "reserves"
"""Of the input of a rebuild's plan: how many numbers after its own are reserved for the batches that it makes."""
NUMBERS = "numbers"
"""Of it too, when the tables were switched: first and last of the numbers of batches that the rebuild made."""
WINDOWS = "windows"
"""Of it too: the windows that it made anew, if these are not all tables."""
RENAMED, DROPPED = "renamed", "dropped"
"""Of the input of a batch of this kind that makes nothing anew: renamed windows, the old names by the new ones;
windows whose tables are deleted."""
RENAMED_SOURCES = "renamed_sources"
"""Of it too: sources that have new names, the old ones by these."""
REPLAYED = "replayed"
"""Of the input of a batch that a rebuild made: how many control items of the log it and earlier ones replayed."""


@dataclass(frozen=True)
class Plan:
    """A batch that a run has taken on.

    Args:
        batch_id: Number of the batch; committed ones are 0, 1, 2, ...
        kind: What the batch does.
        attempt: Number of this plan over the life of the pipeline, from 1; written into every output.
        owner: The process that works on it.
        planned_at: When the plan was made.
        heartbeat_at: The last heartbeat of its owner.
        first_seq: First `_arrival_seq` of its range of the log.
        end_seq: End of that range, exclusive; None while an ingestion does not know it yet.
        input: All else that it reads: files and line ranges of an ingestion, days of a backfill, windows of a
            rebuild.
        fingerprint: Fingerprint of the spec.
        released: Its owner gave it up, so the next run may take it over at once.
    """

    batch_id: int
    kind: Kind
    attempt: int
    owner: Owner
    planned_at: datetime
    heartbeat_at: datetime
    first_seq: int
    end_seq: int | None
    input: Mapping[str, Any]
    fingerprint: str
    released: bool

    @property
    def is_replayed(self) -> bool:
        """Return whether a rebuild made the batch: its records were judged before."""
        return REPLAYED in self.input

    def is_left(self, now: datetime) -> bool:
        """Return whether its owner has stopped working on it."""
        return self.released or is_gone(self.owner, self.heartbeat_at, now)


@dataclass(frozen=True)
class Commit:
    """A batch that is done: its plan, its counts, and the version of every table as of it.

    Args:
        plan: The plan that was carried out, with the end of its range filled in.
        committed_at: When it was committed.
        counts: Counts of every outcome.
        table_versions: Delta version of every table as of this batch.
        reason: Why an operator accepted it although a blocking check had failed; None otherwise.
    """

    plan: Plan
    committed_at: datetime
    counts: Mapping[str, int]
    table_versions: Mapping[str, int]
    reason: str | None

    @property
    def batch_id(self) -> int:
        """Number of the batch."""
        return self.plan.batch_id


def counted(commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits in force whose counts add up to what the tables hold.

    A rebuild of some windows counts how much they differ from what earlier batches counted.
    """
    whole = max((one.batch_id for one in commits if NUMBERS in one.plan.input), default=-1)
    return [
        one for one in commits if one.plan.kind == "process" or (WINDOWS in one.plan.input and one.batch_id > whole)
    ]


def row_of(plan: Plan, state: str) -> Row:
    """Return the row of `batches` for a plan in a state."""
    return {
        "_batch_id": plan.batch_id,
        "kind": plan.kind,
        "state": state,
        "attempt": plan.attempt,
        "owner": plan.owner.id,
        "host": plan.owner.host,
        "pid": plan.owner.pid,
        "started": plan.owner.started,
        "heartbeat_at": plan.heartbeat_at,
        "planned_at": plan.planned_at,
        "first_seq": plan.first_seq,
        "end_seq": plan.end_seq,
        "input": json.dumps(plan.input, ensure_ascii=False, separators=(",", ":")),
        "spec_fingerprint": plan.fingerprint,
        "tidemark_version": installed_version("tidemark"),
        "format_version": FORMAT_VERSION,
    }


def plan_of(rows: list[Row]) -> Plan:
    """Return the plan that the rows of one attempt hold."""
    row = rows[0]
    return Plan(
        batch_id=row["_batch_id"],
        kind=row["kind"],
        attempt=row["attempt"],
        owner=Owner(row["owner"], row["host"], row["pid"], row["started"]),
        planned_at=row["planned_at"],
        heartbeat_at=max(row["heartbeat_at"] for row in rows),
        first_seq=row["first_seq"],
        end_seq=row["end_seq"],
        input=json.loads(row["input"]),
        fingerprint=row["spec_fingerprint"],
        released=any(row["state"] == "released" for row in rows),
    )


def commit_from(row: Row) -> Commit:
    """Return the commit that a row holds."""
    return Commit(
        plan=plan_of([row]),
        committed_at=row["committed_at"],
        counts=dict(row["counts"]),
        table_versions=dict(row["table_versions"]),
        reason=row["reason"],
    )
