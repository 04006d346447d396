"""What one ingestion reads of a Delta table, version by version, and what the lake remembers of it.

Here: a version as it is to be read. Not here: which versions are (delta_tables.py), the table of states
(assets/state/files.py), their rows (delta_rows.py).

A version is remembered as a file is: its number is the name, the id of the table the digest, the time of its commit
the modification time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tidemark.resources.places.place import Place
from tidemark.resources.sources.delta_log import DataFile, Layout, entry_path
from tidemark.resources.sources.known_files import FileState
from tidemark.timeops.errors import InputError

How = Literal["whole", "added", "changed", "corrected", "nothing"]


@dataclass(frozen=True)
class Before:
    """What was in a table before a version that changes rows.

    Attributes:
        version: The version before.
        layout: The table's layout then.
        files: The files whose rows the version took away, whole or in part; None where the whole tables before and
            after it have to be compared, as the log marks single rows of files as deleted.
    """

    version: int
    layout: Layout
    files: tuple[DataFile, ...] | None


@dataclass(frozen=True)
class TableVersion:
    """What one ingestion reads of a version of a table.

    Attributes:
        folder: Folder of the table.
        version: Its number.
        how: The whole table as it is, the rows that were added, the rows that the change feed tells, the rows that
            differ from those before, or nothing.
        committed_us: When it was committed, microseconds since the epoch: later than the version before.
        before: With `corrected` what was there before.
        is_timed: The time is the commit's own; else that was in no year of 0001 to 9999, and this one only orders.
        size: Bytes to be read.
        rows: Rows to be read, as far as the log of the table says.
        files: The files with rows that were added.
        layout: The table's layout as of it.
        entry: Size and modification time (nanoseconds) of its entry in the log.
        passed_over: What was not read of it although it changed rows, in a sentence; empty if nothing.
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
        """How plans and errors name it."""
        return path_of(self.folder, self.version)

    @property
    def modified_us(self) -> int:
        """When it was committed, as of a file its modification time."""
        return self.committed_us

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read of it."""
        return self.how == "nothing"

    @property
    def state(self) -> FileState:
        """What to remember of it once it was read."""
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
    """How plans and errors name a version."""
    return f"{folder}, version {version}"


def last_of(states: Iterable[FileState]) -> FileState | None:
    """The state of the last version that was read; None for none."""
    return max(states, key=lambda state: int(state.name), default=None)


def ensure_same_table(versions: Sequence[TableVersion]) -> None:
    """Check that the entries of versions are still as discovery saw them.

    Raises:
        InputError: One was changed or removed since.
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
                remedy="run again: what is there now is looked at anew",
            )
