"""Audit of files: every table and every file that a commit names is there, whole and readable, as it was written.

Here: tables, their logs, their files, changes by other programs. No row is looked at but for whether it can be read.
Not here: what the rows say (the other files of this room).
"""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from tidemark.assets.audit.findings import Finding, Remedy, scope_of, some, wrong_rows
from tidemark.assets.rebuild.plan import own_tables
from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Commit, RebuildInput
from tidemark.resources.delta.history import History, Lifetime, history_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.log import Since, changes_since, entries_of
from tidemark.resources.delta.undoing import ForeignChange
from tidemark.resources.places.place import Place, files_below, relative
from tidemark.resources.workspace import Workspace
from tidemark.timeops.columns import SEQ
from tidemark.timeops.errors import LakeError
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.spec.scope import Scope

_AT_ONCE = 64
"""Files whose pages are read between two looks at what was found."""


def audit_files(workspace: Workspace) -> Iterator[Finding]:
    """Look at the tables of the last commit, and yield what is lost, damaged or changed by others."""
    last = workspace.batches.last_commit()
    committed = dict(last.table_versions) if last else {}
    named = _versions_named(workspace)
    yield from _audit_table(workspace, tables.BATCHES, None, ())
    for table in workspace.tables:
        if table in committed or workspace.lake.exists(table):  # else the next batch creates it
            workspace.tell(f"looking at the files of {table}")
            yield from _audit_table(workspace, table, committed.get(table, 0), named.get(table, set()))


def _versions_named(workspace: Workspace) -> Mapping[str, set[int]]:
    """Return the versions of each table that commits name, since all its rows were computed again last.

    What `tidemark forget` has erased is gone from all earlier versions, with their files.
    """
    named: dict[str, set[int]] = {}
    for commit in workspace.batches.every_commit():
        if commit.plan.kind == "rebuild" and RebuildInput.of(commit.plan).erased:
            named.clear()
        for table in _renewed_by(workspace, commit):
            named.pop(table, None)
        for table, version in commit.table_versions.items():
            named.setdefault(table, set()).add(version)
    return named


def _renewed_by(workspace: Workspace, commit: Commit) -> Collection[str]:
    """Return the tables that have nothing left from before a rebuild."""
    if commit.plan.kind != "rebuild":
        return ()
    rebuild = RebuildInput.of(commit.plan)
    if rebuild.numbers:
        return [table for table in workspace.tables if table not in tables.OF_THE_LOG]
    names = rebuild.windows if not rebuild.renamed else ()
    return own_tables([window for window in workspace.spec.windows if window.name in names])


def _audit_table(
    workspace: Workspace, table: str, committed: int | None, named: Collection[int]
) -> Iterator[Finding]:
    lake = workspace.lake
    if not lake.exists(table):
        yield lost(workspace, table, "the table is gone, or its log is")
        return
    try:
        latest = lake.version(table, committed)
    except LakeError as error:
        yield lost(workspace, table, error.found.rstrip("."))
        return
    if committed is not None and latest < committed:
        sentence = f"it is at version {latest}, and the last commit names version {committed}"
        yield lost(workspace, table, sentence)
        return
    try:
        base = latest if committed is None else workspace.base_of(table)
        since = None if committed is None else changes_since(lake.path(table), committed, latest)
    except LakeError as error:
        yield lost(workspace, table, error.found.rstrip("."))
        return
    if since is not None:
        yield from _changed(workspace, table, since)
    stored = _stored(lake.path(table))
    history = history_of(lake.path(table), latest)
    yield from _audit_log(workspace, table, history, {base, *named}, stored)
    if committed is not None and any(file.is_mended and file.is_in(committed) for file in history.files):
        sentence = (
            f"version {committed}, which the last commit names, lacks a file whose rows version {base} has again"
        )
        yield Finding(table, f"{sentence}: readers of commits cannot open it", "commit", Scope.NOTHING)
    yield from _audit_pages(workspace, table, base, stored)


