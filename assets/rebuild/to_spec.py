"""The least of a pipeline that has to be made anew, so that its past is as the spec has it.

Here: all tables, some windows, or nothing. Not here: what a change means (timeops/spec/changes.py), doing it.
"""

import json

from tidemark.assets.log_control import SPEC, recorded
from tidemark.assets.rebuild.of_windows import own_tables
from tidemark.assets.spec_changes import ensure_rebuildable, recorded_specs
from tidemark.resources.batches.plans import RebuildInput
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec.changes import changes_between, with_readers


def asked_by_spec(workspace: Workspace) -> tuple[str, ...] | None:
    """Return the windows that are to be made anew; none where it is all tables, and None where it is nothing.

    The log may have been processed with several specs since all tables were made anew last: rows of each may be
    others now. A window that was made anew alone since then has its past.

    Raises:
        SpecError: The log does not go with the spec.
    """
    ensure_rebuildable(workspace)
    spec, broken = workspace.spec, workspace.opening.broken_tables()
    own = {window.name: own_tables([window]) for window in spec.windows}
    if any(not any(table in tables for tables in own.values()) for table in broken):
        return ()
    asked = [name for name, tables in own.items() if any(table in broken for table in tables)]
    items, now = recorded(workspace, SPEC), json.loads(spec.canonical_json())
    for before, after in zip(recorded_specs(workspace), [*items[1:], None], strict=True):
        for change in changes_between(before, now):
            if change.fills:
                return ()
            if not change.asks_for_the_past:
                continue
            if not change.of_windows:
                return ()
            anew = () if after is None else _made_anew_after(workspace, int(after["_batch_id"]))
            asked += [name for name in change.of_windows if name in own and name not in anew]
    if not asked:
        return None
    return () if spec.closes_by_silence else with_readers(dict.fromkeys(asked), spec)


def _made_anew_after(workspace: Workspace, batch_id: int) -> set[str]:
    """Return the windows that were made anew alone by a batch, or after it."""
    done = [RebuildInput.of(one.plan) for one in workspace.batches.history("rebuild", after=batch_id - 1)]
    return {name for one in done if not one.renamed for name in one.windows}
