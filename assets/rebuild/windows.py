"""Single windows made anew, and windows and sources that go on under new names.

Here: the least that has to be made anew; which windows alone are enough, and what they share with others; the one
batch that renames, and the deletion of tables of removed windows. Not here: judging the log (shadow.py), tables that
are taken over whole (switch.py), what a change means (timeops/spec/changes.py).

A shadow of some windows has only these windows and their input windows. It computes the same results as a whole
rebuild if the records are judged as they were: the settings of time must not have changed on the way.

Folders of tables are not renamed: no store does that in one step. The tables of the new name take over files, rows
and columns of the old ones, as in a rebuild. One commit names them. The old ones stay as they were.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.assets.log_control import SPEC, recorded, write_items
from tidemark.assets.planning import at_work
from tidemark.assets.rebuild.shadow import Shadow, begin_without_records, when_free
from tidemark.assets.rebuild.switch import item_of
from tidemark.assets.schemas import end_tables, payload_of
from tidemark.assets.spec_changes import ensure_rebuildable, recorded_specs, renamed, sources_renamed
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
from tidemark.timeops import columns as c
from tidemark.timeops.counts import refused
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.problems import did_you_mean
from tidemark.timeops.reasons import Stage
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.changes import changes_between, with_new_names, with_readers
from tidemark.timeops.spec.pipeline import canonical, digest


def ensure_judged_alike(shadow: Shadow) -> None:
    """Check that the shadow has come to where the pipeline is, and has refused as many records on the way.

    Raises:
        LakeError: It has not: the log is judged in another way now.
    """
    here, there = (replace(one.progress.position(), released=0) for one in (shadow.workspace, shadow.tables))
    if here != there or _refused(shadow.workspace) != _refused(shadow.tables):
        raise LakeError(
            f"The log of {shadow.workspace.spec.name} is judged in another way than when it was processed.",
            expected="the watermark, the clock and the refused records that the tables have",
            remedy="Make all tables anew: `tidemark rebuild SPEC`. The tables are as they were",
        )


def _refused(workspace: Workspace) -> Counter[str]:
    """Return how many records the batches refused before windows, by reason."""
    return sum((Counter(refused(commit.counts)) for commit in workspace.batches.counted()), Counter())


def own_tables(windows: Sequence[WindowSpec]) -> list[str]:
    """Return the tables that windows do not share with others."""
    found = []
    for window in windows:
        found += [tables.window_table(window.name), tables.flushed_table(window.name)]
        found += [tables.history_table(window.name)] if window.history else []
        found += [tables.seen_groups_table(window.name)] if window.empty else []
        found += [tables.needed_table(window)] if window.input is not None else []
    return found


def write_shared(shadow: Shadow, plan: Plan) -> None:
    """Write the new rows of the windows into tables that hold rows of others too."""
    workspace, chosen = shadow.workspace, shadow.chosen
    names = [window.name for window in chosen]
    for table in dict.fromkeys(tables.needed_table(window) for window in chosen if window.input is None):
        sharing = [window for window in workspace.spec.event_windows if tables.needed_table(window) == table]
        others = [window.name for window in sharing if window.name not in names]
        (_merge_marked if has_marks(table) else _add_missing)(shadow, plan, table, others)
    of_windows: Filters = [("stage", "=", Stage.WINDOW), ("window_name", "in", [*names, *_former_names(shadow)])]
    letters = shadow.tables.read_base(tables.DEAD_LETTERS, filters=of_windows)
    expect = workspace.ready(tables.DEAD_LETTERS, plan)
    workspace.lake.replace(tables.DEAD_LETTERS, letters, where=of_windows, attempt=plan.attempt, expect=expect)


def _former_names(shadow: Shadow) -> list[str]:
    """Return the names of the windows in the tables, if the spec has renamed them."""
    names = renamed(shadow.workspace)
    return [names[window.name] for window in shadow.chosen if window.name in names]


def _add_missing(shadow: Shadow, plan: Plan, table: str, others: Collection[str]) -> None:
    """Add the events that the windows need and the table lacks; an event that is not needed is in no window."""
    workspace = shadow.workspace
    there = shadow.tables.read_base(table)
    here = workspace.read_base(table).select(c.SEQ)
    rows = there.join(here, c.SEQ, "left_anti") if others else there
    expect, where = workspace.ready(table, plan), None if others else ()
    workspace.lake.replace(table, rows, where=where, attempt=plan.attempt, expect=expect)


def _merge_marked(shadow: Shadow, plan: Plan, table: str, others: Collection[str]) -> None:
    """Write anew the events of sessions and sliding windows, each with the windows that need it."""
    workspace = shadow.workspace
    mark = tables.open_in_column(payload_of(workspace).names)
    names = [window.name for window in shadow.chosen]
    rows = live_events(shadow.tables, table)
    sides = [(rows, names)] + ([(live_events(workspace, table), list(others))] if others else [])
    kept = [
        frame.withColumn(mark, F.array_intersect(mark, F.array(*map(F.lit, those)))).where(F.size(mark) > 0)
        for frame, those in sides
    ]
    both = kept[0] if len(kept) == 1 else kept[0].unionByName(kept[1])
    rest = [quoted(name) for name in both.columns if name not in (c.SEQ, mark, c.BATCH)]
    each = both.groupBy(c.SEQ).agg(
        F.first(F.struct(*rest)).alias("__tm_event"), F.flatten(F.collect_list(mark)).alias(mark)
    )
    stamp = F.lit(plan.batch_id).cast("bigint").alias(c.BATCH)
    merged = each.select("__tm_event.*", c.SEQ, mark, stamp)
    expect = workspace.ready(table, plan)
    workspace.lake.replace(table, merged, where=(), attempt=plan.attempt, expect=expect)


def corrections(shadow: Shadow) -> Mapping[str, int]:
    """Return the differences between the counts of the windows and the counts that batches have stored."""
    names = [*(window.name for window in shadow.chosen), *_former_names(shadow)]
    found: Counter[str] = Counter()
    for workspace, sign in ((shadow.tables, 1), (shadow.workspace, -1)):
        for commit in workspace.batches.counted():
            for name, n in commit.counts.items():
                if name.rpartition(".")[0] in names:
                    found[name] += sign * n
    return {name: n for name, n in found.items() if n}


def ensure_others_whole(shadow: Shadow, broken: Mapping[str, LakeError]) -> None:
    """Check that the tables that are not taken over whole are there, and whole.

    Raises:
        LakeError: One is not.
    """
    written = own_tables(shadow.chosen)
    for table, error in broken.items():
        if table not in written:
            raise error


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
