"""The only writer of Delta: one pipeline's tables, each write one commit that can be repeated and is counted.

Here: single tables. Not here: what makes several tables one batch (see batches.py), and what is in them.

Big tables are written by Spark, small ones by delta-rs, which needs no JVM. Two writers are kept apart by the
file system: the entry of a version is put only where there is none. A local disk does that. On an object
store both writers must: S3 needs conditional puts (delta-rs) and a log store that coordinates several drivers
(Spark).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from resources.commit_info import ADDED_ROWS, attempt_of, is_restored, mark, rows_written
from resources.filters import Filters, arrow_condition, by_statistics, files_of, python_values, sql_condition
from resources.table_columns import delta_columns, differences, missing_fields, sql_types_of, with_columns_of
from resources.versions import Versions
from timeops.errors import FencedError, LakeError

if TYPE_CHECKING:  # reading control tables must not wait for PySpark
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import StructType

_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    # Statistics of every column: the ones that ranges prune by stand behind the payload, maybe past the 32nd.
    "delta.dataSkippingNumIndexedCols": "-1",
    # A batch that fails is undone by going back to the last commit, however long ago that was.
    "delta.enableExpiredLogCleanup": "false",
    # Opening a table reads its log from the last checkpoint on; delta-rs makes one every hundred commits by default.
    "delta.checkpointInterval": "10",
}
FEW_ROWS = 50_000
"""So many rows this process takes from Spark to write them by itself."""

_FULL_FILE_BYTES = 8_000_000  # joining small files never rewrites more than this many bytes at a time


class ConflictError(LakeError):
    """Somebody else has written a table since this program looked at it."""


@dataclass(frozen=True)
class Written:
    """One commit: the version it made and the rows it added."""

    version: int
    rows: int


def without_spark() -> "SparkSession":
    """Stand for the session where none is needed."""
    raise LakeError("This lake was opened without Spark.", remedy="Give Lake a callable that returns a session.")


@dataclass(frozen=True)
class Lake:
    """The tables of one pipeline.

    Args:
        root: Folder of the pipeline; its name is the pipeline's.
        session: Gives the Spark session; called only when Spark is needed.
    """

    root: Path
    session: "Callable[[], SparkSession]" = without_spark

    @cached_property
    def _versions(self) -> Versions:
        return Versions(self.root)

    def path(self, table: str) -> Path:
        """Return the folder of a table."""
        return self.root / table

    def exists(self, table: str) -> bool:
        """Tell whether the table has been created."""
        return DeltaTable.is_deltatable(str(self.path(table)))

    def create(self, table: str, schema: "StructType | pa.Schema", *, may_grow: bool = False) -> None:
        """Create an empty table, all of whose columns may be null, unless it is there.

        Args:
            table: The table.
            schema: Its columns.
            may_grow: A table that is there may have other columns, but none of another type: see `grow`.

        Raises:
            LakeError: The table is there with other columns.
        """
        wanted = delta_columns(schema)
        DeltaTable.create(
            str(self.path(table)),
            Schema.from_json(json.dumps(wanted)),
            mode="ignore",
            configuration=_PROPERTIES,
        )
        wrong = differences(self._versions.open(table), wanted, of_both=may_grow)
        if wrong:
            raise LakeError(
                f"{self.path(table)} has other columns: {'; '.join(wrong)}.",
                expected="the columns that the spec gives",
                remedy="Take the change of the spec back, or use another pipeline name or warehouse.",
            )

    def grow(self, table: str, schema: "StructType | pa.Schema", *, expect: int) -> int:
        """Add the columns that a table lacks, null in the rows that it has, in one commit if there are any.

        Columns that the schema does not name stay, and are null in rows that are added without them.

        Args:
            table: The table.
            schema: The wanted columns.
            expect: Version that the table has.

        Returns:
            The version that the table has now.

        Raises:
            ConflictError: Somebody else has written the table.
        """
        delta = self._versions.open(table)
        if delta.version() != expect:
            raise self._moved(table, expect)
        fields = missing_fields(delta, delta_columns(schema))
        if fields:
            self._committing(table)
            try:
                delta.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
            except CommitFailedError as error:
                raise self._moved(table, expect) from error
            self._committed(table, delta.version())
        return delta.version()

    def version(self, table: str) -> int:
        """Return the table's latest version, without a Spark job."""
        return self._versions.seen(table).delta.version()

    def row_count(self, table: str, version: int | None = None) -> int:
        """Return the number of rows of a table, at a version if one is given, from its log."""
        counts = pa.table(self._versions.seen(table, version).delta.get_add_actions(flatten=True))["num_records"]
        return int(pc.sum(counts).as_py() or 0)

    def has_files(self, table: str, version: int) -> bool:
        """Return whether all files of a version are there; VACUUM deletes those that no later version has."""
        files = pa.table(self._versions.seen(table, version).delta.get_add_actions(flatten=True))["path"].to_pylist()
        return all((self.path(table) / file).exists() for file in files)

    def columns(self, table: str) -> dict[str, str]:
        """Return name and type of each column, the type as Spark SQL writes it, without a Spark job."""
        return sql_types_of(self._versions.seen(table).delta)

    def read(self, table: str, version: int | None = None, *, filters: Filters | None = None) -> "DataFrame":
        """Return rows of a table, at a version if one is given, as a Spark DataFrame.

        The table's log tells which files to read, by delta-rs: to find them, Delta's own reader runs Spark jobs over
        the log at every read, which take a micro-batch more than reading what it wrote. Files that the filters rule
        out are not opened.
        """
        from resources.scan import scan  # noqa: PLC0415 - it imports PySpark

        return scan(self.session(), self._versions.seen(table, version), filters or ())

    def rows(
        self,
        table: str,
        version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
    ) -> pa.Table:
        """Return rows of a small table, without a Spark job. Files that the filters rule out are not opened."""
        known = by_statistics(filters or ())
        rest = [one for one in filters or () if one not in known]
        found = self._versions.seen(table, version).dataset.to_table(
            columns=list(columns) if columns is not None and not rest else None,
            filter=arrow_condition(known) if known else None,
        )
        found = found.filter(arrow_condition(rest)) if rest else found
        return found if columns is None else found.select(list(columns))

    def dataset(self, table: str, version: int) -> pa.dataset.Dataset:
        """Return a table of any size for Arrow to read piece by piece; see `bounded.py`."""
        return self._versions.seen(table, version).dataset

    def lowest_by_file(self, table: str, version: int, column: str) -> list[tuple[Any, int]]:
        """Return the lowest value of a column and the number of rows of each file whose statistics tell both."""
        files = pa.table(self._versions.seen(table, version).delta.get_add_actions(flatten=True))
        lowest = f"min.{column}"
        if lowest not in files.column_names:
            return []
        pairs = zip(python_values(files[lowest]), files["num_records"].to_pylist(), strict=True)
        return [(value, rows) for value, rows in pairs if value is not None and rows]

    def lowest(self, table: str, version: int, column: str) -> Any:
        """Return the lowest value of a column, None for no row; from the statistics of the files if all tell it.

        Of instants it is an Instant.

        Raises:
            LakeError: The table cannot be read.
        """
        try:
            known = self.lowest_by_file(table, version, column)
            if sum(rows for _, rows in known) == self.row_count(table, version):
                return min((value for value, _ in known), default=None)
            values = python_values(self.rows(table, version, columns=[column])[column])
            return min((value for value in values if value is not None), default=None)
        except (DeltaError, OSError) as error:
            raise LakeError(f"{self.path(table)} cannot be read: {error}") from error

    def append(self, table: str, df: "DataFrame", *, attempt: int, expect: int, are_few: bool = False) -> Written:
        """Append rows that Spark computes, in one commit. Repeated by the same attempt, it writes nothing.

        A DataFrame without rows may make a commit as well.

        Args:
            table: The table.
            df: Rows to add.
            attempt: Number of the attempt that writes (see batches.py); at most one write per table and attempt.
            expect: Version that the table has before the write.
            are_few: The rows are probably no more than FEW_ROWS. Then this process gets them from Spark and commits
                them by itself, which takes a third of the time of Spark's own commit.

        Raises:
            ConflictError: The table is at another version, before or after the write.
            FencedError: A later attempt has written the table.
        """
        rows = _few(df) if are_few else None
        if rows is not None:
            return self.append_rows(table, rows, attempt=attempt, expect=expect)
        return self._save(table, df.write.mode("append"), attempt, expect)

    def replace(
        self,
        table: str,
        df: "DataFrame",
        *,
        where: Filters | None,
        attempt: int,
        expect: int,
        are_few: bool = False,
    ) -> Written:
        """Delete the rows that match `where` and add others, in one commit; otherwise as `append`.

        The added rows need not match `where`. Rows for which it is null stay.

        Args:
            table: The table.
            df: Rows to add.
            where: Which rows to delete; no conditions mean all, None means none.
            attempt: As for `append`.
            expect: As for `append`.
            are_few: As for `append`. A table of no more than FEW_ROWS is then written anew by this process. Otherwise
                only files that hold matching rows are.
        """
        if where is None:
            return self.append(table, df, attempt=attempt, expect=expect, are_few=are_few)
        fresh = _few(df) if are_few and self.row_count(table) <= FEW_ROWS else None
        if fresh is not None:
            return self._rewrite(table, fresh, where, attempt, expect)
        condition = sql_condition(where)
        return self._save(table, df.write.mode("overwrite").option("replaceWhere", condition), attempt, expect)

    def append_rows(self, table: str, rows: pa.Table, *, expect: int, attempt: int | None = None) -> Written:
        """Append rows to a small table in one commit, without a Spark job. No rows, no commit.

        Nothing is written unless the table is at version `expect` at that very moment. With an attempt it
        repeats like `append`; without one the caller decides what a repetition means.
        """
        if rows.num_rows == 0:
            return Written(expect, 0)
        delta = self._versions.open(table)
        repeated = self._repeated(table, delta, attempt, expect)
        if repeated is not None:
            return repeated
        said = {"userMetadata": mark(attempt)} if attempt is not None else None
        return Written(self._commit_rows(table, delta, rows, "append", said), rows.num_rows)

    def restore(self, table: str, version: int) -> int:
        """Bring back the content of a version, in one commit unless it is there already; without a Spark job.

        Returns:
            The version that the table has now.

        Raises:
            LakeError: The table has not come to that version, or files of it are missing.
        """
        current = self.version(table)
        if current == version:
            return current
        if current < version:
            raise LakeError(
                f"{self.path(table)} is at version {current}.",
                expected=f"version {version} or later, as the last commit in `batches` says",
                remedy="Bring the table's folder back from a copy made together with the other tables.",
            )
        delta = self._versions.open(table)
        if is_restored(delta, version):
            return current
        self._committing(table)
        try:
            delta.restore(version, commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError as error:
            raise self._moved(table, current) from error
        except DeltaError as error:
            raise LakeError(
                f"{self.path(table)} cannot go back to version {version}: {error}",
                expected="all files of the version that the last commit in `batches` names",
                remedy="Bring the missing files back from a copy; VACUUM must keep what commits name.",
            ) from error
        self._committed(table, delta.version())
        return delta.version()

    def compact(self, table: str) -> None:
        """Join the files of a small table, which keeps its rows. Somebody else's write in between goes first."""
        once = CommitProperties(max_commit_retries=0)
        try:
            self._versions.open(table).optimize.compact(target_size=_FULL_FILE_BYTES, commit_properties=once)
        except CommitFailedError:
            return

    def _committing(self, table: str) -> None:
        """Stand before every commit, for tests of faults to override."""

    def _committed(self, table: str, version: int) -> None:
        """Stand behind every commit, for tests of faults to override."""

    def _rewrite(self, table: str, fresh: pa.Table, where: Filters, attempt: int, expect: int) -> Written:
        """Write a small table anew: the rows that stay, and fresh ones."""
        delta = self._versions.open(table)
        repeated = self._repeated(table, delta, attempt, expect)
        if repeated is not None:
            return repeated
        old = delta.to_pyarrow_table(filesystem=files_of(self.path(table)))
        stays = ~arrow_condition(where) if where else pc.scalar(False)
        kept = old.filter(pc.coalesce(stays, pc.scalar(True)))  # rows for which the condition is null stay
        rows = pa.concat_tables([kept, with_columns_of(delta, fresh).cast(old.schema)])
        said = {"userMetadata": mark(attempt), ADDED_ROWS: str(fresh.num_rows)}
        return Written(self._commit_rows(table, delta, rows, "overwrite", said), fresh.num_rows)

    def _commit_rows(
        self,
        table: str,
        delta: DeltaTable,
        rows: pa.Table,
        mode: Literal["append", "overwrite"],
        said: dict[str, str] | None,
    ) -> int:
        """Commit rows on the very version that was opened, without Spark; return the version that this makes."""
        expect = delta.version()
        once = CommitProperties(max_commit_retries=0, custom_metadata=said)
        self._committing(table)
        try:
            write_deltalake(delta, with_columns_of(delta, rows), mode=mode, commit_properties=once)
        except CommitFailedError as error:
            raise self._moved(table, expect) from error
        version: int = delta.version()
        self._committed(table, version)
        return version

    def _save(self, table: str, writer: "DataFrameWriter", attempt: int, expect: int) -> Written:
        repeated = self._repeated(table, self._versions.open(table), attempt, expect)
        if repeated is not None:
            return repeated
        self._committing(table)
        try:
            writer.format("delta").option("userMetadata", mark(attempt)).save(str(self.path(table)))
        except Exception as error:
            if self.version(table) != expect:
                raise self._moved(table, expect) from error
            raise
        return self._landed(table, attempt, expect)

    def _repeated(self, table: str, delta: DeltaTable, attempt: int | None, expect: int) -> Written | None:
        """Return what this attempt has written already; check that the table is as expected if it has not."""
        if attempt is not None:
            recorded = attempt_of(delta.history(1)[0])
            if recorded > attempt:
                raise FencedError(
                    f"{self.path(table)} was written by attempt {recorded}, a later one than this run's {attempt}.",
                    expected="no other run that takes this one for dead",
                    remedy="Nothing was written. Run again.",
                )
            if recorded == attempt and delta.version() in {expect, expect + 1}:
                return Written(delta.version(), rows_written(delta.history(1)[0]))
        if delta.version() != expect:
            raise self._moved(table, expect)
        return None

    def _landed(self, table: str, attempt: int, expect: int) -> Written:
        """Check that the commit just made is this attempt's and the only one."""
        delta = self._versions.open(table)
        if delta.version() == expect:
            return Written(expect, 0)
        latest = delta.history(1)[0]
        if delta.version() != expect + 1 or attempt_of(latest) != attempt:
            raise self._moved(table, expect)
        self._committed(table, expect + 1)
        return Written(expect + 1, rows_written(latest))

    def _moved(self, table: str, expect: int) -> ConflictError:
        return ConflictError(
            f"{self.path(table)} is at version {self.version(table)}: somebody else has written it.",
            expected=f"version {expect}, and one more with this run's own write",
            remedy="Run again: the next run goes on from the last commit in `batches`.",
        )


def _few(df: "DataFrame") -> pa.Table | None:
    """Return the rows of a DataFrame, None when they are more than FEW_ROWS."""
    rows: pa.Table = df.limit(FEW_ROWS + 1).toArrow()
    return rows if rows.num_rows <= FEW_ROWS else None
