"""The only writer of Delta: each write to a pipeline's table is one commit, which is counted and can be repeated.

Here: rows of single tables. Not here: making tables (new_tables.py), reading them (reading.py), batches of several
tables (batches/batch_log.py), repeated writes (once.py), what tables may hold (undoing.py).

Every commit is made by delta-rs, which needs no JVM. For large results Spark writes the files, see data_files.py, and
the commit names them. Few rows come into this process, which writes them itself.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.resources.lake.commits import (
    ADDED_ROWS,
    RESHAPING,
    UNDOING,
    entry_of,
    mark,
    mark_of_columns,
    restored_version,
)
from tidemark.resources.lake.data_files import DataFiles, Piece, removals, take_files, write_files, write_pieces
from tidemark.resources.lake.filters import Filters, arrow_condition, sql_condition
from tidemark.resources.lake.once import TRIES, ConflictError, Once, Written
from tidemark.resources.lake.opened import Version
from tidemark.resources.lake.reading import arrow_rows_of_files, files_to_replace, rows_of_files
from tidemark.resources.lake.row_changes import RowChanges, has_change_feed
from tidemark.resources.lake.table_columns import (
    delta_columns,
    missing_fields,
    with_columns_of,
)
from tidemark.resources.machine import writing
from tidemark.resources.places.place import remove_tree
from tidemark.timeops.errors import FencedError, LakeError

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FEW_ROWS = 50_000
"""How many rows this process takes from Spark to write them itself."""

MOST_FILES = 32
"""A table of few rows with more files than this is rewritten."""

Action = AddAction | RemoveAction
_FULL_FILE_BYTES = 8_000_000  # the most bytes that joining small files rewrites at a time


class Lake(Once):
    """The tables of one pipeline, for reading and writing."""

    def grow(self, table: str, schema: "StructType | pa.Schema", *, attempt: int, expect: int) -> int:
        """Add the columns that a table lacks, in one commit if there are any; its rows hold null in them.

        Columns that the schema does not name stay; rows that are added without them hold null.

        Args:
            table: The table.
            schema: The wanted columns.
            attempt: Number of the attempt that is to write them.
            expect: The version of the table.

        Returns:
            The new version of the table.

        Raises:
            ConflictError: Another writer has changed the table.
        """
        said = CommitProperties(max_commit_retries=0, custom_metadata={"userMetadata": mark_of_columns(attempt)})

        def add(delta: DeltaTable) -> Written:
            fields = missing_fields(delta.schema(), delta_columns(schema))
            if fields:
                self._committing(table)
                delta.alter.add_columns(fields, commit_properties=said)
                self._committed(table, delta.version())
            return Written(delta.version(), 0)

        return self._once(table, None, expect, add).version

    def add_columns(self, table: str, fields: Sequence[Field]) -> None:
        """Add columns to a table, null in the rows that it has, in one commit of maintenance.

        Raises:
            ConflictError: Another writer changed the table during every try.
        """
        self._reshaped(table, lambda delta, said: delta.alter.add_columns(list(fields), commit_properties=said))

    def append(self, table: str, df: "DataFrame", *, attempt: int, expect: int, are_few: bool = False) -> Written:
        """Append rows that Spark computes, in one commit. Repeated by the same attempt, it writes nothing.

        A DataFrame without rows may also make a commit.

        Args:
            table: The table.
            df: Rows to add.
            attempt: Number of the attempt that writes (see batches/batch_log.py); at most one write per
                table and attempt.
            expect: The version of the table before the write.
            are_few: There are probably no more than FEW_ROWS rows. Then this process fetches them from Spark and
                writes them itself.

        Raises:
            ConflictError: The table is at another version, before or after the write.
            FencedError: A later attempt has written the table.
        """
        rows = _few(df) if are_few else None
        if rows is not None:
            return self.append_rows(table, rows, attempt=attempt, expect=expect)
        return self._save(table, lambda version: write_files(df, version, attempt), None, attempt, expect)

    def append_pieces(self, table: str, pieces: Sequence[Piece], *, attempt: int, expect: int) -> Written:
        """Append rows of Arrow like `append`, without Spark, see `data_files.write_pieces`.

        Raises:
            pyarrow.ArrowException: The rows cannot be read; nothing was written.
        """
        return self._save(table, lambda version: write_pieces(pieces, version, attempt), None, attempt, expect)

    def replace(
        self,
        table: str,
        df: "DataFrame",
        *,
        where: Filters | None,
        attempt: int,
        expect: int,
        are_few: bool = False,
        stays: Filters | None = None,
    ) -> Written:
        """Delete the rows that match `where` and add others, in one commit; otherwise as `append`.

        The added rows need not match `where`. Rows for which `where` is null stay.

        Args:
            table: The table.
            df: Rows to add.
            where: Conditions on the rows to delete; no conditions mean all, None means none.
            attempt: As for `append`.
            expect: As for `append`.
            are_few: As for `append`. This process then also rewrites the other rows of the files that hold matching
                rows, if they have at most FEW_ROWS.
            stays: A file with rows that match these filters is not rewritten: its rows stay although they match
                `where`. By default no file stays.

        Only files that hold matching rows are written anew.

        In a table with a change feed only rows that differ are deleted and added, see `row_changes.RowChanges`.
        """
        if where is None:
            return self.append(table, df, attempt=attempt, expect=expect, are_few=are_few)
        if has_change_feed(self.opened.seen(table)):
            return self._exchange(table, df, where, attempt, expect)
        fresh = _few(df) if are_few and self._has_few_beside(table, where, stays) else None
        if fresh is not None:
            return self.replace_rows(table, fresh, where=where, attempt=attempt, expect=expect, stays=stays)

        def write(version: Version) -> DataFiles:
            return write_files(df, version, attempt)

        return self._save(table, write, where, attempt, expect, stays=stays)

    def replace_rows(
        self,
        table: str,
        rows: pa.Table,
        *,
        where: Filters,
        attempt: int,
        expect: int,
        stays: Filters | None = None,
    ) -> Written:
        """Replace rows by others that this process has, as `replace` does."""

        def rewrite(delta: DeltaTable) -> Written:
            version = self.opened.known(table, delta)
            old = files_to_replace(version, where, stays)
            if version.actions.num_rows > MOST_FILES and self.row_count(table, version.number) <= FEW_ROWS:
                old = list(version.sizes)  # otherwise small files would pile up
            there = arrow_rows_of_files(version, old)
            stay = ~arrow_condition(where) if where else pc.scalar(False)
            kept = there.filter(pc.coalesce(stay, pc.scalar(True)))  # rows for which the condition is null stay
            whole = pa.concat_tables([kept, with_columns_of(delta.schema(), rows).cast(kept.schema)])
            # Write one piece: a row group without rows has no bounds, so no filter would find the rows of the file.
            made = write_pieces([lambda schema: whole.cast(schema).combine_chunks().to_batches()], version, attempt)
            sizes = version.sizes
            actions: list[Action] = [*made.added, *removals({path: sizes[path] for path in old})]
            if not actions:
                return Written(delta.version(), 0)
            try:
                return self._commit_files(table, delta, actions, attempt, rows.num_rows)
            except CommitFailedError:
                made.discard()
                raise

        with writing(self.path(table)):
            return self._once(table, attempt, expect, rewrite)

    def take_over(self, table: str, other: Version, *, attempt: int, expect: int) -> Written:
        """Replace all rows and columns of a table by those of another one, in one commit.

        Args:
            table: The table.
            other: A version of the other table. Its files stay.
            attempt: As for `append`.
            expect: As for `append`.
        """
        made: list[DataFiles] = []

        def take(delta: DeltaTable) -> Written:
            here = self.opened.known(table, delta)
            if not other.actions.num_rows and not here.actions.num_rows and other.schema == here.schema:
                return Written(delta.version(), 0)
            if not made:
                made.append(take_files([other.folder / name for name in other.sizes], here, attempt))
            [files] = made
            said = {"userMetadata": mark(attempt), ADDED_ROWS: str(files.rows)}
            once = CommitProperties(max_commit_retries=0, custom_metadata=said)
            self._committing(table)
            delta.create_write_transaction([*files.added], "overwrite", other.schema, commit_properties=once)
            self._committed(table, delta.version() + 1)
            return Written(delta.version() + 1, files.rows)

        try:
            with writing(self.path(table)):
                return self._once(table, attempt, expect, take)
        except (ConflictError, FencedError):
            for files in made:
                files.discard()
            raise

    def empty(self, table: str, *, attempt: int, expect: int) -> Written:
        """Delete all rows of a table, in one commit if there are any; otherwise as `append`."""

        def take_away(delta: DeltaTable) -> Written:
            sizes = self.opened.known(table, delta).sizes
            return (
                self._commit_files(table, delta, removals(sizes), attempt) if sizes else Written(delta.version(), 0)
            )

        return self._once(table, attempt, expect, take_away)

    def make_anew(self, table: str) -> None:
        """Remove the folder of a table that is lost, so that it can be created again."""
        remove_tree(self.path(table))
        self.opened.forget(table)

    def _has_few_beside(self, table: str, where: Filters, stays: Filters | None) -> bool:
        """Return whether the files that a replacement takes away have few rows."""
        version = self.opened.seen(table)
        rows = dict(zip(version.actions["path"].to_pylist(), version.actions["num_records"].to_pylist(), strict=True))
        return bool(sum(rows[path] for path in files_to_replace(version, where, stays)) <= FEW_ROWS)

    def append_rows(self, table: str, rows: pa.Table, *, expect: int, attempt: int | None = None) -> Written:
        """Append rows to a small table in one commit, without a Spark job. Without rows there is no commit.

        Rows are written only if the table is at version `expect` at that moment. With an attempt it repeats like
        `append`; without one the caller decides what a repetition means.
        """
        if rows.num_rows == 0:
            return Written(expect, 0)
        said = {"userMetadata": mark(attempt)} if attempt is not None else None

        def add(delta: DeltaTable) -> Written:
            return Written(self._commit_rows(table, delta, rows, "append", said), rows.num_rows)

        return self._once(table, attempt, expect, add)

    def restore(self, table: str, version: int, *, expect: int | None = None) -> int:
        """Restore the content of a version in one commit, unless the table has it already; without a Spark job.

        Args:
            table: The table.
            version: The version.
            expect: The version of the table before; None for any.

        Returns:
            The new version of the table.

        Raises:
            ConflictError: Another writer has changed the table.
            LakeError: Files of that version are missing.
        """
        delta = self.opened.take(table, expect)
        current: int = delta.version()
        if expect is not None and current != expect:
            raise self._moved(table, expect)
        if current == version or restored_version(dict(entry_of(self.path(table), current).info)) == version:
            self.opened.keep(table, delta)
            return current
        self._committing(table)
        said = CommitProperties(max_commit_retries=0, custom_metadata={"userMetadata": UNDOING})
        try:
            delta.restore(version, commit_properties=said)
        except CommitFailedError as error:
            raise self._moved(table, current) from error
        except DeltaError as error:
            raise LakeError(
                f"{self.path(table)} cannot go back to version {version}: {error}",
                expected="all files of the version that the last commit in `batches` names",
                remedy="Restore the missing files from a backup. `tidemark maintain` keeps what commits name; a "
                "VACUUM of your own must keep what is younger than any uncommitted batch.",
            ) from error
        self._committed(table, delta.version())
        self.opened.keep(table, delta)
        return delta.version()

    def reshape(self, table: str, columns: Mapping[str, pc.Expression]) -> None:
        """Rewrite the rows of a table with other columns, some rows at a time, in one commit.

        The commit is maintenance: it does not change rows. Other maintenance in between goes first.

        Raises:
            ConflictError: Another writer changed the table during every try.
        """

        def write(delta: DeltaTable, said: CommitProperties) -> None:
            rows = self.opened.known(table, delta).dataset.scanner(columns=dict(columns)).to_reader()
            with writing(self.path(table)):
                write_deltalake(delta, rows, mode="overwrite", schema_mode="overwrite", commit_properties=said)

        self._reshaped(table, write)

    def _reshaped(self, table: str, change: Callable[[DeltaTable, CommitProperties], None]) -> None:
        """Change the columns of a table in one commit of maintenance, on its newest version."""
        said = CommitProperties(max_commit_retries=0, custom_metadata={"userMetadata": RESHAPING})
        for _ in range(TRIES):
            delta = self.open(table)
            self._committing(table)
            try:
                change(delta, said)
            except CommitFailedError as error:
                failed = error
                continue
            self._committed(table, delta.version())
            self.opened.keep(table, delta)
            return
        raise self._moved(table, delta.version()) from failed

    def compact(self, table: str) -> None:
        """Join the files of a small table, whose rows stay. Another write in between goes first."""
        once = CommitProperties(max_commit_retries=0)
        delta = self.opened.take(table)
        try:
            delta.optimize.compact(target_size=_FULL_FILE_BYTES, commit_properties=once)
        except CommitFailedError:
            return
        self.opened.keep(table, delta)

    def _commit_rows(
        self,
        table: str,
        delta: DeltaTable,
        rows: pa.Table,
        mode: Literal["append", "overwrite"],
        said: dict[str, str] | None,
    ) -> int:
        """Commit rows on exactly the opened version, without Spark; return the version that the commit makes."""
        once = CommitProperties(max_commit_retries=0, custom_metadata=said)
        self._committing(table)
        with writing(self.path(table)):
            write_deltalake(delta, with_columns_of(delta.schema(), rows), mode=mode, commit_properties=once)
        version: int = delta.version()
        self._committed(table, version)
        return version

    def _save(
        self,
        table: str,
        write: Callable[[Version], DataFiles],
        where: Filters | None,
        attempt: int,
        expect: int,
        *,
        stays: Filters | None = None,
    ) -> Written:
        """Write files and commit them in place of the files that hold rows to delete."""
        written: list[DataFiles] = []

        def save(delta: DeltaTable) -> Written:
            version = self.opened.known(table, delta)
            if not written:  # if maintenance comes in between, they need not be written again
                written.append(write(version))
            [fresh] = written
            old = [] if where is None else files_to_replace(version, where, stays)
            kept = self._kept(version, old, where, attempt) if old and where else None
            sizes = version.sizes
            removed = removals({path: sizes.get(path) for path in old})
            actions: list[Action] = [*fresh.added, *(kept.added if kept else ()), *removed]
            if not actions:
                return Written(delta.version(), 0)
            try:
                return self._commit_files(table, delta, actions, attempt, fresh.rows)
            except CommitFailedError:
                if kept:
                    kept.discard()
                raise

        try:
            with writing(self.path(table)):
                return self._once(table, attempt, expect, save)
        except (ConflictError, FencedError):
            for files in written:
                files.discard()
            raise

    def _exchange(self, table: str, df: "DataFrame", where: Filters, attempt: int, expect: int) -> Written:
        """Commit the rows that differ, after a commit that moves the rows to delete into own files, if need be."""

        def exchange(delta: DeltaTable) -> Written:
            changes = RowChanges.between(self.opened.known(table, delta), where, df, attempt)
            sizes = changes.version.sizes
            fresh, gone = changes.coming(), {path: sizes[path] for path in changes.files}
            if not fresh.rows and not gone:
                return Written(delta.version(), 0)
            made = [fresh]
            try:
                kept = changes.staying() if gone else None
                if kept and kept.rows:
                    split = changes.going()
                    made += [kept, split]
                    moved: list[Action] = [*kept.moved, *split.moved, *removals(gone, changes=False)]
                    there = self._commit_files(table, delta, moved)
                    made, gone = [fresh], split.sizes
                    delta = self.open(table, there.version)
                return self._commit_files(table, delta, [*fresh.added, *removals(gone)], attempt, fresh.rows)
            except CommitFailedError:
                for files in made:
                    files.discard()
                raise

        with writing(self.path(table)):
            return self._once(table, attempt, expect, exchange)

    def _commit_files(
        self,
        table: str,
        delta: DeltaTable,
        actions: Sequence[Action],
        attempt: int | None = None,
        rows: int = 0,
    ) -> Written:
        """Commit files on exactly the opened version; without an attempt they change no rows."""
        said = {"userMetadata": mark(attempt), ADDED_ROWS: str(rows)} if attempt is not None else None
        once = CommitProperties(max_commit_retries=0, custom_metadata=said)
        self._committing(table)
        delta.create_write_transaction(list(actions), "append", delta.schema(), commit_properties=once)
        self._committed(table, delta.version() + 1)
        return Written(delta.version() + 1, rows)

    def _kept(self, version: Version, files: list[str], where: Filters, attempt: int) -> DataFiles:
        """Rewrite the rows of some files that do not match the filters; rows for which these are null stay."""
        rows = rows_of_files(self.session(), version, files).where(f"NOT coalesce({sql_condition(where)}, false)")
        return write_files(rows, version, attempt)


def _few(df: "DataFrame") -> pa.Table | None:
    """Return the rows of a DataFrame, None if there are more than FEW_ROWS."""
    rows: pa.Table = df.limit(FEW_ROWS + 1).toArrow()
    return rows if rows.num_rows <= FEW_ROWS else None
