"""The integrity of a pipeline's tables: they hold what the last commit says and what the attempt at work has written.

Here: taking back the writes of unfinished attempts, finding foreign changes of rows, and finding tables that are lost
or older, by names, sizes and footers of their files. Maintenance does not change rows, so it stays. Not here: the log
of a table (log.py), logs that cannot be read (versions.py), the lease of a batch (batches/batch_log.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.log import Commit, Since, changes_since
from tidemark.resources.places.place import Place, RemotePath
from tidemark.resources.tables import BATCHES, OF_THE_LOG, remedy_of
from tidemark.timeops.errors import FencedError, LakeError, first_line
from tidemark.timeops.utc import instant_of

_TRIES = 20


class ForeignChangeError(LakeError):
    """Another writer has changed rows of a table."""


@dataclass(frozen=True)
class Change:
    """A change of rows that no run of the pipeline made.

    Attributes:
        table: The table.
        entry: The commit.
    """

    table: str
    entry: Commit

    def __str__(self) -> str:
        """Return the operation, the table and the time in words."""
        entry = self.entry
        rows = "" if entry.deleted is None else f", {entry.deleted:,} row{'' if entry.deleted == 1 else 's'} deleted"
        at = f"{instant_of(entry.at_us or 0):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.table}: version {entry.version}, {entry.operation} at {at}{rows}"


def same_rows(lake: Lake, table: str, committed: int, latest: int | None = None) -> list[int]:
    """Return the versions of a table with the rows of a committed one, the newest first: maintenance makes such.

    Args:
        lake: The tables.
        table: The table.
        committed: The version that was committed.
        latest: The newest version, if it is known.
    """
    latest = lake.version(table) if latest is None else latest
    if latest <= committed:
        return [committed]
    return changes_since(lake.path(table), committed, latest).versions_with()


def prepare(lake: Lake, base: Mapping[str, int], attempt: int) -> dict[str, int]:
    """Take back the writes of attempts without a commit, in every table.

    Args:
        lake: The tables.
        base: Their versions as of the last commit.
        attempt: The attempt that is to write.

    Returns:
        The new version of each table, which the first write of the batch expects.

    Raises:
        ForeignChangeError: Another writer has changed rows.
        FencedError: A later attempt has written.
    """
    looks = {table: _since(lake, table, version) for table, version in base.items()}
    if found := _foreign(looks):  # of all tables, not only of the first
        raise foreign_error(lake, found)
    for table, since in looks.items():  # nothing is taken back before all may be
        _refuse_later(lake, table, since, attempt)
    return {table: take_back(lake, table, base[table], attempt, since=since) for table, since in looks.items()}


def take_back(
    lake: Lake, table: str, base: int, attempt: int, *, foreign: bool = False, since: Since | None = None
) -> int:
    """Take back the writes of attempts without a commit to a table, in one commit if there are any.

    Args:
        lake: The tables.
        table: The table.
        base: Its version as of the last commit.
        attempt: The attempt that is to write.
        foreign: Take back changes of other writers, too.
        since: The history of the table, if it was just read; by default it is read now.

    Returns:
        The new version of the table, which holds the rows of the last commit.
    """

    def choose(since: Since) -> list[int]:
        if since.foreign and not foreign:
            raise foreign_error(lake, [Change(table, entry) for entry in since.foreign])
        return since.versions_with()

    return _bring_back(lake, table, base, attempt, choose, since=since)


def keep_foreign(lake: Lake, table: str, base: int, attempt: int) -> int:
    """Take back the writes of attempts without a commit to a table, and keep changes of other writers.

    Args:
        lake: The tables.
        table: The table.
        base: Its version as of the last commit.
        attempt: The attempt that is to commit the result.

    Returns:
        The new version of the table.

    Raises:
        LakeError: The changes cannot be kept unchanged.
    """

    def choose(since: Since) -> list[int]:
        if any(file.has_vector for entry in since.foreign for file in entry.added):
            raise LakeError(
                f"{lake.path(table)} has deletion vectors: deleted rows are still in its files.",
                expected="a DELETE that writes the files anew, as with `delta.enableDeletionVectors` off",
                remedy="Take the change back with `tidemark changes SPEC --take-back TEXT`, and repeat it this way.",
            )
        versions = since.versions_with(since.foreign)
        if not versions:
            raise LakeError(
                f"{lake.path(table)} was changed on top of what an unfinished batch wrote, which must be removed.",
                expected="a change of what the last commit in `batches` left",
                remedy="Take it back with `tidemark changes SPEC --take-back TEXT`, and make it again before the "
                "next run.",
            )
        return versions

    return _bring_back(lake, table, base, attempt, choose)


def outputs(lake: Lake, base: Mapping[str, int], attempt: int) -> dict[str, int]:
    """Return the version of each table that a batch is to commit: the last commit and the writes of this attempt.

    Args:
        lake: The tables.
        base: Their versions as of the last commit.
        attempt: The attempt that is to commit.

    Raises:
        ForeignChangeError: Another writer has changed rows.
        ConflictError: Another attempt has written, or another writer has taken back a write of this one.
        FencedError: A later attempt has written.
    """
    versions = {}
    for table, version in base.items():
        since = _since(lake, table, version)
        if since.foreign:
            raise foreign_error(lake, [Change(table, entry) for entry in since.foreign])
        _refuse_later(lake, table, since, attempt)
        others = [entry for entry in since.left if entry.attempt != attempt]
        if others or attempt in since.lost:
            done = f"holds what attempt {others[0].attempt} wrote" if others else "lacks what this run wrote"
            raise ConflictError(
                f"{lake.path(table)} {done}: another writer has changed it meanwhile.",
                expected=f"the last commit, and what this run's attempt {attempt} wrote",
                remedy="Nothing was committed. Run again: the next run removes it.",
            )
        versions[table] = since.latest
    return versions


def foreign_changes(lake: Lake, base: Mapping[str, int]) -> list[Change]:
    """Return the changes of rows that other writers have made since the last commit."""
    return _foreign({table: _since(lake, table, version) for table, version in base.items()})


def _foreign(looks: Mapping[str, Since]) -> list[Change]:
    return [Change(table, entry) for table, since in looks.items() for entry in since.foreign]


def _bring_back(
    lake: Lake,
    table: str,
    base: int,
    attempt: int,
    choose: Callable[[Since], list[int]],
    *,
    since: Since | None = None,
) -> int:
    """Restore the first of the chosen versions whose files are there, whatever is written meanwhile."""
    for _ in range(_TRIES):
        since = since or _since(lake, table, base)
        _refuse_later(lake, table, since, attempt)
        versions = choose(since)
        if versions[0] == since.latest:
            return since.latest
        readable = (version for version in versions if lake.has_files(table, version))
        try:
            return lake.restore(table, next(readable, versions[0]), expect=since.latest)
        except ConflictError:
            since = None  # maintenance, or a late write: look at the table again
    raise ConflictError(
        f"{lake.path(table)} changed under each of {_TRIES} tries to undo what an unfinished batch wrote.",
        expected="one run at a time",
        remedy="Find the program that writes this table, and run again.",
    )


def _since(lake: Lake, table: str, base: int) -> Since:
    latest = lake.newest(table, base)
    if latest < base:
        raise LakeError(
            f"{lake.path(table)} is at version {latest}.",
            expected=f"version {base} or later, as the last commit in `batches` says",
            remedy="Restore the table's folder from a backup made together with the other tables.",
        )
    return changes_since(lake.path(table), base, latest)


def _refuse_later(lake: Lake, table: str, since: Since, attempt: int) -> None:
    later = max((entry.attempt for entry in since.left), default=0)
    if later > attempt:
        raise FencedError(
            f"{lake.path(table)} was written by attempt {later}, a later one than this run's {attempt}.",
            expected="no other run that considers this one dead",
            remedy="Nothing was written. Run again.",
        )


def foreign_error(lake: Lake, changes: Sequence[Change]) -> ForeignChangeError:
    """Return the error that names changes, and the remedy."""
    return ForeignChangeError(
        f"Rows of {lake.root.name} were changed by another writer: {'; '.join(map(str, changes))}.",
        expected="rows that only Tidemark changes; OPTIMIZE, VACUUM and the like change none",
        remedy="`tidemark changes SPEC --accept TEXT` keeps the change and notes why in `batches`, as for a DELETE "
        "on request; `--take-back TEXT` restores what the last commit had. Then run again.",
    )


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
