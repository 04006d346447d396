"""Windows and sources that the spec has renamed go on under new names; tables of removed windows are deleted.

Here: one batch that does either. Not here: which these are (timeops/spec/changes.py), the note in a table that its
window has ended (schemas.py), what is stored under the name that a source had (`Workspace.source_names`).

Folders of tables are not renamed: no store does that in one step. The tables of the new name take over files, rows
and columns of the old ones, as in a rebuild. One commit names them. The old ones stay as they were.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.assets.log_control import SPEC, recorded, write_items
from tidemark.assets.planning import at_work
from tidemark.assets.rebuild.shadow import begin_without_records, when_free
from tidemark.assets.rebuild.switch import item_of
from tidemark.assets.schemas import end_tables, payload_of
from tidemark.assets.spec_changes import renamed, sources_renamed
from tidemark.assets.state.windows import has_marks, live_events
from tidemark.resources import tables
from tidemark.resources.batches.plans import (
    Commit,
    Plan,
    RebuildInput,
)
from tidemark.resources.delta.versions import Filters
from tidemark.resources.places.place import remove_tree
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import did_you_mean
from tidemark.timeops.reasons import Stage
from tidemark.timeops.spec.changes import with_new_names
from tidemark.timeops.spec.pipeline import canonical, digest

_OF_WINDOW = (
    tables.window_table,
    tables.history_table,
    tables.flushed_table,
    tables.seen_groups_table,
    tables.open_results_table,
)
"""The tables that a window may have for itself."""


_IN_SENTENCES = (
    ("the (?:session|last window) of ", " for this event"),
    (r".*?: the aggregate `\w+` of ", ", `"),
    ("a result of ", ": the aggregate"),
)
"""The text before and after the name of a window in the sentences of timeops/dead_letters.py."""


def take_new_names(workspace: Workspace, run_id: str) -> None:
    """Let windows and sources that the spec calls otherwise go on under the new names, if there are any.

    Of windows the tables go on. What is stored of sources stays as it is: an item of `log_control` says what they are
    called from here on, before anything is read under the new name.

    Args:
        workspace: The pipeline; its tables have been created, and take the spec.
        run_id: The id of the run or command.

    Raises:
        BusyError: Another run is at work.
    """
    names, sources = renamed(workspace), sources_renamed(workspace)
    if not names and not sources:
        return
    spec = with_new_names(json.loads(recorded(workspace, SPEC)[-1]["argument"]), names)
    spec = with_new_names(spec, sources, "sources")
    said = canonical(spec)
    given = RebuildInput(windows=[*names], renamed=names, renamed_sources=sources)
    # The fingerprint is not that of the spec before: a run by that one must not find its tables prepared.
    plan = begin_without_records(workspace, run_id, given, digest(said))
    with at_work(workspace, plan):
        workspace.prepare(plan)
        for old, new in _tables_of(workspace, names):
            workspace.tell(f"{old} goes on as {new}")
            there, lake = workspace.lake.opened.seen(old, workspace.base_of(old)), workspace.lake
            lake.take_over(new, there, attempt=plan.attempt, expect=workspace.ready(new, plan))
        for new, old in sources.items():
            workspace.tell(f"source {old} goes on as {new}")
        if names:
            _rename_in_marks(workspace, plan, names)
            _rename_in_letters(workspace, plan, names)
        why = ", ".join(f"{old} is {new} now" for new, old in [*names.items(), *sources.items()])
        item = item_of(SPEC, why, plan) | {"argument": said, "_after_seq": (plan.end_seq or 0) - 1}
        write_items(workspace, plan, [item])
        end_tables(workspace)
        versions, now = workspace.outputs(plan), workspace.clock.now()
        workspace.batches.commit(plan, _counts(workspace, names), versions, now, reason=why)


def _tables_of(workspace: Workspace, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the tables that go on: the old name and the new one."""
    last = workspace.batches.last_commit()
    known = last.table_versions if last else {}
    for new, old in names.items():
        for table in _OF_WINDOW:
            if table(old) in known and table(new) in workspace.tables:
                yield table(old), table(new)


