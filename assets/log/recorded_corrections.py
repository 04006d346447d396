"""The corrections that the log has recorded: their sentences, and whether tables have to be rebuilt for them.

Here: reading the control items. Not here: finding what a version of a table corrects, and the item (corrections.py),
rebuilding tables (../rebuild/).
"""

import json
from dataclasses import dataclass

from tidemark.assets.log.control import CORRECTION, recorded
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace


@dataclass(frozen=True)
class Due:
    """Corrections of records that batches had processed, from which nothing has been recomputed yet.

    Attributes:
        sentences: One for each.
        moves_clock: One of them took away a record that had moved the clock of the log.
    """

    sentences: tuple[str, ...] = ()
    moves_clock: bool = False


def due(workspace: Workspace) -> Due:
    """Return the corrections for which tables have to be rebuilt."""
    if not workspace.exists or not workspace.lake.exists(tables.LOG_CONTROL):
        return Due()
    rebuilt = workspace.batches.last_rebuild()
    last_rebuilt = -1 if rebuilt is None else rebuilt.batch_id
    items = [item for item in recorded(workspace, CORRECTION) if item["_batch_id"] > last_rebuilt]
    corrections = [(item["reason"], json.loads(item["argument"])) for item in items]
    left = [(reason, argument) for reason, argument in corrections if argument["judged"]]
    return Due(tuple(reason for reason, _ in left), any(argument["moved_clock"] for _, argument in left))


def corrections_after(workspace: Workspace, batch_id: int) -> list[str]:
    """Return what ingestions after a batch have corrected, a sentence for each correction."""
    if not workspace.lake.exists(tables.LOG_CONTROL):
        return []
    return [item["reason"] for item in recorded(workspace, CORRECTION) if item["_batch_id"] > batch_id]
