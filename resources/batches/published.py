"""Which versions of a table other pipelines may read: those that a batch of its own pipeline committed.

Here: finding the pipeline that a table is of. Not here: reading its tables consistently (snapshot.py).
"""

from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.lake.lake import Lake
from tidemark.resources.places.place import Place, relative
from tidemark.resources.tables import BATCHES, RAW_EVENTS


def committed_versions(folder: Place) -> list[int] | None:
    """The versions of a table that batches committed, in order; None of a table that is of no pipeline.

    Between them stand what a batch has written that is not committed yet, or that was taken back.

    Args:
        folder: Folder of the table.

    Raises:
        LakeError: The pipeline's log of batches cannot be read.
    """
    above: list[Place] = [*folder.parents]
    for root in above[:2]:  # `<pipeline>/<table>` and `<pipeline>/windows/<name>`
        lake = Lake(root)
        if all((lake.path(table) / "_delta_log").is_dir() for table in (BATCHES, RAW_EVENTS)):
            table = relative(folder, root)
            found = {commit.table_versions.get(table) for commit in BatchLog(lake).every_commit()}
            return sorted(version for version in found if version is not None)
    return None
