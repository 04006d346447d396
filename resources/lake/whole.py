"""Whole tables: none is missing or older than its commit, and each has the files that its log names.

Here: checks of names, sizes and footers of files, which do not read rows. Not here: logs that cannot be read
(opened.py), foreign changes of rows (undoing.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.resources.lake.commits import changes_since
from tidemark.resources.lake.lake import Lake
from tidemark.resources.places.place import Place, RemotePath
from tidemark.resources.tables import BATCHES, OF_THE_LOG, remedy_of
from tidemark.timeops.errors import LakeError, first_line


def ensure_whole(lake: Lake, committed: Mapping[str, int], base: Mapping[str, int]) -> None:
    """Check that tables hold what the last commit says.

    Args:
        lake: The tables.
        committed: The version of each table that the commit names.
        base: The version of each whose files are read: there may be later maintenance.

    Raises:
        LakeError: A table is missing or older, or a file of it is missing or damaged; the first one is named.
    """
    for table, version in committed.items():
        _ensure_version(lake, table, version)
    stored = _sizes_in(lake.root)
    for table, version in base.items():
        _ensure_files(lake, table, version, stored)


def broken_tables(lake: Lake, committed: Mapping[str, int], base: Callable[[str, int], int]) -> dict[str, LakeError]:
    """Return the tables that lack what the last commit says, each with its error.

    Args:
        lake: The tables.
        committed: The version of each table that the commit names.
        base: Returns the version of a table whose files are read.
    """
    found, stored = {}, _sizes_in(lake.root)
    for table, version in committed.items():
        try:
            _ensure_version(lake, table, version)
            _ensure_files(lake, table, base(table, version), stored)
        except LakeError as error:
            found[table] = error
    return found


def half_made(lake: Lake, tables: Sequence[str]) -> LakeError:
    """Return the error for lost tables that an unfinished rebuild has begun to make anew."""
    folders = ", ".join(str(lake.path(table)) for table in tables)
    return LakeError(
        f"A rebuild was stopped while it made lost tables anew: {folders}.",
        expected="a rebuild that ends",
        remedy="run `tidemark rebuild SPEC` again: it goes on where it was",
    )


def _ensure_version(lake: Lake, table: str, version: int) -> None:
    """Check that a table has reached a version."""
    if not lake.exists(table):
        raise _broken(lake, f"The table {lake.path(table)} is gone", f"its version {version}", table)
    latest = lake.version(table, version)
    if latest < version:
        found = f"The table {lake.path(table)} is at version {latest}"
        raise _broken(lake, found, f"version {version} or later", table)


def _ensure_files(lake: Lake, table: str, version: int, stored: Mapping[str, int]) -> None:
    """Check that a version of a table has its files."""
    for name, size in lake.opened.seen(table, version).sizes.items():
        place = lake.path(table) / name
        fault = _fault_of_stored(place, size, stored) if isinstance(place, RemotePath) else _fault(place, size)
        if fault:
            found = f"The file {name} of the table {lake.path(table)} {fault}"
            raise _broken(lake, found, "the files that the table's log names, as they were written", table)


def ensure_log_is_not_older(lake: Lake, committed: Mapping[str, int], newest_attempt: Callable[[], int]) -> None:
    """Check that the log of batches knows all attempts that have written.

    To continue from an older log would take back all that was committed since, as if it had never been.

    Args:
        lake: The tables.
        committed: The version of each table that the last commit names; 0 for none.
        newest_attempt: Returns the newest attempt that the log of batches knows.

    Raises:
        LakeError: An attempt has written that the log does not know.
    """
    for table, version in committed.items():
        latest = lake.version(table, version) if lake.exists(table) else version
        entries = changes_since(lake.path(table), version, latest).left if latest > version else ()
        attempt = max((entry.attempt for entry in entries), default=0)
        if attempt > newest_attempt():  # looked up each time: a run may have begun meanwhile
            found = (
                f"`batches` is older than {lake.path(table)}: it knows no attempt {attempt}, which wrote that table"
            )
            raise _broken(lake, found, "a log of batches as new as the other tables")


def ensure_none_is_left(lake: Lake, log: str, tables: Iterable[str]) -> None:
    """Check that no table has rows, as must be so before the first batch.

    Args:
        lake: The tables.
        log: The table of batches, which does not exist.
        tables: The others.

    Raises:
        LakeError: One has rows, and it is unknown which rows of the tables belong together.
    """
    left = [table for table in tables if lake.exists(table) and lake.version(table) > 0]
    if left and not lake.exists(log):  # checked once more: a first run may have begun meanwhile
        found = f"The table {lake.path(log)} is gone, and there is still {', '.join(left)}"
        raise _broken(lake, found, "the log of batches, which says what of the other tables belongs together")


def _broken(lake: Lake, found: str, expected: str, table: str = BATCHES) -> LakeError:
    of_log = (
        f"restore {lake.root} from a backup, all tables of one time. To begin anew instead, move this folder away: "
        "what is still there of the input is read again. Nothing was changed"
    )
    remedy = of_log if table in OF_THE_LOG else remedy_of(lake.path(table))
    return LakeError(f"{found}.", expected=expected, remedy=remedy)


def _sizes_in(folder: Place) -> Mapping[str, int]:
    """Return the size of each file below a folder of a store, by key: one request lists a thousand."""
    if not isinstance(folder, RemotePath):
        return {}
    return {one.key: one.st_size for one in folder.store.under(folder.key)}


def _fault_of_stored(place: RemotePath, size: int, stored: Mapping[str, int]) -> str:
    found = stored.get(place.key)
    return "is missing" if found is None else _other_size(found, size)


def _fault(place: Path, size: int) -> str:
    """Return the fault of a file by its size and its footer; empty if there is none."""
    try:
        found = place.stat().st_size
        if found == size:
            pq.read_metadata(place)
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowException) as error:
        return f"is damaged: {first_line(error)}"
    return _other_size(found, size)


def _other_size(found: int, size: int) -> str:
    return "" if found == size else f"is damaged: it has {found:,} bytes of {size:,}"
