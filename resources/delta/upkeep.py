"""Upkeep of a table: few files, bounds that each reader understands, none that is obsolete, old versions readable.

Not here: which tables have upkeep, and which versions have to stay (pipelines/code_location/upkeep.py), writing files
(resources/delta/files.py).

Upkeep does not change rows, and may continue during a run: Delta keeps the commits of both apart, and the later one
tries again.
"""

import math
import re
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from tidemark.resources.delta.files import (
    FOLDER_OF_WRITE,
    UNLIMITED,
    columns_with_bounds,
    footers_of_joined,
    interval,
    remove_left_over,
    statistics,
)
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.log import LOG_FOLDER, entry_path
from tidemark.resources.delta.versions import DELETED_FILE_RETENTION, files_beyond_bounds, files_of
from tidemark.resources.places.place import Place, files_below, relative
from tidemark.timeops.errors import SpecError
from tidemark.timeops.values.durations import parse_duration

FILE_BYTES = 64_000_000
"""Size of a file that is worth having; smaller ones are joined."""

_FEW_FILES = 8  # small files that stay as they are: joining them would cost more than it saves
_SORTED_BYTES = 256_000_000  # a larger table is not sorted
_FORGOTTEN = timedelta(days=1)  # a file that is so old and belongs to no version comes from a failed write
_TRIES = 5
_IN_LOG = re.compile(r"\.?(\d{20})\.(.+)")
_CHECKPOINT = "checkpoint.parquet"
_WEEK = timedelta(days=7)
"""The retention of a table whose properties do not mention it."""


@dataclass(frozen=True)
class Size:
    """The space that a table takes.

    Stored data files are in its folder, of any version; live ones are in its latest version, as are `files`.
    """

    files: int
    stored: int
    stored_bytes: int
    log_bytes: int
    live_bytes: int

    @property
    def in_all(self) -> int:
        """Bytes of all its files."""
        return self.stored_bytes + self.log_bytes

    @property
    def of_old_versions(self) -> int:
        """Bytes of data files that its latest version no longer has."""
        return max(self.stored_bytes - self.live_bytes, 0)


def size_of(lake: Lake, table: str) -> Size:
    """Return the space that a table takes on disk."""
    folder, patterns = lake.path(table), ("*.parquet", f"{FOLDER_OF_WRITE}*/*.parquet")
    data = [file_stat.st_size for pattern in patterns for _, file_stat in files_below(folder, pattern)]
    log = sum(file_stat.st_size for _, file_stat in files_below(folder / "_delta_log", "*.*"))
    live = _file_sizes(lake, table)
    return Size(len(live), len(data), sum(data), log, sum(live))


def compact(lake: Lake, table: str, by: str | None = None) -> bool:
    """Join the small files of a table, if there are many, in one commit.

    Files that were written one after the other are joined, so that each has a short range of values that grow with
    time. If the table is read in the order of another column, `by`, and is not large, it is sorted by it.

    Return whether files were joined. A run that is faster every time goes first.
    """
    for _ in range(_TRIES):
        sizes = _file_sizes(lake, table)
        if sum(size < FILE_BYTES // 2 for size in sizes) <= _FEW_FILES:
            return False
        delta = lake.open(table)
        optimizer, written_as = delta.optimize, footers_of_joined(lake.opened.version_of(table, delta))
        try:
            if by is not None and sum(sizes) <= _SORTED_BYTES:
                optimizer.z_order([by], target_size=FILE_BYTES, writer_properties=written_as)
            else:
                optimizer.compact(target_size=FILE_BYTES, writer_properties=written_as)
        except CommitFailedError:
            continue
        return True
    return False


def mend_bounds(lake: Lake, table: str) -> None:
    """Write bounds that each reader understands where another writer, or an earlier version, wrote others.

    One commit of maintenance names the files again, with other statistics.
    """
    version = lake.opened.version_at(table)
    wrong = {*files_beyond_bounds(version.actions, version.dataset.schema)}
    if not wrong:
        return
    files, named = files_of(version.folder), []
    for path, size in version.sizes.items():
        if path in wrong:
            stats = statistics(pq.read_metadata(path, filesystem=files), columns_with_bounds(version))
            changed_ms = int((version.folder / path).stat().st_mtime * 1000)
            named.append(AddAction(path, size, {}, changed_ms, data_change=False, stats=stats))
    with suppress(CommitFailedError):  # a run that is faster goes first; the next upkeep tries again
        lake.name_again(table, named, version.number)


def vacuum(lake: Lake, table: str, retain: timedelta, keep: Sequence[int]) -> int:
    """Delete the files of a table that have been in no version for some time, rounded up to whole hours.

    The files of the versions to keep stay, however long ago these were the latest. Return the bytes of the deleted
    files.
    """
    hours = math.ceil(retain / timedelta(hours=1))
    full = retain >= _FORGOTTEN  # a younger file that no version names may be of a write at work
    delta = lake.open(table)
    versions = sorted(set(keep))
    folder = lake.path(table)
    remove_left_over(folder, _FORGOTTEN)
    # A dry run first: delta-rs says which files it deletes, and not how large they were.
    old = delta.vacuum(hours, enforce_retention_duration=False, full=full, keep_versions=versions)
    old_paths = set(old)
    old_files = [file_stat for path, file_stat in files_below(folder, "**/*") if relative(path, folder) in old_paths]
    if not old_files:  # it also names deleted ones
        return 0
    freed: int = sum(file_stat.st_size for file_stat in old_files)
    with suppress(CommitFailedError):  # the files are deleted; only their note in the log met another commit
        delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=full, keep_versions=versions)
    return freed


