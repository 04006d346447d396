"""The rows that tables of a batch may hold: the last commit, and the writes of the attempt at work.

Here: taking back the writes of unfinished attempts, and finding foreign changes of rows. Maintenance does not change
rows, so it stays. Not here: the log of a table (resources/delta/log.py), the lease of a batch
(resources/batches/batch_log.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.resources.delta.lake import TRIES, ConflictError, Lake, written_later
from tidemark.resources.delta.log import Since, TableCommit, changes_since
from tidemark.timeops.errors import LakeError
from tidemark.timeops.values.utc import instant_of


class ForeignChangeError(LakeError):
    """Another writer has changed rows of a table."""


@dataclass(frozen=True)
class ForeignChange:
    """A change of rows that no run of the pipeline made: the table, and the commit."""

    table: str
    entry: TableCommit

    def __str__(self) -> str:
        """Return the operation, the table and the time in words."""
        entry = self.entry
        rows = "" if entry.deleted is None else f", {entry.deleted:,} row{'' if entry.deleted == 1 else 's'} deleted"
        at = f"{instant_of(entry.at_us or 0):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.table}: version {entry.version}, {entry.operation} at {at}{rows}"


def same_rows(lake: Lake, table: str, committed: int, latest: int | None = None) -> list[int]:
    """Return the versions of a table with the rows of a committed one, the newest first: maintenance makes such."""
    latest = lake.version(table) if latest is None else latest
    if latest <= committed:
        return [committed]
    return changes_since(lake.path(table), committed, latest).versions_with()


def prepare(lake: Lake, base: Mapping[str, int], attempt: int) -> dict[str, int]:
    """Take back the writes of attempts without a commit, in every table, before an attempt writes.

    `base` has their versions as of the last commit. Return the new ones, which the first write of the batch expects.

    Raises:
        ForeignChangeError: Another writer has changed rows.
        FencedError: A later attempt has written.
    """
    looks = {table: _since(lake, table, version) for table, version in base.items()}
    if foreign := _foreign(looks):  # of all tables, not only of the first
        raise foreign_error(lake, foreign)
    for table, since in looks.items():  # nothing is taken back before all may be
        _refuse_later(lake, table, since, attempt)
    return {table: take_back(lake, table, base[table], attempt, since=since) for table, since in looks.items()}


def take_back(
    lake: Lake, table: str, base: int, attempt: int, *, foreign: bool = False, since: Since | None = None
) -> int:
    """Take back the writes of attempts without a commit to a table, in one commit if there are any.

    With `foreign` changes of other writers are taken back, too. Return the new version of the table, which holds the
    rows of the last commit. `since` is its history, if it was just read.
    """

    def choose(since: Since) -> list[int]:
        if since.foreign and not foreign:
            raise foreign_error(lake, _foreign({table: since}))
        return since.versions_with()

    return _bring_back(lake, table, base, attempt, choose, since=since)


def keep_foreign(lake: Lake, table: str, base: int, attempt: int) -> int:
    """Take back the writes of attempts without a commit to a table, and keep changes of other writers.

    Return the new version of the table.

    Raises:
        LakeError: The changes cannot be kept unchanged.
    """

    def choose(since: Since) -> list[int]:
        if any(file.has_vector for entry in since.foreign for file in entry.added):
            raise LakeError(
                f"{lake.path(table)} has deletion vectors: deleted rows are still in its files.",
                expected="a DELETE that rewrites the files, as with `delta.enableDeletionVectors` off",
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

    Raises:
        ForeignChangeError: Another writer has changed rows.
        ConflictError: Another attempt has written, or another writer has taken back a write of this one.
        FencedError: A later attempt has written.
    """
    versions = {}
    for table, version in base.items():
        since = _since(lake, table, version)
        if since.foreign:
            raise foreign_error(lake, _foreign({table: since}))
        _refuse_later(lake, table, since, attempt)
        attempts = [entry.attempt for entry in since.left if entry.attempt != attempt]
        if attempts or attempt in since.lost:
            fault = f"holds what attempt {attempts[0]} wrote" if attempts else "lacks what this run wrote"
            raise ConflictError(
                f"{lake.path(table)} {fault}: another writer has changed it meanwhile.",
                expected=f"the last commit, and what this run's attempt {attempt} wrote",
                remedy="Nothing was committed. Run again: the next run removes it.",
            )
        versions[table] = since.latest
    return versions


def foreign_changes(lake: Lake, base: Mapping[str, int]) -> list[ForeignChange]:
    """Return the changes of rows that other writers have made since the last commit."""
    return _foreign({table: _since(lake, table, version) for table, version in base.items()})


def _foreign(looks: Mapping[str, Since]) -> list[ForeignChange]:
    return [ForeignChange(table, entry) for table, since in looks.items() for entry in since.foreign]


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
    for _ in range(TRIES):
        since = since or _since(lake, table, base)
        _refuse_later(lake, table, since, attempt)
        versions = choose(since)
        if versions[0] == since.latest:
            return since.latest
        readable = (version for version in versions if lake.opened.version_at(table, version).has_files)
        try:
            # If none is whole, the error of the newest says what is missing.
            return lake.restore(table, next(readable, versions[0]), expect=since.latest)
        except ConflictError:
            since = None  # maintenance, or a late write: look at the table again
    raise ConflictError(
        f"{lake.path(table)} changed under each of {TRIES} tries to undo what an unfinished batch wrote.",
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
        raise written_later(lake.path(table), later, attempt)


def foreign_error(lake: Lake, changes: Sequence[ForeignChange]) -> ForeignChangeError:
    """Return the error that names changes, and the remedy."""
    return ForeignChangeError(
        f"Rows of {lake.root.name} were changed by another writer: {'; '.join(map(str, changes))}.",
        expected="rows that only Tidemark changes; OPTIMIZE, VACUUM and the like change none",
        remedy="`tidemark changes SPEC --accept TEXT` keeps the change and notes why in `batches`, as for a DELETE "
        "on request; `--take-back TEXT` restores what the last commit had. Then run again.",
    )
