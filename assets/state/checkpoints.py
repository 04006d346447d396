"""Places of the log between two batches, and what the batch in front of one left there.

Here: what was stored: position, timelines, first times, waits. Not here: which places matter to whom (log_range.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from tidemark.assets.log_control import waits_up_to
from tidemark.assets.state.dedup import known_first_times, spans_of
from tidemark.assets.state.timelines import kept_to_join, timelines_at
from tidemark.resources import tables
from tidemark.resources.workspace import Position, Workspace, plan_end
from tidemark.timeops.rules import Waits


@dataclass(frozen=True)
class Place:
    """The end of a batch in the log.

    Attributes:
        end_seq: The first `_arrival_seq` behind it.
        position: The state of the pipeline there.
        batch_id: The batch; -1 before the first.
        versions: The version of each table that it left.
    """

    end_seq: int
    position: Position
    batch_id: int = -1
    versions: Mapping[str, int] = field(default_factory=dict)

    def version_of(self, table: str) -> int:
        """Return the version of a table here; 0, the empty table, where there was none."""
        return self.versions.get(table, 0)


START = Place(0, Position())


def places_of(workspace: Workspace) -> list[Place]:
    """The ends of all batches that processed the log, in its order."""
    version = workspace.base_of(tables.WATERMARKS)
    rows = workspace.lake.rows(tables.WATERMARKS, version, filters=[("_timeline", "=", None)]).to_pylist()
    positions = {row["_batch_id"]: Position.of(row) for row in rows}
    done = [commit for commit in workspace.batches.history() if commit.plan.kind == "process"]
    return [
        Place(plan_end(commit.plan), positions[commit.batch_id], commit.batch_id, commit.table_versions)
        for commit in done
    ]


def has_state(workspace: Workspace, place: Place) -> bool:
    """Whether the timelines at a place can still be read: VACUUM may have deleted their files."""
    if not workspace.keeps_timelines:
        return True
    return workspace.lake.has_files(tables.TIMELINES, place.version_of(tables.TIMELINES))


def state_at(workspace: Workspace, place: Place) -> DataFrame:
    """The timelines at a place, schemas.TIMELINE_SCHEMA."""
    version, waits = place.version_of(tables.TIMELINES), waits_at(workspace, place)
    state = timelines_at(workspace, place.position, version, waits)
    return kept_to_join(state) if workspace.keeps_timelines else state


def first_times_at(workspace: Workspace, place: Place, log: DataFrame) -> DataFrame:
    """The first times in front of a place that some records behind it may be duplicates of."""
    return known_first_times(workspace, spans_of(workspace, log), up_to=place.batch_id)


def waits_at(workspace: Workspace, place: Place) -> Waits:
    """The waits of sources as the batch in front of a place left them."""
    return waits_up_to(workspace, place.batch_id)
