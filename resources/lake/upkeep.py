"""Upkeep of a table: few files, in the order in which they are read, and no files without a reader.

Here: single tables. Not here: the choice of tables, and of the versions that have to stay (pipelines/upkeep.py).
Upkeep does not change rows, and may go on during a run: Delta keeps the commits of both apart, and the later one
tries again.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from tidemark.resources.lake.data_files import remove_left_over, stored_bytes
from tidemark.resources.lake.lake import Lake
from tidemark.resources.places.place import files_below, relative

FILE_BYTES = 64_000_000
"""Size of a file that is worth having; smaller ones are joined."""

_FEW_FILES = 8  # small files that stay as they are: joining them would cost more than it saves
_SORTED_BYTES = 256_000_000  # a larger table is not sorted
_FORGOTTEN = timedelta(days=1)  # a file that is so old and belongs to no version comes from a failed write
_TRIES = 5


@dataclass(frozen=True)
class Size:
    """The space that a table takes.

    Attributes:
        files: Data files of its latest version.
        stored: Data files in its folder, of any version.
        stored_bytes: Bytes of these files.
        log_bytes: Bytes of its log.
        live_bytes: Bytes of the data files of its latest version.
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
    folder = lake.path(table)
    data = stored_bytes(folder)
    log = sum(seen.st_size for _, seen in files_below(folder / "_delta_log", "*.*"))
    live = _file_sizes(lake, table)
    return Size(len(live), len(data), sum(data), log, sum(live))


def compact(lake: Lake, table: str, by: str | None = None) -> bool:
    """Join the small files of a table, if there are many, in one commit.

    Files that were written one after the other are joined, so that each has a short range of values that grow with
    time.

    Args:
        lake: The tables.
        table: The table.
        by: The column by which it is read, if that is another order. A table that is not large is sorted by it.

    Returns:
        Whether files were joined. A run that is faster every time goes first.
    """
    for _ in range(_TRIES):
        sizes = _file_sizes(lake, table)
        if sum(size < FILE_BYTES // 2 for size in sizes) <= _FEW_FILES:
            return False
        optimizer = lake.open(table).optimize
        try:
            if by is not None and sum(sizes) <= _SORTED_BYTES:
                optimizer.z_order([by], target_size=FILE_BYTES)
            else:
                optimizer.compact(target_size=FILE_BYTES)
        except CommitFailedError:
            continue
        return True
    return False


def vacuum(lake: Lake, table: str, retain: timedelta, keep: Sequence[int]) -> int:
    """Delete the files of a table that have been in no version for some time.

    Args:
        lake: The tables.
        table: The table.
        retain: That time, rounded up to whole hours.
        keep: Versions whose files stay, however long ago they were the latest.

    Returns:
        Bytes of the deleted files.
    """
    hours = math.ceil(retain / timedelta(hours=1))
    full = retain >= _FORGOTTEN
    delta = lake.open(table)
    versions = sorted(set(keep))
    folder = lake.path(table)
    remove_left_over(folder, _FORGOTTEN)
    old = delta.vacuum(hours, enforce_retention_duration=False, full=full, keep_versions=versions)
    wanted = set(old)
    there = [seen.st_size for path, seen in files_below(folder, "**/*") if relative(path, folder) in wanted]
    if not there:  # it also names deleted ones
        return 0
    freed: int = sum(there)
    with suppress(CommitFailedError):  # the files are deleted; only their note in the log met another commit
        delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=full, keep_versions=versions)
    return freed


def _file_sizes(lake: Lake, table: str) -> list[int]:
    files = pa.table(lake.open(table).get_add_actions(flatten=True))
    return [int(size) for size in files["size_bytes"].to_pylist()]
