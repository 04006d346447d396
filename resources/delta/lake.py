"""The tables of a pipeline, and the only writer of Delta: each write is one commit, counted, and can be repeated.

Here: making tables, and writing rows of single ones. Repeated by its attempt, a write changes nothing, and it never
follows a foreign one. Not here: reading tables (resources/delta/reading.py), batches of several tables
(resources/batches/batch_log.py), what tables may hold (resources/delta/undoing.py).

Every commit is made by delta-rs, which needs no JVM. For large results Spark writes the files, see
resources/delta/files.py, and the commit names them. Few rows come into this process, which writes them itself.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.resources.delta.columns import (
    OtherColumnsError,
    column_differences,
    delta_columns,
    misfits,
    missing_fields,
)
from tidemark.resources.delta.files import (
    UNLIMITED,
    DataFiles,
    Piece,
    RowChanges,
    changed_rows,
    footers_of_joined,
    interval,
    piece_of,
    removals,
    reshaped_rows,
    rows_left,
    rows_meant,
    rows_then,
    take_files,
    write_files,
    write_pieces,
)
from tidemark.resources.delta.log import (
    MENDING,
    REMOVES_OLD,
    RESHAPING,
    UNDOING,
    commits_between,
    marks,
    marks_of_columns,
    newest_change,
    own_commit,
)
from tidemark.resources.delta.reading import LakeReader
from tidemark.resources.delta.versions import (
    BOUNDED,
    CHANGE_FEED,
    DELETED_FILE_RETENTION,
    NO_ROWS,
    Filters,
    Version,
)
from tidemark.resources.machine import writing
from tidemark.resources.places.place import Place, delta_place, remove_tree
from tidemark.resources.spark.amount import ANY, Amount
from tidemark.resources.tables import bounded_columns
from tidemark.timeops.errors import FencedError, LakeError

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MOST_FILES = 32
"""A table of few rows with more files than this is rewritten."""

TRIES = 20
"""How often a write is tried again if maintenance of the table is committed at the same moment."""

Action = AddAction | RemoveAction
_BOTH = (rows_meant, rows_left)
_FULL_FILE_BYTES = 8_000_000  # the most bytes that joining small files rewrites at a time
_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    # A batch that fails is undone by going back to the last commit, however long ago that was.
    "delta.enableExpiredLogCleanup": "false",
    # To open a table is to read its log from the last checkpoint on, with two requests of a store for each entry. By
    # default delta-rs makes a checkpoint every hundred commits.
    "delta.checkpointInterval": "10",
    # A Spark that is not ours reads no version that is older, not even the last commit while a batch is at work.
    # Nothing is deleted before `tidemark maintain`, which says for how long it keeps files: `upkeep.keep_readable`.
    DELETED_FILE_RETENTION: interval(UNLIMITED),
}


class ConflictError(LakeError):
    """Another writer has changed a table since this program looked at it."""


@dataclass(frozen=True)
class Written:
    """One commit: the version that it made and the number of rows that it added."""

    version: int
    rows: int


@dataclass(frozen=True)
class Lake(LakeReader):
    """The tables of one pipeline, for reading and writing; arguments as of `LakeReader`."""

    def create(
        self, table: str, schema: "StructType | pa.Schema", *, may_grow: bool = False, change_feed: bool = False
    ) -> None:
        """Create an empty table whose columns may all be null, unless it exists.

        With `may_grow` an existing table may have other columns, and types that can be widened to the wanted ones. No
        name may differ in case only: see resources/delta/migration.py. For an existing table `set_change_feed`
        decides on its feed.

        Raises:
            OtherColumnsError: The table exists with other columns.
        """
        columns = delta_columns(schema)
        feed = {CHANGE_FEED: "true"} if change_feed else {}
        with writing(self.path(table)):
            delta = DeltaTable.create(
                **delta_place(self.path(table)),
                schema=Schema.from_json(json.dumps(columns)),
                mode="ignore",  # two runs may create it at once
                configuration=_PROPERTIES | _bounded(table, [field["name"] for field in columns["fields"]]) | feed,
            )
        self.opened.keep(table, delta)
        wrong = misfits(delta.schema(), columns) if may_grow else column_differences(delta.schema(), columns)
        if wrong:
            raise OtherColumnsError(table, self.path(table), wrong)

    def remove_table(self, table: str) -> None:
        """Remove the folder of a table that is lost, so that it can be created again."""
        remove_tree(self.path(table))
        self.opened.forget(table)

    def set_change_feed(self, table: str, *, on: bool) -> None:
        """Switch the change feed of a table on or off from the next commit on, in one commit unless it is so."""
        if self.opened.version_at(table).has_change_feed != on:
            self.set_properties(table, {CHANGE_FEED: str(on).lower()})

    def state_bounds(self, table: str) -> None:
        """Say which columns have bounds in the log, in one commit of maintenance unless the table says so.

        Readers then leave out the bounds of other columns, which earlier versions wrote.
        """
        self.set_properties(table, _bounded(table, self.columns(table)))

    def set_properties(self, table: str, properties: Mapping[str, str]) -> None:
        """Set properties of a table, in one commit of maintenance unless it has them.

        Raises:
            ConflictError: Another writer changed the table during every try.
        """
        stored_properties = self.opened.version_at(table).properties
        changes = {name: value for name, value in properties.items() if stored_properties.get(name) != value}
        if changes:

            def change(delta: DeltaTable, once: CommitProperties) -> None:
                delta.alter.set_table_properties(changes, commit_properties=once)

            self._maintained(table, change)

    def describe(self, table: str, description: str) -> None:
        """Set a table's description, which readers see, in one commit of maintenance unless it has it already."""
        delta = self.opened.take(table)
        if (delta.metadata().description or "") != description:
            with self._commit(table, delta):
                delta.alter.set_table_description(description)
        self.opened.keep(table, delta)

    def grow(self, table: str, schema: "StructType | pa.Schema", *, attempt: int, expect: int) -> int:
        """Add the columns that a table lacks, in one commit if there are any; its rows hold null in them.

        Columns that the schema does not name stay; rows that are added without them hold null. Return the new version
        of the table, which was at version `expect`.

        Raises:
            ConflictError: Another writer has changed the table.
        """

        def add(delta: DeltaTable) -> Written:
            if fields := missing_fields(delta.schema(), delta_columns(schema)):
                with self._commit(table, delta, marks_of_columns(attempt)) as once:
                    delta.alter.add_columns(fields, commit_properties=once)
            return Written(delta.version(), 0)

        return self._once(table, None, expect, add).version

    def add_columns(self, table: str, fields: Sequence[Field]) -> None:
        """Add columns to a table, null in the rows that it has, in one commit of maintenance.

        Raises:
            ConflictError: Another writer changed the table during every try.
        """

        def add(delta: DeltaTable, once: CommitProperties) -> None:
            delta.alter.add_columns(list(fields), commit_properties=once)

        self._maintained(table, add, RESHAPING)

    def reshape(self, table: str, columns: Mapping[str, pc.Expression]) -> None:
        """Rewrite the rows of a table with other columns, some rows at a time, in one commit.

        The commit is maintenance: it does not change rows. Other maintenance in between goes first.

        Raises:
            ConflictError: Another writer changed the table during every try.
        """

        def write(delta: DeltaTable, once: CommitProperties) -> None:
            version = self.opened.version_of(table, delta)
            schema = version.dataset.scanner(columns=dict(columns)).projected_schema
            pieces = [reshaped_rows(version, file, columns) for file in version.sizes]
            with writing(self.path(table)):
                files = write_pieces(pieces, version, schema=schema)
                added: list[Action] = [*files.added]
                with _discarded_if_overtaken([files]):
                    delta.create_write_transaction(
                        added, "overwrite", Schema.from_arrow(schema), commit_properties=once
                    )

        self._maintained(table, write, RESHAPING)

    def mend(self, table: str, pieces: Sequence[Piece], lost_files: Collection[str]) -> None:
        """Name new files in place of some that are lost or damaged, in one commit of maintenance.

        The pieces have the very rows that these files had.

        Raises:
            ConflictError: Another writer changed the table during every try.
        """

        def write(delta: DeltaTable, once: CommitProperties) -> None:
            version = self.opened.version_of(table, delta)
            sizes = {path: size for path, size in version.sizes.items() if path in lost_files}
            with writing(self.path(table)):
                files = write_pieces(pieces, version)
                actions: list[Action] = [*files.moved, *removals(sizes, changes=False)]
                with _discarded_if_overtaken([files]):
                    delta.create_write_transaction(actions, "append", delta.schema(), commit_properties=once)

        self._maintained(table, write, MENDING)

    def _maintained(
        self, table: str, change: Callable[[DeltaTable, CommitProperties], None], mark: str | None = None
    ) -> None:
        """Change a table in one commit of maintenance, on its newest version."""
        for _ in range(TRIES):
            delta = self.open(table)
            try:
                version = delta.version()
                with self._commit(table, delta, None if mark is None else {"userMetadata": mark}) as once:
                    change(delta, once)
            except CommitFailedError as error:
                failed = error
                continue
            self.opened.keep(table, delta, version + 1)
            return
        raise self._moved(table, delta.version()) from failed

    def compact(self, table: str) -> None:
        """Join the files of a small table, whose rows stay. Another write in between goes first."""
        once = CommitProperties(max_commit_retries=0)
        delta = self.opened.take(table)
        try:
            written_as = footers_of_joined(self.opened.version_of(table, delta))
            delta.optimize.compact(target_size=_FULL_FILE_BYTES, commit_properties=once, writer_properties=written_as)
        except CommitFailedError:
            return
        self.opened.keep(table, delta)

    def checkpoint(self, table: str) -> None:
        """Write a checkpoint of the log of a table, from which readers open it."""
        delta = self.open(table)
        delta.create_checkpoint()
        self.opened.keep(table, delta)

    def name_again(self, table: str, files: Sequence[AddAction], expect: int) -> None:
        """Name files of a version again, with other statistics, in one commit of maintenance.

        Raises:
            CommitFailedError: The table is at another version.
        """
        delta = self.opened.take(table, expect)
        try:
            self._commit_files(table, delta, files)
        finally:
            self.opened.forget(table)

    def append(self, table: str, df: "DataFrame", *, attempt: int, expect: int, amount: Amount = ANY) -> Written:
        """Append rows that Spark computes, in one commit. Repeated by the same attempt, it writes nothing.

        A DataFrame without rows may also make a commit.

        Args:
            table: The table.
            df: Rows to add.
            attempt: Number of the attempt that writes (see resources/batches/batch_log.py); at most one write per
                table and attempt.
            expect: The version of the table before the write.
            amount: How many rows there probably are. Few this process fetches from Spark and writes itself.

        Raises:
            ConflictError: The table is at another version, before or after the write.
            FencedError: A later attempt has written the table.
        """
        return self.replace(table, df, where=NO_ROWS, attempt=attempt, expect=expect, amount=amount)

    def append_rows(self, table: str, rows: pa.Table, *, expect: int, attempt: int | None = None) -> Written:
        """Append rows that this process has in one commit. Without rows there is no commit.

        Rows are written only if the table is at version `expect` at that moment. With an attempt it repeats like
        `append`; without one the caller decides what a repetition means.
        """
        pieces = [piece_of(rows)] if rows.num_rows else []
        return self.replace_pieces(table, pieces, where=NO_ROWS, attempt=attempt, expect=expect)

    def replace(
        self,
        table: str,
        df: "DataFrame",
        *,
        where: Filters | None,
        attempt: int,
        expect: int,
        amount: Amount = ANY,
    ) -> Written:
        """Delete the rows that match `where` and add others, in one commit; otherwise as `append`.

        ALL_ROWS are all, NO_ROWS none. The added rows need not match. Rows for which `where` is null
        stay.

        Only files that hold matching rows are rewritten. In a table with a change feed only rows that differ are
        deleted and added, see `files.RowChanges`.
        """
        if where is not None and self.opened.version_at(table).has_change_feed:
            return self._exchange(table, df, where, attempt, expect)
        rows = amount.answer(df)
        if rows is not None:
            pieces = [piece_of(rows)] if rows.num_rows else []
            return self.replace_pieces(table, pieces, where=where, attempt=attempt, expect=expect)
        put = partial(write_files, df, attempt=attempt)
        return self._save(table, put, attempt, expect, where=where)

    def replace_pieces(
        self,
        table: str,
        pieces: Sequence[Piece],
        *,
        where: Filters | None,
        attempt: int | None,
        expect: int,
        stays: Filters | None = None,
    ) -> Written:
        """Replace rows by rows of Arrow, as `replace` does; a file for each piece, see `write_pieces`.

        All rows of a file stay that has rows which match `stays`.

        Raises:
            pyarrow.ArrowException: The rows cannot be read; nothing was written.
        """
        if where is None and not pieces:
            return Written(expect, 0)
        put = partial(write_pieces, pieces, attempt=attempt)
        return self._save(table, put, attempt, expect, where=where, stays=stays, pieces=pieces)

    def take_over(self, table: str, other: Version, *, attempt: int, expect: int) -> Written:
        """Replace all rows and columns of a table by another table's, whose files stay, in one commit."""
        made: list[DataFiles] = []

        def take(delta: DeltaTable) -> Written:
            here = self.opened.version_of(table, delta)
            if not other.actions.num_rows and not here.actions.num_rows and other.schema == here.schema:
                return Written(delta.version(), 0)
            if not made:
                made.append(take_files([other.folder / name for name in other.sizes], here, attempt))
            [files] = made
            with self._commit(table, delta, marks(attempt, files.rows)) as once:
                added: list[Action] = [*files.added]
                delta.create_write_transaction(added, "overwrite", other.schema, commit_properties=once)
            return Written(delta.version() + 1, files.rows)

        return self._once(table, attempt, expect, take, made)

    def rewrite(
        self,
        table: str,
        files: Sequence[str],
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        attempt: int,
        expect: int,
    ) -> Written:
        """Write files of a table again with other values in their rows, in one commit; otherwise as `append`.

        Args:
            table: The table.
            files: Names of files that it has at version `expect`.
            change: Returns the rows of a piece of a file in its place, with the same columns.
            attempt: As of `append`.
            expect: As of `append`.
        """
        made: list[DataFiles] = []

        def write(delta: DeltaTable) -> Written:
            if not files:
                return Written(delta.version(), 0)
            version = self.opened.version_of(table, delta)
            if not made:
                made.append(write_pieces([changed_rows(version, file, change) for file in files], version, attempt))
            return self._commit_files(table, delta, [*made[0].added, *_removals(version, files)], attempt)

        return self._once(table, attempt, expect, write, made)

    def empty(self, table: str, *, attempt: int, expect: int) -> Written:
        """Delete all rows of a table, in one commit if there are any; otherwise as `append`."""

        def take_away(delta: DeltaTable) -> Written:
            return self._commit_files(table, delta, removals(self.opened.version_of(table, delta).sizes), attempt)

        return self._once(table, attempt, expect, take_away)

    def remove_old(self, table: str, where: Filters, *, attempt: int, expect: int) -> Written:
        """Delete rows that match, in a commit that only removes files; otherwise as `append`.

        A file that has other rows too is split before, in a commit of maintenance. The commit says that its rows
        have become old: a pipeline that follows the table does not take it for a correction.
        """

        def remove(delta: DeltaTable) -> Written:
            version = self.opened.version_of(table, delta)
            old_files, mixed_files = version.files_meant(where)
            old_sizes = {path: version.sizes[path] for path in old_files}
            if mixed_files:
                made = [write_pieces([of(version, path, where) for path in mixed_files], version) for of in _BOTH]
                mixed_sizes = {path: version.sizes[path] for path in mixed_files}
                with _discarded_if_overtaken(made):
                    moved: list[Action] = [*made[0].moved, *made[1].moved, *removals(mixed_sizes, changes=False)]
                    written = self._commit_files(table, delta, moved)
                old_sizes |= made[0].sizes
                delta = self.open(table, written.version)
            if not old_sizes:
                return Written(delta.version(), 0)
            with self._commit(table, delta, marks(attempt, 0) | {REMOVES_OLD: "true"}) as once:
                actions: list[Action] = [*removals(old_sizes)]
                delta.create_write_transaction(actions, "append", delta.schema(), commit_properties=once)
            return Written(delta.version() + 1, 0)

        return self._once(table, attempt, expect, remove)

    def restore(self, table: str, version: int, *, expect: int | None = None) -> int:
        """Restore the content of a version in one commit, unless the table has it already; without a Spark job.

        Return the new version of the table, which was at version `expect`; None for any.

        Raises:
            ConflictError: Another writer has changed the table.
            LakeError: Files of that version are missing.
        """
        delta = self.opened.take(table, expect)
        current: int = delta.version()
        if expect is not None and current != expect:
            raise self._moved(table, expect)
        # A run that died right after this commit has restored it already.
        if current == version or own_commit(self.path(table), current).restores == version:
            self.opened.keep(table, delta)
            return current
        try:
            with self._commit(table, delta, {"userMetadata": UNDOING}) as once:
                delta.restore(version, commit_properties=once)
        except CommitFailedError as error:
            raise self._moved(table, current) from error
        except DeltaError as error:
            raise LakeError(
                f"{self.path(table)} cannot go back to version {version}: {error}",
                expected="all files of the version that the last commit in `batches` names",
                remedy="Restore the missing files from a backup. `tidemark maintain` keeps what commits name; a "
                "VACUUM of your own must keep what is younger than any uncommitted batch.",
            ) from error
        self.opened.keep(table, delta)
        return delta.version()

    def _save(
        self,
        table: str,
        write: Callable[[Version], DataFiles],
        attempt: int | None,
        expect: int,
        *,
        where: Filters | None,
        stays: Filters | None = None,
        pieces: Sequence[Piece] | None = None,
    ) -> Written:
        """Write files and commit them in place of old ones, whose rows that do not match `where` are rewritten.

        Rows of one piece get into one file with few that stay.
        """
        # A try that was overtaken asks again only where the version is another one.
        old = cache(lambda version: [] if where is None else version.files_to_replace(where, stays))
        made: list[DataFiles] = []

        def save(delta: DeltaTable) -> Written:
            version = self.opened.version_of(table, delta)
            replaced = old(version)
            is_one = pieces is not None and len(pieces) <= 1 and Amount(version.row_count(replaced)).are_few
            if where is not None and pieces is not None and is_one:
                return self._merge(table, delta, replaced, pieces, where=where, attempt=attempt)
            if not made:  # if maintenance comes in between, they need not be written again
                made.append(write(version))
            staying = [rows_left(version, path, where) for path in replaced] if where else []
            rewritten = [write_pieces(staying, version, attempt)] if staying else []
            added = [action for files in (*made, *rewritten) for action in files.added]
            with _discarded_if_overtaken(rewritten):
                return self._commit_files(
                    table, delta, [*added, *_removals(version, replaced)], attempt, made[0].rows
                )

        return self._once(table, attempt, expect, save, made)

    def _merge(
        self,
        table: str,
        delta: DeltaTable,
        replaced: Sequence[str],
        pieces: Sequence[Piece],
        *,
        where: Filters,
        attempt: int | None,
    ) -> Written:
        """Commit rows in one file with the rows of old files that stay."""
        version = self.opened.version_of(table, delta)
        if version.actions.num_rows > MOST_FILES and Amount(version.row_count()).are_few:
            replaced = list(version.sizes)  # otherwise small files would pile up
        schema: pa.Schema = version.dataset.schema
        files = replaced if where else []
        staying = [batch for file in files for batch in version.rows_without(file, where)]
        earlier = pa.Table.from_batches(staying, schema)
        made = write_pieces([rows_then(earlier, pieces)], version, attempt)
        actions: list[Action] = [*made.added, *_removals(version, replaced)]
        with _discarded_if_overtaken([made]):
            return self._commit_files(table, delta, actions, attempt, made.rows - earlier.num_rows)

    def _exchange(self, table: str, df: "DataFrame", where: Filters, attempt: int, expect: int) -> Written:
        """Commit the rows that differ, after a commit that moves the rows to delete into own files, if need be."""

        def exchange(delta: DeltaTable) -> Written:
            changes = RowChanges.between(self.opened.version_of(table, delta), where, df, attempt)
            sizes = changes.version.sizes
            fresh, old_sizes = changes.coming(), {path: sizes[path] for path in changes.files}
            made = [fresh]
            with _discarded_if_overtaken(made):
                staying = changes.staying() if old_sizes else None
                if staying and staying.rows:
                    split = changes.going()
                    made += [staying, split]
                    moved: list[Action] = [*staying.moved, *split.moved, *removals(old_sizes, changes=False)]
                    written = self._commit_files(table, delta, moved)
                    made[:], old_sizes = [fresh], split.sizes
                    delta = self.open(table, written.version)
                return self._commit_files(table, delta, [*fresh.added, *removals(old_sizes)], attempt, fresh.rows)

        return self._once(table, attempt, expect, exchange)

    def _commit_files(
        self,
        table: str,
        delta: DeltaTable,
        actions: Sequence[Action],
        attempt: int | None = None,
        rows: int = 0,
    ) -> Written:
        """Commit files on exactly the opened version, if there are any; without an attempt they change no rows."""
        if not actions:
            return Written(delta.version(), 0)
        with self._commit(table, delta, None if attempt is None else marks(attempt, rows)) as once:
            delta.create_write_transaction(list(actions), "append", delta.schema(), commit_properties=once)
        return Written(delta.version() + 1, rows)

    @contextmanager
    def _commit(
        self, table: str, delta: DeltaTable, metadata: Mapping[str, str] | None = None
    ) -> Iterator[CommitProperties]:
        """Make one commit during the block, on exactly the opened version and with the given metadata."""
        version = delta.version()
        self._committing(table)
        yield CommitProperties(max_commit_retries=0, custom_metadata=None if metadata is None else dict(metadata))
        self._committed(table, version + 1)

    def _committing(self, table: str) -> None:
        """Do nothing before every commit: tests of faults override this."""

    def _committed(self, table: str, version: int) -> None:
        """Do nothing after every commit: tests of faults override this."""

    def _once(
        self,
        table: str,
        attempt: int | None,
        expect: int,
        write: Callable[[DeltaTable], Written],
        made: Sequence[DataFiles] = (),
    ) -> Written:
        """Write unless this attempt has written; try again if maintenance was committed at the same moment.

        Without an attempt the write is never repeated. The files that were `made` are deleted if another writer has
        changed the table.
        """
        try:
            with writing(self.path(table)):
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
        except (ConflictError, FencedError):
            for files in made:
                files.discard()
            raise

    def _repeated(self, table: str, delta: DeltaTable, attempt: int | None, expect: int) -> Written | None:
        """Return the earlier write of this attempt; if there is none, check that the table is as expected.

        Maintenance after the expected version leaves the table as expected.
        """
        folder, current = self.path(table), delta.version()
        newest = None if attempt is None else newest_change(folder, current)
        since = [change.version for change in commits_between(folder, expect, current)] if current >= expect else None
        if newest is not None and attempt is not None:
            if newest.attempt > attempt:
                raise written_later(folder, newest.attempt, attempt)
            if newest.writes_for == attempt and since in ([], [newest.version]):
                return Written(current, newest.rows)
        if since != []:
            raise self._moved(table, expect)
        return None

    def _moved(self, table: str, expect: int) -> ConflictError:
        return ConflictError(
            f"{self.path(table)} is at version {self.version(table)}: another writer has changed it.",
            expected=f"version {expect}, and one more with this run's own write",
            remedy="Run again: the next run continues from the last commit in `batches`.",
        )


def written_later(folder: Place, later: int, attempt: int) -> FencedError:
    """Return the error of an attempt that finds the rows of a later one in a table."""
    return FencedError(
        f"{folder} was written by attempt {later}, a later one than this run's {attempt}.",
        expected="no other run that considers this one dead",
        remedy="Nothing was written. Run again.",
    )


@contextmanager
def _discarded_if_overtaken(made: Sequence[DataFiles]) -> Iterator[None]:
    """Delete files if the commit of them in the block fails, as another one came first."""
    try:
        yield
    except CommitFailedError:
        for files in made:
            files.discard()
        raise


def _removals(version: Version, files: Sequence[str]) -> list[RemoveAction]:
    sizes = version.sizes
    return removals({path: sizes[path] for path in files})


def _bounded(table: str, columns: Collection[str]) -> dict[str, str]:
    """Return the property that names the columns with bounds: Spark writes no table that lacks one of them."""
    named = [name for name in bounded_columns(table) if name in columns]
    return {BOUNDED: ",".join(named)} if named else {}
