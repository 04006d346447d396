"""The rows that a replacement deletes and adds in a table, so that its change feed lists only these.

Here: comparing old rows with new ones, and the files of both. Not here: commits (lake.py).

The change feed of a commit lists all rows of the files that it adds and removes. So rows to delete are moved into
files of their own first, by a commit that does not change rows, as OPTIMIZE does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tidemark.resources.lake.data_files import DataFiles, write_files
from tidemark.resources.lake.filters import Filters, sql_condition
from tidemark.resources.lake.opened import Version
from tidemark.resources.lake.reading import files_with, rows_of_files
from tidemark.timeops.columns import BATCH
from tidemark.timeops.expressions.tokens import quoted

if TYPE_CHECKING:  # committing must not wait for PySpark
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

CHANGE_FEED = "delta.enableChangeDataFeed"
"""The property of a table that has a change feed."""
_FILE, _IS_NEW, _NUMBER, _FATE = "__tm_file", "__tm_is_new", "__tm_number", "__tm_fate"
_GOES, _STAYS, _COMES, _KNOWN = "goes", "stays", "comes", "known"


def has_change_feed(version: Version) -> bool:
    """Return whether a table has a change feed."""
    return str(version.properties.get(CHANGE_FEED, "false")).lower() == "true"


@dataclass(frozen=True)
class RowChanges:
    """The differences between the matching rows of a table and the rows that are to replace them.

    Rows are compared by all columns but `_batch_id`: a row that comes again is not a change.

    Attributes:
        session: The session.
        version: The table.
        where: The filters.
        attempt: The attempt that writes.
        rows: Old and new rows, each with its fate.
    """

    session: "SparkSession"
    version: Version
    where: Filters
    attempt: int
    rows: "DataFrame"

    @classmethod
    def between(cls, version: Version, where: Filters, new: "DataFrame", attempt: int) -> "RowChanges":
        """Compare the rows of a table with new ones, by one Spark job."""
        from pyspark.sql import functions as F  # noqa: PLC0415 - see above
        from pyspark.sql.window import Window  # noqa: PLC0415

        session, files = new.sparkSession, files_with(version, where)
        held = rows_of_files(session, version, files)
        name = held.metadataColumn("_metadata")["file_name"] if files else F.lit(None).cast("string")
        old = held.withColumns({_FILE: name, _IS_NEW: F.lit(False)}).where(sql_condition(where))
        came = new.to(held.schema).withColumns({_FILE: F.lit(None).cast("string"), _IS_NEW: F.lit(True)})
        same = [_comparable(field) for field in held.schema if field.name != BATCH]
        number = F.row_number().over(Window.partitionBy(*same, _IS_NEW).orderBy(F.lit(0)))
        in_both = F.count("*").over(Window.partitionBy(*same, _NUMBER)) == 2
        fate = (
            F.when(F.col(_IS_NEW), F.when(in_both, _KNOWN).otherwise(_COMES)).when(in_both, _STAYS).otherwise(_GOES)
        )
        told = old.unionByName(came).withColumn(_NUMBER, number).withColumn(_FATE, fate)
        return cls(session, version, where, attempt, told.drop(_NUMBER, _IS_NEW).localCheckpoint())

    @cached_property
    def files(self) -> Sequence[str]:
        """The files of the table that hold rows to delete, by their names in its log."""
        names = {row[0] for row in self._of(_GOES, _FILE).select(_FILE).distinct().collect()}
        found = [path for path in self.version.sizes if _name(path) in names]
        assert names == set(map(_name, found)), f"{names} are no files of {self.version.folder}"
        return found

    def coming(self) -> DataFiles:
        """Write the rows to add."""
        return self._write(self._of(_COMES))

    def going(self) -> DataFiles:
        """Write the rows to delete."""
        return self._write(self._of(_GOES))

    def staying(self) -> DataFiles:
        """Write the other rows of the files that hold rows to delete."""
        from pyspark.sql import functions as F  # noqa: PLC0415

        others = rows_of_files(self.session, self.version, self.files)
        unmatched = others.where(f"NOT coalesce({sql_condition(self.where)}, false)")
        same = self._of(_STAYS, _FILE).where(F.col(_FILE).isin([_name(path) for path in self.files]))
        return self._write(unmatched.unionByName(same.drop(_FILE)))

    def _of(self, fate: str, *more: str) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: PLC0415

        return self.rows.where(F.col(_FATE) == fate).drop(*({_FATE, _FILE} - {*more}))

    def _write(self, rows: "DataFrame") -> DataFiles:
        files = write_files(rows, self.version, self.attempt)
        if not files.rows:
            files.discard()
        return files


def _name(path: str) -> str:
    """Return the name of a file, which is unique in the table: Spark and delta-rs put a UUID into it."""
    return path.rpartition("/")[2]


def _comparable(field: "StructField") -> "Column":
    """Return a column in a form that Spark can compare: maps as text."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    from tidemark.timeops.expressions.try_expression import as_json  # noqa: PLC0415

    column = F.col(quoted(field.name))
    return as_json(column) if "map<" in field.dataType.simpleString() else column
