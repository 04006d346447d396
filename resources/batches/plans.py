"""A batch as rows of the table `batches`: its plan, its owner, its commit.

Here: plans with their inputs, commits with their counts, owners, the rows that hold them, and whether an owner's
process is still alive. Not here: writing these rows (resources/batches/batch_log.py).
"""

import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from importlib.metadata import version as installed_version
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from tidemark.resources.tables import FORMAT_VERSION
from tidemark.timeops.rules.reasons import OF_ACCEPTED, Reason

LEASE = timedelta(minutes=10)
"""How long the owner on another host counts as alive after its last heartbeat."""


@dataclass(frozen=True)
class BatchOwner:
    """The process that works on a batch.

    `id` is a random name of the run, so that two runs are never taken for one. `started` is when the process began,
    in clock ticks since the machine started: a later process may have the same number. None if the system does not
    say.
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


def owner_in(text: str, owner_id: str) -> BatchOwner | None:
    """Return the owner that a text of `BatchOwner.text` describes, None if it describes none."""
    host, _, numbers = text.partition(":")
    pid, _, started = numbers.partition(":")
    if not pid.isdecimal() or not (started.isdecimal() or not started):
        return None
    return BatchOwner(owner_id, host, int(pid), int(started) if started else None)


def this_process(owner_id: str) -> BatchOwner:
    """Return this process as the owner with the given random name."""
    return process_of(os.getpid(), owner_id)


def process_of(pid: int, owner_id: str = "") -> BatchOwner:
    """Return a process of this machine as an owner."""
    return BatchOwner(owner_id, socket.gethostname(), pid, _start_of(pid))


def is_gone(owner: BatchOwner, heartbeat_at: datetime, now: datetime) -> bool:
    """Return whether the owner of a batch has stopped working on it.

    On this host the process itself is looked up: it is gone if no process, or another one, has its number. A live
    process is never gone, however long it has been silent. Of another host only the last heartbeat is known.
    """
    if owner.host != socket.gethostname():
        return now - heartbeat_at > LEASE
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


BatchKind = Literal["ingest", "process", "backfill", "change", "rebuild", "retention"]
MENDED = "mended"
"""The `decision` in the input of a batch of kind `change` that follows when lost files of the log were read again."""
Row = dict[str, Any]


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
    kind: BatchKind
    attempt: int
    owner: BatchOwner
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
        return BatchInput.of(self).replayed is not None

    def is_left(self, now: datetime) -> bool:
        """Return whether its owner has stopped working on it."""
        return self.released or is_gone(self.owner, self.heartbeat_at, now)


@dataclass(frozen=True)
class _Input:
    """The input of a plan of some kind: its fields are the keys of the JSON text that `batches` stores."""

    always: ClassVar[Sequence[str]] = ()
    """The keys that are stored even if they say nothing."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the input of a plan; a key that is missing in it says nothing."""
        return cls(**{key.name: plan.input[key.name] for key in fields(cls) if key.name in plan.input})

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored, without keys that say nothing."""
        nothing, values = type(self)(), {key.name: getattr(self, key.name) for key in fields(self)}
        return {
            name: value for name, value in values.items() if name in self.always or value != getattr(nothing, name)
        }


@dataclass(frozen=True)
class IngestInput(_Input):
    """The input that an ingestion reads, and the input that it leaves; all but two by the name of a source.

    Attributes:
        files: Of each file that is read its path, the lines that were read before, and its bytes.
        spec_file: The spec file, from the folder of the pipeline's tables.
        versions: Of a Delta table its folder, and the first and the last version that are read.
        offsets: Of Kafka by split the first offset that is read, and the end.
        positions: Of Kafka the position after it.
        lost: Of Kafka the offsets that were gone before they were read.
        waits: The sources, and splits, that wait for others of their alignment group.
        held_back: The files that were found unreadable by reading them.
        unknown_columns: All columns that were met so far and that no schema names, with their types.
        first_met: The columns among them that this ingestion met first.
    """

    always: ClassVar[Sequence[str]] = ("files",)

    files: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    spec_file: str | None = None
    versions: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    offsets: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    lost: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    waits: Sequence[Any] = field(default_factory=list)
    held_back: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unknown_columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    first_met: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchInput(_Input):
    """The input of a processing batch beyond its range of the log.

    Attributes:
        flush: The end of input is flushed after it.
        tick_us: Clock of the tick after it, microseconds.
        reopen: Why the flushed pipeline is reopened before it.
        waits: The sources, and splits, that wait for others while it is judged.
        zone_data: The release of Java's rules of time zones, where the spec has zones.
        replayed: Of a batch that a rebuild made: how many control items of the log it and earlier ones replayed.
        tables: By join the version of the table on its right side, where there is one.
    """

    always: ClassVar[Sequence[str]] = ("flush",)

    flush: bool = False
    tick_us: int | None = None
    reopen: str | None = None
    waits: Sequence[Any] = field(default_factory=list)
    zone_data: str | None = None
    replayed: int | None = None
    tables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RebuildInput(_Input):
    """The input of a batch of kind `rebuild`, which begins or ends a rebuild, or renames or drops.

    Attributes:
        reserves: How many numbers after its own are reserved for the batches that the rebuild makes.
        rebuild: The identity of a rebuild that is begun.
        under: A digest of the spec that live runs go by when it is begun.
        numbers: When all tables are switched: first and last of the numbers of the batches that the rebuild made.
        windows: The windows that are rebuilt or renamed, if these are not all tables.
        lost_tables: When tables are switched: the tables that are created again in empty folders.
        clocks: The clocks of the log if records are excluded: counts of an ingestion, some of them by source.
        renamed: Renamed windows, the old names by the new ones.
        dropped: Windows whose tables are deleted.
        renamed_sources: Sources that have new names, the old ones by these.
        erased: The batches that have blanked payload, if this one deletes all older files that hold it.
    """

    reserves: int = 0
    rebuild: Mapping[str, Any] = field(default_factory=dict)
    under: str = ""
    numbers: Sequence[Sequence[int]] = field(default_factory=list)
    windows: Sequence[str] = field(default_factory=list)
    lost_tables: Sequence[str] | None = None
    clocks: Mapping[str, Any] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = field(default_factory=list)
    renamed_sources: Mapping[str, str] = field(default_factory=dict)
    erased: Sequence[int] = field(default_factory=list)

    @property
    def leaves_results(self) -> bool:
        """Return whether the batch is not part of what is rebuilt: it only deletes."""
        return bool(self.dropped or self.erased)


REFUSED_PREFIX = "refused."  # how the count of a reason begins
REPLAYED_PREFIX = "_replayed."
"""The same of records that a rule refuses and an operator has let in; no window has this name."""
REMOVED_PREFIX = "_removed."
"""How the counts of rows that `retention` has removed begin, before the name of a table, or of what counted them."""
REMOVED_RELEASES = f"{REMOVED_PREFIX}released"
"""Of the removed rows of `ordered_events` the ones with a `_release_seq`."""
REMOVED_OF_SOURCE = f"{REMOVED_PREFIX}raw_events/"
"""How the counts of removed records by source begin, before its name."""
LOG_CLOCK, FIRST_CLOCK = "clock_us", "first_clock_us"
"""Counts of an ingestion: the clock of the log after it, and at its first timed record."""
LAST_ARRIVAL, LAST_SEEN = "last_arrival_us", "last_seen_us"
"""Counts of an ingestion, with the name of a source after a dot: when its last record arrived, and when it was read
by the wall clock."""


class Counts(Mapping[str, int]):
    """The counts of a batch, or their sums over batches, by their names in `batches`.

    A name is of the batch (`accepted`), or of a reason, a window or a source: `refused.early`, `by_hour.in_gap`,
    `last_arrival_us.web`.
    """

    def __init__(self, numbers: Mapping[str, int] = MappingProxyType({})) -> None:
        self._numbers = dict(numbers)

    @classmethod
    def sum(cls, counts_of_batches: Iterable[Mapping[str, int]]) -> "Counts":
        """Return the sums of each count."""
        total: Counter[str] = Counter()
        for counts in counts_of_batches:
            total.update(counts)
        return cls(total)

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"Counts({self._numbers})"

    @property
    def records(self) -> int:
        """The records that were read, or judged."""
        return self.get("records", 0)

    @property
    def accepted(self) -> int:
        """The accepted events."""
        return self.get("accepted", 0)

    @property
    def ordered(self) -> int:
        """The rows of `ordered_events`: released in order, kept out of order, or let in by an operator."""
        return sum(self.get(name, 0) for name in ("released", "kept_out_of_order", "admitted"))

    @property
    def taken(self) -> int:
        """The records of an ingestion that replaced others."""
        return self.get("taken", 0)

    @property
    def refused(self) -> dict[str, int]:
        """The dead letters of the stages `ingest` and `time`, by reason, without the ones that were let in since."""
        return self._by_reason(REFUSED_PREFIX)

    @property
    def replayed(self) -> dict[str, int]:
        """The dead letters of all stages whose records an operator has let in, by reason."""
        return self._by_reason(REPLAYED_PREFIX)

    @property
    def removed_letters(self) -> int:
        """The dead letters that `retention` has removed, the ones of windows over windows left out."""
        return sum(n for name, n in self.items() if name.startswith(REMOVED_PREFIX) and _is_of_letters(name))

    def removed(self, name: str) -> int:
        """Return how many rows `retention` has removed of a table, or of what a count has this name for."""
        return self.get(f"{REMOVED_PREFIX}{name}", 0)

    def _by_reason(self, prefix: str) -> dict[str, int]:
        counts = {name.removeprefix(prefix): n for name, n in self.items() if name.startswith(prefix)}
        return {reason: n for reason, n in counts.items() if n}

    @property
    def windows(self) -> list[str]:
        """The windows and joins in the counts: also ones that the spec no longer has, whose dead letters stay."""
        of_records = f"{REFUSED_PREFIX}{Reason.BAD_EXPRESSION}"  # a reason of windows too
        names = [
            name for name in self if name != of_records and not name.startswith((REPLAYED_PREFIX, REMOVED_PREFIX))
        ]
        places = [name.rpartition(".") for name in names]
        return list(dict.fromkeys(of for of, _, what in places if of and what in OF_ACCEPTED))

    def of_windows(self, outcome: str, windows: Iterable[str]) -> dict[str, int]:
        """Return by window, or join, how many events had an outcome, such as `window_closed`, where there are any."""
        counts = {name: self.get(f"{name}.{outcome}", 0) for name in windows}
        return {name: n for name, n in counts.items() if n}

    def by_source(self, name: str) -> dict[str, int]:
        """Return a count of each source, such as LAST_ARRIVAL."""
        return {of.removeprefix(f"{name}."): n for of, n in self.items() if of.startswith(f"{name}.")}

    def dead_letters(self, windows: Iterable[str]) -> Counter[str]:
        """Return the dead letters of records in all stages, by reason."""
        letters, names = Counter(self.refused), tuple(windows)
        for reason in OF_ACCEPTED:
            letters[reason.value] += sum(self.of_windows(reason, names).values())
        return +letters


def _is_of_letters(name: str) -> bool:
    counted = name.removeprefix(REMOVED_PREFIX)
    return counted.startswith((REFUSED_PREFIX, REPLAYED_PREFIX)) or counted.rpartition(".")[2] in OF_ACCEPTED


@dataclass(frozen=True)
class Commit:
    """A batch that is done: its plan, its counts, and the version of every table as of it.

    The end of the plan's range is filled in. `reason` says why an operator accepted it although a blocking check had
    failed; None otherwise.
    """

    plan: Plan
    committed_at: datetime
    counts: Counts
    table_versions: Mapping[str, int]
    reason: str | None

    @property
    def batch_id(self) -> int:
        """Number of the batch."""
        return self.plan.batch_id

    @property
    def took(self) -> timedelta:
        """The time from its plan to its commit; nothing if the clock of the machine was set back meanwhile."""
        return max(self.committed_at - self.plan.planned_at, timedelta(0))


@dataclass(frozen=True)
class BatchEvent:
    """A moment in the life of an attempt at a batch, for programs that watch the log of batches.

    Attributes:
        plan: The plan of the attempt.
        commit: Its commit; None while it is at work, and if it ended without one.
        earlier_versions: The version of every table before the commit.
        ended: Whether the attempt ended without a commit.
        why: Why it did, in a sentence; empty if nothing says so.
    """

    plan: Plan
    commit: Commit | None = None
    earlier_versions: Mapping[str, int] = field(default_factory=dict)
    ended: bool = False
    why: str = ""


def counted_commits(commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits in force whose counts add up to what the tables hold.

    A rebuild of some windows counts how much they differ from what earlier batches counted, and `retention` what it
    has removed.
    """
    rebuilt = {commit.batch_id: RebuildInput.of(commit.plan) for commit in commits if commit.plan.kind == "rebuild"}
    last_full_rebuild = max((batch_id for batch_id, rebuild in rebuilt.items() if rebuild.numbers), default=-1)
    alone = {batch_id for batch_id, rebuild in rebuilt.items() if rebuild.windows and batch_id > last_full_rebuild}
    return [commit for commit in commits if commit.plan.kind in ("process", "retention") or commit.batch_id in alone]


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


def plan_from(rows: list[Row]) -> Plan:
    """Return the plan that the rows of one attempt hold.

    The owner is that of the last row: a run that is repeated from where it failed hands its batch over.
    """
    # Of one instant, the release came last.
    row = max(rows, key=lambda row: (row["heartbeat_at"], row["state"] == "released"))
    return Plan(
        batch_id=row["_batch_id"],
        kind=row["kind"],
        attempt=row["attempt"],
        owner=BatchOwner(row["owner"], row["host"], row["pid"], row["started"]),
        planned_at=row["planned_at"],
        heartbeat_at=row["heartbeat_at"],
        first_seq=row["first_seq"],
        end_seq=row["end_seq"],
        input=json.loads(row["input"]),
        fingerprint=row["spec_fingerprint"],
        released=row["state"] == "released",
    )


def commit_from(row: Row) -> Commit:
    """Return the commit that a row holds."""
    return Commit(
        plan=plan_from([row]),
        committed_at=row["committed_at"],
        counts=Counts(dict(row["counts"])),
        table_versions=dict(row["table_versions"]),
        reason=row["reason"],
    )
