"""The switch: all tables of a pipeline take what its rebuild has made, and one commit names it. So do renamed ones.

Here: what is written into the pipeline's tables; windows and sources under new names, and the deletion of tables of
removed windows, each in one batch. Not here: making the tables (assets/rebuild/shadow.py), which versions readers see
(resources/batches/), which names are new (timeops/spec/changes.py).

Each table gets one commit that takes away all of its files and adds the files of the rebuild. Until the commit in
`batches` readers stay at the old versions. If the run dies before, the tables have what an attempt without a commit
wrote: the next run takes it back, and the next rebuild switches again, as the shadow's tables still have their files.

Folders of tables are not renamed: no store does that in one step. The tables of the new name take over files, rows
and columns of the old ones, as in a rebuild. One commit names them. The old ones stay as they were.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.assets.batch import BatchWriter
from tidemark.assets.log.control import (
    ADMIT,
    REBUILD,
    REFUSE,
    SPEC,
    control_item,
    recorded,
    rewrite_items,
    write_items,
)
from tidemark.assets.log.exclusions import CHANGES_LOG, items_of, log_clocks
from tidemark.assets.log.spec_changes import renamed
from tidemark.assets.planning import at_work, begin
from tidemark.assets.rebuild.decisions.forgetting import all_rows, blank_rows, forgets, without_values
from tidemark.assets.rebuild.decisions.replaying import (
    Revised,
    dated,
    decides_on_letters,
    letters_after,
    revised_rows,
    write_events,
)
from tidemark.assets.rebuild.differences import WindowDifference
from tidemark.assets.rebuild.log_columns import cast_log, ensure_all_fit
from tidemark.assets.rebuild.plan import RebuildPlan, own_tables
from tidemark.assets.rebuild.report import Telling, before_switch, tell_rebuilt
from tidemark.assets.rebuild.shadow import Shadow, begin_without_records, when_free
from tidemark.assets.rebuild.windows import (
    corrections,
    ensure_judged_alike,
    ensure_others_whole,
    write_letters,
    write_shared,
)
from tidemark.assets.schemas import end_tables, fit_tables, payload_of
from tidemark.assets.state.windows import has_marks, live_events
from tidemark.resources import tables
from tidemark.resources.batches.plans import REMOVED_PREFIX, Commit, Plan, RebuildInput
from tidemark.resources.catalog import keep_names
from tidemark.resources.delta.versions import ALL_ROWS, Filters, Version
from tidemark.resources.places.place import remove_tree
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.rules.reasons import Stage
from tidemark.timeops.spec.changes import with_new_names
from tidemark.timeops.spec.pipeline import canonical, digest
from tidemark.timeops.values.utc import us_of


@dataclass(frozen=True)
class Switched:
    """The result of a rebuild.

    Attributes:
        commit: The batch that switched the tables.
        differs: What differs in the tables of windows, by window; empty where neither a decision on records nor a
            correction asked for it.
    """

    commit: Commit
    differs: tuple[WindowDifference, ...]


def rebuild(workspace: Workspace, run_id: str, plan: RebuildPlan, *, telling: Telling) -> Switched:
    """Carry out a plan: compute tables again from the log under the spec as it is, and switch to them in one commit.

    Live runs may continue meanwhile; what they process comes too. A rebuild that was stopped continues where it was.

    Args:
        workspace: The pipeline.
        run_id: The id of the run or command.
        plan: All tables, or some windows.
        telling: How the written tables are reported to Dagster.

    Raises:
        LakeError: There is no log to judge, or a check failed.
        SpecError: The spec does not go with the log.
        BusyError: Another rebuild is at work.
    """
    taken_on = None
    while taken_on is None:  # otherwise the log was corrected while it was judged, or more has to be filled
        shadow = Shadow(workspace, run_id, plan)
        shadow.begin()
        shadow.catch_up()
        shadow.keep_numbers()
        taken_on = when_free(workspace, partial(_take_on, shadow, shadow.fill_rest()))
    batch, broken = taken_on
    with at_work(workspace, batch):
        state_before = before_switch(telling, shadow, broken)
        shadow.catch_up(is_last=True)
        committed = (_switch if plan.scope.of_all else _switch_windows)(shadow, batch, broken)
    keep_names(workspace)
    differs = tell_rebuilt(telling, shadow, committed, state_before)
    shadow.discard()
    return Switched(committed, differs)


def _take_on(shadow: Shadow, filled: int | None) -> tuple[Plan, Mapping[str, LakeError]] | None:
    """Take on the batch that switches the tables; return it, and the tables that are broken.

    Columns are filled from `_rescued` up to `filled`, an end of the log; None where none are. Returns None where the
    log is another one than when the rebuild began, or has records after that end.

    Raises:
        BusyError: A run is at work.
        LakeError: The spec that live runs go by has changed since the rebuild began.
    """
    workspace = shadow.workspace
    last, end = workspace.batches.last_commit(), workspace.progress.processed_end()
    if shadow.is_superseded:
        raise LakeError(
            "Another rebuild has begun, or live runs go by another spec since this one began.",
            expected="one spec until a rebuild ends",
            remedy="Run `tidemark rebuild SPEC` again: it begins from the start. The tables are as they were",
        )
    if shadow.is_outdated or (filled is not None and workspace.progress.log_end() > filled):
        return None
    broken = _unreadable(shadow) | workspace.opening.broken_tables()
    # Tables whose log is gone or cannot be read begin in an empty folder.
    lost = [table for table in broken if not _has_log(workspace, table)]
    if not shadow.plan.scope.of_all:
        ensure_others_whole(shadow, broken)
        batch_input = RebuildInput(windows=[window.name for window in shadow.chosen], lost_tables=lost)
    else:
        clocks = log_clocks(shadow.tables) if items_of(shadow.tables, *CHANGES_LOG) else None
        batch_input = RebuildInput(numbers=shadow.numbers, clocks=clocks, lost_tables=lost)
    return begin(workspace, shadow.run_id, "rebuild", batch_input.to_json(), after=last, seqs=(0, end)), broken


def _unreadable(shadow: Shadow) -> dict[str, LakeError]:
    """Return the tables that an audit found unreadable, each with its error."""
    remedy = "Rebuild all tables: `tidemark rebuild SPEC`"
    return {
        table: LakeError(f"{shadow.workspace.lake.path(table)} has rows that cannot be read.", remedy=remedy)
        for table in shadow.plan.unreadable
    }


def _has_log(workspace: Workspace, table: str) -> bool:
    try:
        workspace.lake.open(table)
    except LakeError:
        return False
    return True


def _switch(shadow: Shadow, plan: Plan, broken: Collection[str]) -> Commit:
    workspace, beside, reason = shadow.workspace, shadow.tables, shadow.plan.reason
    now = workspace.clock.now()
    made = _versions_of_shadow(shadow, [table for table in beside.tables if table != tables.LOG_CONTROL])
    _create_missing(shadow, plan, made)
    workspace.prepare(plan, but=broken)
    workspace.tell(f"switching {len(made)} tables to what was rebuilt")
    revised = _revised(shadow, plan, broken) if decides_on_letters(shadow.plan) else {}
    if revised:
        revised[tables.DEAD_LETTERS] = Revised(dated(beside.read_base(tables.DEAD_LETTERS), now), ())
    of_broken = _take_all(shadow, plan, made, broken, revised)
    ensure_all_fit(beside)  # also of records that live runs have read meanwhile
    cast_log(beside, plan)
    again = beside.lake.rows(tables.LOG_CONTROL, beside.base_of(tables.LOG_CONTROL)).sort_by("_control_seq")
    decided = [item if "_batch_id" in item else _item_at_end(workspace, item, now) for item in items_of(beside)]
    # Before the first record, as the whole log is judged again.
    begins = control_item(-1, REBUILD, reason or "tidemark rebuild")
    items = [begins, *decided, *again.to_pylist()]
    if forgets(shadow.plan):
        rows = all_rows(shadow.plan.items)
        blank_rows(workspace, plan, rows)
        rewrite_items(workspace, plan, items, without_values(rows))
    else:
        write_items(workspace, plan, items)
    end_tables(workspace)
    versions = workspace.outputs(plan, but=broken) | of_broken | _emptied(workspace, plan, made)
    batches = beside.batches.history("process")
    counts = {"records": plan.end_seq or 0, "batches": len(batches)}
    return workspace.batches.commit(plan, counts, versions, now, reason=reason, made=batches)


def _item_at_end(workspace: Workspace, item: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return a decision at its place, the end of the log, and with its instant where that is asked for."""
    at = {"clock": us_of(now)} if item["kind"] in (ADMIT, REFUSE) else {}
    return {**item, "_after_seq": workspace.progress.log_end() - 1, **at}