def _named(name: Column, names: Mapping[str, str]) -> Column:
    found = name
    for new, old in names.items():
        found = F.when(name == old, F.lit(new)).otherwise(found)
    return found


def _rename_in_marks(workspace: Workspace, plan: Plan, names: Mapping[str, str]) -> None:
    """Name the windows anew for which events of sessions and sliding windows are kept."""
    mark = tables.open_in_column(payload_of(workspace).names)
    of_events = [window for window in workspace.spec.event_windows if window.name in names]
    for table in dict.fromkeys(tables.needed_table(window) for window in of_events):
        if has_marks(table) and workspace.lake.row_count(table, workspace.base_of(table)):
            rows = live_events(workspace, table)
            rows = rows.withColumn(mark, F.transform(mark, lambda name: _named(name, names)))
            expect = workspace.ready(table, plan)
            workspace.lake.replace(table, rows, where=(), attempt=plan.attempt, expect=expect, are_few=True)


def _rename_in_letters(workspace: Workspace, plan: Plan, names: Mapping[str, str]) -> None:
    """Name the windows anew in dead letters: also in their sentences, and in the sentences of windows over them."""
    over = [window.name for window in workspace.spec.chained_windows if window.input in names]
    theirs: Filters = [("stage", "=", Stage.WINDOW), ("window_name", "in", [*names.values(), *over])]
    letters = workspace.read_base(tables.DEAD_LETTERS, filters=theirs)
    if not letters.take(1):
        return
    detail: Column = F.col("detail")
    for new, old in names.items():
        for before, behind in _IN_SENTENCES:
            detail = F.regexp_replace(detail, f"(?s)^({before}){old}({behind})", f"$1{new}$2")
    renamed_letters = letters.withColumns({"window_name": _named(F.col("window_name"), names), "detail": detail})
    expect = workspace.ready(tables.DEAD_LETTERS, plan)
    workspace.lake.replace(tables.DEAD_LETTERS, renamed_letters, where=theirs, attempt=plan.attempt, expect=expect)


def _counts(workspace: Workspace, names: Mapping[str, str]) -> Mapping[str, int]:
    """Return the counts of the windows under the new names, and the same counts subtracted under the old ones."""
    found: Counter[str] = Counter()
    for commit in workspace.batches.counted():
        for count, n in commit.counts.items():
            window, _, what = count.rpartition(".")
            for new in [new for new, old in names.items() if old == window]:
                found[count] -= n
                found[f"{new}.{what}"] += n
    return {name: n for name, n in found.items() if n}


def drop_windows(workspace: Workspace, run_id: str, names: Sequence[str], reason: str | None = None) -> Commit:
    """Delete the tables of windows that the spec no longer has: one commit that omits them, then the files.

    Killed in between, the same call deletes what is left.

    Raises:
        SpecError: A window is in the spec, or there is no table of it.
    """
    last = workspace.batches.last_commit() if workspace.exists else None
    known = last.table_versions if last else {}
    ended = [name.removeprefix("windows/") for name in known if name.startswith("windows/")]
    ended = [name for name in ended if name not in workspace.window_tables]
    for name in names:
        if name in workspace.window_tables:
            raise SpecError(
                f"`{name}` is a window of {workspace.spec.name}",
                expected="a window that is gone from the spec",
                remedy="take it out of `windows` first",
            )
        if name not in ended and not any(workspace.lake.exists(table(name)) for table in _OF_WINDOW):
            there = f"one of {', '.join(ended)}" if ended else "a window that was taken out of the spec"
            raise SpecError(
                f"{workspace.spec.name} has no table of a window `{name}`",
                expected=there,
                remedy=did_you_mean(name, ended),
            )
    gone = [table(name) for name in names for table in _OF_WINDOW]
    plan = when_free(workspace, partial(begin_without_records, workspace, run_id, RebuildInput(dropped=[*names])))
    with at_work(workspace, plan):
        now = workspace.clock.now()
        committed = workspace.batches.commit(plan, {}, {}, now, reason=reason, dropped=gone)
    for table in gone:
        remove_tree(workspace.lake.path(table))
    return committed
