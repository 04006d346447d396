"""Tables of other pipelines: their committed versions, the batch of a version, and the spec.

Here: finding the pipeline of a table. Not here: reading its tables consistently (snapshot.py).
"""

from dataclasses import dataclass
from functools import cached_property

import pyarrow.compute as pc

from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.place import Place, relative
from tidemark.resources.tables import BATCHES, LOG_CONTROL, RAW_EVENTS


@dataclass(frozen=True)
class Published:
    """A table of a pipeline.

    Attributes:
        root: Folder of the pipeline.
        table: Name of the table.
    """

    root: Place
    table: str

    @cached_property
    def _commits(self) -> list[Commit]:
        return BatchLog(Lake(self.root)).every_commit()

    @property
    def versions(self) -> list[int]:
        """The committed versions, in order.

        The versions between them hold writes that are not committed yet, or that were taken back.

        Raises:
            LakeError: The pipeline's log of batches cannot be read.
        """
        found = {commit.table_versions.get(self.table) for commit in self._commits}
        return sorted(version for version in found if version is not None)

    def commit_of(self, version: int) -> Commit | None:
        """Return the first commit that names a version: the batch that made it."""
        found = (one for one in self._commits if one.table_versions.get(self.table) == version)
        return next((one for one in found if not one.plan.is_replayed), None)

    @property
    def spec(self) -> str | None:
        """The spec that the pipeline was last processed with, as JSON; None before the first batch."""
        lake = Lake(self.root)
        if not lake.exists(LOG_CONTROL):
            return None
        version = max((one.table_versions.get(LOG_CONTROL, 0) for one in self._commits), default=0)
        items = lake.rows(LOG_CONTROL, version, columns=["_control_seq", "kind", "argument"])
        specs = items.filter(pc.equal(items["kind"], "spec")).sort_by("_control_seq")
        return specs["argument"][-1].as_py() if specs.num_rows else None


def pipeline_of(folder: Place) -> Published | None:
    """Return the table of a pipeline that is in a folder; None if the folder is not such a table."""
    above: list[Place] = [*folder.parents]
    for root in above[:2]:  # `<pipeline>/<table>` and `<pipeline>/windows/<name>`
        lake = Lake(root)
        if all((lake.path(table) / "_delta_log").is_dir() for table in (BATCHES, RAW_EVENTS)):
            return Published(root, relative(folder, root))
    return None


def committed_versions(folder: Place) -> list[int] | None:
    """Return the committed versions of a table, in order; None if the table belongs to no pipeline.

    Args:
        folder: Folder of the table.

    Raises:
        LakeError: The pipeline's log of batches cannot be read.
    """
    of = pipeline_of(folder)
    return None if of is None else of.versions
