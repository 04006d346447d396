"""The plan of a rebuild: what it computes again and why, before anything is done.

`tidemark plan` shows the plan that the spec asks for, and every rebuild carries out such a value: for a person, for a
decision on records (assets/rebuild/decisions/rejudging.py), for a correction upstream. Not here: carrying it out
(assets/rebuild/switch.py), what a change of the spec means (timeops/spec/changes.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.assets.log.control import SPEC, recorded
from tidemark.assets.log.retention import ensure_whole_log
from tidemark.assets.log.spec_changes import (
    ensure_one_file,
    ensure_rebuildable,
    recorded_specs,
)
from tidemark.assets.rebuild.work import Work, work_of_rebuild
from tidemark.resources import tables
from tidemark.resources.batches.plans import RebuildInput
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import LakeError
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.spec.changes import Change, changes_between, with_readers
from tidemark.timeops.spec.scope import Scope


@dataclass(frozen=True)
class RebuildPlan:
    """The work of a rebuild. Tables that it does not name stay as they are.

    The log stays too, but for its columns that changes of a `schema` name: they are cast, or filled from `_rescued`.

    Attributes:
        scope: What is computed again: all tables, some windows with the windows over them, or nothing.
        tables: The tables that get new rows of events, dead letters and results.
        work: How much of the log is judged, and about how long that takes.
        changes: The changes of the spec that ask for it, each once: as of the first spec that it differs from.
        reason: Why, as `batches` and `log_control` keep it; None where no reason is known.
        items: Control items that take records out of the log, or back into it.
        unreadable: Tables whose rows cannot be read, or are not their own, as an audit found: they are replaced
            without being read.
    """

    scope: Scope
    tables: tuple[str, ...]
    work: Work
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    items: tuple[Mapping[str, Any], ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """How many records it takes out of the log, or back into it."""
        ranges = [bounds for item in self.items for bounds in json.loads(item["argument"])["records"]]
        return sum(last - first + 1 for first, last in ranges)


def plan_rebuild(
    workspace: Workspace, scope: Scope, reason: str | None = None, unreadable: Sequence[str] = ()
) -> RebuildPlan:
    """Plan to compute a scope again, whatever has changed.

    Raises:
        LakeError: The log is lost or damaged, or nothing of it was processed.
        SpecError: Another spec file made the tables, the spec asks for more, or the log has lost its beginning.
    """
    ensure_can_begin(workspace, scope)
    ensure_whole_log(workspace, "a rebuild")
    names, work = _tables_of(workspace, scope), work_of_rebuild(workspace)
    return RebuildPlan(scope, names, work, reason=reason, unreadable=tuple(unreadable))


def plan_to_spec(workspace: Workspace, reason: str | None = None) -> RebuildPlan:
    """Plan the least that has to be computed again so that the past is as the spec has it.

    The log may have been processed with several specs since all tables were rebuilt last: rows of each may differ
    now. A window that was rebuilt alone since then has its past.

    Raises:
        LakeError: The log is lost or damaged, or nothing of it was processed.
        SpecError: The log does not go with the spec.
    """
    spec = workspace.spec
    scopes = [_scope_of_table(table, spec.windows) for table in ensure_can_begin(workspace, Scope.ALL)]
    items, now = recorded(workspace, SPEC), json.loads(spec.canonical_json())
    changes: dict[str, Change] = {}
    for spec_of_item, next_item in zip(recorded_specs(workspace), [*items[1:], None], strict=True):
        rebuilt = set[str]() if next_item is None else _rebuilt_after(workspace, int(next_item["_batch_id"]))
        for change in changes_between(spec_of_item, now):
            past = Scope.ALL if change.fills else change.past
            if not past.of_all:
                windows = {*workspace.window_tables} - rebuilt
                past = Scope(tuple(name for name in past.windows if name in windows))
            if past:
                scopes.append(past)
                changes.setdefault(change.path, change)
    scope = Scope.together(scopes)
    if scope.windows:
        names = with_readers(scope.windows, spec)
        scope = Scope.ALL if spec.are_made_with_all(names) else Scope(names)
    work = work_of_rebuild(workspace)
    return RebuildPlan(scope, _tables_of(workspace, scope), work, tuple(changes.values()), reason)


def _scope_of_table(table: str, windows: Sequence[WindowSpec]) -> Scope:
    """Return the scope in which a lost table gets its rows."""
    of_windows = tuple(window.name for window in windows if table in own_tables([window]))
    return Scope(of_windows) if of_windows else Scope.ALL


def _tables_of(workspace: Workspace, scope: Scope) -> tuple[str, ...]:
    if not scope:
        return ()
    names = [window.name for window in windows_in(scope, workspace.spec)]
    ordered = [tables.ORDERED_EVENTS] if workspace.spec.outputs.ordered_events and scope.of_all else []
    names += [join.name for join in workspace.spec.joins] if scope.of_all else []
    results = [table for table in workspace.result_tables if table.partition("/")[2] in names]
    return (*ordered, tables.DEAD_LETTERS, *results)


def windows_in(scope: Scope, spec: Spec) -> tuple[WindowSpec, ...]:
    """Return the windows that are computed again with a scope, in the order of the spec."""
    names = with_readers(scope.windows, spec)
    return tuple(window for window in spec.windows if scope.of_all or window.name in names)


def _rebuilt_after(workspace: Workspace, batch_id: int) -> set[str]:
    """Return the windows that were rebuilt alone by a batch, or after it."""
    commits = workspace.batches.history("rebuild", after_batch=batch_id - 1)
    rebuilds = [RebuildInput.of(commit.plan) for commit in commits]
    return {name for rebuild in rebuilds if not rebuild.renamed for name in rebuild.windows}


def own_tables(windows: Sequence[WindowSpec]) -> list[str]:
    """Return the tables that windows do not share with others."""
    names = []
    for window in windows:
        names += [tables.window_table(window.name), tables.flushed_table(window.name)]
        names += [tables.history_table(window.name)] if window.history else []
        names += [tables.seen_groups_table(window.name)] if window.empty else []
        names += [tables.needed_table(window)] if window.input is not None else []
    return names


def ensure_can_begin(workspace: Workspace, scope: Scope) -> Mapping[str, LakeError]:
    """Check that there is a log that can be judged again, for some windows or for all tables.

    Return the derived tables that are lost or damaged.

    Raises:
        LakeError: It is lost or damaged, or nothing of it was processed.
        SpecError: Another spec file made the tables, or the spec asks for more.
    """
    if not workspace.exists or not workspace.progress.processed_end():
        raise LakeError(
            f"Pipeline {workspace.spec.name} has processed nothing, so there is nothing to rebuild.",
            expected="a run before",
            remedy="Run it: `tidemark run SPEC`.",
        )
    ensure_one_file(workspace)
    broken = workspace.opening.broken_tables()
    for table, error in broken.items():
        if table in tables.OF_THE_LOG:
            raise error
    windows = tuple(window.name for window in windows_in(scope, workspace.spec))
    ensure_rebuildable(workspace, scope if scope.of_all else Scope(windows))
    return broken
