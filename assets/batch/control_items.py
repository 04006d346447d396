"""The control items of a log as the table `log_control` has them.

Here: their kinds, and those that were committed. Not here: which items a batch writes (control.py, pauses.py).
"""

from typing import Any

from tidemark.resources import tables
from tidemark.resources.workspace import Workspace

SPEC, END_OF_INPUT, TICK, REOPEN = "spec", "end_of_input", "tick", "reopen"
WAIT = "wait"  # from here on the sources in its argument wait, and no others


def recorded(workspace: Workspace, *kinds: str) -> list[dict[str, Any]]:
    """The committed items of some kinds, in the order of the log."""
    version = workspace.base_of(tables.LOG_CONTROL)
    items = workspace.lake.rows(tables.LOG_CONTROL, version, filters=[("kind", "in", list(kinds))])
    return sorted(items.to_pylist(), key=lambda item: int(item["_control_seq"]))
