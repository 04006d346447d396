"""One version of a Delta table as it is read: the effect of its commits on rows, and the spec's decision on it.

Here: judging commits, and the files and columns for reading them. Not here: entries of the log (delta/log.py), the
choice of versions (delta_tables.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence

from tidemark.resources.delta.log import Commit, DataFile, Layout, place_of
from tidemark.resources.places.place import Place
from tidemark.resources.sources.fitness import check_names, names_there
from tidemark.resources.sources.known_versions import Before, How, TableVersion, path_of
from tidemark.timeops.errors import InputError
from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.spec import DeltaSource
from tidemark.timeops.spec.fields import names_in_files
from tidemark.timeops.utc import instant_of

ANEW = "to read the table anew, choose another name or warehouse for the pipeline"
_FOLLOW = "take them in with `changes: follow`: the log is corrected, and what was computed of it is made anew"
_BY_FEED = (
    "; in a pipeline of another `name`, `changes: rows` reads what later commits change, as rows with "
    "`_change_type`, where the table keeps a change data feed"
)


def judged(
    source: DeltaSource,
    folder: Place,
    commits: Sequence[Commit],
    layout: Layout,
    at_us: int,
    *,
    layout_before: Callable[[int], Layout],
    is_of_pipeline: bool = False,
) -> TableVersion:
    """Return the version to read for one commit, or for the commits of one batch of another pipeline.

    Args:
        source: The source of the spec.
        folder: Folder of the table.
        commits: One, or several that follow each other.
        layout: The layout of the table after them.
        at_us: The order time of the last one, microseconds since the epoch.
        layout_before: Returns the layout of the table at a version.
        is_of_pipeline: Whether the table belongs to a Tidemark pipeline.

    Raises:
        InputError: The version cannot be read, or the spec refuses it.
    """
    last = commits[-1]
    added, lost = _net(commits)
    how: How = "added" if added else "nothing"
    said, files, size, before = "", tuple(added), 0, None
    is_changed = bool(lost) or any(file.has_vector for file in added)
    if is_changed and source.changes == "follow":
        before = _before(commits[0].version - 1, layout_before, lost, added)
        how, files = "corrected", () if before.files is None else files
        size = sum(file.size for file in (*lost.values(), *(added if before.files is None else ())))
        check_files(folder, [file.path for file in (*added, *lost.values())], last.version, "changed")
    elif is_changed:
        how, files, said = _changed(source, folder, commits, layout, is_of_pipeline=is_of_pipeline)
        size = sum(file.size for file in (*last.feed, *last.added)) if how == "changed" else 0
    elif added:
        check_files(folder, [file.path for file in added], last.version, "added")
    if how != "nothing":
        check_fits(source, folder, layout, last.version)
    size, rows = size + sum(file.size for file in files), sum(file.rows for file in files)
    is_timed = last.at_us is not None
    about = (at_us, size, rows, files, layout, last.entry, said, is_timed)
    return TableVersion(folder, last.version, how, *about, before)


def _before(
    version: int, layout_at: Callable[[int], Layout], lost: Mapping[str, DataFile], added: Sequence[DataFile]
) -> Before:
    """Return the table before commits that removed rows."""
    layout = layout_at(version)
    untold = bool(layout.partitions) and any(not json.loads(file.partition) for file in lost.values())
    if untold or any(file.has_vector for file in (*lost.values(), *added)):
        return Before(version, layout, None)
    return Before(version, layout, tuple(lost.values()))


def _changed(
    source: DeltaSource, folder: Place, commits: Sequence[Commit], layout: Layout, *, is_of_pipeline: bool
) -> tuple[How, tuple[DataFile, ...], str]:
    """Return how a version that changes rows is read, its files, and a sentence if it is not read.

    Raises:
        InputError: The spec refuses the version.
    """
    last = commits[-1]
    at = (
        "at a time that it does not say"
        if last.at_us is None
        else f"at {instant_of(last.at_us):%Y-%m-%d %H:%M:%S} UTC"
    )
    why = ": its pipeline has computed results anew, as a backfill or a revision does" if is_of_pipeline else ""
    what = f"{path_of(folder, last.version)} ({last.operation} {at}) updates or deletes rows{why}"
    if source.changes == "ignore":
        return "nothing", (), f"{what}: passed over whole, as `changes` is ignore"
    if source.changes == "fail":
        raise InputError(
            what,
            expected="commits that only add rows, as `changes` is fail",
            remedy=f"{_FOLLOW}. To go on without them, set `start_version: {last.version + 1}`: this commit is "
            f"passed over, also rows that it adds, and what was computed from the old rows stays"
            f"{'' if is_of_pipeline else _BY_FEED}",
        )
    if len(commits) > 1 and layout.has_change_feed:
        raise InputError(
            f"{what}, and so do other commits of the same batch: of several, the change data feed is not read",
            expected="windows of another pipeline that only ever have final rows",
            remedy="set `changes: follow`, or read `history/<name>`, where its window has `history: true`",
        )
    if not layout.has_change_feed:
        raise InputError(
            f"{what}, and the table kept no change data feed then",
            expected="a table with delta.enableChangeDataFeed = true, as `changes` is rows",
            remedy="set this property before rows are changed, or read `history/<name>` of a Tidemark pipeline; "
            "`changes: ignore` in a pipeline of another name passes over such commits",
        )
    needed = [file.path for file in last.feed or (*last.added, *last.removed)]
    check_files(folder, needed, last.version, "changed")
    return "changed", (), ""


def check_fits(source: DeltaSource, folder: Place, layout: Layout, version: int) -> None:
    """Check that a table has the columns of the spec; their types are checked when rows are read.

    Raises:
        InputError: A column is missing.
    """
    wanted, path = names_in_files(top_level_names(source.columns), source.rename).values(), path_of(folder, version)
    there = names_there(path, source, list(wanted), layout.columns, of="table")
    check_names(path, list(there.values()), layout.columns, of="table")


def check_files(folder: Place, paths: Sequence[str], version: int, what: str) -> None:
    """Check that files still exist.

    Raises:
        InputError: A file was deleted.
    """
    for path in paths:
        if not place_of(path, folder).exists():
            raise InputError(
                f"{path_of(folder, version)} {what} {path}, and this file is gone",
                expected="all files of versions that were not read yet",
                remedy="let VACUUM keep files for longer than this pipeline may lag "
                f"(delta.deletedFileRetentionDuration); `start_version: {version + 1}` passes over this version, "
                f"and its rows are missing then; {ANEW}",
            )


def _net(commits: Sequence[Commit]) -> tuple[list[DataFile], dict[str, DataFile]]:
    """Return the files that commits added together, and the earlier files that they removed.

    A file that one of them added and a later one removed is in neither: so an undone attempt leaves no trace.
    """
    added: dict[str, DataFile] = {}
    lost: dict[str, DataFile] = {}
    for commit in commits:
        gone = set(lost)
        for file in commit.removed:
            if added.pop(file.path, None) is None:
                lost[file.path] = file
        for file in commit.added:
            if file.path in gone and not file.has_vector:
                lost.pop(file.path, None)
            else:
                added[file.path] = file
    return list(added.values()), lost
