"""Writes that are made once: repeated by its attempt, a write changes nothing, and it never follows a foreign one.

Here: whether an attempt has written a table already, and whether another writer has in the meantime. Not here: the
writes (lake.py), the mark of an attempt in a commit (commits.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tidemark.resources.lake.commits import changes_between, newest_change, rows_written
from tidemark.resources.lake.new_tables import NewTables
from tidemark.timeops.errors import FencedError, LakeError

TRIES = 20
"""How often a write is tried again if maintenance of the table is committed at the same moment."""


class ConflictError(LakeError):
    """Another writer has changed a table since this program looked at it."""


@dataclass(frozen=True)
class Written:
    """One commit: the version that it made and the number of rows that it added."""

    version: int
    rows: int


class Once(NewTables):
    """Tables that are written once for each attempt."""

    def _once(self, table: str, attempt: int | None, expect: int, write: Callable[[DeltaTable], Written]) -> Written:
        """Write unless this attempt has written; try again if maintenance was committed at the same moment."""
        for _ in range(TRIES):
            delta = self.opened.take(table, expect)
            try:
                written = self._repeated(table, delta, attempt, expect) or write(delta)
            except CommitFailedError as error:
                failed = error
                continue
            self.opened.keep(table, delta, written.version)
            return written
        raise self._moved(table, expect) from failed

    def _repeated(self, table: str, delta: DeltaTable, attempt: int | None, expect: int) -> Written | None:
        """Return the earlier write of this attempt; if there is none, check that the table is as expected.

        Maintenance after the expected version leaves the table as expected.
        """
        folder, current = self.path(table), delta.version()
        newest = None if attempt is None else newest_change(folder, current)
        if newest is not None and attempt is not None:
            if newest.attempt > attempt:
                raise FencedError(
                    f"{folder} was written by attempt {newest.attempt}, a later one than this run's {attempt}.",
                    expected="no other run that considers this one dead",
                    remedy="Nothing was written. Run again.",
                )
            if newest.writes_for == attempt and self._changes(table, expect, current) in ((), (newest.version,)):
                return Written(current, rows_written(dict(newest.info)))
        if self._changes(table, expect, current) != ():
            raise self._moved(table, expect)
        return None

    def _changes(self, table: str, after: int, latest: int) -> tuple[int, ...] | None:
        """Return the versions after one that changed rows, None if the table has not reached that one."""
        if latest < after:
            return None
        return tuple(entry.version for entry in changes_between(self.path(table), after, latest))

    def _moved(self, table: str, expect: int) -> ConflictError:
        return ConflictError(
            f"{self.path(table)} is at version {self.version(table)}: another writer has changed it.",
            expected=f"version {expect}, and one more with this run's own write",
            remedy="Run again: the next run goes on from the last commit in `batches`.",
        )
