"""Versions of a Delta table that one ingestion reads, and the memory of versions that were read.

Here: a version to read. Not here: the choice of versions (delta_tables.py), the table of states
(assets/state/files.py), their rows (delta_rows.py).

A version is remembered as a file is: its number is the name, the id of the table the digest, the time of its commit
the modification time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tidemark.resources.delta.log import DataFile, Layout, entry_path
from tidemark.resources.places.place import Place
from tidemark.resources.sources.known_files import FileState
from tidemark.timeops.errors import InputError

How = Literal["whole", "added", "changed", "corrected", "nothing"]


@dataclass(frozen=True)
class Before:
    """The table before a version that changes rows.

    Attributes:
        version: The version before.
        layout: The table's layout at that version.
        files: The files whose rows the version removed, all or some; None if the whole tables before and after it
            have to be compared, as the log marks single rows of files as deleted.
    """

    version: int
    layout: Layout
    files: tuple[DataFile, ...] | None


@dataclass(frozen=True)
class TableVersion:
    """A version of a table as one ingestion reads it.

    Attributes:
        folder: Folder of the table.
        version: Its number.
        how: The whole table, the added rows, the rows of the change feed, the rows that differ from the version
            before, or nothing.
        committed_us: Time of its commit, microseconds since the epoch: later than the version before.
        before: The table before it, with `corrected`.
        is_timed: Whether the time is the commit's own; else that is outside the years 0001 to 9999, and this one only
            orders.
        size: Bytes to read.
        rows: Rows to read, as far as the log of the table says.
        files: The files with rows that were added.
        layout: The table's layout at this version.
        entry: Size and modification time (nanoseconds) of its entry in the log.
        passed_over: A sentence on changes of rows that were not read; empty if there are none.
    """

    folder: Place
    version: int
    how: How
    committed_us: int
    size: int
    rows: int
    files: tuple[DataFile, ...]
    layout: Layout
    entry: tuple[int, int]
    passed_over: str = ""
    is_timed: bool = True
    before: Before | None = None

    @property
    def path(self) -> str:
        """Its name in plans and errors."""
        return path_of(self.folder, self.version)

    @property
    def modified_us(self) -> int:
        """Time of its commit, in place of a file's modification time."""
        return self.committed_us

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to read of it."""
        return self.how == "nothing"

    @property
    def state(self) -> FileState:
        """The state to remember once it was read."""
        return FileState(
            name=str(self.version),
            size=self.size,
            modified_us=self.committed_us,
            digest=self.layout.table_id,
            records=self.rows,
            ends_with_newline=True,
            place=self.path,
        )


def path_of(folder: Place, version: int) -> str:
    """Return the name of a version in plans and errors."""
    return f"{folder}, version {version}"


def last_of(states: Iterable[FileState]) -> FileState | None:
    """Return the state of the last version that was read; None if there is none."""
    return max(states, key=lambda state: int(state.name), default=None)


def ensure_same_table(versions: Sequence[TableVersion]) -> None:
    """Check that the entries of versions are unchanged since discovery.

    Raises:
        InputError: An entry was changed or removed since.
    """
    for version in versions:
        try:
            seen = entry_path(version.folder, version.version).stat()
        except OSError:
            found = "is gone"
        else:
            found = "" if (seen.st_size, seen.st_mtime_ns) == version.entry else "was written anew"
        if found:
            raise InputError(
                f"{version.path}: its entry in the table's log {found} while it was read",
                expected="a table whose log only grows",
                remedy="run again: the run reads the log anew",
            )