def _revised(shadow: Shadow, plan: Plan, broken: Collection[str]) -> dict[str, Revised | None]:
    """Return what is written to tables of windows that keep the rows which do not differ."""
    windows = {tables.window_table(window.name): window for window in shadow.chosen}
    return {table: revised_rows(shadow, plan, window) for table, window in windows.items() if table not in broken}


def _switch_windows(shadow: Shadow, plan: Plan, broken: Collection[str]) -> Commit:
    """Switch the tables of some windows, and what they share with others, to what the rebuild has made."""
    workspace, reason, now = shadow.workspace, shadow.plan.reason, shadow.workspace.clock.now()
    ensure_judged_alike(shadow)
    made = _versions_of_shadow(shadow, own_tables(shadow.chosen))
    shared = [name for name in shadow.tables.tables if name in workspace.tables and name not in made]
    _create_missing(shadow, plan, made | _versions_of_shadow(shadow, shared))
    workspace.prepare(plan, but=broken)
    fit_tables(workspace)
    workspace.tell(f"switching {len(made)} tables to what was rebuilt")
    decides = decides_on_letters(shadow.plan)
    of_broken = _take_all(shadow, plan, made, broken, _revised(shadow, plan, broken) if decides else {})
    write_shared(shadow, plan)
    items = [_item_at_end(workspace, item, now) for item in shadow.plan.items]
    if decides:
        letters = letters_after(shadow, now)
        BatchWriter(workspace, plan).replace(tables.DEAD_LETTERS, letters, where=ALL_ROWS)
        write_events(shadow, plan)
    else:
        write_letters(shadow, plan)
    spec = workspace.spec.canonical_json()
    if recorded(workspace, SPEC)[-1]["argument"] != spec:
        why = reason or "tidemark rebuild --window"
        items = [control_item((plan.end_seq or 0) - 1, SPEC, why, argument=spec), *items]
    if items:
        write_items(workspace, plan, items)
    counts, versions = corrections(shadow), workspace.outputs(plan, but=broken) | of_broken
    return workspace.batches.commit(plan, counts, versions, now, reason=reason)


