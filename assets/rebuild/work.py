"""How much work a run or a rebuild is, and about how long it takes.

Here: counts of what waits and of the log, and the rates of past batches. Not here: what comes of it
(assets/questions/what_if/preview.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.assets.ingestion.waiting_input import Waiting
from tidemark.resources import tables
from tidemark.resources.batches.plans import BatchKind, Commit, IngestInput
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
        sizes = [(n, seconds) for n, seconds in batches if n > 0]
        if not sizes:
            return None
        fixed = min(seconds for _, seconds in sizes)
        return cls(fixed, sum(seconds - fixed for _, seconds in sizes) / sum(n for n, _ in sizes))

    def seconds(self, n: int) -> float:
        """Return how long a batch of this size takes; nothing takes no time."""
        return self.fixed_s + self.each_s * n if n else 0.0


def work_of_run(workspace: Workspace, waiting: Waiting) -> Work:
    """Estimate the work of a run: input that waits, and records that were read and not processed."""
    read, size = _newest(workspace, "ingest"), waiting.size
    # Of each file that an ingestion has read: its path, the lines that were read before, its bytes.
    files = [IngestInput.of(commit.plan).files.values() for commit in read]
    sizes = [sum(int(file[2]) for of_source in of_commit for file in of_source) for of_commit in files]
    records = [commit.counts.records for commit in read]
    by_size = [(n, commit.took.total_seconds()) for n, commit in zip(sizes, read, strict=True)]
    fresh = 0 if not size else round(size * sum(records) / sum(sizes)) if sum(sizes) else None
    left = workspace.progress.log_end() - workspace.progress.processed_end() if workspace.exists else 0
    reading, judging = Pace.of(by_size), _pace_of_records(workspace)
    count = None if fresh is None else fresh + left
    seconds = None
    if reading is not None and judging is not None and count is not None:
        seconds = reading.seconds(size) + judging.seconds(count)
    return Work(count, len(waiting.parts), size, seconds)


def work_of_rebuild(workspace: Workspace) -> Work:
    """Estimate the work of judging all of the log that was processed."""
    records, version = workspace.progress.processed_end(), workspace.base_of(tables.RAW_EVENTS)
    sizes = workspace.lake.opened.version_at(tables.RAW_EVENTS, version).sizes
    pace = _pace_of_records(workspace)
    return Work(records, len(sizes), sum(sizes.values()), None if pace is None else pace.seconds(records))


def _pace_of_records(workspace: Workspace) -> Pace | None:
    judged = _newest(workspace, "process")
    return Pace.of([(records_in(commit.plan), commit.took.total_seconds()) for commit in judged])


def _newest(workspace: Workspace, kind: BatchKind) -> list[Commit]:
    return workspace.batches.history(kind)[-_MOST_BATCHES:] if workspace.exists else []
