"""Discovery: which files the next ingestion reads, which wait, and which were changed behind the lake's back.

Here: the choice among a source's files, on the driver. Not here: Spark, records, what the lake remembers.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from resources.sources.changes import Candidate, FileRange, FileState, candidate, examine
from resources.sources.local_files import fixed_folder, has_wildcard, matching_paths
from timeops.epoch import instant_of
from timeops.errors import InputError
from timeops.spec import FilesSource

__all__ = ["Discovery", "FileRange", "FileState", "discover", "listed"]


@dataclass(frozen=True)
class Discovery:
    """What was found in a source's folder.

    Attributes:
        ready: To be read now, in path order.
        waiting: Younger than `settle`.
        left: How many files are beyond max_files or max_bytes; they come with the next ingestion.
        errors: Each names one file; that file only is held back.
        touched: Known files with a new modification time and the same bytes: states to remember.
    """

    ready: tuple[FileRange, ...]
    waiting: tuple[str, ...]
    left: int
    errors: tuple[InputError, ...]
    touched: tuple[FileState, ...] = ()


def discover(source: FilesSource, base: Path, known: Mapping[str, FileState], now: datetime) -> Discovery:
    """Compare the files of a source with what the lake remembers of them.

    A file with `now - modified < settle` waits; with no `settle` none does. A known file of the same size and
    modification time is done and not opened; one that vanished is nothing.

    Args:
        source: The files source of the spec.
        base: The folder of the spec file.
        known: State by absolute path, of this source only.
        now: The present instant, aware.

    Raises:
        InputError: The path of the source leads nowhere.
    """
    paths = matching_paths(source.path, base)
    if not paths and not known:
        _check_path(source, base)
    candidates: list[Candidate] = []
    waiting: list[str] = []
    errors: list[InputError] = []
    for path in paths:
        try:
            file = candidate(path, known.get(path))
        except InputError as error:
            errors.append(error)
            continue
        if file is None:
            continue
        age = now - instant_of(file.modified_us)
        if source.settle > timedelta(0) and age < source.settle:
            waiting.append(path)
        else:
            candidates.append(file)
    ready, touched, refused, left = _examine_within_bounds(source, candidates)
    return Discovery(tuple(ready), tuple(waiting), left, (*errors, *refused), tuple(touched))


def listed(source: FilesSource, base: Path) -> list[tuple[str, int, int]]:
    """Path, size and modification time (microseconds) of a source's files; none is opened.

    Raises:
        InputError: The folder of the source cannot be listed.
    """
    found = []
    for path in matching_paths(source.path, base):
        try:
            seen = os.stat(path)
        except OSError:
            found.append((path, -1, -1))
        else:
            found.append((path, seen.st_size, seen.st_mtime_ns // 1000))
    return found


def _check_path(source: FilesSource, base: Path) -> None:
    folder = fixed_folder(source.path, base)
    if folder.is_dir() and has_wildcard(source.path):
        return
    missing = f"there is no file {source.path!r}" if folder.is_dir() else f"there is no folder {folder}"
    raise InputError(
        f"Source {source.name!r}: wrong path: {missing}",
        expected=f"files at {source.path!r}, relative to {base}",
        remedy="correct `path` of the source, or create what it names",
    )


def _examine_within_bounds(
    source: FilesSource, candidates: Sequence[Candidate]
) -> tuple[list[FileRange], list[FileState], list[InputError], int]:
    """Read files in path order up to max_files or max_bytes: (ready, touched, errors, number left)."""
    ready: list[FileRange] = []
    touched: list[FileState] = []
    errors: list[InputError] = []
    queue, room_bytes = list(candidates), source.max_bytes
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        while batch := _fitting(queue, source.max_files - len(ready), room_bytes, at_least_one=not ready):
            queue = queue[len(batch) :]
            for file, outcome in zip(batch, pool.map(partial(examine, source), batch), strict=True):
                if isinstance(outcome, FileRange):
                    ready.append(outcome)
                    room_bytes -= file.new_bytes
                elif isinstance(outcome, FileState):
                    touched.append(outcome)
                else:
                    errors.append(outcome)
    return ready, touched, errors, len(queue)


def _fitting(queue: Sequence[Candidate], files: int, room_bytes: int, *, at_least_one: bool) -> list[Candidate]:
    batch: list[Candidate] = []
    for file in queue[: max(files, 0)]:
        if file.new_bytes > room_bytes and not (at_least_one and not batch):
            break
        batch.append(file)
        room_bytes -= file.new_bytes
    return batch