def _versions_of_shadow(shadow: Shadow, names: Sequence[str]) -> dict[str, Version]:
    """Return tables of the shadow as its last commit left them."""
    beside = shadow.tables
    return {table: beside.lake.opened.version_at(table, beside.base_of(table)) for table in names}


def _create_missing(shadow: Shadow, plan: Plan, made: Mapping[str, Version]) -> None:
    lake, feeds = shadow.workspace.lake, _feeds(shadow)
    lost = RebuildInput.of(plan).lost_tables or ()
    for table, version in made.items():
        if table in lost:
            lake.remove_table(table)
        if not lake.exists(table):
            schema = StructType.fromJson(json.loads(version.schema.to_json()))
            lake.create(table, schema, change_feed=table in feeds)


def _feeds(shadow: Shadow) -> set[str]:
    return {tables.window_table(window.name) for window in shadow.workspace.spec.windows if window.change_feed}


def _take_all(
    shadow: Shadow,
    plan: Plan,
    made: Mapping[str, Version],
    broken: Collection[str],
    revised: Mapping[str, Revised | None],
) -> dict[str, int]:
    """Let tables take over what the rebuild has made, or get other rows; return the versions of the broken ones."""
    lake, feeds, broken_versions = shadow.workspace.lake, _feeds(shadow), {}
    for table, version in made.items():
        if table in revised:
            if (revision := revised[table]) is not None:
                BatchWriter(shadow.workspace, plan).replace(table, revision.rows, where=revision.where)
            continue
        expect = lake.newest(table, 0)
        # With a change feed only the rows that differ are changed, if the columns are the same.
        if table in feeds and table not in broken and lake.opened.version_at(table).schema == version.schema:
            rows = shadow.tables.lake.read(table, version.number)
            written = lake.replace(table, rows, where=ALL_ROWS, attempt=plan.attempt, expect=expect)
        else:
            written = lake.take_over(table, version, attempt=plan.attempt, expect=expect)
        if table in broken:
            broken_versions[table] = written.version
    return broken_versions


