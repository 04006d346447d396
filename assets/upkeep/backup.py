"""A copy of a pipeline's tables as of its last commit, made while it runs.

Here: which files belong to that commit, and the check that the copy is whole. Not here: what a person types
(pipelines/commands/operating.py), how a copy is used (docs/how-to/back-up-and-move.md).

Copying the folder with any other program takes the tables one after the other: a batch that commits meanwhile is in
some of them alone. Here the log of each table ends with the version that the commit names.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.log import LOG_FOLDER
from tidemark.resources.places.place import Place, files_below, relative
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError

_NUMBERED = re.compile(r"\.?(\d{20})\..*")
_POINTER = "_last_checkpoint"  # names the newest checkpoint, which may be beyond the commit; readers find it without


@dataclass(frozen=True)
class Backup:
    """The files that were copied.

    Attributes:
        folder: The tables of the copy.
        commit: The last commit, which the copy ends with.
        files: How many files it has.
        bytes: Their size.
    """

    folder: Place
    commit: Commit
    files: int
    bytes: int


def back_up(workspace: Workspace, warehouse: Place) -> Backup:
    """Copy all tables of a pipeline, as of its last commit, into another warehouse.

    Older commits that are still readable are readable in the copy. A batch at work is left out, and has no owner
    there: the next run in the copy begins it again.

    Raises:
        SpecError: Nothing is committed, or something is already where the copy belongs.
        LakeError: A file of the commit is missing or damaged.
    """
    commit, versions = _pinned(workspace)
    target = warehouse / workspace.spec.name
    if next(files_below(target, "**/*"), None) is not None:
        raise SpecError(
            f"{target} is not empty.",
            expected="a folder without tables of this pipeline: a copy is never made over another one",
            remedy="name another folder, such as one with the date in its name",
        )
    files = size = 0
    workspace.tell(f"copying batch {commit.batch_id}")
    for file, name, file_bytes in _files_to_copy(workspace, versions):
        if _copied(file, target / str(name)):
            files, size = files + 1, size + file_bytes
    copy = Workspace(workspace.file, warehouse, clock=workspace.clock)
    replace(copy.opening, names=tuple(commit.table_versions)).ensure_whole()  # also windows that the spec lacks now
    if (begun := copy.batches.pending()) is not None:
        copy.batches.release(begun, workspace.clock.now())
    return Backup(target, commit, files, size)


def _pinned(workspace: Workspace) -> tuple[Commit, dict[str, int]]:
    """Return the last commit and the version of each table that belongs to it, `batches` among them."""
    with workspace.batches.as_of_now():
        commit = workspace.batches.last_commit() if workspace.exists else None
        if commit is None:
            raise SpecError(
                f"{workspace.spec.name}: nothing is committed in {workspace.folder}.",
                expected="a pipeline that has run",
                remedy="run it first, or name its warehouse with --warehouse",
            )
        versions = {table: workspace.base_of(table) for table in commit.table_versions}
        return commit, versions | {tables.BATCHES: workspace.lake.version(tables.BATCHES)}


def _files_to_copy(workspace: Workspace, versions: dict[str, int]) -> Iterator[tuple[Place, PurePosixPath, int]]:
    """Yield each file, its path in the pipeline's folder, and its size; logs of tables end with these versions.

    Logs come first: whatever file they name is then still to be listed.
    """
    folder = workspace.folder
    for pattern in (f"**/{LOG_FOLDER}/*", "**/*"):
        for file, status in files_below(folder, pattern):
            name = PurePosixPath(relative(file, folder))
            if isinstance(file, Path) and not file.is_file():
                continue
            if (LOG_FOLDER in name.parts) == (LOG_FOLDER in pattern) and _belongs(name, versions):
                yield file, name, status.st_size


def _belongs(name: PurePosixPath, versions: dict[str, int]) -> bool:
    """Return whether a file may belong to the commit, or to one before it."""
    if any(name.is_relative_to(folder) for folder in tables.COPIES) or name.name == _POINTER:
        return False
    if LOG_FOLDER not in name.parts:
        return True
    table = str(PurePosixPath(*name.parts[: name.parts.index(LOG_FOLDER)]))
    numbered = _NUMBERED.fullmatch(name.name)
    return table not in versions or numbered is None or int(numbered[1]) <= versions[table]


def _copied(file: Place, target: Place) -> bool:
    """Copy a file; return False if it is gone by now, as a file that an unfinished write has left may be."""
    try:
        if isinstance(file, Path) and isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)  # no link: a copy has to survive the disk of the original
        else:
            _write(target, file.read_bytes())
    except FileNotFoundError:
        return False
    return True


def _write(target: Place, data: bytes) -> None:
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