def _changed(workspace: Workspace, table: str, since: Since) -> Iterator[Finding]:
    """Look for changes since the last commit that no attempt made, or one that the log of batches does not know."""
    for change in since.foreign:
        sentence = str(ForeignChange(table, change)).removeprefix(f"{table}: ")
        yield Finding(table, f"another program has changed it: {sentence}", "take_back")
    newest = max((entry.attempt for entry in since.left), default=0)
    # A run may have begun meanwhile, so another look is needed.
    if newest > workspace.batches.newest_attempt() and newest > BatchLog(Lake(workspace.folder)).newest_attempt():
        sentence = f"it is older than other tables: it has no attempt {newest}, which wrote some of them"
        yield Finding(tables.BATCHES, sentence, "backup")


def lost(workspace: Workspace, table: str, sentence: str) -> Finding:
    """Return the finding for a table that is lost as a whole, or cannot be opened."""
    remedy: Remedy = "backup" if table in tables.OF_THE_LOG else "rebuild"
    return Finding(table, sentence, remedy, scope_of(workspace, table), is_unreadable=True)


def _audit_log(
    workspace: Workspace, table: str, history: History, versions: Collection[int], stored: Mapping[str, int]
) -> Iterator[Finding]:
    """Compare the files that some versions name with the files that are stored."""
    folder, base = workspace.lake.path(table), max(versions)
    lacks = history.lacks_for(min(versions))
    if lacks:
        entries = plural(len(lacks), "entry of its log is", "entries of its log are")
        yield lost(workspace, table, f"{entries} missing or damaged, of version {some(lacks)}")
    # A log with gaps does not say how long its files lived.
    complete_versions = versions if history.is_whole else ()
    wrong = [file for file in history.named_by(complete_versions) if stored.get(file.path) != file.size]
    if wrong:  # upkeep may have deleted old ones meanwhile, and says so before
        again = history_of(folder, entries_of(folder)[-1]).named_by(complete_versions)
        wrong = [file for file in wrong if any(file.path == other.path for other in again)]
    if not history.is_whole:
        sizes = workspace.lake.opened.version_at(table, base).sizes
        wrong = [Lifetime(path, size, None, base) for path, size in sizes.items() if stored.get(path) != size]
    for file in wrong:
        size = stored.get(file.path)
        fault = "is missing" if size is None else f"has {size:,} bytes of {file.size:,}"
        yield _of_file(workspace, table, file, fault, is_old=not file.is_in(base))


def _stored(folder: Place) -> Mapping[str, int]:
    """Return the bytes of each stored file by its name in the log: of a store one request lists a thousand."""
    return {relative(place, folder): status.st_size for place, status in files_below(folder, "**/*.parquet")}


def _of_file(workspace: Workspace, table: str, file: Lifetime, fault: str, *, is_old: bool) -> Finding:
    rows = "" if file.rows is None else f", with {plural(file.rows, 'row')}"
    sentence = f"the file {file.path} {fault}{rows}"
    if is_old:
        return wrong_rows(workspace, table, f"{sentence}; only versions of earlier commits have it")
    return broken_file(workspace, table, file.path, sentence)


def broken_file(workspace: Workspace, table: str, path: str, sentence: str) -> Finding:
    """Return the finding for a file of the last commit that is lost or damaged."""
    if table != tables.RAW_EVENTS:
        return replace(lost(workspace, table, sentence), file=path)
    version = workspace.lake.opened.version_at(table, workspace.base_of(table))
    bounds = version.bounds_by_file(SEQ).get(path)
    # Only all the numbers between two bounds can be read again by them.
    if bounds is None or version.row_count([path]) != bounds[1] - bounds[0] + 1:
        return replace(lost(workspace, table, sentence), file=path)
    sentence = f"{sentence}: records {bounds[0]:,} to {bounds[1]:,}"
    return Finding(table, sentence, "reread", is_unreadable=True, file=path, seqs=bounds)


def _audit_pages(workspace: Workspace, table: str, version: int, stored: Mapping[str, int]) -> Iterator[Finding]:
    """Read every page of the files that a version has; the ones that are missing or short are found already."""
    table_version = workspace.lake.opened.version_at(table, version)
    files = [path for path, size in table_version.sizes.items() if stored.get(path) == size]
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        for first in range(0, len(files), _AT_ONCE):
            some_files = files[first : first + _AT_ONCE]
            for path, fault in zip(some_files, pool.map(table_version.fault_of, some_files), strict=True):
                if fault:
                    yield broken_file(workspace, table, path, f"the file {path} {fault}")