def _emptied(workspace: Workspace, plan: Plan, made: Collection[str]) -> dict[str, int]:
    """Empty the tables of state that the spec no longer has: a later spec must not continue from their rows."""
    last = workspace.batches.last_commit()
    versions = last.table_versions if last else {}
    ended = [name for name in versions if name.startswith("_state/") and name not in made and name != tables.FILES]
    lake = workspace.lake
    return {
        table: lake.empty(table, attempt=plan.attempt, expect=lake.newest(table, 0)).version
        for table in ended
        if lake.exists(table) and _has_log(workspace, table)
    }


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
    """Let windows and sources that the spec calls otherwise continue under the new names, if there are any.

    Tables of windows continue. What is stored of sources stays as it is: an item of `log_control` says what they are
    called from here on, before anything is read under the new name. All tables have been created, and take the spec.

    Raises:
        BusyError: Another run is at work.
    """
    names, sources = renamed(workspace), renamed(workspace, "sources")
    if not names and not sources:
        return
    spec = with_new_names(json.loads(recorded(workspace, SPEC)[-1]["argument"]), names)
    spec = with_new_names(spec, sources, "sources")
    spec_text = canonical(spec)
    batch_input = RebuildInput(windows=[*names], renamed=names, renamed_sources=sources)
    # The fingerprint is not that of the spec before: a run by that one must not find its tables prepared.
    plan = begin_without_records(workspace, run_id, batch_input, digest(spec_text))
    with at_work(workspace, plan):
        workspace.prepare(plan)
        for old, new in _tables_of(workspace, names):
            workspace.tell(f"{old} continues as {new}")
            version, lake = workspace.lake.opened.version_at(old, workspace.base_of(old)), workspace.lake
            lake.take_over(new, version, attempt=plan.attempt, expect=workspace.ready(new, plan))
        for new, old in sources.items():
            workspace.tell(f"source {old} continues as {new}")
        if names:
            _rename_in_marks(workspace, plan, names)
            _rename_in_letters(workspace, plan, names)
        why = ", ".join(f"{old} is {new} now" for new, old in [*names.items(), *sources.items()])
        write_items(workspace, plan, [control_item((plan.end_seq or 0) - 1, SPEC, why, argument=spec_text)])
        end_tables(workspace)
        versions, now = workspace.outputs(plan), workspace.clock.now()
        workspace.batches.commit(plan, _counts(workspace, names), versions, now, reason=why)


