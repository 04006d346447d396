"""Findings of an audit: the table, what is wrong with it, and the command that repairs it.

Not here: finding it (the other files of this room), repairing it (assets/audit/repair.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tidemark.assets.log.exclusions import ranges_of
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.scope import Scope

Remedy = Literal["take_back", "reread", "commit", "rebuild", "backup"]
"""The ways to repair a finding: take back the change of another program, read input into the log again, commit
what was read again, compute tables again, or restore a backup."""
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a table.

    Attributes:
        table: The table.
        what: What is wrong, a sentence without its full stop.
        remedy: What repairs it.
        scope: With `rebuild`, what has to be computed again.
        is_unreadable: Whether the table's rows cannot be read, or not all of them.
        file: The file that is lost or damaged, by its name in the table's log; empty if it is not one.
        seqs: With `reread`, the first and the last `_arrival_seq` of the records in that file.
    """

    table: str
    what: str
    remedy: Remedy
    scope: Scope = field(default=Scope.ALL)
    is_unreadable: bool = False
    file: str = ""
    seqs: tuple[int, int] | None = None

    def repair(self, workspace: Workspace) -> str:
        """Return the command that repairs it, or the sentence on what else does."""
        spec = workspace.file.in_command
        if self.remedy == "take_back":
            return f'tidemark changes {spec} --take-back "…"'
        if self.remedy == "backup":
            return f"restore {workspace.folder} from a backup, with all tables from the same time"
        if self.remedy in ("reread", "commit") or self.is_unreadable:
            return f"tidemark repair {spec}"
        return f"tidemark rebuild {spec}" + "".join(f" --window {name}" for name in self.scope.windows)

    def to_dict(self, workspace: Workspace) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {"table": self.table, "what": self.what, "repair": self.repair(workspace)}


def wrong_rows(workspace: Workspace, table: str, sentence: str) -> Finding:
    """Return the finding for rows of a table that are not what follows from the log."""
    if table in tables.OF_THE_LOG:
        return Finding(table, sentence, "backup")
    return Finding(table, sentence, "rebuild", scope_of(workspace, table))


def scope_of(workspace: Workspace, table: str) -> Scope:
    """Return what has to be computed again so that a table gets its rows."""
    spec = workspace.spec
    name = table.partition("/")[2]
    of_window = table.startswith(("windows/", "history/")) and any(window.name == name for window in spec.windows)
    return Scope((name,)) if of_window and not spec.are_made_with_all([name]) else Scope.ALL


def of_window(workspace: Workspace, window: WindowSpec, sentence: str) -> Finding:
    """Return the finding for wrong results of a window."""
    return wrong_rows(workspace, tables.window_table(window.name), sentence)


def some(numbers: Sequence[int]) -> str:
    """Return numbers in words: ranges, of many only the first."""
    ranges = ranges_of(np.asarray(numbers, np.int64))
    shown = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges[:_MOST_SHOWN]]
    n_more = len(ranges) - _MOST_SHOWN
    return ", ".join(shown) + (f" and {n_more:,} more" if n_more > 0 else "")