def trim_log(lake: Lake, table: str, retain: timedelta, keep: Sequence[int]) -> int:
    """Delete the entries of a table's log that only old versions need; return their bytes.

    Delta's own clean-up is off, because it does not know about commits. Like Delta's, it deletes everything before a
    checkpoint: one that is not after the versions to keep, nor after a version that was the latest within the
    retention.
    """
    files: dict[int, list[tuple[Place, Any]]] = {}
    ages: dict[int, float] = {}
    checkpoints: dict[int, Place] = {}
    for place, file_stat in files_below(lake.path(table) / LOG_FOLDER, "*.*"):
        if (match := _IN_LOG.fullmatch(place.name)) is not None:
            number = int(match[1])
            files.setdefault(number, []).append((place, file_stat))
            if match[2] == "json":
                ages[number] = time.time() - file_stat.st_mtime
            elif match[2] == _CHECKPOINT:
                checkpoints[number] = place
    old = [*takewhile(lambda version: ages[version] >= retain.total_seconds(), sorted(ages))]
    first = min([*old[-1:], *keep]) if old else -1
    begins = max((number for number in checkpoints if number <= first), default=-1)
    if begins <= min(files, default=0) or not _leads_to_newest(checkpoints[begins], begins, ages):
        return 0
    old_files = [file for number in sorted(files) if number < begins for file in files[number]]
    for place, _ in old_files:  # the oldest ones first: wherever this is stopped, no entry is missing in between
        place.unlink(missing_ok=True)
    return sum(file_stat.st_size for _, file_stat in old_files)


def _leads_to_newest(checkpoint: Place, number: int, entries: Mapping[int, Any]) -> bool:
    """Return whether a table can be opened from a checkpoint on."""
    if {*range(number, max(entries) + 1)} - {*entries}:
        return False
    try:
        with checkpoint.open("rb") as stream:
            pq.read_table(stream)
    except (OSError, pa.ArrowException):
        return False
    return True


def erase_old_files(lake: Lake, table: str, version: int) -> int:
    """Delete all data files of a table, whatever their age, except the ones of a version; return how many.

    Older versions, and files left by attempts without a commit, can no longer be read. No other program may be at
    work on the table: it would lose files that it has opened, or is about to commit.
    """
    folder = lake.path(table)
    stays = {folder / name for name in lake.opened.version_at(table, version).sizes}
    old_files = [file for file in data_files(folder) if file not in stays]
    for file in old_files:
        file.unlink(missing_ok=True)
    remove_left_over(folder, timedelta(0))
    return len(old_files)


def data_files(folder: Place) -> list[Place]:
    """Return all files below a table's folder but its log: also half a file that a killed write has left."""
    return [
        place
        for place, file_stat in files_below(folder, "**/*")
        if not relative(place, folder).startswith("_delta_log/") and not _is_folder(place, file_stat)
    ]


def _is_folder(place: Place, file_stat: Any) -> bool:
    return isinstance(place, Path) and stat.S_ISDIR(file_stat.st_mode)


def keep_readable(lake: Lake, table: str, version: int, retain: timedelta | None = None) -> None:
    """Let a Spark of any settings read a version of a table however old it gets.

    This takes one commit of maintenance where the table's property says less. With `retain` this holds for younger
    versions as well, and no longer than that for others: a checkpoint of the log lists the files that were removed
    within the retention.
    """
    stored_retention = _retention_of(lake.opened.version_at(table).properties)
    if retain is None and stored_retention is not None and stored_retention >= UNLIMITED:
        return  # without a request to a store
    try:  # Spark, too, goes by the modification time of the entry
        age = timedelta(seconds=time.time() - entry_path(lake.path(table), version).stat().st_mtime)
    except FileNotFoundError:  # there is nothing to read
        return
    retention = max(retain, _WEEK) if retain is not None else stored_retention or UNLIMITED
    if retention < 2 * age:  # the pipeline seldom runs, and its next commit may come after the retention
        retention = stored_retention if stored_retention is not None and stored_retention >= 2 * age else 4 * age
    if stored_retention is None or interval(stored_retention) != interval(retention):
        lake.set_properties(table, {DELETED_FILE_RETENTION: interval(retention)})


def _retention_of(properties: Mapping[str, str]) -> timedelta | None:
    try:
        return parse_duration(properties[DELETED_FILE_RETENTION].lower().removeprefix("interval "))
    except (KeyError, SpecError):  # others may write it in more ways
        return None


def _file_sizes(lake: Lake, table: str) -> list[int]:
    files = pa.table(lake.open(table).get_add_actions(flatten=True))
    return [int(size) for size in files["size_bytes"].to_pylist()]
