"""Tables that are not streams, which joins have on their right side: Delta tables, csv and parquet files.

Here: which version one has now, and its rows as they are. Not here: which version a batch has, and the rows that are
kept of it (assets/state/right_tables.py).
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidemark.resources.delta.log import open_table
from tidemark.resources.places.place import Place, is_url, place_of, spark_url
from tidemark.resources.sources.local_files import spark_path
from tidemark.timeops.errors import InputError, first_line
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import JoinSpec

_DIGITS = 16


@dataclass(frozen=True)
class ReferenceTable:
    """The table on the right side of a join.

    Attributes:
        join: The join.
        base: The folder of the spec file.
    """

    join: JoinSpec
    base: Path

    @property
    def place(self) -> Place:
        """Where it is."""
        path = self.join.right.table or ""
        return place_of(path) if is_url(path) else Path(os.path.abspath(self.base / path))

    @property
    def form(self) -> str:
        """Its format: csv, parquet or delta."""
        suffix = str(self.place).rpartition(".")[2].lower()
        return suffix if suffix in ("csv", "parquet") else "delta"

    def version(self) -> str:
        """Return the version that it has now: of a Delta table its number, of a file a digest of its bytes.

        Raises:
            InputError: There is no such table.
        """
        if self.form == "delta":
            try:
                return str(open_table(self.place).version)
            except InputError as error:
                raise self._gone(str(error)) from error
        digest = hashlib.sha256()
        try:
            with self.place.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise self._gone(f"{self.place}: {error.strerror or first_line(error)}") from error
        return digest.hexdigest()[:_DIGITS]

    def rows(self, spark: SparkSession, version: str) -> DataFrame:
        """Return the columns that the join reads, with the types that they have there; of csv all are texts.

        Raises:
            InputError: The table is gone, is another one by now, or lacks a column.
        """
        if self.form == "delta":
            reader = spark.read.format("delta").option("versionAsOf", version)
            path = spark_url(self.place)
        else:
            self.ensure_is(version)
            reader = spark.read.format(self.form)
            path = spark_path(str(self.place))
            if self.form == "csv":
                reader = reader.options(header=True, enforceSchema=False, multiLine=True, escape='"')
        try:
            table = reader.load(path)
            there = table.columns
        except PySparkException as error:
            raise self._gone(first_line(error)) from error
        lacking = [name for name in self.join.right.column_names if name not in there]
        if lacking:
            raise InputError(
                f"Join {self.join.name}: {self.place} has no column `{lacking[0]}`",
                expected=f"the columns of `right.schema`; it has {', '.join(f'`{name}`' for name in there)}",
                remedy="correct `schema`, or add the column to the table",
            )
        return table.select(*map(quoted, self.join.right.column_names))

    def ensure_is(self, version: str) -> None:
        """Check that a file is the version that a batch has; of a Delta table all versions stay readable.

        Raises:
            InputError: It is another one.
        """
        if self.form != "delta" and self.version() != version:
            raise InputError(
                f"Join {self.join.name}: {self.place} was written again, and the rows of the batch are not kept",
                expected="a file that stays as it is while a batch is at work, and the `right.schema` of before",
                remedy="run the pipeline again. After a change of `schema` use another name for the join: it has "
                "the table as it is",
            )

    def _gone(self, fault: str) -> InputError:
        return InputError(
            f"Join {self.join.name}: the table on its right side cannot be read: {fault}",
            expected="a Delta table, or a csv or parquet file, at `right.table`",
            remedy="restore the table, or correct the path",
        )
