"""The contents of a pipeline's tables at its last commit, read once for the whole page.

Here: the commits, the versions that belong together, positions after batches. Not here: what the page makes of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tidemark.pipelines.terminal import sums, windows_in
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, Plan, counted
from tidemark.resources.batches.position import Position, plan_end
from tidemark.resources.delta.lake import Lake
from tidemark.resources.workspace import Workspace
from tidemark.timeops.counts import dead_letters_by_reason
from tidemark.timeops.spec import Spec


@dataclass(frozen=True)
class State:
    """A pipeline at a commit.

    Attributes:
        spec: The spec as it is now.
        lake: The tables.
        commits: All commits, by batch; at least one.
        pending: A batch that is not committed.
        source_names: The names that sources have now, by their former ones.
    """

    spec: Spec
    lake: Lake
    commits: Sequence[Commit]
    pending: Plan | None
    source_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> Commit:
        """The commit that everything is read at."""
        return self.commits[-1]

    @property
    def versions(self) -> Mapping[str, int]:
        """Version of each table that belongs to the last commit."""
        return self.last.table_versions

    @cached_property
    def ingested(self) -> list[Commit]:
        """The batches that read input."""
        return [commit for commit in self.commits if commit.plan.kind == "ingest"]

    @cached_property
    def processed(self) -> list[Commit]:
        """The batches that judged records."""
        return [commit for commit in self.commits if commit.plan.kind == "process"]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The outcomes of all processed records."""
        return sums(counted(self.commits))

    @property
    def dead_letters(self) -> Counter[str]:
        """How many of them have a dead letter, by reason."""
        return dead_letters_by_reason(self.counts, windows_in(self.counts))

    @property
    def log_end(self) -> int:
        """How many records the log has."""
        return plan_end(self.ingested[-1].plan) if self.ingested else 0

    @property
    def processed_end(self) -> int:
        """How many of them are processed."""
        return plan_end(self.processed[-1].plan) if self.processed else 0

    @property
    def spec_has_changed(self) -> bool:
        """Return whether the spec differs from the spec of the last commit."""
        return self.last.plan.fingerprint != self.spec.fingerprint()

    @cached_property
    def position(self) -> Position:
        """The position of the pipeline."""
        if not self.processed:
            return Position()
        return self.positions_from(self.processed[-1].batch_id)[self.processed[-1].batch_id]

    def positions_from(self, batch_id: int) -> dict[int, Position]:
        """Return the position after each processed batch from one on."""
        rows = self.lake.rows(
            tables.WATERMARKS,
            self.versions[tables.WATERMARKS],
            filters=[("_batch_id", ">=", batch_id), ("_timeline", "=", None)],
        )
        return {row["_batch_id"]: Position.of(row) for row in rows.to_pylist()}


def state_of(workspace: Workspace) -> State | None:
    """Return the state of a pipeline at its last commit; None before the first."""
    if not workspace.exists:
        return None
    commits = workspace.batches.history()
    if not commits:
        return None
    pending, names = workspace.batches.pending(), workspace.source_names
    return State(workspace.spec, workspace.lake, commits, pending, names)