def _tables_of(workspace: Workspace, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the tables that continue: the old name and the new one."""
    last = workspace.batches.last_commit()
    versions = last.table_versions if last else {}
    for new, old in names.items():
        for table in _OF_WINDOW:
            if table(old) in versions and table(new) in workspace.tables:
                yield table(old), table(new)


def _rename_in_marks(workspace: Workspace, plan: Plan, names: Mapping[str, str]) -> None:
    """Rename the windows for which events of sessions and sliding windows are stored."""
    mark, now = tables.open_in_column(payload_of(workspace).names), {old: new for new, old in names.items()}
    of_events = [window for window in workspace.spec.event_windows if window.name in names]
    for table in dict.fromkeys(tables.needed_table(window) for window in of_events):
        if has_marks(table) and workspace.lake.row_count(table, workspace.base_of(table)):
            rows = live_events(workspace, table)
            rows = rows.withColumn(mark, F.transform(mark, lambda name: c.named(name, now)))
            BatchWriter(workspace, plan).replace(table, rows, where=ALL_ROWS)


def _rename_in_letters(workspace: Workspace, plan: Plan, names: Mapping[str, str]) -> None:
    """Rename the windows in dead letters: also in their sentences, and in the sentences of windows over them."""
    over = [window.name for window in workspace.spec.chained_windows if window.input in names]
    theirs: Filters = [("stage", "=", Stage.WINDOW), ("window_name", "in", [*names.values(), *over])]
    letters = workspace.read_base(tables.DEAD_LETTERS, filters=theirs)
    if not letters.take(1):
        return
    detail: Column = F.col("detail")
    for new, old in names.items():
        for opening, ending in _IN_SENTENCES:
            detail = F.regexp_replace(detail, f"(?s)^({opening}){old}({ending})", f"$1{new}$2")
    window = c.named("window_name", {old: new for new, old in names.items()})
    renamed_letters = letters.withColumns({"window_name": window, "detail": detail})
    BatchWriter(workspace, plan).replace(tables.DEAD_LETTERS, renamed_letters, where=theirs)


def _counts(workspace: Workspace, names: Mapping[str, str]) -> Mapping[str, int]:
    """Return the counts of the windows under the new names, and the same counts subtracted under the old ones."""
    counts: Counter[str] = Counter()
    for commit in workspace.batches.counted():
        for count, n in commit.counts.items():
            for new, old in names.items():
                if (renamed_count := _under(new, old, count)) is not None:
                    counts[count] -= n
                    counts[renamed_count] += n
    return {name: n for name, n in counts.items() if n}


def _under(new: str, old: str, count: str) -> str | None:
    """Return a count of a window, or of what `retention` has removed of it, under a new name; None of another."""
    removed = REMOVED_PREFIX if count.startswith(REMOVED_PREFIX) else ""
    name = count.removeprefix(removed)
    if name in (f"windows/{old}", f"history/{old}"):
        return f"{removed}{name.partition('/')[0]}/{new}"
    window, _, kind = name.rpartition(".")
    return f"{removed}{new}.{kind}" if window == old else None


def drop_windows(workspace: Workspace, run_id: str, names: Sequence[str], reason: str | None = None) -> Commit:
    """Delete the tables of windows that the spec no longer has: one commit that omits them, then the files.

    Killed in between, the same call deletes what is left.

    Raises:
        SpecError: A window is in the spec, or there is no table of it.
    """
    last = workspace.batches.last_commit() if workspace.exists else None
    versions = last.table_versions if last else {}
    ended = [name.removeprefix("windows/") for name in versions if name.startswith("windows/")]
    ended = [name for name in ended if name not in workspace.window_tables]
    for name in names:
        if name in workspace.window_tables:
            raise SpecError(
                f"`{name}` is a window of {workspace.spec.name}",
                expected="a window that is gone from the spec",
                remedy="take it out of `windows` first",
            )
        if name not in ended and not any(workspace.lake.exists(table(name)) for table in _OF_WINDOW):
            expected = f"one of {', '.join(ended)}" if ended else "a window that was taken out of the spec"
            mistake = f"{workspace.spec.name} has no table of a window `{name}`"
            raise SpecError(mistake, expected=expected, remedy=did_you_mean(name, ended))
    dropped = [table(name) for name in names for table in _OF_WINDOW]
    plan = when_free(workspace, partial(begin_without_records, workspace, run_id, RebuildInput(dropped=[*names])))
    with at_work(workspace, plan):
        committed = workspace.batches.commit(plan, {}, {}, workspace.clock.now(), reason=reason, dropped=dropped)
    for table in dropped:
        remove_tree(workspace.lake.path(table))
    return committed
