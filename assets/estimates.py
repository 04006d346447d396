"""How much a run or a rebuild has to do, and about how long that takes, from what past batches took.

Here: counts of what waits, and the rates of past batches. Not here: what is waiting (waiting_input.py), doing it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.assets.waiting_input import Waiting
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, IngestInput
from tidemark.resources.batches.position import records_in
from tidemark.resources.workspace import Workspace

_MOST_BATCHES = 200
"""Only so many of the newest batches count for how long one takes: machines and specs change."""


@dataclass(frozen=True)
class Work:
    """The work to be done.

    Attributes:
        records: Records to be judged, estimated for input that was not read yet; None if no batch helps to estimate.
        files: Files to be read: of the input for a run, of the log for a rebuild.
        size: Their bytes.
        seconds: About how long it takes; None if no batch helps to estimate.
    """

    records: int | None
    files: int
    size: int
    seconds: float | None


@dataclass(frozen=True)
class Pace:
    """How long batches take: a part that each has, and one that grows with what is in it.

    Attributes:
        fixed_s: Seconds that the shortest batch took.
        each_s: Seconds for each record, or byte, beyond that.
    """

    fixed_s: float
    each_s: float

    @classmethod
    def of(cls, batches: Sequence[tuple[int, float]]) -> "Pace | None":
        """Return the pace of batches from the size and seconds of each; None without any."""
        done = [(n, seconds) for n, seconds in batches if n > 0]
        if not done:
            return None
        fixed = min(seconds for _, seconds in done)
        return cls(fixed, sum(seconds - fixed for _, seconds in done) / sum(n for n, _ in done))

    def seconds(self, n: int) -> float:
        """Return how long a batch of this size takes; nothing takes no time."""
        return self.fixed_s + self.each_s * n if n else 0.0


def of_run(workspace: Workspace, waiting: Waiting) -> Work:
    """Estimate the work of a run: input that waits, and records that were read and not processed."""
    read = _newest(workspace, "ingest") if workspace.exists else []
    size = sum(one.size for one in waiting.inputs)
    sizes = [sum(map(_bytes_of, _files_of(commit))) for commit in read]
    records = [commit.counts.get("records", 0) for commit in read]
    by_size = [(n, _seconds(commit)) for n, commit in zip(sizes, read, strict=True)]
    fresh = 0 if not size else round(size * sum(records) / sum(sizes)) if sum(sizes) else None
    left = workspace.progress.log_end() - workspace.progress.processed_end() if workspace.exists else 0
    reading, judging = Pace.of(by_size), _pace_of_records(workspace)
    count = None if fresh is None else fresh + left
    if reading is None or judging is None or count is None:
        return Work(count, len(waiting.inputs), size, None)
    return Work(count, len(waiting.inputs), size, reading.seconds(size) + judging.seconds(count))


def of_rebuild(workspace: Workspace) -> Work:
    """Estimate the work of judging all of the log that was processed."""
    records, version = workspace.progress.processed_end(), workspace.base_of(tables.RAW_EVENTS)
    sizes = workspace.lake.opened.seen(tables.RAW_EVENTS, version).sizes
    pace = _pace_of_records(workspace)
    return Work(records, len(sizes), sum(sizes.values()), None if pace is None else pace.seconds(records))


def _pace_of_records(workspace: Workspace) -> Pace | None:
    done = _newest(workspace, "process") if workspace.exists else []
    return Pace.of([(records_in(commit.plan), _seconds(commit)) for commit in done])


def _newest(workspace: Workspace, kind: str) -> list[Commit]:
    return [commit for commit in workspace.batches.history() if commit.plan.kind == kind][-_MOST_BATCHES:]


def _seconds(commit: Commit) -> float:
    return (commit.committed_at - commit.plan.planned_at).total_seconds()


def _files_of(commit: Commit) -> Iterable[Sequence[object]]:
    """Return the files that an ingestion has read: path, lines that were read before, bytes."""
    return [file for files in IngestInput.of(commit.plan).files.values() for file in files]


def _bytes_of(file: Sequence[object]) -> int:
    return int(str(file[2]))
